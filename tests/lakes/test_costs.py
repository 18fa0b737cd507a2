"""What a transaction costs, counted at the edges of catalog and store: the same however long the history and however many tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pytest

from tests.support.lakes import (
    InterposedRecords,
    LosingRecords,
    Site,
    add_to_both,
    both,
    ids,
    numbers,
    stores_through,
    through,
    together,
    two_tables,
)
from tests.support.proving import pick
from tiltyard.catalog.snapshot_index import cut_stride
from tiltyard.catalog.value_codec import BUCKET
from tiltyard.errors import ExpectedVersionMismatch, HistoryUnavailable, InvalidInput, NotFound, StorageError
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.lake import Lake
from tiltyard.lakes import lake_tables
from tiltyard.options import Storage
from tiltyard.testing import CountingRecords, CountingStore
from tiltyard.transaction.new_files import LOOK_AFTER
from tiltyard.verbs.engine import staged_access
from tiltyard.verbs.engine.access import TableAccess, open_access

DEEP = pick(300, 1000)
"""Snapshots of a long history: several buckets of the index of snapshots."""


@dataclass
class Counts:
    """What was asked of the catalog and of the stores of all tables."""

    records: CountingRecords
    stores: list[CountingStore] = field(default_factory=list)

    @property
    def catalog(self) -> tuple[int, int]:
        """Reads and transactions."""
        return self.records.gets + self.records.scans, self.records.transacts

    @property
    def store(self) -> Counter[str]:
        """Calls by method, and what kind of file they were about."""
        return Counter(f"{method} {path.partition('/')[0]}" for one in self.stores for method, path in one.log)

    @property
    def versions_read(self) -> list[str]:
        return [path for one in self.stores for method, path in one.log if method in ("get", "get_range") and path.startswith("_versions/")]


@contextmanager
def counted(lake: Lake) -> Iterator[Counts]:
    counts = Counts(through(lake, CountingRecords))

    def wrap(store: ObjectStore) -> ObjectStore:
        counts.stores.append(CountingStore(store))
        return counts.stores[-1]

    with stores_through(wrap):
        yield counts
    lake.catalog.records = counts.records.inner


def cost_of_two(lake: Lake, number: int) -> tuple[tuple[int, int], Counter[str]]:
    if (lake.snapshot().id + 2) % BUCKET == 0:
        lake.table("b").append(numbers(number))  # not the one commit in so many that keeps a cut
    both(lake)  # tables that were used last are read with the tip
    with counted(lake) as counts, lake.transaction() as tx:
        add_to_both(tx, number)
        assert both(tx)[0][-1] == number
        tx.table("a").delete(f"id = {number}")
    return counts.catalog, counts.store


def test_the_costs_do_not_grow_with_the_history(site: Site) -> None:
    lake = two_tables(site.open())
    a, b = lake.table("a"), lake.table("b")
    found = {}
    for depth in {"sqlite": (10, 100, DEEP), "postgres": (10, 100, DEEP)}.get(site.kind, (10, 40)):
        while lake.snapshot().id < depth:
            a.append(numbers(depth))
            b.append(numbers(depth))
        found[depth] = cost_of_two(lake, 1_000_000 + depth)
        a.refresh()
        b.refresh()
    (catalog, store), *others = found.values()
    assert catalog == (1, 2), "one read; one transaction that decides and one that says it is finished"
    assert all(one == (catalog, store) for one in others), found


def test_the_costs_do_not_grow_with_the_number_of_tables(site: Site) -> None:
    lake = two_tables(site.open())
    cost_of_two(lake, 1_000_000)  # those after it begin with versions that the lake knows
    found = {}
    for number in (2, 10, 100):
        with lake.transaction() as tx:
            for one in range(len(lake.tables()), number):
                tx.create_table(f"t{one}", pa.schema([("id", pa.int64())]))
        found[number] = cost_of_two(lake, 1_000_000 + number)
    (catalog, store), *others = found.values()
    assert catalog == (1, 2)
    assert all(one == (catalog, store) for one in others), found


def test_a_table_that_was_not_used_lately_costs_two_reads_of_a_few_records(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        for number in range(50):
            tx.create_table(f"t{number}", pa.schema([("id", pa.int64())]))
    with counted(lake) as counts, lake.transaction() as tx:
        tx.table("a").append(numbers(2))
    assert counts.catalog == (3, 2)
    assert counts.records.found == (2 * 8 + 1) + 2 + 3 + 2 + 1, "used last and tip; name and tip; with the head; decided on; finished"
    with counted(lake) as again, lake.transaction() as tx:
        tx.table("a").append(numbers(3))
    assert again.catalog == (1, 2)


def test_a_table_that_moved_since_the_base_is_read_as_it_was(site: Site) -> None:
    lake, other = two_tables(site.open()), site.open()
    fresh = site.open()
    with counted(fresh) as counts, fresh.transaction() as tx:
        with other.transaction() as theirs:
            add_to_both(theirs, 7)
            theirs.create_table("c", numbers(1))
            theirs.rename_table("b", "d")
        assert ids(tx.table("a")) == [1]
        assert ids(tx.table("b")) == [1], "it had that name then"
        for name in ("c", "d"):
            with pytest.raises(NotFound):
                tx.table(name)
        assert counts.records.scans == 1, "what the snapshot in between replaced"
        assert tx.tables() == ["a", "b"]
    assert ids(lake.table("d")) == [1, 7]


def test_the_store_of_a_table_is_opened_once_for_all_transactions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noted(uri: str, *given: Storage, runtime: Runtime) -> TableAccess:
        opened.append(uri)
        return open_access(uri, *given, runtime=runtime)

    monkeypatch.setattr(lake_tables, "open_access", noted)
    lake.forget_stores()
    for number in (2, 3):
        with lake.transaction() as tx:
            add_to_both(tx, number)
    assert (len(opened), len(set(opened))) == (2, 2)
    stores = {id(lake.plain_access_of(head).store) for head in lake.catalog.cut("main").tables.values() for _ in range(2)}
    assert len(stores) == len(lake.tables())
    lake.cleanup(dry_run=True)
    lake.table("a")
    assert opened.count(opened[0]) == 2, "a cleanup may have removed directories that the store knew"


def test_a_table_is_opened_once_and_costs_nothing_the_second_time(lake: Lake) -> None:
    with counted(lake) as counts, lake.transaction() as tx:
        assert (counts.catalog, counts.stores) == ((1, 0), []), "one read gives the base of all tables"
        first = tx.table("a")
        assert len(set(counts.versions_read)) == 1
        before, opened = sum(counts.store.values()), len(counts.stores)
        assert tx.table("a") is first
        assert first.version == 1
        assert first.schema.names == ["id"]
        assert (sum(counts.store.values()), len(counts.stores)) == (before, opened)
        first.append(numbers(2))
        written = counts.store["put _tiltyard"]
        first.append(numbers(3))
        assert counts.store["put _tiltyard"] == written + 1
        assert counts.catalog == (1, 0), "until the commit the catalog is not asked again"
        assert len(set(counts.versions_read)) == 1
    assert counts.catalog == (1, 2)


def test_reading_costs_one_look_at_the_catalog(lake: Lake) -> None:
    with counted(lake) as counts:
        snapshot = lake.snapshot()
        assert both(snapshot) == ([1], [1])
    assert counts.catalog == (1, 0)
    with counted(lake) as counts, lake.transaction(isolation="serializable") as tx:
        assert both(tx) == ([1], [1])
    assert counts.catalog == (1, 0), "a transaction that only read has nothing to publish"


@pytest.mark.parametrize("losers", [1, 2])
def test_a_retry_costs_no_data_and_only_the_tables_that_lost(site: Site, lake: Lake, losers: int) -> None:
    tx = add_to_both(lake.transaction(), 2)
    data = site.files("/data/")
    other = site.open()

    def faster() -> None:
        with other.transaction() as theirs:
            for name in "ab"[:losers]:
                theirs.table(name).append(numbers(7))

    through(lake, lambda records: InterposedRecords(records, faster, times=3))
    with counted(lake) as counts:
        result = tx.commit()
    assert result.attempts == 4
    assert counts.records.transacts == 4 + 1
    assert len(site.files("/data/") - data) == 3 * losers, "theirs"
    assert both(lake) == ([1, 2, 7, 7, 7], [1, 2, 7, 7, 7] if losers == 2 else [1, 2])


def test_a_rebase_over_many_appends_reads_one_version(site: Site, lake: Lake) -> None:
    other = site.open().table("a")
    with counted(lake) as counts:
        tx = add_to_both(lake.transaction(), 2)
        before, announced = len(counts.versions_read), counts.store["put _transactions"]
        for _ in range(20):
            other.append(numbers(7))
        assert before
        assert tx.commit().rebased == {"a": tuple(range(2, 22))}
    assert len(set(counts.versions_read[before:])) == 1, "the latest"
    assert counts.store["put _transactions"] == announced == 2, "what was announced holds still"
    assert both(lake) == ([1, 2, *[7] * 20], [1, 2])


def test_a_second_rebase_goes_on_from_where_the_first_ended(site: Site, lake: Lake) -> None:
    other = site.open().table("a")

    def faster(times: int) -> None:
        for _ in range(times):
            other.append(numbers(7))
            other.delete("id = 7")

    read: list[int] = []
    with counted(lake) as counts:
        tx = lake.transaction()
        tx.table("a").update({"id": "id + 1"}, where="id = 1")
        faster(5)

        def again() -> None:
            faster(1)
            read.append(len(counts.versions_read))

        lake.catalog.records = InterposedRecords(lake.catalog.records, again, times=3)
        assert tx.commit().attempts == 4
    read.append(len(counts.versions_read))
    first, *later = (after - before for before, after in pairwise(read))
    assert first >= 12, "all that came before the first try"
    assert max(later) <= 6, "then what came since the last, and no more"
    assert ids(lake.table("a")) == [2]


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_the_first_of_a_long_history_costs_what_that_of_a_short_one_does(site: Site, lake: Lake) -> None:
    a, depth = lake.table("a"), 2 * BUCKET - 1
    while lake.snapshot().id < depth:
        a.append(numbers(7))
    every = [snapshot.id for snapshot in lake.history()]
    assert every == list(range(depth, 0, -1))
    with counted(lake) as counts:
        history = lake.history()
        assert counts.records.found == 0
        assert history[0].id == depth
        assert counts.records.found <= 2 + BUCKET
        assert [snapshot.id for snapshot in history[:3]] == every[:3]
        assert counts.records.found <= 2 + BUCKET
        assert len(history) == len(every)
        assert history[-1].id == 1
    page = lake.history(limit=5, before=every[10])
    assert [snapshot.id for snapshot in page] == every[11:16]
    assert lake.history(limit=2) == list(lake.history())[:2]
    assert list(lake.history(limit=0)) == []
    for wrong in ({"limit": "2"}, {"before": True}):
        with pytest.raises(InvalidInput):
            lake.history(**wrong)


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_history_that_fails_halfway_goes_on_from_there(site: Site, lake: Lake) -> None:
    a = lake.table("a")
    while lake.snapshot().id < BUCKET + 3:
        a.append(numbers(7))
    records = through(lake, LosingRecords)
    history = lake.history()
    assert history[0].id == BUCKET + 3
    records.down = True
    with pytest.raises(StorageError):
        len(history)
    records.down = False
    assert [snapshot.id for snapshot in history] == list(range(BUCKET + 3, 0, -1))


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_cuts_of_a_lake_with_many_tables_are_kept_less_often_and_none_is_lost(site: Site) -> None:
    lake = site.open()
    for tables, stride in ((None, 1), (1, 1), (BUCKET, 1), (BUCKET + 1, 2), (4 * BUCKET, 4), (10_000, 256)):
        assert cut_stride(tables) == stride
    with lake.transaction() as tx:
        for number in range(BUCKET + 1):
            tx.create_table(f"t{number}", numbers(1))
    first = lake.table("t0")
    seen = {}
    while (now := lake.snapshot()).id < 4 * BUCKET + 3:
        seen[now.id] = now.versions()["t0"]
        first.append(numbers(7))
    kept = sorted(key for key, _ in lake.catalog.records.scan(["cut/main/"]))
    assert kept == [f"cut/main/{bucket:016d}" for bucket in (2, 4)]
    for snapshot in (1, BUCKET, 2 * BUCKET - 1, 2 * BUCKET, 3 * BUCKET + 5, 4 * BUCKET + 2):
        assert lake.snapshot(snapshot).versions()["t0"] == seen[snapshot]


def test_handles_asked_for_by_eight_threads_at_once_open_each_table_once(lake: Lake) -> None:
    with counted(lake) as counts, lake.transaction() as tx:
        names = ["a", "b"] * 4
        handles = together(*(lambda name=name: tx.table(name) for name in names))
        assert all(one is tx.table(name) for one, name in zip(handles, names, strict=True))
        assert counts.catalog == (1, 0)
    with counted(lake) as once, lake.transaction() as tx:
        assert [tx.table(name).name for name in "ab"] == ["a", "b"]
    assert counts.store == once.store, "as many calls as one thread alone needs"


def test_eight_threads_may_write_through_one_transaction(lake: Lake) -> None:
    with lake.transaction() as tx:
        results = together(*(lambda n=n: tx.table("ab"[n % 2]).append(numbers(10 + n)) for n in range(8)))
        assert not [one for one in results if isinstance(one, BaseException)], results
        assert both(tx) == ([1, 10, 12, 14, 16], [1, 11, 13, 15, 17])
    assert tx.result is not None
    assert tx.result.tables == {"a": 5, "b": 5}
    assert both(lake) == ([1, 10, 12, 14, 16], [1, 11, 13, 15, 17])
    assert lake.table("a").check().problems == ()
    assert ids(lake.snapshot().table("a")) == [1, 10, 12, 14, 16]


# ---- versions that the lake made itself -----------------------------------------------------------------------------------------


def test_a_transaction_on_versions_of_the_last_one_reads_none_of_them(site: Site) -> None:
    lake = two_tables(site.open())
    for number in (10, 11):
        with counted(lake) as counts, lake.transaction() as tx:
            add_to_both(tx, number)
        whole = [path for one in counts.stores for method, path in one.log if method == "get" and path.startswith("_versions/")]
        assert len(whole) == (2 if number == 10 else 0), "the second begins with what the first made"
    assert both(site.open()) == both(lake)


def test_a_version_that_somebody_else_made_is_read(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        add_to_both(tx, 10)
    site.open().table("a").append(numbers(20))
    with lake.transaction() as tx:
        assert ids(tx.table("a"))[-2:] == [10, 20]
        add_to_both(tx, 30)
    assert ids(site.open().table("a"))[-3:] == [10, 20, 30]


def test_a_table_made_again_under_its_name_is_read(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        tx.table("a").append(numbers(10))
    other = site.open()
    other.drop_table("a")
    other.create_table("a", pa.table({"id": pa.array([7], pa.int64()), "more": ["x"]}))
    with lake.transaction() as tx:
        assert tx.table("a").schema.names == ["id", "more"]
        tx.table("a").append(pa.table({"id": pa.array([8], pa.int64()), "more": ["y"]}))
    assert ids(site.open().table("a")) == [7, 8]


def test_each_branch_begins_with_its_own_version(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        add_to_both(tx, 10)
    lake.branches.create("dev")
    dev = lake.on_branch("dev")
    for number in (20, 21, 22):
        with dev.transaction() as tx:
            add_to_both(tx, number)
        with lake.transaction() as tx:
            add_to_both(tx, number + 10)
            assert number not in ids(tx.table("a")), "the other branch has a version of that number, too"
    assert both(site.open()) == ([1, 10, 30, 31, 32], [1, 10, 30, 31, 32])
    assert both(site.open().on_branch("dev")) == ([1, 10, 20, 21, 22], [1, 10, 20, 21, 22])


def test_a_branch_made_again_under_its_name_begins_where_it_was_made(site: Site) -> None:
    lake = two_tables(site.open())
    for number in (10, 20):
        lake.branches.create("dev")
        dev = lake.on_branch("dev")
        with dev.transaction() as tx:
            add_to_both(tx, number)
        with dev.transaction() as tx:
            assert both(tx) == ([1, number], [1, number])
        lake.branches.delete("dev")
    assert both(lake) == ([1], [1])


def test_after_a_restore_a_transaction_begins_with_what_was_restored(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        add_to_both(tx, 10)
    lake.table("a").restore(1)
    with lake.transaction() as tx:
        assert both(tx) == ([1], [1, 10])
        add_to_both(tx, 11)
    assert both(site.open()) == ([1, 11], [1, 10, 11])


def test_a_known_version_that_the_store_has_lost_is_not_built_upon(site: Site) -> None:
    """As after the files were restored from a copy that is older than the catalog."""
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        tx.table("a").append(numbers(10))
    store = lake.plain_access_of(lake.catalog.cut(lake.branch).tables["a"]).store
    for name in sorted(store.names("_versions/"))[:1]:  # the newest
        store.delete(f"_versions/{name}")
    tx = lake.transaction()
    with pytest.raises(HistoryUnavailable, match="is gone"):
        tx.table("a").append(numbers(11))
    tx.rollback()


def test_what_a_known_version_holds_is_read_all_the_same(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.transaction() as tx:
        add_to_both(tx, 10)
    one, two = (lake.transaction(isolation="serializable") for _ in range(2))
    one.table("a").count_rows()
    one.table("b").append(numbers(11))
    two.table("b").count_rows()
    two.table("a").append(numbers(11))
    one.commit()
    with pytest.raises(ExpectedVersionMismatch):
        two.commit()
    assert both(lake) == ([1, 10], [1, 10, 11])


def test_a_transaction_asks_for_files_of_long_work_before_it_is_published(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verb took long and its commit followed at once: what counts is when the files were begun."""
    lake, asked = two_tables(site.open()), list[bool]()
    monkeypatch.setattr(staged_access, "check_there", lambda *_, ask: asked.append(ask))
    for seconds in (0.0, LOOK_AFTER):
        with lake.transaction() as tx:
            tx.table("a").append(numbers(2))
            access = tx._by_name["a"].access
            assert access is not None
            access.recorded[:] = [replace(commit, begun=commit.begun - seconds) for commit in access.recorded]
    assert asked == [False, True]


def test_large_versions_are_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_tables, "KEPT_BYTES", 10)
    lake = two_tables(site.open())
    for number in (10, 11):
        with counted(lake) as counts, lake.transaction() as tx:
            tx.table("a").append(numbers(number))
        assert counts.versions_read
        assert all(lake.opened(head).latest is None for head in lake.catalog.cut(lake.branch).tables.values())
