"""A model on plain rows: what a merge of two lines of operations must give, or that it must conflict.

A row of the model has a number of its own for life (``uid``), values by column, and a place: another one each time the row is certainly
written again. ``doubt`` counts what may have moved it: a compaction, or a column rewritten in its fragment. Where a table has neither a
key nor stable row ids, two lines that certainly moved a row must conflict; where one only may have, a conflict is allowed, and if
there is none the rows must be right.

A column has a number for life, and one that was cast is another one of the same name. A member of a struct is a column with a dot in its
name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

MUST, MAY, NEVER = "must conflict", "may conflict", "must merge"
SHARED = -1
"""The number of a column that both lines may add under one name."""
THERE = -2
"""Under this number a row says whether its struct is there: one whose members are all null is another value than null."""


@dataclass
class Row:
    uid: int
    values: dict[int, Any]
    """By the number of the column."""
    place: int
    doubt: int = 0

    def copy(self) -> Row:
        return Row(self.uid, dict(self.values), self.place, self.doubt)

    def moved(self, base: Row) -> str:
        return "moved" if self.place != base.place else "maybe" if self.doubt != base.doubt else ""


@dataclass
class Content:
    """A table as one line has it."""

    name: str
    key: bool
    stable: bool
    columns: dict[int, str]
    rows: dict[int, Row] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    narrow: set[int] = field(default_factory=set)
    """Columns of 32 bits; the others have 64."""
    required: set[int] = field(default_factory=set)
    """Columns that take no nulls."""
    added_values: set[int] = field(default_factory=set)
    """Columns that were added with values."""
    spent: bool = False
    """Whether columns were dropped, so that field ids of the two lines may not meet."""
    odd: bool = False
    """Whether field ids are not in the order of the columns, so that an overwrite gives others."""
    shared_before: bool = False
    """Whether it ever had the column that both may add."""
    changes: int = 0
    """How many operations the line did to it since the last merge."""
    maintained: int = 0
    """How many of these left its rows, columns and settings as they were."""
    rewrote: str = ""
    """Whether the line wrote rows of the base again since the last merge: moved, or maybe."""
    overwritten: bool = False
    """Whether all of it was overwritten, which gives out field ids again."""
    did: set[str] = field(default_factory=set)
    """What it did to rows: who deletes some and appends others may as well have updated them."""
    in_place: bool = False
    """Whether columns were rewritten in place, so that a merge may have to write rows of it again."""
    restored: bool = False
    """Whether an earlier version was restored since the last merge, so that changes may have been taken back."""
    strayed: bool = False
    """Whether it comes from a version before the base, so that no history leads from there to it."""
    forgotten: bool = False
    """Whether versions since the base were cleaned up."""

    def copy(self) -> Content:
        return replace(
            self, columns=dict(self.columns), rows={uid: row.copy() for uid, row in self.rows.items()}, settings=dict(self.settings),
            narrow=set(self.narrow), required=set(self.required), added_values=set(self.added_values),
            did=set(self.did),
        )  # fmt: skip

    def shown(self) -> list[tuple[tuple[str, Any], ...]]:
        names = sorted(self.columns.items(), key=lambda item: item[1])
        return sorted((tuple((name, row.values.get(number)) for number, name in names) for row in self.rows.values()), key=repr)

    def schema(self) -> dict[str, tuple[str, bool]]:
        """Type and nullability of each column, by name."""
        return {name: ("int32" if number in self.narrow else "int64", number not in self.required) for number, name in self.columns.items()}

    def face(self) -> tuple[Any, ...]:
        """All that is seen of it, but its name."""
        return self.shown(), self.schema(), self.settings, self.key

    @property
    def wrote(self) -> bool:
        """Whether the line may have written rows."""
        return bool(self.rewrote or self.did - {"delete"} or self.restored)

    def replaced(self, base: Content) -> dict[int, int]:
        """Columns that are not the base's, though they have the name of one that is gone: by a cast, an overwrite or a restore."""
        gone = {name: number for number, name in base.columns.items() if number not in self.columns}
        return {number: gone[name] for number, name in self.columns.items() if number not in base.columns and name in gone}

    def may_reuse_ids(self, base: Content) -> bool:
        """Whether a column that was added may have the field id of one that was dropped: of the last one, once no file mentions it."""
        replaced = self.replaced(base)
        dropped = base.columns.keys() - self.columns.keys() - {*replaced.values()}
        added = self.columns.keys() - base.columns.keys() - replaced.keys()
        return bool(added) and bool(dropped) and (base.odd or [*base.columns][-1] in dropped)

    def aligned(self, base: Content) -> Content:
        """The same, where columns of the same name and type as one of the base are taken for it: an overwrite gives out field ids again,
        and lines that were merged before have given them out for themselves."""
        same = {number: old for number, old in self.replaced(base).items() if (number in self.narrow) == (old in base.narrow)}
        if not same:
            return self
        made = self.copy()
        made.columns = {same.get(number, number): name for number, name in made.columns.items()}
        for numbers in (made.narrow, made.required, made.added_values):
            found = {same.get(number, number) for number in numbers}
            numbers.clear()
            numbers |= found
        for row in made.rows.values():
            row.values |= {old: row.values.pop(number) for number, old in same.items() if number in row.values}
        return made

    def members(self) -> dict[int, str]:
        return {number: name for number, name in self.columns.items() if "." in name}


