"""An object store and a catalog database in virtual time: every request takes what it was measured to take, and is counted.

A request arrives after half of its time, and is carried out there. The object store serves a table no faster than a bucket's prefix is
served; the database holds the locks of a transaction from the first look to the commit.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from bench.scale.virtual_time import VirtualLocks, VirtualTime
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import Body, Decide, Found
from tiltyard.catalog.sql_records import _in_order
from tiltyard.errors import AlreadyExists, NotFound
from tiltyard.interfaces import ObjectInfo
from tiltyard.storage.paths import is_temporary

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What requests take, in seconds, and what a store admits.

    Attributes:
        put: a PUT, with a condition or without.
        get: a GET; HEAD, LIST and DELETE are taken to be as fast.
        spread: sigma of the log-normal factor on each of them.
        bytes_per_second: what a request carries beside that.
        writes_per_second, reads_per_second: what the store admits below one table's prefix; the rest waits.
        statement: a round trip to the database.
        hop: a message between two machines of ours.
    """

    put: float = 0.061
    get: float = 0.020
    spread: float = 0.25
    bytes_per_second: float = 100e6
    writes_per_second: float = 3500.0
    reads_per_second: float = 5500.0
    statement: float = 0.002
    hop: float = 0.001


class Site:
    """The requests of one run: what they take, and how many there were of each kind."""

    def __init__(self, time: VirtualTime, conditions: Conditions, seed: int) -> None:
        self.time = time
        self.conditions = conditions
        self.requests: Counter[str] = Counter()
        self.bytes_written = 0
        self._random = Random(seed)

    def duration(self, seconds: float, size: int = 0) -> float:
        return seconds * self._random.lognormvariate(0.0, self.conditions.spread) + size / self.conditions.bytes_per_second


WRITES: Final = frozenset({"PUT", "create"})


