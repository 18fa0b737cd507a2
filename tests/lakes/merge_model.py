"""Two lines of random operations from one base, and a model on plain rows that says what a merge must give, or that it must conflict.

A row of the model has a number of its own for life (``uid``), values by column, and a place: another one each time the row is certainly
written again. ``doubt`` counts what may have moved it: a compaction, or a column rewritten in its fragment. Where a table has neither a
key nor stable row ids, two lines that certainly moved a row must conflict; where one only may have, a conflict is allowed, and if
there is none the rows must be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.lance import _Session as Session

from tests.support.lakes import Site, through
from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import Records, Writes
from tiltyard.errors import MergeConflict
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.lake import Lake
from tiltyard.lakes.merging.merge_branches import adopt_foreign
from tiltyard.transaction import log

SIDE, MID = "side", "mid"
MUST, MAY, NEVER = "must conflict", "may conflict", "must merge"


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
    in_place: bool = False
    """Whether columns were rewritten in place, so that a merge may have to write rows of it again."""
    restored: bool = False
    """Whether an earlier version was restored since the last merge, so that changes may have been taken back."""

    def copy(self) -> Content:
        return replace(
            self, columns=dict(self.columns), rows={uid: row.copy() for uid, row in self.rows.items()}, settings=dict(self.settings),
            added_values=set(self.added_values), did=set(self.did),
        )  # fmt: skip

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


def copied(line: Line) -> Line:
    return {token: table.copy() for token, table in line.items()}


def in_memory(records: Records) -> MemoryRecords:
    """The same records, for as long as the process lives: half of the time of a small merge is the database's."""
    made = MemoryRecords()
    found = dict(records.scan([""]))
    made.transact([*found], [], lambda _: Writes(None, found))
    return made


@contextmanager
def hurried() -> Iterator[None]:
    """For merges by the thousand: what was read of a file that never changes is kept, by its bytes here, by its path in pylance."""
    known: dict[tuple[bytes, int | None, bool], ManifestFile] = {}

    def decoded(data: bytes, *, source: str, version: int | None = None, check: bool = True, **_: Any) -> ManifestFile:
        key = (data, version, check)
        if key not in known:
            if len(known) > 2_000:
                known.clear()
            known[key] = decode_manifest_file(data, source=source, version=version, check=check)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "decode_manifest_file", decoded)
        patch.setattr(lance, "dataset", partial(lance.dataset, session=Session(1 << 22, 1 << 24)))
        yield


