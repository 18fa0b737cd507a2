"""Rows of one version for a feed of changes: found by their ids, compared, and shown with the columns of another version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tiltyard.errors import CorruptTable, HistoryUnavailable, NotFound, UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment, Field
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.deletion_vectors import DeletionVectors, all_rows
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_deletion import dataset_at

if TYPE_CHECKING:
    from lance import LanceDataset

CHUNK: Final = 16 * 1024
"""Rows read at a time."""

Ids: TypeAlias = npt.NDArray[np.uint64]
"""How rows are asked for: their stable ids, or where rows have none, their places."""

NO_IDS: Final[Ids] = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Side:
    """One of the two versions that are compared."""

    access: TableAccess
    manifest: Manifest
    _ids: dict[int, Ids] = field(default_factory=dict)

    @cached_property
    def fragments(self) -> dict[int, DataFragment]:
        return {fragment.id: fragment for fragment in self.manifest.fragments}

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

    def ids(self, places: Mapping[int, BitMap]) -> Ids:
        """The ids of rows at these places."""
        return np.concatenate([NO_IDS, *(self._ids_at(number, offsets) for number, offsets in places.items())])

    def _ids_at(self, number: int, offsets: BitMap) -> Ids:
        chosen = np.array(offsets, np.int64)
        if not self.stable:
            return (np.uint64(number) << np.uint64(32)) + chosen.astype(np.uint64)
        if number not in self._ids:
            one = self.fragments[number]
            if one.row_ids is None:
                raise UnsupportedFeature(f"The row ids of fragment {number} lie in a data file.", feature="changes of spilled row ids")
            source = f"version {self.manifest.version}"
            self._ids[number] = decode_row_ids(one.row_ids, physical_rows=one.physical_rows, source=source).to_numpy()
        return self._ids[number][chosen]

    def take(self, ids: Ids, columns: Sequence[str]) -> pa.Table:
        """Rows in the order of their ids."""
        with _there(self), lance_errors(self.access, f"read rows of version {self.manifest.version}", self.manifest.version):
            if not columns:
                return pa.table({"": pa.nulls(len(ids))}).select([])
            return self._dataset._take_rows(pa.array(ids), columns=list(columns))


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
        f"Version {missing[0]} of {access.store.uri} was cleaned up; what it changed cannot be told any more.",
        missing=missing,
        head=access.head()[0],
        advice="Begin at a later version, or compare the rows themselves.",
    )


def chunks(ids: Ids) -> Iterator[Ids]:
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
        sources = self.sources(side.manifest)
        taken = side.take(ids, list(sources.values()))
        columns = [
            _as(taken.column(sources[item.name]), item.type) if item.name in sources else pa.nulls(len(ids), item.type)
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


def without_equal(before: Side, after: Side, old: Ids, new: Ids, columns: Sequence[tuple[Field, Field]]) -> tuple[Ids, Ids]:
    """Rows that went and came, without those of which one went and an equal one came. Remembers a digest of each row that went."""
    left: dict[bytes, list[int]] = {}
    for part in chunks(old):
        for number, digest in zip(part.tolist(), _digests(before.take(part, [pair[0].name for pair in columns])), strict=True):
            left.setdefault(digest, []).append(number)
    came: list[int] = []
    for part in chunks(new):
        for number, digest in zip(part.tolist(), _digests(after.take(part, [pair[1].name for pair in columns])), strict=True):
            if left.get(digest):
                left[digest].pop()
            else:
                came.append(number)
    went = sorted(number for numbers in left.values() for number in numbers)
    return np.array(went, np.uint64), np.array(came, np.uint64)


def _digests(table: pa.Table) -> list[bytes]:
    columns = [column.to_pylist() for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [blake2b(repr(row).encode(), digest_size=16).digest() for row in rows]
