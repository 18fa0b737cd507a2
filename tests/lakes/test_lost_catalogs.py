"""A lost catalog is brought back: from a backup with what came later, or from the files alone. What cannot be known is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from tests.support.lakes import Site, add_to_both, both, directory_of, foreign_append, ids, numbers, stock, uri_of
from tests.support.lost_catalogs import all_contents, contents, lose_catalog, rebuild, restore, whole
from tiltyard.errors import ConflictError, CorruptTable, NotFound, OwnershipError
from tiltyard.lake import Lake
from tiltyard.lakes import finishing
from tiltyard.lakes.recovery.restoring import LakeRecoveryReport
from tiltyard.storage import external
from tiltyard.verbs.outcome import Committed, NotCommitted, Unknown

Bring = Callable[[Site], LakeRecoveryReport]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A lake of the quickest kind."""
    here = Site("sqlite", str(tmp_path / "lake"), tmp_path / "lake", {"catalog": "sqlite"})
    yield here
    here.close()


@pytest.fixture(params=["restore", "rebuild"])
def bring(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Site, Lake], Bring]:
    """Takes a backup where one is needed; what it returns brings the lost catalog back, with or without it."""

    def begin(site: Site, lake: Lake) -> Bring:
        if request.param == "rebuild":
            return rebuild
        lake.backup(tmp_path / "backup")
        return lambda site: restore(site, tmp_path / "backup")

    return begin


def life(lake: Lake) -> None:
    """All kinds of things that happen to a lake."""
    with lake.transaction(message="both", properties={"run": "7"}, idempotency_key="seven") as tx:
        add_to_both(tx, 2)
    table = lake.table("a")
    table.append(numbers(3), message="alone")
    table.append(numbers(4))
    lake.create_table("sales.c", numbers(1))
    lake.tags.create("c-is-made")
    lake.rename_table("b", "bb")
    with lake.transaction() as tx:
        tx.table("sales.c").append(numbers(2))
        tx.table("bb").delete("id = 1")
        tx.create_table("d", numbers(9))
    lake.drop_table("sales.c")
    lake.create_table("b", numbers(100))
    lake.tags.create("end")


def test_all_of_a_life_is_found_again(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring]) -> None:
    begin = bring(site, lake)
    life(lake)
    before, past = whole(lake), all_contents(lake)
    lose_catalog(site)
    report = begin(site)
    assert report.complete, report
    lake = site.open()
    assert whole(lake) == before
    assert all_contents(lake) == past, "every snapshot has its number and shows what it showed"
    assert lake.check().problems == ()
    assert lake.run(lambda tx: pytest.fail("it was committed before"), idempotency_key="seven") is None
    assert isinstance(lake.outcome(before["commits"][0][0]), Committed)
    assert begin.__name__ == "<lambda>" or report.adopted[0].snapshot == 1


def test_a_lake_brought_back_goes_on(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring]) -> None:
    begin = bring(site, lake)
    life(lake)
    tip, files = lake.snapshot().id, site.files()
    lose_catalog(site)
    begin(site)
    lake = site.open()
    assert site.files() - files <= {path for path in site.files() if "_tiltyard/lake" in path}
    assert files <= site.files(), "not a file of a table is gone"
    with lake.transaction() as tx:
        tx.table("a").append(numbers(50))
        tx.table("bb").append(numbers(50))
    assert lake.snapshot().id == tip + 1
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert lake.check().problems == ()
    assert contents(lake)["a"] == [1, 2, 3, 4, 50]
    assert contents(lake, "c-is-made")["sales.c"] == [1]


def test_branches_come_back(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring]) -> None:
    lake.branches.create("old")
    lake.on_branch("old").table("a").append(numbers(10))
    begin = bring(site, lake)
    lake.on_branch("old").table("a").append(numbers(11))
    lake.on_branch("old").create_table("mine", numbers(1))
    lake.branches.create("new")
    lake.on_branch("new").table("a").append(numbers(20))
    lake.branches.create("gone")
    lake.on_branch("gone").table("b").append(numbers(30))
    lake.branches.delete("gone")
    lake.branches.create("home")
    lake.on_branch("home").table("b").append(numbers(40))
    lake.branches.fast_forward("home")
    before = whole(lake)
    lose_catalog(site)
    report = begin(site)
    lake = site.open()
    assert whole(lake) == before, report
    assert set(lake.branches) == {"old", "new", "home"}
    assert lake.check().problems == ()
    lake.on_branch("new").table("a").append(numbers(21))
    lake.branches.fast_forward("new")
    assert contents(lake) == {"a": [1, 20, 21], "b": [1, 40]}


