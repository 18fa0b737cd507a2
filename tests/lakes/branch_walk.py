"""Random walks over a lake with branches, beside a model that knows which rows each line of history must show.

Every row that is written has a number of its own, so that a row on a line where the model has none came there by mistake. The model is
written from what branches promise, not from how they are made: a table of a line changes by commits of that line alone, and main gets
what a branch changed by a fast-forward, which takes all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from tests.support.lakes import Site, WrappedRecords, ids, numbers
from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.records import Decide, Records
from tiltyard.errors import ExpectedVersionMismatch, TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.lake_tables import LakeTable
from tiltyard.lakes.lake_transaction import LakeTransaction

BRANCHES = ("one", "two")
NAMES = ("a", "b", "c", "d")
MOST_OPEN = 4


class DeadError(BaseException):
    """The process died at a step of the catalog."""


@dataclass(frozen=True)
class Table:
    """A table as one line has it; ``stamp`` is another number for each content that it ever had."""

    name: str
    rows: frozenset[int]
    stamp: int


@dataclass
class Line:
    """A line of history: its tables by token, and main's as they were when the line, or its first ancestor, left it."""

    number: int
    tables: dict[int, Table]
    root: dict[int, Table] = field(default_factory=dict)

    def shown(self) -> dict[str, list[int]]:
        return {table.name: sorted(table.rows) for table in self.tables.values()}

    def token(self, name: str) -> int:
        return next(token for token, table in self.tables.items() if table.name == name)


Change = Callable[[Line], None]


@dataclass
class Open:
    """A transaction or a handle that somebody has kept."""

    branch: str
    line: int
    what: Any
    changes: list[Change] = field(default_factory=list)
    token: int = 0
    stamps: dict[int, Table] = field(default_factory=dict)


class AtStep(WrappedRecords):
    """Does something right before the n-th transaction of the catalog from now, once."""

    def __init__(self, inner: Records, at: int, work: Callable[[], None]) -> None:
        super().__init__(inner)
        self._at = at
        self._work = work

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[Any]) -> Any:
        self._at -= 1
        if self._at == 0:
            self._work()
        return super().transact(exclusive, shared, decide)


