"""Tickets: an order among transactions that want the same tables. Whoever waits longest goes first.

A ticket keeps nothing right: ``publishing.decide`` does, and whoever has none commits like everybody else. It only keeps writers from
making the same work again and again because others were faster. So whatever goes wrong here costs time and no more: who cannot have a
ticket goes on without.

Whoever waits may leave an offer in the ticket's file (``batch_offers``): those ahead can then commit its work with theirs.

In a SQLite catalog, and in any other that the processes of one machine share, a ticket is a file beside it that its owner keeps locked: the
system frees it when the owner dies. PostgreSQL has locks of its own for this, which end with their session; see ``postgres``.
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tiltyard.catalog.records import Offering, Ticket
from tiltyard.storage.paths import TEMPORARY_PREFIX

try:
    import fcntl
except ImportError:  # pragma: no cover - a system without it has no tickets
    fcntl = None  # type: ignore[assignment]

QUEUE: Final = "_tiltyard/queue"
"""Where tickets lie, below the directory of the catalog. Their names are temporary ones, which no listing shows."""
_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at who is ahead, while nobody says anything: for how long one who died holds up the others."""
_HUNG_AFTER: Final = 3.0
"""Seconds after which nobody waits any longer for one whose turn it is: it may be stopped."""
_TOKEN_BYTES: Final = 8
_NEXT: Final = b"."
"""What is said to one who waits when somebody ahead left."""
_LOOK: Final = b"!"
"""The same when its offer may have been taken."""
_OFFERS: Final = 256
"""Offers that one who leads reads of a queue."""
_OFFER_BYTES: Final = 2**19
"""Of an offer no more is read."""