@dataclass
class Verdict:
    conflict: str
    merged: Content | None
    """What a merge without conflict gives; None for no table."""
    ours: Content | None
    theirs: Content | None
    """What it gives if one side is right about the table as a whole."""
    rows_ours: Content | None = None
    rows_theirs: Content | None = None
    """What it gives if one side is right about rows that both changed; None where that answers for the table."""


Line = dict[int, Content]


def copied(line: Line) -> Line:
    return {token: table.copy() for token, table in line.items()}


def fresh(line: Line) -> None:
    """A line that is the base of the next merge. What main did before it still tells the two apart."""
    for table in line.values():
        table.changes, table.maintained, table.restored = 0, 0, False
        table.rewrote, table.did, table.added_values, table.in_place, table.spent = "", set(), set(), False, False
        table.overwritten = table.strayed = table.forgotten = False


def is_changed(base: Content | None, theirs: Content | None) -> bool:
    """Whether a branch has anything to bring of a table."""
    return (base is None) != (theirs is None) or (
        base is not None and theirs is not None and (theirs.changes > 0 or base.name != theirs.name)
    )


def collisions(verdicts: dict[int, Verdict], base: Line, ours: Line, theirs: Line) -> dict[str, str]:
    """Whether tables that get their name from the branch meet others of the target that have it, by what the conflict is about."""
    claims = {token: table.name for token, table in theirs.items() if token not in base and token not in ours}
    for token in base.keys() & ours.keys() & theirs.keys():
        if ours[token].name == base[token].name and theirs[token].name not in (base[token].name, ours[token].name):
            claims[token] = theirs[token].name
    found: dict[str, str] = {}
    for token, name in claims.items():
        label = (ours.get(token) or theirs[token]).name
        for rival, table in ours.items():
            if rival not in claims and table.name == name:
                stays = rival in theirs or rival not in base
                found[label] = worst(found.get(label, NEVER), MUST if stays else verdicts[rival].conflict)
    if any(level != NEVER for level in found.values()):  # a name that is not given up may be in the way of the next one
        found |= {label: worst(found.get(label, NEVER), MAY) for label in [(ours.get(token) or theirs[token]).name for token in claims]}
    return found


def give_names(after: Line, base: Line, ours: Line, theirs: Line, use: str) -> None:
    """Gives each table of the result its name; where two would have one, one of them keeps another name or goes."""
    claims = set()
    for token, table in after.items():
        mine, other = ours.get(token), theirs.get(token)
        if mine is None or other is None:
            table.name = (mine or other or table).name
            claims |= {token} if mine is None else set()
        else:
            before = base[token].name if token in base else mine.name
            renamed = other.name not in (before, mine.name) and (mine.name == before or use == "theirs")
            table.name = other.name if renamed else mine.name
            claims |= {token} if renamed else set()
    while pair := next(
        ((token, rival) for token in claims for rival in after if rival not in claims and after[rival].name == after[token].name), None
    ):
        token, rival = pair
        if use == "theirs" and rival in theirs:
            after[rival].name = theirs[rival].name
            claims.add(rival)
        elif use == "theirs":
            del after[rival]
        elif token in ours:
            after[token].name = ours[token].name
            claims.discard(token)
        else:
            del after[token]
            claims.discard(token)


