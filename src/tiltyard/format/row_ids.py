"""Stable row ids of a fragment: one id per physical row, deleted rows included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.segments import Range, Segment, U64Values, read_segment, segment_of, write_segment

Offsets: TypeAlias = Iterable[int] | npt.NDArray[np.integer[Any]]

MOST_ROWS: Final = 1 << 32
"""A row's place in its fragment is a 32-bit number, so no fragment holds more."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """A sequence of row ids in compact segments. Compare ``to_numpy()`` to compare ids: equality here is of the segments."""

    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(segment.count for segment in self.segments)

    def __iter__(self) -> Iterator[int]:
        for segment in self.segments:
            yield from range(segment.start, segment.end) if isinstance(segment, Range) else segment.to_numpy().tolist()

    def highest(self) -> int:
        """The largest id, -1 without any; nothing is allocated."""
        return max((segment.highest for segment in self.segments if segment.count), default=-1)

    def to_numpy(self) -> U64Values:
        """All ids; allocates eight bytes for each."""
        return np.concatenate([np.empty(0, np.uint64), *(segment.to_numpy() for segment in self.segments)])

    def select(self, offsets: Offsets) -> RowIds:
        """The ids at these physical offsets, in the order given."""
        return row_ids_of(self.to_numpy()[offset_index(offsets, len(self))])

    def slice(self, start: int, count: int) -> RowIds:
        """``count`` ids from offset ``start`` on; ranges stay ranges."""
        taken: list[Segment] = []
        begin = 0
        for segment in self.segments:
            first, last = max(start - begin, 0), min(start + count - begin, segment.count)
            if last > first:
                taken.append(_cut(segment, first, last))
            begin += segment.count
        return RowIds(tuple(taken))


def _cut(segment: Segment, first: int, last: int) -> Segment:
    if isinstance(segment, Range):
        return Range(segment.start + first, segment.start + last)
    return segment if (first, last) == (0, segment.count) else segment_of(segment.to_numpy()[first:last])


def offset_index(offsets: Offsets, rows: int) -> npt.NDArray[np.int64]:
    """Offsets as an index array; one outside the fragment is a mistake of the caller and must not wrap around."""
    index = np.asarray(offsets if isinstance(offsets, np.ndarray) else list(offsets), dtype=np.int64)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < rows:
        raise IndexError(f"offsets {int(index.min())} to {int(index.max())} do not fit {rows} rows")
    return index


def fresh_row_ids(start: int, count: int) -> RowIds:
    """Ids for new rows, from the table's next unused id on."""
    return RowIds((Range(start, start + count),))


def row_ids_of(ids: Iterable[int] | U64Values) -> RowIds:
    """These ids, in this order, in the shape that takes least room."""
    return RowIds((segment_of(np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.uint64)),))


def concat_row_ids(parts: Iterable[RowIds]) -> RowIds:
    """One sequence after the other; ranges that continue each other become one."""
    joined: list[Segment] = []
    for segment in (segment for part in parts for segment in part.segments if segment.count):
        last = joined[-1] if joined else None
        if isinstance(last, Range) and isinstance(segment, Range) and last.end == segment.start:
            joined[-1] = Range(last.start, segment.end)
        else:
            joined.append(segment)
    return RowIds(tuple(joined))


def decode_row_ids(data: bytes, *, physical_rows: int, source: str, partial: bool = False) -> RowIds:
    """Reads every segment form. There must be an id for each physical row; with ``partial``, for the first of them at least."""
    try:
        message = pb.RowIdSequence.FromString(data)
    except DecodeError as error:
        raise CorruptTable(source, f"the row ids cannot be read ({error})") from error
    segments = tuple(read_segment(segment, source) for segment in message.segments)
    count = sum(segment.count for segment in segments)
    if not partial or count > physical_rows:
        check_count(count, physical_rows, "row ids", source)
    return RowIds(segments)


def encode_row_ids(ids: RowIds) -> bytes:
    """Wire bytes, each segment in the form stock writers choose for its ids."""
    return pb.RowIdSequence(segments=[write_segment(segment) for segment in ids.segments]).SerializeToString(deterministic=True)


def check_count(count: int, physical_rows: int, what: str, source: str) -> None:
    """A sequence covers each physical row once."""
    if count != physical_rows:
        raise CorruptTable(source, f"there are {count} {what} for {physical_rows} rows")
    if count > MOST_ROWS:
        raise CorruptTable(source, f"{count} {what} are more than a fragment can hold")


@dataclass(frozen=True, slots=True)
class RowVersions:
    """Runs of (number of rows, version), neighbours of one version joined, so that equal sequences are equal values."""

    runs: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return sum(count for count, _ in self.runs)

    def to_numpy(self) -> U64Values:
        """One version for each row; allocates eight bytes for each."""
        return np.repeat(np.array([version for _, version in self.runs], np.uint64), [count for count, _ in self.runs])

    def select(self, offsets: Offsets) -> RowVersions:
        """The versions at these physical offsets, in the order given. Costs the offsets, not the rows."""
        chosen = offset_index(offsets, len(self))
        ends = np.cumsum([count for count, _ in self.runs], dtype=np.int64)
        versions = np.array([version for _, version in self.runs], np.uint64)
        return row_versions_of(versions[np.searchsorted(ends, chosen, side="right")])


def row_versions_of(versions: U64Values) -> RowVersions:
    """These versions, one for each row."""
    if not len(versions):
        return RowVersions()
    starts = np.concatenate([[0], np.flatnonzero(versions[1:] != versions[:-1]) + 1])
    counts = np.diff(np.append(starts, len(versions)))
    return RowVersions(tuple(zip(counts.tolist(), versions[starts].tolist(), strict=True)))


def joined(runs: Iterable[tuple[int, int]]) -> RowVersions:
    """The runs without empty ones, neighbours of one version made one."""
    result: list[tuple[int, int]] = []
    for count, version in runs:
        if not count:
            continue
        if result and result[-1][1] == version:
            count += result.pop()[0]
        result.append((count, version))
    return RowVersions(tuple(result))


def uniform_versions(count: int, version: int) -> RowVersions:
    """All rows at one version, as after an append."""
    return joined([(count, version)])


def concat_row_versions(parts: Iterable[RowVersions]) -> RowVersions:
    return joined(run for part in parts for run in part.runs)


def decode_row_versions(data: bytes, *, physical_rows: int, source: str) -> RowVersions:
    """Reads every span form. The runs must cover the fragment's physical rows, no more and no fewer."""
    try:
        message = pb.RowDatasetVersionSequence.FromString(data)
    except DecodeError as error:
        raise CorruptTable(source, f"the row versions cannot be read ({error})") from error
    versions = joined((read_segment(run.span, source).count, run.version) for run in message.runs)
    check_count(sum(count for count, _ in versions.runs), physical_rows, "row versions", source)
    return versions


def encode_row_versions(versions: RowVersions) -> bytes:
    """Wire bytes, with the rows' positions as spans."""
    message = pb.RowDatasetVersionSequence()
    position = 0
    for count, version in versions.runs:
        span = pb.U64Segment(range=pb.U64Segment.Range(start=position, end=position + count))
        message.runs.append(pb.RowDatasetVersionRun(span=span, version=version))
        position += count
    return message.SerializeToString(deterministic=True)
