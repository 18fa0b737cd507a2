"""Everything that may go wrong between us and a store, one fault at a chosen call.

Besides the faults here: power loss is ``PowerLossStore``, a clock jump ``ManualClock.jump``, a paused writer ``PausingStore``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NoReturn, TypeVar, cast

from tiltyard.errors import AlreadyExists, NotFound, StorageError
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing.stores import CREATES, LISTINGS, METHODS, READS, WRITES, Match, Request, WrapperStore, every_call

T = TypeVar("T")

KILL_AT = "TILTYARD_KILL_AT"
KILL_WHEN = "TILTYARD_KILL_WHEN"
When = Literal["before", "after"]


class Killed(BaseException):
    """The process died here, as far as the simulation is concerned. No ``except Exception`` stops it."""


class Fault(Enum):
    """What goes wrong at the chosen call. Each says what the store did and what the caller gets to see."""

    ERROR_BEFORE = "error before"
    """Nothing was done; the caller gets an error that says so."""

    ERROR_AFTER = "error after"
    """The lost acknowledgement: a write was carried out, and the caller gets an error that leaves it open."""

    TIMEOUT_BEFORE = "timeout before"
    """The request never arrived; the caller cannot tell this from the next one."""

    TIMEOUT_AFTER = "timeout after"
    """The request was carried out, the answer came too late."""

    CONFLICT = "409"
    """A create is turned away although nothing is there: another request for that name is under way. Nothing was done."""

    OWN_PRECONDITION = "412 against oneself"
    """A create was carried out, its answer got lost, the client repeated it and met its own object: ``AlreadyExists``."""

    UNAVAILABLE = "503"
    """The store is overloaded for several calls in a row. Nothing was done; the caller cannot be sure."""

    TORN_WRITE = "torn write"
    """Half the bytes of a write appear under the final name; the caller gets an error that leaves it open."""

    STALE_LISTING = "stale listing"
    """A listing shows an earlier state: that of the listing before, or one without the object written last."""

    STALE_READ = "stale read"
    """A read of an object that was replaced gives what it held before: a head somebody cached."""

    KILLED_BEFORE = "killed before"
    """The process dies before the call has any effect, and nothing it would do afterwards happens."""

    KILLED_AFTER = "killed after"
    """The process dies right after the call had its effect."""


_APPLIES: Mapping[Fault, frozenset[str]] = {
    Fault.ERROR_AFTER: WRITES,
    Fault.TIMEOUT_AFTER: WRITES,
    Fault.CONFLICT: CREATES,
    Fault.OWN_PRECONDITION: CREATES,
    Fault.TORN_WRITE: frozenset({"put", "put_if_absent"}),
    Fault.STALE_LISTING: LISTINGS,
    Fault.STALE_READ: READS,
}


def all_faults() -> tuple[Fault, ...]:
    """Every fault a ``FaultStore`` can produce."""
    return tuple(Fault)


class FaultStore(WrapperStore):
    """Injects one fault at the ``at``-th matching call, counted from 1.

    To visit every call of an operation, raise ``at`` until ``fired`` stays False.

    Attributes:
        fired: whether the fault happened.
        where: (method, path) of the call it happened to.
    """

    def __init__(self, inner: ObjectStore, fault: Fault, at: int = 1, *, match: Match = every_call, times: int = 3) -> None:
        super().__init__(inner)
        self.fault = fault
        self.fired = False
        self.where: tuple[str, str] | None = None
        self._at = at
        self._match = match
        self._span = times if fault is Fault.UNAVAILABLE else 1
        self._seen = 0
        self._dead = False
        self._lock = threading.RLock()
        self._previous = MemoryStore(inner.uri)
        self._replaced: set[str] = set()
        self._listings: dict[tuple[str, str], tuple[str, ...]] = {}
        self._last_written: dict[str, str] = {}

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self._dead:
            raise Killed(f"{method} {path}: the process is dead already")
        if not self._is_due(method, path):
            return self._observed(method, path, request)
        return self._inject(method, path, request, data)

    def _is_due(self, method: str, path: str) -> bool:
        if method not in _APPLIES.get(self.fault, METHODS) or not self._match(method, path):
            return False
        if self.fault is Fault.STALE_READ and path not in self._replaced:
            return False
        with self._lock:
            self._seen += 1
            due = self._at <= self._seen < self._at + self._span
            if due:
                self.fired = True
                self.where = self.where or (method, path)
            return due

    def _inject(self, method: str, path: str, request: Request[T], data: bytes | None) -> T:
        fault = self.fault
        if fault in (Fault.ERROR_AFTER, Fault.TIMEOUT_AFTER, Fault.OWN_PRECONDITION, Fault.KILLED_AFTER):
            self._observed(method, path, request)
        if fault in (Fault.KILLED_BEFORE, Fault.KILLED_AFTER):
            self._dead = True
            raise Killed(f"{fault.value} {method} {path}")
        if fault in (Fault.CONFLICT, Fault.OWN_PRECONDITION):
            raise AlreadyExists(f"{path!r} exists already (injected: {fault.value}).", name=path)
        if fault is Fault.STALE_LISTING:
            return cast(T, iter(self._stale(method, path, request)))
        if fault is Fault.STALE_READ:
            return request(self._previous)
        if fault is Fault.TORN_WRITE:
            self._tear(method, path, data or b"")
        raise self._failure(method, path)

    def _failure(self, method: str, path: str) -> StorageError:
        unsure = method in WRITES and self.fault is not Fault.ERROR_BEFORE
        return StorageError(f"{method} of {path!r} failed (injected: {self.fault.value}).", name=path, maybe_applied=unsure, transient=True)

    def _tear(self, method: str, path: str, data: bytes) -> None:
        half = data[: len(data) // 2]
        if method == "put":
            self.inner.put(path, half)
        else:
            self.inner.put_if_absent(path, half)

    def _observed(self, method: str, path: str, request: Request[T]) -> T:
        """Carries a call out and keeps what a later stale answer needs."""
        if self.fault is Fault.STALE_READ and method == "put":
            self._remember(path)
        answer = request(self.inner)
        if self.fault is Fault.STALE_LISTING:
            if method in LISTINGS:
                found: tuple[Any, ...] = tuple(cast(Any, answer))
                self._listings[method, path] = found
                return cast(T, iter(found))
            if method in WRITES:
                self._last_written[path.rpartition("/")[0] + "/" if "/" in path else ""] = path
        return answer

    def _stale(self, method: str, prefix: str, request: Request[T]) -> tuple[Any, ...]:
        fresh: tuple[Any, ...] = tuple(cast(Any, request(self.inner)))
        if (method, prefix) in self._listings:
            return self._listings[method, prefix]
        hidden = self._last_written.get(prefix) or self._newest(prefix)
        return tuple(item for item in fresh if (item.path if isinstance(item, ObjectInfo) else prefix + item) != hidden)

    def _newest(self, prefix: str) -> str:
        infos = tuple(self.inner.list(prefix))
        return max(infos, key=lambda info: info.modified).path if infos else ""

    def _remember(self, path: str) -> None:
        try:
            self._previous.put(path, self.inner.get(path))
        except NotFound:
            self._replaced.discard(path)
        else:
            self._replaced.add(path)


class KillPoint(WrapperStore):
    """Ends the process at the ``at``-th call that matches, before or after its effect.

    By default ``Killed`` is raised, and again at every later call, so that no clean-up of the "dead" code has any effect. With
    ``really=True`` the process gets SIGKILL; ``from_environment`` arms that in a child process through two variables.
    """

    def __init__(self, inner: ObjectStore, at: int, *, when: When = "before", match: Match = every_call, really: bool = False) -> None:
        super().__init__(inner)
        self._at = at
        self._when = when
        self._match = match
        self._really = really
        self._seen = 0
        self._lock = threading.Lock()
        self.fired = False

    @classmethod
    def from_environment(
        cls, inner: ObjectStore, environment: Mapping[str, str] | None = None, *, match: Match = every_call
    ) -> ObjectStore:
        """``inner``, or a ``KillPoint`` that kills as ``TILTYARD_KILL_AT`` and ``TILTYARD_KILL_WHEN`` say."""
        variables = os.environ if environment is None else environment
        if KILL_AT not in variables:
            return inner
        when: When = "after" if variables.get(KILL_WHEN) == "after" else "before"
        return cls(inner, int(variables[KILL_AT]), when=when, match=match, really=True)

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self.fired:
            raise Killed(f"{method} {path}: the process is dead already")
        with self._lock:
            matches = self._match(method, path)
            self._seen += matches
            due = matches and self._seen == self._at
        if due and self._when == "before":
            self._die(method, path)
        try:
            return request(self.inner)
        finally:
            if due:  # whatever the answer was: that an object is not there is one, too
                self._die(method, path)

    def _die(self, method: str, path: str) -> NoReturn:
        self.fired = True
        if self._really:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed(f"killed {self._when} {method} {path}")
