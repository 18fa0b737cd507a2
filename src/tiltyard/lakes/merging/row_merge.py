"""Which rows of a branch come to the target, and which of the target go: decided by files, and by keys or row ids where both sides meet."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from tiltyard.lakes.merging.merge_values import SAMPLE, ConflictingRow, Settlement
from tiltyard.lakes.merging.place_merge import MergeSides, RowValues, Three, taken_apart
from tiltyard.lakes.merging.row_identity import Identity, Place, PlaceList, identities, identity_of, key_shown, read_rows
from tiltyard.lakes.merging.table_state import PhysicalChange
from tiltyard.verbs.changed_rows import Places


@dataclass(slots=True)
class RowMerge:
    """What becomes of rows.

    Attributes:
        strike: rows of the target that go.
        bring: fragments of the branch that come as they are, each with the rows of it that do not show.
        copy: rows of the branch that have to be written again.
        refile: fragments of the target whose columns are taken from a fragment of the branch.
        conflicts: rows that both changed, and nobody settled.
        by_key: how many of these are keys that both inserted.
        untold: rows that went on both sides and that nothing tells apart.
    """

    strike: Places = field(default_factory=dict)
    bring: Places = field(default_factory=dict)
    copy: Places = field(default_factory=dict)
    refile: dict[int, int] = field(default_factory=dict)
    conflicts: list[ConflictingRow] = field(default_factory=list)
    by_key: int = 0
    untold: int = 0
    moved: dict[Place, Place] = field(default_factory=dict)
    """For rows of the base that both sides touched, and the branch is right about: where the target has them now."""
    ids: dict[int, int] = field(default_factory=dict)
    """For stable row ids that rows of the branch have which go on the target: what they are there."""

    def __bool__(self) -> bool:
        return bool(self.strike or self.bring or self.copy or self.refile)


def plan_rows(three: Three, mine: PhysicalChange, other: PhysicalChange, settle: Settlement, table: str) -> RowMerge:
    """Decides about all rows that the branch changed.

    Args:
        three: the table.
        mine, other: what the target and the branch did since the base.
        settle: answers to conflicts.
        table: its name, for these.
    """
    identity = identity_of([three.base, three.ours, three.theirs], same_ids=three.same_ids)
    sides = taken_apart(three, mine, other, by_place=not identity)
    plan = RowMerge(refile=sides.refile)
    _join_common(plan, three, mine, other, sides)
    both = {number: rows for number, gone in sides.went_theirs.items() if (rows := gone & sides.went_ours.get(number, BitMap()))}
    for number, gone in sides.went_theirs.items():
        if left := gone - both.get(number, BitMap()):
            there = mine.kept[number]
            plan.strike[there] = plan.strike.get(there, BitMap()) | left
    hidden: dict[int, BitMap] = {}
    plain = {number: gone - both.get(number, BitMap()) for number, gone in sides.went_theirs.items()}
    if sides.clashes or (both and not identity):
        _untold(plan, three, {number: both.get(number, BitMap()) | sides.clashes.get(number, BitMap()) for number in both | sides.clashes})
        return plan
    if both or (identity.by == "key" and sides.came_ours and sides.came_theirs):
        _settle_rows(plan, _Meeting(three, sides, both, identity), hidden, settle, table)
    if three.theirs.side.stable and three.ours.side.stable and sides.came_theirs:
        plan.ids = _ids_on_target(plan, three, mine, other, plain)
    _place_new_rows(plan, three, other, sides.came_theirs, hidden)
    return plan


def _ids_on_target(plan: RowMerge, three: Three, mine: PhysicalChange, other: PhysicalChange, plain: Places) -> dict[int, int]:
    """For rows of the base that the branch wrote again or deleted: their ids there, and on the target."""
    pairs = [((number, offset), (mine.kept[number], offset)) for number, rows in plain.items() for offset in rows]
    pairs += plan.moved.items()
    found: dict[int, int] = {}
    for (number, offset), (there, place) in pairs:
        row = BitMap([offset])
        if number in other.kept:
            theirs = three.theirs.side.ids(other.kept[number], row)
        elif three.theirs_ids:
            theirs = three.base.side.ids(number, row)
        else:
            continue  # nobody can say which of the new rows it is: it gets an id of its own
        found[int(theirs[0])] = int(three.ours.side.ids(there, BitMap([place]))[0])
    return found


def _join_common(plan: RowMerge, three: Three, mine: PhysicalChange, other: PhysicalChange, sides: MergeSides) -> None:
    """Fragments that both sides have and the base has not: they came to both from a third line. Who deleted rows of them since is right."""
    ours, theirs = three.ours, three.theirs
    old_here, old_there = set(mine.kept.values()), set(other.kept.values())
    for there, here in theirs.found_in(ours).items():
        if there in old_there or here in old_here:
            continue
        if gone := ours.live(here) - theirs.live(there):
            plan.strike[here] = gone
        sides.came_theirs.pop(there, None)
        sides.came_ours.pop(here, None)


def _untold(plan: RowMerge, three: Three, both: Places) -> None:
    """Rows that went on both sides of a table without keys or row ids: whether both changed, deleted or only moved them nobody can say."""
    plan.untold = sum(map(len, both.values()))
    places = [place for _, place in zip(range(SAMPLE), PlaceList(both), strict=False)]
    plan.conflicts = [ConflictingRow({}, row, None, None) for row in read_rows(three.base, places)]


# ---- rows that both sides touched ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Rows that both sides touched, by what makes them the same row."""

    three: Three
    sides: MergeSides
    both: Places
    identity: Identity

    def found(self) -> tuple[dict[Hashable, Place], dict[Hashable, Place], dict[Hashable, Place]]:
        """Places of these rows in the base, on the target and on the branch."""
        base = identities(self.three.base, self.both, self.identity)
        ours = identities(self.three.ours, self.sides.came_ours, self.identity)
        theirs = identities(self.three.theirs, self.sides.came_theirs, self.identity)
        shared = {found for found in ours if found in theirs} if self.identity.by == "key" else set()
        wanted = base.keys() | shared
        return (
            base,
            {found: ours[found] for found in ours if found in wanted},
            {found: theirs[found] for found in theirs if found in wanted},
        )


