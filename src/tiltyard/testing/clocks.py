"""Time and chance that a test owns."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta
from random import Random
from weakref import WeakSet

from tiltyard.interfaces import Runtime

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A clock that moves only when told to, or when a caller sleeps on it.

    Attributes:
        slept: every sleep asked for, in seconds.
    """

    def __init__(self, start: datetime = _START) -> None:
        self._now = start
        self._monotonic = 0.0
        self._lock = threading.Lock()
        self.slept: list[float] = []
        self._waiting: WeakSet[threading.Condition] = WeakSet()

    def now(self) -> datetime:
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Waits, with the condition's lock, until it is notified or this clock was moved."""
        with self._lock:
            self._waiting.add(condition)  # before the look at the time: a move in between notifies
            late = until is not None and self._monotonic >= until
        if not late:
            condition.wait()

    def jump(self, seconds: float) -> None:
        """The fault: an administrator sets the wall clock, forward or back, and no time passes."""
        with self._lock:
            self._now += timedelta(seconds=seconds)


class SeededRandomness(Random):
    """The same chance for the same seed, uuids included."""

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.getrandbits(128), version=4))


def manual_runtime(seed: int = 0) -> Runtime:
    """A runtime in which nothing is left to chance."""
    return Runtime(ManualClock(), SeededRandomness(seed))
