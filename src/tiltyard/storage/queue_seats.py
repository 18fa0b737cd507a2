"""A seat before a table: the file by which a waiting writer is seen, and the letter box in which its answer comes.

A seat is made once and used for one commit after the other. Only its name and what is in it change: to create and delete a file for each
commit takes longer than all else that a waiting writer does, most of all on ext4 without a journal, where whoever creates a file goes over
the inodes that were freed in the last minutes. A seat belongs to the process that made it; a forked child leaves it alone.
"""
# System calls on strings, counted: see files.py.
# ruff: noqa: PTH103, PTH104, PTH108

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import socket
import weakref
from contextlib import suppress
from typing import Final

import xxhash

from tiltyard.storage.paths import TEMPORARY_PREFIX

WAITING: Final = f"{TEMPORARY_PREFIX}.q"
"""Begins the name of a seat whose writer waits; then come since when, its transaction and the name of its letter box."""
DOTS: Final = 4
"""In such a name."""
_EMPTY: Final = f"{TEMPORARY_PREFIX}.seat."
_CHECK_LENGTH: Final = 16
MOST_KEPT: Final = 64
"""Seats that a process keeps for later, of all its tables: each takes two descriptors."""


class Seat:
    """A file that is locked as long as its process lives, and a socket.

    Attributes:
        box: where answers come; its address is no name of the file system, so nothing of it is left behind.
        entry: the path under which it offers something; empty while it does not, or where somebody else has taken the entry out.
    """

    __slots__ = ("_descriptor", "_directory", "_length", "_process", "_token", "box", "entry")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._token = os.urandom(8).hex()
        self._process = os.getpid()
        self._length = 0
        self.entry = ""
        self._descriptor = _created(directory, self._token)
        self.box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.box.bind(_address(self._token))
        except OSError:
            self.close()
            raise

    def offer(self, since: float, transaction_id: str, data: bytes) -> None:
        """Shows to whoever leads that we wait, and what for.

        What stood there before may be read by a leader who was slow to open it, so a checksum ties the bytes to the transaction.

        Raises:
            OSError: there is no such seat any more, or no room on the disk.
        """
        content = _check(transaction_id, data) + data
        if os.pwrite(self._descriptor, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)
        if self._length > len(content):
            os.ftruncate(self._descriptor, len(content))
        self._length = len(content)
        entry = f"{self._directory}/{WAITING}{int(since * 1e9):020d}.{transaction_id}.{self._token}"
        os.rename(empty_name(self._directory, self._token), entry)
        self.entry = entry

    def withdraw(self) -> None:
        """Offers nothing any more."""
        if self.entry:
            vacate(self._directory, self.entry.rpartition("/")[2])
            self.entry = ""

    def close(self) -> None:
        self.withdraw()
        self.box.close()
        _unlink(empty_name(self._directory, self._token))
        os.close(self._descriptor)

    def forget(self) -> None:
        """Closes it; in a forked child it stays the seat of the parent."""
        if self._process == os.getpid():
            self.close()
        else:
            self.box.close()
            os.close(self._descriptor)


def _created(directory: str, token: str) -> int:
    flags, path = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, empty_name(directory, token)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)
        return os.open(path, flags, 0o666)


def empty_name(directory: str, token: str) -> str:
    return f"{directory}/{_EMPTY}{token}"


# ---- as a leader sees them -------------------------------------------------------------------------------------------------------


def transaction_of(entry: str) -> str:
    return entry.split(".")[3]


def seat_of(entry: str) -> str:
    """What tells the seat of an entry from all others."""
    return entry.rpartition(".")[2]


def read_entry(directory: str, entry: str, most: int) -> bytes:
    """What one who waits offers; nothing where that cannot be read whole, or its writer is dead: then the entry goes."""
    path = f"{directory}/{entry}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.read(descriptor, most + _CHECK_LENGTH)
        data = content[_CHECK_LENGTH:]
        return data if content[:_CHECK_LENGTH] == _check(transaction_of(entry), data) else b""
    except OSError:
        return b""
    else:
        _unlink(path)  # nobody holds it
        return b""
    finally:
        os.close(descriptor)


def vacate(directory: str, entry: str) -> None:
    """Takes an entry out; its seat stays for the next."""
    with suppress(OSError):  # somebody was faster
        os.rename(f"{directory}/{entry}", empty_name(directory, seat_of(entry)))


def send(entry: str, message: bytes) -> bool:
    """Writes to one who waits. Whether somebody on this machine was there to take it."""
    address = _address(seat_of(entry))
    with suppress(OSError):
        try:
            _sender().sendto(message, address)
        except BlockingIOError:
            # Either this box is full, or what nobody has read yet in any of them, which counts against whoever sent it.
            with _new_sender() as another:
                another.sendto(message, address)
        return True
    return False


_senders: Final[dict[int, socket.socket]] = {}
"""By process the socket that it sends from. A forked child makes its own, and shares none: what is sent has no state."""


def _sender() -> socket.socket:
    found = _senders.get(os.getpid())
    if found is None:
        found = _senders[os.getpid()] = _new_sender()
        atexit.register(found.close)
    return found


def _new_sender() -> socket.socket:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    return sender


def _check(transaction_id: str, data: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(transaction_id.encode() + data).encode()


def _address(token: str) -> str:
    return f"\0tiltyard-queue-{token}"


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


# ---- of one process --------------------------------------------------------------------------------------------------------------


class Seats:
    """The seats before one table that this process may use again. Threads may share them: each commit takes one of its own."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._free: list[Seat] = []
        self._process = 0
        """Whose they are; nobody's before the first is taken."""

    def take(self, since: float, transaction_id: str, data: bytes) -> Seat:
        """A seat that offers something: where the one we had is gone, as those of a table that was dropped, another.

        Raises:
            OSError: there is no place for one.
        """
        seat = self._kept() or Seat(self._directory)
        try:
            seat.offer(since, transaction_id, data)
        except OSError:
            seat.close()
            seat = Seat(self._directory)
            try:
                seat.offer(since, transaction_id, data)
            except OSError:
                seat.close()
                raise
        return seat

    def give_back(self, seat: Seat) -> None:
        seat.withdraw()
        if len(_all_kept) < MOST_KEPT:
            _all_kept.add(seat)
            self._free.append(seat)
        else:
            seat.close()

    def _kept(self) -> Seat | None:
        if self._process != (process := os.getpid()):
            free, self._free, self._process = self._free, [], process
            weakref.finalize(self, _close, self._free, process)
            for inherited in _emptied(free):
                inherited.forget()
        found = _emptied(self._free, 1)
        return found[0] if found else None


_all_kept: Final[set[Seat]] = set()
"""Without a lock, which a fork could leave locked for ever in the child."""


def _emptied(seats: list[Seat], most: int = MOST_KEPT) -> list[Seat]:
    """Takes seats out; another thread may do so at the same time."""
    found: list[Seat] = []
    with suppress(IndexError):
        while len(found) < most:
            found.append(seats.pop())
    _all_kept.difference_update(found)
    return found


def _close(seats: list[Seat], process: int) -> None:
    """When a handle goes, and when the process ends."""
    if process == os.getpid():
        for seat in _emptied(seats):
            seat.close()
