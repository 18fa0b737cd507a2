"""Records: the one small interface that every catalog database has to offer.

A record is a JSON object under a key, a path such as ``table/main/<id>``. All that the lake does is written once, in terms of two reads
and one kind of write: lock some records, look at them, and decide what to put in their place, all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")

Body = Mapping[str, Any]
"""What a record holds: anything that JSON can express."""

Found = Mapping[str, Body]
"""Records by key; a key that is not among them has no record. A key is 1 to 2,000 bytes of UTF-8 without
NUL; keys are ordered byte by byte."""


@dataclass(frozen=True, slots=True)
class Writes(Generic[T]):
    """What a decision comes to.

    Attributes:
        result: handed to the caller once all of it is stored.
        put: records to store, new or in the place of others.
        delete: keys whose records go; one that has none is no error.
    """

    result: T
    put: Mapping[str, Body] = field(default_factory=dict)
    delete: Sequence[str] = ()


Decide = Callable[[Found], Writes[T]]
"""Given the records under the keys that were locked, says what to write. Does no I/O, and may be asked again with newer records.
What it raises ends the transaction with nothing written, and reaches the caller as it is."""


@runtime_checkable
class Records(Protocol):
    """A database of records.

    Failures: ``StorageError``, with ``maybe_applied`` set when a transaction was sent and no answer came, so that it may be there or
    not; ``ContentionError`` when others were faster too often. Text shown anywhere is free of credentials.
    """

    url: str
    """Where it is, without credentials; fit for messages."""

    def get(self, keys: Collection[str]) -> Found:
        """The records under these keys, all as of one moment."""

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        """All records whose key begins with one of the prefixes, by key, all as of one moment; at most ``limit`` of them in all."""

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        """Looks at records and writes others as one atomic step.

        From the look until the end nobody else changes any of the records looked at, nor makes one under a key that had none.

        Args:
            exclusive: keys of records that may be written; all that ``decide`` puts or deletes must be among these or be new.
            shared: keys of records that must only stay as they are; others may look at them at the same time.
            decide: see ``Decide``. A key among ``put`` that was not locked is created; if it turns out to be there, ``decide`` is asked
                again after it was added to ``exclusive``.
        """

    def close(self) -> None:
        """Lets go of connections. Closing twice does no harm."""


@runtime_checkable
class GivesSpaceBack(Protocol):
    """Records whose file keeps the room of what was deleted, until it is told to give it back."""

    def give_space_back(self) -> int:
        """Makes the file as small as its records are, if that is worth it; how many bytes smaller it is. Others wait meanwhile."""


class Ticket(Protocol):
    """A place before some tables that others want as well; see ``catalog/tickets``."""

    @property
    def waited(self) -> bool:
        """Whether somebody was ahead."""

    def give_back(self) -> None:
        """Lets the next one go on. Giving it back twice does no harm."""


class Offering(Protocol):
    """Somebody who waits for a ticket, and whom those ahead may spare the wait; see ``catalog/batch_offers``."""

    def offer(self) -> bytes:
        """What those ahead may do for us; nothing where there is nothing that they can do. Asked once somebody is ahead."""

    def is_done(self) -> bool:
        """Whether it was done, asked when somebody says so. Then nobody waits any longer."""


@runtime_checkable
class ShowsOffers(Protocol):
    """A ticket whose owner sees what others offer who wait behind."""

    def offers(self) -> Sequence[tuple[str, bytes]]:
        """What those behind us offer who are alive, in the order in which they came, each under a name for ``tell``."""

    def tell(self, names: Collection[str]) -> None:
        """Has some of them look whether it was done."""


@runtime_checkable
class TakesOffers(Protocol):
    """Records whose tickets show offers."""

    def ticket_for(self, names: Collection[str], longest: float, who: Offering) -> Ticket:
        """The same as ``GivesTickets.ticket``, for somebody who makes an offer while it waits."""


@runtime_checkable
class GivesTickets(Protocol):
    """Records whose users can wait for each other, in the order in which they came."""

    def ticket(self, names: Collection[str], longest: float) -> Ticket:
        """Waits until everybody who came before us with one of these names is done or dead, so many seconds at most.

        Never fails: who cannot have a ticket goes on without.
        """
