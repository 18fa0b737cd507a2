"""Row ids and row versions as operations change them. Nothing here grows with a number somebody claims, only with bytes that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from tiltyard.errors import CorruptTable, InvalidInput, UnsupportedFeature
from tiltyard.format.row_ids import (
    RowIds,
    RowVersions,
    concat_row_ids,
    concat_row_versions,
    decode_row_ids,
    decode_row_versions,
    encode_row_ids,
    encode_row_versions,
    fresh_row_ids,
    joined,
    row_versions_of,
    uniform_versions,
)
from tiltyard.format.segments import Holes, Range, Segment, U64Values
from tiltyard.format.values import DataFragment
from tiltyard.transaction.apply.frame import SAMPLE, Spilled, invalid, some

Places = npt.NDArray[np.int64]

MAX_ROW_ID = 2**64 - 1
UNKNOWN_VERSION = 1
"""Where nobody wrote down when a row came into being, readers take the table's first version."""


def with_fresh_lineage(fragment: DataFragment, first_row_id: int, version: int) -> DataFragment:
    """A fragment of new rows: consecutive ids, created and last updated in ``version``."""
    versions = encode_row_versions(uniform_versions(fragment.physical_rows, version))
    return replace(
        fragment,
        row_ids=encode_row_ids(fresh_row_ids(first_row_id, fragment.physical_rows)),
        created_at=versions,
        updated_at=versions,
    )


def row_ids_left(next_row_id: int, rows: int) -> None:
    if next_row_id + rows > MAX_ROW_ID:
        raise InvalidInput("The table has no row ids left.", argument="fragments")


# ---- rows that moved -------------------------------------------------------------------------------------------------------


def with_moved_lineage(
    fragments: Sequence[DataFragment],
    sources: Sequence[DataFragment],
    next_row_id: int,
    version: int,
    spilled: Mapping[int, Spilled],
) -> tuple[list[DataFragment], int]:
    """New fragments of an update: the ids they bring are of rows that moved here, those they lack are given out now.

    Args:
        fragments: with the ids of moved rows, which come first.
        sources: the fragments that rows were taken from, as they were.
        next_row_id: the first id not given out yet.
        version: the one that is being made.
        spilled: what lies in the data files of some sources.

    Returns:
        The fragments with all ids and versions, and the next row id after them.
    """
    moved = [_moved_ids(fragment, sources) for fragment in fragments]
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *moved]))
    if len(wanted) != sum(map(len, moved)):
        raise invalid("Two rows of the new fragments have one row id.")
    created = _created_at(wanted, sources, spilled)
    made = []
    for fragment, ids in zip(fragments, moved, strict=True):
        fresh = fragment.physical_rows - len(ids)
        row_ids_left(next_row_id, fresh)
        kept = RowIds() if fragment.row_ids is None else _decode_ids(fragment, partial=True)
        first_seen = row_versions_of(created[np.searchsorted(wanted, ids)])
        made.append(
            replace(
                fragment,
                row_ids=encode_row_ids(concat_row_ids([kept, fresh_row_ids(next_row_id, fresh)])),
                created_at=encode_row_versions(concat_row_versions([first_seen, uniform_versions(fresh, version)])),
                updated_at=encode_row_versions(uniform_versions(fragment.physical_rows, version)),
            )
        )
        next_row_id += fresh
    return made, next_row_id


def moved_only(fragment: DataFragment) -> bool:
    """Whether a new fragment, as it stands in the operation, holds moved rows and no inserted ones."""
    return fragment.row_ids is not None and len(_decode_ids(fragment, partial=True)) == fragment.physical_rows > 0


def _moved_ids(fragment: DataFragment, sources: Sequence[DataFragment]) -> U64Values:
    if fragment.row_ids is None:
        return np.empty(0, np.uint64)
    ids = _decode_ids(fragment, partial=True)
    if len(ids) > sum(source.physical_rows for source in sources):  # before anything is allocated for them
        raise invalid(f"{len(ids)} rows are said to have moved, more than the changed fragments hold.")
    return ids.to_numpy()


def _decode_ids(fragment: DataFragment, *, partial: bool = False) -> RowIds:
    if fragment.row_ids is None:
        raise invalid(f"Fragment {fragment.id} has no row ids.")
    try:
        return decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source="the operation", partial=partial)
    except CorruptTable as error:
        raise invalid(f"Fragment {fragment.id} has invalid row ids: {error.reason}.") from error


def _created_at(wanted: U64Values, sources: Sequence[DataFragment], spilled: Mapping[int, Spilled]) -> U64Values:
    """In which version each of these rows came into being. A row that moved twice is in two fragments, and both say the same."""
    created = np.full(len(wanted), UNKNOWN_VERSION, np.uint64)
    missing = np.ones(len(wanted), dtype=bool)
    unread = []
    for source in sources:
        given = spilled.get(source.id)
        if given is None and source.row_ids_spilled:
            unread.append(source.id)
            continue
        if given is None and source.row_ids is None:
            continue
        which, offsets = locate(wanted, given.row_ids if given is not None else _decode_ids(source))
        fresh = missing[which]
        which, offsets = which[fresh], offsets[fresh]
        if not len(which):
            continue
        if given is None and source.created_at_spilled:
            unread.append(source.id)
            continue
        missing[which] = False
        versions = given.created_at if given is not None else _versions(source.created_at, source, UNKNOWN_VERSION)
        created[which] = versions.select(offsets).to_numpy()
    if bool(missing.any()):
        if unread:
            raise spilled_away(unread)
        lost = wanted[missing].tolist()
        raise invalid(f"Row id {some(lost)} is in none of the fragments that rows were taken from.")
    return created


