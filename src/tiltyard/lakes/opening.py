"""From a URI to the catalog of a lake and to where its tables live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tiltyard.catalog.open import open_records
from tiltyard.catalog.records import Records
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.interfaces import Runtime
from tiltyard.redact import redact
from tiltyard.storage import Durability, address_of, local_path, refuse_file

CATALOG_FILE: Final = "catalog.db"
"""The SQLite catalog inside the directory of an embedded lake."""

_SQL: Final = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True)
class Where:
    """Where the tables of a lake live.

    Attributes:
        root: the directory that locations are relative to; empty where only the catalog knows.
        beside: whether the root is known from where the catalog is, so that the lake can be moved as a whole.
    """

    root: str
    beside: bool
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    durability: Durability = "fsync"

    @property
    def stated_root(self) -> str | None:
        """What the catalog has to remember of it."""
        return None if self.beside else self.root

    def with_root(self, stated: str | None) -> Where:
        """The root as the catalog remembers it, unless the caller named one.

        Raises:
            InvalidInput: nobody named one.
        """
        root = self.root or stated
        if not root:
            raise InvalidInput("Nobody said where the tables of this lake live.", argument="root", advice="Pass root= the first time.")
        return replace(self, root=root)

    def uri_of(self, location: str) -> str:
        """The URI of a table: below the root, or a place of its own."""
        if "://" in location or os.path.isabs(location):  # noqa: PTH117
            return location
        return f"{self.root.rstrip('/')}/{location}"


def open_where(
    uri: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    catalog: str | None,
    storage_options: Mapping[str, Any] | None,
    durability: Durability,
    runtime: Runtime,
    *,
    create: bool = True,
) -> tuple[Where, Records]:
    """The catalog at a URI, and what is known of where its tables live.

    Raises:
        InvalidInput: no catalog is known for the URI.
        NotFound: there is no such file, and none may be made.
    """
    text = address_of(uri)
    scheme = text.partition("://")[0].partition("+")[0].lower() if "://" in text else ""
    stated = None if root is None else _absolute(address_of(root, "root"))
    if stated is not None and redact(stated) != stated:  # the catalog remembers it, and everybody who opens the lake reads that
        raise InvalidInput("The root of a lake must not hold credentials.", argument="root", advice="Pass them in storage_options.")
    if durability not in ("fsync", "os"):
        raise InvalidInput(f"No such durability: {durability!r}.", argument="durability", advice="Use 'fsync' or 'os'.")
    if catalog not in (None, "sqlite", "manifest"):
        raise InvalidInput(f"catalog is 'sqlite' or 'manifest', not {catalog!r}.", argument="catalog")
    if scheme in _SQL:
        if catalog == "manifest":
            raise InvalidInput(f"{redact(text)} is a database, not a place for a manifest table.", argument="catalog")
        beside = _sqlite_directory(text) if scheme == "sqlite" and stated is None else None
        where = Where(stated or beside or "", beside is not None, storage_options, durability)
        if not create and scheme == "sqlite":
            _require(_sqlite_path(text))
        return where, open_records(text, runtime=runtime, durability=durability)
    refuse_file(text, "A lake")
    home = _absolute(text)
    where = Where(stated or home, stated is None, storage_options, durability)
    if catalog == "manifest" or (catalog is None and (scheme not in ("", "file") or _has_manifest(home))):
        from tiltyard.catalog.manifest_records import ManifestRecords

        return where, ManifestRecords(home, runtime=runtime, storage_options=storage_options, durability=durability)
    if scheme not in ("", "file"):
        raise InvalidInput(f"A SQLite catalog needs a local directory, not {redact(text)}.", argument="catalog")
    if not create:
        _require(f"{local_path(home)}/{CATALOG_FILE}")
    return where, open_records(f"sqlite:///{local_path(home)}/{CATALOG_FILE}", runtime=runtime, durability=durability)


def _has_manifest(home: str) -> bool:
    """Whether the catalog of a directory is known to be a table in it."""
    path = Path(local_path(home))
    return (path / "__manifest").is_dir() and not (path / CATALOG_FILE).exists()


def _require(path: str) -> None:
    """Opening a database makes one, which somebody who only asks does not want."""
    if not Path(path).is_file():
        raise NotFound(f"There is no lake at {redact(path)}.", name=redact(path), advice="Use `tiltyard lake init`.")


def _absolute(uri: str) -> str:
    return uri if "://" in uri else local_path(uri)


def _sqlite_path(url: str) -> str:
    return local_path(url.partition("://")[2].removeprefix("/"))


def _sqlite_directory(url: str) -> str:
    return os.path.dirname(_sqlite_path(url))  # noqa: PTH120
