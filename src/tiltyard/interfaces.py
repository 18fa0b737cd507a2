"""The small interfaces through which I/O, time and chance come in, so that a test can own all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any, Final, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of one object."""

    path: str
    size: int
    modified: datetime


@runtime_checkable
class ObjectStore(Protocol):
    """Where the bytes of one table are stored.

    Paths are relative to the table's root, with ``/`` between parts.

    Failures: ``NotFound`` for an object that does not exist, ``AlreadyExists`` where a create found one, ``StorageError`` for all else,
    with ``maybe_applied`` set whenever the store cannot promise that a write did not happen.
    """

    uri: str
    """The root, free of credentials; fit for messages."""

    ordered: bool
    """Whether the names within one directory come in lexical order, so that the first one is enough."""

    def get(self, path: str) -> bytes:
        """The bytes of an object."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Bytes from ``start``, fewer than ``length`` at the end; a negative start counts from the end."""

    def put(self, path: str, data: bytes) -> None:
        """Creates or replaces, atomically: no reader sees half of it."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Creates; of any number of callers exactly one succeeds and the others get ``AlreadyExists``.

        A client that retries requests may get ``AlreadyExists`` for its own object; compare contents where it matters.
        """

    def rename_if_absent(self, source: str, target: str) -> None:
        """Renames under the rule of ``put_if_absent``; the old name is removed last."""

    def copy_if_absent(self, source: str, target: str) -> None:
        """Creates ``target`` with what ``source`` holds, under the rule of ``put_if_absent``."""

    def head(self, path: str) -> ObjectInfo:
        """What the store knows of an object, without its bytes."""

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        """All objects below ``prefix`` whose path sorts after ``offset``, without temporary files.

        ``prefix`` is a directory ending in ``/``, or empty.
        """

    def names(self, prefix: str) -> Iterator[str]:
        """Names of the objects directly in the directory ``prefix``: cheaper than ``list``, without sizes."""

    def delete(self, path: str) -> None:
        """Removes an object; it is not an error if there is none."""

    def sync(self, paths: Iterable[str]) -> None:
        """Makes files that others wrote survive a power loss, as far as this store promises that."""


@runtime_checkable
class KeepsTemporaries(Protocol):
    """A store in which files lie under temporary names while they are written, and stay there if their writer dies."""

    def temporary(self, prefix: str) -> Iterator[ObjectInfo]:
        """All files of that kind below ``prefix``, which no listing shows."""


@runtime_checkable
class HasDirectories(Protocol):
    """A store in which directories stay when their last file is gone."""

    def remove_empty(self, prefix: str, before: datetime) -> None:
        """Removes the directory ``prefix`` and those below it, where there is nothing in them since a moment or longer."""


@runtime_checkable
class SeesFiles(Protocol):
    """A store in which it costs no request to see whether files are there, such as a local disk."""

    def missing(self, paths: Iterable[str]) -> Sequence[str] | None:
        """Those of the files that are certainly not there; None where asking would cost requests."""


@runtime_checkable
class FlushesTogether(Protocol):
    """A store that flushes several files in little more than the time of one, such as a local disk."""

    def put_unsynced(self, path: str, data: bytes) -> None:
        """A ``put`` that survives a power loss only once ``sync`` of this path has returned."""


@runtime_checkable
class SendsAtOnce(Protocol):
    """A store to which several requests can be under way at a time, because each takes a round trip.

    ``look_seconds``: for so long a commit may rely on its last look at the table, and cleanups wait for longer than this. Stores without
    the attribute are looked at in each commit.
    """

    look_seconds: float

    def put_later(self, path: str, data: bytes) -> None:
        """Begins a ``put``, which ``sync`` of this path waits for. If it failed, ``sync`` says so, and sends it again the next time."""

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The answers to several questions, asked at the same time; all are waited for, then the first failure is raised."""


def ask_at_once(store: ObjectStore, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to several questions, asked at the same time where the store can do that."""
    return store.at_once(calls) if isinstance(store, SendsAtOnce) else [call() for call in calls]


