"""What happens when others were faster: what is carried over, what is refused, and what the refusal says."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tests.support.lakes import (
    InterposedRecords,
    Site,
    WrappedRecords,
    add_to_both,
    both,
    ids,
    numbers,
    prompt_runtime,
    stock,
    through,
    together,
    two_tables,
)
from tiltyard.catalog.records import Decide, Records
from tiltyard.errors import ConflictError, ContentionError, ExpectedVersionMismatch, KeyConflict
from tiltyard.interfaces import Runtime
from tiltyard.lake import Lake
from tiltyard.lakes import commit_transaction
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.options import CommitOptions
from tiltyard.server import table_turns
from tiltyard.testing import ManualClock

T = TypeVar("T")


# ---- carrying over ----------------------------------------------------------------------------------------------------------------


def test_only_the_table_that_lost_is_staged_again_and_data_is_written_once(site: Site, lake: Lake) -> None:
    tx = add_to_both(lake.transaction(), 2)
    tx.table("b").append(numbers(3))
    data = site.files("/data/")
    staged = {path for path in site.files("_tiltyard/staged") if tx.id in path}
    lake.table("a").append(numbers(7))
    theirs = site.files("/data/") - data
    result = tx.commit()
    assert site.files("/data/") - data == theirs, "no data file of ours was written a second time, and none is gone"
    assert len(staged) == 3
    assert (result.attempts, result.rebased, result.tables) == (2, {"a": (2,)}, {"a": 3, "b": 3})
    assert both(lake) == ([1, 2, 7], [1, 2, 3])
    assert ids(stock(lake, "a")) == [1, 2, 7]
    for name in "ab":
        assert lake.table(name).check().problems == ()
    assert not {path for path in site.files("_tiltyard/staged") if tx.id in path}


def test_what_is_staged_of_a_table_that_did_not_lose_stays_as_it_is(site: Site, lake: Lake) -> None:
    tx = add_to_both(lake.transaction(), 2)
    seen: list[set[str]] = []

    def faster() -> None:
        seen.append({path for path in site.files("_tiltyard/staged") if tx.id in path})
        if len(seen) == 1:
            site.open().table("a").append(numbers(7))

    through(lake, lambda records: InterposedRecords(records, faster, times=2))
    tx.commit()
    first, second = seen
    b = lake.table("b").uri.rpartition("/")[2]
    assert {path for path in first if path.startswith(b)} == {path for path in second if path.startswith(b)} != set()
    assert len(second - first) == 1, "the table that lost was staged anew, and nothing else"


def update(where: str) -> Callable[[Any], Any]:
    return lambda table: table.update({"n": "n + 100"}, where=where)


SHARES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = {
    "append, append": (lambda t: t.append(more(7)), lambda t: t.append(more(8)), True),
    "append, delete": (lambda t: t.append(more(7)), lambda t: t.delete("id = 1"), True),
    "delete, append": (lambda t: t.delete("id = 1"), lambda t: t.append(more(8)), True),
    "update, update of other rows": (update("id = 1"), update("id = 2"), True),
    "delete, delete of other rows": (lambda t: t.delete("id = 1"), lambda t: t.delete("id = 2"), True),
    "update, update of the same rows": (update("id = 1"), update("id < 3"), False),
    "delete, update of the same rows": (lambda t: t.delete("id = 1"), update("id < 3"), False),
    "append, overwrite": (lambda t: t.append(more(7)), lambda t: t.overwrite(more(8)), False),
    "overwrite, overwrite": (lambda t: t.overwrite(more(7)), lambda t: t.overwrite(more(8)), False),
    "update, add columns": (update("id = 1"), lambda t: t.add_columns({"m": "n"}), False),
    "append, append of the same key": (lambda t: t.append(more(7)), lambda t: t.append(more(7)), False),
}
BEGIN = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "n": pa.array([1, 2, 3], pa.int64())})


def more(key: int) -> pa.Table:
    return pa.table({"id": pa.array([key], pa.int64()), "n": pa.array([key], pa.int64())})


@pytest.mark.parametrize("pair", SHARES)
def test_writes_to_one_table_go_by_the_rules_for_one_table(site: Site, pair: str) -> None:
    ours, theirs, goes = SHARES[pair]
    lake = site.open()
    lake.create_table("t", BEGIN, primary_key=["id"])
    lake.create_table("log", numbers(1))
    tx = lake.transaction()
    ours(tx.table("t"))
    tx.table("log").append(numbers(2))
    theirs(lake.table("t"))
    between = lake.table("t").to_arrow().sort_by("id").to_pylist()
    before = site.files("/data/")
    if goes:
        assert tx.commit().rebased == {"t": (2,)}
        assert lake.table("t").version == 3
        assert ids(lake.table("log")) == [1, 2]
    else:
        with pytest.raises(ConflictError) as caught:
            tx.commit()
        assert str(caught.value)
        assert lake.table("t").to_arrow().sort_by("id").to_pylist() == between
        assert ids(lake.table("log")) == [1], "all or nothing"
        assert len(site.files("/data/")) < len(before), "what was not committed is thrown away"
    assert lake.table("t").check().problems == ()


def test_a_key_that_somebody_else_added_is_a_conflict_of_the_whole_transaction(lake: Lake) -> None:
    lake.create_table("keyed", numbers(1), primary_key=["id"])
    tx = lake.transaction()
    tx.table("keyed").append(numbers(2))
    tx.table("a").append(numbers(2))
    lake.table("keyed").append(numbers(2))
    with pytest.raises(KeyConflict):
        tx.commit()
    assert (ids(lake.table("keyed")), ids(lake.table("a"))) == ([1, 2], [1])


def test_reads_do_not_matter_to_a_snapshot_transaction(lake: Lake) -> None:
    tx = lake.transaction()
    assert ids(tx.table("a")) == [1]
    tx.table("b").append(numbers(2))
    lake.table("a").append(numbers(7))
    tx.commit()
    assert both(lake) == ([1, 7], [1, 2])


# ---- what an error says -----------------------------------------------------------------------------------------------------------


def test_a_conflict_says_all_there_is_to_say(site: Site, lake: Lake) -> None:
    tx = lake.transaction()
    tx.table("a").update({"id": "id + 1"})
    tx.table("a").append(numbers(5))
    other = site.open(author="ann")
    with other.transaction(message="first") as one:
        one.table("a").append(numbers(7))
    other.table("a").delete("id = 7", message="second")
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    error = caught.value
    assert (error.table, error.cause, error.expected, error.actual, error.retryable) == ("a", "write", 1, 3, True)
    assert "lake.run" in error.advice
    assert [(by["author"], by["operation"], by["message"]) for by in error.by] == [
        ("ann", "Append", "first"),
        ("ann", "Delete", "second"),
    ]
    assert error.by[0]["transaction"] == one.id
    assert len(str(error)) < 300
    assert all(word in str(error) for word in ("a is at version 3", "built on version 1", "ann"))
    plain = error.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert pickle.loads(pickle.dumps(error)).to_dict() == plain


def test_a_warning_for_every_conflict(site: Site, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    tx = add_to_both(lake.transaction(), 2)
    lake.table("a").append(numbers(7))
    with caplog.at_level(logging.WARNING, "tiltyard.lake"):
        tx.commit()
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert (record.table, record.expected, record.actual, record.transaction) == ("a", 1, 2, tx.id)  # type: ignore[attr-defined]
    assert all(word in record.getMessage() for word in ("conflict", "a is at 2", "expected 1"))


# ---- tries ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who loses and who wins are one thread here: behind a server the winner's answer would wait until the loser comes back."""
    for name in ("SHORTEST_PATIENCE", "LONGEST_HOLD"):
        monkeypatch.setattr(table_turns, name, 0.0)


