"""A run: which table, who takes part, what goes wrong, who goes when; and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tiltyard.interfaces import CommitHandler
from tiltyard.storage.handlers import ConditionalPutHandler, RenameHandler
from tiltyard.storage.thread_queue import ThreadQueue
from tiltyard.testing.clocks import SeededRandomness
from tiltyard.testing.faults import Fault
from tiltyard_proofs.simulator.actors import RETRIES, MakeCommitter, Means, Reading, clean, read_twice, real_committer, write, write_pinned
from tiltyard_proofs.simulator.checks import check_run
from tiltyard_proofs.simulator.intentions import Intention
from tiltyard_proofs.simulator.model import Violation
from tiltyard_proofs.simulator.queueing import ActorQueue, MachineQueue, ProcessQueue
from tiltyard_proofs.simulator.stepping import Actor, Choose, Step, SteppedStore, Time, Turns, runtime_of
from tiltyard_proofs.simulator.template import Kind, Template, template
from tiltyard_proofs.simulator.world import Attempt, World

Role = Literal["writer", "pinned", "cleaner", "reader", "absent"]


@dataclass(frozen=True, slots=True)
class Part:
    """One actor of a scenario.

    Attributes:
        role: a writer reads the newest version by himself; a pinned one is given the first version, and tries once. Who is absent
            does nothing, but keeps his number.
        intentions: what a writer wants, one after the other.
        older_than: which versions a cleaner removes, in seconds.
        faults: what goes wrong, by the number of his store call.
    """

    name: str
    role: Role
    intentions: tuple[Intention, ...] = ()
    older_than: float = 0.0
    faults: Mapping[int, Fault] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run but the order of steps."""

    kind: Kind
    parts: tuple[Part, ...]
    handler: str = ConditionalPutHandler.name
    ordered: bool = True
    shared_time: bool = True
    jumps: Mapping[int, float] = field(default_factory=dict)
    """Steps at which somebody sets the clock, and by how many seconds."""
    seed: int = 0
    retries: int = RETRIES
    executions: int = 3
    look_seconds: float = 0.0
    """For so long writers rely on a look; needs ``shared_time``, and a cleaner that lets longer than this go by."""
    queued: frozenset[int] = frozenset()
    """Numbers of the parts that are one process: its writers meet in a queue."""
    offered: bool = False
    """Whether they are processes of one machine instead, which leave it to their leader to write new rows; nobody relies on looks then."""
    impatient: frozenset[int] = frozenset()
    """Those among them who may stop waiting at any time, as for a leader that hangs."""


@dataclass(slots=True)
class Outcome:
    """What a run left behind."""

    scenario: Scenario
    schedule: list[int]
    trace: list[Step]
    attempts: list[Attempt]
    world: World
    cut_short: bool = False
    violation: Violation | None = None

    def digest(self) -> str:
        """The same for the same trace and the same bytes in the store."""
        found = hashlib.sha256(repr(self.trace).encode())
        found.update(self.state_digest().encode())
        return found.hexdigest()

    def state_digest(self) -> str:
        """The same for the same bytes in the store and the same answers to the writers."""
        found = hashlib.sha256()
        for path, (data, _) in sorted(self.world.store.objects().items()):
            found.update(f"{path} {len(data)} ".encode() + data)
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.uuid):
            found.update(f"{attempt.uuid} {attempt.outcome} {attempt.version} {attempt.error}".encode())
        return found.hexdigest()


def run(scenario: Scenario, choose: Choose, make_committer: MakeCommitter = real_committer) -> Outcome:
    """Runs a scenario under the choices given, and checks what came of it."""
    base = template(scenario.kind)
    world = base.world()
    turns = Turns(choose)
    world.store.turns = turns
    readings: list[Reading] = []
    time = Time()
    actors: list[Actor] = []
    cleaner = None
    queue = MachineQueue() if scenario.offered else ThreadQueue()
    for number, part in enumerate(scenario.parts):
        actor = Actor(number, part.name, lambda: None, time if scenario.shared_time else Time(), part.faults)
        means = _means(base, world, turns, actor, scenario, make_committer, queue)
        actor.body = _body(part, means, readings)
        actors.append(actor)
        cleaner = number if part.role == "cleaner" else cleaner
    if scenario.shared_time:
        world.store._clock = time
    jumps = scenario.jumps
    if jumps:
        turns._choose = _jumping(choose, turns, time, jumps)
    turns.run(actors)
    outcome = Outcome(scenario, turns.schedule, turns.trace, list(world.attempts.values()), world, turns.cut_short)
    if turns.endless:
        outcome.violation = Violation("P10: the run does not come to an end")
    elif not turns.cut_short:
        calm = not any(part.faults for part in scenario.parts) and not jumps and cleaner is None
        try:
            check_run(world, actors, readings, cleaner=cleaner, calm=calm)
        except Violation as error:
            outcome.violation = error
    return outcome


def _jumping(choose: Choose, turns: Turns, time: Time, jumps: Mapping[int, float]) -> Choose:
    def jumping(waiting: Sequence[Actor]) -> Actor | None:
        time.jumped += jumps.get(len(turns.schedule), 0.0)
        return choose(waiting)

    return jumping


def _means(
    base: Template, world: World, turns: Turns, actor: Actor, scenario: Scenario, make_committer: MakeCommitter, queue: ThreadQueue
) -> Means:
    store = SteppedStore(world.store, turns, actor, world.store.stale_names)
    store.ordered = scenario.ordered
    runtime = runtime_of(turns, actor, f"{scenario.seed} {actor.number}")
    handler: CommitHandler = ConditionalPutHandler()
    if scenario.handler == RenameHandler.name:
        handler = RenameHandler(SeededRandomness(f"{scenario.seed} {actor.number} rename"))
    means = Means(base.head, world, actor, store, runtime, handler, make_committer, scenario.retries, scenario.executions)
    means.look_seconds = scenario.look_seconds
    if actor.number in scenario.queued:
        means.retries = None  # who counts his retries commits alone
        means.queue = ProcessQueue(queue, turns, actor) if isinstance(queue, MachineQueue) else ActorQueue(queue, turns, actor)
        means.offers_rows = scenario.offered
        actor.impatient = actor.number in scenario.impatient
    return means


def _body(part: Part, means: Means, readings: list[Reading]) -> Callable[[], None]:
    if part.role == "absent":
        return lambda: None
    if part.role == "cleaner":
        return lambda: clean(means, part.older_than)
    if part.role == "reader":
        return lambda: read_twice(means, readings)
    if part.role == "pinned":
        return lambda: write_pinned(means, part.intentions[0])
    return lambda: write(means, part.intentions)