def spilled_away(fragments: Iterable[int]) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Row ids or row versions of fragment {some(set(fragments))} are in data files that were not read for this commit.",
        feature="spilled row lineage",
        writing=True,
    )


def locate(wanted: U64Values, ids: RowIds) -> tuple[Places, Places]:
    """Which of the ascending ``wanted`` ids are in a sequence, and at which offsets."""
    which: list[Places] = [np.empty(0, np.int64)]
    offsets: list[Places] = [np.empty(0, np.int64)]
    begin = 0
    for segment in ids.segments:
        places, inner = _in_segment(wanted, segment)
        which.append(places)
        offsets.append(inner + begin)
        begin += segment.count
    return np.concatenate(which), np.concatenate(offsets)


def _in_segment(wanted: U64Values, segment: Segment) -> tuple[Places, Places]:
    if isinstance(segment, Range | Holes):
        # By arithmetic: a range may claim any number of ids in a few bytes.
        low, high = (int(place) for place in np.searchsorted(wanted, np.array([segment.start, segment.end], np.uint64)))
        places = np.arange(low, high, dtype=np.int64)
        inside = wanted[low:high]
        offsets = (inside - np.uint64(segment.start)).astype(np.int64)
        if isinstance(segment, Holes):
            holes = np.frombuffer(segment.holes, "<u8").astype(np.uint64)
            before = np.searchsorted(holes, inside, side="left")
            there = before == np.searchsorted(holes, inside, side="right")
            places, offsets = places[there], (offsets - before)[there]
        return places, offsets
    values = segment.to_numpy()
    places = np.searchsorted(wanted, values).astype(np.int64)
    there = places < len(wanted)
    there[there] = wanted[places[there]] == values[there]
    return places[there], np.flatnonzero(there).astype(np.int64)


# ---- rows that were changed where they are ---------------------------------------------------------------------------------


def all_updated(fragment: DataFragment, version: int) -> DataFragment:
    """Every row of the fragment last updated in ``version``."""
    versions = encode_row_versions(uniform_versions(fragment.physical_rows, version))
    return replace(fragment, updated_at=versions, updated_at_spilled=False)


def some_updated(fragment: DataFragment, offsets: BitMap, version: int, spilled: Mapping[int, Spilled]) -> DataFragment:
    """The rows at these offsets last updated in ``version``. Where the fragment keeps no such account, none is begun."""
    if not len(offsets) or (fragment.updated_at is None and not fragment.updated_at_spilled):
        return fragment
    if len(offsets) > fragment.physical_rows or offsets.max() >= fragment.physical_rows:
        raise invalid(f"Row {offsets.max()} of fragment {fragment.id} was updated, but it has {fragment.physical_rows} rows.")
    if fragment.updated_at_spilled:
        if fragment.id not in spilled:
            raise spilled_away([fragment.id])
        before = spilled[fragment.id].updated_at
    else:
        before = _versions(fragment.updated_at, fragment, version)
    return replace(fragment, updated_at=encode_row_versions(stamped(before, offsets, version)), updated_at_spilled=False)


def _versions(data: bytes | None, fragment: DataFragment, otherwise: int) -> RowVersions:
    if data is None:
        return uniform_versions(fragment.physical_rows, otherwise)
    return decode_row_versions(data, physical_rows=fragment.physical_rows, source=f"fragment {fragment.id}")


def stamped(versions: RowVersions, offsets: BitMap, version: int) -> RowVersions:
    """``version`` at these offsets, by cutting runs: rows in a run cost nothing."""
    marked = np.array(offsets, dtype=np.int64)
    breaks = np.flatnonzero(np.diff(marked) > 1)
    starts = marked[np.concatenate([[0], breaks + 1])]
    ends = marked[np.append(breaks, len(marked) - 1)] + 1
    run_ends = np.cumsum([count for count, _ in versions.runs], dtype=np.int64)
    edges = np.unique(np.concatenate([[0], run_ends, starts, ends]))
    pieces = edges[:-1]
    old = np.array([run for _, run in versions.runs], np.uint64)[np.searchsorted(run_ends, pieces, side="right")]
    latest = np.searchsorted(starts, pieces, side="right") - 1
    inside = (latest >= 0) & (pieces < ends[np.maximum(latest, 0)])
    new = np.where(inside, np.uint64(version), old)
    return joined(zip(np.diff(edges).tolist(), new.tolist(), strict=True))


# ---- rows that were put into other fragments -------------------------------------------------------------------------------


def check_carried(new: Sequence[DataFragment], old: Sequence[DataFragment], next_row_id: int) -> None:
    """Refuses a rewrite whose new fragments do not hold ids of the old ones, each once.

    Rows that were deleted while they were rewritten are in a new fragment, too, and the old fragment may be gone with all its rows.
    """
    inline = [fragment for fragment in new if not fragment.row_ids_spilled]
    if any(fragment.row_ids_spilled for fragment in old) or len(inline) != len(new):
        return  # the ids lie in data files; whoever wrote these answers for them
    carried = [_decode_ids(fragment) for fragment in inline]
    highest = max((ids.highest() for ids in carried), default=-1)
    if highest >= next_row_id:
        raise invalid(f"Row id {highest} of a rewrite was never assigned.")
    ids, known = runs_of(carried), runs_of(map(_decode_ids, old))
    if ids.overlap:
        raise invalid("Two rows of a rewrite have one row id.")
    deleted = sum(fragment.physical_rows - fragment.live_rows for fragment in new)
    if ids.outside(known) > deleted:
        raise invalid(f"Row id {some(list(islice(ids.unknown(known), SAMPLE)))} of a rewrite was in none of its old fragments.")


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
