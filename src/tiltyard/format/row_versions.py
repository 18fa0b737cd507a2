"""The version in which each row of a fragment was created or last updated, as runs of equal versions.

On the wire each run carries a span of numbers of which only the count means anything: the runs cover the physical rows in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.rowids import Offsets, check_count, offset_index
from tiltyard.format.segments import U64Values, read_segment


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

    def set_at(self, offsets: Offsets, version: int) -> RowVersions:
        """The same with ``version`` at these offsets."""
        versions = self.to_numpy()
        versions[offset_index(offsets, len(self))] = version
        return row_versions_of(versions)


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
