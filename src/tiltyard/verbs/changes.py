"""What changed between two versions, version by version, as a stream of rows.

Each version is compared with the one before it: fragments that both have alike are not looked at. A row is the same row if it has the same
stable id; where rows have none, one that moved is a row that went and one that came, unless it was a compaction that moved it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.row_ids import decode_row_versions
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.operations import Operation, Overwrite, Restore, Rewrite, Update
from tiltyard.verbs.changed_rows import (
    Places,
    Rendering,
    RowIdRuns,
    Side,
    changed,
    chunks,
    gone,
    offsets_of,
    shared_columns,
    without_equal,
)
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.row_deletion import bitmap_of

CHANGE: Final = "_change"
VERSION: Final = "_version"
OLD: Final = "_old"


def changes_between(
    access: TableAccess, first: int, last: int, scheme: Scheme, *, old_values: bool = False, columns_of: int | None = None
) -> pa.RecordBatchReader:
    """The feed of all versions after ``first`` up to ``last``, with the columns of that one or of a later one.

    Raises:
        NotFound: there is no such version yet.
        HistoryUnavailable: a version that is needed was cleaned up.
        InvalidInput: the order is wrong, or a column has a name of the feed's own.
    """
    shown_at = last if columns_of is None else columns_of
    _check_range(access, first, last)
    if shown_at != last:
        _check_range(access, last, shown_at, "columns_of")
    newest = access.load(shown_at, scheme).manifest
    columns = _columns(newest)
    shown = [*columns, pa.field(CHANGE, pa.string(), False), pa.field(VERSION, pa.uint64(), False)]
    if old_values:
        shown.append(pa.field(OLD, pa.struct(list(columns))))
    schema = pa.schema(shown)
    operations = {version: _operation(access, version, scheme) for version in range(first + 1, shown_at + 1)}
    overwrites = [version for version, operation in operations.items() if isinstance(operation, Overwrite)]
    told = {version: operation for version, operation in operations.items() if version <= last}
    feed = _Feed(access, scheme, Rendering(newest, columns, overwrites), schema, told)
    return pa.RecordBatchReader.from_batches(schema, feed.batches(first))


def _check_range(access: TableAccess, first: int, last: int, what: str = "to_version") -> None:
    for name, value in (("from_version", first), (what, last)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(f"{name} is a version, or 0 for the time before the first.", argument=name)
    if first > last:
        earlier = "from_version" if what == "to_version" else "to_version"
        raise InvalidInput(f"{earlier} {first} comes after {what} {last}.", argument=earlier)
    there = {version.version for version in access.log.versions()}
    if last not in there and (not there or last > max(there)):
        raise NotFound(f"{access.store.uri} has no version {last} yet.", name=str(last))
    missing = [version for version in range(max(first, 1), last + 1) if version not in there]
    if missing:
        raise gone(access, missing)


def _columns(manifest: Manifest) -> pa.Schema:
    """The table's columns as the feed has them: without blobs, and each may be null where a row is from before it."""
    fields = [field.with_nullable(True) for field in arrow_from_fields(manifest.fields, {}) if not has_blobs(field)]
    taken = [field.name for field in fields if field.name in (CHANGE, VERSION, OLD)]
    if taken:
        raise InvalidInput(f"The feed has a column {taken[0]!r} of its own.", argument="columns", advice="Rename yours.")
    return pa.schema(fields)


def _operation(access: TableAccess, version: int, scheme: Scheme) -> Operation | None:
    """What made a version; None if nobody wrote that down."""
    try:
        file = access.log.peek(version, scheme)
    except NotFound as error:
        raise gone(access, [version]) from error
    try:
        return access.log.transaction_of(file).operation
    except NotFound:
        return None


@dataclass(frozen=True, slots=True)
class _Feed:
    access: TableAccess
    scheme: Scheme
    rendering: Rendering
    schema: pa.Schema
    operations: Mapping[int, Operation | None]
    labels: dict[tuple[str, int], list[pa.Array]] = field(default_factory=dict)

    def batches(self, first: int) -> Iterator[pa.RecordBatch]:
        before = self._load(first).manifest if first else None
        for version, operation in self.operations.items():
            after = self._load(version).manifest
            yield from self._step(before or _nothing(after), after, operation)
            before = after

    def _load(self, version: int) -> ManifestFile:
        try:
            return self.access.log.load(version, self.scheme)
        except NotFound as error:
            raise gone(self.access, [version]) from error

    def _step(self, older: Manifest, newer: Manifest, operation: Operation | None) -> Iterator[pa.RecordBatch]:
        if isinstance(operation, Rewrite):
            return  # it moves rows and changes none
        before, after = Side(self.access, older), Side(self.access, newer)
        found = compared(before, after, operation)
        for rows in self.rendering.stream(before, found.deleted):
            yield self._batch("delete", newer.version, rows)
        yield from self._updated(before, after, found.updated)
        for rows in self.rendering.stream(after, found.inserted):
            yield self._batch("insert", newer.version, rows)

    def _updated(self, before: Side, after: Side, places: Places) -> Iterator[pa.RecordBatch]:
        version = after.manifest.version
        if OLD not in self.schema.names:
            for rows in self.rendering.stream(after, places):
                yield self._batch("update", version, rows)
            return
        for number, offsets in places.items():
            for ids in chunks(after.ids(number, offsets)):
                yield self._batch("update", version, self.rendering.rows(after, ids), self.rendering.rows(before, ids))

    def _labels(self, change: str, version: int, count: int) -> list[pa.Array]:
        """The same two values for so many rows: slices of arrays that serve for many batches."""
        kept = self.labels.get((change, version))
        if kept is None or len(kept[0]) < count:
            kept = [pa.repeat(change, count), pa.repeat(pa.scalar(version, pa.uint64()), count)]
            self.labels.clear()
            self.labels[change, version] = kept
        return [array.slice(0, count) for array in kept]

    def _batch(self, change: str, version: int, rows: pa.Table, old: pa.Table | None = None) -> pa.RecordBatch:
        count = rows.num_rows
        columns = [*map(_whole, rows.columns), *self._labels(change, version, count)]
        if OLD in self.schema.names:
            columns.append(pa.nulls(count, self.schema.field(OLD).type) if old is None else _struct(old))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _struct(rows: pa.Table) -> pa.Array:
    return pa.StructArray.from_arrays([column.combine_chunks() for column in rows.columns], fields=list(rows.schema))