def test_foreign_versions_are_adopted(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring]) -> None:
    begin = bring(site, lake)
    lake.table("a").append(numbers(2))
    uri = uri_of(lake, "a")
    foreign_append(uri, 3)
    foreign_append(uri, 4)
    lose_catalog(site)
    report = begin(site)
    lake = site.open()
    assert contents(lake) == {"a": [1, 2, 3, 4], "b": [1]}
    assert [found.foreign for found in report.adopted][-1]
    assert lake.check().problems == ()
    lake.table("a").append(numbers(5))
    assert ids(stock(lake, "a")) == [1, 2, 3, 4, 5]


# ---- transactions that were not finished -------------------------------------------------------------------------------------------


class Dead(BaseException):
    """A process that died."""


def die_after(lake: Lake, finished: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets only so many versions of one transaction get their final names."""
    plain, done = external.finalize, [0]

    def finalize(*arguments: Any) -> Any:
        if done[0] >= finished:
            raise Dead
        done[0] += 1
        return plain(*arguments)

    monkeypatch.setattr(finishing, "finalize", finalize)


def test_a_transaction_that_was_half_finished_is_whole(
    site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = bring(site, lake)
    with monkeypatch.context() as patched:
        die_after(lake, 1, patched)
        tx = lake.transaction(message="half")
        add_to_both(tx, 2)
        with pytest.raises(Dead):
            tx.commit()
    assert len(site.files("_tiltyard/staged/")) >= 1
    lose_catalog(site)
    report = begin(site)
    assert report.in_doubt == ()
    lake = site.open()
    assert both(lake) == ([1, 2], [1, 2])
    assert lake.history()[0].message == "half"
    assert lake.catalog.pending() == []
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == [1, 2]
    assert lake.check().problems == ()


def test_nothing_is_shown_of_a_transaction_in_doubt(
    site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = bring(site, lake)
    open_one = lake.transaction()
    open_one.table("a").append(numbers(3))
    with monkeypatch.context() as patched:
        die_after(lake, 0, patched)
        tx = lake.transaction()
        add_to_both(tx, 2)
        with pytest.raises(Dead):
            tx.commit()
    staged = site.files("_tiltyard/staged/")
    lose_catalog(site)
    report = begin(site)
    assert set(report.in_doubt) == {tx.id, open_one.id}
    assert not report.complete
    lake = site.open()
    assert both(lake) == ([1], [1])
    assert isinstance(lake.outcome(tx.id), Unknown)
    assert lake.check().problems == ()
    cleaned = lake.cleanup(grace=timedelta(0))
    assert {one.transaction for one in cleaned.held} == {tx.id, open_one.id}
    assert staged <= site.files(), "while an outcome is unknown nothing is deleted"
    assert isinstance(lake.outcome(tx.id, give_up=True), NotCommitted)
    lake.outcome(open_one.id, give_up=True)
    lake.cleanup(grace=timedelta(0))
    assert site.files("_tiltyard/staged/") == set()
    assert both(lake) == ([1], [1])


def test_a_foreign_writer_in_the_middle_of_a_transaction(
    site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table of a transaction is finished; in the other a foreign writer has the number. A person decides, as with the old catalog."""
    begin = bring(site, lake)
    with monkeypatch.context() as patched:
        die_after(lake, 1, patched)
        tx = lake.transaction()
        add_to_both(tx, 2)
        with pytest.raises(Dead):
            tx.commit()
    other = next(name for name in ("a", "b") if stock(lake, name).version == 1)
    foreign_append(uri_of(lake, other), 77)
    lose_catalog(site)
    report = begin(site)
    assert any("repair" in what for what in report.unknown)
    lake = site.open()
    with pytest.raises(CorruptTable):
        lake.table(other).append(numbers(5))
    lake.repair(other, keep="ours")
    assert both(lake) == ([1, 2], [1, 2])
    assert lake.check().problems == ()


# ---- numbers -----------------------------------------------------------------------------------------------------------------------


def test_numbers_are_not_used_again_where_the_order_is_not_known(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring]) -> None:
    begin = bring(site, lake)
    first, second = lake.transaction(), lake.transaction()
    first.table("a").append(numbers(2))
    second.table("b").append(numbers(2))
    second.commit()
    first.commit()
    with lake.transaction() as tx:
        add_to_both(tx, 3)
    past, tip = all_contents(lake), lake.snapshot().id
    lose_catalog(site)
    report = begin(site)
    lake = site.open()
    now = all_contents(lake)
    for number in set(now) & set(past):
        assert now[number] == past[number], "a number means what it meant"
    assert max(now) > tip
    assert now[max(now)] == past[tip]
    for number in set(past) - set(now):
        with pytest.raises(NotFound, match="not known"):
            lake.snapshot(number)
    assert any("numbers above" in what for what in report.unknown)
    assert lake.check().problems == ()
    lake.table("a").append(numbers(4))
    assert lake.snapshot().id == max(now) + 1
    assert lake.snapshot(lake.history()[-1].at).id == 1


