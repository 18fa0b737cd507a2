"""One of several processes that work on one table at once, and its ledger: what it was told is committed.

All do the same round of work, each from another point on. A row belongs to one of three kinds, by its key: rows of one process, which
nobody else touches; shared ones, which all add to; and hot ones, which any process brings in by merge and any may delete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, cycle, islice
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Lock, Semaphore
from pathlib import Path
from random import Random
from typing import Any, TextIO

import pyarrow as pa

import tiltyard as ty

PATIENCE = 300.0
"""Seconds after which a process that does not come to the start is given up, however busy the machine is."""

WRITERS = 8
SHARED = range(16)
HOT = range(100, 124)
OWN = 1_000_000
"""Rows of the process n have keys from ``OWN * (n + 1)`` on."""
BATCH = 3

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("owner", pa.int32()), ("amount", pa.int64())])
INDEX = "amount_idx"

ROUND = (
    *("append", "move", "merge", "add", "append", "delete", "upsert"),
    *("append", "move", "merge", "add", "append", "compact", "upsert"),
    *("append", "move", "merge", "add", "append", "delete", "index"),
    *("append", "move", "cool", "add", "append", "delete", "cleanup"),
)
"""What every process does, over and over."""

NOW = timedelta(0)


def kept(goal: int) -> int:
    """Versions that a cleanup leaves: so few that writers at work are refused now and then, as they say themselves."""
    return goal // 10


def table_of(ids: list[int], owner: int, amounts: list[int]) -> pa.Table:
    return pa.table([ids, [owner] * len(ids), amounts], schema=SCHEMA)


@dataclass
class Ledger:
    """A line for each verb: what it was, how it ended, and what it did to amounts if it was acknowledged."""

    out: TextIO
    rows: dict[int, int] = field(default_factory=dict)
    """The process's own rows, as they must be now."""

    def note(self, verb: str, **facts: Any) -> None:
        self.out.write(json.dumps({"verb": verb, **facts}) + "\n")
        self.out.flush()


@dataclass
class Writer:
    """A process at work."""

    number: int
    table: ty.Table
    ledger: Ledger
    random: Random
    keep: int
    """Versions that a cleanup leaves."""
    stranger: AbstractContextManager[object]
    """Held by a writer that does not know the floor of a cleanup, from its look at the versions until it has made its own: if it stalls in
    between, it takes the number of one that was cleaned up, and its rows are nowhere (tests/verbs/test_cleanup.py shows that alone)."""
    born: int = 0

    def keys(self, count: int) -> list[int]:
        """New keys, never used before."""
        first = OWN * (self.number + 1) + self.born
        self.born += count
        return list(range(first, first + count))

    def some(self, count: int) -> list[int]:
        return self.random.sample(sorted(self.ledger.rows), min(count, len(self.ledger.rows)))

    def do(self, verb: str) -> bool:
        """Does it and notes how it ended; says whether there is a commit more."""
        begun = time.monotonic()
        try:
            facts = _VERBS[verb](self)
        except ty.TiltyardError as error:
            self.ledger.note(verb, refused=type(error).__name__, why=str(error))
            self.table.refresh()
            return False
        self.ledger.note(verb, **facts, took=time.monotonic() - begun)
        return bool(facts.get("version"))

    # ---- the verbs: each changes the ledger's rows only after the table acknowledged -------------------------------------------

    def append(self) -> dict[str, Any]:
        ids = self.keys(BATCH)
        amounts = [self.random.randrange(1000) for _ in ids]
        result = self.table.append(table_of(ids, self.number, amounts))
        self.ledger.rows.update(zip(ids, amounts, strict=True))
        return _committed(result)

    def upsert(self) -> dict[str, Any]:
        """Half of the rows are there, half are not; all are this process's."""
        ids = [*self.some(BATCH), *self.keys(BATCH)]
        amounts = [self.random.randrange(1000) for _ in ids]
        merge = self.table.merge(table_of(ids, self.number, amounts)).when_matched_update_all().when_not_matched_insert_all()
        result = merge.execute()
        self.ledger.rows.update(zip(ids, amounts, strict=True))
        return _committed(result)

    def merge(self) -> dict[str, Any]:
        """Brings a hot row in: whoever comes first inserts it, the others change it."""
        key, amount = self.random.choice(HOT), self.random.randrange(1000)
        merge = self.table.merge(table_of([key], self.number, [amount])).when_matched_update_all().when_not_matched_insert_all()
        result = merge.execute()
        return _committed(result) | {"key": key, "amount": amount, "rows": dict(result.rows)}

    def cool(self) -> dict[str, Any]:
        """Removes a hot row, if it is there."""
        key = self.random.choice(HOT)
        result = self.table.delete(f"id = {key}")
        return _committed(result) | {"key": key, "rows": dict(result.rows)}

    def move(self) -> dict[str, Any]:
        """Takes an amount from one row and gives it to another; their sum stays."""
        source, target = self.some(2)
        part = self.random.randrange(100)
        changed = f"amount + {part} * (2 * id - {source + target}) / {target - source}"  # less in the one, more in the other
        result = self.table.update({"amount": changed}, f"id IN ({source}, {target})")
        self.ledger.rows[source] -= part
        self.ledger.rows[target] += part
        return _committed(result) | {"rows": dict(result.rows)}

    def add(self) -> dict[str, Any]:
        """Adds to a row that all add to."""
        key, part = self.random.choice(SHARED), self.random.randrange(1, 100)
        result = self.table.update({"amount": f"amount + {part}"}, f"id = {key}")
        return _committed(result) | {"key": key, "part": part, "rows": dict(result.rows)}

    def delete(self) -> dict[str, Any]:
        going = self.some(BATCH)
        result = self.table.delete(f"id IN ({', '.join(map(str, going))})")
        for key in going:
            del self.ledger.rows[key]
        return _committed(result) | {"rows": dict(result.rows)}

    def compact(self) -> dict[str, Any]:
        return _committed(self.table.compact(target_rows=2000))

    def index(self) -> dict[str, Any]:
        return _committed(self.table.indices.optimize())

    def cleanup(self) -> dict[str, Any]:
        with self.stranger:
            self.table.refresh()
            report = self.table.cleanup(keep_versions=self.keep, older_than=NOW)
        return {"removed": len(report.versions), "kept": len(report.kept)}


