"""What each command found, before anybody decides how it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute

import tiltyard as ty
from tiltyard.redact import redact_options


@dataclass(frozen=True, slots=True)
class RowAddress:
    """The table a command looked at."""

    uri: str
    branch: str | None
    latest: int


@dataclass(frozen=True, slots=True)
class LogPage:
    """The newest entries of a history, and how many older versions were left out."""

    where: RowAddress
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

    where: RowAddress
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
        return sum(fragment.physical_rows - fragment.live_rows for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of one version."""

    where: RowAddress
    version: int
    rows: pa.Table
    limit: int
    total: int | None
    """How many rows there are in all; None under a filter, which would have to be counted."""


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed between two versions: how much in all, and some of the rows."""

    where: RowAddress
    first: int
    last: int
    counts: Mapping[str, int]
    rows: pa.Table


def rebased_over(entry: ty.HistoryEntry) -> range:
    """The versions that came between the one an operation was built on and the one it made."""
    if not entry.read_version:
        return range(0)
    return range(entry.read_version + 1, entry.version)


def log_of(table: ty.Table, uri: str, limit: int | None) -> LogPage:
    versions = table.layout.versions()
    entries = tuple(table.history(limit))
    return LogPage(RowAddress(uri, table.branch, versions[-1]), entries, max(len(versions) - len(entries), 0))


def shown(table: ty.Table, uri: str) -> Shown:
    return Shown(
        where=RowAddress(uri, table.branch, table.layout.latest_version()),
        entry=table.transactions.describe(),
        schema=table.schema,
        primary_key=table.primary_key,
        data_format=table.layout.data_format,
        features=table.layout.features,
        fragments=tuple(table.layout.fragments),
        config=redact_options(table.settings.config),
        metadata=redact_options(table.settings.metadata),
        tags=tuple(name for name, tag in table.tags.items() if tag.version == table.version and tag.branch == table.branch),
        indices=_indices(table),
    )


def _indices(table: ty.Table) -> tuple[Index, ...] | None:
    try:
        described = table.lance.describe_indices()
    except ty.TiltyardError:
        return None
    return tuple(Index(index.name, index.index_type, tuple(index.field_names)) for index in described)


def diff_of(table: ty.Table, uri: str, first: int, last: int, limit: int | None, old_values: bool) -> Diff:
    """All changes are read, since they are counted; only so many rows are kept."""
    counts = dict.fromkeys(("insert", "update", "delete"), 0)
    kept: list[pa.RecordBatch] = []
    room = limit
    reader = table.changes(first, last, old_values=old_values)
    for batch in reader:
        for count in pa.compute.value_counts(batch.column("_change")):
            counts[count["values"].as_py()] += count["counts"].as_py()
        part = batch if room is None else batch.slice(0, room)
        room = None if room is None else room - part.num_rows
        if part.num_rows:
            kept.append(part)
    rows = pa.Table.from_batches(kept, reader.schema)
    return Diff(RowAddress(uri, table.branch, table.layout.latest_version()), first, last, counts, rows)


def page(table: ty.Table, uri: str, columns: list[str] | None, condition: str | None, limit: int) -> Page:
    rows = table.to_arrow(columns=columns, filter=condition, limit=limit)
    total = None if condition else table.count_rows()
    return Page(RowAddress(uri, table.branch, table.layout.latest_version()), table.version, rows, limit, total)
