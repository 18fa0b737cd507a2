"""Serializable transactions: what was read must still be so, checked under lock, and upkeep does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.lakes import Site, add_to_both, both, ids, numbers, together
from tiltyard.errors import ConflictError, ExpectedVersionMismatch, TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.lake_tables import TransactionTable

READS: dict[str, Callable[[TransactionTable], Any]] = {
    "to_arrow": lambda t: t.to_arrow(),
    "scan": lambda t: t.scan().read_all(),
    "count_rows": lambda t: t.count_rows(),
    "count_rows of some": lambda t: t.count_rows("id = 99"),
    "lance": lambda t: t.lance.to_table(filter="id = 99"),
    "delete of nothing": lambda t: t.delete("id = 99"),
    "update of nothing": lambda t: t.update({"id": "id + 1"}, where="id = 99"),
    "schema": lambda t: t.schema,
    "fragments": lambda t: t.layout.fragments,
    "config": lambda t: t.settings.config,
    "a refused append": lambda t: refused_append(t),
}


def refused_append(table: TransactionTable) -> None:
    with pytest.raises(TiltyardError):
        table.append(pa.table({"x": [1]}))


@pytest.mark.parametrize("read", READS)
def test_write_skew_is_refused(site: Site, lake: Lake, read: str) -> None:
    """Each reads one table and writes the other; whichever comes second rests on what is no longer so."""
    one, two = (site.open().transaction(isolation="serializable") for _ in range(2))
    READS[read](one.table("a"))
    one.table("b").append(numbers(2))
    READS[read](two.table("b"))
    two.table("a").append(numbers(2))
    one.commit()
    with pytest.raises(ExpectedVersionMismatch) as caught:
        two.commit()
    error = caught.value
    assert (error.table, error.cause, error.expected, error.actual, error.retryable) == ("b", "read", 1, 2, True)
    assert [by["transaction"] for by in error.by] == [one.id]
    assert both(lake) == ([1], [1, 2])


def test_write_skew_is_refused_when_both_commit_at_once(site: Site, lake: Lake) -> None:
    """The check is made under lock: whatever the order, never both."""
    for number in range(2, 6):
        txs = [site.open().transaction(isolation="serializable") for _ in range(2)]
        assert both(txs[0]) == both(txs[1])
        txs[0].table("a").append(numbers(number))
        txs[1].table("b").append(numbers(number))
        results = together(txs[0].commit, txs[1].commit)
        assert sum(isinstance(one, ExpectedVersionMismatch) for one in results) == 1, results
        assert sum(map(len, both(lake))) == number + 1


def test_upkeep_of_a_table_that_was_read_breaks_nothing(site: Site, lake: Lake) -> None:
    lake.table("a").append(numbers(2))
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1, 2]
    tx.table("b").append(numbers(2))
    theirs = site.open().table("a")
    theirs.compact()
    theirs.create_index("id", "BTREE")
    assert theirs.version > 3
    tx.commit()
    assert both(lake) == ([1, 2], [1, 2])


def test_upkeep_of_a_table_that_was_read_and_written_breaks_nothing_either(site: Site, lake: Lake) -> None:
    lake.table("a").append(numbers(2))
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1, 2]
    tx.table("a").append(numbers(3))
    site.open().table("a").compact()
    assert tx.commit().rebased == {"a": (3, 4)}, "a compaction is two versions"
    assert ids(lake.table("a")) == [1, 2, 3]


def test_a_change_hidden_behind_upkeep_is_seen(site: Site, lake: Lake) -> None:
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1]
    tx.table("b").append(numbers(2))
    theirs = site.open().table("a")
    theirs.append(numbers(7))
    theirs.compact()
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.cause, caught.value.actual) == ("read", theirs.version)


def test_blind_appends_are_carried_over(lake: Lake) -> None:
    tx = add_to_both(lake.transaction(isolation="serializable"), 2)
    with lake.transaction() as theirs:
        add_to_both(theirs, 7)
    assert tx.commit().rebased == {"a": (2,), "b": (2,)}
    assert both(lake) == ([1, 2, 7], [1, 2, 7])


@pytest.mark.parametrize("verb", ["append after a look", "delete", "overwrite"])
def test_what_is_not_blind_is_not_carried_over(lake: Lake, verb: str) -> None:
    tx = lake.transaction(isolation="serializable")
    table = tx.table("a")
    if verb == "append after a look":
        table.append(pa.table({"id": [max(ids(table)) + 1]}))
    elif verb == "delete":
        table.delete("id = 1")
    else:
        table.overwrite(numbers(5))
    lake.table("a").append(numbers(7))
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.retryable
    assert ids(lake.table("a")) == [1, 7]


def test_a_table_that_was_read_and_is_gone_is_a_conflict(lake: Lake) -> None:
    tx = lake.transaction(isolation="serializable")
    assert ids(tx.table("a")) == [1]
    tx.table("b").append(numbers(2))
    lake.drop_table("a")
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.table, caught.value.cause, caught.value.actual) == ("a", "read", None)
    assert ids(lake.table("b")) == [1]


def test_a_transaction_that_only_reads_never_fails(lake: Lake) -> None:
    with lake.transaction(isolation="serializable") as tx:
        assert both(tx) == ([1], [1])
        with lake.transaction() as theirs:
            add_to_both(theirs, 7)
        assert both(tx) == ([1], [1])