class Walk:
    """One random walk; ``run`` raises ``AssertionError`` where the lake is not what the model says."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = Random(seed)
        self.lake = site.open()
        self.numbers = count(1)
        self.lines: dict[str, Line] = {MAIN: Line(next(self.numbers), {})}
        self.open: list[Open] = []
        self.log: list[str] = [f"seed {seed} on {site.kind}"]
        self.cache: dict[tuple[str, str | None, int], list[int]] = {}
        self.counts: dict[str, int] = {}
        for name in NAMES[:2]:
            self._create(MAIN, name)

    def run(self, steps: int) -> None:
        actions = [
            *[self.append] * 4,
            *[self.begin] * 3,
            *[self.commit] * 4,
            *[self.fast_forward] * 3,
            *[self.define] * 3,
            *[self.branch] * 3,
            *[self.remake] * 2,
            self.end_branch,
            self.keep_handle,
            self.use_handle,
            self.interrupted_forward,
        ]
        try:
            for _ in range(steps):
                self.random.choice(actions)()
                self.compare()
            problems = self.lake.check(tables=False).problems
            assert problems == (), problems
        except AssertionError as error:
            raise AssertionError("\n".join([*self.log[-25:], str(error)])) from error

    # ---- what must hold --------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        assert {MAIN, *self.lake.branches} == {*self.lines}
        for name, line in self.lines.items():
            shown = self._shown(name)
            assert shown == line.shown(), f"{name} shows {shown}, the model has {line.shown()}"

    def _shown(self, branch: str) -> dict[str, list[int]]:
        shot = self._on(branch).snapshot()
        found = {}
        for name, head in shot.cut.tables.items():
            key = (head.location, head.branch, head.version)
            if key not in self.cache:
                self.cache[key] = ids(shot.table(name))
            found[name] = self.cache[key]
        return found

    def _on(self, branch: str) -> Lake:
        return self.lake if branch == MAIN else self.lake.on_branch(branch)

    def _note(self, what: str) -> None:
        self.log.append(what)
        self.counts[what.split()[0]] = self.counts.get(what.split()[0], 0) + 1

    def _refused(self, work: Callable[[], object]) -> TiltyardError | None:
        """The error that something ended with; None where it was done."""
        try:
            work()
        except TiltyardError as error:
            self._note(f"refused {type(error).__name__}: {error}")
            return error
        return None

    # ---- single verbs ----------------------------------------------------------------------------------------------------------

    def _choose(self, rather: str = MAIN) -> tuple[str, Line]:
        """A line; ``rather`` in the place of main."""
        branch = self.random.choice([*self.lines])
        branch = rather if branch == MAIN else branch
        return branch, self.lines[branch]

    def append(self) -> None:
        branch, line = self._choose()
        if line.tables:
            self._append(branch, self.random.choice([*line.tables]))

    def _append(self, branch: str, token: int) -> None:
        row, line = next(self.numbers), self.lines[branch]
        name = line.tables[token].name
        self._note(f"append {row} to {name} on {branch}")
        self._on(branch).table(name).append(numbers(row))
        _written(token, row, next(self.numbers))(line)

    def _create(self, branch: str, name: str) -> None:
        row, token = next(self.numbers), next(self.numbers)
        self._note(f"create {name} with {row} on {branch}")
        self._on(branch).create_table(name, numbers(row))
        self.lines[branch].tables[token] = Table(name, frozenset({row}), next(self.numbers))

    def define(self) -> None:
        branch, line = self._choose(rather=self.random.choice([*self.lines]))
        free = [name for name in NAMES if name not in line.shown()]
        what = self.random.choice(["create", "drop", "rename", "swap"])
        if what == "create" and free:
            self._create(branch, self.random.choice(free))
        elif what == "drop" and line.tables:
            token = self.random.choice([*line.tables])
            self._note(f"drop {line.tables[token].name} on {branch}")
            self._on(branch).drop_table(line.tables[token].name)
            del line.tables[token]
        elif what == "rename" and line.tables and free:
            token, name = self.random.choice([*line.tables]), self.random.choice(free)
            self._note(f"rename {line.tables[token].name} to {name} on {branch}")
            self._on(branch).rename_table(line.tables[token].name, name)
            _renamed(token, name)(line)
        elif what == "swap" and len(line.tables) > 1:
            self._swap(branch, line)

    def _swap(self, branch: str, line: Line) -> None:
        one, two = self.random.sample([*line.tables], 2)
        first, second = line.tables[one].name, line.tables[two].name
        self._note(f"swap {first} and {second} on {branch}")
        with self._on(branch).transaction() as tx:
            tx.rename_table(first, "between")
            tx.rename_table(second, first)
            tx.rename_table("between", second)
        _renamed(one, second)(line)
        _renamed(two, first)(line)

    # ---- transactions and handles that are kept -----------------------------------------------------------------------------------

    def begin(self) -> None:
        branch, line = self._choose()
        if len(self.open) >= MOST_OPEN or not line.tables:
            return
        tx = self._on(branch).transaction()
        kept = Open(branch, line.number, tx, stamps=dict(line.tables))
        self._note(f"begin {tx.id[:8]} on {branch}")
        for token in self.random.sample([*line.tables], min(len(line.tables), self.random.choice([1, 2]))):
            self._inside(kept, tx, token, line.tables[token].name)
        self.open.append(kept)

    def _inside(self, kept: Open, tx: LakeTransaction, token: int, name: str) -> None:
        row = next(self.numbers)
        what = self.random.choice(["append", "append", "append", "drop", "again"])
        self.log.append(f"  {what} {name} with {row}")
        if what == "append":
            tx.table(name).append(numbers(row))
            kept.changes.append(_written(token, row, next(self.numbers)))
        else:
            tx.drop_table(name)
            kept.changes.append(_dropped(token))
        if what == "again":
            new, stamp = next(self.numbers), next(self.numbers)
            tx.create_table(name, numbers(row))
            kept.changes.append(lambda line: line.tables.update({new: Table(name, frozenset({row}), stamp)}))

    def commit(self) -> None:
        if not self.open:
            return
        kept = self.open.pop(self.random.randrange(len(self.open)))
        if not isinstance(kept.what, LakeTransaction):
            self.open.append(kept)
            return
        line = self.lines.get(kept.branch)
        same = line is not None and line.number == kept.line
        self._note(f"commit {kept.what.id[:8]} on {kept.branch}, which is {'the same' if same else 'another'}")
        refused = self._refused(kept.what.commit)
        if refused is not None:
            assert not same or line is None or line.tables != kept.stamps, f"nobody was in the way, and yet: {refused}"
            return
        assert same, "committed on a line that is not there any more"
        assert line is not None
        for change in kept.changes:
            change(line)

    def keep_handle(self) -> None:
        branch, line = self._choose()
        if line.tables and len(self.open) < MOST_OPEN:
            token = self.random.choice([*line.tables])
            self._note(f"handle on {line.tables[token].name} of {branch}")
            self.open.append(Open(branch, line.number, self._on(branch).table(line.tables[token].name), token=token))

    def use_handle(self) -> None:
        handles = [kept for kept in self.open if isinstance(kept.what, LakeTable)]
        if not handles:
            return
        kept, row = self.random.choice(handles), next(self.numbers)
        self.open.remove(kept)
        line = self.lines.get(kept.branch)
        alive = line is not None and line.number == kept.line and kept.token in line.tables
        self._note(f"append {row} through a handle on {kept.branch}, which is {'alive' if alive else 'gone'}")
        refused = self._refused(lambda: kept.what.append(numbers(row)))
        if refused is not None:
            assert not alive, f"the handle is on the line that is there, and yet: {refused}"
            return
        assert alive, "committed on a line that is not there any more"
        assert line is not None
        _written(kept.token, row, next(self.numbers))(line)

    # ---- branches ----------------------------------------------------------------------------------------------------------------

    def branch(self) -> None:
        free = [name for name in BRANCHES if name not in self.lines]
        if free:
            origin, line = self._choose(rather=self.random.choice([*self.lines]))
            name = self.random.choice(free)
            self._note(f"branch {name} of {origin}")
            self._on(origin).branches.create(name)
            root = line.tables if origin == MAIN else line.root
            self.lines[name] = Line(next(self.numbers), dict(line.tables), dict(root))

    def end_branch(self) -> None:
        there = [name for name in self.lines if name != MAIN]
        if there:
            name = self.random.choice(there)
            self._note(f"delete {name}")
            refused = self._refused(lambda: self.lake.branches.delete(name))
            if refused is None:
                del self.lines[name]
            else:
                assert "is based on" in str(refused), refused

    def remake(self) -> None:
        """Deletes a branch and makes another one of that name at once, so that many numbers agree."""
        there = [name for name in self.lines if name != MAIN]
        if there:
            name = self.random.choice(there)
            self._note(f"remake {name}")
            if self._refused(lambda: self.lake.branches.delete(name)) is None:
                self.lake.branches.create(name)
                main = self.lines[MAIN].tables
                self.lines[name] = Line(next(self.numbers), dict(main), dict(main))

    def fast_forward(self) -> None:
        there = [name for name in self.lines if name != MAIN]
        if there:
            self._forward(self.random.choice(there))

    def _forward(self, name: str) -> None:
        after = brought_home(self.lines[name], self.lines[MAIN], self.numbers)
        self._note(f"forward {name}, which {'can' if after else 'cannot'} come home")
        refused = self._refused(lambda: self.lake.branches.fast_forward(name))
        if refused is not None:
            assert isinstance(refused, ExpectedVersionMismatch), repr(refused)
            assert after is None, f"main changed none of its tables, and yet: {refused}"
            return
        assert after is not None, "a table that both changed came home"
        self._has_come_home(name, after)

    def _has_come_home(self, name: str, after: dict[int, Table]) -> None:
        self.lines[MAIN].tables = after
        self.lines[name] = Line(next(self.numbers), dict(after), dict(after))

    def interrupted_forward(self) -> None:
        """Somebody writes to the branch, or the process dies, at a step of the catalog inside a fast-forward."""
        there = [name for name, line in self.lines.items() if name != MAIN and line.tables]
        if not there:
            return
        name, at, dies = self.random.choice(there), self.random.choice([1, 1, 2, 2, 3]), self.random.random() < 0.5
        before = self.lake.branches[name].id
        after = brought_home(self.lines[name], self.lines[MAIN], self.numbers)
        inner, worker = self.lake.catalog.records, self.site.open()

        def is_home() -> bool:
            return worker.branches[name].id != before

        def work() -> None:
            if dies:
                raise DeadError
            if is_home() and after is not None:
                self._has_come_home(name, after)
            if self.lines[name].tables:
                token = self.random.choice([*self.lines[name].tables])
                row, table = next(self.numbers), self.lines[name].tables[token].name
                self._note(f"append {row} to {table} on {name} in between")
                worker.on_branch(name).table(table).append(numbers(row))
                _written(token, row, next(self.numbers))(self.lines[name])

        self._note(f"forward {name}, and {'dies' if dies else 'somebody writes'} at step {at}")
        number = self.lines[name].number
        self.lake.catalog.records = AtStep(inner, at, work)
        try:
            self.lake.branches.fast_forward(name)
        except (ExpectedVersionMismatch, DeadError) as error:
            self._note(f"refused {type(error).__name__} {error}")
        finally:
            self.lake.catalog.records = inner
        if is_home() and self.lines[name].number == number:
            assert after is not None, "a table that both changed came home"
            self._has_come_home(name, after)
        if dies:
            self.lake = self.site.open()


def _written(token: int, row: int, stamp: int) -> Change:
    def apply(line: Line) -> None:
        before = line.tables[token]
        line.tables[token] = replace(before, rows=before.rows | {row}, stamp=stamp)

    return apply


def _dropped(token: int) -> Change:
    def apply(line: Line) -> None:
        del line.tables[token]

    return apply


def _renamed(token: int, name: str) -> Change:
    return lambda line: line.tables.update({token: replace(line.tables[token], name=name)})


def brought_home(line: Line, main: Line, stamps: Any) -> dict[int, Table] | None:
    """Main's tables after a fast-forward; None where both sides changed one, or want one name."""
    after = dict(main.tables)
    for token in {*line.tables, *line.root}:
        root, mine, theirs = line.root.get(token), line.tables.get(token), main.tables.get(token)
        if root is None:
            assert mine is not None
            if theirs is not None and (theirs.stamp, theirs.name) != (mine.stamp, mine.name):
                return None
            after[token] = mine
        elif mine is None:
            if theirs is not None and theirs.stamp != root.stamp:
                return None
            after.pop(token, None)
        else:
            if mine.stamp != root.stamp:
                if theirs is None or theirs.stamp != root.stamp:
                    return None
                after[token] = replace(after[token], rows=mine.rows, stamp=next(stamps))
            if mine.name != root.name:
                if theirs is None or theirs.name not in (root.name, mine.name):
                    return None
                after[token] = replace(after[token], name=mine.name)
    names = [table.name for table in after.values()]
    return after if len(names) == len({*names}) else None