class VirtualStore:
    """The objects of one table on an object store. Shared by all writers: what one has written all others see."""

    ordered = True
    look_seconds = 5.0

    def __init__(self, site: Site, uri: str = "s3://simulated/table") -> None:
        self.uri = uri
        self.site = site
        self.objects: dict[str, bytes] = {}
        self._names: dict[str, list[str]] = {}
        self._served = {True: 0.0, False: 0.0}
        self._arriving: dict[str, float] = {}
        self._together: float | None = None

    # ---- requests --------------------------------------------------------------------------------------------------------------

    def _request(self, kind: str, answer: Callable[[], T], size: int = 0) -> T:
        """One request: the way there, what it does, and the way back."""
        seconds = self._seconds(kind, size)
        if self._together is not None:
            self._together += seconds
            return answer()
        self.site.time.pause(seconds / 2)
        try:
            return answer()
        finally:
            self.site.time.pause(seconds / 2)

    def _seconds(self, kind: str, size: int) -> float:
        """How long a request takes, the wait included that comes from too many of them."""
        site, writes = self.site, kind in WRITES
        conditions = site.conditions
        site.requests[kind] += 1
        site.bytes_written += size if writes else 0
        rate = conditions.writes_per_second if writes else conditions.reads_per_second
        now = site.time.seconds
        self._served[writes] = max(self._served[writes] + 1 / rate, now)
        return self._served[writes] - now + site.duration(conditions.put if writes else conditions.get, size)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The answers to several questions, asked at the same time: it takes as long as the slowest."""
        half = self.site.conditions.get / 2
        self.site.time.pause(half)
        answers, longest = [], 0.0
        for call in calls:
            self._together = 0.0
            try:
                answers.append(call())
            finally:
                longest, self._together = max(longest, self._together), None
        self.site.time.pause(max(longest - half, 0.0))
        return answers

    def put_later(self, path: str, data: bytes) -> None:
        """Begins a write, which ``sync`` waits for. Nobody knows its name before that, so it may as well be there at once."""
        self._arriving[path] = self.site.time.seconds + self._seconds("PUT", len(data))
        self._store(path, data)

    def sync(self, paths: Iterable[str]) -> None:
        arrives = max((self._arriving.pop(path, 0.0) for path in paths), default=0.0)
        if arrives > self.site.time.seconds:
            self.site.time.pause(arrives - self.site.time.seconds)

    # ---- the interface ---------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        data = self.objects.get(path, b"")
        return self._request("GET", lambda: self._found(path), len(data))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        def part() -> bytes:
            data = self._found(path)
            first = max(len(data) + start, 0) if start < 0 else start
            return data[first : first + length]

        return self._request("GET", part, min(length, len(self.objects.get(path, b""))))

    def put(self, path: str, data: bytes) -> None:
        self._request("PUT", lambda: self._store(path, data), len(data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        def create() -> None:
            if path in self.objects:
                raise AlreadyExists(f"{path!r} exists already.", name=path)
            self._store(path, data)

        self._request("create", create, len(data))

    def copy_if_absent(self, source: str, target: str) -> None:
        self.put_if_absent(target, self.get(source))

    def rename_if_absent(self, source: str, target: str) -> None:
        self.copy_if_absent(source, target)
        self.delete(source)

    def head(self, path: str) -> ObjectInfo:
        return self._request("GET", lambda: ObjectInfo(path, len(self._found(path)), self.site.time.now()))

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        def listed() -> list[ObjectInfo]:
            paths = sorted(path for path in self.objects if path.startswith(prefix) and (offset is None or path > offset))
            return [ObjectInfo(path, len(self.objects[path]), self.site.time.now()) for path in paths]

        return iter(self._request("LIST", listed))

    def names(self, prefix: str) -> Iterator[str]:
        """The names in a directory, in order; one page, as nobody here asks for more."""
        return iter(self._request("LIST", lambda: [name for name in self._names.get(prefix, ())[:1000] if not is_temporary(name)]))

    def delete(self, path: str) -> None:
        self._request("DELETE", lambda: self._remove(path))

    # ---- objects ---------------------------------------------------------------------------------------------------------------

    def _found(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise NotFound(f"There is no {path!r} in {self.uri}.", name=path) from None

    def _store(self, path: str, data: bytes) -> None:
        if path not in self.objects:
            directory, _, name = path.rpartition("/")
            insort(self._names.setdefault(f"{directory}/", []), name)
        self.objects[path] = data

    def _remove(self, path: str) -> None:
        if self.objects.pop(path, None) is not None:
            directory, _, name = path.rpartition("/")
            self._names[f"{directory}/"].remove(name)


# ---- a database --------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class VirtualTicket:
    """A place in the queues of some tables: the database's advisory locks."""

    locks: VirtualLocks
    waited: bool = False
    _names: list[str] = field(default_factory=list)

    def take(self, name: str, longest: float) -> None:
        self.waited |= not self.locks.is_free(name)
        if self.locks.take(name, longest):
            self._names.append(name)

    def give_back(self) -> None:
        names, self._names = self._names, []
        for name in reversed(names):
            self.locks.give_back(name)


class VirtualRecords:
    """The records of a lake in PostgreSQL, as one client sees them; all clients share ``inner`` and the locks.

    A read is one statement. A transaction is five: BEGIN, the look that locks, INSERT, UPDATE, COMMIT. Others wait for its locks from the
    second to the last.
    """

    url = "postgresql://simulated"

    def __init__(self, site: Site, inner: MemoryRecords, locks: VirtualLocks, tickets: VirtualLocks) -> None:
        self.site = site
        self.inner = inner
        self._locks = locks
        self._tickets = tickets

    def _statement(self, kind: str) -> None:
        self.site.requests[kind] += 1
        self.site.time.pause(self.site.duration(self.site.conditions.statement))

    def get(self, keys: Collection[str]) -> Found:
        self._statement("SQL")
        return self.inner.get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        self._statement("SQL")
        return self.inner.scan(prefixes, limit=limit, descending=descending)

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        """Locks those that may be written, decides, writes. Shared locks are taken for free: here nobody waits for readers."""
        self._statement("SQL")
        with self._locks.holding([key for key, written in _in_order(exclusive, shared) if written]):
            self._statement("SQL")
            decide(self.inner.get({*exclusive, *shared}))  # what is refused is refused here, and writes nothing
            for _ in ("INSERT", "UPDATE", "COMMIT"):
                self._statement("SQL")
            return self.inner.transact(exclusive, shared, decide)

    def ticket(self, names: Collection[str], longest: float) -> VirtualTicket:
        """Waits for all who came before us with one of these names."""
        self._statement("SQL")
        ticket, until = VirtualTicket(self._tickets), self.site.time.seconds + longest
        for name in sorted(set(names)):
            ticket.take(name, max(until - self.site.time.seconds, 0.0))
        return ticket

    def close(self) -> None:
        pass
