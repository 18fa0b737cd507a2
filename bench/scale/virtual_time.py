"""Virtual time: actors that wait in no time at all, one running at a time, in the order of a virtual clock.

Each actor is a thread, because the code under test waits wherever it likes. Only one of them runs; whoever waits hands over to the one
whose time comes next. Nothing but the order of these times decides, so one seed gives one run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Final

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
STACK_BYTES: Final = 1 << 19
"""Of each thread: there may be ten thousand."""


class EndedError(BaseException):
    """The run is over: ends an actor wherever it waits."""


@dataclass(eq=False, slots=True)
class Actor:
    """Somebody who does things and waits in between."""

    body: Callable[[], None]
    turn: threading.Lock = field(default_factory=threading.Lock)
    waits: int = 0
    """How often it has waited: tells a wake-up that is meant for an earlier wait."""
    thread: threading.Thread | None = None


class VirtualTime:
    """The clock of all actors, which is also who lets them run.

    Attributes:
        seconds: what the clock says.
        failures: what actors raised, if it was not the end of the run.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.failures: list[BaseException] = []
        self._ended = False
        self._due: list[tuple[float, int, Actor, int]] = []
        self._pushed = 0
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._main = threading.Lock()
        self._until = float("inf")

    # ---- the clock, as the code under test sees it ------------------------------------------------------------------------------

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.pause(max(seconds, 0.0))

    # ---- actors ----------------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Actor:
        assert self._current is not None
        return self._current

    def begin(self, body: Callable[[], None], after: float = 0.0) -> None:
        """Adds an actor that begins so many seconds from now."""
        actor = Actor(body)
        actor.turn.acquire()
        self._actors.append(actor)
        self._push(actor, self.seconds + after)

    def pause(self, seconds: float | None) -> None:
        """Waits for so many seconds, or until somebody calls ``wake``, whichever comes first; None waits for that alone.

        Raises:
            EndedError: the run is over.
        """
        if self._ended:
            raise EndedError
        actor = self.current
        if seconds is not None:
            self._push(actor, self.seconds + seconds)
        following = self._next()
        if following is not actor:
            self._let_go(following)
            actor.turn.acquire()
        if self._ended:
            raise EndedError

    def wake(self, actor: Actor) -> None:
        """Ends the wait of an actor now."""
        self._push(actor, self.seconds)

    def end(self) -> None:
        """Ends the run as soon as the actor that calls this waits."""
        self._until = self.seconds

    def run(self, until: float = float("inf")) -> None:
        """Runs until nobody has anything to do any more, or until a moment; then ends those who still wait.

        Raises:
            BaseException: the first thing that an actor raised.
        """
        self._until, self._ended = until, False
        before = threading.stack_size(STACK_BYTES)
        self._main.acquire()
        try:
            self._let_go(self._next())
            self._main.acquire()
            self._ended = True
            for actor in self._actors:
                if actor.thread is not None and actor.thread.is_alive():
                    self._current = actor
                    actor.turn.release()
                    actor.thread.join()
        finally:
            self._actors.clear()
            self._due.clear()
            threading.stack_size(before)
            self._main.release()
        if self.failures:
            raise self.failures[0]

    def _push(self, actor: Actor, at: float) -> None:
        self._pushed += 1
        heappush(self._due, (at, self._pushed, actor, actor.waits))

    def _next(self) -> Actor | None:
        """Who goes on, at the time that the clock is then moved to; None if nobody does."""
        while self._due and self._due[0][0] <= self._until:
            at, _, actor, waits = heappop(self._due)
            if waits == actor.waits:
                actor.waits += 1
                self.seconds = max(self.seconds, at)
                self._current = actor
                return actor
        return None

    def _let_go(self, actor: Actor | None) -> None:
        if actor is None:
            self._main.release()
        elif actor.thread is None:
            actor.thread = threading.Thread(target=self._live, args=(actor,), daemon=True)
            actor.thread.start()
        else:
            actor.turn.release()

    def _live(self, actor: Actor) -> None:
        try:
            actor.body()
        except EndedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised by whoever runs all of them
            self.failures.append(error)
            self.end()
        if not self._ended:
            actor.waits += 1
            self._let_go(self._next())


class VirtualEvent:
    """What ``threading.Event`` is to threads, for actors."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._is_set = False
        self._waiting: Actor | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            self._time.wake(self._waiting)
            self._waiting = None

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiting = self._time.current
            self._time.pause(timeout)
            self._waiting = None
        return self._is_set


class VirtualLocks:
    """Locks by name, which are given in the order in which they were asked for."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._queues: dict[str, deque[VirtualEvent]] = {}

    def take(self, name: str, longest: float | None = None) -> bool:
        """Waits for a lock, so many seconds at most; whether it is ours."""
        mine = VirtualEvent(self._time)
        queue = self._queues.setdefault(name, deque())
        queue.append(mine)
        try:
            if queue[0] is mine or mine.wait(longest):
                return True
        except EndedError:
            self._leave(name, mine)
            raise
        self._leave(name, mine)
        return False

    def give_back(self, name: str) -> None:
        self._leave(name, self._queues[name][0])

    def is_free(self, name: str) -> bool:
        return name not in self._queues

    @contextmanager
    def holding(self, names: list[str]) -> Iterator[None]:
        """Holds several, taken one after the other in the order given."""
        taken: list[str] = []
        try:
            for name in names:
                self.take(name)
                taken.append(name)
            yield
        finally:
            for name in reversed(taken):
                self.give_back(name)

    def _leave(self, name: str, mine: VirtualEvent) -> None:
        queue = self._queues[name]
        was_first = queue[0] is mine
        queue.remove(mine)
        if not queue:
            del self._queues[name]
        elif was_first:
            queue[0].set()
