"""Rows of one version for a feed of changes: found by their ids, compared, and shown with the columns of another version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tiltyard.errors import CorruptTable, HistoryUnavailable, NotFound, UnsupportedFeature
from tiltyard.format.fragments import decode_fragment
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import RowIds, decode_row_ids
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.segments import Range
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.deletion_vectors import DeletionVectors, all_rows
from tiltyard.verbs.columns.column_files import quoted
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import bitmap_of, dataset_at

if TYPE_CHECKING:
    from lance import LanceDataset

CHUNK: Final = 16 * 1024
"""Rows read at a time."""
DENSE: Final = 8
"""Of a fragment's live rows, one in so many makes a scan cheaper than taking rows one by one."""
MANY: Final = 100
"""Fragments that are looked up together."""

Ids: TypeAlias = npt.NDArray[np.uint64]
"""How rows are asked for: their stable ids, or where rows have none, their places."""
Places: TypeAlias = dict[int, BitMap]
"""Offsets of rows by fragment id."""


@dataclass(frozen=True)
class Side:
    """One of the two versions that are compared."""

    access: TableAccess
    manifest: Manifest
    _decoded: dict[int, DataFragment] = field(default_factory=dict)

    @cached_property
    def records(self) -> dict[int, bytes]:
        """Fragments as wire bytes, by id: those that both versions have alike are never decoded."""
        return dict(zip(self.manifest.fragments.ids(), self.manifest.fragments.records(), strict=True))

    def fragment(self, number: int) -> DataFragment:
        if number not in self._decoded:
            self._decoded[number] = decode_fragment(self.records[number], self._source)
        return self._decoded[number]

    @property
    def _source(self) -> str:
        return f"version {self.manifest.version}"

    @cached_property
    def stable(self) -> bool:
        return has_stable_row_ids(self.manifest)

    @cached_property
    def _dataset(self) -> LanceDataset:
        return dataset_at(self.access, self.manifest)

    @cached_property
    def _vectors(self) -> DeletionVectors:
        return DeletionVectors(self.access.store, self.access.runtime.random, self.access.open_base, self.access.digests.note)

    def deleted(self, fragment: DataFragment) -> BitMap:
        with _there(self):
            return self._vectors.of(fragment, self.manifest.base_paths)

    def live(self, fragment: DataFragment) -> BitMap:
        return all_rows(fragment) - self.deleted(fragment)

    def ids(self, number: int, offsets: BitMap) -> Ids:
        """The ids of rows of one fragment."""
        chosen = offsets_of(offsets)
        if not self.stable:
            return (np.uint64(number) << np.uint64(32)) + chosen.astype(np.uint64)
        every = self._row_ids(number).to_numpy()
        return every if len(chosen) == len(every) else every[chosen]

    def _row_ids(self, number: int) -> RowIds:
        fragment = self.fragment(number)
        if fragment.row_ids is None:
            raise UnsupportedFeature(f"The row ids of fragment {number} are in a data file.", feature="changes of spilled row ids")
        return decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source=self._source)

    def id_range(self, number: int, offsets: BitMap) -> Range | None:
        """The stable ids of rows of one fragment, if these are all its rows and their ids follow each other: then nothing is copied."""
        if len(offsets) < self.fragment(number).physical_rows:
            return None
        segments = self._row_ids(number).segments
        return segments[0] if len(segments) == 1 and isinstance(segments[0], Range) else None

    def take(self, ids: Ids, columns: Sequence[str]) -> pa.Table:
        """Rows in the order of their ids."""
        with self._reading():
            if not columns:
                return pa.table({"": pa.nulls(len(ids))}).select([])
            return self._dataset._take_rows(pa.array(ids), columns=list(columns))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with _there(self), lance_errors(self.access, f"read rows of {self._source}", self.manifest.version):
            yield

    def read(self, places: Places, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Rows at these places, a few at a time: fragments of which all rows are wanted by one scan, others by what costs least."""
        whole: list[int] = []
        for number, offsets in places.items():
            fragment = self.fragment(number)
            if columns and not fragment.is_legacy and len(offsets) == fragment.live_rows:
                whole.append(number)
                continue
            yield from self._scan(whole, columns)
            whole = []
            yield from self._read_part(number, offsets, columns)
        yield from self._scan(whole, columns)

    def _read_part(self, number: int, offsets: BitMap, columns: Sequence[str]) -> Iterator[pa.Table]:
        fragment = self.fragment(number)
        if not columns or fragment.is_legacy or len(offsets) * DENSE < fragment.live_rows:
            for ids in chunks(self.ids(number, offsets)):
                yield self.take(ids, columns)
            return
        wanted = np.zeros(fragment.physical_rows, np.bool_)
        wanted[offsets_of(offsets)] = True
        if self.deleted(fragment):
            wanted = wanted[offsets_of(self.live(fragment))]
        # A scan counts live rows. Those before the first that is wanted and after the last are not read.
        first, end = int(wanted.argmax()), len(wanted) - int(wanted[::-1].argmax())
        wanted = wanted[first:end]
        at = 0
        for rows in self._scan([number], columns, offset=first, limit=end - first):
            mask = wanted[at : at + rows.num_rows]
            at += rows.num_rows
            yield rows if mask.all() else rows.filter(pa.array(mask))

    def _scan(self, numbers: Sequence[int], columns: Sequence[str], **more: Any) -> Iterator[pa.Table]:
        """The live rows of fragments in order."""
        if not numbers:
            return
        with self._reading():
            rows = sum(self.fragment(number).live_rows for number in numbers)
            scanner = self._dataset.scanner(
                columns={name: quoted(name) for name in columns} if not all(map(str.isidentifier, columns)) else list(columns),
                fragments=self._lance_fragments(numbers),
                batch_size=CHUNK,
                strict_batch_size=rows < CHUNK * len(numbers),  # small fragments are joined, large ones not copied
                **more,
            )
            for batch in scanner.to_batches():
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])

    def _lance_fragments(self, numbers: Sequence[int]) -> list[Any] | None:
        """What pylance calls these fragments; None for all of them. It looks for each by itself among all."""
        if len(numbers) == len(self.records):
            return None
        if len(numbers) < MANY or self.access.limits is not None:
            return [self._dataset.get_fragment(number) for number in numbers]
        known = {fragment.fragment_id: fragment for fragment in self._dataset.get_fragments()}
        return [known[number] for number in numbers]


def offsets_of(rows: BitMap) -> npt.NDArray[np.uint32]:
    """The numbers in a bitmap; numpy by itself would take them one by one."""
    return np.frombuffer(rows.to_array(), np.uint32)


@dataclass(frozen=True, slots=True)
class RowIdRuns:
    """Row ids as runs of numbers that follow each other: of rows that were written together there are few."""

    starts: Ids
    ends: Ids
    """The last of each."""

    @classmethod
    def of(cls, side: Side, places: Places) -> RowIdRuns:
        parts = [_runs_of(side, number, offsets) for number, offsets in places.items()]
        starts = np.concatenate([NO_IDS, *(part[0] for part in parts)])
        ends = np.concatenate([NO_IDS, *(part[1] for part in parts)])
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        apart = starts[1:] - ends[:-1] > 1
        return cls(starts[np.concatenate([[True], apart])], ends[np.concatenate([apart, [True]])])

    def known(self, side: Side, number: int, offsets: BitMap) -> BitMap:
        """Those of some rows of a fragment whose ids are among these."""
        whole = side.id_range(number, offsets)
        if whole is not None and (all_of_them := self._knows(whole)) is not None:
            return offsets.copy() if all_of_them else BitMap()
        ids = side.ids(number, offsets)
        at = np.searchsorted(self.starts, ids, side="right")
        found = (at > 0) & (ids <= self.ends[np.maximum(at, 1) - 1])
        return bitmap_of(offsets_of(offsets)[found])

    def _knows(self, ids: Range) -> bool | None:
        """Whether all of them are among these, or none; otherwise None."""
        first = np.uint64(ids.start)
        at = int(np.searchsorted(self.starts, first, side="right"))
        if at and first <= self.ends[at - 1]:
            return True if ids.end - 1 <= int(self.ends[at - 1]) else None
        return False if at == len(self.starts) or int(self.starts[at]) >= ids.end else None


NO_IDS: Final[Ids] = np.empty(0, np.uint64)


def _runs_of(side: Side, number: int, offsets: BitMap) -> tuple[Ids, Ids]:
    """The first and last of each run in the ids of some rows of a fragment."""
    whole = side.id_range(number, offsets)
    if whole is not None:
        return np.array([whole.start], np.uint64), np.array([whole.end - 1], np.uint64)
    ids = side.ids(number, offsets)
    if (ids[1:] < ids[:-1]).any():
        ids = np.sort(ids)
    breaks = np.flatnonzero(ids[1:] - ids[:-1] > 1)
    return ids[np.concatenate([[0], breaks + 1])], ids[np.concatenate([breaks, [len(ids) - 1]])]


@contextmanager
def _there(side: Side) -> Iterator[None]:
    """What is missing now was there when the feed began, unless a cleanup came in between: then that is what we say."""
    try:
        yield
    except (NotFound, CorruptTable) as error:
        if side.manifest.version in (version.version for version in side.access.log.versions()):
            raise
        raise gone(side.access, [side.manifest.version]) from error


def gone(access: TableAccess, missing: Sequence[int]) -> HistoryUnavailable:
    """The error for a feed that needs versions which are not there."""
    return HistoryUnavailable(
        f"Version {missing[0]} of {access.store.uri} was cleaned up; what it changed is no longer known.",
        missing=missing,
        head=access.head()[0],
        advice="Begin at a later version, or compare the rows themselves.",
    )


def chunks(ids: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


# ---- columns -----------------------------------------------------------------------------------------------------------------


def top_level(manifest: Manifest) -> list[Field]:
    return [field for field in manifest.fields if field.parent_id < 0]


def shared_columns(before: Manifest, after: Manifest) -> list[tuple[Field, Field]]:
    """Columns that both versions have: the same field, whatever it is called. Blobs are not looked into."""
    known = {field.id: field for field in top_level(before)}
    blobs = {field.name for field in arrow_from_fields(after.fields, {}) if has_blobs(field)}
    both = [(known[field.id], field) for field in top_level(after) if field.id in known and field.name not in blobs]
    return [(was, now) for was, now in both if was.logical_type == now.logical_type]


class Rendering:
    """Shows rows of older versions with the columns of a newer one; what they do not have is null."""

    def __init__(self, manifest: Manifest, schema: pa.Schema, overwrites: Collection[int]) -> None:
        self._target = {field.name: field for field in top_level(manifest)}
        self.schema = schema
        self._overwrites = overwrites

    def sources(self, manifest: Manifest) -> dict[str, str]:
        """For each column, what it was called in a version. After an overwrite field ids begin anew, and only names tell."""
        anew = any(overwrite > manifest.version for overwrite in self._overwrites)
        by_id, by_name = ({getattr(field, key): field for field in top_level(manifest)} for key in ("id", "name"))
        ids = {field.id for field in self._target.values()}
        found: dict[str, str] = {}
        for name in self.schema.names:
            wanted = self._target[name]
            same = None if anew else by_id.get(wanted.id)
            if same is not None and (same.name == name or same.logical_type == wanted.logical_type):
                found[name] = same.name
            elif name in by_name and (anew or by_name[name].id not in ids):
                found[name] = name
        return found

    def rows(self, side: Side, ids: Ids) -> pa.Table:
        """Rows by their ids, in that order."""
        sources = self.sources(side.manifest)
        return self._shown(side.take(ids, list(sources.values())), sources)

    def stream(self, side: Side, places: Places) -> Iterator[pa.Table]:
        """Rows by their places, a few at a time."""
        sources = self.sources(side.manifest)
        for rows in side.read(places, list(sources.values())):
            yield self._shown(rows, sources)

    def _shown(self, rows: pa.Table, sources: Mapping[str, str]) -> pa.Table:
        columns = [
            _as(rows.column(sources[item.name]), item.type) if item.name in sources else pa.nulls(rows.num_rows, item.type)
            for item in self.schema
        ]
        return pa.table(columns, schema=self.schema)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in its newer type. A value that has no room there is null, and no other one for its sake."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return pa.chunked_array([pa.nulls(len(column), kind)])  # no value of the one type is one of the other
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.chunked_array([pa.nulls(1, kind)])
        half = len(column) // 2
        return pa.chunked_array([*_as(column[:half], kind).chunks, *_as(column[half:], kind).chunks], kind)


# ---- comparing ---------------------------------------------------------------------------------------------------------------


def differs(one: pa.ChunkedArray, two: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """For each row, whether two columns say different things of it; two nulls, or two that are no number, say the same."""
    one, two = one.combine_chunks(), two.combine_chunks()
    if pa.types.is_nested(one.type) or one.type != two.type or isinstance(one.type, pa.BaseExtensionType):
        return np.array([repr(a) != repr(b) for a, b in zip(one.to_pylist(), two.to_pylist(), strict=True)], np.bool_)
    unequal = pc.fill_null(pc.not_equal(one, two), False)
    if pa.types.is_floating(one.type):
        neither = pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(two), False))
        unequal = pc.and_(unequal, pc.invert(neither))
    found = pc.or_(unequal, pc.xor(pc.is_null(one), pc.is_null(two)))
    result: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return result


def changed(before: Side, after: Side, old: Ids, new: Ids, columns: Sequence[tuple[Field, Field]]) -> npt.NDArray[np.bool_]:
    """Which of the rows, old and new in the same order, differ in any of these columns."""
    parts: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    for was, now in zip(chunks(old), chunks(new), strict=True):
        one = before.take(was, [pair[0].name for pair in columns])
        two = after.take(now, [pair[1].name for pair in columns])
        mask = np.zeros(len(was), np.bool_)
        for number in range(len(columns)):
            mask |= differs(one.column(number), two.column(number))
        parts.append(mask)
    return np.concatenate(parts)


def without_equal(before: Side, after: Side, went: Places, came: Places, columns: Sequence[tuple[Field, Field]]) -> tuple[Places, Places]:
    """Rows that went and came, without those of which one went and an equal one came. Keeps a digest of each row that went."""
    left: dict[bytes, list[tuple[int, int]]] = {}
    for place, digest in _digests_at(before, went, [pair[0].name for pair in columns]):
        left.setdefault(digest, []).append(place)
    fresh: Places = {}
    for place, digest in _digests_at(after, came, [pair[1].name for pair in columns]):
        if left.get(digest):
            left[digest].pop()
        else:
            fresh.setdefault(place[0], BitMap()).add(place[1])
    gone_for_good: Places = {}
    for number, offset in sorted(place for places in left.values() for place in places):
        gone_for_good.setdefault(number, BitMap()).add(offset)
    return gone_for_good, fresh


def _digests_at(side: Side, places: Places, columns: Sequence[str]) -> Iterator[tuple[tuple[int, int], bytes]]:
    for number, offsets in places.items():
        for ids, some in zip(chunks(side.ids(number, offsets)), chunks(offsets_of(offsets)), strict=True):
            for offset, digest in zip(some.tolist(), _digests(side.take(ids, columns)), strict=True):
                yield (number, offset), digest


def _digests(table: pa.Table) -> list[bytes]:
    columns = [column.to_pylist() for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [blake2b(repr(row).encode(), digest_size=16).digest() for row in rows]
