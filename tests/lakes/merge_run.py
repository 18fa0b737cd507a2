"""Two lines of random operations from one base, merged at several points, in both directions, beside the model of ``merge_model``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import lance
import pyarrow as pa

from tests.lakes.merge_lines import Lines, arrow, flat
from tests.lakes.merge_model import MUST, NEVER, Content, Line, collisions, copied, fresh, give_names, is_changed, settled, verdict
from tests.support.lakes import Site
from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import MergeConflict
from tiltyard.merges import MergeResult

SIDE, MID = "side", "mid"


MEMORY = Path("/dev/shm")
"""Where nothing waits for a disk."""


@contextmanager
def scratch(otherwise: Path | None = None) -> Iterator[Path]:
    """A directory for lakes, in memory where that is possible."""
    made_here = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else otherwise, prefix="tiltyard-merges-"))
    try:
        yield made_here
    finally:
        shutil.rmtree(made_here)


def made(scratch: Path, seed: int, kind: type[MergeRun] | None = None) -> MergeRun:
    """One lake, made, merged and thrown away.

    Args:
        scratch: a directory for it.
        seed: says what is done.
        kind: how it is done; merges of all of a branch by default.

    Raises:
        AssertionError: a merge is not what the model says; its text is all that was done.
    """
    home = scratch / str(seed)
    site = Site("sqlite", str(home), home, {"catalog": "sqlite"})
    run = (kind or MergeRun)(site, seed)
    try:
        run.run(tables=6, steps=24, rounds=1 + seed % 3 % 2)
    finally:
        site.close()
        shutil.rmtree(home)
        shutil.rmtree(run.outside, ignore_errors=True)
    return run


class MergeRun(Lines):
    """One lake with two lines; ``run`` raises ``AssertionError`` where a merge is not what the model says."""

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self.merges = self.conflicts = self.lake_merges = 0

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
                    for line in (MAIN, SIDE):
                        for table in self.lines[line].values():
                            table.forgotten = True
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
        done = self.merged(source, target, kinds)
        met = collisions(verdicts, base, ours, theirs)
        for name in {*names.values()}:
            allowed = {verdicts[token].conflict for token, called in names.items() if called == name}
            allowed |= {met.get(name, NEVER)}
            assert name in kinds or MUST not in allowed, f"{name} had to conflict"
            assert name not in kinds or allowed != {NEVER}, f"{name} must not conflict"
        use: Any = self.random.choice(("ours", "theirs"))
        while done is None:
            done = self.merged(source, target, kinds, use)
        self.log.append(f"{source} into {target}, conflicts for {use}: {[(table.table, table.how) for table in done.tables]}")
        self.lake_merges += 1
        self.merges += sum(is_changed(base.get(token), theirs.get(token)) for token in verdicts)
        self.conflicts += len(kinds)
        after: Line = {}
        for token, name in names.items():
            on_both = token in base and token in ours and token in theirs
            about = {kind for kind in kinds.get(name, ()) if (kind in ("created", "dropped")) != on_both}
            made = settled(verdicts[token], about, use)
            if made is not None:
                after[token] = made.copy()
        give_names(after, base, ours, theirs, use)
        self.compare(target, after)
        return after, set(kinds)

    def merged(self, source: str, target: str, kinds: dict[str, set[str]], use: Any = None) -> MergeResult | None:
        """Merges, with an answer to all conflicts so far; None, and these with new ones, where there are more."""
        return self.tried(source, target, kinds, use, partial(self.lake.branches.merge, source, into=target))

    def tried(
        self, source: str, target: str, kinds: dict[str, set[str]], use: Any, bring: Callable[..., MergeResult]
    ) -> MergeResult | None:
        """``merged``, by whatever brings changes from one line to another."""
        try:
            return bring(on_conflict=dict.fromkeys(kinds, use) if use else "fail")
        except MergeConflict as error:
            found = {(conflict.table, conflict.kind) for conflict in error.conflicts}
            assert not any(kind in kinds.get(name, ()) for name, kind in found), f"settled for {use}, and there again: {found}"
            for name, kind in found:
                kinds.setdefault(name, set()).add(kind)
            self.log.append(f"{source} into {target} conflicts: {[(c.table, c.kind, c.detail) for c in error.conflicts]}")
        return None

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
            table.overwritten = any(side is not None and side.overwritten for side in (mine, self.lines[source].get(token)))
            table.spent = table.odd = True
            table.shared_before = any(
                side is not None and side.shared_before for side in (mine, self.lines[source].get(token), base.get(token))
            )
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
            table.strayed = table.forgotten = False
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
            assert {token: (table.name, table.face()) for token, table in one.items()} == {
                token: (table.name, table.face()) for token, table in other.items()
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
            opened = shot.table(table.name)
            rows, called = opened.to_arrow(), f"{branch} {table.name}"
            types = {name: (str(field.type), field.nullable) for name, field in leaves(rows.schema)}
            assert types == table.schema(), f"{called}: columns {types}, the model has {table.schema()}"
            shown = sorted((flat(row, [*types]) for row in rows.to_pylist()), key=repr)
            assert shown == table.shown(), f"{called} shows {shown}, the model has {table.shown()}"
            assert opened.primary_key == (("id",) if table.key else ()), f"{called}: key {opened.primary_key}"
            described = {key.decode(): value.decode() for key, value in (opened.schema.metadata or {}).items()}
            of_column = opened.schema.field(table.columns[1]).metadata if 1 in table.columns else None
            fields = {key.decode(): value.decode() for key, value in (of_column or {}).items()}
            kept = (opened.settings.config, opened.settings.metadata, described, fields)
            kinds = dict(zip(("config", "metadata", "schema_metadata", "field_metadata"), kept, strict=True))
            found = {f"{where} {key}": values[key] for where, values in kinds.items() for key in "xy" if key in values}
            assert found == table.settings, f"{called}: {found}, the model has {table.settings}"


class FewKeysRun(MergeRun):
    """Lines that mostly insert, change and delete a few keys, the same on both: of the others only one lake in forty inserts one twice."""

    def step(self, branch: str) -> None:
        keyed = [table for table in self.lines[branch].values() if table.key]
        if not keyed or self.chance(0.2):
            return super().step(branch)
        deeds = (self.insert, self.insert, self.insert, self.delete, self.update, self.compact)
        return self.random.choice(deeds)(branch, self.random.choice(keyed))

    def insert(self, branch: str, table: Content) -> None:
        """Appends keys that the other line may have inserted as well."""
        free = sorted({*range(-6, 0)} - {row.values[0] for row in table.rows.values()})
        if ids := self.random.sample(free, min(2, len(free))):
            rows = self.new_rows(table, len(ids), ids)
            table.did.add("append")
            self.handle(branch, table, f"append {[row.values for row in rows]}").append(arrow(table, rows))


def leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.Field]]:
    """Columns and members of structs, by their path."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from ((f"{field.name}.{member.name}", member) for member in field.type)
        else:
            yield field.name, field