def _settle_rows(plan: RowMerge, meeting: _Meeting, hidden: dict[int, BitMap], settle: Settlement, table: str) -> None:
    base, ours, theirs = meeting.found()
    three = meeting.three
    named = key_shown(three.base, meeting.identity)
    values = RowValues(three, (base, ours, theirs))
    for found in {**base, **ours, **theirs}:
        was, mine, other = values.of(found)
        if mine == other or (other == was and values.comparable):
            winner = "ours"
        elif mine == was and values.comparable:
            winner = "theirs"
        else:
            winner = settle.of_row(table, named(found)) or ""
        if not winner:
            plan.by_key += found not in base
            if len(plan.conflicts) < SAMPLE:
                plan.conflicts.append(ConflictingRow(named(found), *values.shown(found)))
            plan.untold += 1
        elif winner == "ours" and found in theirs:
            number, offset = theirs[found]
            hidden.setdefault(number, BitMap()).add(offset)
        elif winner == "theirs" and found in ours:
            number, offset = ours[found]
            plan.strike.setdefault(number, BitMap()).add(offset)
            if found in base:
                plan.moved[base[found]] = ours[found]


# ---- rows that come --------------------------------------------------------------------------------------------------------------


def _place_new_rows(plan: RowMerge, three: Three, other: PhysicalChange, came: Places, hidden: Mapping[int, BitMap]) -> None:
    """New rows of the branch: whole fragments where they are, others written again."""
    theirs, old = three.theirs, set(other.kept.values())
    for number, rows in came.items():
        left = rows - hidden.get(number, BitMap())
        if not left:
            continue
        # A row that keeps its id must come first among the new ones, which only a new file can see to.
        if number in old or (plan.ids and not plan.ids.keys().isdisjoint(theirs.side.ids(number, left).tolist())):
            plan.copy[number] = left
        else:
            plan.bring[number] = BitMap(range(theirs.fragments[number].physical_rows)) - left
