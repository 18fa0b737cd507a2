"""Records in an SQLite file: the embedded catalog, for all processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import QueuePool

from tiltyard.catalog.database import Failure, Trouble
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.records import Offering, Ticket
from tiltyard.catalog.tickets import FileTickets
from tiltyard.errors import InvalidInput, StorageError
from tiltyard.storage.files import storage_error, sync_parent
from tiltyard.storage.local import Durability

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ADVICE = {
    sqlite3.SQLITE_FULL: "Free space on this file system, then try again.",
    sqlite3.SQLITE_READONLY: "Give this user the right to write the file and its directory.",
    sqlite3.SQLITE_CANTOPEN: "Give this user the right to open the file and to write its directory.",
    sqlite3.SQLITE_NOTADB: "Name another file: this one is not a SQLite database.",
    sqlite3.SQLITE_CORRUPT: "Restore the catalog from a copy.",
    sqlite3.SQLITE_IOERR: "Check the disk: the system reports an input/output error.",
}

# Straight to the driver, which takes a fifth of the time: others wait meanwhile, or a client does. Keys are one JSON text, since the number
# of parameters is limited and all of them must be looked up in one statement.
_LOOK = "SELECT key, body FROM tiltyard_records WHERE key IN (SELECT value FROM json_each(?))"
_INSERT = "INSERT INTO tiltyard_records (key, body) VALUES (?, ?) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE tiltyard_records SET body = ?2 WHERE key = ?1"
_DELETE = "DELETE FROM tiltyard_records WHERE key = ?"


_PAGES = ("freelist_count", "page_count", "page_size")
_WORTH_BYTES = 1024 * 1024
_WORTH_PART = 4
"""A file is made smaller if at least a megabyte and a quarter of it is free."""


class Sqlite:
    """An SQLite file with a write-ahead log: readers see the last commit and wait for nobody, one writer at a time."""

    # Waiting is ours and not SQLite's, whose own waits grow to 100 ms, many times what a commit takes.
    patience = Patience(first=0.001, longest=0.02, attempts=1_000_000, seconds=10.0)
    one_writer = True
    lock_all = ""

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        given = os.fspath(path)
        if not given or given == ":memory:" or "\0" in given:
            raise InvalidInput("An SQLite catalog needs the path of a file.", argument="url", advice="Write sqlite:///path/to/catalog.db.")
        self.path = Path(given).expanduser().absolute()
        self.shown = f"sqlite:///{self.path}"
        self.queue: Path | None = self.path.parent
        self._durability = durability
        self._tickets = FileTickets(self.path.parent)

    def engine(self) -> Engine:
        self._make_directory()
        # The path goes to SQLite as it is, never through a URL: it may hold any character. The connection that was used last
        # comes first: it has the pages in its memory that it wrote.
        pool: dict[str, Any] = {"poolclass": QueuePool, "max_overflow": -1, "pool_use_lifo": True}
        return create_engine("sqlite://", creator=self._connect, isolation_level="AUTOCOMMIT", hide_parameters=True, **pool)

    def read(self, connection: Connection, keys: Collection[str]) -> Sequence[tuple[str, str]]:
        return _driver(connection).execute(_LOOK, (json.dumps(list(keys)),)).fetchall()

    def begin(self, connection: Connection) -> None:
        # Takes the right to write before the look, so that what was seen cannot change and no reader has to become a writer.
        _driver(connection).execute("BEGIN IMMEDIATE")

    def look(self, connection: Connection, ordered: Sequence[tuple[str, bool]]) -> Sequence[tuple[str, str]]:
        return _driver(connection).execute(_LOOK, (json.dumps([key for key, _ in ordered]),)).fetchall()

    def insert(self, connection: Connection, new: Sequence[tuple[str, str]]) -> set[str]:
        driver = _driver(connection)
        return {key for key, body in new if driver.execute(_INSERT, (key, body)).rowcount}

    def update(self, connection: Connection, known: Sequence[tuple[str, str]]) -> None:
        _driver(connection).executemany(_UPDATE, known)

    def delete(self, connection: Connection, keys: Collection[str]) -> None:
        _driver(connection).executemany(_DELETE, [(key,) for key in sorted(keys)])

    def ticket(self, engine: Engine, names: Collection[str], longest: float) -> Ticket:
        return self._tickets.take(names, longest)

    def ticket_for(self, names: Collection[str], longest: float, who: Offering) -> Ticket:
        """See ``TakesOffers.ticket_for``."""
        return self._tickets.take(names, longest, who)

    def holder(self, engine: Engine) -> str:
        return writer_of(self.path)

    def failure(self, error: BaseException | None) -> Failure:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        name = str(getattr(error, "sqlite_errorname", type(error).__name__))
        primary = code & 0xFF
        if primary in _BUSY:
            return Failure(Trouble.BUSY, name, transient=True)
        # Of a commit that failed in the middle, the log on the disk may hold enough for the next one who opens the file to finish it.
        trouble = Trouble.LOST if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL) else Trouble.FAILED
        return Failure(trouble, name, transient=primary == sqlite3.SQLITE_FULL, advice=_ADVICE.get(primary, ""))

    def committed(self, cursor: Any) -> bool:
        return True

    def shrink(self) -> int:
        """Makes the file smaller where a good part of it is free; how many bytes. Writers wait meanwhile, readers do not."""
        connection = self._connect()
        try:
            connection.execute("PRAGMA busy_timeout=5000")
            free, pages, size = (int(connection.execute(f"PRAGMA {what}").fetchone()[0]) for what in _PAGES)
            if free * size < _WORTH_BYTES or free * _WORTH_PART < pages:
                return 0
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return (pages - int(connection.execute("PRAGMA page_count").fetchone()[0])) * size
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
                return 0  # others are at work; the next cleanup tries again
            raise StorageError(f"{self.shown} could not be shrunk: {error}.", advice=_ADVICE.get(sqlite3.SQLITE_FULL, "")) from error
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                advice = "Put the catalog on a local disk, or use PostgreSQL."
                raise StorageError(f"{self.shown} cannot keep a write-ahead log there (SQLite answered {mode!r}).", advice=advice)
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durability == 'fsync' else 'NORMAL'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_directory(self) -> None:
        """Makes the file's directory, and sees that its name survives a power loss as the records in it will."""
        missing = [place for place in self.path.parents if not place.exists()]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._durability == "fsync":
                for place in missing:
                    sync_parent(str(place))
        except OSError as error:
            raise storage_error("make", self.path.parent.name, str(self.path.parent.parent), error) from error


