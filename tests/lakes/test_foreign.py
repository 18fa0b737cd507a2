"""Writers who do not know the lake: adopted where they continue a table, and never mistaken for one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.support.lakes import (
    Racing,
    Site,
    add_to_both,
    both,
    foreign_append,
    ids,
    numbers,
    stock,
    stores_through,
    through,
    uri_of,
)
from tiltyard.errors import ConflictError, CorruptTable
from tiltyard.interfaces import ObjectStore
from tiltyard.lake import Lake
from tiltyard.testing import Killed, WrapperStore


@pytest.mark.parametrize("how", ["open the table", "open the lake", "transaction", "verb of an open handle"])
def test_commits_of_plain_pylance_are_adopted(site: Site, lake: Lake, how: str) -> None:
    handle = lake.table("a")
    uri = uri_of(lake, "a")
    foreign_append(uri, 7)
    foreign_append(uri, 8)
    stock(lake, "a").delete("id = 8")
    if how == "open the table":
        assert ids(lake.table("a")) == [1, 7]
    elif how == "open the lake":
        assert ids(site.open().table("a")) == [1, 7]
    elif how == "transaction":
        with lake.transaction() as tx:
            add_to_both(tx, 2)
        assert tx.result is not None
        assert tx.result.tables == {"a": 5, "b": 2}
    else:
        handle.append(numbers(2))
    found = [one for one in lake.history() if "adopted" in one.message]
    assert [(one.changes[0].kind, one.changes[0].name, one.changes[0].operations) for one in found] == [
        ("adopt", "a", ("Append", "Append", "Delete"))
    ]
    assert ids(lake.snapshot(found[0].id).table("a")) == [1, 7]
    assert ids(lake.table("a")) == ids(stock(lake, "a")) == ([1, 2, 7] if how in ("transaction", "verb of an open handle") else [1, 7])
    assert lake.table("a").check().problems == ()
    before = lake.snapshot().id
    lake.table("a")
    assert lake.snapshot().id == before, "once"


def test_what_does_not_go_together_with_a_foreign_commit_is_refused(lake: Lake) -> None:
    tx = lake.transaction()
    tx.table("a").update({"id": "id + 1"})
    tx.table("b").append(numbers(2))
    stock(lake, "a").update({"id": "id + 10"})
    with pytest.raises(ConflictError):
        tx.commit()
    assert both(lake) == ([11], [1])


def test_a_foreign_change_of_a_table_that_was_read_is_seen_once_it_is_adopted(site: Site, lake: Lake) -> None:
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1]
    tx.table("b").append(numbers(2))
    foreign_append(uri_of(lake, "a"), 7)
    assert ids(site.open().table("a")) == [1, 7]
    with pytest.raises(ConflictError):
        tx.commit()
    assert both(lake) == ([1, 7], [1])


def test_foreign_upkeep_does_not_break_a_read(site: Site, lake: Lake) -> None:
    lake.table("a").append(numbers(2))
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1, 2]
    tx.table("b").append(numbers(2))
    stock(lake, "a").optimize.compact_files()
    assert site.open().table("a").version > 2
    tx.commit()
    assert both(lake) == ([1, 2], [1, 2])


# ---- a foreign writer takes the very number ----------------------------------------------------------------------------------------


class Dying(WrapperStore):
    """The process dies when it is about to give a version its final name."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        if path.startswith("_versions/"):
            raise Killed(path)
        super().put_if_absent(path, data)


@contextmanager
def dying() -> Iterator[None]:
    def wrap(store: ObjectStore) -> ObjectStore:
        return Dying(store)

    with stores_through(wrap), pytest.raises(Killed):
        yield


def left_by_a_dead_writer(site: Site, tables: str = "ab") -> str:
    """A transaction that is decided and not finished."""
    victim = site.open()
    with dying():
        tx = victim.transaction()
        for name in tables:
            tx.table(name).append(numbers(2))
        tx.commit()
    return tx.id


@pytest.mark.parametrize("who", ["snapshot", "table", "transaction", "open", "verb", "past snapshot"])
def test_whoever_comes_first_finishes_what_a_dead_writer_left(site: Site, lake: Lake, who: str) -> None:
    handle = lake.table("a")
    left_by_a_dead_writer(site)
    if who == "snapshot":
        assert both(lake.snapshot()) == ([1, 2], [1, 2])
    elif who == "past snapshot":
        assert both(lake.snapshot(2)) == ([1, 2], [1, 2])
    elif who == "table":
        assert both(lake) == ([1, 2], [1, 2])
    elif who == "transaction":
        with lake.transaction() as tx:
            add_to_both(tx, 3)
    elif who == "open":
        site.open()
    else:
        handle.append(numbers(3))
    if who != "verb":
        assert len(lake.catalog.pending()) == 0
        assert all(2 in ids(stock(lake, name)) for name in "ab")
        assert not site.files("_tiltyard/staged")
    assert all(2 in ids(lake.table(name)) for name in "ab")


def test_a_reader_past_the_lake_is_behind_but_never_torn_inside_one_table(site: Site, lake: Lake) -> None:
    left_by_a_dead_writer(site)
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == [1]
    site.open()
    assert ids(stock(lake, "a")) == ids(stock(lake, "b")) == [1, 2]


