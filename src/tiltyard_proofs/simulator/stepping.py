"""Actors that take turns: each stops before every store call and every sleep, and somebody else decides who goes on.

Every actor has a thread of its own, but exactly one runs at a time: whoever stops picks the next one and hands over to it. So a run
depends on nothing but the choices, and the same choices give the same run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from tiltyard.errors import AlreadyExists, StorageError, TiltyardError
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.paths import is_temporary
from tiltyard.testing.clocks import SeededRandomness
from tiltyard.testing.faults import Fault, Killed
from tiltyard.testing.stores import LISTINGS, READS, WRITES, Request, WrapperStore

T = TypeVar("T")

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
STEP_SECONDS: Final = 0.001
"""What a store call takes."""
MOST_STEPS: Final = 5000
"""A run that takes longer than this goes round in circles."""

OUTAGES: Final = (3, 8)
"""For how many calls in a row a store is overloaded: one that the commit loop sits out, and one that it gives up on."""

SLEEP: Final = "sleep"
QUEUE: Final = "queue"
"""What an actor does in the queue of its process, which all in it see at once and nobody else does."""
SILENT: Final = frozenset({SLEEP, "sync"})
"""Calls whose effect nobody else can see."""


class Call(NamedTuple):
    """A store call that is about to be made."""

    method: str
    path: str


NO_CALL: Final = Call("", "")


def commute(one: Call, two: Call) -> bool:
    """Whether two calls of different actors give the same answers and leave the same store in either order."""
    if one.method in SILENT or two.method in SILENT:
        return True
    if QUEUE in (one.method, two.method):
        return one.method != two.method
    first, second = one.method in WRITES, two.method in WRITES
    if not first and not second:
        return True
    if first and second:
        return one.path != two.path
    write, read = (one, two) if first else (two, one)
    if read.method in LISTINGS:
        # Listings do not show temporary objects, so writing one changes no listing.
        return not write.path.startswith(read.path) or is_temporary(write.path.rpartition("/")[2])
    return write.path != read.path


class Step(NamedTuple):
    """One call that was made: by whom, what, and what came of it."""

    actor: int
    method: str
    path: str
    result: str


Choose = Callable[[Sequence["Actor"]], "Actor | None"]
"""Picks who goes on among those that wait; None ends the run there and then."""


class Time:
    """Time that passes by steps; shared by all actors, or one for each."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.jumped = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed + self.jumped)

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds


@dataclass(eq=False, slots=True)
class Actor:
    """Somebody who makes store calls: a name for the trace, what he does, and where he stands."""

    number: int
    name: str
    body: Callable[[], None]
    time: Time
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the number of his call, counted from 0."""
    pending: Call = NO_CALL
    waiting: bool = False
    blocked: Callable[[], bool] | None = None
    """Whether he waits for somebody to call him; he is chosen all the same when all others wait, too, or when he is impatient."""
    impatient: bool = False
    dead: bool = False
    calls: int = 0
    unavailable: int = 0
    crash: BaseException | None = None
    worker: _Worker | None = None


class _Worker:
    """A thread that is used again and again: starting one for each actor of each run would take most of the time."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.job: Callable[[], None] = lambda: None
        self._core = -1
        self._thread = threading.Thread(target=self._loop, name="simulated actor", daemon=True)
        self._thread.start()

    def move_to(self, core: int | None) -> None:
        if core is not None and core != self._core and self._thread.native_id is not None:
            os.sched_setaffinity(self._thread.native_id, {core})
            self._core = core

    def _loop(self) -> None:
        while True:
            self.turn.acquire()
            self.job()


_idle: list[_Worker] = []


def _core_here() -> int | None:
    """The core this thread runs on just now, where the system tells.

    Only one actor runs at a time, and handing over to a thread on another core takes five times as long as on one and the same.
    """
    try:
        return int(Path("/proc/thread-self/stat").read_bytes().rpartition(b")")[2].split()[36])
    except OSError:
        return None


