"""The random runs are worth something only if everything happens in them: operations, answers, faults, cleanups, rebases."""

from collections import Counter

import pytest

from tiltyard_proofs.simulator import run_seed
from tiltyard_proofs.simulator.pairs import KINDS_OF
from tiltyard_proofs.simulator.random_runs import FAULTS

SEEDS = range(700)


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_seed(seed)
        store = outcome.world.store
        found.update(f"{one.operation.name} {one.outcome}" for one in outcome.attempts)
        found.update(one.error for one in outcome.attempts)
        found.update(one.outcome for one in outcome.attempts)
        for step in outcome.trace:
            found.update(fault.value for fault in FAULTS if fault.value in step.result)
            found["merged deletions"] += step.method == "put" and step.path.startswith("_deletions/")
            found["sleep"] += step.method == "sleep"
            found["stale listing"] += "(stale listing)" in step.result
        found["versions cleaned up"] += bool(store.removed_by)
        found["late versions"] += any(one.version <= one.head for one in store.landings)
        found["clock jumps"] += bool(outcome.scenario.jumps)
    return found


@pytest.mark.parametrize("operation", KINDS_OF)
def test_every_operation_is_committed(operation: str, seen: Counter[str]) -> None:
    assert seen[f"{operation} committed"] >= 5


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_happens(fault: object, seen: Counter[str]) -> None:
    assert seen[str(getattr(fault, "value", fault))] >= 5


@pytest.mark.parametrize(
    "what",
    [
        "committed",
        "refused",
        "unknown",
        "pending",
        "retryable-conflict",
        "incompatible-conflict",
        "key-conflict",
        "history-unavailable",
        "merged deletions",
        "sleep",
        "stale listing",
        "versions cleaned up",
        "late versions",
        "clock jumps",
    ],
)
def test_everything_else_happens(what: str, seen: Counter[str]) -> None:
    assert seen[what] >= 3
