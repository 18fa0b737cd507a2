"""A process that makes, drops, renames, looks up and lists the tables of a lake, and writes down what it saw, while its catalog fails.

What each transaction does next depends on what it was told of names: that is how skews come about. Each says in its message who it is, so
that the lake's history tells in which order names changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import tiltyard as ty
from tests.support.lake_workload import FaultyRecords, read_list
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard_proofs.histories import AnyOp, Append, Define, Listing, Look, NameStep, Outcome, Read, Recorder

NAMES = tuple(f"n{number}" for number in range(6))
ROWS = 4
TABLE = "rows"
"""Stays under its name all the time; its lists are rows, as in ``lake_workload``."""
EMPTY = pa.schema([pa.field("x", pa.int64())])


def make_rows(lake: Lake) -> None:
    lake.create_table(TABLE, pa.table({"row": list(range(ROWS)), "items": [""] * ROWS}))


def read_rows(lake: Lake) -> list[AnyOp]:
    table = lake.snapshot().table(TABLE)
    return [Read(f"{TABLE}/{row}", read_list(table, row)) for row in range(ROWS)]


def steps_of(lake: Lake) -> list[NameStep]:
    """What each snapshot did to names."""
    steps = []
    for snapshot in lake.history():
        gone = {change.former or change.name: None for change in snapshot.changes if change.kind == "drop" or change.former}
        given = {change.name: _short(change.table) for change in snapshot.changes if change.kind == "create" or change.former}
        names = {name: table for name, table in {**gone, **given}.items() if name in NAMES}
        steps.append(NameStep(snapshot.id, snapshot.message or f"snapshot {snapshot.id}", names))
    return steps


def _short(table: str) -> str:
    """A table's id as far as its directory shows it."""
    return table.replace("-", "")[:12]


@dataclass
class Doing:
    """One transaction on its way."""

    tx: LakeTransaction
    random: Random
    own: Append
    """What it appends to the rows, if it does."""
    seen: list[AnyOp] = field(default_factory=list)

    def look(self, name: str) -> str | None:
        try:
            table: str | None = self.tx.table(name).uri.rstrip("/").rpartition("/")[2][:12]
        except ty.NotFound:
            table = None
        self.seen.append(Look(name, table))
        return table

    def list(self) -> list[str]:
        names = [name for name in self.tx.tables() if name in NAMES]
        self.seen.append(Listing(tuple(names)))
        return names

    def create(self, name: str) -> None:
        made = self.tx.create_table(name, EMPTY)
        self.seen.append(Define(name, made.uri.rstrip("/").rpartition("/")[2][:12]))

    def drop(self, name: str) -> None:
        self.tx.drop_table(name)
        self.seen.append(Define(name, None))

    def rename(self, name: str, to: str, table: str) -> None:
        self.tx.rename_table(name, to)
        self.seen += [Define(name, None), Define(to, table)]

    def append(self) -> None:
        row = self.own.key.partition("/")[2]
        self.tx.table(TABLE).update({"items": f"items || ' {self.own.element}'"}, where=f"row = {row}", mode="rows")
        self.seen.append(self.own)

    def read(self) -> bool:
        row = self.random.randrange(ROWS)
        found = read_list(self.tx.table(TABLE), row)
        self.seen.append(Read(f"{TABLE}/{row}", found))
        return len(found) % 2 == 0

    # ---- what transactions do --------------------------------------------------------------------------------------------------

    def one_of_two(self) -> None:
        """Makes a table unless its neighbour is there, or takes it away."""
        name = self.random.choice(NAMES)
        other = NAMES[NAMES.index(name) ^ 1]
        if self.look(other) is not None:
            self.drop(other)
        elif self.look(name) is None:
            self.create(name)

    def by_the_list(self) -> None:
        names = self.list()
        name = self.random.choice(NAMES)
        if len(names) >= 3:
            self.drop(self.random.choice(names))
        elif name not in names:
            self.create(name)
        self.list()

    def move(self) -> None:
        name, to = self.random.sample(NAMES, 2)
        table = self.look(name)
        if table is not None and self.look(to) is None:
            self.rename(name, to, table)
            self.look(to)

    def rows_by_a_name(self) -> None:
        if self.look(self.random.choice(NAMES)) is None:
            self.append()

    def a_name_by_rows(self) -> None:
        name = self.random.choice(NAMES)
        if self.read() and self.look(name) is None:
            self.create(name)

    def rows_by_the_list(self) -> None:
        if len(self.list()) % 2:
            self.append()
        else:
            self.read()


KINDS: tuple[Callable[[Doing], None], ...] = (
    Doing.one_of_two, Doing.by_the_list, Doing.move, Doing.rows_by_a_name, Doing.a_name_by_rows, Doing.rows_by_the_list,
)  # fmt: skip


APPENDING = (Doing.rows_by_a_name, Doing.rows_by_the_list)
"""Kinds that append to the rows, and change nothing else. They say so before they begin, since they may die over it."""


def run_one(
    lake: Lake, isolation: Any, who: str, kind: Callable[[Doing], None], random: Random, own: Append
) -> tuple[Outcome, Doing | None]:
    doing = None
    try:
        tx = lake.transaction(isolation=isolation, message=who)
        doing = Doing(tx, random, own)
        with tx:
            kind(doing)
    except ty.errors.OutcomeUnknown:
        try:
            tx.commit()
        except ty.errors.TiltyardError:
            return "unknown", doing
    except ty.errors.TiltyardError:
        return "failed", doing
    return "ok", doing


def main(address: str, root: str, file: str, name: str, seed: str, isolation: str, count: str) -> None:
    random = Random(f"{seed}/{name}")
    with Lake.open(address, root=root, durability="os") as lake, Path(file).open("a", buffering=1) as lines:
        lake.catalog.records = FaultyRecords(lake.catalog.records, random)
        recorder = Recorder(name, lines.write, time.monotonic_ns)
        for number in range(int(count)):
            own = Append(f"{TABLE}/{random.randrange(ROWS)}", int(name.removeprefix("p")) * 1_000_000 + number)
            kind = random.choice(KINDS)
            index = recorder.begin([own] if kind in APPENDING else [])
            outcome, doing = run_one(lake, isolation, f"{name}/{index}", kind, random, own)
            seen = doing.seen if doing is not None else []
            recorder.end(index, outcome, seen, base=doing.tx.base if doing is not None else None)
