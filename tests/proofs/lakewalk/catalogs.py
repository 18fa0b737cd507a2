"""Catalogs from outside: copied, lost and put back behind everybody's back, as an administrator does it with files and dumps."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import sql

from tests.support.records import with_parameters

Copy = Any
"""What a copy of a catalog is, is its own business."""


class Shelf(Protocol):
    """Where a catalog lies.

    Attributes:
        kind: which one.
        uri: what ``Lake.open`` takes.
        arguments: what it needs beside.
    """

    kind: str
    uri: str
    arguments: dict[str, Any]

    def copy(self) -> Copy: ...

    def lose(self) -> None: ...

    def put_back(self, copy: Copy) -> None: ...


@dataclass
class SqliteShelf:
    """A SQLite file; copied as its own backup does it, since others may have it open."""

    uri: str
    file: Path
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = "sqlite"

    def copy(self) -> Copy:
        with closing(sqlite3.connect(self.file)) as source, closing(sqlite3.connect(":memory:")) as target:
            source.backup(target)
            return target.serialize()

    def lose(self) -> None:
        for tail in ("", "-wal", "-shm"):
            Path(f"{self.file}{tail}").unlink(missing_ok=True)

    def put_back(self, copy: Copy) -> None:
        self.lose()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(copy)


@dataclass
class ManifestShelf:
    """A directory ``__manifest`` beside the tables."""

    uri: str
    arguments: dict[str, Any] = field(default_factory=lambda: {"catalog": "manifest"})
    kind: str = "manifest"

    @property
    def directory(self) -> Path:
        return Path(self.uri) / "__manifest"

    def copy(self) -> Copy:
        return {str(file.relative_to(self.directory)): file.read_bytes() for file in self.directory.rglob("*") if file.is_file()}

    def lose(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def put_back(self, copy: Copy) -> None:
        self.lose()
        for name, data in copy.items():
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


@dataclass
class PostgresShelf:
    """A schema of a PostgreSQL database."""

    uri: str
    server: str
    schema: str
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = "postgres"

    def copy(self) -> Copy:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            names = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [self.schema])]
            return {name: connection.execute(sql.SQL("SELECT * FROM {}").format(self._table(name))).fetchall() for name in names}

    def lose(self) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self.schema)))
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))

    def put_back(self, copy: Copy) -> None:
        """The tables are there already where the catalog was not lost; where it was, whoever opens it makes them first."""
        from tiltyard.catalog.open_records import open_records

        open_records(self.uri).close()
        with psycopg.connect(self.uri) as connection:
            for name, rows in copy.items():
                connection.execute(sql.SQL("DELETE FROM {}").format(self._table(name)))
                for row in rows:
                    marks = sql.SQL(", ").join(sql.Placeholder() for _ in row)
                    connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(self._table(name), marks), row)

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier(self.schema, name)


def make_shelf(kind: str, home: Path, root: Path, server: str | None) -> Shelf:
    """A place for a new catalog: inside its root for SQLite and ``__manifest``, or beside it where they differ."""
    if kind == "manifest":
        return ManifestShelf(str(root))
    if kind == "postgres":
        assert server is not None
        schema = f"walk_{uuid.uuid4().hex}"
        shelf = PostgresShelf(with_parameters(server, options=f"-csearch_path={schema}"), server, schema, {"root": str(root)})
        shelf.lose()
        return shelf
    if home == root:
        return SqliteShelf(str(root), root / "catalog.db")
    home.mkdir(parents=True, exist_ok=True)
    return SqliteShelf(f"sqlite:///{home}/catalog.db", home / "catalog.db", {"root": str(root)})
