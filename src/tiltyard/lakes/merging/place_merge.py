"""Rows in fragments whose columns were written again in place: they keep their place, which tells them apart where nothing else does."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap

from tiltyard.lakes.merging.row_identity import Place, Row, common_columns, content, read_rows
from tiltyard.lakes.merging.table_state import PhysicalChange, TableState
from tiltyard.verbs.changed_rows import Places


@dataclass(frozen=True, slots=True)
class Three:
    """One table at the common ancestor, on the target and on the branch.

    Attributes:
        ours_ids, theirs_ids: whether a row id of the base stands for the same row on that side.
    """

    base: TableState
    ours: TableState
    theirs: TableState
    ours_ids: bool
    theirs_ids: bool

    @property
    def same_ids(self) -> bool:
        return self.ours_ids and self.theirs_ids


class RowValues:
    """Values of rows on three sides, read once, in the columns that all have."""

    def __init__(self, three: Three, places: tuple[Mapping[Hashable, Place], ...]) -> None:
        states = (three.base, three.ours, three.theirs)
        common = common_columns(states)
        self.comparable = common is not None
        self._rows: list[dict[Hashable, Row]] = []
        for number, (state, found) in enumerate(zip(states, places, strict=True)):
            rows = read_rows(state, list(found.values()), None if common is None else common[number])
            self._rows.append(dict(zip(found, rows, strict=True)))

    def shown(self, found: Hashable) -> tuple[Row | None, Row | None, Row | None]:
        base, ours, theirs = (rows.get(found) for rows in self._rows)
        return base, ours, theirs

    def of(self, found: Hashable) -> tuple[Any, Any, Any]:
        """The values on the three sides. Where columns cannot be compared, no two rows are alike, but no row is like no row."""
        shown = self.shown(found)
        if not self.comparable:
            base, ours, theirs = (None if row is None else object() for row in shown)
            return base, ours, theirs
        return content(shown[0]), content(shown[1]), content(shown[2])


@dataclass(slots=True)
class MergeSides:
    """What came and went on both sides, once it is known what becomes of fragments that were written in place.

    Attributes:
        refile: fragments of the target whose columns are taken from a fragment of the branch.
        clashes: rows of the base in such fragments that both sides changed, and that only their place tells apart.
    """

    went_ours: Places
    went_theirs: Places
    came_ours: Places
    came_theirs: Places
    refile: dict[int, int]
    clashes: Places


def taken_apart(three: Three, mine: PhysicalChange, other: PhysicalChange, *, by_place: bool) -> MergeSides:
    """Decides about fragments that were written in place on one side and touched on the other.

    Args:
        three: the table.
        mine, other: what the target and the branch did since the base.
        by_place: whether rows are compared at their place; otherwise they count as written again, and something else tells them apart.
    """
    base, ours, theirs = three.base, three.ours, three.theirs
    sides = MergeSides(dict(mine.went), dict(other.went), dict(mine.came), dict(other.came), {}, {})
    for number in mine.refiled | other.refiled:
        here, there = number in mine.refiled, number in other.refiled
        # A row that came back on the target is none of the branch's: its values there are nobody's.
        if there and not here and number not in mine.went and mine.kept[number] not in mine.came:
            sides.refile[mine.kept[number]] = other.kept[number]
            continue
        if here and not there and number not in other.went:
            continue
        if by_place and _compared(three, mine, other, sides, number):
            continue
        if there:
            sides.went_theirs[number] = base.live(number)
            sides.came_theirs[other.kept[number]] = theirs.live(other.kept[number])
        if here:
            sides.went_ours[number] = base.live(number)
            sides.came_ours[mine.kept[number]] = ours.live(mine.kept[number])
    _came_back(sides, mine, other)
    return sides


def _compared(three: Three, mine: PhysicalChange, other: PhysicalChange, sides: MergeSides, number: int) -> bool:
    """Compares the rows of a fragment of the base at their place on all sides; False where their columns cannot be compared."""
    was = three.base.live(number)
    here, there = _live(three.ours, mine, number), _live(three.theirs, other, number)
    back = here - was
    looked = BitMap()
    if number in other.refiled:
        looked |= (was & there) - here
        looked |= was & here & there if back or number in mine.refiled else BitMap()
    if number in mine.refiled:
        looked |= (was & here) - there
    values = RowValues(
        three,
        (
            {offset: (number, offset) for offset in looked},
            {offset: (mine.kept[number], offset) for offset in looked & here},
            {offset: (other.kept[number], offset) for offset in looked & there},
        ),
    )
    if not values.comparable:
        return False
    by_ours, by_theirs, clash = BitMap(), BitMap(), BitMap()
    for offset in looked:
        before, ours, theirs = values.of(offset)
        if ours not in (before, theirs) and theirs != before:
            clash.add(offset)
        elif offset in here and offset in there and ours != theirs:
            (by_theirs if ours == before else by_ours).add(offset)
    if clash:
        sides.clashes[number] = clash
    elif number in other.refiled and number in mine.kept:
        if not back and not by_ours and (by_theirs or number not in mine.refiled):
            sides.refile[mine.kept[number]] = other.kept[number]
        elif by_theirs:
            there_now = other.kept[number]
            sides.went_theirs[number] = sides.went_theirs.get(number, BitMap()) | by_theirs
            sides.came_theirs[there_now] = sides.came_theirs.get(there_now, BitMap()) | by_theirs
    return True


def _live(state: TableState, change: PhysicalChange, number: int) -> BitMap:
    return state.live(change.kept[number]) if number in change.kept else BitMap()


def _came_back(sides: MergeSides, mine: PhysicalChange, other: PhysicalChange) -> None:
    """Rows that the base had deleted and that are back in their place on both sides: they are there once."""
    for number in mine.kept.keys() & other.kept.keys():
        here, there = mine.kept[number], other.kept[number]
        if both := mine.came.get(here, BitMap()) & other.came.get(there, BitMap()):
            if number in mine.refiled | other.refiled:
                sides.clashes[number] = sides.clashes.get(number, BitMap()) | both
            for came, place in ((sides.came_ours, here), (sides.came_theirs, there)):
                left = came.pop(place) - both
                if left:
                    came[place] = left