@pytest.mark.parametrize("first", ["snapshot", "past snapshot", "table", "transaction", "verb", "open"])
def test_a_number_of_several_tables_that_was_taken_puts_the_table_apart(site: Site, lake: Lake, first: str) -> None:
    """Nobody who goes through the lake ever reads the foreign rows as part of the commit, and the other table is fine."""
    handle = lake.table("a")
    transaction = left_by_a_dead_writer(site)
    foreign_append(uri_of(lake, "a"), 99)

    def read(how: str) -> Any:
        if how == "snapshot":
            return ids(lake.snapshot().table("a"))
        if how == "past snapshot":
            return ids(lake.snapshot(2).table("a"))
        if how == "table":
            return ids(lake.table("a"))
        if how == "transaction":
            return ids(lake.transaction().table("a"))
        if how == "open":
            return ids(site.open().table("a"))
        return handle.append(numbers(3))

    for how in (first, "snapshot", "past snapshot", "table", "transaction", "verb", "open"):
        with pytest.raises(CorruptTable) as caught:
            read(how)
        assert transaction in caught.value.reason, "ours"
        assert all(word in caught.value.reason for word in ("_versions/", "does not know")), "theirs"
        assert "repair" in caught.value.advice
    assert ids(lake.snapshot().table("b")) == ids(lake.table("b")) == [1, 2]
    with lake.transaction() as tx:
        tx.table("b").append(numbers(3))
        tx.create_table("c", numbers(1))
    assert ids(site.open().table("b")) == [1, 2, 3]
    assert ids(lake.snapshot(1).table("a")) == [1], "what was before can still be read"
    assert ids(stock(lake, "a")) == [1, 99], "nothing of theirs was touched"
    assert any("staged" in path for path in site.files(f"staged/{transaction}")), "and nothing of ours"


def test_two_tables_that_were_taken_are_both_put_apart(site: Site, lake: Lake) -> None:
    left_by_a_dead_writer(site)
    for name in "ab":
        foreign_append(uri_of(lake, name), 99)
    site.open()
    assert all(head.quarantine for head in lake.catalog.cut().tables.values())
    for name in "ab":
        with pytest.raises(CorruptTable):
            lake.snapshot().table(name)
    lake.drop_table("a")
    assert lake.tables() == ["b"], "a table that is apart can be dropped"


def test_the_writer_itself_meets_it(site: Site, lake: Lake) -> None:
    """Between the decision and the copy, while the writer is alive."""
    uri = uri_of(lake, "a")
    tx = add_to_both(lake.transaction(), 2)
    through(lake, lambda records: Racing(records, lambda: foreign_append(uri, 99)))
    with pytest.raises(CorruptTable) as caught:
        tx.commit()
    assert tx.id in str(caught.value)
    other = site.open()
    with pytest.raises(CorruptTable):
        other.table("a")
    assert ids(other.table("b")) == [1, 2]
    assert other.outcome(tx.id).__class__.__name__ == "Committed"


def test_the_writer_itself_meets_it_in_two_tables(site: Site, lake: Lake) -> None:
    uris = [uri_of(lake, name) for name in "ab"]
    tx = add_to_both(lake.transaction(), 2)

    def taken() -> None:
        for uri in uris:
            foreign_append(uri, 99)

    through(lake, lambda records: Racing(records, taken))
    with pytest.raises(CorruptTable):
        tx.commit()
    assert all(tx.id in head.quarantine for head in lake.catalog.cut().tables.values())


def test_the_writer_is_not_told_committed_when_somebody_else_gave_its_number_up(site: Site, lake: Lake) -> None:
    """The number is taken, and another reader sees to it before the writer comes to look: what was staged is gone by then."""
    uri, other = uri_of(lake, "a"), site.open()

    def taken() -> None:
        foreign_append(uri, 99)
        assert ids(other.table("a")) == [1, 99]

    tx = lake.transaction()
    tx.table("a").append(numbers(2))
    through(lake, lambda records: Racing(records, taken))
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.retryable
    assert ids(lake.table("a")) == ids(other.table("a")) == [1, 99]
    assert other.outcome(tx.id).__class__.__name__ != "Committed"


def test_a_number_of_a_single_table_goes_to_the_foreign_writer_and_ours_comes_after(site: Site, lake: Lake) -> None:
    uri = uri_of(lake, "a")
    through(lake, lambda records: Racing(records, lambda: foreign_append(uri, 99)))
    result = lake.table("a").append(numbers(2))
    assert result.version == 3
    assert ids(lake.table("a")) == ids(site.open().table("a")) == ids(stock(lake, "a")) == [1, 2, 99]
    assert lake.outcome(result.transaction_id) == site.open().outcome(result.transaction_id)
    assert lake.outcome(result.transaction_id).__class__.__name__ == "Committed"
    assert sum(one.voided for one in lake.history()) == 1
    assert lake.table("a").check().problems == ()


def test_a_transaction_over_a_single_table_is_run_again(site: Site, lake: Lake) -> None:
    uri = uri_of(lake, "a")
    through(lake, lambda records: Racing(records, lambda: foreign_append(uri, 99)))
    runs: list[str] = []

    def work(tx: Any) -> None:
        runs.append(tx.id)
        tx.table("a").append(numbers(2))

    lake.run(work)
    assert ids(lake.table("a")) == ids(site.open().table("a")) == [1, 2, 99]
    assert len(runs) == 2
    assert lake.outcome(runs[1]).__class__.__name__ == "Committed"
    assert lake.outcome(runs[0]).__class__.__name__ != "Committed"
    assert lake.table("a").check().problems == ()


def test_what_a_dead_writer_left_of_a_single_table_is_given_up(site: Site, lake: Lake) -> None:
    transaction = left_by_a_dead_writer(site, "a")
    foreign_append(uri_of(lake, "a"), 99)
    assert ids(lake.snapshot().table("a")) == [1, 99]
    assert ids(site.open().table("a")) == [1, 99]
    assert site.open().outcome(transaction).__class__.__name__ == "Unknown"
    assert site.open().outcome(transaction, give_up=True).__class__.__name__ == "NotCommitted"
    lake.table("a").append(pa.table({"id": [3]}))
    assert ids(lake.table("a")) == [1, 3, 99]
