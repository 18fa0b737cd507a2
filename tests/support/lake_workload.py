"""A process that runs transactions over the tables of a lake and writes down what it saw, while its catalog fails and kills it.

Lists are rows: the elements of a key stand in one text, and appending is an update of that row.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa

import tiltyard as ty
from tiltyard.catalog.records import Body, Decide, Found, Records
from tiltyard.errors import StorageError
from tiltyard.lake import Lake
from tiltyard_proofs.histories import Append, Op, Outcome, Read, Recorder

T = TypeVar("T")

TABLES = ("red", "green", "blue")
ROWS = 6
LOST_BEFORE, LOST_AFTER, KILLED_BEFORE, KILLED_AFTER = 0.01, 0.02, 0.0015, 0.003
"""How often a transaction of the catalog loses its answer, before or after it is applied, or takes its process with it."""


class FaultyRecords:
    """Records whose answers get lost, and whose callers die, as a seed has it."""

    def __init__(self, inner: Records, random: Random, last: int | None = None) -> None:
        """``last``: the transaction of the catalog right after which the caller dies, whatever the seed has."""
        self.inner = inner
        self.url = inner.url
        self._random = random
        self._left = last

    def get(self, keys: Collection[str]) -> Found:
        return self.inner.get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        return self.inner.scan(prefixes, limit=limit, descending=descending)

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        chance = self._random.random()
        if chance < LOST_BEFORE:
            raise StorageError("the answer was lost", maybe_applied=True, transient=True)
        if chance > 1 - KILLED_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        done = self.inner.transact(exclusive, shared, decide)
        if chance < LOST_AFTER:
            raise StorageError("the answer was lost", maybe_applied=True, transient=True)
        if self._left is not None:
            self._left -= 1
        if chance > 1 - KILLED_AFTER or self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def close(self) -> None:
        self.inner.close()


def make_tables(lake: Lake) -> None:
    for name in TABLES:
        lake.create_table(name, pa.table({"row": list(range(ROWS)), "items": [""] * ROWS}))


def read_list(table: Any, row: int) -> tuple[int, ...]:
    found = table.to_arrow(columns=["items"], filter=f"row = {row}").column("items").to_pylist()
    if len(found) != 1:
        raise AssertionError(f"row {row} of {table.uri} is there {len(found)} times")
    return tuple(map(int, found[0].split()))


def read_all(lake: Lake) -> list[Op]:
    cut = lake.snapshot()
    return [Read(f"{name}/{row}", read_list(cut.table(name), row)) for name in TABLES for row in range(ROWS)]


def plan(random: Random, base: int) -> list[Op]:
    keys = [f"{random.choice(TABLES)}/{random.randrange(ROWS)}" for _ in range(random.randrange(1, 4))]
    return [Append(key, base + number) if random.random() < 0.5 else Read(key) for number, key in enumerate(keys)]


def run_one(lake: Lake, isolation: Any, ops: Sequence[Op]) -> tuple[Outcome, list[Op]]:
    seen: list[Op] = []
    tx = lake.transaction(isolation=isolation)
    try:
        with tx:
            for op in ops:
                name, _, row = op.key.partition("/")
                if isinstance(op, Append):
                    tx.table(name).update({"items": f"items || ' {op.element}'"}, where=f"row = {row}", mode="rows")
                    seen.append(op)
                else:
                    seen.append(Read(op.key, read_list(tx.table(name), int(row))))
    except ty.errors.OutcomeUnknown:
        try:
            tx.commit()
        except ty.errors.TiltyardError:
            return "unknown", seen
    except ty.errors.TiltyardError:
        return "failed", list(ops)
    return "ok", seen


def main(address: str, root: str, file: str, name: str, seed: str, isolation: str, count: str) -> None:
    random = Random(f"{seed}/{name}")
    done = 0
    with Lake.open(address, root=root, durability="os") as lake, Path(file).open("a", buffering=1) as lines:
        # One dies for certain: how many others do is up to the seed and to how often they meet.
        lake.catalog.records = FaultyRecords(lake.catalog.records, random, 20 if name == "p0" else None)
        recorder = Recorder(name, lines.write, time.monotonic_ns)
        while done < int(count):
            done += 1
            if random.random() < 0.02:
                try:
                    lake.table(random.choice(TABLES)).compact()
                except ty.errors.TiltyardError:
                    pass  # others were in the way, or the catalog was; maintenance has time
            ops = plan(random, int(name.removeprefix("p")) * 1_000_000 + done * 10)
            index = recorder.begin(ops)
            try:
                outcome, seen = run_one(lake, isolation, ops)
            except ty.errors.StorageError:
                outcome, seen = "failed", list(ops)  # it could not even begin
            recorder.end(index, outcome, seen)