_VERBS: Mapping[str, Callable[[Writer], dict[str, Any]]] = {name: getattr(Writer, name) for name in dict.fromkeys(ROUND)}


def _committed(result: ty.CommitResult) -> dict[str, Any]:
    """What became of a verb; no version where there was nothing to do."""
    return {
        "version": result.version if result.transaction_id else 0,
        "attempts": result.attempts,
        "seconds": result.seconds,
        "executions": result.executions,
    }


def _open(root: str) -> ty.Table:
    table = ty.Table.open(root, durability="os")
    table.lance  # noqa: B018 - loads pylance before the race begins
    return table


PACE = 2
"""Commits of ours for each one of a stranger's: so that there are enough of ours to compare, however fast he is."""


def write(
    number: int, root: str, ledger: str, goal: int, done: Synchronized[int], start: Barrier, turns: Semaphore, stranger: Lock | None
) -> None:
    """Works until all processes of this kind together have made enough commits."""
    table = _open(root)
    with Path(ledger).open("w", encoding="utf-8") as out:
        writer = Writer(number, table, Ledger(out), Random(number), kept(goal), stranger or nullcontext())
        start.wait(PATIENCE)
        work = chain(["append", "append"], islice(cycle(ROUND), number * len(ROUND) // WRITERS, None))
        while done.value < goal:
            if writer.do(next(work)):
                with done.get_lock():
                    done.value += 1
                turns.release()
        turns.release()  # nobody waits for us any more
        writer.ledger.note("end", rows=sorted(writer.ledger.rows.items()))


def write_with_pylance(
    number: int, root: str, ledger: str, goal: int, done: Synchronized[int], start: Barrier, turns: Semaphore, stranger: Lock
) -> None:
    """Appends, knowing nothing of the others, at their pace."""
    import lance

    random, born = Random(number), OWN * (number + 1)
    with Path(ledger).open("w", encoding="utf-8") as out:
        book = Ledger(out)
        lance.dataset(root)
        start.wait(PATIENCE)
        while done.value < goal:
            for _ in range(PACE):
                turns.acquire()
            ids = list(range(born, born + BATCH))
            born += BATCH
            amounts = [random.randrange(1000) for _ in ids]
            try:
                with stranger:
                    version = lance.write_dataset(table_of(ids, number, amounts), root, mode="append").version
            except OSError as error:
                # It gives up after twenty lost races, or where a version it must look at was cleaned up; these rows are in no version.
                if "Commit conflict" not in str(error) and "_versions/" not in str(error):
                    raise
                continue
            book.rows.update(zip(ids, amounts, strict=True))
            book.note("append", version=version)
        book.note("end", rows=sorted(book.rows.items()))
