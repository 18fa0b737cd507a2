"""What a transaction costs, counted at the edges of catalog and store: the same however long the history and however many tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import tiltyard.lake
from tests.support.lakes import InterposedRecords, Site, add_to_both, both, ids, numbers, stores_through, through, together, two_tables
from tests.support.proving import pick
from tiltyard.catalog.value_codec import BUCKET
from tiltyard.errors import NotFound
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.lake import Lake
from tiltyard.options import Storage
from tiltyard.testing import CountingRecords, CountingStore
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

    monkeypatch.setattr(tiltyard.lake, "open_access", noted)
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