def _nothing(manifest: Manifest) -> Manifest:
    """What there was before the first version."""
    return Manifest(0, manifest.fields, FragmentList(), writer_flags=manifest.writer_flags, reader_flags=manifest.reader_flags)


# ---- one version and the one before it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """Places of rows that differ: of deleted ones in the older version, of the others in the newer."""

    deleted: Places
    updated: Places
    inserted: Places


def compared(before: Side, after: Side, operation: Operation | None) -> Compared:
    """How two versions that follow each other differ."""
    went, came, in_place = _moved(before, after)
    shared = shared_columns(before.manifest, after.manifest)
    rewritten = _rewritten(before, after, in_place, shared, operation)
    if not (before.stable and after.stable):
        for number, offsets in rewritten.items():
            went[number] = went.get(number, BitMap()) | offsets
            came[number] = came.get(number, BitMap()) | offsets
        if isinstance(operation, Restore):
            went, came = without_equal(before, after, went, came, shared)
        return Compared(went, {}, came)
    if not went or not came:
        return Compared(went, rewritten, came)
    old, new = RowIdRuns.of(before, went), RowIdRuns.of(after, came)
    both = {number: new_offsets for number, offsets in came.items() if (new_offsets := old.known(after, number, offsets))}
    gone_for_good = {number: offsets - new.known(before, number, offsets) for number, offsets in went.items()}
    fresh = {number: offsets - both.get(number, BitMap()) for number, offsets in came.items()}
    if not isinstance(operation, Update):
        both = {number: _changed_ids(before, after, number, offsets, shared) for number, offsets in both.items()}
    for number, offsets in rewritten.items():
        both[number] = both.get(number, BitMap()) | offsets
    return Compared(_some(gone_for_good), _some(both), _some(fresh))


def _some(places: Places) -> Places:
    return {number: offsets for number, offsets in places.items() if offsets}


def _changed_ids(before: Side, after: Side, number: int, offsets: BitMap, shared: list[tuple[Field, Field]]) -> BitMap:
    """Those of a fragment's rows that another row of the same id differed from before."""
    ids = after.ids(number, offsets)
    return bitmap_of(offsets_of(offsets)[changed(before, after, ids, ids, shared)])


def _rewritten(before: Side, after: Side, in_place: Places, shared: list[tuple[Field, Field]], operation: Operation | None) -> Places:
    """Rows of which another value lies in the same place."""
    rewritten: Places = {}
    for number, offsets in in_place.items():
        found = BitMap()
        if isinstance(operation, Update):
            found = _stamped(after, number) & offsets
        left = offsets - found  # those that say of themselves that they were updated need not be looked at
        columns = _rewritten_columns(before.fragment(number), after.fragment(number), shared, after.manifest)
        if columns and left:
            mask = changed(before, after, before.ids(number, left), after.ids(number, left), columns)
            found |= bitmap_of(offsets_of(left)[mask])
        if found:
            rewritten[number] = found
    return rewritten


def _moved(before: Side, after: Side) -> tuple[Places, Places, Places]:
    """Places of rows that are live in the older version alone, in the newer alone, and in both with other files."""
    went = {number: before.live(before.fragment(number)) for number in before.records if number not in after.records}
    came: Places = {}
    in_place: Places = {}
    for number, record in after.records.items():
        if before.records.get(number) == record:
            continue
        two = after.fragment(number)
        if number not in before.records:
            came[number] = after.live(two)
            continue
        one = before.fragment(number)
        if one.files == two.files and one.deletion_file == two.deletion_file:
            continue
        was, now = before.live(one), after.live(two)
        went[number], came[number] = was - now, now - was
        if one.files != two.files:
            in_place[number] = was & now
    return _some(went), _some(came), _some(in_place)


def _rewritten_columns(
    one: DataFragment, two: DataFragment, shared: list[tuple[Field, Field]], newer: Manifest
) -> list[tuple[Field, Field]]:
    """Columns of which some part lies elsewhere in the newer state of a fragment."""
    was, now = _backing(one), _backing(two)
    owner: dict[int, int] = {}
    for part in newer.fields:  # parents come before their children
        owner[part.id] = owner.get(part.parent_id, part.id)
    elsewhere = {owner[part] for part in owner if was.get(part) != now.get(part)}
    return [pair for pair in shared if pair[1].id in elsewhere]


def _backing(fragment: DataFragment) -> dict[int, tuple[str, int | None]]:
    """Where the values of each field lie."""
    return {number: (file.path, file.base_id) for file in fragment.files for number in file.fields if number >= 0}


def _stamped(after: Side, number: int) -> BitMap:
    """Rows of a fragment that say of themselves that they were updated in this version."""
    fragment = after.fragment(number)
    if fragment.updated_at is None:
        return BitMap()
    source = f"version {after.manifest.version}"
    versions = decode_row_versions(fragment.updated_at, physical_rows=fragment.physical_rows, source=source)
    found = BitMap()
    begin = 0
    for count, version in versions.runs:
        if version == after.manifest.version:
            found.add_range(begin, begin + count)
        begin += count
    return found
