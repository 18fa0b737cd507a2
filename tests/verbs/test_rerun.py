"""The second stage of retry: after a conflict that allows it, a verb is worked out again on the newest version, within bounds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import (
    InterruptedStore,
    copy_of,
    files_below,
    handle,
    ids_of,
    is_version,
    last_id,
    make_template,
    memory_table,
    noted_runtime,
    rows,
)
from tests.support.tables import open_stock
from tiltyard.errors import (
    ContentionError,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    IncompatibleConflict,
    InvalidInput,
    KeyConflict,
    NotFound,
    OutcomeUnknown,
    RetryableConflict,
    StorageError,
    TiltyardError,
    Winner,
)
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.interfaces import ObjectStore
from tiltyard.metrics import CommitEvent
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore, ManualClock
from tiltyard.testing.stores import Match
from tiltyard.transaction.backoff import DOUBLINGS, RetryPolicy
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.reexecution import READ_ONCE, SHARE, Execution, ReexecutionPolicy, run_verb

OTHER = (20, 21)
DONE = CommitResult(version=2, operation="Delete", transaction_id="t", read_version=1, attempts=1)


class Reruns:
    """Keeps what is told of runs to come, and how commits ended."""

    def __init__(self) -> None:
        self.events: list[CommitEvent] = []
        self.ended: list[str] = []

    def rerun(self, event: CommitEvent) -> None:
        self.events.append(event)

    def failed(self, event: CommitEvent) -> None:
        self.ended.append(event.outcome)

    def __getattr__(self, occasion: str) -> Any:
        return lambda event: None


@pytest.fixture
def reruns() -> Iterator[Reruns]:
    found = Reruns()
    stop = ty.metrics.observe(found)
    yield found
    stop()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("rerun") / "table")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return copy_of(template, tmp_path / "table")


def _replace(root: Path) -> None:
    ty.Table.open(root, durability="os").overwrite(rows(*OTHER), message="mine first")


def _contested(root: Path, times: int, action: Callable[[Path], Any] = _replace, **options: Any) -> ty.Table:
    """A handle each of whose first ``times`` creates comes right after somebody else did something."""
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, lambda: action(root), times), **options)


def _clock(table: ty.Table) -> ManualClock:
    clock = table._access.runtime.clock
    assert isinstance(clock, ManualClock)
    return clock


def _sound(root: Path) -> None:
    report = ty.Table.open(root).check()
    assert report.problems == ()
    assert report.orphans == ()
    open_stock(str(root)).validate()


# ---- overwrite over overwrite -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 10])
def test_an_overwrite_is_run_again_until_it_is_the_last(root: Path, times: int, reruns: Reruns) -> None:
    table = _contested(root, times)
    result = table.overwrite(rows(10), message="again")
    assert (result.version, result.read_version, table.version) == (3 + times, 2 + times, 3 + times)
    assert ids_of(ty.Table.open(root)) == ids_of(table) == [10]
    assert [event.executions for event in reruns.events] == list(range(1, times + 1))
    assert {event.operation for event in reruns.events} == {"Overwrite"}
    assert reruns.ended == ["retryable-conflict"] * times
    assert [entry.message for entry in ty.Table.open(root).history(limit=2)] == ["again", "mine first"]
    _sound(root)


def test_a_stale_handle_needs_no_race_to_meet_it(root: Path) -> None:
    stale = handle(root)
    _replace(root)
    result = stale.overwrite(rows(10))
    assert (result.version, result.read_version, result.attempts) == (4, 3, 1)
    assert len(_clock(stale).slept) == 1
    _sound(root)


def test_its_files_are_written_once_where_nothing_asks_for_others(root: Path) -> None:
    stale = handle(root)
    _replace(root)
    before = files_below(root, "data")
    stale.overwrite(rows(10))
    (new,) = files_below(root, "data") - before
    assert [file.path for fragment in stale.layout.fragments for file in fragment.files] == [new]


def test_no_retries_give_the_conflict_at_once(root: Path, reruns: Reruns) -> None:
    stale = handle(root)
    _replace(root)
    with pytest.raises(RetryableConflict) as caught:
        stale.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=0))
    error = caught.value
    assert (error.executions, error.operation, error.read_version, error.retryable) == (1, "Overwrite", 2, True)
    assert [(winner.version, winner.message) for winner in error.winners] == [(3, "mine first")]
    assert (reruns.events, _clock(stale).slept) == ([], [])
    assert ids_of(ty.Table.open(root)) == [*OTHER]
    assert stale.version == 2
    _sound(root)


@pytest.mark.parametrize("retries", [1, 3])
def test_it_gives_up_with_the_last_conflict(root: Path, retries: int, reruns: Reruns) -> None:
    table = _contested(root, 100)
    with pytest.raises(RetryableConflict) as caught:
        table.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=retries))
    error = caught.value
    assert (error.executions, error.to_dict()["executions"]) == (retries + 1, retries + 1)
    assert [winner.version for winner in error.winners] == [3 + retries]
    assert error.read_version == 2 + retries
    assert len(reruns.events) == retries
    assert ids_of(ty.Table.open(root)) == [*OTHER]
    _sound(root)


def test_by_default_it_is_run_again_ten_times(root: Path) -> None:
    with pytest.raises(RetryableConflict) as caught:
        _contested(root, 100).overwrite(rows(10))
    assert caught.value.executions == 11


# ---- append over new columns ------------------------------------------------------------------------------------------------


def _forbid_nulls(root: Path) -> None:
    open_stock(str(root)).alter_columns({"path": "s", "nullable": False})


@pytest.mark.parametrize("make", [lambda: rows(10), lambda: rows(10).to_pylist(), lambda: iter(rows(10).to_pylist())])
def test_rows_in_memory_are_written_anew_for_other_columns(root: Path, make: Callable[[], Any]) -> None:
    stale = handle(root)
    _forbid_nulls(root)
    result = stale.append(make())
    assert (result.version, result.read_version) == (4, 3)
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 10]
    assert not stale.schema.field("s").nullable
    _sound(root)  # the files of the first run among them: they are gone


def test_rows_that_do_not_fit_any_more(root: Path) -> None:
    stale = handle(root)
    _forbid_nulls(root)
    with pytest.raises(InvalidInput, match="null in row 0") as caught:
        stale.append(pa.table({"id": [10], "s": pa.array([None], pa.string())}))
    assert ["run 2" in note and "Append read version 2" in note for note in caught.value.__notes__] == [True]
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3]
    _sound(root)


def _stream(table: pa.Table) -> pa.RecordBatchReader:
    """A stream that fails when it is read twice, as generators do."""
    return pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches()))


def test_a_stream_is_not_read_again_where_its_files_can_stay(root: Path) -> None:
    stale = handle(root)
    _replace(root)
    stale.overwrite(_stream(rows(10, 11)))
    assert ids_of(ty.Table.open(root)) == [10, 11]
    _sound(root)


def test_a_stream_that_would_have_to_be_read_again_ends_in_the_conflict(root: Path, reruns: Reruns) -> None:
    stale = handle(root)
    _forbid_nulls(root)
    with pytest.raises(RetryableConflict) as caught:
        stale.append(_stream(rows(10)))
    error = caught.value
    assert (error.advice, error.executions, error.retryable) == (READ_ONCE, 1, True)
    assert str(error).startswith("Append read version 2")
    assert str(error).endswith(READ_ONCE)
    assert [winner.operation for winner in error.winners] == ["Project"]
    assert len(reruns.events) == 1
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3]
    _sound(root)


def test_an_overwrite_of_a_table_whose_key_changed_is_planned_anew(tmp_path: Path) -> None:
    root = tmp_path / "table"
    ty.Table.create(root, rows(1), durability="os")
    stale = handle(root)
    ty.Table.open(root, durability="os").overwrite(rows(2), primary_key=["id"])
    stale.overwrite(rows(3))
    assert ty.Table.open(root).primary_key == ("id",)
    assert ids_of(ty.Table.open(root)) == [3]
    _sound(root)


# ---- what is never run again ------------------------------------------------------------------------------------------------


def test_an_append_to_a_table_that_was_replaced(root: Path, reruns: Reruns) -> None:
    stale = handle(root)
    _replace(root)
    with pytest.raises(IncompatibleConflict) as caught:
        stale.append(rows(10))
    assert (reruns.events, caught.value.executions) == ([], 1)
    assert ids_of(ty.Table.open(root)) == [*OTHER]
    _sound(root)


def test_a_race_lost_too_often(root: Path, reruns: Reruns) -> None:
    table = _contested(root, 100, lambda root: ty.Table.open(root, durability="os").append(rows(*OTHER)))
    with pytest.raises(ContentionError) as caught:
        table.append(rows(10), commit=ty.CommitOptions(race_retries=2))
    assert (reruns.events, caught.value.attempts) == ([], 3)
    _sound(root)


def test_an_outcome_that_is_not_known(root: Path, reruns: Reruns) -> None:
    """In the second run, so that what the first one left behind is at stake as well."""
    stale = handle(root, FaultStore(LocalStore(root, durability="os"), Fault.UNAVAILABLE, match=is_version, times=100))
    _replace(root)
    before = files_below(root, "data")
    with pytest.raises(OutcomeUnknown) as caught:
        stale.overwrite(rows(10))
    assert len(reruns.events) == 1
    assert reruns.ended == ["retryable-conflict", "outcome-unknown"]
    error = caught.value
    assert (error.transaction_id, error.version) == (last_id(stale), 4)
    assert len(files_below(root, "data") - before) == 1, "nothing may be deleted while the outcome is not known"
    assert isinstance(stale.transactions.outcome(error.transaction_id), ty.outcomes.Unknown)
    assert "run 2" in error.__notes__[0]


def test_a_history_with_a_gap(root: Path, reruns: Reruns) -> None:
    stale = handle(root)
    _replace(root)
    _replace(root)
    next((root / "_versions").glob(f"{2**64 - 1 - 3:020}.manifest")).unlink()
    with pytest.raises(HistoryUnavailable):
        stale.overwrite(rows(10))
    assert reruns.events == []


# ---- the bounds -------------------------------------------------------------------------------------------------------------


def _scripted(
    *script: TiltyardError | None, policy: ReexecutionPolicy, store: ObjectStore | None = None, takes: float = 0.0, **options: Any
) -> tuple[list[Execution], ManualClock, Callable[[], CommitResult]]:
    """A verb that ends as the script says, and each time takes so many seconds."""
    store = store or MemoryStore()
    table = memory_table(store, runtime=noted_runtime(seed=7))
    clock, runs = _clock(table), []
    answers = iter(script)

    def execute(run: Execution) -> tuple[CommitResult, ManifestFile]:
        runs.append(run)
        clock.advance(takes)
        error = next(answers)
        if error is not None:
            raise error
        return DONE, table._file

    return runs, clock, lambda: run_verb(table._access, table._file, table._scheme, execute, policy, **options)[0]


def _conflicts(count: int) -> list[RetryableConflict]:
    return [RetryableConflict(f"number {number}", operation="Delete") for number in range(count)]


def test_it_waits_by_chance_and_longer_each_time() -> None:
    runs, clock, work = _scripted(*_conflicts(10), None, policy=ReexecutionPolicy(), takes=0.01)
    assert work() == replace(DONE, executions=11)
    assert len(runs) == 11
    for number, waited in enumerate(clock.slept):
        assert 0.0 <= waited <= 0.01 / SHARE * 2 ** (min(number, DOUBLINGS) + 1) <= 0.01, "no longer than a run"
    assert len(set(clock.slept)) == 10
    again = _scripted(*_conflicts(10), None, policy=ReexecutionPolicy(), takes=0.01)
    again[2]()
    assert again[1].slept == clock.slept, "the same seed gives the same waits"


def test_each_run_is_told_why() -> None:
    first, second = _conflicts(2)
    runs, _, work = _scripted(first, second, None, policy=ReexecutionPolicy())
    work()
    assert [run.after for run in runs] == [None, first, second]
    assert (first.executions, second.executions) == (1, 2)


def test_the_newest_version_is_read_for_each_run(root: Path) -> None:
    table = handle(root)
    seen = []

    def execute(run: Execution) -> tuple[CommitResult, ManifestFile]:
        seen.append(run.read.manifest.version)
        if len(seen) < 3:
            ty.Table.open(root, durability="os").append(rows(*OTHER))
            raise RetryableConflict("met")
        return DONE, run.read

    run_verb(table._access, table._file, table._scheme, execute, ReexecutionPolicy())
    assert seen == [2, 3, 4]


def test_the_deadline_is_over_all_runs() -> None:
    runs, clock, work = _scripted(*_conflicts(50), policy=ReexecutionPolicy(reexecutions=50, deadline=10.0), takes=1.0)
    with pytest.raises(RetryableConflict) as caught:
        work()
    assert 1 < len(runs) <= 10
    assert caught.value.executions == len(runs)
    assert clock.monotonic() < 10.0, "it does not wait only to give up"


def test_what_is_left_of_it_bounds_the_race() -> None:
    race = RetryPolicy(max_retries=5)
    runs, clock, work = _scripted(None, policy=ReexecutionPolicy(race, deadline=10.0), takes=4.0)
    work()
    assert runs[0].policy == RetryPolicy(5, 6.0, begun=0.0)
    clock.advance(60.0)
    assert runs[0].policy == RetryPolicy(5, 0.0, begun=0.0)
    runs, _, work = _scripted(None, policy=ReexecutionPolicy(RetryPolicy(5, 2.0), deadline=10.0))
    work()
    assert runs[0].policy == RetryPolicy(5, 2.0, begun=0.0)
    runs, _, work = _scripted(None, policy=ReexecutionPolicy(race))
    work()
    assert runs[0].policy == RetryPolicy(5, begun=0.0)


def test_a_race_does_not_outlast_it(root: Path) -> None:
    runtime = noted_runtime()
    clock = runtime.clock
    assert isinstance(clock, ManualClock)

    def slowly(root: Path) -> None:
        clock.advance(1.0)
        ty.Table.open(root, durability="os").append(rows(*OTHER))

    table = _contested(root, 100, slowly, runtime=runtime)
    with pytest.raises(ContentionError) as caught:
        table.append(rows(10), commit=ty.CommitOptions(race_retries=50, deadline=3.0))
    assert 1 < caught.value.attempts <= 3


@pytest.mark.parametrize(
    "error",
    [
        ExpectedVersionMismatch("no", table="t", expected=1, actual=2),
        RetryableConflict("no", retryable=False),
        IncompatibleConflict("no"),
        ContentionError("no"),
        HistoryUnavailable("no"),
        OutcomeUnknown("no", transaction_id="x", version=2),
        StorageError("no", transient=True),
        InvalidInput("no"),
    ],
    ids=lambda error: error.kind,
)
@pytest.mark.parametrize("run", [1, 2])
def test_everything_else_ends_it(error: TiltyardError, run: int) -> None:
    runs, _, work = _scripted(*_conflicts(run - 1), error, policy=ReexecutionPolicy())
    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    assert len(runs) == run


def test_the_verb_has_a_say() -> None:
    """A key that somebody else inserted: a merge then updates it, an append cannot."""
    error = KeyConflict("the key 5 is there", operation="Append", sample=[5])
    runs, _, work = _scripted(error, policy=ReexecutionPolicy(), again=lambda conflict: not isinstance(conflict, KeyConflict))
    with pytest.raises(KeyConflict):
        work()
    assert len(runs) == 1
    runs, _, work = _scripted(KeyConflict("the key 5 is there"), None, policy=ReexecutionPolicy())
    assert replace(work(), executions=1) == DONE


def test_it_does_not_go_on_in_another_table() -> None:
    """The head is below the version that won: the table was dropped and made again in the meantime."""
    error = RetryableConflict("met", winners=[Winner(5, "theirs", "Overwrite")])
    runs, _, work = _scripted(error, None, policy=ReexecutionPolicy())
    with pytest.raises(RetryableConflict) as caught:
        work()
    assert caught.value is error
    assert len(runs) == 1


def test_a_store_that_fails_in_between(root: Path) -> None:
    """The listing that looks for the newest version, after the one of the first run."""
    store = FaultStore(LocalStore(root, durability="os"), Fault.ERROR_BEFORE, at=2, match=_listing)
    stale = handle(root, store)
    _replace(root)
    with pytest.raises(StorageError):
        stale.overwrite(rows(10))
    assert store.fired
    assert ids_of(ty.Table.open(root)) == [*OTHER]
    _sound(root)


_listing: Match = lambda method, path: method == "names" and path == "_versions/"  # noqa: E731


def test_a_table_that_is_gone_in_between() -> None:
    store = MemoryStore()
    error = RetryableConflict("met")
    runs, clock, work = _scripted(error, None, policy=ReexecutionPolicy(), store=store)

    def sleep(seconds: float) -> None:
        for found in list(store.list("")):
            store.delete(found.path)

    clock.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(NotFound):
        work()
    assert len(runs) == 1


@pytest.mark.parametrize(
    "wrong", [{"race_retries": -1}, {"reexecutions": 1.5}, {"reexecutions": None}, {"deadline": -1}, {"deadline": "soon"}]
)
@pytest.mark.parametrize("verb", ["append", "overwrite"])
def test_arguments_are_checked_before_anything_is_done(root: Path, verb: str, wrong: dict[str, Any]) -> None:
    before = files_below(root, "data")
    with pytest.raises(InvalidInput) as caught:
        getattr(handle(root), verb)(rows(10), commit=ty.CommitOptions(**wrong))
    assert caught.value.argument in wrong
    assert files_below(root, "data") == before


def test_the_rows_are_let_go_as_soon_as_it_is_done(root: Path) -> None:
    """No conflict along the way may keep them: they can be most of the memory there is."""
    stale = handle(root)
    _replace(root)
    data = rows(10)
    watched = weakref.ref(data)
    gc.disable()
    try:
        stale.overwrite(data)
        del data
        assert watched() is None
    finally:
        gc.enable()