def settled(found: Verdict, kinds: set[str], use: str) -> Content | None:
    """What a table is, but for its name, after a merge whose conflicts were settled for one side."""
    if kinds <= {"name"}:
        return found.merged
    by_row: Content | None = getattr(found, f"rows_{use}")
    whole: Content | None = getattr(found, use)
    return by_row if kinds <= {"rows", "key", "name"} and by_row is not None else whole


# ---- what must be -------------------------------------------------------------------------------------------------------------------


def verdict(base: Content | None, ours: Content | None, theirs: Content | None, first: bool) -> Verdict:
    """What a merge of one table must come to."""
    if base is None:
        return Verdict(NEVER if ours is None or theirs is None else MAY, ours or theirs, ours, theirs)
    if theirs is None and ours is None:
        return Verdict(NEVER, None, None, None)
    if theirs is None or ours is None:
        left = ours if theirs is None else theirs
        assert left is not None
        same = left.face() == base.face()  # it may have been changed and changed back
        if (left.changes == left.maintained or left.restored or same) and left.name == base.name:
            # A compaction moves rows, which nothing tells from a change; and main may differ from the branch by what it did before.
            return Verdict(MAY if left.changes or (not first and theirs is None) else NEVER, None, ours, theirs)
        return Verdict(MUST, None, ours, theirs)
    found = content(base, ours, theirs, first)
    if theirs.name not in (base.name, ours.name) and ours.name not in (base.name, theirs.name):
        found.conflict = MUST
    return found


def content(base: Content, ours: Content, theirs: Content, first: bool) -> Verdict:
    copies = ours.copy(), theirs.copy()
    if not theirs.changes:
        return Verdict(NEVER, ours.copy(), *copies)
    if not ours.changes and first:
        return Verdict(NEVER, theirs.copy(), *copies)
    apart = not first and (base.columns.items() - ours.columns.items()) and (ours.columns.items() - base.columns.items())
    sides = ours, theirs
    ours = ours.aligned(base) if not first or ours.overwritten else ours
    theirs = theirs.aligned(base) if theirs.overwritten else theirs
    schema, columns = merged_columns(base, ours, theirs)
    if apart or (ours, theirs) != sides:
        schema = worst(schema, MAY)  # columns may have ids of others, on a side that does not come from the base or was overwritten
    settings, level = merged_settings(base, ours, theirs)
    if worst(schema, level) == MUST:
        return Verdict(MUST, None, *copies)
    made = Content(ours.name, either(base.key, ours.key, theirs.key), ours.stable, columns, {}, settings)
    if 1 not in columns:
        made.settings = {key: value for key, value in settings.items() if not key.startswith("field_")}
    made.narrow = ours.narrow | theirs.narrow
    made.required = {number for number in columns if either(*(number in side.required for side in (base, ours, theirs)))}
    schema = worst(schema, level, key_level(made, ours, theirs))
    if (base.key and ours.key and theirs.key) or (ours.stable and first):
        clash, by_ours, by_theirs = three_way(base, ours, theirs)
        results = [made.copy() for _ in range(2)]
        results[0].rows, results[1].rows = by_ours, by_theirs
        broken = [holds(result, base, ours, theirs) for result in results]
        return Verdict(worst(MUST if clash else NEVER, schema, broken[0]), results[0].copy(), *copies, *results)
    met, made.rows = by_places(base, ours, theirs)
    return Verdict(worst(met, schema, holds(made, base, ours, theirs)), made, *copies)


def worst(*levels: str) -> str:
    return max(levels, key=(NEVER, MAY, MUST).index)


def either(was: bool, mine: bool, other: bool) -> bool:
    """What is on or off: as the side has it that changed it."""
    return other if other != was else mine


