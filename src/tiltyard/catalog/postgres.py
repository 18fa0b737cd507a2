"""Records in a PostgreSQL database: for writers on different machines."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, any_, bindparam, create_engine, delete, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, TEXT, insert
from sqlalchemy.exc import SQLAlchemyError

from tiltyard.catalog.database import Failure, Trouble
from tiltyard.catalog.migrations import RECORDS
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.records import Ticket
from tiltyard.catalog.tickets import NoTicket, ticket_number
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.storage.local import Durability

# Serialization failure, deadlock, lock not available; and the server ended a transaction whose client was silent for too long.
_BUSY = frozenset({"40001", "40P01", "55P03", "25P03"})
# Connection exceptions, the server shutting down or crashing, and "statement completion unknown": the answer says nothing of the deed.
_LOST = ("08", "57P", "40003")
_TRANSIENT = ("53", "57", "58")  # resources, operator intervention, the system below

# Both ends notice within half a minute that the other one is gone, and a client that hangs with locks in its hands, be it stopped, loses
# them: between two statements of ours there are never more than a few milliseconds of work.
_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000"}
_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"

# One pass over the keys in the order given: for each the row is locked, as strongly as that key needs, before the next is looked at. Row
# locks that wait give the row as it is when the lock is there.
_LOOK = text("""
SELECT wanted.key, coalesce(written.body, kept.body) AS body
FROM unnest(CAST(:keys AS text[]), CAST(:strong AS boolean[])) AS wanted (key, strong)
LEFT JOIN LATERAL (
    SELECT body FROM tiltyard_records AS r WHERE r.key = wanted.key COLLATE "C" AND wanted.strong FOR UPDATE
) AS written ON true
LEFT JOIN LATERAL (
    SELECT body FROM tiltyard_records AS r WHERE r.key = wanted.key COLLATE "C" AND NOT wanted.strong FOR SHARE
) AS kept ON true
""")

# Made once: to put a statement together takes longer than to run it.
_AMONG = RECORDS.c.key == any_(bindparam("keys", type_=ARRAY(TEXT)))
_GET = select(RECORDS.c.key, RECORDS.c.body).where(_AMONG)
_INSERT = insert(RECORDS).on_conflict_do_nothing().returning(RECORDS.c.key)
_UPDATE = update(RECORDS).where(RECORDS.c.key == bindparam("of")).values(body=bindparam("to"))
_DELETE = delete(RECORDS).where(_AMONG)

_HOLDER = text("""
SELECT a.pid, left(coalesce(a.application_name, ''), 63) AS application_name, coalesce(a.state, 'unknown') AS state,
    CAST(coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0) AS integer) AS seconds
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = to_regclass('tiltyard_records') AND l.granted AND l.mode <> 'AccessShareLock' AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 1
""")

# Locks of a transaction that does nothing else. The server grants each in the order in which it was asked for, and takes them from a client
# that is gone, or silent for longer than any rebase takes.
_TICKET = "BEGIN; SET LOCAL lock_timeout = {wait}; SET LOCAL idle_in_transaction_session_timeout = '10s'"
_TRY_TICKET = text("SELECT coalesce(bool_and(pg_try_advisory_xact_lock(name)), true) FROM unnest(CAST(:names AS bigint[])) AS name")
_AWAIT_TICKET = text("SELECT count(pg_advisory_xact_lock(name)) FROM unnest(CAST(:names AS bigint[])) AS name")

_CATALOG_LOCK = 0x74696C7479617264  # "tiltyard"


@dataclass(slots=True)
class PostgresTicket:
    """Advisory locks that an open transaction holds."""

    waited: bool
    _connection: Connection | None

    def give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _end(connection)


def _end(connection: Connection) -> None:
    """Ends a transaction that wrote nothing. Where even that fails, the connection is thrown away, and the server ends it."""
    try:
        connection.exec_driver_sql("ROLLBACK")
    except SQLAlchemyError:
        connection.invalidate()
    connection.close()


class Postgres:
    """One database of a PostgreSQL server.

    Args:
        url: ``postgresql://...`` or a libpq connection string. It is shown nowhere.
        durability: ``"os"`` lets the server answer before a commit is on its disk; otherwise its own setting stands.
        lock_timeout: seconds to wait for a lock before everything is let go and tried again.
    """

    patience = Patience(first=0.1, longest=2.0, attempts=16, seconds=30.0)
    one_writer = False
    queue: Path | None = None
    lock_all = f"SELECT pg_advisory_xact_lock({_CATALOG_LOCK})"

    def __init__(self, url: str, *, durability: Durability = "fsync", lock_timeout: float = 5.0) -> None:
        self._parameters = _parameters(url)
        self.shown = "postgresql://{host}:{port}/{dbname}".format_map(
            {"host": "localhost", "port": "5432", "dbname": ""} | self._parameters
        )
        # Read committed: each statement sees what is committed when it begins, so a look after a wait is never a stale one.
        begin = ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", f"SET LOCAL lock_timeout = {max(int(lock_timeout * 1000), 1)}", _IDLE]
        begin += [] if durability == "fsync" else ["SET LOCAL synchronous_commit = off"]
        self._begin = "; ".join(begin)

    def engine(self) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            max_overflow=-1,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            use_native_hstore=False,
        )

    def read(self, connection: Connection, keys: Collection[str]) -> Sequence[tuple[str, str]]:
        return [(row.key, row.body) for row in connection.execute(_GET, {"keys": list(keys)})]

    def look(self, connection: Connection, ordered: Sequence[tuple[str, bool]]) -> Sequence[tuple[str, str]]:
        rows = connection.execute(_LOOK, {"keys": [key for key, _ in ordered], "strong": [strong for _, strong in ordered]})
        return [(row.key, row.body) for row in rows if row.body is not None]

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._begin, execution_options={"no_parameters": True})

    def insert(self, connection: Connection, new: Sequence[tuple[str, str]]) -> set[str]:
        return set(connection.execute(_INSERT, [{"key": key, "body": body} for key, body in new]).scalars())

    def update(self, connection: Connection, known: Sequence[tuple[str, str]]) -> None:
        connection.execute(_UPDATE, [{"of": key, "to": body} for key, body in known])

    def delete(self, connection: Connection, keys: Collection[str]) -> None:
        connection.execute(_DELETE, {"keys": list(keys)})

    def ticket(self, engine: Engine, names: Collection[str], longest: float) -> Ticket:
        numbers = {"names": sorted(map(ticket_number, set(names)))}
        waited, connection = False, None
        try:
            connection = engine.connect()
            begin = _TICKET.format(wait=max(int(longest * 1000), 1))
            connection.exec_driver_sql(begin, execution_options={"no_parameters": True})
            waited = not connection.execute(_TRY_TICKET, numbers).scalar()
            if waited:
                connection.execute(_AWAIT_TICKET, numbers)
        except SQLAlchemyError:
            if connection is not None:
                _end(connection)
            return NoTicket(waited)
        except BaseException:
            if connection is not None:
                _end(connection)
            raise
        return PostgresTicket(waited, connection)

    def holder(self, engine: Engine) -> str:
        try:
            with engine.connect() as connection:
                found = connection.execute(_HOLDER).first()
        except SQLAlchemyError:
            return ""
        if found is None:
            return ""
        who = f"{found.application_name!r} (backend {found.pid}, {found.state}, {found.seconds} s)"
        return f"{who} holds its locks: end it with SELECT pg_terminate_backend({found.pid})."

    def failure(self, error: BaseException | None) -> Failure:
        state = getattr(error, "sqlstate", None)
        if state is None or state.startswith(_LOST):
            advice = "Check that the server runs and accepts this user, then try again."
            return Failure(Trouble.LOST, state or "no answer", transient=True, advice=advice)
        if state in _BUSY:
            return Failure(Trouble.BUSY, state, transient=True)
        return Failure(Trouble.FAILED, state, transient=state.startswith(_TRANSIENT))

    def committed(self, cursor: Any) -> bool:
        return bool(cursor.statusmessage == "COMMIT")

    def _connect(self) -> Any:
        driver = _psycopg()
        # Without prepared statements, which poolers between us and the server do not all keep apart.
        return driver.connect(**(_defaults() | self._parameters), prepare_threshold=None)


def _parameters(url: str) -> dict[str, Any]:
    driver = _psycopg()
    scheme, separator, rest = url.partition("://")
    address = f"postgresql://{rest}" if separator and scheme.startswith(("postgresql+", "postgres")) else url
    try:
        given = driver.conninfo.conninfo_to_dict(address)
    except driver.Error:
        given = None
    if not given:
        # Raised out here and without its cause, since the driver quotes the address, password and all.
        raise InvalidInput("The catalog's address is not a PostgreSQL connection string.", argument="url")
    return dict(given)


def _defaults() -> dict[str, Any]:
    """What the address may say otherwise."""
    name = f"tiltyard, process {os.getpid()} on {socket.gethostname()}"
    # Of several hosts the one that can be written to: a standby would answer with what was, and take no commit.
    return {"connect_timeout": "10", "target_session_attrs": "read-write", "application_name": name[:63], **_KEEPALIVE}


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise UnsupportedFeature(
            "A PostgreSQL catalog needs psycopg, which is not installed.",
            feature="postgres catalog",
            advice="Install tiltyard with its extra: tiltyard[postgres].",
        ) from None
    return psycopg
