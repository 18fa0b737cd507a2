"""Reads several shards as one table: scans one after the other, limits over all of them, nearest rows of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.handles.indices import IndexReader
from tiltyard.table import TableReader
from tiltyard.verbs.indices.index_list import IndexInfo

if TYPE_CHECKING:
    from tiltyard.format.values import IndexMetadata
    from tiltyard.lakes.sharded.sharded_reader import ShardedReading

_PLAIN: Final = frozenset({"batch_size", "batch_readahead", "fragment_readahead", "io_buffer_size", "use_scalar_index", "prefilter"})
"""Options of a scan that mean the same for each shard as for all of them."""
_RANKED: Final = {"nearest": ("_distance", "ascending"), "full_text_query": ("_score", "descending")}
"""Options that rank rows: by which column, and how."""


def scan_shards(
    shards: Sequence[TableReader],
    columns: Sequence[str] | Mapping[str, str] | None,
    filter: str | None,
    options: Mapping[str, Any],
) -> pa.RecordBatchReader:
    """The rows of shards as one stream, those of the first shard first; ranked ones by their rank over all shards.

    Options are those that mean the same for several tables, ``limit`` and ``offset`` over all of them. ``nearest`` and
    ``full_text_query`` rank the rows of all shards, the latter by scores that each shard computes for itself.

    Raises:
        UnsupportedFeature: an option says where rows lie, or orders them, which differs from shard to shard.
    """
    given = dict(options)
    limit, offset = given.pop("limit", None), given.pop("offset", None)
    _check(given, columns)
    for name, (column, order) in _RANKED.items():
        if name in given:
            return _ranked(shards, columns, filter, (limit, offset, given), name, column, order)
    if limit is None and offset is None:
        readers = [shard.scan(columns, filter, options=given) for shard in shards]
        return _chained(readers, (batch for reader in readers for batch in reader))
    most = None if limit is None else limit + (offset or 0)
    readers = [shard.scan(columns, filter, limit=most, options=given) for shard in shards]
    return _chained(readers, _cut((batch for reader in readers for batch in reader), offset or 0, limit))


def _check(options: Mapping[str, Any], columns: Sequence[str] | Mapping[str, str] | None) -> None:
    if other := sorted(name for name in options if name not in _PLAIN and name not in _RANKED):
        raise UnsupportedFeature(
            f"A scan of a sharded table does not take {', '.join(other)}.",
            feature=f"{other[0]} on sharded tables",
            advice="Sort the rows that come back, or scan a shard: t.shard(number).",
        )
    if any(name in ("_rowid", "_rowaddr") for name in columns or ()):
        raise UnsupportedFeature(
            "Rows of different shards can have the same row id.",
            feature="row ids of sharded tables",
            advice="Use the primary key, or scan a shard: t.shard(number).",
        )


def _chained(readers: Sequence[pa.RecordBatchReader], batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    schema = readers[0].schema
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) if batch.schema != schema else batch for batch in batches))


def _cut(batches: Iterator[pa.RecordBatch], skip: int, left: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        part = batch.slice(skip) if skip else batch
        skip = max(skip - batch.num_rows, 0)
        if left is not None:
            part = part.slice(0, left)
            left -= part.num_rows
        if part.num_rows:
            yield part
        if left == 0:
            return


def _ranked(
    shards: Sequence[TableReader],
    columns: Sequence[str] | Mapping[str, str] | None,
    filter: str | None,
    bounds: tuple[int | None, int | None, dict[str, Any]],
    name: str,
    column: str,
    order: str,
) -> pa.RecordBatchReader:
    """The best rows of all shards: the best of each, put in order."""
    limit, offset, options = bounds
    most = None if limit is None else limit + (offset or 0)
    found = pa.concat_tables([shard.to_arrow(columns, filter, limit=most, options=options) for shard in shards])
    if column not in found.column_names:
        raise InvalidInput(f"The columns of a search need {column}.", argument="columns", advice="Name it, or leave columns out.")
    ordered = found.sort_by([(column, order)])
    if name == "nearest" and isinstance(k := options["nearest"].get("k"), int):
        ordered = ordered.slice(0, k)
    return ordered.slice(offset or 0, limit).to_reader()


def joined_indices(shards: Sequence[TableReader]) -> tuple[IndexInfo, ...]:
    """The indices that all shards have, by name, with the rows that they cover in all of them."""
    by_name: dict[str, list[IndexInfo]] = {}
    for shard in shards:
        for index in shard.indices.list():
            by_name.setdefault(index.name, []).append(index)
    return tuple(_joined(found) for _, found in sorted(by_name.items()) if len(found) == len(shards))


def _joined(found: Sequence[IndexInfo]) -> IndexInfo:
    """One index of all shards. Numbers of fragments and versions are each shard's own, so there are none."""
    first = found[0]
    sizes = [index.bytes for index in found if index.bytes is not None]
    made = [index.created for index in found if index.created is not None]
    return IndexInfo(
        name=first.name,
        type=first.type,
        columns=first.columns,
        segments=tuple(segment for index in found for segment in index.segments),
        fragments=(),
        missing=(),
        rows=sum(index.rows for index in found),
        missing_rows=sum(index.missing_rows for index in found),
        version=0,
        created=max(made, default=None),
        bytes=sum(sizes) if len(sizes) == len(found) else None,
    )


class ShardedIndexReader(IndexReader):
    """The indices that all shards have."""

    _table: ShardedReading

    def list(self) -> tuple[IndexInfo, ...]:
        """The indices by name, with the rows that they cover in all shards.

        Fragments and versions are each shard's own.
        """
        return joined_indices(self._table._readers(None))

    @property
    def segments(self) -> tuple[IndexMetadata, ...]:
        """Refused: segments are each shard's own."""
        raise UnsupportedFeature(
            "A sharded table has no index segments of its own.",
            feature="segments of sharded tables",
            advice="Look at a shard: t.shard(number).indices.segments.",
        )