class Turns:
    """One run of several actors.

    Attributes:
        trace: the calls made, in order.
        schedule: who was chosen at each step.
        current: who runs now.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.actors: list[Actor] = []
        self.trace: list[Step] = []
        self.schedule: list[int] = []
        self.current: Actor | None = None
        self.endless = False
        self.cut_short = False
        self._priming = True
        self._main = threading.Lock()
        self._main.acquire()

    def run(self, actors: Sequence[Actor]) -> None:
        """Runs all actors to their end, or until nobody is chosen."""
        self.actors = list(actors)
        workers = [_idle.pop() if _idle else _Worker() for _ in actors]
        core = _core_here()
        for worker in workers:
            worker.move_to(core)
        for actor, worker in zip(actors, workers, strict=True):
            actor.worker = worker
            worker.job = self._job(actor)
            self.current = actor
            worker.turn.release()
            self._main.acquire()  # until its first call: nothing before that is visible to others
        self._priming = False
        first = self._pick()
        if first is not None:
            _worker_of(first).turn.release()
            self._main.acquire()
        _idle.extend(workers)

    def _job(self, actor: Actor) -> Callable[[], None]:
        def job() -> None:
            try:
                actor.body()
            except Killed:
                actor.dead = True
            except BaseException as error:  # noqa: BLE001 - kept, and raised or shown by whoever judges the run
                actor.crash = error
            actor.waiting = False
            following = None if self._priming else self._pick()
            (self._main if following is None else _worker_of(following).turn).release()

        return job

    def stop(self, actor: Actor, call: Call) -> None:
        """Called by an actor before a call; returns when it is his turn to make it."""
        if actor.dead or self._is_over():
            raise Killed("dead already")
        actor.pending = call
        actor.waiting = True
        worker = _worker_of(actor)
        if self._priming:
            self._main.release()
            worker.turn.acquire()
        else:
            following = self._pick()
            if following is not actor:
                _worker_of(cast(Actor, following)).turn.release()
                worker.turn.acquire()
        actor.waiting = False
        if self._is_over():
            actor.dead = True
            raise Killed("the run was cut short")

    def _is_over(self) -> bool:
        return self.cut_short

    def _pick(self) -> Actor | None:
        """The next actor; None when all are done."""
        waiting = [actor for actor in self.actors if actor.waiting]
        if not waiting:
            return None
        waiting = [actor for actor in waiting if actor.blocked is None or actor.impatient or not actor.blocked()] or waiting
        chosen = None
        if not self.cut_short:
            self.endless = len(self.schedule) >= MOST_STEPS
            chosen = None if self.endless else self._choose(waiting)
            self.cut_short = chosen is None
        if chosen is None:
            chosen = waiting[0]  # only to be told that it is over
        else:
            self.schedule.append(chosen.number)
        self.current = chosen
        return chosen


def _worker_of(actor: Actor) -> _Worker:
    assert actor.worker is not None
    return actor.worker


class SteppedStore(WrapperStore):
    """The store as one actor sees it: each call waits for its turn, is noted down, and may go wrong."""

    def __init__(self, inner: ObjectStore, turns: Turns, actor: Actor, stale: Callable[[str, int], tuple[str, ...] | None]) -> None:
        super().__init__(inner)
        self._turns = turns
        self._actor = actor
        self._stale = stale

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        actor = self._actor
        self._turns.stop(actor, Call(method, path))
        number = actor.calls
        actor.calls += 1
        actor.time.elapsed += STEP_SECONDS
        fault = Fault.UNAVAILABLE if actor.unavailable else actor.faults.get(number)
        trace = self._turns.trace
        try:
            answer = request(self.inner) if fault is None else self._inject(fault, method, path, request)
        except (TiltyardError, Killed) as error:
            trace.append(Step(actor.number, method, path, _failure_in_words(error)))
            raise
        answer, words = _in_words(method, answer)
        trace.append(Step(actor.number, method, path, words if fault is None else f"{words} ({fault.value})"))
        return answer

    def _inject(self, fault: Fault, method: str, path: str, request: Request[T]) -> T:
        """What ``FaultStore`` does, for the call at hand; a fault that cannot befall it does not."""
        actor = self._actor
        writes = method in WRITES
        if fault is Fault.STALE_LISTING:
            names = self._stale(path, 1 + actor.number % 2) if method == "names" else None
            return request(self.inner) if names is None else cast(T, iter(names))
        if fault in (Fault.ERROR_AFTER, Fault.TIMEOUT_AFTER, Fault.KILLED_AFTER, Fault.OWN_PRECONDITION):
            answer = request(self.inner)
            if fault is Fault.OWN_PRECONDITION and "absent" not in method:
                return answer
        if fault in (Fault.KILLED_BEFORE, Fault.KILLED_AFTER):
            actor.dead = True
            raise Killed(fault.value)
        if fault is Fault.OWN_PRECONDITION:
            raise AlreadyExists(f"{path!r} exists already ({fault.value}).", name=path)
        if fault is Fault.UNAVAILABLE:
            actor.unavailable = (actor.unavailable or OUTAGES[actor.calls % len(OUTAGES)]) - 1
        unsure = writes and fault is not Fault.ERROR_BEFORE
        raise StorageError(f"{method} of {path!r} failed ({fault.value}).", name=path, maybe_applied=unsure, transient=True)


def _failure_in_words(error: BaseException) -> str:
    if isinstance(error, Killed):
        return f"KILLED ({error})"
    if isinstance(error, StorageError):
        return f"StorageError: {error.args[0] if error.args else ''}"
    return type(error).__name__


def _in_words(method: str, answer: Any) -> tuple[Any, str]:
    """A short account of an answer; listings are used up by looking, so the answer comes back as well."""
    if method in LISTINGS:
        names = tuple(answer)
        first = getattr(names[0], "path", names[0]) if names else ""
        return iter(names), f"{len(names)} names" + (f", first {first}" if names else "")
    if method in READS and isinstance(answer, bytes):
        return answer, f"{len(answer)} bytes"
    return answer, "ok"


class SteppedClock:
    """Time as one actor sees it; a sleep is a step like any other, and ends when its sleeper is chosen."""

    def __init__(self, turns: Turns, actor: Actor) -> None:
        self._turns = turns
        self._actor = actor

    def now(self) -> datetime:
        return self._actor.time.now()

    def monotonic(self) -> float:
        return self._actor.time.elapsed

    def sleep(self, seconds: float) -> None:
        self._turns.stop(self._actor, Call(SLEEP, ""))
        self._actor.time.elapsed += seconds
        self._turns.trace.append(Step(self._actor.number, SLEEP, f"{seconds:.4f} s", "awake"))


def runtime_of(turns: Turns, actor: Actor, seed: str) -> Runtime:
    """Time and chance of one actor."""
    return Runtime(SteppedClock(turns, actor), SeededRandomness(seed))