def merged_settings(base: Content, ours: Content, theirs: Content) -> tuple[dict[str, str], str]:
    settings, level = dict(ours.settings), NEVER
    faces = [{key: value for key, value in side.settings.items() if key.startswith("field_")} for side in (base, ours, theirs)]
    if (ours.overwritten or theirs.overwritten) and (faces[1] != faces[0] or faces[2] != faces[0]):
        level = MAY  # another column, perhaps
    if 1 in base.columns and any(1 not in gone.columns and 1 in left.columns and face != faces[0] for gone, left, face in (
        (ours, theirs, faces[2]), (theirs, ours, faces[1]),
    )):  # fmt: skip
        level = worst(level, MAY if (ours.overwritten or theirs.overwritten) else MUST)  # dropped, and described otherwise
    for key in {**base.settings, **theirs.settings}:
        if theirs.settings.get(key) not in (base.settings.get(key), ours.settings.get(key)):
            level = MUST if ours.settings.get(key) != base.settings.get(key) else level
            if key in theirs.settings:
                settings[key] = theirs.settings[key]
            else:
                settings.pop(key, None)
    return settings, level


def key_level(made: Content, ours: Content, theirs: Content) -> str:
    """A key that one side has and the other has not: rows of the other were never compared with it."""
    if ours.key == theirs.key:
        return NEVER
    keyless = theirs if ours.key else ours
    return MAY if (made.key and keyless.wrote) or (ours.wrote and theirs.wrote) else NEVER


def holds(made: Content, base: Content, ours: Content, theirs: Content) -> str:
    """Whether the merged rows are what the merged schema says: keys, nulls, and values of columns that were cast."""
    rows = made.rows.values()
    if made.key and (len({row.values[0] for row in rows}) < len(rows) or 0 not in made.required):
        return MUST
    if any(row.values.get(number) is None for row in rows for number in made.required):
        return MUST
    doubt = NEVER
    for side, other in ((ours, theirs), (theirs, ours)):
        for number, old in side.replaced(base).items():
            if made.columns.get(number) == base.columns[old]:
                doubt = MAY if other.wrote else doubt  # under the old type, whatever was written
                for row in rows:
                    was, there = base.rows.get(row.uid), other.rows.get(row.uid)
                    if there is not None and there.values.get(old) != (None if was is None else was.values.get(old)):
                        return MUST
    nulls = any(row.values.get(number) is None for side in (ours, theirs) for row in side.rows.values() for number in made.required)
    return MAY if nulls else doubt


def merged_columns(base: Content, ours: Content, theirs: Content) -> tuple[str, dict[int, str]]:
    new_here, new_there = ours.columns.keys() - base.columns.keys(), theirs.columns.keys() - base.columns.keys()
    both = new_here & new_there
    level = NEVER
    if new_here and new_there:
        level = MAY if both or ours.spent or theirs.spent else MUST
    for number in both:
        mine, other = ({uid: row.values.get(number) for uid, row in side.rows.items() if uid in base.rows} for side in (ours, theirs))
        if ours.columns[number] != theirs.columns[number] or any(
            None not in (mine[uid], other[uid]) and mine[uid] != other[uid] for uid in mine.keys() & other.keys()
        ):
            level = MUST
    for number, name in base.columns.items():
        mine_called, other_called = ours.columns.get(number), theirs.columns.get(number)
        if mine_called != other_called and mine_called != name and other_called != name:
            level = MUST
        gone = [side for side in (ours, theirs) if number not in side.columns]
        left = [side for side in (ours, theirs) if number in side.columns]
        if gone and left and (number in left[0].required) != (number in base.required):
            level = MUST
    mine_moved, other_moved = (side.rewrote or len(side.did) > 1 for side in (ours, theirs))
    valued = (bool(new_there & theirs.added_values) or other_moved, bool(new_here & ours.added_values) or mine_moved)
    if (new_there and valued[0] and mine_moved) or (new_here and valued[1] and other_moved):
        level = worst(level, MAY)
    for side in (ours, theirs):
        renamed = any(side.columns.get(number, name) != name for number, name in base.columns.items())
        if renamed and (side.strayed or side.forgotten):
            level = worst(level, MAY)  # where no file tells, only the history says that it is the same column
        if side.may_reuse_ids(base):
            level = worst(level, MAY)
    for less, more in ((ours, theirs), (theirs, ours)):
        if base.members() and not less.members() and more.members().keys() - base.members().keys():
            level = worst(level, MAY)  # members were added to a struct that is not there any more
    # An overwrite gives out field ids anew, so that columns are other ones though they have the same names.
    faces = [(side.columns, side.schema()) for side in (base, ours, theirs)]
    if (ours.overwritten or theirs.overwritten) and (faces[1] != faces[2] or faces[1] != faces[0] or base.odd or ours.odd or theirs.odd):
        level = MAY
    columns = {
        number: theirs.columns[number] if theirs.columns.get(number) != base.columns.get(number) and number in theirs.columns else name
        for number, name in ours.columns.items()
        if number in theirs.columns or number not in base.columns
    }
    return level, columns | {number: theirs.columns[number] for number in new_there}


