"""What each command found, before anybody decides how it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

import tiltyard as ty


@dataclass(frozen=True, slots=True)
class Where:
    """The table a command looked at."""

    uri: str
    branch: str | None
    latest: int


@dataclass(frozen=True, slots=True)
class Log:
    """The newest entries of a history, and how many older versions were left out."""

    where: Where
    entries: tuple[ty.HistoryEntry, ...]
    older: int


@dataclass(frozen=True, slots=True)
class Index:
    """One index of a table."""

    name: str
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """All of one version."""

    where: Where
    entry: ty.HistoryEntry
    schema: pa.Schema
    primary_key: tuple[str, ...]
    data_format: str
    features: str
    fragments: tuple[ty.ops.DataFragment, ...]
    config: Mapping[str, str]
    metadata: Mapping[str, str]
    tags: tuple[str, ...]
    indices: tuple[Index, ...] | None
    """None where pylance cannot open the version, so that nobody can say."""

    @property
    def deleted_rows(self) -> int:
        return sum(one.physical_rows - one.live_rows for one in self.fragments)


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of one version."""

    where: Where
    version: int
    rows: pa.Table
    limit: int
    total: int | None
    """How many rows there are in all; None under a filter, which would have to be counted."""


def rebased_over(entry: ty.HistoryEntry) -> range:
    """The versions that came between the one an operation was built on and the one it made."""
    if not entry.read_version:
        return range(0)
    return range(entry.read_version + 1, entry.version)


def log_of(table: ty.Table, uri: str, limit: int | None) -> Log:
    versions = table.versions()
    entries = tuple(table.history(limit))
    return Log(Where(uri, table.branch, versions[-1]), entries, max(len(versions) - len(entries), 0))


def shown(table: ty.Table, uri: str) -> Shown:
    return Shown(
        where=Where(uri, table.branch, table.latest_version()),
        entry=table.describe(),
        schema=table.schema,
        primary_key=table.primary_key,
        data_format=table.data_format,
        features=table.features,
        fragments=tuple(table.fragments),
        config=table.config,
        metadata=table.metadata,
        tags=tuple(name for name, tag in table.tags.items() if tag.version == table.version and tag.branch == table.branch),
        indices=_indices(table),
    )


def _indices(table: ty.Table) -> tuple[Index, ...] | None:
    try:
        described = table.lance.describe_indices()
    except ty.TiltyardError:
        return None
    return tuple(Index(one.name, one.index_type, tuple(one.field_names)) for one in described)


def page(table: ty.Table, uri: str, columns: list[str] | None, condition: str | None, limit: int) -> Page:
    rows = table.to_arrow(columns=columns, filter=condition, limit=limit)
    total = None if condition else table.count_rows()
    return Page(Where(uri, table.branch, table.latest_version()), table.version, rows, limit, total)
