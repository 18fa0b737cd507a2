"""Rows that a waiting writer offers and its leader writes: random runs, every interleaving of few writers, leaders that die at each call.

What must hold is what ``check_run`` checks after every run: each acknowledged row is there once, no version names a file that is not there,
and where nothing failed no file is left behind.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice, product

import pytest

from tests.support.proving import pick
from tiltyard.testing.faults import Fault
from tiltyard.transaction.group import members_of
from tiltyard.transaction.transaction import Transaction
from tiltyard_proofs.simulator import Intention, Kind, Outcome, Part, Scenario, describe, explore, run, run_seed, shrink
from tiltyard_proofs.simulator.random_runs import chooser_of, scenario_of

RUNS = pick(400, 5_000)
SCHEDULES = pick(300, 20_000)
"""Random orders of steps, where all interleavings would be too many."""
LAST_CALL = 15
"""A leader that commits for one other makes fewer calls."""
KILLS = (Fault.KILLED_BEFORE, Fault.KILLED_AFTER)
FAILURES = (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.TIMEOUT_AFTER, Fault.OWN_PRECONDITION, Fault.UNAVAILABLE)

LEAST = {
    "rows of several in one file": 20,
    "a file written anew, or for nothing": 10,
    "died with a file that no version names": 3,
    "died when the version was there": 3,
    "in a leader's version, having gone on alone": 1,
}
"""How often each must happen in the random runs, at the least."""


def seeds() -> Iterator[int]:
    """Those whose runs offer rows, on tables where an append need not look for keys."""
    return (seed for seed in count() if (found := scenario_of(seed)).offered and not found.kind.keyed)


def happened(outcome: Outcome) -> Iterator[str]:
    world, store = outcome.world, outcome.world.store
    died = {attempt.actor for attempt in outcome.attempts if attempt.outcome == "pending"}
    alone = {step.actor for step in outcome.trace if step.result == "time is up"}
    named: set[str] = set()
    for landing in store.landings:
        file = world.manifest(landing.path, landing.data)
        named.update(f"data/{one.path}" for fragment in file.manifest.fragments for one in fragment.files)
        assert file.transaction is not None
        transaction = Transaction.from_bytes(file.transaction)
        members = [member for member in members_of(transaction) if member.operation == "Append" and not member.fragments]
        if members:
            yield "rows of several in one file"
        if world.attempts[transaction.uuid].outcome == "pending":
            yield "died when the version was there"
            yield from ("in a version whose leader died" for one in members if world.attempts[one.transaction_id].outcome == "committed")
        yield from ("in a leader's version, having gone on alone" for one in members if world.attempts[one.transaction_id].actor in alone)
    for step in outcome.trace:
        if step.method == "put" and step.path.startswith("data/") and step.path not in named:
            yield "a file written anew, or for nothing" if step.actor not in died else "died with a file that no version names"


def test_every_promise_holds_after_random_runs_and_everything_happens() -> None:
    found: Counter[str] = Counter()
    for seed in islice(seeds(), RUNS):
        outcome = run_seed(seed)
        if outcome.violation is not None:
            pytest.fail(f"seed {seed}\n{describe(shrink(outcome))}\nAgain: python -m tools.prove --replay {seed}", pytrace=False)
        found.update(happened(outcome))
    assert {what: found[what] for what, least in LEAST.items() if found[what] < least} == {}


def scenario(writers: int, *faults: Mapping[int, Fault], foreign: bool = False, impatient: tuple[int, ...] = ()) -> Scenario:
    """Writers of a queue who append a row each and meet faults, and one who knows nothing of it."""
    met = (*faults, {}, {}, {})
    parts = [Part("ABC"[one], "pinned", (Intention("append", (20 + one,)),), faults=met[one]) for one in range(writers)]
    if foreign:
        parts.append(Part("foreign", "pinned", (Intention("append", (40,)),)))
    plain = Kind(stable=False, keyed=False, indexed=False, logged=False)
    queued, hasty = frozenset(range(writers)), frozenset(impatient)
    return Scenario(plain, tuple(parts), shared_time=False, queued=queued, impatient=hasty, offered=True)


def held(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        if outcome.violation is not None:
            pytest.fail(describe(outcome), pytrace=False)
        yield outcome


def at_random(one: Scenario, runs: int) -> Iterator[Outcome]:
    return (run(one, chooser_of(seed)) for seed in range(runs))


def committed(outcome: Outcome) -> list[bool]:
    return [attempt.outcome == "committed" for attempt in outcome.attempts]


FEW: dict[str, Callable[[], Iterable[Outcome]]] = {
    "two": lambda: explore(scenario(2)),
    "one does not wait for long": lambda: explore(scenario(2, impatient=(1,))),
    "neither does": lambda: islice(explore(scenario(2, impatient=(0, 1))), pick(600, 100_000)),
    "a foreign writer": lambda: explore(scenario(2, foreign=True)),
    "a foreign writer, and nobody waits for long": lambda: at_random(scenario(2, foreign=True, impatient=(0, 1)), SCHEDULES),
    "three": lambda: at_random(scenario(3, impatient=(2,)), SCHEDULES),
}


@pytest.mark.parametrize("who", FEW)
def test_few_writers_in_every_order(who: str) -> None:
    """Nobody fails; somewhere the rows of several are in one file."""
    found: Counter[str] = Counter()
    for outcome in held(FEW[who]()):
        assert all(committed(outcome)), describe(outcome)
        found.update(happened(outcome))
    assert found["rows of several in one file"]


@pytest.mark.parametrize("fault", KILLS, ids=str)
def test_a_leader_dies_at_each_of_its_calls(fault: Fault) -> None:
    """In every interleaving. The other goes on, whether it died before the file, after it, or after the version."""
    found: Counter[str] = Counter()
    for call in range(LAST_CALL):
        for outcome in held(explore(scenario(2, {call: fault}))):
            assert committed(outcome)[1], describe(outcome)
            found.update(happened(outcome))
        for outcome in held(at_random(scenario(3, {call: fault}, foreign=True, impatient=(2,)), SCHEDULES // LAST_CALL)):
            assert all(committed(outcome)[1:]), describe(outcome)
    assert found["died with a file that no version names"]
    assert found["in a version whose leader died"]


@pytest.mark.parametrize("fault", FAILURES, ids=str)
def test_a_call_of_the_leader_fails(fault: Fault) -> None:
    """Its file, its transaction or its version may be there all the same; who does not wait any more may be in that one."""
    for call in range(LAST_CALL):
        for outcome in held(at_random(scenario(2, {call: fault}, impatient=(1,)), SCHEDULES // 5)):
            assert committed(outcome)[1], describe(outcome)


def test_the_store_fails_whoever_comes_after_a_leader_that_died() -> None:
    """Its version may have been committed: it must not take that for a failure."""
    unknown = 0
    for last, call in product(range(4, 8), range(3)):  # around its create; before the other one knows
        died, gone = {last: Fault.KILLED_AFTER}, dict.fromkeys(range(call, 200), Fault.ERROR_BEFORE)
        for outcome in held(at_random(scenario(2, died, gone), pick(60, 1_000))):
            unknown += outcome.attempts[1].outcome == "unknown"
    assert unknown
