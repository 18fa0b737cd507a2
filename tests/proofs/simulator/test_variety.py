"""Random runs in which every promise holds, and in which everything happens: operations, answers, faults, cleanups, rebases.

The first runs of ``test_random.py``, looked at more closely: promises that hold where nothing happens are worth nothing.
"""

from collections import Counter
from functools import cache

from tests.proofs.simulator.test_random import VARIED, checked_run
from tiltyard_proofs.simulator.pairs import KINDS_OF
from tiltyard_proofs.simulator.random_runs import FAULTS

LEAST = {
    **{f"{operation} committed": 5 for operation in KINDS_OF},
    **{fault.value: 5 for fault in FAULTS},
    **dict.fromkeys(("committed", "refused", "unknown", "pending"), 3),
    **dict.fromkeys(("retryable-conflict", "incompatible-conflict", "key-conflict", "history-unavailable"), 3),
    **dict.fromkeys(("merged deletions", "sleep", "stale listing", "versions cleaned up", "late versions", "clock jumps"), 3),
}
"""How often each must happen, at the least."""


@cache
def seen() -> Counter[str]:
    """What happens in the runs, counted; a run that breaks a promise ends it."""
    found: Counter[str] = Counter()
    for seed in range(VARIED):
        outcome = checked_run(seed)
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


def test_every_promise_holds_and_everything_happens() -> None:
    """One test, so that no second process of a parallel run makes these runs again."""
    rare = {what: seen()[what] for what, least in LEAST.items() if seen()[what] < least}
    assert rare == {}
