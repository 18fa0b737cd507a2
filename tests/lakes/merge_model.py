"""Two lines of random operations from one base, and a model on plain rows that says what a merge must give, or that it must conflict.

A row of the model has a number of its own for life (``uid``), values by column, and a place: another one each time the row is certainly
written again. ``doubt`` counts what may have moved it: a compaction, or a column rewritten in its fragment. Where a table has neither a
key nor stable row ids, two lines that certainly moved a row must conflict; where one only may have, a conflict is allowed, and if
there is none the rows must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

from tests.support.lakes import Site
from tiltyard.catalog.lake_values import MAIN
from tiltyard.lake import Lake

SIDE = "side"
MUST, MAY, NEVER = "must conflict", "may conflict", "must merge"


@dataclass
class Row:
    uid: int
    values: dict[int, Any]
    """By the number of the column."""
    place: int
    doubt: int = 0

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
    added_values: set[int] = field(default_factory=set)
    """Columns that were added with values."""
    changes: int = 0
    """How many operations the line did to it since the last merge."""
    maintained: int = 0
    """How many of these left its rows, columns and settings as they were."""
    rewrote: str = ""
    """Whether the line wrote rows of the base again since the last merge: moved, or maybe."""
    did: set[str] = field(default_factory=set)
    """What it did to rows: who deletes some and appends others may as well have updated them."""

    def shown(self) -> list[tuple[tuple[str, Any], ...]]:
        names = sorted(self.columns.items(), key=lambda item: item[1])
        return sorted((tuple((name, row.values.get(number)) for number, name in names) for row in self.rows.values()), key=repr)


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


class MergeRun:
    """One lake with two lines; ``run`` raises ``AssertionError`` where a merge is not what the model says."""

    def __init__(self, site: Site, seed: int) -> None:
        self.lake = site.open()
        self.random = Random(seed)
        self.numbers = count(1)
        self.log = [f"seed {seed}: replay with MergeRun(site, {seed}).run(...)"]
        self.lines: dict[str, Line] = {MAIN: {}}
        self.merges = self.conflicts = 0

    def on(self, branch: str) -> Lake:
        return self.lake if branch == MAIN else self.lake.on_branch(branch)

    def run(self, tables: int, steps: int, rounds: int) -> None:
        try:
            for _ in range(tables):
                self.create(MAIN)
            self.lake.branches.create(SIDE)
            self.lines[SIDE] = deepcopy(self.lines[MAIN])
            base = deepcopy(self.lines[MAIN])
            for turn in range(rounds):
                for _ in range(steps):
                    self.step(self.random.choice((MAIN, SIDE)))
                self.merge(base, first=not turn)
                base = deepcopy(self.lines[SIDE])
            problems = self.lake.check().problems
            assert problems == (), problems
        except Exception as error:
            raise AssertionError("\n".join([*self.log, f"{type(error).__name__}: {error}"])) from error

    # ---- operations ------------------------------------------------------------------------------------------------------------

    def note(self, branch: str, what: str) -> None:
        self.log.append(f"{branch}: {what}")

    def create(self, branch: str) -> None:
        name = f"t{next(self.numbers)}"
        key, stable = self.random.random() < 0.45, self.random.random() < 0.4
        made = Content(name, key, stable, {0: "id", 1: "v"})
        self.note(branch, f"create {name} key={key} stable={stable}")
        rows = self.new_rows(made, self.random.randrange(3, 7))
        options: dict[str, Any] = {"primary_key": ["id"] if key else None, "stable_row_ids": stable}
        self.on(branch).create_table(name, self.arrow(made, rows), **options)
        self.lines[branch][next(self.numbers)] = made

    def new_rows(self, table: Content, many: int, ids: list[int] | None = None) -> list[Row]:
        made = []
        for place in range(many):
            uid = next(self.numbers)
            values = {0: ids[place] if ids else uid, 1: self.random.randrange(5)}
            values |= {number: self.random.randrange(5) for number in table.columns if number > 1}
            made.append(Row(uid, values, uid))
        table.rows.update((row.uid, row) for row in made)
        return made

    def arrow(self, table: Content, rows: list[Row]) -> pa.Table:
        return pa.table({name: pa.array([row.values.get(number) for row in rows], pa.int64()) for number, name in table.columns.items()})

    def step(self, branch: str) -> None:
        if self.random.random() < 0.06:
            return self.define(branch)
        if not self.lines[branch]:
            return self.create(branch)
        table = self.random.choice(list(self.lines[branch].values()))
        actions: list[Callable[[str, Content], None]] = [
            *[self.append] * 4, *[self.update] * 4, *[self.delete] * 4, *[self.compact] * 2,
            *[self.configure, self.index, self.overwrite, self.in_place, self.upsert] * 2,
            self.random.choice((self.add_column, self.drop_column, self.rename_column, self.null_column)),
        ]  # fmt: skip
        before = table.changes
        self.random.choice(actions)(branch, table)
        assert table.changes >= before
        return None

    def define(self, branch: str) -> None:
        choice = self.random.randrange(3)
        if choice == 0 or not self.lines[branch]:
            self.create(branch)
            return
        token, table = self.random.choice(list(self.lines[branch].items()))
        if choice == 1:
            self.note(branch, f"drop {table.name}")
            self.on(branch).drop_table(table.name)
            del self.lines[branch][token]
        else:
            name = f"r{next(self.numbers)}"
            self.note(branch, f"rename {table.name} to {name}")
            self.on(branch).rename_table(table.name, name)
            table.name = name

    def handle(self, branch: str, table: Content, what: str) -> Any:
        self.note(branch, f"{table.name}: {what}")
        table.changes += 1
        return self.on(branch).table(table.name)

    def append(self, branch: str, table: Content) -> None:
        known = {row.values[0] for row in table.rows.values()}
        ids = None
        if table.key and self.random.random() < 0.4:  # a few small keys, so that both sides insert the same
            ids = [number for number in self.random.sample(range(-4, 0), 2) if number not in known] or None
        rows = self.new_rows(table, len(ids) if ids else self.random.randrange(1, 3), ids)
        table.did.add("append")
        self.handle(branch, table, f"append {[row.values for row in rows]}").append(self.arrow(table, rows))

    def some(self, table: Content) -> list[Row]:
        return self.random.sample(list(table.rows.values()), min(len(table.rows), self.random.randrange(1, 3)))

    def where(self, rows: list[Row]) -> str:
        return f"id in ({', '.join(str(row.values[0]) for row in rows)})"

    def update(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if not rows or 1 not in table.columns:
            return
        value = self.random.randrange(5)
        handle = self.handle(branch, table, f"update v = {value} where {self.where(rows)}")
        handle.update({table.columns[1]: str(value)}, where=self.where(rows), mode="rows")
        for row in rows:
            row.values[1], row.place = value, next(self.numbers)
        table.rewrote = "moved"

    def in_place(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if not rows or 1 not in table.columns:
            return
        value = self.random.randrange(5)
        handle = self.handle(branch, table, f"update in place v = {value} where {self.where(rows)}")
        handle.update({table.columns[1]: str(value)}, where=self.where(rows), mode="columns")
        for row in rows:
            row.values[1] = value
        self.shake(table)

    def upsert(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if not rows or not table.key or 1 not in table.columns:
            return
        given = deepcopy(rows)
        for row in given:
            row.values[1] = self.random.randrange(5)
        handle = self.handle(branch, table, f"upsert {[row.values for row in given]}")
        handle.merge(self.arrow(table, given)).when_matched_update_all().when_not_matched_insert_all().execute()
        for row, new in zip(rows, given, strict=True):
            row.values, row.place = new.values, next(self.numbers)
        table.rewrote = "moved"

    def delete(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if rows:
            self.handle(branch, table, f"delete {self.where(rows)}").delete(self.where(rows))
            table.did.add("delete")
            for row in rows:
                del table.rows[row.uid]

    def shake(self, table: Content) -> None:
        for row in table.rows.values():
            row.doubt = next(self.numbers)
        table.rewrote = table.rewrote or "maybe"

    def compact(self, branch: str, table: Content) -> None:
        self.handle(branch, table, "compact").maintenance.compact()
        table.maintained += 1
        self.shake(table)

    def overwrite(self, branch: str, table: Content) -> None:
        if self.random.random() < 0.5:
            return
        table.rows = {}
        rows = self.new_rows(table, 2)
        self.handle(branch, table, f"overwrite {[row.values for row in rows]}").overwrite(self.arrow(table, rows))
        table.rewrote = "overwritten"

    def add_column(self, branch: str, table: Content) -> None:
        number, times = next(self.numbers), self.random.randrange(1, 4)
        self.handle(branch, table, f"add column c{number} = id * {times}").add_columns({f"c{number}": f"id * {times}"})
        table.columns[number] = f"c{number}"
        table.added_values.add(number)
        for row in table.rows.values():
            row.values[number] = row.values[0] * times

    def null_column(self, branch: str, table: Content) -> None:
        number = next(self.numbers)
        self.handle(branch, table, f"add column c{number} without values").add_columns(pa.schema([pa.field(f"c{number}", pa.int64())]))
        table.columns[number] = f"c{number}"

    def drop_column(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number > 0]
        if len(some) > 1:
            number = self.random.choice(some)
            self.handle(branch, table, f"drop column {table.columns[number]}").drop_columns([table.columns[number]])
            del table.columns[number]

    def rename_column(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number > 0]
        if some:
            number, name = self.random.choice(some), f"n{next(self.numbers)}"
            self.handle(branch, table, f"rename column to {name}").alter_columns({"path": table.columns[number], "name": name})
            table.columns[number] = name

    def configure(self, branch: str, table: Content) -> None:
        key, value = self.random.choice("xy"), str(self.random.randrange(3))
        self.handle(branch, table, f"config {key} = {value}").settings.update_config({key: value})
        table.settings[key] = value

    def index(self, branch: str, table: Content) -> None:
        self.handle(branch, table, "index id").create_index("id", "BTREE", replace=True)
        table.maintained += 1

    # ---- the merge -------------------------------------------------------------------------------------------------------------

    def merge(self, base: Line, *, first: bool) -> None:
        ours, theirs = self.lines[MAIN], self.lines[SIDE]
        verdicts = {token: verdict(base.get(token), ours.get(token), theirs.get(token), first) for token in {**base, **ours, **theirs}}
        found = self.lake.branches.merge(SIDE, dry_run=True)
        names = {token: (ours.get(token) or theirs.get(token) or base[token]).name for token in verdicts}
        told = {conflict.table for conflict in found.conflicts}
        kinds: dict[str, set[str]] = {}
        for conflict in found.conflicts:
            kinds.setdefault(conflict.table, set()).add(conflict.kind)
        self.log.append(f"conflicts: {[(c.table, c.kind, c.detail) for c in found.conflicts]}")
        for token, name in names.items():
            allowed = verdicts[token].conflict
            assert name in told or allowed != MUST, f"{name} had to conflict"
            assert name not in told or allowed != NEVER, f"{name} must not conflict"
        self.merges += len(verdicts)
        self.conflicts += len(told)
        if first and not told and not found.up_to_date:
            self.mirrored(verdicts)
        use: Any = self.random.choice(("ours", "theirs"))
        self.log.append(f"merge, conflicts for {use}")
        done = self.lake.branches.merge(SIDE, on_conflict=dict.fromkeys(told, use) if told else "fail")
        self.log.append(str([(table.table, table.how) for table in done.tables]))
        after: Line = {}
        for token, name in names.items():
            found_kinds = kinds.get(name, set())
            by_row = found_kinds and found_kinds <= {"rows", "key", "name"} and getattr(verdicts[token], f"rows_{use}") is not None
            made = verdicts[token].merged if name not in told else getattr(verdicts[token], f"rows_{use}" if by_row else use)
            if found_kinds == {"name"} and verdicts[token].merged is not None:
                made = deepcopy(verdicts[token].merged)
                made.name = (ours if use == "ours" else theirs)[token].name  # type: ignore[union-attr]
            if made is not None:
                after[token] = deepcopy(made)
                mine = ours.get(token)
                after[token].did = set() if mine is None else set(mine.did)
                after[token].added_values = set() if mine is None else set(mine.added_values)
                after[token].rewrote = "maybe" if name in told or made.stable or (mine is not None and mine.rewrote) else ""
                if name in told or made.stable:  # rows may have been written again, on the way to main
                    for row in after[token].rows.values():
                        row.doubt = next(self.numbers)
        self.lines[MAIN] = after
        self.compare(MAIN)
        self.compare(SIDE)
        assert self.lake.branches.merge(SIDE).up_to_date
        for branch, line in self.lines.items():
            for table in line.values():
                table.changes = table.maintained = 0
                if branch == SIDE:
                    table.rewrote, table.did, table.added_values = (
                        "",
                        set(),
                        set(),
                    )  # the next base; what main did before it still tells the two apart

    def mirrored(self, verdicts: dict[int, Verdict]) -> None:
        """The other way round gives the same rows."""
        self.on(SIDE).branches.create("mirror")
        self.lake.branches.merge(MAIN, into="mirror")
        self.lines["mirror"] = {token: found.merged for token, found in verdicts.items() if found.merged is not None}
        self.compare("mirror")
        del self.lines["mirror"]
        self.lake.branches.delete("mirror")

    def compare(self, branch: str) -> None:
        line = self.lines[branch]
        shot = self.on(branch).snapshot()
        assert shot.tables() == sorted(table.name for table in line.values()), f"{branch} has tables {shot.tables()}"
        for table in line.values():
            rows = shot.table(table.name).to_arrow()
            assert sorted(rows.column_names) == sorted(table.columns.values()), f"{branch} {table.name}: columns {rows.column_names}"
            shown = sorted((tuple(sorted(row.items())) for row in rows.to_pylist()), key=repr)
            assert shown == table.shown(), f"{branch} {table.name} shows {shown}, the model has {table.shown()}"
            config = shot.table(table.name).settings.config
            assert {key: config[key] for key in "xy" if key in config} == table.settings, f"{branch} {table.name}: {config}"


# ---- what must be -------------------------------------------------------------------------------------------------------------------


def verdict(base: Content | None, ours: Content | None, theirs: Content | None, first: bool) -> Verdict:
    """What a merge of one table must come to."""
    if base is None:
        made = ours if theirs is None else theirs
        return Verdict(NEVER, made, ours, theirs)
    if theirs is None and ours is None:
        return Verdict(NEVER, None, None, None)
    if theirs is None or ours is None:
        left = ours if theirs is None else theirs
        assert left is not None
        if left.changes == left.maintained and left.name == base.name:
            # A compaction moves rows, which nothing tells from a change; and main may differ from the branch by what it did before.
            return Verdict(MAY if left.changes or (not first and theirs is None) else NEVER, None, ours, theirs)
        return Verdict(MUST, None, ours, theirs)
    named = ours.name if theirs.name in (base.name, ours.name) else theirs.name
    clash = theirs.name not in (base.name, ours.name) and ours.name not in (base.name, theirs.name)
    found = content(base, ours, theirs, first)
    for made in (found.merged, found.ours, found.theirs, found.rows_ours, found.rows_theirs):
        if made is not None:
            made.name = named
    if clash:
        found.conflict = MUST
        for side, whole, rows in ((ours, found.ours, found.rows_ours), (theirs, found.theirs, found.rows_theirs)):
            for made in (whole, rows):
                if made is not None:
                    made.name = side.name
    return found


def content(base: Content, ours: Content, theirs: Content, first: bool) -> Verdict:
    copies = deepcopy(ours), deepcopy(theirs)
    if not theirs.changes:
        return Verdict(NEVER, deepcopy(ours), *copies)
    if not ours.changes and first:
        return Verdict(NEVER, deepcopy(theirs), *copies)
    schema, columns = merged_columns(base, ours, theirs)
    settings, bad = dict(ours.settings), False
    for key in {**base.settings, **theirs.settings}:
        if theirs.settings.get(key) not in (base.settings.get(key), ours.settings.get(key)):
            bad |= ours.settings.get(key) != base.settings.get(key)
            settings[key] = theirs.settings[key]
    if schema == MUST or bad:
        return Verdict(MUST, None, *copies)
    made = Content(ours.name, ours.key, ours.stable, columns, {}, settings)
    if ours.key or (ours.stable and first):
        clash, by_ours, by_theirs = three_way(base, ours, theirs)
        worst = MUST if clash else schema
        sides = [deepcopy(made) for _ in range(2)]
        sides[0].rows, sides[1].rows = by_ours, by_theirs
        return Verdict(worst, deepcopy(sides[0]), *copies, *sides)
    met, made.rows = by_places(base, ours, theirs)
    return Verdict(MUST if met == MUST else MAY if MAY in (met, schema) else NEVER, made, *copies)


def merged_columns(base: Content, ours: Content, theirs: Content) -> tuple[str, dict[int, str]]:
    new_here, new_there = ours.columns.keys() - base.columns.keys(), theirs.columns.keys() - base.columns.keys()
    level = MUST if new_here and new_there else NEVER
    for number, name in base.columns.items():
        mine, other = ours.columns.get(number), theirs.columns.get(number)
        if mine != other and mine != name and other != name:
            level = MUST
    mine_moved, other_moved = (side.rewrote or len(side.did) > 1 for side in (ours, theirs))
    valued = (bool(new_there & theirs.added_values) or other_moved, bool(new_here & ours.added_values) or mine_moved)
    if level != MUST and ((new_there and valued[0] and mine_moved) or (new_here and valued[1] and other_moved)):
        level = MAY
    # An overwrite gives out field ids anew, so that columns are other ones though they have the same names.
    if "overwritten" in (ours.rewrote, theirs.rewrote) and (ours.columns != theirs.columns or ours.columns != base.columns):
        level = MAY
    columns = {
        number: theirs.columns[number] if theirs.columns.get(number) != base.columns.get(number) and number in theirs.columns else name
        for number, name in ours.columns.items()
        if number in theirs.columns or number not in base.columns
    }
    return level, columns | {number: theirs.columns[number] for number in new_there}


def three_way(base: Content, ours: Content, theirs: Content) -> tuple[bool, dict[int, Row], dict[int, Row]]:
    """Rows by key or uid; whether some conflict; the rows if the target is right about those, and if the branch is."""
    by: Callable[[Row], int] = (lambda row: row.values[0]) if ours.key else (lambda row: row.uid)
    was, mine, other = ({by(row): row for row in side.rows.values()} for side in (base, ours, theirs))
    common = [number for number in base.columns if number in ours.columns and number in theirs.columns]
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
                result[row.uid] = filled(row, mine.get(key), other.get(key))
    return clash, *results


def filled(row: Row, mine: Row | None, other: Row | None) -> Row:
    """A row with the values that the other side gave to a column of its own."""
    made = deepcopy(row)
    for side in (mine, other):
        for number, value in (side.values if side is not None and side.uid == row.uid else {}).items():
            made.values.setdefault(number, value)
    return made


def by_places(base: Content, ours: Content, theirs: Content) -> tuple[str, dict[int, Row]]:
    """Rows of a table without keys and row ids."""
    level, rows = NEVER, {}
    for uid in {**base.rows, **ours.rows, **theirs.rows}:
        was, mine, other = base.rows.get(uid), ours.rows.get(uid), theirs.rows.get(uid)
        if was is None:
            row = mine or other
        else:
            here, there = ("moved" if side is None else side.moved(was) for side in (mine, other))
            if here == there == "moved":
                return MUST, {}
            if here and there:
                level = MAY
            row = other if there == "moved" or (there and not here) else mine
            if here == "maybe" and there == "maybe" and mine is not None and mine.values == was.values:
                row = other
        if row is not None:
            rows[uid] = filled(row, mine, other)
    return level, rows
