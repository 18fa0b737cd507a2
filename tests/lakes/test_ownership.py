"""Who owns what below a root: a cleanup deletes only what this lake can prove to be its own, and says what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
import pytest

from tests.support.lakes import (
    InterposedRecords,
    LosingRecords,
    Site,
    add_to_both,
    both,
    directory_of,
    foreign_append,
    ids,
    numbers,
    through,
    together,
    two_tables,
    uri_of,
)
from tests.support.lost_catalogs import rebuild
from tiltyard.catalog import marks
from tiltyard.catalog.expiry import expire
from tiltyard.catalog.marks import OWNER_FILE, Owner, VersionMarks, owner_of
from tiltyard.catalog.records import Writes
from tiltyard.catalog.value_codec import transaction_key
from tiltyard.errors import AlreadyExists, HistoryUnavailable, InvalidInput, OutcomeUnknown, OwnershipError, TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.claim import CLAIM, make_claim, read_claim
from tiltyard.lakes.cleanup.orphans import FOREIGN_LAKE, LOST_COMMITS, PINNED, UNMARKED, UNRECORDED
from tiltyard.lakes.recovery.journal import entries, read_entry
from tiltyard.lakes.table_names import resolved
from tiltyard.options import LakeRetention, TableOptions
from tiltyard.storage import open_store
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.outcome import Committed, NotCommitted, Unknown

NOBODY_ELSE = timedelta(0)
WEEK = timedelta(days=8)


def local(site: Site) -> Path:
    if site.root is None:
        pytest.skip("looks at files on this machine")
    return site.root


def age(root: Path, days: int = 8) -> None:
    """Makes all files of tables old, as those are that a careless cleanup takes for rubbish."""
    moment = time.time() - days * 86400
    for path in root.rglob("*"):
        if path.is_file() and ".lance/" in str(path) and "__manifest" not in str(path):
            os.utime(path, (moment, moment))


def tables_in(root: Path) -> dict[str, int]:
    """How many files each directory of a table has."""
    found = [path for path in root.iterdir() if path.name.endswith(".lance")]
    return {path.name: sum(one.is_file() for one in path.rglob("*")) for path in found}


Copy = Callable[[], None]


def copy_catalog(site: Site, tmp_path: Path) -> Copy:
    """A copy of the catalog as it is now; called, it puts the catalog back to it."""
    for lake in site.opened:
        lake.close()
    root, copy = local(site), tmp_path / "copy"
    if site.kind == "sqlite":
        source, target = sqlite3.connect(root / "catalog.db"), sqlite3.connect(copy)
        source.backup(target)
        source.close()
        target.close()
    elif site.kind == "manifest":
        shutil.copytree(root / "__manifest", copy)
    else:
        with psycopg.connect(site.uri) as connection:
            rows = connection.execute("SELECT key, body FROM tiltyard_records").fetchall()

    def restore() -> None:
        lose_catalog(site)
        if site.kind == "sqlite":
            shutil.copy(copy, root / "catalog.db")
        elif site.kind == "manifest":
            shutil.copytree(copy, root / "__manifest")
        else:
            with psycopg.connect(site.uri) as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO tiltyard_records (key, body) VALUES (%s, %s)", rows)

    return restore


def lose_catalog(site: Site) -> None:
    for lake in site.opened:
        lake.close()
    root = local(site)
    if site.kind == "sqlite":
        for tail in ("", "-wal", "-shm"):
            (root / f"catalog.db{tail}").unlink(missing_ok=True)
    elif site.kind == "manifest":
        shutil.rmtree(root / "__manifest")
    else:
        with psycopg.connect(site.uri) as connection:
            connection.execute("DELETE FROM tiltyard_records")


# ---- marks ---------------------------------------------------------------------------------------------------------------------------


def marks_in(lake: Lake, name: str) -> list[VersionMarks | None]:
    """What each version of a table says of its lake commit, as the files alone tell it."""
    log = VersionLog(open_store(uri_of(lake, name), storage_options=lake.where.storage.options))
    return [VersionMarks.of(log.committed(one.version, one.scheme).transaction) for one in log.versions()]


def test_everything_that_is_committed_carries_its_marks(site: Site) -> None:
    lake = site.open(author="ada")
    made = lake.create_table("sales.orders", numbers(1))
    made.append(numbers(2))
    with lake.transaction() as tx:
        tx.table("sales.orders").append(numbers(3))
        tx.table("sales.orders").delete("id = 1")
    task = lake.new_table_task("pieces", numbers(1).schema)
    lake.create_table_from_pieces("pieces", task, [task.write(numbers(7))])
    found = marks_in(lake, "sales.orders")
    assert len(found) == 4
    assert all(one is not None and (one.lake, one.branch, one.author) == (lake.id, "main", "ada") for one in found)
    snapshots = {step.transaction: step.id for step in lake.history()}
    assert [snapshots[one.transaction] for one in found if one is not None] == [1, 2, 3, 3], "versions of one transaction are one snapshot"
    assert all(one is not None and one.base < snapshots[one.transaction] for one in found)
    for name in ("sales.orders", "pieces"):
        head = lake.catalog.cut().tables[name.replace(".", "$")]
        assert made.settings.config.items() >= {marks.LAKE_ID: lake.id, marks.TABLE_NAME: "sales$orders"}.items()
        owner = owner_of(lake.plain_access_of(head).store)
        assert owner is not None
        assert (owner.lake, owner.table, owner.name) == (lake.id, head.id, head.name)
        assert owner.transaction in snapshots
    assert not [key for step in lake.history() for key in step.properties if key.startswith(marks.PREFIX)], "not what the author said"
    assert all(not entry.properties for entry in lake.table("sales.orders").history())


def test_a_foreign_writer_keeps_the_marks(site: Site) -> None:
    lake = site.open()
    table = lake.create_table("a", numbers(1), options=TableOptions(config={marks.LAKE_ID: "somebody", "mine": "x"}))
    assert table.settings.config[marks.LAKE_ID] == lake.id, "a caller does not say whose the table is"
    uri = uri_of(lake, "a")
    foreign_append(uri, 2)
    lance.write_dataset(numbers(3), str(uri), mode="overwrite", storage_options=dict(uri.options) if uri.options else None)
    lake.table("a").overwrite(numbers(4))
    lake.table("a").restore(1)
    store = open_store(str(uri), storage_options=uri.options)
    assert lake.table("a").settings.config.items() >= {marks.LAKE_ID: lake.id, "mine": "x"}.items()
    store.delete(OWNER_FILE)
    owner = owner_of(store)
    assert owner is not None, "the config says it as well"
    assert (owner.lake, owner.name) == (lake.id, "a")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"lake": 3}', b'{"lake": ""}', b'{"lake": "x", "base": "one"}', b"\xff" * 9])
def test_what_is_no_owner_file_says_nothing(tmp_path: Path, text: bytes) -> None:
    store = open_store(str(tmp_path))
    store.put(OWNER_FILE, text)
    assert owner_of(store) is None
    store.put(OWNER_FILE, Owner("l", "t", "n", "x", "main", 3, "now").to_bytes())
    assert owner_of(store) == Owner("l", "t", "n", "x", "main", 3, "now")


def test_names_tags_and_branches_leave_a_journal(site: Site) -> None:
    lake = two_tables(site.open())
    lake.rename_table("a", "c")
    lake.drop_table("b")
    lake.tags.create("monday")
    lake.branches.create("trial")
    lake.table("c").append(numbers(2))
    store = lake.root_access().store
    found = list(entries(store))
    assert {(one.branch, one.snapshot) for one in found} == {("main", 1), ("main", 2), ("main", 3)}, "only what changes names"
    last = read_entry(store, max(found, key=lambda one: one.snapshot).path)
    assert last is not None
    assert {name: body["id"] for name, body in last["tables"].items()} == {"c": lake.catalog.cut().tables["c"].id}
    assert last["transaction"] == lake.history()[1].transaction
    for kind, name in (("tags", "monday"), ("branches", "trial")):
        body = read_entry(store, f"_tiltyard/lake/{kind}/{name}.json")
        assert body is not None
        assert (body["snapshot"], body["deleted"], body["lake"]) == (3, False, lake.id)
    lake.tags.delete("monday")
    lake.branches.delete("trial")
    for kind, name in (("tags", "monday"), ("branches", "trial")):
        body = read_entry(store, f"_tiltyard/lake/{kind}/{name}.json")
        assert body is not None
        assert body["deleted"]


def test_a_cleanup_writes_what_is_missing_in_the_journal(site: Site) -> None:
    lake = two_tables(site.open())
    lake.tags.create("monday")
    root = local(site)
    shutil.rmtree(root / "_tiltyard" / "lake" / "names")
    shutil.rmtree(root / "_tiltyard" / "lake" / "tags")
    lake.cleanup()
    store = lake.root_access().store
    (entry,) = entries(store)
    body = read_entry(store, entry.path)
    assert body is not None
    assert set(body["tables"]) == {"a", "b"}
    assert read_entry(store, "_tiltyard/lake/tags/monday.json") is not None


# ---- a root belongs to one lake ------------------------------------------------------------------------------------------------------


def test_the_root_says_whose_it_is_without_credentials(site: Site) -> None:
    lake = site.open()
    text = lake.root_access().store.get(CLAIM).decode()
    assert json.loads(text)["lake"] == lake.id
    assert "password" not in text
    assert "@" not in text
    again = site.open()
    assert again.id == lake.id


def test_a_second_lake_is_refused_the_root(site: Site, tmp_path: Path) -> None:
    lake = two_tables(site.open())
    with pytest.raises(OwnershipError, match=lake.id[:8]) as refused:
        Lake.open(f"sqlite:///{tmp_path}/other.db", root=lake.root_uri)
    assert refused.value.lake == lake.id
    assert len(str(refused.value)) < 300
    assert not (tmp_path / "other.db").exists(), "nothing was made"
    assert ids(site.open().table("a")) == [1]


@pytest.mark.parametrize("first", ["sqlite", "manifest"])
def test_a_second_catalog_in_the_same_place_is_refused(tmp_path: Path, first: Any) -> None:
    second: Any = {"sqlite": "manifest", "manifest": "sqlite"}[first]
    two_tables(Lake.open(tmp_path / "lake", catalog=first)).close()
    for _ in range(2):
        with pytest.raises(OwnershipError, match=first):
            Lake.open(tmp_path / "lake", catalog=second)
    (tmp_path / "lake" / CLAIM).unlink()  # as an earlier release left it
    with pytest.raises(OwnershipError, match=r"catalog\.db|__manifest"):
        Lake.open(tmp_path / "lake", catalog=second)
    with Lake.open(tmp_path / "lake") as lake:
        assert lake.tables() == ["a", "b"]
        assert read_claim(lake.root_access().store) is not None, "a lake of an earlier release claims its root when it is opened"


def test_another_root_is_refused_and_a_moved_one_is_not(site: Site, tmp_path: Path) -> None:
    lake = two_tables(site.open())
    root = local(site)
    with pytest.raises(OwnershipError, match="not in"):
        Lake.open(site.uri, **{**site.arguments, "root": tmp_path / "elsewhere"})
    assert not (tmp_path / "elsewhere").exists()
    lake.close()
    if site.kind == "postgres":
        root.rename(tmp_path / "moved")
        with Lake.open(site.uri, root=tmp_path / "moved") as moved:
            assert both(moved) == ([1], [1])
        with Lake.open(site.uri) as moved:
            assert resolved(moved.root_uri) == resolved(tmp_path / "moved"), "the catalog knows it now"
        with pytest.raises(OwnershipError):
            Lake.open(site.uri, root=root)
    else:
        root.rename(tmp_path / "moved")
        with Lake.open(tmp_path / "moved") as moved:
            assert both(moved) == ([1], [1])


def test_a_catalog_file_that_was_moved_is_still_the_lakes(tmp_path: Path) -> None:
    root = tmp_path / "data"
    two_tables(Lake.open(f"sqlite:///{tmp_path}/one.db", root=root)).close()
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    with pytest.raises(OwnershipError, match=r"one\.db"):
        Lake.open(f"sqlite:///{tmp_path}/two.db", root=root)
    with Lake.open(f"sqlite:///{tmp_path}/one.db") as lake:
        assert lake.tables() == ["a", "b"], "the catalog knows its root"
    (tmp_path / "one.db").unlink()
    with Lake.open(f"sqlite:///{tmp_path}/two.db", root=root) as lake:
        assert both(lake) == ([1], [1])
    with Lake.open(f"sqlite:///{tmp_path}/two.db") as lake:
        claim = read_claim(lake.root_access().store)
        assert claim is not None
        assert claim.catalog.at.endswith("two.db")


def test_of_lakes_that_are_made_at_once_over_one_root_one_is(tmp_path: Path) -> None:
    for turn in range(3):
        root = tmp_path / f"data{turn}"
        urls = [f"sqlite:///{tmp_path}/{turn}-{number}.db" for number in range(4)]
        results = together(*(lambda url=url, root=root: Lake.open(url, root=root) for url in urls))
        made = [one for one in results if isinstance(one, Lake)]
        assert len(made) == 1, results
        assert all(isinstance(one, Lake | OwnershipError) for one in results), results
        claim = read_claim(made[0].root_access().store)
        assert claim is not None
        assert claim.lake == made[0].id
        made[0].close()


def test_a_lake_that_is_made_right_before_ours_keeps_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim decides, not the look before it."""
    first: list[Lake] = []

    def late(*args: Any) -> Any:
        if not first:
            first.append(None)  # type: ignore[arg-type]
            first[0] = Lake.open(f"sqlite:///{tmp_path}/first.db", root=tmp_path / "data")
        return make_claim(*args)

    monkeypatch.setattr("tiltyard.lakes.opening.make_claim", late)
    with pytest.raises(OwnershipError, match=r"first\.db"):
        Lake.open(f"sqlite:///{tmp_path}/second.db", root=tmp_path / "data")
    claim = read_claim(first[0].root_access().store)
    assert claim is not None
    assert claim.lake == first[0].id


