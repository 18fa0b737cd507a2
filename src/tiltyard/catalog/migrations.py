"""The tables of a catalog database, and how an older catalog becomes one of today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, func, insert, inspect, select, update

from tiltyard.errors import UnsupportedFeature

TABLES: Final = MetaData()

# Keys are compared byte by byte: the order in which everybody locks must not depend on a server's language.
_KEY: Final = Text().with_variant(Text(collation="C"), "postgresql").with_variant(Text(collation="BINARY"), "sqlite")

# A body is text and not JSON: nobody looks into it with SQL, and PostgreSQL's JSON cannot hold every string.
RECORDS: Final = Table("tiltyard_records", TABLES, Column("key", _KEY, primary_key=True), Column("body", Text, nullable=False))

SCHEMA: Final = Table("tiltyard_schema", TABLES, Column("name", Text, primary_key=True), Column("version", Integer, nullable=False))
"""One row, named ``catalog``, with the number of migrations that were applied."""

Migration = Callable[[Connection], None]


def _first(connection: Connection) -> None:
    RECORDS.create(connection)


MIGRATIONS: Final[tuple[Migration, ...]] = (_first,)
"""What was done to the tables, oldest first. Only ever appended to: a catalog remembers how many of them it has had."""


def schema_version(connection: Connection) -> int:
    """How many migrations this catalog has had; 0 for a database in which there is no catalog."""
    if not inspect(connection).has_table(SCHEMA.name):
        return 0
    return int(connection.scalar(select(func.max(SCHEMA.c.version)).where(SCHEMA.c.name == "catalog")) or 0)


def is_current(connection: Connection, where: str) -> bool:
    """Whether nothing has to be done before this catalog can be used; one from the future is refused."""
    version = schema_version(connection)
    if version > len(MIGRATIONS):
        raise UnsupportedFeature(
            f"The catalog {where} has schema {version}; this release knows schemas up to {len(MIGRATIONS)}.",
            feature=f"catalog schema {version}",
            advice="Upgrade tiltyard.",
        )
    return version == len(MIGRATIONS)


def migrate(connection: Connection, where: str) -> None:
    """Brings the catalog up to date. The caller holds the lock of the whole catalog in an open transaction, and ends both."""
    if is_current(connection, where):
        return
    version = schema_version(connection)
    if version == 0:
        SCHEMA.create(connection, checkfirst=True)
        connection.execute(insert(SCHEMA).values(name="catalog", version=0))
    for migration in MIGRATIONS[version:]:
        migration(connection)
    connection.execute(update(SCHEMA).where(SCHEMA.c.name == "catalog").values(version=len(MIGRATIONS)))
