"""A queue of the processes of one machine for what only one of them can have at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiltyard.interfaces import Clock, Runtime

try:
    import fcntl
except ImportError:  # pragma: no cover - a system without it lets everybody ask the database itself
    fcntl = None  # type: ignore[assignment]

_PAUSE: Final = 0.0005
"""Seconds between two looks. A look is one system call, a try at the database a hundred times that."""


class ProcessQueue:
    """A lock on a directory, held by one process at a time and freed by the system when its holder dies.

    It keeps nothing right, it only keeps order: whoever cannot have it, because the system has no such locks or because a holder hangs,
    goes on without it after a while and asks the database like everybody else.
    """

    def __init__(self, directory: Path) -> None:
        self._fd: int | None = None
        if fcntl is not None:
            try:
                self._fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return

    def enter(self, clock: Clock, longest: float) -> bool:
        """Waits for one's turn, so many seconds at most. Whether it came; then ``leave`` gives it to the next."""
        until = clock.monotonic() + longest
        while self._fd is not None:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if clock.monotonic() >= until:
                    return False
                clock.sleep(_PAUSE)
            except OSError:
                self.close()
        return False

    def leave(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try while others are in the way: waits drawn evenly from nothing to a bound that doubles.

    Attributes:
        first: the bound of the first wait, in seconds.
        longest: no wait is longer.
        attempts: tries in all.
        seconds: no try begins later than this after the first.
    """

    first: float
    longest: float
    attempts: int
    seconds: float

    def wait(self, retry: int, runtime: Runtime) -> float:
        """Seconds to wait before the given retry (the first is 0)."""
        return runtime.random.uniform(0.0, min(self.first * 2.0 ** min(retry, 16), self.longest))
