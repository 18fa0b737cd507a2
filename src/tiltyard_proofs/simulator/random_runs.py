"""Scenarios and schedules by seed: several writers, a compactor, a cleaner and a reader, and things that go wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tiltyard.storage.handlers import ConditionalPutHandler, RenameHandler
from tiltyard.testing.faults import Fault
from tiltyard_proofs.simulator.actors import MakeCommitter, real_committer
from tiltyard_proofs.simulator.index_intentions import ORDERED
from tiltyard_proofs.simulator.intentions import TELLING, Intention
from tiltyard_proofs.simulator.scenario import Outcome, Part, Scenario, run
from tiltyard_proofs.simulator.stepping import Actor, Choose
from tiltyard_proofs.simulator.template import TAGGED, Kind

KEYS: Final = (0, 1, 2, 3, 4, 5, 6, 7)
NEW_KEYS: Final = (9, 10, 11, 12)
"""Keys that merges insert. Of each, at most one writer ever appends a row: nothing forbids two appends of one key."""

FAULTS: Final = (
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.TIMEOUT_BEFORE,
    Fault.TIMEOUT_AFTER,
    Fault.OWN_PRECONDITION,
    Fault.UNAVAILABLE,
    Fault.KILLED_BEFORE,
    Fault.KILLED_AFTER,
)
LATEST_FAULT: Final = 24
"""The highest number of a call that a fault is planned for; later ones seldom happen."""
AROUND_THE_CREATE: Final = (5, 6, 7, 8)
"""Numbers of the calls that matter most in a commit nobody disturbs."""
CLEANUP_AGES: Final = (0.0, 0.0, 0.005, 0.02, 0.05)
LOOK_SECONDS: Final = (0.02, 0.05, 0.1)
JUMPS: Final = (-3600.0, -1.0, 1.0, 3600.0)

_WEIGHTS: Final = {
    "append": 6,
    "delete": 6,
    "update": 6,
    "update-columns": 5,
    "merge": 6,
    "overwrite": 1,
    "replace": 4,
    "add-column": 2,
    "drop-column": 1,
    "index": 3,
    "drop-index": 1,
    "set-config": 2,
    "restore": 1,
    "reserve": 1,
    "add-base": 1,
    "advance": 1,
    "flush": 2,
}
_KINDS: Final = tuple(_WEIGHTS)
_CUMULATIVE: Final = tuple(sum(list(_WEIGHTS.values())[: place + 1]) for place in range(len(_WEIGHTS)))


def scenario_of(seed: int) -> Scenario:
    """The scenario that belongs to a seed."""
    random = Random(f"scenario {seed}")
    kind = Kind(*(random.random() < chance for chance in (0.5, 0.5, 0.4, 0.3)))
    writers = random.choice((3, 3, 4))
    parts = [Part(f"w{number}", "writer", tuple(_intentions(random, number, kind))) for number in range(writers)]
    parts.append(Part("compactor", "writer", (_compaction(random),)))
    parts.append(Part("cleaner", "cleaner", older_than=random.choice(CLEANUP_AGES)))
    parts.append(Part("reader", "reader"))
    together = tuple(_with_faults(random, parts))
    scenario = Scenario(
        kind,
        together,
        RenameHandler.name if random.random() < 0.25 else ConditionalPutHandler.name,
        ordered=random.random() < 0.7,
        jumps={random.randrange(100): random.choice(JUMPS)} if random.random() < 0.15 else {},
        seed=seed,
    )
    return _queued(_with_looks(scenario, Random(f"looks {seed}")), writers, Random(f"queue {seed}"))


def _queued(scenario: Scenario, writers: int, random: Random) -> Scenario:
    """In a third of the runs two or more writers are one process; in a third of these, they do not wait for each other for long.

    In a quarter of the others, where nobody relies on looks, they are processes of one machine, which offer rows that are in no file yet.
    """
    offered = random.random() >= 1 / 3
    if offered and (scenario.look_seconds or Random(f"rows {scenario.seed}").random() >= 1 / 4):
        return scenario
    together = random.sample(range(writers), random.choice((2, 3, writers)))
    deleting = Random(f"deletes {scenario.seed}")
    deletes = deleting.random() < 0.5
    parts = list(scenario.parts)
    for number in sorted(together):
        parts[number] = _appending(parts[number], number, random)
        if deletes:
            parts[number] = _deleting(parts[number], deleting)
    impatient = frozenset(together) if random.random() < 1 / 3 else frozenset()
    return replace(scenario, parts=tuple(parts), queued=frozenset(together), impatient=impatient, offered=offered)


def _appending(part: Part, number: int, random: Random) -> Part:
    """Half of what a writer in a queue wants is to add rows, which others can commit for him."""
    wanted = tuple(
        Intention("append", (300 + 10 * number + place,)) if random.random() < 0.5 else intention
        for place, intention in enumerate(part.intentions)
    )
    return replace(part, intentions=wanted)


def _deleting(part: Part, random: Random) -> Part:
    """In half of these runs, two thirds of it is to delete rows, which those can commit for him who delete rows, too."""
    wanted = tuple(
        Intention("delete", tuple(random.sample(KEYS, random.choice((1, 1, 2, 3))))) if random.random() < 2 / 3 else intention
        for intention in part.intentions
    )
    return replace(part, intentions=wanted)


def _with_looks(scenario: Scenario, random: Random) -> Scenario:
    """A third of the runs rely on looks. On the stores where that is done, no listing lags behind."""
    if random.random() >= 1 / 3:
        return scenario
    parts = tuple(
        replace(part, faults={place: fault for place, fault in part.faults.items() if fault is not Fault.STALE_LISTING})
        for part in scenario.parts
    )
    return replace(scenario, parts=parts, ordered=True, look_seconds=random.choice(LOOK_SECONDS))


def _compaction(random: Random) -> Intention:
    return Intention("compact", tuple(random.sample(KEYS, random.choice((1, 2, 3)))), name=random.choice((ORDERED, "")))


def _intentions(random: Random, writer: int, kind: Kind) -> Iterator[Intention]:
    appended = False
    for place in range(random.choice((1, 1, 2))):
        what = random.choices(_KINDS, cum_weights=_CUMULATIVE)[0]
        if what in ("advance", "flush") and not kind.logged:
            what = "append"
        keys = tuple(random.sample(KEYS, random.choice((1, 1, 2, 3))))
        column = random.choice(("a", "b"))
        fresh = 100 + 10 * writer + place
        if what == "append":
            own = () if appended or random.random() < 0.5 else (NEW_KEYS[writer],)
            appended = True
            yield Intention(what, (fresh, *own), name=random.choice((TELLING, "")))
        elif what == "merge":
            yield Intention(what, (*keys, random.choice(NEW_KEYS)), column)
        elif what in ("overwrite", "flush"):
            yield Intention(what, (fresh + 100,), number=random.choice((2, 3)))
        elif what in ("index", "drop-index"):
            yield Intention(what, keys if random.random() < 0.3 else (), column, f"{column}_idx", random.randrange(2))
        elif what == "restore":
            yield Intention(what, number=TAGGED)
        elif what in ("set-config", "add-base"):
            yield Intention(what, name=random.choice(("red", "blue")))
        elif what in ("reserve", "advance"):
            yield Intention(what, number=random.choice((2, 3)))
        else:
            yield Intention(what, keys, column)


def _with_faults(random: Random, parts: Iterable[Part]) -> Iterator[Part]:
    trouble = random.choice((0.0, 0.2, 0.6))
    stale = random.random() < 0.25
    for part in parts:
        faults: dict[int, Fault] = {}
        if part.role == "writer" and random.random() < trouble:
            for _ in range(random.choice((1, 1, 2))):
                place = random.choice(AROUND_THE_CREATE) if random.random() < 0.4 else random.randrange(LATEST_FAULT)
                faults[place] = random.choice(FAULTS)
        if part.role == "writer" and stale and not faults:
            # At most one a run: that listings lag behind at every look is more than anybody promises to survive.
            faults[random.randrange(12)] = Fault.STALE_LISTING
            stale = False
        yield Part(part.name, part.role, part.intentions, part.older_than, faults)


# ---- who goes next ---------------------------------------------------------------------------------------------------------


def chooser_of(seed: int) -> Choose:
    """The order that belongs to a seed: at random with more or less patience, or by priorities that change now and then."""
    random = Random(f"schedule {seed}")
    style = random.random()
    if style < 0.35:
        return _by_priority(random)
    return _at_random(random, random.choice((0.0, 0.5, 0.8, 0.95)))


def _at_random(random: Random, patience: float) -> Choose:
    last: Actor | None = None

    def choose(waiting: Sequence[Actor]) -> Actor:
        nonlocal last
        if last is None or last not in waiting or random.random() >= patience:
            last = waiting[int(random.random() * len(waiting))]
        return last

    return choose


def _by_priority(random: Random) -> Choose:
    """Few changes of who is preferred find most races: what matters is seldom more than two or three of them."""
    ranks: dict[int, float] = {}
    changes = {int(random.random() * 120) for _ in range(random.choice((1, 2, 3, 5)))}
    step = 0

    def choose(waiting: Sequence[Actor]) -> Actor:
        nonlocal step
        for actor in waiting:
            if actor.number not in ranks:
                ranks[actor.number] = random.random()
        best = max(waiting, key=lambda actor: ranks[actor.number])
        if step in changes and len(waiting) > 1:
            ranks[best.number] = random.random() - 1.0 - step
            best = max(waiting, key=lambda actor: ranks[actor.number])
        step += 1
        return best

    return choose


def scripted(schedule: Sequence[int]) -> Choose:
    """The order somebody wrote down. Who is not there is passed over; after the end, one actor after the other."""
    place = 0
    last: Actor | None = None

    def choose(waiting: Sequence[Actor]) -> Actor:
        nonlocal place, last
        while place < len(schedule):
            wanted = schedule[place]
            place += 1
            for actor in waiting:
                if actor.number == wanted:
                    last = actor
                    return actor
        if last is None or last not in waiting:
            last = waiting[0]
        return last

    return choose


def run_seed(seed: int, make_committer: MakeCommitter = real_committer) -> Outcome:
    """The run that belongs to a seed."""
    return run(scenario_of(seed), chooser_of(seed), make_committer)