@pytest.mark.usefixtures("one_thread")
def test_after_sixteen_tries_the_lake_is_said_to_be_busy(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_transaction, "LONGEST_RACE", 0.0)
    runtime = prompt_runtime()
    lake = two_tables(site.open(runtime=runtime))
    theirs = site.open()
    before = site.files("/data/")
    tx = add_to_both(lake.transaction(), 2)
    count = 0

    def faster() -> None:
        nonlocal count
        count += 1
        theirs.table("a").append(numbers(100 + count))

    through(lake, lambda records: InterposedRecords(records, faster, times=1000))
    with caplog.at_level(logging.WARNING, "tiltyard.lake"), pytest.raises(ContentionError) as caught:
        tx.commit()
    assert (caught.value.attempts, count, caught.value.retryable) == (16, 16, True)
    assert sum("conflict" in one.getMessage() for one in caplog.records) == 16
    assert isinstance(runtime.clock, ManualClock)
    slept = runtime.clock.slept
    assert len(slept) == 15
    assert max(slept) > 0.05, "waits grow"
    assert slept[0] <= 0.05
    assert len(site.files("/data/") - before) == 16, "theirs alone"
    assert ids(theirs.table("b")) == [1]


@pytest.mark.usefixtures("one_thread")
def test_compatible_writers_do_not_fail_however_often_others_are_faster(site: Site) -> None:
    lake = two_tables(site.open(runtime=prompt_runtime()))
    theirs = site.open().table("a")
    tx = add_to_both(lake.transaction(), 2)
    through(lake, lambda records: InterposedRecords(records, lambda: theirs.append(numbers(7)), times=25))
    assert tx.commit().attempts == 26
    assert both(lake) == ([1, 2, *[7] * 25], [1, 2])