def ticket_number(name: str) -> int:
    """What a table is called where tickets are told apart by a signed number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


@dataclass(frozen=True, slots=True)
class NoTicket:
    """For whoever goes on without one."""

    waited: bool = False

    def give_back(self) -> None:
        pass


@dataclass(slots=True)
class FileTicket:
    """Entries in the queues of several tables, each a locked file.

    Attributes:
        directory: of all queues of a catalog.
        waited: whether somebody was ahead.
    """

    directory: str
    waited: bool = False
    told: bool = False
    """Whether somebody said that our offer may have been taken."""
    _entries: list[tuple[str, int]] = field(default_factory=list)
    _socket: socket.socket | None = None
    _token: str = ""

    def stand(self, queue: str) -> str:
        """Joins the end of a queue; our entry's name."""
        if self._socket is None:
            self._token = os.urandom(_TOKEN_BYTES).hex()
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(_address(self._token))
        # Locked before it has its name: nobody may take us for dead.
        temporary = f"{self.directory}/{TEMPORARY_PREFIX}.{self._token}"
        held = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            entry = f"{queue}{time.monotonic_ns():020d}.{self._token}"
            os.rename(temporary, f"{self.directory}/{entry}")  # noqa: PTH104
        except OSError:
            os.close(held)
            raise
        self._entries.append((entry, held))
        return entry

    def wait(self, until: float) -> None:
        """Waits to be woken by the one ahead, or for a short while."""
        assert self._socket is not None
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.poll(1000 * max(min(until - time.monotonic(), _LOOK_EVERY), 0.0))
        with suppress(OSError):
            while said := self._socket.recv(1):
                self.told |= said == _LOOK

    def leave_offer(self, data: bytes) -> None:
        """Writes what others may do for us into the files that we wait with, each of which is read by whoever is ahead there."""
        for _, held in self._entries:
            os.pwrite(held, data, 0)

    def offers(self) -> Sequence[tuple[str, bytes]]:
        """What those behind us offer who are alive, in the order in which they came."""
        found: dict[str, tuple[str, bytes]] = {}
        for mine, _ in self._entries:
            with suppress(OSError):
                for entry in [name for name in _queued(self.directory, _queue_of(mine)) if name > mine][:_OFFERS]:
                    _, came, token = entry.rsplit(".", 2)
                    if token not in found and (data := _offer_of(f"{self.directory}/{entry}")):
                        found[token] = came, data
        return [(token, data) for token, (_, data) in sorted(found.items(), key=lambda item: (item[1][0], item[0]))]

    def tell(self, names: Collection[str]) -> None:
        """Has some of them look whether it was done."""
        for token in names:
            _wake(token, _LOOK)

    def give_back(self) -> None:
        """Leaves all queues; the next in each learns of it."""
        try:
            self._leave()
        except BaseException:
            self._leave()  # interrupted: nobody else can, and an entry that stays locked is waited for
            raise

    def _leave(self) -> None:
        while self._entries:
            entry, held = self._entries[-1]
            _unlink(f"{self.directory}/{entry}")
            fcntl.flock(held, fcntl.LOCK_UN)  # said aloud: a child forked meanwhile may keep the same open file
            self._entries.pop()  # only now: who is interrupted before begins with this one again
            os.close(held)
            _wake_next(self.directory, entry)
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class FileTickets:
    """The queues of one catalog that the processes of one machine share. Threads may share it."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory / QUEUE)
        self._hung: set[str] = set()
        """Entries of those who were waited for in vain: nobody of this process waits for them again."""

    def take(self, names: Collection[str], longest: float, who: Offering | None = None) -> Ticket:
        """Waits for our turn with all of some tables, so many seconds at most, or until those ahead have done what we offer.

        Everybody joins queues in one order, so that nobody waits in a circle.
        """
        if fcntl is None or not hasattr(socket, "AF_UNIX"):
            return NoTicket()  # pragma: no cover
        ticket, until = FileTicket(self._directory), time.monotonic() + longest
        try:
            os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103
            for name in sorted(set(names)):
                queue = f"{TEMPORARY_PREFIX}.t{ticket_number(name) % 2**64:016x}."
                if self._wait(ticket, queue, ticket.stand(queue), until, who):
                    break
        except OSError:
            ticket.give_back()
            return NoTicket(ticket.waited)
        except BaseException:
            ticket.give_back()
            raise
        return ticket

    def _wait(self, ticket: FileTicket, queue: str, mine: str, until: float, who: Offering | None) -> bool:
        """Waits in one queue; whether those ahead have done our work meanwhile."""
        last, since, offered = "", 0.0, who is None
        while (ahead := self._first_ahead(queue, mine)) is not None:
            ticket.waited, now = True, time.monotonic()
            if not offered and who is not None:
                offered = True
                if data := who.offer():
                    ticket.leave_offer(data)
            if ticket.told and who is not None:
                ticket.told = False
                if who.is_done():
                    return True
            if ahead != last:
                last, since = ahead, now
            if now - since >= _HUNG_AFTER:
                self._hung.add(ahead)
            elif now >= until:
                return False
            else:
                ticket.wait(until)
        return False

    def _first_ahead(self, queue: str, mine: str) -> str | None:
        """The first in the queue who lives, if that is not us; entries of the dead go."""
        for entry in _queued(self._directory, queue):
            if entry >= mine:
                return None
            if entry not in self._hung and _lives(f"{self._directory}/{entry}"):
                return entry
        return None


def _queued(directory: str, queue: str) -> Iterable[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(queue))  # noqa: PTH208


def _lives(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        _unlink(path)
        return False
    finally:
        os.close(descriptor)


def _wake_next(directory: str, entry: str) -> None:
    with suppress(OSError):
        for name in _queued(directory, _queue_of(entry)):
            if name > entry and _wake(name.rpartition(".")[2], _NEXT):
                return


def _queue_of(entry: str) -> str:
    """What the names of all entries of its queue begin with."""
    return entry.rsplit(".", 2)[0] + "."


def _offer_of(path: str) -> bytes:
    """What somebody who is alive has left in an entry."""
    with suppress(OSError):
        if _lives(path):
            with open(path, "rb") as entry:  # noqa: PTH123
                return entry.read(_OFFER_BYTES)
    return b""


def _wake(token: str, word: bytes) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(word, _address(token))
    except OSError:
        return False
    return True


def _address(token: str) -> str:
    return f"\0tiltyard-ticket-{token}"


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
