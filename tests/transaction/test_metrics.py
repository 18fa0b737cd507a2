"""Watching commits: what is counted, logged and exported, that it costs no commit anything, and that it tells no secrets."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import tiltyard as ty
from tests.support.commits import InterruptedStore, append, fragment, handle, is_version, memory_table, plant, reopened, rows
from tiltyard import ops
from tiltyard.errors import (
    ContentionError,
    IncompatibleConflict,
    KeyConflict,
    OutcomeUnknown,
    RetryableConflict,
    UnsupportedFeature,
    Winner,
)
from tiltyard.metrics import CommitEvent, Latency, Meeting
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore
from tiltyard.transaction import observers
from tiltyard.transaction.metrics import BOUNDS, Metrics
from tiltyard.transaction.rules import Outcome
from tiltyard.transaction.transaction import Transaction

MINE = Transaction(6, "mine", ops.Append())
THEIRS = Winner(7, "theirs", "Delete", "lance 14.0.2", "SECRET message")


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, CommitEvent]] = []

    def __getattr__(self, occasion: str) -> Any:
        return lambda event: self.told.append((occasion, event))

    @property
    def occasions(self) -> list[str]:
        return [occasion for occasion, _ in self.told]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ty.metrics.reset()
    yield
    ty.metrics.reset()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    stop = ty.metrics.observe(found)
    yield found
    stop()


# ---- counting ---------------------------------------------------------------------------------------------------------------


def test_nothing_yet() -> None:
    found = ty.metrics.snapshot()
    assert (found.commits, found.attempts, found.lost_races, found.reruns, found.outcomes_unknown) == (0, 0, 0, 0, 0)
    assert (found.operations, found.meetings, found.conflicts, found.rebases) == ({}, {}, {}, {})


def test_each_occasion_is_counted_for_its_operation() -> None:
    observers.committed(MINE, attempts=3, version=9, seconds=0.004)
    observers.lost_race(MINE, attempts=1, version=7, theirs=THEIRS)
    observers.lost_race(MINE, attempts=2, version=8, theirs=THEIRS)
    observers.rebased(MINE, attempts=2, theirs=THEIRS, verdict=Outcome.REBASE)
    observers.rebased(MINE, attempts=2, theirs=THEIRS, verdict=Outcome.COMPATIBLE)
    observers.failed(MINE, attempts=5, seconds=1.0, error=ContentionError("lost"))
    observers.failed(MINE, attempts=1, seconds=1.0, error=OutcomeUnknown("open", transaction_id="mine", version=7))
    observers.failed(MINE, attempts=1, seconds=1.0, error=RetryableConflict("met", winners=[THEIRS]))
    observers.failed(MINE, attempts=1, seconds=1.0, error=KeyConflict("met", winners=[THEIRS]))
    observers.failed(MINE, attempts=1, seconds=1.0, error=IncompatibleConflict("met", winners=[THEIRS]))
    observers.rerun(RetryableConflict("met", operation="Append", read_version=6), executions=1, wait=0.1)
    observers.committed(Transaction(1, "other", ops.Delete()), attempts=1, version=10, seconds=70.0)
    found = ty.metrics.snapshot()
    assert (found.commits, found.attempts, found.lost_races, found.reruns, found.outcomes_unknown) == (2, 13, 2, 1, 1)
    counts = found.operations["Append"]
    assert (counts.commits, counts.attempts, counts.lost_races, counts.reruns, counts.outcomes_unknown) == (1, 12, 2, 1, 1)
    assert counts.failures == {
        "contention": 1,
        "outcome-unknown": 1,
        "retryable-conflict": 1,
        "key-conflict": 1,
        "incompatible-conflict": 1,
    }
    assert (counts.latency.count, counts.latency.sum, counts.latency.max) == (1, 0.004, 0.004)
    assert found.operations["Delete"].latency.buckets[-1] == 1
    assert found.conflicts == {("Append", "Delete", "retry"): 2, ("Append", "Delete", "incompatible"): 1}
    assert found.rebases == {Meeting("Append", "Delete", "rebase"): 1}
    assert found.meetings == {**found.conflicts, **found.rebases, Meeting("Append", "Delete", "compatible"): 1}


def test_a_snapshot_stays_as_it_was_and_travels() -> None:
    observers.committed(MINE, attempts=1, version=7, seconds=0.1)
    observers.rebased(MINE, attempts=1, theirs=THEIRS, verdict=Outcome.REBASE)
    before = ty.metrics.snapshot()
    observers.failed(MINE, attempts=1, seconds=1.0, error=RetryableConflict("met", winners=[THEIRS]))
    observers.committed(MINE, attempts=1, version=8, seconds=0.1)
    assert before.commits == 1
    assert before.operations["Append"].failures == {}
    assert before.conflicts == {}
    assert pickle.loads(pickle.dumps(before)) == before != ty.metrics.snapshot()
    ty.metrics.reset()
    assert ty.metrics.snapshot().to_dict()["operations"] == {}


def test_as_json() -> None:
    observers.committed(MINE, attempts=2, version=7, seconds=0.004)
    observers.rebased(MINE, attempts=1, theirs=THEIRS, verdict=Outcome.REBASE)
    observers.failed(MINE, attempts=1, seconds=1.0, error=ContentionError("lost"))
    facts = json.loads(json.dumps(ty.metrics.snapshot().to_dict()))
    assert {name: facts[name] for name in ("commits", "attempts", "lost_races", "reruns", "outcomes_unknown")} == {
        "commits": 1,
        "attempts": 3,
        "lost_races": 0,
        "reruns": 0,
        "outcomes_unknown": 0,
    }
    assert facts["meetings"] == [{"mine": "Append", "theirs": "Delete", "verdict": "rebase", "count": 1}]
    counts = facts["operations"]["Append"]
    assert counts["failures"] == {"contention": 1}
    assert counts["latency"]["bounds"] == list(BOUNDS)
    assert sum(counts["latency"]["buckets"]) == counts["latency"]["count"] == 1
    assert 0.002 < counts["latency"]["p50"] <= counts["latency"]["p99"] <= 0.004
    assert counts["latency"]["mean"] == 0.004


def test_threads_share_the_counts() -> None:
    metrics = Metrics()
    event = CommitEvent("Append", attempts=2, seconds=0.01, theirs="Delete", verdict="retry", outcome="contention")

    def work() -> None:
        for _ in range(500):
            metrics.committed(event)
            metrics.conflict(event)
            metrics.lost_race(event)
            metrics.failed(event)
            metrics.rerun(event)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = metrics.snapshot()
    assert (found.commits, found.attempts, found.lost_races, found.reruns) == (4000, 16000, 4000, 4000)
    assert found.operations["Append"].latency.buckets[BOUNDS.index(0.01)] == 4000
    assert found.operations["Append"].failures == {"contention": 4000}
    assert found.conflicts == {("Append", "Delete", "retry"): 4000}


def test_the_child_of_a_fork_does_not_wait_for_a_thread_it_has_not() -> None:
    metrics = Metrics()
    with metrics._lock:
        metrics.free_lock()
        assert metrics.snapshot().commits == 0


@given(st.lists(st.floats(0.0, 200.0), min_size=1, max_size=50))
def test_quantiles_lie_where_the_values_lie(seconds: list[float]) -> None:
    metrics = Metrics()
    for one in seconds:
        metrics.committed(CommitEvent("Append", attempts=1, seconds=one))
    latency = metrics.snapshot().operations["Append"].latency
    assert latency.count == len(seconds)
    assert latency.max == max(seconds)
    guesses = [latency.quantile(share / 20) for share in range(21)]
    assert all(a <= b for a, b in pairwise(guesses))
    assert guesses[-1] == pytest.approx(max(seconds))
    for share, guess in enumerate(guesses):
        exact = sorted(seconds)[max(-(-share * len(seconds) // 20) - 1, 0)]
        lower, upper = max([0.0, *(bound for bound in BOUNDS if bound < exact)]), min([max(seconds), *(b for b in BOUNDS if b >= exact)])
        assert lower <= guess <= max(upper, lower) + 1e-9


def test_of_nothing_every_quantile_is_nothing() -> None:
    assert (Latency().quantile(0.5), Latency().mean) == (0.0, 0.0)


# ---- who is told ------------------------------------------------------------------------------------------------------------


def test_an_observer_is_told_until_it_stops() -> None:
    first, second = Recorder(), Recorder()
    stop_first, stop_second = ty.metrics.observe(first), ty.metrics.observe(second)
    observers.committed(MINE, attempts=1, version=7, seconds=0.1)
    stop_first()
    stop_first()
    observers.lost_race(MINE, attempts=1, version=7, theirs=THEIRS)
    stop_second()
    observers.lost_race(MINE, attempts=1, version=7, theirs=THEIRS)
    assert first.occasions == ["committed"]
    assert second.occasions == ["committed", "lost_race"]
    assert second.told[0][1] == CommitEvent("Append", "mine", 6, 1, version=7, seconds=0.1, outcome="committed")


def test_a_conflict_is_told_before_the_failure_it_is(recorder: Recorder) -> None:
    observers.failed(MINE, attempts=1, seconds=0.5, error=RetryableConflict("met", winners=[THEIRS]))
    (first, met), (second, ended) = recorder.told
    assert (first, second) == ("conflict", "failed")
    assert (met.theirs, met.their_version, met.their_transaction_id, met.verdict) == ("Delete", 7, "theirs", "retry")
    assert (ended.outcome, ended.seconds, ended.theirs) == ("retryable-conflict", 0.5, "")


def test_operations_without_a_name_share_one(recorder: Recorder) -> None:
    for arm in range(200, 210):
        observers.rebased(MINE, attempts=1, theirs=Winner(7, "x", ops.UnknownOperation(arm).name), verdict=Outcome.COMPATIBLE)
    observers.lost_race(MINE, attempts=1, version=7, theirs=Winner(7, "x", ""))
    assert {event.theirs for _, event in recorder.told} == {"Unknown"}
    assert len(ty.metrics.snapshot().meetings) == 1


def test_an_observer_that_fails_harms_no_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture, recorder: Recorder) -> None:
    class Broken:
        def __getattr__(self, occasion: str) -> Any:
            raise RuntimeError("out of order")

    stop = ty.metrics.observe(Broken())
    after = Recorder()
    stop_after = ty.metrics.observe(after)
    try:
        assert ty.Table.create(tmp_path / "t", rows(1), durability="os").append(rows(2)).version == 2
    finally:
        stop()
        stop_after()
    assert after.occasions == recorder.occasions == ["committed", "committed"]
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [getattr(record, "tiltyard", None) for record in told] == [{"observer": "Broken"}] * 2


# ---- the log ----------------------------------------------------------------------------------------------------------------


def test_what_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tiltyard.commit")
    observers.committed(MINE, attempts=1, version=7, seconds=0.1)
    observers.rebased(MINE, attempts=1, theirs=THEIRS, verdict=Outcome.REBASE)
    observers.lost_race(MINE, attempts=1, version=7, theirs=THEIRS)
    observers.failed(MINE, attempts=1, seconds=0.1, error=IncompatibleConflict("SECRET", winners=[THEIRS], sample=["SECRET"]))
    observers.failed(MINE, attempts=1, seconds=0.1, error=OutcomeUnknown("x", transaction_id="mine", version=7, uri="SECRET"))
    observers.rerun(RetryableConflict("SECRET", operation="Append", read_version=6, sample=["SECRET"]), executions=1, wait=0.5)
    us = {"operation": "Append", "transaction_id": "mine", "read_version": 6, "attempts": 1}
    them = {"theirs": "Delete", "their_version": 7, "their_transaction_id": "theirs"}
    assert [(record.levelname, record.getMessage(), vars(record)["tiltyard"]) for record in caplog.records] == [
        ("DEBUG", "committed", {**us, "version": 7, "seconds": 0.1, "outcome": "committed"}),
        ("DEBUG", "rebased over another commit", {**us, **them, "verdict": "rebase"}),
        ("INFO", "lost a race", {**us, **them, "version": 7}),
        ("INFO", "conflict", {**us, **them, "seconds": 0.1, "verdict": "incompatible"}),
        ("INFO", "not committed", {**us, "seconds": 0.1, "outcome": "incompatible-conflict"}),
        ("WARNING", "outcome unknown", {**us, "version": 7, "seconds": 0.1, "outcome": "outcome-unknown"}),
        (
            "INFO",
            "re-executing",
            {"operation": "Append", "read_version": 6, "outcome": "retryable-conflict", "executions": 1, "wait": 0.5},
        ),
    ]
    assert "SECRET" not in str([vars(record) for record in caplog.records])
    json.dumps([vars(record)["tiltyard"] for record in caplog.records])


# ---- real commits -----------------------------------------------------------------------------------------------------------


def test_commits_of_a_table(tmp_path: Path, recorder: Recorder) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1), durability="os")
    result = table.append(rows(2))
    found = ty.metrics.snapshot()
    assert {name: counts.commits for name, counts in found.operations.items()} == {"Overwrite": 1, "Append": 1}
    assert (found.commits, found.attempts) == (2, 2)
    assert found.operations["Append"].latency.sum == result.seconds
    assert recorder.told[-1] == (
        "committed",
        CommitEvent("Append", result.transaction_id, 1, 1, version=2, seconds=result.seconds, outcome="committed"),
    )


def test_lost_races_and_what_was_gone_over(recorder: Recorder) -> None:
    store = MemoryStore()
    memory_table(store)
    contested = InterruptedStore(store, is_version, lambda: plant(store, ops.Append((fragment("theirs"),))), 2)
    result = reopened(contested).commit(append())
    found = ty.metrics.snapshot()
    assert (found.commits, found.attempts, found.lost_races) == (2, 4, 2)
    assert found.meetings == {("Append", "Append", "compatible"): 2}
    lost = [event for occasion, event in recorder.told if occasion == "lost_race"]
    assert [(event.version, event.theirs, event.their_transaction_id) for event in lost] == [
        (winner.version, "Append", winner.transaction_id) for winner in result.rebased_over
    ]


@pytest.mark.parametrize(("theirs", "error"), [(ops.Restore(1), IncompatibleConflict), (ops.Merge((), ()), RetryableConflict)])
def test_conflicts_of_a_table(theirs: ops.Operation, error: type[ty.ConflictError], recorder: Recorder) -> None:
    store = MemoryStore()
    memory_table(store)
    stale = reopened(store)
    winner = plant(store, theirs)
    with pytest.raises(error) as caught:
        stale.commit(append())
    verdict = "retry" if caught.value.retryable else "incompatible"
    assert ty.metrics.snapshot().conflicts == {("Append", theirs.name, verdict): 1}
    assert ty.metrics.snapshot().operations["Append"].failures == {caught.value.kind: 1}
    met = dict(recorder.told)["conflict"]
    assert (met.their_version, met.their_transaction_id, met.read_version) == (2, winner.uuid, 1)


def test_what_is_not_known_is_counted_as_such() -> None:
    store = MemoryStore()
    memory_table(store)
    silent = FaultStore(store, Fault.UNAVAILABLE, match=is_version, times=100)
    with pytest.raises(OutcomeUnknown) as caught:
        reopened(silent).commit(append())
    found = ty.metrics.snapshot()
    assert (found.outcomes_unknown, found.commits) == (1, 1)
    assert caught.value.operation == "Append"
    assert caught.value.read_version == 1


# ---- OpenTelemetry ----------------------------------------------------------------------------------------------------------


def _points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        points: Any = metric.data.data_points
        found[metric.name] = [(dict(point.attributes), getattr(point, "value", None) or point) for point in points]
    return found


def test_export_to_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    stop = ty.telemetry.export_to_opentelemetry(provider)
    try:
        observers.committed(MINE, attempts=3, version=9, seconds=0.004)
        observers.lost_race(MINE, attempts=1, version=7, theirs=THEIRS)
        observers.rebased(MINE, attempts=1, theirs=THEIRS, verdict=Outcome.REBASE)
        observers.failed(MINE, attempts=1, seconds=1.0, error=RetryableConflict("met", winners=[THEIRS], sample=["SECRET"]))
        observers.rerun(RetryableConflict("met", operation="Append"), executions=1, wait=0.1)
    finally:
        stop()
    observers.committed(MINE, attempts=1, version=10, seconds=0.1)
    points = _points(reader)
    provider.shutdown()
    committed, refused = ({"operation": "Append", "outcome": outcome} for outcome in ("committed", "retryable-conflict"))
    assert points["tiltyard.commits"] == [(committed, 1), (refused, 1)]
    assert points["tiltyard.commit.attempts"] == [({"operation": "Append"}, 4)]
    assert points["tiltyard.commit.reruns"] == [({"operation": "Append"}, 1)]
    assert points["tiltyard.commit.lost_races"] == [({"operation": "Append", "theirs": "Delete"}, 1)]
    pair = {"operation": "Append", "theirs": "Delete"}
    assert points["tiltyard.commit.meetings"] == [({**pair, "verdict": "rebase"}, 1), ({**pair, "verdict": "retry"}, 1)]
    (first, short), (second, long) = points["tiltyard.commit.duration"]
    assert (first, short.sum, short.explicit_bounds) == (committed, 0.004, BOUNDS)
    assert (second, long.sum) == (refused, 1.0)
    assert "SECRET" not in str(points)


def test_the_process_wide_provider_is_the_default() -> None:
    ty.telemetry.export_to_opentelemetry()()


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(UnsupportedFeature, match=r"tiltyard\[otel\]"):
        ty.telemetry.export_to_opentelemetry()


def test_a_whole_table_exported(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    stop = ty.telemetry.export_to_opentelemetry(provider)
    try:
        root = tmp_path / "t"
        ty.Table.create(root, rows(1), durability="os")
        stale = handle(root, LocalStore(root, durability="os"))
        ty.Table.open(root).overwrite(rows(2))
        stale.overwrite(pa.table({"id": [3], "s": ["x"]}))
    finally:
        stop()
    points = _points(reader)
    provider.shutdown()
    counts = {told["outcome"]: value for told, value in points["tiltyard.commits"]}
    assert counts == {"committed": 3, "retryable-conflict": 1}
    assert points["tiltyard.commit.reruns"] == [({"operation": "Overwrite"}, 1)]
    assert str(tmp_path) not in str(points)