class Meeting(WrappedRecords):
    """Holds everybody who is about to publish for the first time until both are there."""

    def __init__(self, inner: Records, barrier: threading.Barrier) -> None:
        super().__init__(inner)
        self._barrier: threading.Barrier | None = barrier
        self.published = 0

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if any(key.startswith("tip/") for key in exclusive):
            self.published += 1
            if self._barrier is not None:
                barrier, self._barrier = self._barrier, None
                barrier.wait(30)
        return super().transact(exclusive, shared, decide)


@pytest.mark.parametrize("how", ["transactions", "verbs"])
def test_two_writers_meet_at_the_swap(site: Site, lake: Lake, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Exactly one wins; the other sees where the table is now, and its next try lands."""
    barrier = threading.Barrier(2)
    lakes = [site.open(author=name) for name in ("ann", "ben")]
    meetings = [through(one, lambda records: Meeting(records, barrier)) for one in lakes]

    def write(lake: Lake, number: int) -> Any:
        if how == "verbs":
            return lake.table("a").append(numbers(number))
        with lake.transaction() as tx:
            add_to_both(tx, number)
        return tx.result

    with caplog.at_level(logging.WARNING, "tiltyard"):
        results = together(*(lambda one=one, n=n: write(one, n) for n, one in enumerate(lakes, 2)))
    assert not [one for one in results if isinstance(one, BaseException)], results
    assert sorted(one.published for one in meetings) == [1, 2] if how == "transactions" else sum(one.published for one in meetings) >= 2
    assert ids(lake.table("a")) == [1, 2, 3]
    assert lake.table("a").version == 3
    authors = [one.author for one in lake.history(2)]
    assert sorted(authors) == ["ann", "ben"]
    if how == "transactions":
        assert sorted(one.attempts for one in results) == [1, 2]
        loser = max(results, key=lambda one: one.attempts)
        assert loser.rebased == {"a": (2,), "b": (2,)}
        warned = [one for one in caplog.records if "conflict" in one.getMessage()]
        assert {(one.table, one.expected, one.actual) for one in warned} == {("a", 1, 2), ("b", 1, 2)}  # type: ignore[attr-defined]


def test_tables_named_in_opposite_orders_never_lock_each_other_out(site: Site, lake: Lake) -> None:
    def work(names: str, first: int) -> None:
        here = site.open()
        for number in range(6):
            with here.transaction() as tx:
                for name in names:
                    tx.table(name).append(numbers(first + number))

    results = together(lambda: work("ab", 100), lambda: work("ba", 200), lambda: work("ab", 300))
    assert results == [None] * 3
    assert [len(one) for one in both(lake)] == [19, 19]
    assert both(lake)[0] == both(lake)[1]


# ---- run --------------------------------------------------------------------------------------------------------------------------


def test_run_begins_anew_with_a_fresh_transaction(site: Site, lake: Lake) -> None:
    seen: list[tuple[str, int, list[int]]] = []

    def work(tx: LakeTransaction) -> int:
        table = tx.table("a")
        seen.append((tx.id, tx.base, ids(table)))
        if len(seen) < 3:
            site.open().table("a").append(numbers(10 + len(seen)))
        table.update({"id": "id + 100"})
        table.append(numbers(len(seen)))
        return len(seen)

    assert lake.run(work, message="again") == 3
    assert len({one for one, _, _ in seen}) == 3
    assert [rows for _, _, rows in seen] == [[1], [1, 11], [1, 11, 12]]
    assert ids(lake.table("a")) == [3, 101, 111, 112]
    assert lake.history(1)[0].message == "again"


def test_run_gives_up_after_as_many_as_it_was_told(site: Site) -> None:
    clock = ManualClock()
    lake = two_tables(site.open(runtime=Runtime(clock, prompt_runtime().random)))
    runs: list[str] = []

    def work(tx: LakeTransaction) -> None:
        runs.append(tx.id)
        tx.table("a").update({"id": "id + 1"})
        lake.table("a").update({"id": "id + 10"})

    with pytest.raises(ConflictError):
        lake.run(work, commit=CommitOptions(reexecutions=2))
    assert len(set(runs)) == 3
    assert len(clock.slept) == 2


def test_run_does_not_repeat_what_cannot_help(lake: Lake) -> None:
    runs: list[str] = []

    def work(tx: LakeTransaction) -> None:
        runs.append(tx.id)
        tx.create_table("c", numbers(1))
        if len(runs) == 1:
            lake.create_table("c", numbers(2))

    with pytest.raises(ConflictError):
        lake.run(work)
    assert len(runs) == 1

    def fail(tx: LakeTransaction) -> None:
        runs.append(tx.id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lake.run(fail)
    assert len(runs) == 2


# ---- idempotency keys -------------------------------------------------------------------------------------------------------------


def test_a_key_counts_once(site: Site, lake: Lake) -> None:
    with lake.transaction(idempotency_key="order/17") as first:
        add_to_both(first, 2)
    before = site.files(".lance/")
    for other in (lake, site.open()):
        with other.transaction(idempotency_key="order/17") as again:
            add_to_both(again, 2)
            again.create_table("c", numbers(1))
        assert first.result is not None
        assert again.result is not None
        assert (again.result.snapshot, again.result.transaction_id, again.result.replayed) == (first.result.snapshot, first.id, True)
        assert again.result.tables == {}
    assert (both(lake), lake.tables()) == (([1, 2], [1, 2]), ["a", "b"])
    assert site.files(".lance/") == before
    with lake.transaction(idempotency_key="order/18") as other_key:
        add_to_both(other_key, 3)
    assert both(lake) == ([1, 2, 3], [1, 2, 3])


def test_a_key_that_was_not_committed_is_free(lake: Lake) -> None:
    tx = add_to_both(lake.transaction(idempotency_key="k"), 2)
    tx.rollback()
    with lake.transaction(idempotency_key="k") as again:
        add_to_both(again, 3)
    assert both(lake) == ([1, 3], [1, 3])


def test_one_key_at_the_same_moment_makes_one_snapshot(site: Site, lake: Lake) -> None:
    before = lake.snapshot().id
    barrier = threading.Barrier(2)
    lakes = [site.open(), site.open()]
    for one in lakes:
        through(one, lambda records: Meeting(records, barrier))
    txs = [add_to_both(one.transaction(idempotency_key="k"), 2) for one in lakes]
    results = together(*(tx.commit for tx in txs))
    assert len({one.snapshot for one in results}) == 1, results
    assert len({one.transaction_id for one in results}) == 1
    assert sorted(one.replayed for one in results) == [False, True]
    assert lake.snapshot().id == before + 1
    assert both(lake) == ([1, 2], [1, 2])
