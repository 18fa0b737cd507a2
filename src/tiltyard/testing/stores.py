"""Stores around stores: count what is asked, slow it down, or hold it up. Each can wrap any other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tiltyard.interfaces import Clock, ObjectStore
from tiltyard.storage.wrapper import Request as Request
from tiltyard.storage.wrapper import T as T
from tiltyard.storage.wrapper import WrapperStore as WrapperStore

Match = Callable[[str, str], bool]
"""Chooses calls by (method, path); the path of a rename or copy is its target, that of a listing its prefix."""

CREATES = frozenset({"put_if_absent", "rename_if_absent", "copy_if_absent"})
WRITES = CREATES | {"put", "delete", "sync"}
READS = frozenset({"get", "get_range", "head"})
LISTINGS = frozenset({"list", "names"})
METHODS = WRITES | READS | LISTINGS


def every_call(method: str, path: str) -> bool:
    return True


class CountingStore(WrapperStore):
    """Counts calls and bytes.

    Attributes:
        calls: how often each method was called.
        log: (method, path) of every call, in order.
        bytes_read, bytes_written: what went through, failed calls not counted.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, str]] = []
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def total(self) -> int:
        return self.calls.total()

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        with self._lock:
            self.calls[method] += 1
            self.log.append((method, path))
        answer: Any = request(self.inner)
        with self._lock:
            self.bytes_written += len(data or b"")
            self.bytes_read += len(answer) if isinstance(answer, bytes) else 0
        return answer  # type: ignore[no-any-return]


class LatencyStore(WrapperStore):
    """Delays each call by ``latency(method)`` seconds of the clock, which may be a simulated one.

    >>> LatencyStore(MemoryStore(), ManualClock(), lambda method: 0.02)
    """

    def __init__(self, inner: ObjectStore, clock: Clock, latency: Callable[[str], float]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._latency = latency

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        self._clock.sleep(self._latency(method))
        return request(self.inner)


class PausingStore(WrapperStore):
    """Holds the first call that matches until the test lets it go: the way to drive a race by hand.

    The thread that calls stops there; the test waits for ``reached``, does what must come in between, and sets ``resume``. Neither waits
    longer than ``patience`` seconds, so that a broken test fails instead of hanging.
    """

    def __init__(self, inner: ObjectStore, match: Match, *, after: bool = False, patience: float = 30.0) -> None:
        super().__init__(inner)
        self._match = match
        self._after = after
        self._patience = patience
        self._lock = threading.Lock()
        self._armed = True
        self.reached = threading.Event()
        self.resume = threading.Event()

    def wait_until_reached(self) -> None:
        if not self.reached.wait(self._patience):
            raise TimeoutError(f"No matching call came within {self._patience} s.")

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        with self._lock:
            hold = self._armed and self._match(method, path)
            if hold:
                self._armed = False
        if not hold:
            return request(self.inner)
        if not self._after:
            self._hold()
        answer = request(self.inner)
        if self._after:
            self._hold()
        return answer

    def _hold(self) -> None:
        self.reached.set()
        if not self.resume.wait(self._patience):
            raise TimeoutError(f"The call was not resumed within {self._patience} s.")