def test_one_lake_that_is_made_by_several_at_once_is_one_lake(site: Site) -> None:
    lakes = together(*([site.open] * 4))
    assert all(isinstance(one, Lake) for one in lakes), lakes
    assert len({one.id for one in lakes}) == 1


def test_a_claim_whose_maker_died_is_gone_on_from(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tiltyard.catalog.catalog.Catalog.initialize", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            site.open()
    lake = site.open()
    claim = read_claim(lake.root_access().store)
    assert claim is not None
    assert claim.lake == lake.id
    assert lake.check().ok
    lake.create_table("a", numbers(1))


def test_a_lost_catalog_is_not_an_empty_lake(site: Site) -> None:
    lake = two_tables(site.open())
    identity, folder = lake.id, directory_of(lake, "a")
    other = directory_of(lake, "b")
    lose_catalog(site)
    with pytest.raises(OwnershipError, match="rebuild"):
        site.open(create=False)
    lake = site.open()
    assert lake.id == identity, "its tables know it by that"
    report = lake.check()
    assert not report.ok
    assert {one.path for one in report.orphans} == {folder.name, other.name}
    with pytest.raises(OwnershipError, match="rebuild"):
        lake.create_table("c", numbers(1))
    with pytest.raises(OwnershipError, match="rebuild"):
        site.open().create_table("c", numbers(1))
    age(local(site))
    assert {one.path for one in lake.cleanup(grace=NOBODY_ELSE).orphans} == {folder.name, other.name}
    lake.register_table("a", folder)
    lake.register_table("b", other)
    assert lake.cleanup(grace=NOBODY_ELSE).dropped == ()
    assert both(lake) == ([1], [1])
    assert lake.check().ok
    lake.create_table("c", numbers(1))  # whole again
    lake.drop_table("a")
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert folder.exists(), "what was registered is not deleted, even where its mark is this lake's"


# ---- registering ---------------------------------------------------------------------------------------------------------------------


def spellings(path: Path, tmp_path: Path) -> list[str]:
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    return [str(path), f"{path}/", f"file://{path}", f"FILE://{path}", f"{path.parent}/x/../{path.name}", f"{link}/{path.name}"]


def test_one_directory_is_registered_once_however_it_is_spelled(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake")
    there = tmp_path / "theirs" / "t.lance"
    lance.write_dataset(numbers(1), str(there))
    lake.register_table("t", spellings(there, tmp_path)[5])
    lake.branches.create("b")
    own = lake.create_table("own", numbers(1))
    assert own.count_rows() == 1
    directory = directory_of(lake, "own")
    for spelling in [str(there), f"{there}/", f"file://{there}", f"FILE://{there}", f"{there.parent}/x/../t.lance", str(directory)]:
        for handle in (lake, lake.on_branch("b")):
            with pytest.raises(AlreadyExists):
                handle.register_table("again", spelling)
    lance.write_dataset(numbers(1), str(there / "inner.lance"))
    with pytest.raises(InvalidInput, match="overlap"):
        lake.register_table("inner", there / "inner.lance")
    lake.drop_table("t")
    with pytest.raises(AlreadyExists):
        lake.register_table("t", there)  # the branch still has it
    lake.branches.delete("b")
    lake.register_table("t", there)
    lake.drop_table("own")
    with pytest.raises(AlreadyExists, match="dropped"):
        lake.register_table("mine", directory)
    assert lake.check().ok


def test_of_two_that_register_a_directory_at_once_one_does(site: Site, tmp_path: Path) -> None:
    there = tmp_path / "t.lance"
    lance.write_dataset(numbers(1), str(there))
    site.open().branches.create("b")
    handles = [site.open(), site.open().on_branch("b"), site.open()]
    results = together(*(lambda lake=lake, n=n: lake.register_table(f"t{n}", there) for n, lake in enumerate(handles)))
    won = [one for one in results if not isinstance(one, Exception)]
    assert len(won) == 1, results
    assert all(isinstance(one, AlreadyExists) for one in results if isinstance(one, Exception)), results
    assert sum(len(site.open().on_branch(branch).tables()) for branch in ("main", "b")) == 1


def test_a_directory_that_is_registered_right_before_ours_is_taken(tmp_path: Path) -> None:
    lake, other = Lake.open(tmp_path / "lake"), Lake.open(tmp_path / "lake")
    there = tmp_path / "t.lance"
    lance.write_dataset(numbers(1), str(there))
    through(lake, lambda inner: InterposedRecords(inner, lambda: other.register_table("theirs", there), match="place/"))
    with pytest.raises(AlreadyExists, match="same time"):
        lake.register_table("ours", there)
    assert other.tables() == ["theirs"]


def test_whoever_died_while_he_registered_keeps_nobody_out(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake")
    there = tmp_path / "t.lance"
    lance.write_dataset(numbers(1), str(there))
    other = Lake.open(tmp_path / "lake")
    through(other, lambda inner: InterposedRecords(inner, lambda: (_ for _ in ()).throw(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        other.register_table("t", there)
    with pytest.raises(AlreadyExists, match="being registered"):
        lake.register_table("t", there)
    key = next(key for key, _ in lake.catalog.records.scan(["place/"]))
    body = dict(lake.catalog.records.get([key])[key])
    lake.catalog.records.transact([key], [], lambda found: Writes(None, {key: {**body, "at": "2020-01-01T00:00:00+00:00"}}))
    assert ids(lake.register_table("t", there)) == [1]
    assert lake.catalog.records.get([transaction_key(str(body["transaction"]))]), "the one that died can never come back"


# ---- cleanup -------------------------------------------------------------------------------------------------------------------------


def test_a_restored_catalog_deletes_nothing_that_came_later(site: Site, tmp_path: Path) -> None:
    lake = two_tables(site.open())
    restore = copy_catalog(site, tmp_path)
    lake = site.open()
    lake.create_table("since", numbers(1, 2, 3))
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    lake.branches.create("b")
    lake.on_branch("b").table("a").append(numbers(66))
    folder, line = directory_of(lake, "since"), lake.branches["b"]
    before = tables_in(local(site))
    restore()
    age(local(site))
    lake = site.open()
    assert not lake.check().ok
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert (report.dropped, report.transactions) == ((), ())
    orphans = {one.path: one for one in report.orphans}
    assert set(orphans) == {folder.name, f"{directory_of(lake, 'a').name}/tree/lake-b-{line.id}"}
    since = orphans[folder.name]
    assert (since.reason, since.name, since.lake) == (UNRECORDED, "since", lake.id)
    assert since.bytes == sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
    assert since.to_dict()["owner"] == since.owner
    after = tables_in(local(site))
    assert after[folder.name] == before[folder.name]
    assert ids(lance.dataset(str(folder))) == [1, 2, 3]
    assert ids(lance.dataset(str(directory_of(lake, "a") / "tree" / f"lake-b-{line.id}"))) == [1, 2, 66]
    assert {one.path for one in lake.check().orphans} == set(orphans)
    assert both(lake) == ([1, 2], [1, 2]), "what the files have beyond the catalog is adopted"


@pytest.mark.parametrize("end", [lambda lake: lake.branches.fast_forward("b"), lambda lake: lake.branches.delete("b")])
def test_a_branch_that_a_restored_catalog_ends_keeps_what_came_later(site: Site, tmp_path: Path, end: Callable[[Lake], object]) -> None:
    """The old catalog knows the branch, and not what was committed there since: that it ended proves nothing of that. Found by walk 49."""
    lake = two_tables(site.open())
    lake.branches.create("b")
    lake.on_branch("b").table("b").append(numbers(5))
    restore = copy_catalog(site, tmp_path)
    lake = site.open()
    lake.on_branch("b").table("a").append(numbers(66))
    line = f"lake-b-{lake.branches['b'].id}"
    later = f"{directory_of(lake, 'a').name}/tree/{line}"
    restore()
    age(local(site))
    lake = site.open()
    end(lake)
    assert [(one.path, one.reason) for one in lake.check().orphans] == [(later, LOST_COMMITS)]
    for _ in range(2):
        report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
        assert report.dropped in ((f"{directory_of(lake, 'b').name} branch {line}",), ())
        assert [one.path for one in report.orphans] == [later]
    assert not (directory_of(lake, "b") / "tree" / line).exists(), "all that was committed there was known"
    assert ids(lance.dataset(str(directory_of(lake, "a") / "tree" / line))) == [1, 66]
    asked = LakeRetention(include_unknown=[later])
    assert lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE, retention=asked).dropped == (f"{directory_of(lake, 'a').name} branch {line}",)
    assert lake.check().ok


def test_a_branch_that_ended_goes_from_a_rebuilt_catalog_as_far_as_it_was_known(site: Site, tmp_path: Path) -> None:
    """The journal tells which versions were known to whoever ended it; a rebuilt catalog has no record of the commits themselves."""
    lake = two_tables(site.open())
    lake.branches.create("b")
    lake.on_branch("b").table("b").append(numbers(5))
    restore = copy_catalog(site, tmp_path)
    lake = site.open()
    lake.on_branch("b").table("a").append(numbers(66))
    line = f"lake-b-{lake.branches['b'].id}"
    restore()
    site.open().branches.delete("b")
    lose_catalog(site)
    rebuild(site)
    lake = site.open()
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert report.dropped == (f"{directory_of(lake, 'b').name} branch {line}",)
    assert [(one.path, one.reason) for one in report.orphans] == [(f"{directory_of(lake, 'a').name}/tree/{line}", LOST_COMMITS)]


def test_a_branch_that_ended_goes_after_the_outcomes_of_its_commits(site: Site) -> None:
    lake = two_tables(site.open())
    lake.branches.create("b")
    lake.on_branch("b").table("a").append(numbers(66))
    line = f"lake-b-{lake.branches['b'].id}"
    lake.branches.delete("b")
    gone = f"{directory_of(lake, 'a').name} branch {line}"
    expire(lake.catalog, timedelta(0), timedelta(0), lake.catalog.runtime.clock.now(), dry_run=False)
    assert lake.check().ok
    assert lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE).dropped == (gone,)


def test_a_dropped_table_that_a_lost_branch_revived_is_kept(site: Site, tmp_path: Path) -> None:
    lake = two_tables(site.open())
    lake.drop_table("a")
    lake.table("b").append(numbers(2))
    restore = copy_catalog(site, tmp_path)
    lake = site.open()
    lake.branches.create("b", at=1)
    lake.on_branch("b").table("a").append(numbers(66))
    folder = directory_of(lake.on_branch("b"), "a")
    restore()
    age(local(site))
    lake = site.open()
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert report.dropped == ()
    assert PINNED in {one.reason for one in report.orphans}
    assert ids(lance.dataset(str(folder))) == [1]
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    report = lake.cleanup(retention=LakeRetention(include_unknown=[folder.name]))
    assert report.dropped == (folder.name,)
    assert not any(one.is_file() for one in folder.rglob("*"))


def test_an_orphaned_branch_of_a_table_goes_by_name(tmp_path: Path) -> None:
    site = Site("sqlite", str(tmp_path / "lake"), tmp_path / "lake", {"catalog": "sqlite"})
    two_tables(site.open())
    restore = copy_catalog(site, tmp_path)
    site.open().branches.create("b")
    site.open().on_branch("b").table("a").append(numbers(66))
    restore()
    lake = site.open()
    (orphan,) = lake.check().orphans
    with pytest.raises(InvalidInput, match="not an orphan"):
        lake.cleanup(retention=LakeRetention(include_unknown=["nothing"]))
    assert lake.cleanup(retention=LakeRetention(include_unknown=[orphan.path])).orphans == ()
    assert lake.check().orphans == ()
    assert both(lake) == ([1], [1])


def test_an_owner_file_that_was_never_finished_goes(tmp_path: Path) -> None:
    lake = two_tables(Lake.open(tmp_path / "lake"))
    begun = tmp_path / "lake" / "00112233aabb_half.lance" / "_tiltyard" / ".tmpowner"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"{")
    lake.cleanup()
    assert begun.exists(), "its writer may be at work"
    age(tmp_path / "lake")
    lake.cleanup()
    assert not begun.exists()
    assert both(lake) == ([1], [1])


def test_a_transaction_that_the_catalog_lost_is_not_given_up(tmp_path: Path) -> None:
    """Of one committed over two tables the second was never finished; then the catalog went back to before it."""
    site = Site("sqlite", str(tmp_path / "lake"), tmp_path / "lake", {"catalog": "sqlite"})
    two_tables(site.open())
    restore = copy_catalog(site, tmp_path)
    lake = site.open()
    tx = lake.transaction()
    add_to_both(tx, 2)
    staged = {path: (local(site) / path).read_bytes() for path in site.files("_tiltyard/staged/")}
    tx.commit()
    for path, data in staged.items():
        if directory_of(lake, "b").name in path:
            (local(site) / path).parent.mkdir(parents=True, exist_ok=True)
            (local(site) / path).write_bytes(data)
            for version in (directory_of(lake, "b") / "_versions").glob(f"{2**64 - 1 - 2:020d}.manifest"):
                version.unlink()
    restore()
    age(local(site))
    lake = site.open()
    report = lake.cleanup(grace=timedelta(hours=1))
    assert [one.transaction for one in report.held] == [tx.id]
    assert report.transactions == ()
    assert set(staged) & site.files("_tiltyard/staged/")


def test_directories_of_others_are_reported_and_stay(site: Site, tmp_path: Path) -> None:
    lake = two_tables(site.open())
    root = local(site)
    with Lake.open(tmp_path / "other") as other:
        other.create_table("theirs", numbers(5))
        theirs = directory_of(other, "theirs")
    shutil.copytree(theirs, root / theirs.name)
    copied = root / f"0123456789ab{directory_of(lake, 'a').name[12:]}"
    shutil.copytree(directory_of(lake, "a"), copied)
    unmarked = root / "ba9876543210_plain.lance"
    lance.write_dataset(numbers(1), str(unmarked))
    age(root)
    report = lake.cleanup(grace=NOBODY_ELSE)
    assert report.dropped == ()
    found = {one.path: one for one in report.orphans}
    assert set(found) == {theirs.name, copied.name, unmarked.name}
    assert (found[theirs.name].reason, found[unmarked.name].reason) == (FOREIGN_LAKE, UNMARKED)
    assert found[unmarked.name].owner == "unknown"
    assert {one.path for one in lake.check().orphans} == set(found)
    assert not lake.check().ok
    with pytest.raises(InvalidInput, match="belongs to lake"):
        lake.cleanup(retention=LakeRetention(include_unknown=[theirs.name]))
    with pytest.raises(InvalidInput, match="not an orphan"):
        lake.cleanup(retention=LakeRetention(include_unknown=[directory_of(lake, "a").name]))
    assert unmarked.name in lake.cleanup(dry_run=True, retention=LakeRetention(include_unknown=[unmarked.name])).dropped
    assert unmarked.exists()
    report = lake.cleanup(retention=LakeRetention(include_unknown=[unmarked.name, copied.name]))
    assert set(report.dropped) == {unmarked.name, copied.name}
    assert {one.path for one in report.orphans} == {theirs.name}
    assert {name for name, files in tables_in(root).items() if files} == {theirs.name, *(directory_of(lake, n).name for n in "ab")}
    assert both(lake) == ([1], [1])


def test_a_table_whose_maker_died_at_any_step_goes_in_the_end(site: Site) -> None:
    """P8: what our own dead transactions left is known to be ours before its first data file is written."""
    lake = two_tables(site.open())
    root = local(site)
    open_one = lake.transaction()
    open_one.create_table("dead", numbers(1))
    lake.new_table_task("task", numbers(1).schema)
    begun = [name for name in tables_in(root) if "dead" in name or "task" in name]
    assert len(begun) == 2
    half = root / "00112233aabb_half.lance"  # died after the owner file
    owner = Owner(lake.id, "00112233-aabb-4000-8000-000000000000", "half", "8f14e45f-0000-4000-8000-000000000000", "main", 1)
    open_store(str(half)).put(OWNER_FILE, owner.to_bytes())
    assert lake.cleanup().dropped == (), "they may still be at work"
    age(root)
    report = lake.cleanup()
    assert set(report.dropped) == {*begun, half.name}
    assert report.orphans == ()
    assert {name for name, files in tables_in(root).items() if files} == {directory_of(lake, name).name for name in ("a", "b")}
    assert isinstance(lake.outcome(owner.transaction), NotCommitted), "the record on which it was deleted"
    with pytest.raises(TiltyardError):
        open_one.commit()
    assert lake.tables() == ["a", "b"]


def test_a_table_of_a_branch_that_ended_goes(site: Site) -> None:
    """It was committed, and its files say so; that nobody needs it any more is a record, too."""
    lake = two_tables(site.open())
    lake.branches.create("b")
    lake.on_branch("b").create_table("aside", numbers(1))
    lake.on_branch("b").create_table("home", numbers(1))
    aside, home = directory_of(lake.on_branch("b"), "aside"), directory_of(lake.on_branch("b"), "home")
    lake.on_branch("b").drop_table("aside")
    lake.branches.fast_forward("b")
    lake.on_branch("b").create_table("other", numbers(1))
    other = directory_of(lake.on_branch("b"), "other")
    lake.branches.delete("b")
    assert lake.check().problems == ()
    age(local(site))
    lake.cleanup(dry_run=True, retention=LakeRetention(outcomes=NOBODY_ELSE, keys=NOBODY_ELSE))
    report = lake.cleanup(keep_snapshots=1)
    assert set(report.dropped) >= {aside.name, other.name}
    assert home.name not in report.dropped
    assert report.orphans == ()
    assert ids(lake.table("home")) == [1]
    assert lake.check().ok


def test_a_rolled_back_creation_leaves_nothing(site: Site) -> None:
    lake = site.open()
    before = site.files()
    tx = lake.transaction()
    tx.create_table("a", numbers(1))
    tx.rollback()
    with pytest.raises(TiltyardError), lake.transaction() as tx:
        tx.create_table("a", numbers(1, 1), primary_key=["id"])
    assert site.files() == before


def test_an_owner_file_alone_proves_nothing(site: Site) -> None:
    """A committed table that no snapshot shows, with the mark of this lake: only a record may condemn it."""
    lake = two_tables(site.open())
    head = lake.catalog.cut().tables["a"]
    owner = owner_of(lake.plain_access_of(head).store)
    assert owner is not None
    stray = local(site) / "00112233aabb_stray.lance"
    shutil.copytree(directory_of(lake, "a"), stray)
    mine = Owner(lake.id, "00112233-aabb-4000-8000-000000000000", "stray", "8f14e45f-0000-4000-8000-000000000000", "main", 1)
    open_store(str(stray)).put(OWNER_FILE, mine.to_bytes())
    lake.catalog.abort(mine.transaction)  # even so: versions have names only after the catalog decided
    age(local(site))
    report = lake.cleanup(grace=NOBODY_ELSE)
    assert report.dropped == ()
    assert [(one.path, one.reason) for one in report.orphans] == [(stray.name, UNRECORDED)]


# ---- foreign cleanups ----------------------------------------------------------------------------------------------------------------


def foreign_cleanup(lake: Lake, name: str) -> None:
    uri = uri_of(lake, name)
    dataset = lance.dataset(str(uri), storage_options=dict(uri.options) if uri.options else None)
    dataset.cleanup_old_versions(older_than=NOBODY_ELSE, error_if_tagged_old_versions=False)


def tags_of(lake: Lake, name: str) -> list[str]:
    return sorted(lance.dataset(str(uri_of(lake, name))).tags.list())


def test_what_tags_and_branches_need_survives_a_foreign_cleanup(site: Site) -> None:
    lake = two_tables(site.open())
    lake.tags.create("monday")
    lake.table("a").append(numbers(2))
    lake.branches.create("b")
    lake.rename_table("a", "c")
    for value in (3, 4):
        lake.table("c").append(numbers(value))
    lake.tags.create("tuesday", lake.snapshot().id - 1)
    foreign_cleanup(lake, "c")
    assert ids(lake.snapshot("monday").table("a")) == [1]
    assert ids(lake.snapshot("tuesday").table("c")) == [1, 2, 3]
    assert ids(lake.on_branch("b").snapshot().table("a")) == [1, 2]
    lake.on_branch("b").table("a").append(numbers(9))
    assert ids(lake.on_branch("b").table("a")) == [1, 2, 9]
    assert len(tags_of(lake, "c")) == 3
    lake.tags.delete("monday")
    lake.tags.delete("tuesday")
    lake.branches.delete("b")
    assert tags_of(lake, "c") == []
    assert list(lake.catalog.records.scan(["pin/"])) == []


def test_kept_snapshots_are_pinned_on_demand(site: Site) -> None:
    lake = two_tables(site.open())
    for value in (2, 3, 4):
        lake.table("a").append(numbers(value))
    lake.cleanup(keep_snapshots=3, retention=LakeRetention(pin_snapshots=True))
    kept = [step.id for step in lake.history()][:3]
    foreign_cleanup(lake, "a")
    assert [ids(lake.snapshot(number).table("a")) for number in kept] == [[1, 2, 3, 4], [1, 2, 3], [1, 2]]
    lake.cleanup(keep_snapshots=1, retention=LakeRetention(pin_snapshots=True))
    assert len(tags_of(lake, "a")) == 1
    lake.cleanup()
    assert tags_of(lake, "a") == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_tag_whose_maker_died_leaves_a_pin_too_many_at_most(tmp_path: Path, when: Any) -> None:
    for at in range(1, 9):
        lake = two_tables(Lake.open(tmp_path / f"lake{at}"))
        losing = through(lake, LosingRecords)
        losing.raises = KeyboardInterrupt
        losing.lose(at, when)
        try:
            lake.tags.create("t")
            lake.tags.delete("t")
        except KeyboardInterrupt:
            pass
        if not losing.fired:
            return
        lake = Lake.open(tmp_path / f"lake{at}")
        named = "t" in lake.tags
        assert not named or len(tags_of(lake, "a")) == 1, f"one too few after {at}"
        lake.cleanup()
        assert len(tags_of(lake, "a")) == len(tags_of(lake, "b")) == named
        assert len(lake.catalog.records.scan(["pin/"])) == named
    raise AssertionError("the last step was never reached")


def test_pins_that_a_foreign_hand_took_away_come_back_and_unknown_ones_stay(site: Site) -> None:
    lake = two_tables(site.open())
    lake.tags.create("t")
    (name,) = tags_of(lake, "a")
    dataset = lance.dataset(str(uri_of(lake, "a")))
    dataset.tags.delete(name)
    dataset.tags.create("tiltyard-tag-lost-01234567", 1)
    lake.cleanup()
    assert tags_of(lake, "a") == sorted([name, "tiltyard-tag-lost-01234567"]), "its record may be lost"


def test_a_cleanup_takes_no_pin_that_is_about_to_be_used(tmp_path: Path) -> None:
    lake = two_tables(Lake.open(tmp_path / "lake"))
    other = Lake.open(tmp_path / "lake")
    through(lake, lambda inner: InterposedRecords(inner, other.cleanup, match="tag/"))
    with pytest.raises(TiltyardError):
        lake.tags.create("t")
    assert "t" not in other.tags
    assert tags_of(other, "a") == []
    other.tags.create("t")
    assert len(tags_of(other, "a")) == 1


# ---- expiry --------------------------------------------------------------------------------------------------------------------------


def test_records_of_committed_transactions_expire(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction(idempotency_key="k") as tx:
        add_to_both(tx, 2)
    verb = lake.table("a").append(numbers(3)).transaction_id
    given_up = "8f14e45f-0000-4000-8000-000000000000"
    lake.catalog.abort(given_up)
    report = lake.cleanup(dry_run=True, retention=LakeRetention(outcomes=NOBODY_ELSE, keys=timedelta(days=1)))
    assert report.expired == lake.cleanup(retention=LakeRetention(outcomes=NOBODY_ELSE, keys=timedelta(days=1))).expired == 2
    assert isinstance(lake.outcome(verb), Unknown)
    answer = lake.outcome(verb, give_up=True)
    assert isinstance(answer, Unknown), "nobody may be told that it is not committed"
    assert "expired" in answer.reason
    assert isinstance(lake.outcome(tx.id), Committed), "its key still holds"
    assert isinstance(lake.outcome(given_up), NotCommitted)
    lake.run(lambda tx: add_to_both(tx, 99), idempotency_key="k")
    assert ids(lake.table("b")) == [1, 2]
    assert lake.cleanup(retention=LakeRetention(outcomes=NOBODY_ELSE, keys=NOBODY_ELSE)).expired == 1
    assert isinstance(lake.outcome(tx.id, give_up=True), Unknown)
    assert isinstance(lake.outcome("8f14e45f-0000-4000-8000-000000000001", give_up=True), NotCommitted)
    assert lake.check().ok
    lake.table("a").append(numbers(4))
    with lake.transaction() as tx:
        add_to_both(tx, 5)
    assert both(lake) == ([1, 2, 3, 4, 5], [1, 2, 5])


def test_an_expired_transaction_is_not_committed_twice(site: Site) -> None:
    lake = two_tables(site.open())
    tx = lake.transaction()
    add_to_both(tx, 2)
    losing = through(lake, LosingRecords)
    losing.then_down = True
    losing.lose(1, "after")
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    other = site.open()
    fresh = other.transaction()
    add_to_both(fresh, 7)
    assert both(other) == ([1, 2], [1, 2])
    other.table("a").append(numbers(3))
    other.cleanup(retention=LakeRetention(outcomes=NOBODY_ELSE, keys=NOBODY_ELSE))
    losing.down = False
    with pytest.raises(OutcomeUnknown, match="expired"):
        tx.commit()
    with pytest.raises(HistoryUnavailable, match="expired"):
        fresh.commit()
    assert both(other) == ([1, 2, 3], [1, 2]), "nothing twice, nothing deleted"
    assert other.check().ok


def test_sqlite_gives_space_back(tmp_path: Path) -> None:
    with two_tables(Lake.open(tmp_path / "lake", durability="os")) as lake:
        old = {"state": "committed", "snapshot": 1, "branch": "main", "at": "2020-01-01T00:00:00+00:00", "filler": "x" * 900}
        for part in range(8):
            writes = Writes(None, {f"transaction/{part}-{number}": old for number in range(400)})
            lake.catalog.records.transact([], [], partial(lambda made, _: made, writes))
        with sqlite3.connect(tmp_path / "lake" / "catalog.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = (tmp_path / "lake" / "catalog.db").stat().st_size
        report = lake.cleanup()
        assert report.expired == 3200
        assert report.catalog_bytes > before / 2
        assert (tmp_path / "lake" / "catalog.db").stat().st_size < before / 2
        assert both(lake) == ([1], [1])


def test_a_table_of_another_lake_is_not_registered(tmp_path: Path) -> None:
    """That lake may have lost its catalog for now; rebuilt, its cleanup would delete what only our snapshots need."""
    first = Lake.open(tmp_path / "first", durability="os")
    first.create_table("a", pa.table({"id": [1]}))
    [directory] = (tmp_path / "first").glob("*_a.lance")
    other = Lake.open(tmp_path / "second", durability="os")
    with pytest.raises(OwnershipError, match="is a table of lake"):
        other.register_table("a", directory)
    first.close()
    for file in (tmp_path / "first").glob("catalog.db*"):
        file.unlink()
    with pytest.raises(OwnershipError, match="rebuild"):
        other.register_table("a", directory)
    assert other.tables() == []
    (directory / "_tiltyard" / "owner.json").unlink()  # then its config still says so
    with pytest.raises(OwnershipError):
        other.register_table("a", directory)


def test_a_clone_of_a_table_of_another_lake_is_registered(tmp_path: Path) -> None:
    first = Lake.open(tmp_path / "first", durability="os")
    first.create_table("a", pa.table({"id": [1]})).clone(tmp_path / "copy", shallow=False)
    other = Lake.open(tmp_path / "second", durability="os")
    assert other.register_table("a", tmp_path / "copy").count_rows() == 1