def test_a_tag_keeps_its_snapshot_where_numbers_are_not_known(small: Site) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.create_table("b", numbers(1))
    first, second = lake.transaction(), lake.transaction()
    first.table("a").append(numbers(2))
    second.table("b").append(numbers(2))
    second.commit()
    first.commit()
    lake.create_table("c", numbers(1))
    lake.tags.create("there")
    before = contents(lake, "there")
    number = lake.tags["there"].snapshot
    lose_catalog(small)
    rebuild(small)
    lake = small.open()
    assert lake.tags["there"].snapshot == number
    assert contents(lake, "there") == before
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert contents(lake, "there") == before
    assert lake.check().problems == ()


def test_the_newest_number_stands_for_what_is_seen_though_the_last_commits_are_not_known(small: Site) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.create_table("b", numbers(1))
    lake.table("b").append(numbers(2))
    lake.tags.create("there")
    tip, lost = lake.snapshot().id, directory_of(lake, "b")
    lose_catalog(small)
    shutil.rmtree(lost)
    assert not rebuild(small).complete
    lake = small.open()
    newest = lake.snapshot().id
    assert newest > tip, "what had this number cannot be read any more"
    assert lake.history()[0].id == newest
    assert contents(lake, newest) == {"a": [1]}
    lake.branches.create("x", at=newest)
    lake.tags.create("found", at=newest)
    lake.table("a").append(numbers(2))
    assert contents(lake, newest) == contents(lake, "found") == contents(lake.on_branch("x")) == {"a": [1]}


@pytest.mark.parametrize("entry", ["tags/there", "branches/x", "rules/x", "names/main/*"])
def test_what_a_damaged_journal_said_is_missed(small: Site, entry: str) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.tags.create("there")
    lake.branches.create("x")
    lake.branches.protect("x", checks=["rows"])
    (path,) = (small.directory / "_tiltyard" / "lake").glob(f"{entry}.json")
    lose_catalog(small)
    assert rebuild(small).complete
    path.write_bytes(path.read_bytes()[:-9])
    report = rebuild(small, replace=True)
    assert not report.complete
    assert any(path.name in what for what in report.unknown)


# ---- what was cleaned up since --------------------------------------------------------------------------------------------------------


def test_a_backup_older_than_a_cleanup(site: Site, lake: Lake, tmp_path: Path) -> None:
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    lake.tags.create("kept", at=1)
    lake.backup(tmp_path / "backup")
    for value in range(3, 8):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    lake.drop_table("b")
    lake.cleanup(keep_snapshots=2, grace=timedelta(0))
    before, tip = contents(lake), lake.snapshot().id
    lose_catalog(site)
    report = restore(site, tmp_path / "backup")
    lake = site.open()
    assert contents(lake) == before
    assert contents(lake, "kept") == {"a": [1], "b": [1]}
    assert lake.snapshot().id >= tip
    all_contents(lake)
    assert any("cleaned up" in what for what in report.unknown)
    assert lake.check().problems == ()


def test_a_dropped_table_stays_dropped(site: Site, lake: Lake, tmp_path: Path) -> None:
    lake.create_table("c", numbers(1))
    lake.drop_table("c")
    lake.backup(tmp_path / "backup")
    lake.drop_table("b")
    lose_catalog(site)
    for report in (restore(site, tmp_path / "backup"), rebuild(site, replace=True)):
        assert report.complete
        assert site.open().tables() == ["a"]