def compared(base: Content, ours: Content, theirs: Content) -> list[int]:
    """The numbers of what all three have, by which rows are compared."""
    common = [number for number in base.columns if number in ours.columns and number in theirs.columns]
    return [*common, *([THERE] if any("." in base.columns[number] for number in common) else [])]


def three_way(base: Content, ours: Content, theirs: Content) -> tuple[bool, dict[int, Row], dict[int, Row]]:
    """Rows by key or uid; whether some conflict; the rows if the target is right about those, and if the branch is."""
    by: Callable[[Row], int] = (lambda row: row.values[0]) if base.key and ours.key and theirs.key else (lambda row: row.uid)
    was, mine, other = ({by(row): row for row in side.rows.values()} for side in (base, ours, theirs))
    common = compared(base, ours, theirs)
    clash, results = False, ({}, {})  # type: tuple[bool, tuple[dict[int, Row], dict[int, Row]]]
    for key in {**was, **mine, **other}:
        values = [None if key not in side else tuple(side[key].values.get(number) for number in common) for side in (was, mine, other)]
        rows: tuple[Row | None, Row | None]
        if values[1] == values[2] or values[2] == values[0]:
            rows = (mine.get(key), mine.get(key))
        elif values[1] == values[0]:
            rows = (other.get(key), other.get(key))
        else:
            clash, rows = True, (mine.get(key), other.get(key))
        for result, row in zip(results, rows, strict=True):
            if row is not None:
                result[row.uid] = filled(row, mine.get(key), other.get(key), base)
                if values[1] == values[2] and mine[key].place != other[key].place:  # either copy may be the one that is left
                    result[row.uid].place, result[row.uid].doubt = other[key].place, -1 - other[key].doubt
    return clash, *results


def filled(row: Row, mine: Row | None, other: Row | None, base: Content) -> Row:
    """A row with the values that the other side gave to a column of its own; a null in a column of the base is a value like others."""
    made = row.copy()
    for side in (mine, other):
        for number, value in (side.values if side is not None and side.uid == row.uid else {}).items():
            if number not in made.values or (number == SHARED and number not in base.columns and made.values[number] is None):
                made.values[number] = value
    return made


def by_places(base: Content, ours: Content, theirs: Content) -> tuple[str, dict[int, Row]]:
    """Rows of a table without keys and row ids: who deleted or wrote a row again has moved it, who rewrote columns in place has not.

    What moved on both sides is a conflict, and so is what moved on one and has other values on the other, or other values on both: only
    the same values in the same place agree.
    """
    common = compared(base, ours, theirs)
    level, rows = NEVER, {}
    for uid in {**base.rows, **ours.rows, **theirs.rows}:
        was, mine, other = base.rows.get(uid), ours.rows.get(uid), theirs.rows.get(uid)
        if was is None:
            row = mine or other
        else:
            here, there = ("moved" if side is None else side.moved(was) for side in (mine, other))
            before, now, then = (None if side is None else [side.values.get(number) for number in common] for side in (was, mine, other))
            if (here == "moved" and (there == "moved" or then != before)) or (there == "moved" and now != before):
                return MUST, {}
            if now != before and then != before and now != then:
                return MUST, {}
            if (here and there) or (here and then != before) or (there and now != before):
                level = MAY
            row = other if there == "moved" or (here != "moved" and then != before) or (there and not here and now == before) else mine
        if row is not None:
            rows[uid] = filled(row, mine, other, base)
    return level, rows
