"""A commit lock kept by a PostgreSQL server: for writers on different machines."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tiltyard.errors import InvalidInput, StorageError, UnsupportedFeature

if TYPE_CHECKING:
    import psycopg

# Both ends ask for a sign of life after 10 silent seconds and give up 15 seconds later. The system's default of two hours would
# be the time for which a machine that lost its power blocks all others.
_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}

_LONGEST_WAIT = 2_000_000.0  # seconds; the server counts milliseconds in 31 bits

# Read committed, so that the open transaction keeps no snapshot while we hold the lock, and so hinders no vacuum.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
_SET = "SELECT set_config(s.name, s.value, true) FROM unnest(%s::text[], %s::text[]) AS s (name, value)"
_TAKE = "SELECT pg_advisory_xact_lock(%s)"

_WHO = """
SELECT a.application_name, a.pid
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_database d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
  AND ((l.classid::bigint << 32) | l.objid::bigint) = %s
"""


class PostgresLock:
    """A lock in a PostgreSQL server, by the table's name; it ends with the holder's connection.

    Call it with a version to get a context manager, which is the form of pylance's ``commit_lock`` too. The lock covers the whole
    table: the version only has to be there. Each hold has a connection of its own, with nothing else on it.

    It is an advisory lock of one open transaction, not of a session: both end with the connection, but a pooler that shares
    sessions between clients would keep a dead client's session lock alive. The end of the transaction is also the proof that
    the lock was held to the end; without it the hold ends in ``StorageError`` with ``maybe_applied``.

    Args:
        url: ``postgresql://...`` or a libpq connection string. It is shown nowhere.
        table: the table's name or URI, spelled alike by all its writers: it is what the lock is keyed by.
        timeout: seconds to wait for the holder; 0 asks once.
    """

    def __init__(self, url: str, table: str, *, timeout: float = 30.0) -> None:
        if not 0 <= timeout <= _LONGEST_WAIT:
            raise InvalidInput(f"A lock cannot wait {timeout} seconds.", argument="timeout")
        if not table.strip("/"):
            raise InvalidInput("A lock needs the name of its table.", argument="table")
        self._parameters = _parameters(url)
        self.table = table
        self.timeout = timeout
        self.key = lock_key(table)

    def __repr__(self) -> str:
        return f"PostgresLock({self._where()!r}, {self.table!r}, timeout={self.timeout})"

    @contextmanager
    def __call__(self, version: int) -> Iterator[None]:
        connection = self._connect()
        try:
            self._take(connection)
            yield
            self._release(connection)
        finally:
            connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        driver = _psycopg()
        try:
            # Parameters are bound here, not by the server: there, a statement with parameters keeps its snapshot until the next.
            connection: psycopg.Connection[Any] = driver.connect(
                **(_defaults() | self._parameters), autocommit=True, cursor_factory=driver.ClientCursor
            )
            return connection
        except driver.Error as error:
            problem = self._failed("cannot be reached", error)
        # Raised out here, so that the driver's own words, which may quote the address, are not chained to it.
        raise problem

    def _take(self, connection: psycopg.Connection[Any]) -> None:
        driver = _psycopg()
        try:
            connection.execute(_BEGIN)
            settings = dict(self._settings(connection.info.server_version))
            connection.execute(_SET, (list(settings), list(settings.values())))
            connection.execute(_TAKE, (self.key,))
        except driver.errors.LockNotAvailable:
            problem = self._busy(connection)
        except driver.Error as error:
            problem = self._failed("did not give the lock", error)
        else:
            return
        raise problem

    def _settings(self, server_version: int) -> Iterator[tuple[str, str]]:
        """What holds for our transaction alone, whatever the server's habits: we stop waiting, nobody ends us for being idle."""
        yield "lock_timeout", str(max(int(self.timeout * 1000), 1))  # 0 would mean: for ever
        yield "statement_timeout", "0"
        yield "idle_in_transaction_session_timeout", "0"
        if server_version >= 170_000:
            yield "transaction_timeout", "0"
        for name, value in _KEEPALIVE.items():
            yield f"tcp_{name}", value

    def _release(self, connection: psycopg.Connection[Any]) -> None:
        driver = _psycopg()
        try:
            kept = connection.execute("COMMIT").statusmessage == "COMMIT"
            state = ""
        except driver.Error as error:
            kept, state = False, _state(error)
        if not kept:
            raise StorageError(
                f"The lock of {self.table} at {self._where()} was lost while it was held{state}, so another writer may have been at work.",
                name=self.table,
                maybe_applied=True,
                transient=True,
                advice="Read back what was written.",
            )

    def _busy(self, connection: psycopg.Connection[Any]) -> StorageError:
        driver = _psycopg()
        holder = "somebody"
        try:
            connection.execute("ROLLBACK")
            row = connection.execute(_WHO, (self.key,)).fetchone()
            if row is not None:
                holder = f"{row[0] or 'somebody'} (backend {row[1]})"
        except driver.Error:
            pass  # only the name is lost; that the lock is taken we know already
        return StorageError(
            f"The lock of {self.table} at {self._where()} is held by {holder}; waited {self.timeout:g} s.",
            name=self.table,
            transient=True,
            advice="Nothing was written. Try again; if the holder hangs, end it.",
        )

    def _failed(self, what: str, error: psycopg.Error) -> StorageError:
        return StorageError(
            f"The lock server {self._where()} {what}{_state(error)}.",
            name=self.table,
            transient=True,
            advice="Nothing was written. Check that the server runs and accepts this user, then try again.",
        )

    def _where(self) -> str:
        return "{host}:{port}/{dbname}".format_map({"host": "localhost", "port": "5432", "dbname": ""} | self._parameters)


def lock_key(table: str) -> int:
    """The signed 64-bit number that stands for a table among a server's advisory locks, the same in every release."""
    digest = hashlib.sha256(b"tiltyard commit lock\0" + table.rstrip("/").encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _parameters(url: str) -> dict[str, Any]:
    driver = _psycopg()
    # A URL may name SQLAlchemy's driver, as the one of a catalog does.
    address = url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        given = driver.conninfo.conninfo_to_dict(address)
    except driver.Error:
        given = None
    if not given:
        # Raised out here and without its cause, since the driver quotes the address, password and all.
        raise InvalidInput("The lock's address is not a PostgreSQL connection string.", argument="url")
    return dict(given)


def _defaults() -> dict[str, Any]:
    """What the address may say otherwise. Asked for at each connection, because a lock may have moved to another process."""
    name = f"tiltyard lock, process {os.getpid()} on {socket.gethostname()}"
    # A standby keeps advisory locks of its own, which exclude nobody here: hence only a server that can be written to.
    return {"connect_timeout": "10", "target_session_attrs": "read-write", "application_name": name[:63], **_KEEPALIVE}


def _state(error: psycopg.Error) -> str:
    """Codes alone: the driver's text may quote parts of the address."""
    return f" ({type(error).__name__}, SQLSTATE {error.sqlstate})" if error.sqlstate else f" ({type(error).__name__})"


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.errors
    except ImportError:
        raise UnsupportedFeature(
            "A PostgreSQL lock needs psycopg, which is not installed.",
            feature="postgres lock",
            advice="Install tiltyard with its extra: tiltyard[postgres].",
        ) from None
    return psycopg
