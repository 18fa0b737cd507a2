"""Row ids as runs of consecutive numbers, so that sets of any size are compared without being laid out: a few bytes may claim billions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiltyard.format.rowids import RowIds
from tiltyard.format.segments import Holes, Range, Segment, U64Values

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IdRuns:
    """Runs in ascending order of their first ids; the last id belongs to its run."""

    firsts: U64Values
    lasts: U64Values

    @property
    def overlap(self) -> bool:
        """Whether an id is in two runs."""
        return bool(np.any(self.firsts[1:] <= self.lasts[:-1]))

    def apart(self) -> IdRuns:
        """The same ids in runs that do not overlap."""
        reached = np.maximum.accumulate(self.lasts)
        begins = np.append(True, self.firsts[1:] > reached[:-1])[: len(self.firsts)]
        ends = np.append(begins[1:], True)[: len(self.firsts)]
        return IdRuns(self.firsts[begins], reached[ends])

    def outside(self, known: IdRuns) -> int:
        """How many of these ids are not among the known ones."""
        there = known.apart()
        sizes = (self.lasts - self.firsts).astype(np.int64) + 1
        return int(sizes.sum() - (there._below(self.lasts, itself=True) - there._below(self.firsts, itself=False)).sum())

    def _below(self, ids: U64Values, *, itself: bool) -> Counts:
        """How many ids of runs that do not overlap lie below each of these, or are that one itself."""
        found = np.searchsorted(self.firsts, ids, side="right" if itself else "left")
        sizes = (self.lasts - self.firsts).astype(np.int64) + 1
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        begun = found > 0
        run = found[begun] - 1
        last = ids[begun] - np.uint64(not itself)
        counts = np.zeros(len(ids), np.int64)
        counts[begun] = before[run] + (np.minimum(last, self.lasts[run]) - self.firsts[run]).astype(np.int64) + 1
        return counts

    def unknown(self, known: IdRuns) -> Iterator[int]:
        """The ids that are not among the known ones, ascending, one at a time."""
        there = known.apart()
        for first, last in zip(self.firsts.tolist(), self.lasts.tolist(), strict=True):
            number = first
            while number <= last:
                run = int(np.searchsorted(there.firsts, np.uint64(number), side="right")) - 1
                if run >= 0 and number <= int(there.lasts[run]):
                    number = int(there.lasts[run]) + 1
                else:
                    yield number
                    number += 1


def runs_of(several: Iterable[RowIds]) -> IdRuns:
    parts = [_runs(segment) for ids in several for segment in ids.segments if segment.count]
    none = np.empty(0, np.uint64)
    firsts = np.concatenate([none, *(firsts for firsts, _ in parts)])
    lasts = np.concatenate([none, *(lasts for _, lasts in parts)])
    order = np.argsort(firsts, kind="stable")
    return IdRuns(firsts[order], lasts[order])


def _runs(segment: Segment) -> tuple[U64Values, U64Values]:
    if isinstance(segment, Range | Holes):
        holes = np.frombuffer(segment.holes if isinstance(segment, Holes) else b"", "<u8").astype(np.uint64)
        firsts = np.concatenate([np.array([segment.start], np.uint64), holes + np.uint64(1)])
        ends = np.concatenate([holes, np.array([segment.end], np.uint64)])
        there = firsts < ends
        return firsts[there], ends[there] - np.uint64(1)
    values = segment.to_numpy()
    return values, values