class MergeRun:
    """One lake with two lines; ``run`` raises ``AssertionError`` where a merge is not what the model says."""

    def __init__(self, site: Site, seed: int) -> None:
        self.lake = site.open()
        if seed % 8:  # one in eight has a database
            through(self.lake, in_memory)
        self.random = Random(seed)
        self.numbers = count(1)
        self.log = [f"seed {seed}: replay with MergeRun(site, {seed}).run(...)"]
        self.lines: dict[str, Line] = {MAIN: {}}
        self.past: dict[tuple[str, int], list[tuple[int, Content]]] = {}
        """Versions of each table since the last merge, by branch and token."""
        self.opened: Any = None
        self.foreign: set[str] = set()
        """Branches with versions of pylance that nobody has adopted yet."""
        self.outside = Path(f"{site.root}-outside")
        self.merges = self.conflicts = self.lake_merges = 0

    def on(self, branch: str) -> Lake:
        return self.lake if branch == MAIN else self.lake.on_branch(branch)

    def run(self, tables: int, steps: int, rounds: int) -> None:
        try:
            for _ in range(tables):
                self.create(MAIN)
            if self.random.random() < 0.5:  # main may go back to before the branch
                self.work(steps // 3, MAIN)
                fresh(self.lines[MAIN])
            base = copied(self.lines[MAIN])
            first = not self.begin(steps // 3, base)
            base = base if first else copied(self.lines[SIDE])
            assert self.lake.branches.merge(SIDE, into=SIDE).up_to_date, "into itself"
            for _ in range(rounds):
                for _ in range(3):
                    self.work(steps // 4, MAIN, SIDE)
                    if first:
                        self.both_ways(SIDE, base)
                    else:
                        self.trial(SIDE, MAIN, base, first=False)
                self.work(steps - steps // 4 * 3, MAIN, SIDE)
                if self.random.random() < 0.1:
                    self.note("all", "cleanup")
                    self.lake.cleanup(keep_snapshots=1, grace=timedelta(0))
                    self.past.clear()
                if first:
                    self.both_ways(SIDE, base)
                self.merge(SIDE, base, first=first)
                base, first = copied(self.lines[SIDE]), False
            if self.random.random() < 0.04:
                problems = self.lake.check().problems
                assert problems == (), problems
        except Exception as error:
            raise AssertionError("\n".join([*self.log, f"{type(error).__name__}: {error}"])) from error

    def begin(self, steps: int, base: Line) -> bool:
        """Makes the branch: of main, or of another branch, which is merged before it (a diamond); whether that is so."""
        if self.random.random() < 0.7:
            self.branch(SIDE, MAIN)
            return False
        self.branch(MID, MAIN)
        self.work(steps, MAIN, MID)
        self.branch(SIDE, MID)
        self.both_ways(SIDE, base)  # all that the branch in between has comes with it
        if self.on(MID).snapshot().id == self.lake.branches[MID].snapshot:
            return False  # nothing was done there, so that there is nothing to merge before
        fresh(self.lines[SIDE])
        self.merge(MID, base, first=True)
        return True

    def branch(self, name: str, origin: str) -> None:
        self.note(origin, f"branch {name}")
        self.adopt(origin)
        self.on(origin).branches.create(name)
        self.lines[name] = copied(self.lines[origin])

    def adopt(self, *branches: str) -> None:
        """A branch begins with what the catalog has: what pylance wrote is brought there first."""
        for branch in sorted(self.foreign.intersection(branches)):
            adopt_foreign(self.lake, branch)
            self.foreign.discard(branch)

    def work(self, steps: int, *branches: str) -> None:
        for _ in range(steps):
            self.step(self.random.choice(branches))

    # ---- operations ------------------------------------------------------------------------------------------------------------

    def note(self, branch: str, what: str) -> None:
        self.log.append(f"{branch}: {what}")

    def create(self, branch: str, name: str = "") -> None:
        shared = self.random.choice(("s1", "s2"))  # both sides may make a table of that name
        if not name and self.random.random() < 0.15 and all(table.name != shared for table in self.lines[branch].values()):
            name = shared
        name = name or f"t{next(self.numbers)}"
        key, stable = self.random.random() < 0.45, self.random.random() < 0.4
        made = Content(name, key, stable, {0: "id", 1: "v"})
        self.note(branch, f"create {name} key={key} stable={stable}")
        rows = self.new_rows(made, self.random.randrange(3, 7))
        options: dict[str, Any] = {"primary_key": ["id"] if key else None, "stable_row_ids": stable}
        if not key and self.random.random() < 0.1:
            self.note(branch, f"as a registered one: {name}")
            outside = str(self.outside / f"{next(self.numbers)}.lance")
            lance.write_dataset(self.arrow(made, rows), outside, enable_stable_row_ids=stable)
            self.on(branch).register_table(name, outside)
        else:
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
        if self.random.random() < 0.01:
            return self.tag(branch)
        if not self.lines[branch]:
            return self.create(branch)
        token, table = self.random.choice(list(self.lines[branch].items()))
        past = self.past.setdefault((branch, token), [])
        if past and self.random.random() < 0.06:
            return self.restore(branch, token, past)
        actions: list[Callable[[str, Content], None]] = [
            *[self.append] * 4, *[self.update] * 4, *[self.delete] * 4, *[self.compact] * 2,
            *[self.configure, self.index, self.overwrite, self.in_place, self.upsert, self.by_pylance] * 2, self.drop_index,
            self.random.choice((self.add_column, self.drop_column, self.rename_column, self.null_column)),
        ]  # fmt: skip
        before = table.changes
        self.random.choice(actions)(branch, table)
        if table.changes > before:
            past.append((self.opened.version, table.copy()))
        return None

    def restore(self, branch: str, token: int, past: list[tuple[int, Content]]) -> None:
        version, then = self.random.choice(past)
        now = self.lines[branch][token]
        self.handle(branch, now, f"restore version {version}").restore(version)
        made = then.copy()
        made.name, made.changes, made.maintained, made.restored = now.name, now.changes, now.maintained, True
        made.rewrote, made.did, made.in_place = now.rewrote or "maybe", now.did | then.did, now.in_place or then.in_place
        made.added_values = now.added_values | then.added_values | (then.columns.keys() - now.columns.keys())
        self.lines[branch][token] = made

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
            if self.random.random() < 0.4:  # the name comes back, and is another table
                self.create(branch, table.name)
        else:
            name = f"r{next(self.numbers)}"
            self.note(branch, f"rename {table.name} to {name}")
            self.on(branch).rename_table(table.name, name)
            table.name = name

    def handle(self, branch: str, table: Content, what: str) -> Any:
        self.note(branch, f"{table.name}: {what}")
        table.changes += 1
        self.opened = self.on(branch).table(table.name)
        return self.opened

    def tag(self, branch: str) -> None:
        name = f"g{next(self.numbers)}"
        self.note(branch, f"tag {name}")
        self.on(branch).tags.create(name)
        if self.random.random() < 0.5:
            self.lake.tags.delete(name)

    def by_pylance(self, branch: str, table: Content) -> None:
        """A writer that knows nothing of the lake: its version is adopted later, by whoever comes first."""
        cut = self.on(branch).snapshot().cut
        head = cut.tables[table.name]
        if not owns(head, branch, cut.line):
            return  # the branch has nothing of its own there yet
        place = self.lake.plain_access_of(head).on_branch(head.branch)
        table.changes += 1
        some = self.some(table)
        if some and self.random.random() < 0.5:
            self.note(branch, f"{table.name}: pylance deletes {self.where(some)}")
            found: Any = lance.dataset(place.lance_uri)
            found.delete(self.where(some))
            table.did.add("delete")
            for row in some:
                del table.rows[row.uid]
        else:
            rows = self.new_rows(table, 2)
            self.note(branch, f"{table.name}: pylance appends {[row.values for row in rows]}")
            found = lance.write_dataset(self.arrow(table, rows), place.lance_uri, mode="append")
            table.did.add("append")
        self.opened = SimpleNamespace(version=found.version)
        self.foreign.add(branch)

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
        table.in_place, table.rewrote = True, table.rewrote or "maybe"

    def upsert(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if not rows or not table.key or 1 not in table.columns:
            return
        given = [row.copy() for row in rows]
        for row in given:
            row.values[1] = self.random.randrange(5)
        inserted = self.new_rows(table, self.random.randrange(2))
        if inserted:
            table.did.add("append")
        handle = self.handle(branch, table, f"upsert {[row.values for row in (*given, *inserted)]}")
        handle.merge(self.arrow(table, [*given, *inserted])).when_matched_update_all().when_not_matched_insert_all().execute()
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
        table.settings = {key: value for key, value in table.settings.items() if key.startswith(("config", "metadata"))}  # a new schema

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
            if number == 1:
                table.settings = {key: value for key, value in table.settings.items() if not key.startswith("field_metadata")}

    def rename_column(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number > 0]
        if some:
            number, name = self.random.choice(some), f"n{next(self.numbers)}"
            self.handle(branch, table, f"rename column to {name}").alter_columns({"path": table.columns[number], "name": name})
            table.columns[number] = name

    def configure(self, branch: str, table: Content) -> None:
        kinds = ("config", "metadata", "schema_metadata", *(["field_metadata"] if 1 in table.columns else []))
        where, key = self.random.choice(kinds), self.random.choice("xy")
        known = f"{where} {key}"
        value = None if known in table.settings and self.random.random() < 0.3 else str(self.random.randrange(3))
        settings = self.handle(branch, table, f"{known} = {value}").settings
        of_column = [table.columns[1]] if where == "field_metadata" else []
        getattr(settings, f"update_{where}")(*of_column, {key: value})
        if value is None:
            del table.settings[known]
        else:
            table.settings[known] = value

    def index(self, branch: str, table: Content) -> None:
        name = table.columns[self.random.choice([number for number in (0, 1) if number in table.columns])]
        self.handle(branch, table, f"index {name}").create_index(name, "BTREE", replace=True)
        table.maintained += 1

    def drop_index(self, branch: str, table: Content) -> None:
        if found := self.on(branch).table(table.name).indices.list():
            self.handle(branch, table, f"drop index {found[0].name}").indices.drop(found[0].name)
            table.maintained += 1

    # ---- the merge -------------------------------------------------------------------------------------------------------------

    def attempt(self, source: str, target: str, base: Line, ours: Line, *, first: bool) -> tuple[Line, set[str]]:
        """Merges and compares with the model: what the target has then, and the names of tables that conflicted.

        Args:
            source, target: branches of the lake.
            base, ours: the common ancestor and the target, as the model has them.
            first: whether nothing was merged between the two before.
        """
        theirs = self.lines[source]
        verdicts = {token: verdict(base.get(token), ours.get(token), theirs.get(token), first) for token in {**base, **ours, **theirs}}
        names = {token: (ours.get(token) or theirs.get(token) or base[token]).name for token in verdicts}
        kinds: dict[str, set[str]] = {}
        try:
            done = self.lake.branches.merge(source, into=target)
        except MergeConflict as error:
            for conflict in error.conflicts:
                kinds.setdefault(conflict.table, set()).add(conflict.kind)
            self.log.append(f"{source} into {target} conflicts: {[(c.table, c.kind, c.detail) for c in error.conflicts]}")
        for name in {*names.values()}:
            allowed = {verdicts[token].conflict for token, called in names.items() if called == name}
            allowed |= {met_by_name(name, verdicts, base, ours, theirs)}
            assert name in kinds or MUST not in allowed, f"{name} had to conflict"
            assert name not in kinds or allowed != {NEVER}, f"{name} must not conflict"
        use: Any = self.random.choice(("ours", "theirs"))
        if kinds:
            done = self.lake.branches.merge(source, into=target, on_conflict=dict.fromkeys(kinds, use))
        self.log.append(f"{source} into {target}, conflicts for {use}: {[(table.table, table.how) for table in done.tables]}")
        self.lake_merges += 1
        self.merges += sum(is_changed(base.get(token), theirs.get(token)) for token in verdicts)
        self.conflicts += len(kinds)
        after: Line = {}
        for token, name in names.items():
            made = settled(verdicts[token], kinds.get(name, set()), use, {"ours": ours, "theirs": theirs}[use].get(token))
            if made is not None:
                after[token] = made.copy()
        self.compare(target, after)
        return after, set(kinds)

    def merge(self, source: str, base: Line, *, first: bool) -> None:
        """Merges a branch into main for good."""
        ours, before = self.lines[MAIN], self.on(source).snapshot()
        after, told = self.attempt(source, MAIN, base, ours, first=first)
        for token, table in after.items():
            mine, name = ours.get(token), (ours.get(token) or table).name
            table.did = set() if mine is None else set(mine.did)
            table.added_values = set() if mine is None else set(mine.added_values)
            table.rewrote = "maybe" if name in told or table.stable or (mine is not None and mine.rewrote) else ""
            table.in_place = mine is not None and mine.in_place
            if name in told or table.stable or table.in_place or (mine is not None and mine.restored):
                for row in table.rows.values():  # the merge may have written them again
                    row.doubt = next(self.numbers)
        self.lines[MAIN] = after
        assert self.lake.branches.merge(source).up_to_date, "merged twice"
        adopted = source in self.foreign
        assert adopted or self.on(source).snapshot().cut.tables == before.cut.tables, "the branch stays as it is"
        self.foreign -= {source, MAIN}
        for branch in (MAIN, source):
            self.opened_by_pylance(branch)
        for table in after.values():
            table.changes, table.maintained, table.restored = 0, 0, False
        fresh(self.lines[source])
        self.past.clear()

    def trial(self, source: str, target: str, base: Line, *, first: bool) -> Line | None:
        """Merges into a branch that is made for it and deleted; what came, None where something conflicted."""
        name = f"try{next(self.numbers)}"
        self.adopt(source, target)
        self.on(target).branches.create(name)
        after, told = self.attempt(source, name, base, self.lines[target], first=first)
        self.lake.branches.delete(name)
        return None if told else after

    def both_ways(self, source: str, base: Line) -> None:
        """A merge gives the same in both directions, where nothing conflicts."""
        one, other = self.trial(source, MAIN, base, first=True), self.trial(MAIN, source, base, first=True)
        if one is not None and other is not None:
            assert {token: (table.name, table.shown()) for token, table in one.items()} == {
                token: (table.name, table.shown()) for token, table in other.items()
            }, "the two directions differ"

    def opened_by_pylance(self, branch: str) -> None:
        """Pylance, that knows nothing of the lake, opens every table of a branch and sees the rows of the model."""
        cut = self.on(branch).snapshot().cut
        for table in self.lines[branch].values():
            head = cut.tables[table.name]
            place = self.lake.plain_access_of(head).on_branch(head.branch)
            found: Any = lance.dataset(place.lance_uri, version=head.version)
            found.validate()
            assert found.count_rows() == len(table.rows), f"pylance sees other rows in {branch} {table.name}"
            if found.has_index:
                self.found_by_index(branch, table, found)

    def found_by_index(self, branch: str, table: Content, opened: Any) -> None:
        """An index finds the rows that are there, with the values that they have."""
        for number in (0, 1):
            if number in table.columns:
                values = sorted({row.values[number] for row in table.rows.values() if row.values.get(number) is not None})
                for value in values if number else [values]:
                    asked = f"{table.columns[number]} = {value}" if number else f"id in ({', '.join(map(str, values)) or 0})"
                    wanted = sum(row.values.get(number) == value for row in table.rows.values()) if number else len(table.rows)
                    assert opened.count_rows(asked) == wanted, f"{branch} {table.name}: rows where {asked}"

    def compare(self, branch: str, line: Line) -> None:
        shot = self.on(branch).snapshot()
        assert shot.tables() == sorted(table.name for table in line.values()), f"{branch} has tables {shot.tables()}"
        for table in line.values():
            rows = shot.table(table.name).to_arrow()
            assert sorted(rows.column_names) == sorted(table.columns.values()), f"{branch} {table.name}: columns {rows.column_names}"
            shown = sorted((tuple(sorted(row.items())) for row in rows.to_pylist()), key=repr)
            assert shown == table.shown(), f"{branch} {table.name} shows {shown}, the model has {table.shown()}"
            opened = shot.table(table.name)
            described = {key.decode(): value.decode() for key, value in (opened.schema.metadata or {}).items()}
            of_column = opened.schema.field(table.columns[1]).metadata if 1 in table.columns else None
            fields = {key.decode(): value.decode() for key, value in (of_column or {}).items()}
            kept = (opened.settings.config, opened.settings.metadata, described, fields)
            kinds = dict(zip(("config", "metadata", "schema_metadata", "field_metadata"), kept, strict=True))
            found = {f"{where} {key}": values[key] for where, values in kinds.items() for key in "xy" if key in values}
            assert found == table.settings, f"{branch} {table.name}: {found}, the model has {table.settings}"


def fresh(line: Line) -> None:
    """A line that is the base of the next merge. What main did before it still tells the two apart."""
    for table in line.values():
        table.changes, table.maintained, table.restored = 0, 0, False
        table.rewrote, table.did, table.added_values, table.in_place = "", set(), set(), False


def is_changed(base: Content | None, theirs: Content | None) -> bool:
    """Whether a branch has anything to bring of a table."""
    return (base is None) != (theirs is None) or (
        base is not None and theirs is not None and (theirs.changes > 0 or base.name != theirs.name)
    )


def met_by_name(name: str, verdicts: dict[int, Verdict], base: Line, ours: Line, theirs: Line) -> str:
    """Whether a new table of the branch meets one of the target that has its name."""
    new = [token for token, table in theirs.items() if table.name == name and token not in base and token not in ours]
    there = [token for token, table in ours.items() if table.name == name and (token in theirs or token not in base)]
    maybe = [verdicts[token].conflict for token, table in ours.items() if table.name == name and token in base and token not in theirs]
    if not new or not (there or maybe):
        return NEVER
    return MUST if there else maybe[0]


def settled(found: Verdict, kinds: set[str], use: str, side: Content | None) -> Content | None:
    """What a table is after a merge whose conflicts were settled for one side."""
    if not kinds:
        return found.merged
    if kinds == {"name"} and found.merged is not None and side is not None:
        made = found.merged.copy()
        made.name = side.name
        return made
    by_row: Content | None = getattr(found, f"rows_{use}")
    whole: Content | None = getattr(found, use)
    return by_row if kinds <= {"rows", "key", "name"} and by_row is not None else whole


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
        same = left.shown() == base.shown() and left.settings == base.settings  # it may have been changed and changed back
        if (left.changes == left.maintained or left.restored or same) and left.name == base.name:
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
    copies = ours.copy(), theirs.copy()
    if not theirs.changes:
        return Verdict(NEVER, ours.copy(), *copies)
    if not ours.changes and first:
        return Verdict(NEVER, theirs.copy(), *copies)
    schema, columns = merged_columns(base, ours, theirs)
    if not first and schema == NEVER and (base.columns.items() - ours.columns.items()) and (ours.columns.items() - base.columns.items()):
        schema = MAY  # main does not come from the base: its columns may have ids of others there
    settings, bad = dict(ours.settings), False
    faces = [{key: value for key, value in side.settings.items() if key.startswith("field_")} for side in (base, ours, theirs)]
    if 1 in base.columns and any(1 not in gone.columns and 1 in left.columns and face != faces[0] for gone, left, face in (
        (ours, theirs, faces[2]), (theirs, ours, faces[1]),
    )):  # fmt: skip
        schema = MUST  # dropped on one side, and described otherwise on the other
    if "overwritten" in (ours.rewrote, theirs.rewrote) and (faces[1] != faces[0] or faces[2] != faces[0]) and schema != MUST:
        schema = MAY  # another column, perhaps
    for key in {**base.settings, **theirs.settings}:
        if theirs.settings.get(key) not in (base.settings.get(key), ours.settings.get(key)):
            bad |= ours.settings.get(key) != base.settings.get(key)
            if key in theirs.settings:
                settings[key] = theirs.settings[key]
            else:
                settings.pop(key, None)
    if schema == MUST or bad:
        return Verdict(MUST, None, *copies)
    if 1 not in columns:
        settings = {key: value for key, value in settings.items() if not key.startswith("field_")}
    made = Content(ours.name, ours.key, ours.stable, columns, {}, settings)
    if ours.key or (ours.stable and first):
        clash, by_ours, by_theirs = three_way(base, ours, theirs)
        worst = MUST if clash else schema
        sides = [made.copy() for _ in range(2)]
        sides[0].rows, sides[1].rows = by_ours, by_theirs
        return Verdict(worst, sides[0].copy(), *copies, *sides)
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
    made = row.copy()
    for side in (mine, other):
        for number, value in (side.values if side is not None and side.uid == row.uid else {}).items():
            made.values.setdefault(number, value)
    return made


def by_places(base: Content, ours: Content, theirs: Content) -> tuple[str, dict[int, Row]]:
    """Rows of a table without keys and row ids: who deleted or wrote a row again has moved it, who rewrote columns in place has not.

    What moved on both sides is a conflict, and so is what moved on one and has other values on the other, or other values on both: only
    the same values in the same place agree.
    """
    common = [number for number in base.columns if number in ours.columns and number in theirs.columns]
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
            rows[uid] = filled(row, mine, other)
    return level, rows