def _driver(connection: Connection) -> sqlite3.Connection:
    found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found


_WRITE_BYTE: Final = 120
"""The byte of the file ``-shm`` that is locked by whoever writes to a database with a write-ahead log."""

_LOCKS: Final = Path("/proc/locks")
# Its state stands after the name of its program, which stands in brackets and may hold any character.
_STOPPED: Final = "Tt"


def writer_of(database: Path) -> str:
    """The process that writes to a database and what to do about it, in a sentence; empty where that cannot be told.

    Only reads: to ask the file itself one would have to open and close it, and closing it gives up all locks of this very process.
    """
    try:
        shared = Path(f"{database}-shm").stat()
        held = _LOCKS.read_text()
    except OSError:
        return ""
    # 1: POSIX  ADVISORY  WRITE 3568 fd:00:1234 120 120
    inode = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
    for line in held.splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1:4] == ["POSIX", "ADVISORY", "WRITE"] and fields[5] == inode and _covers(fields[6], fields[7]):
            return _told(fields[4])
    return ""


def _covers(start: str, end: str) -> bool:
    return int(start) <= _WRITE_BYTE and (end == "EOF" or int(end) >= _WRITE_BYTE)


def _told(pid: str) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    if state and state in _STOPPED:
        return f"Process {pid} holds its lock and is stopped: resume it (kill -CONT {pid}) or end it."
    return f"Process {pid} holds its lock: wait for it, or end it if it hangs."