def test_a_registered_table_is_found_by_the_journal(site: Site, lake: Lake, bring: Callable[[Site, Lake], Bring], tmp_path: Path) -> None:
    begin = bring(site, lake)
    lance.write_dataset(numbers(7), str(tmp_path / "elsewhere.lance"))
    lake.register_table("seen", tmp_path / "elsewhere.lance")
    lake.table("seen").append(numbers(8))
    before = whole(lake)
    lose_catalog(site)
    assert begin(site).complete
    lake = site.open()
    assert whole(lake) == before
    assert lake.check().problems == ()
    lose_catalog(site)
    shutil.rmtree(tmp_path / "elsewhere.lance")
    assert "seen" in rebuild(site).missing
    assert site.open().tables() == ["a", "b"]


# ---- what is not taken ----------------------------------------------------------------------------------------------------------------


def test_only_what_is_ours_is_taken(small: Site, tmp_path: Path) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.create_table("b", numbers(1))
    with Lake.open(tmp_path / "other", durability="os") as other:
        other.create_table("theirs", numbers(1))
        theirs = directory_of(other, "theirs")
    assert small.root is not None
    shutil.copytree(theirs, small.root / theirs.name)
    lance.write_dataset(numbers(1), str(small.root / "plain.lance"))
    one = directory_of(lake, "b")
    shutil.copytree(one, small.root / "0123456789ab_copy.lance")
    lose_catalog(small)
    report = rebuild(small)
    assert set(report.not_taken) == {theirs.name, "plain.lance", one.name, "0123456789ab_copy.lance"}
    assert "copy" in report.not_taken[one.name]
    assert "belongs to lake" in report.not_taken[theirs.name]
    lake = small.open()
    assert lake.tables() == ["a"]
    lake.cleanup(grace=timedelta(0))
    assert all((small.root / name).exists() for name in report.not_taken)


def test_a_root_without_a_claim_is_not_rebuilt(small: Site) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lose_catalog(small)
    assert small.root is not None
    shutil.rmtree(small.root / "_tiltyard")
    with pytest.raises(OwnershipError, match="claimed by no lake"):
        rebuild(small)
    assert not list(small.root.glob("catalog.db*"))


def test_without_a_journal_names_are_those_of_the_marks(small: Site) -> None:
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.create_table("b", numbers(1))
    lake.drop_table("a")
    lake.create_table("a", numbers(2))
    lose_catalog(small)
    assert small.root is not None
    for part in ("names", "tags", "branches"):
        shutil.rmtree(small.root / "_tiltyard/lake" / part, ignore_errors=True)
    report = rebuild(small)
    lake = small.open()
    assert report.unknown
    assert sorted(ids(lake.table(name)) for name in lake.tables()) == [[1], [1], [2]], "a table is never taken for a dropped one by guess"
    assert {"a", "b"} < set(lake.tables())
    assert lake.check().problems == ()


def test_open_transactions_are_refused_by_the_restored_catalog(site: Site, lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    late, untouched = lake.transaction(), lake.transaction()
    add_to_both(late, 3)
    restore(site, tmp_path / "backup", replace=True)
    add_to_both(untouched, 4)
    for tx in (late, untouched):
        with pytest.raises(ConflictError):
            tx.commit()
    assert both(site.open()) == ([1, 2], [1, 2])


def test_a_table_that_lost_its_newest_versions_is_told(small: Site, tmp_path: Path) -> None:
    """The files were restored from a copy that is older than the catalog's."""
    lake = small.open()
    lake.create_table("a", numbers(1))
    lake.create_table("b", numbers(1))
    copy = shutil.copytree(directory_of(lake, "a"), tmp_path / "copy")
    lake.table("a").append(numbers(2))
    lake.backup(tmp_path / "backup")
    where = directory_of(lake, "a")
    lose_catalog(small)
    shutil.rmtree(where)
    report = restore(small, tmp_path / "backup")
    assert report.missing == ("a",)
    shutil.copytree(copy, where)
    report = restore(small, tmp_path / "backup", replace=True)
    assert any("version 2" in what for what in report.unknown)
    assert not report.complete
