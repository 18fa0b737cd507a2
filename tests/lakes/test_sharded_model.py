"""Random operations on a sharded table and on one that is not: both have the same rows, and refuse the same things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tiltyard.lakes.lake_transaction import LakeTransaction

SEEDS = pick(range(2), range(60))
STEPS = 25
KEYS = 40


class Walk:
    """Two tables of one lake, changed in the same way, each step in one transaction or in one verb for each."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = Random(seed)
        self.lake = ty.Lake.open(root, durability="os")
        self.key = self.random.choice([["id"], ["s"], ["id", "s"]])
        self.by = self.random.choice([self.key[:1], self.key[-1:], self.key])
        self.extra: list[str] = []
        first = self.rows(self.random.randrange(10))
        self.lake.create_table("plain", first, primary_key=self.key)
        self.lake.create_table("sharded", first, primary_key=self.key, shard_by=self.by, shards=self.random.randrange(1, 6))
        self.snapshots: list[tuple[int, list[Any]]] = []
        self.log: list[str] = [f"key {self.key} shards by {self.by}"]

    def rows(self, count: int) -> pa.Table:
        """Rows of different keys, which may be there or not."""
        keys = {self.random.randrange(KEYS): None for _ in range(count)}
        names = {name: pa.array([self.random.randrange(9) for _ in keys], pa.int64()) for name in self.extra}
        return pa.table(
            {
                "id": pa.array([*keys], pa.int64()),
                "s": pa.array([f"key '{number}'" for number in keys], pa.string()),
                "x": pa.array([self.random.choice([None, -0.0, 1.5, float(number)]) for number in keys], pa.float64()),
                **names,
            }
        )

    def condition(self) -> str:
        number, other = self.random.randrange(KEYS), self.random.randrange(KEYS)
        return self.random.choice(
            [
                f"id = {number}",
                f"s = 'key ''{number}'''",
                f"id in ({number}, {other}) and s = 'key ''{number}'''",
                f"{number} = id and x is not null",
                f"id < {number}",
                f"id = {number} or id = {other}",
                f"not (id = {number})",
                f"s like 'key ''{number % 4}%' and (id = {other} or id > {number})",
                "x > 2",
                f"id between {min(number, other)} and {max(number, other)}",
                "true",
            ]
        )

    def step(self) -> None:
        work = self.random.choice([self.append, self.append, self.append, self.merge, self.merge, self.delete, self.update, self.column,
                                   self.overwrite])  # fmt: skip
        verb = work()
        how = self.random.choice(["verb", "verb", "transaction", "rolled back"])
        self.log.append(f"{how}: {self.log.pop()}")
        if how == "verb":
            self.same(lambda name: verb(self.lake.table(name)))
        else:
            more = self.append()
            self.log.append(f"then {self.log.pop()}")
            self.same(lambda name: self.run(name, [verb, more], commit=how == "transaction"))
        if self.random.random() < 0.2:
            self.keep()

    def run(self, name: str, verbs: list[Callable[[Any], Any]], *, commit: bool) -> Any:
        tx: LakeTransaction = self.lake.transaction()
        try:
            table = tx.table(name)
            counts = [verb(table).rows for verb in verbs]
            rows = content(table)
        except BaseException:
            tx.rollback()
            raise
        if commit:
            tx.commit()
        else:
            tx.rollback()
        return counts, rows

    def same(self, work: Callable[[str], Any]) -> None:
        ends = [_end(work, name) for name in ("plain", "sharded")]
        assert ends[0] == ends[1], self.log

    def append(self) -> Callable[[Any], Any]:
        rows = self.rows(self.random.randrange(1, 6))
        stream = self.random.random() < 0.3
        self.log.append(f"append {rows['id'].to_pylist()}")
        return lambda table: table.append(rows.to_reader(max_chunksize=2) if stream else rows)

    def merge(self) -> Callable[[Any], Any]:
        rows, which = self.rows(self.random.randrange(1, 12)), self.random.randrange(4)
        self.log.append(f"merge {which} {rows['id'].to_pylist()}")

        def verb(table: Any) -> Any:
            merge = table.merge(rows)
            if which in (0, 1):
                merge = merge.when_matched_update_all(where="source.id > 10" if which else None)
            if which == 2:
                merge = merge.when_matched_delete()
            if which == 3:
                merge = merge.when_matched_update({"x": "target.x + 1"}).when_not_matched_by_source_delete(where="id < 5")
            return merge.when_not_matched_insert_all().execute()

        return verb

    def delete(self) -> Callable[[Any], Any]:
        where = self.condition()
        self.log.append(f"delete {where}")
        return lambda table: table.delete(where)

    def update(self) -> Callable[[Any], Any]:
        where = self.condition()
        self.log.append(f"update {where}")
        return lambda table: table.update({"x": "x * 2 + 1"}, where=where)

    def column(self) -> Callable[[Any], Any]:
        if self.extra and self.random.random() < 0.5:
            name = self.extra[-1]
            self.log.append(f"drop {name}")
            return lambda table: table.drop_columns([name])
        name = f"c{self.random.randrange(3)}"
        self.log.append(f"add {name}")
        return lambda table: table.add_columns({name: "id + 1"})

    def overwrite(self) -> Callable[[Any], Any]:
        rows = self.rows(self.random.randrange(12))
        self.log.append(f"overwrite {rows['id'].to_pylist()}")
        return lambda table: table.overwrite(rows)

    def keep(self) -> None:
        kind = self.random.choice(["reshard", "compact", "index", "snapshot", "rename"])
        self.log.append(kind)
        table: Any = self.lake.table("sharded")
        if kind == "reshard":
            table.reshard(self.random.randrange(1, 8))
        elif kind == "compact":
            table.compact()
        elif kind == "index":
            table.create_index("x", "BTREE", replace=True)
        elif kind == "rename":
            self.lake.rename_table("sharded", "other")
            self.lake.rename_table("other", "sharded")
        self.snapshots.append((self.lake.snapshot().id, content(self.lake.table("plain"))))

    def compare(self) -> None:
        plain, sharded = self.lake.table("plain"), self.lake.table("sharded")
        assert content(sharded) == content(plain), self.log
        self.extra = [name for name in plain.schema.names if name.startswith("c")]
        for _ in range(3):
            where = self.condition()
            assert content(sharded, where) == content(plain, where), (where, self.log)
            assert sharded.count_rows(where) == plain.count_rows(where), (where, self.log)
        assert sharded.schema.equals(plain.schema)


def content(table: Any, where: str | None = None) -> list[Any]:
    rows = table.to_arrow(filter=where).to_pylist()
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


def _end(work: Callable[[str], Any], name: str) -> Any:
    """What a call came to: counts, or what kind of error."""
    try:
        found = work(name)
    except ty.TiltyardError as error:
        return type(error).__name__
    return found.rows if isinstance(found, ty.CommitResult) else found


@pytest.mark.parametrize("seed", SEEDS)
def test_both_have_the_same_rows(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path / "lake", seed)
    for _ in range(STEPS):
        walk.step()
        walk.compare()
    for number, rows in walk.snapshots:
        assert content(walk.lake.snapshot(number).table("sharded")) == rows, (number, walk.log)
    report = walk.lake.check()
    assert report.ok, (report.problems, walk.log)
    assert walk.lake.table("sharded").check().ok