class CommitHandler(Protocol):
    """Who may create a version: creates ``path`` for at most one of any number of callers.

    One that does not rely on the store's conditional writes says so with ``needs_conditional_put = False``; then the store is not probed
    for them. Without the attribute it is.
    """

    name: str

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        """Creates the object or raises ``AlreadyExists`` (another writer won) or ``StorageError``."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A transaction, as bytes, whose writer waits in a queue for somebody to commit it."""

    transaction_id: str
    data: bytes


NOT_TAKEN: Final = 0
"""As an answer: commit it yourself."""


class QueuePlace(Protocol):
    """One commit before a table that others may be about to commit to as well."""

    @property
    def leads(self) -> bool:
        """Whether the lead is ours. Only one place of a table has it, if any."""

    @property
    def hangs(self) -> bool:
        """Whether somebody waited here in vain of late."""

    def lead(self) -> bool:
        """Takes the lead if it is free; whether it is ours then."""

    def join(self, data: bytes) -> bool:
        """Joins the queue, where there is one; with bytes of a transaction for the leader to take along, or none."""

    def wait(self, seconds: float) -> int | None:
        """The version that our transaction was committed with, ``NOT_TAKEN``, or None if the lead is ours or so many seconds went by."""

    def leave(self) -> None:
        """Gives up the lead, or the wait."""

    def meet_strangers(self, share: float) -> None:
        """For a leader: writers who know nothing of the queue made this share of the last versions; those in it are to leave them room."""

    def gather(self, newest: Callable[[], int]) -> None:
        """For a leader: gives those who were committed with the last version a moment to come back. Without any, it waits for nobody.

        From time to time it also leaves room for writers who know nothing of the queue, until the ``newest`` version is one of theirs.
        """

    def offers(self, most: int) -> list[Offer]:
        """For a leader: what waits to be committed."""

    def tell(self, data: bytes) -> None:
        """For a leader: leaves a note for the next, and for those who wait."""

    def told(self) -> bytes:
        """The note that the last leader left, as far as it can be read."""

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        """For a leader: what became of one of them. It is offered no more."""


@runtime_checkable
class CarriesVersions(Protocol):
    """A place in a queue of one machine, where to read from the store takes longer than to hand something over."""

    def carry(self, path: str, data: bytes) -> None:
        """For a leader: leaves what it wrote to the store, in place of what was left before."""

    def carried(self, path: str) -> bytes:
        """What the last leader wrote, if it was this; else nothing."""


class CommitQueue(Protocol):
    """Puts the writers of a table in order. It keeps nothing right, the creation of a version's name does: who cannot have a place in it,
    or waits too long, goes on without."""

    def place(self, transaction_id: str, since: float) -> QueuePlace:
        """A place for one commit; among those who wait, the smallest ``since`` goes first."""


@runtime_checkable
class SharesMemory(Protocol):
    """A queue of one process: those in it leave objects for each other, by name. ``slowness`` says by how much more patience it takes."""

    slowness: float
    shared: dict[str, Any]


class Clock(Protocol):
    """Time and sleeping; a test replaces it."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class OwnsWaits(Protocol):
    """A clock that also decides how long a thread waits for another, such as one that a test moves."""

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Waits, with the condition's lock, until it is notified or ``monotonic`` says so late; it may return earlier."""


class Randomness(Protocol):
    def uniform(self, a: float, b: float) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def uuid(self) -> str:
        """A fresh random uuid, lower case with hyphens."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_FIXED: Final = 0xF << 76 | 0b11 << 62
_VERSION_4: Final = 4 << 76 | 0b10 << 62


class SystemRandomness(SystemRandom):
    """The machine's own chance; safe across forks, since nothing is seeded."""

    def uuid(self) -> str:
        """As ``uuid.uuid4`` makes them, in a third of the time: every commit needs several."""
        bits = self.getrandbits(128) & ~_FIXED | _VERSION_4
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and chance, handed down together."""

    clock: Clock
    random: Randomness


def system_runtime() -> Runtime:
    return Runtime(SystemClock(), SystemRandomness())
