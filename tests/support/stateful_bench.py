"""The state machine's ground: a table, its model, several handles; how a step is taken and what must hold after it."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Final

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import tiltyard as ty
from tests.support.stateful_checks import assert_like, assert_rows, check_all
from tests.support.stateful_model import FIRST_COLUMNS, Line, World, next_number
from tests.support.stateful_refusals import in_the_way, may_be_refused
from tests.support.tables import open_stock

STEPS: Final = 50
"""After the making of the table."""
HANDLES: Final = 3
WHICH = st.integers(0, HANDLES - 1)
SMALL = st.integers(0, 7)
SEEDS = st.lists(SMALL, min_size=1, max_size=4)
ANYWHERE: Final = ("*",)

Deed = Callable[..., None]
Effect = Callable[[World, World], World]
"""What the newest version becomes, by the version the verb was worked out on and the newest one."""
Excuse = Callable[[World, World], tuple[type[ty.TiltyardError], ...]]
"""Errors that may be raised, by the version the handle is at and the newest one."""


@dataclass(frozen=True)
class Kind:
    """What a table is like from its first version on."""

    stable: bool
    keyed: bool
    naming: str

    def __str__(self) -> str:
        return f"{'stable' if self.stable else 'addresses'}-{'keyed' if self.keyed else 'keyless'}-{self.naming}"


@dataclass
class Held:
    """A handle, and the line of history it is on."""

    table: ty.Table
    branch: str | None


def deed(**given: Any) -> Callable[[Deed], Deed]:
    """A rule. A machine in which one was broken off is not looked at again in the end."""

    def wrap(function: Deed) -> Deed:
        @functools.wraps(function)
        def run(self: Bench, **arguments: Any) -> None:
            outermost, self.intact = self.intact, False
            if outermost:
                self.script.append((function.__name__, arguments))
            function(self, **arguments)
            self.intact = outermost
            self.taken += outermost
            self.done["steps"] += outermost

        made: Deed = rule(**given)(run)  # type: ignore[no-untyped-call]
        return made

    return wrap


def never(base: World, head: World) -> tuple[type[ty.TiltyardError], ...]:
    return ()


def if_columns_changed(base: World, head: World) -> tuple[type[ty.TiltyardError], ...]:
    """A verb that is worked out again may find that its columns have other names or types by now."""
    return (ty.InvalidInput,) if base.shape != head.shape else ()


def unchanged(base: World, head: World) -> World:
    return head


class Bench(RuleBasedStateMachine):
    """One table in an example. Rules are in the classes made of this one."""

    kind: ClassVar[Kind] = Kind(False, False, "v2")
    root: ClassVar[Path] = Path()
    done: ClassVar[Counter[str]] = Counter()
    """How often each verb was really carried out, over all examples."""
    script: ClassVar[list[tuple[str, Any]]] = []
    """The steps of the latest example."""

    def __init__(self) -> None:
        super().__init__()
        self.intact = False
        self.taken = 0
        type(self).script = []
        self.access = Path(mkdtemp(dir=self.root))
        self.uri = self.access / "t"
        self.lines: dict[str | None, Line] = {}
        self.handles: list[Held] = []
        self.tags: dict[str, tuple[str | None, int]] = {}
        self.origins: dict[str, tuple[str | None, int]] = {}
        self.clones: list[tuple[Path, World]] = []
        self.transactions: set[str] = set()
        self.next_id = 0

    # ---- beginning and end -------------------------------------------------------------------------------------------------

    @initialize(seeds=SEEDS, data_format=st.sampled_from(["2.0", "2.1", "2.2"]), rows_a_file=st.integers(1, 3))
    def begin(self, seeds: list[int], data_format: str, rows_a_file: int) -> None:
        self.script.append(("begin", {"seeds": seeds, "data_format": data_format, "rows_a_file": rows_a_file}))
        world = World(keyed=self.kind.keyed)
        rows = self.new_rows(world, seeds)
        ty.Table.create(
            self.uri,
            self.arrow(world, rows),
            primary_key=["id"] if self.kind.keyed else None,
            stable_row_ids=self.kind.stable,
            durability="os",
            options=ty.TableOptions(
                manifest_naming="v1" if self.kind.naming == "v1" else "v2", data_format=data_format, files=ty.FileLimits(rows=rows_a_file)
            ),
        )
        by_column = [{column.number: row[column.name] for column in FIRST_COLUMNS} for row in rows]
        self.lines[None] = Line({1: world.with_rows({next_number(): one for one in by_column})}, 1)
        self.handles = [Held(self.open(), None) for _ in range(HANDLES)]
        self.look(self.handles[0])
        self.intact = True

    def teardown(self) -> None:
        try:
            if self.intact:
                check_all(self)
                self.done["whole examples"] += self.taken >= STEPS
        finally:
            shutil.rmtree(self.access, ignore_errors=True)

    # ---- what rules are made of --------------------------------------------------------------------------------------------

    @property
    def main(self) -> Line:
        return self.lines[None]

    def open(self, branch: str | None = None, **how: Any) -> ty.Table:
        return ty.Table.open(self.uri, branch=branch, durability="os", allowed_bases=ANYWHERE, **how)

    def held(self, which: int) -> tuple[Held, Line]:
        held = self.handles[which]
        return held, self.lines[held.branch]

    def base(self, which: int) -> World:
        """What a handle knows of the table."""
        held, line = self.held(which)
        return line.worlds[held.table.version]

    def fresh_ids(self, count: int) -> list[int]:
        """Ids that no row has."""
        first = max([self.next_id, *(number + 1 for line in self.lines.values() for number in line.newest.ids)])
        self.next_id = first + count
        return list(range(first, first + count))

    def new_rows(self, world: World, seeds: list[int], *, ids: list[int] | None = None, whole: bool = True) -> list[dict[str, Any]]:
        """Rows by names; those that are not whole lack all columns that may be null."""
        ids = self.fresh_ids(len(seeds)) if ids is None else ids
        columns = [one for one in world.columns if whole or not one.nullable]
        made = [{one.name: one.value(seed) for one in columns} for seed in seeds]
        return [{**row, world.key.name: number} for row, number in zip(made, ids, strict=True)]

    def arrow(self, world: World, rows: list[dict[str, Any]]) -> pa.Table:
        names = rows[0].keys() if rows else world.names
        return pa.Table.from_pylist(rows, schema=pa.schema([one.arrow for one in world.columns if one.name in names]))

    # ---- a step by us ------------------------------------------------------------------------------------------------------

    def act(
        self,
        which: int,
        verb: str,
        operation: str,
        call: Callable[[ty.Table], ty.CommitResult],
        effect: Effect = unchanged,
        excuse: Excuse = never,
        *,
        several: bool = False,
        again: bool = True,
    ) -> ty.CommitResult | None:
        """A verb on a handle, wherever that is; what comes of it must be what the model says.

        Args:
            which: the handle.
            verb: what it is called in the count.
            operation: what its transaction is.
            call: does it.
            effect: what it means.
            excuse: errors that are right here.
            several: whether it may make several versions, all but the last without a change.
            again: whether a conflict that allows it leads to another try.
        """
        held, line = self.held(which)
        read, head = held.table.version, line.head
        try:
            result = call(held.table)
        except ty.TiltyardError as error:
            self._refused(held, verb, operation, error, excuse(line.worlds[read], line.newest), again)
            return None
        self.done[verb] += 1
        if not result.transaction_id:
            if several:  # numbers of fragments may have been reserved before there was nothing left to do
                self._follow(held.table, line, line.newest)
            same = line.worlds[result.version]
            assert effect(same, same).plain_rows == same.plain_rows, f"{verb} did nothing"
            assert held.table.layout.latest_version() == line.head
            return result
        assert result.transaction_id not in self.transactions, "a transaction id came twice"
        self.transactions.add(result.transaction_id)
        assert (result.version == head + 1) if not several else (result.version > head), (result, head)
        base = line.newest if several else line.worlds[result.read_version]
        if not several and result.read_version < head:
            self._carried(line, verb, operation, result.read_version)
        self._follow(held.table, line, effect(base, line.newest))
        assert line.operations[result.version] == result.operation
        later = {line.operations[version] for version in range(result.version + 1, line.head + 1)}
        assert later <= ({"CreateIndex"} if several else set()), "only a compaction goes on, and extends indices"
        self.look(held)
        return result

    def _follow(self, table: ty.Table, line: Line, world: World) -> None:
        """New versions are known: only the last one of them changed anything."""
        for version in range(line.head + 1, table.version + 1):
            line.add(version, world if version == table.version else line.newest, table.transactions.describe(version).operation)

    def _carried(self, line: Line, verb: str, operation: str, read: int) -> None:
        self.done["carried over others"] += 1
        assert line.gone.isdisjoint(range(read + 1, line.head + 1)), f"{verb} went over versions that are gone"
        assert in_the_way(operation, line.since(read)) == [], f"{verb} was carried over what it cannot be"

    def _refused(
        self, held: Held, verb: str, operation: str, error: ty.TiltyardError, excused: tuple[type[ty.TiltyardError], ...], again: bool
    ) -> None:
        """Nothing may have happened, and there must be a reason."""
        line = self.lines[held.branch]
        read = held.table.version
        since = line.since(read)
        match error:
            case _ if isinstance(error, excused):
                self.done[f"refused: {type(error).__name__}"] += 1
            case ty.HistoryUnavailable():
                assert not line.may_go_on_from(read), f"{verb}: {error}"
            case ty.IncompatibleConflict():
                assert may_be_refused(operation, since), f"{verb}: {error}"
            case ty.RetryableConflict():
                assert since, f"{verb}: {error}"
                assert not again, f"{verb}: {error}"
            case _:
                raise error
        self.done[f"{verb} refused"] += 1
        self.done[f"met {type(error).__name__}"] += 1
        newest = self.open(held.branch)
        assert newest.version == line.head, f"{verb} was refused, and there is a new version"
        held.table = newest
        self.look(held)

    # ---- a step by pylance -------------------------------------------------------------------------------------------------

    def stock(self, verb: str, call: Callable[[Any], object], effect: Effect = unchanged, *, several: bool = False) -> None:
        """A verb of pylance on the newest version of main."""
        dataset = open_stock(str(self.uri))
        assert dataset.version == self.main.head
        call(dataset)
        self.done[verb] += 1
        head, table = self.main.head, self.open()
        if table.version == head:
            assert effect(self.main.newest, self.main.newest).plain_rows == self.main.newest.plain_rows, f"{verb} did nothing"
            return
        assert several or table.version == head + 1
        self._follow(table, self.main, effect(self.main.newest, self.main.newest))
        self.look(Held(table, None))

    # ---- what must hold ----------------------------------------------------------------------------------------------------

    def look(self, held: Held) -> None:
        """A handle shows what its version should hold."""
        world = self.lines[held.branch].worlds[held.table.version]
        assert_like(held.table, world)
        assert_rows(held.table.to_arrow(), world)

    def can_be_read(self, held: Held) -> bool:
        """Whether the version of a handle is still there."""
        return held.table.version not in self.lines[held.branch].gone

    def forget_files(self, branch: str | None, paths: Iterable[str]) -> None:
        """Files written by hand for a commit that was refused: whoever writes them removes them."""
        for path in paths:
            (self.directory(branch) / path).unlink()

    def directory(self, branch: str | None) -> Path:
        return self.uri / "tree" / branch if branch else self.uri
