"""Every verb once, on a small table made for it: what a process is killed in the middle of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

import tiltyard as ty
from tiltyard.verbs.engine.access import open_access

Reach = Callable[[str], None]
"""Told when a named point is reached that is not a call of the store."""

SHARD = str(UUID(int=7))
COUNT = 40


def rows(first: int, count: int) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "v": pc.multiply(ids, 10), "s": [f"row {one}" for one in ids]})


def stream(table: pa.Table, reach: Reach, size: int = 2) -> pa.RecordBatchReader:
    """The same rows as they come in, one piece after the other."""

    def pieces() -> Iterator[pa.RecordBatch]:
        for number, piece in enumerate(table.to_batches(max_chunksize=size)):
            reach(f"reading piece {number}")
            yield piece

    return pa.RecordBatchReader.from_batches(table.schema, pieces())


def told(reach: Reach, what: str) -> Callable[..., None]:
    """A progress bar that counts as a point."""
    return lambda *_: reach(f"progress of {what}")


@dataclass(frozen=True)
class Trial:
    """A verb to be killed.

    Attributes:
        act: what is done, on an open table.
        kills: at how many points.
        before: what happens to the table first.
        keyed: whether it has a primary key.
        stable: whether it has stable row ids.
        branch: whether ``act`` gets a handle on the branch ``side``.
    """

    act: Callable[[ty.Table, Reach], object]
    kills: int = 11
    before: tuple[Callable[[ty.Table], object], ...] = ()
    keyed: bool = False
    stable: bool = False
    branch: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def make(root: Path, trial: Trial) -> None:
    """The table as it is before: three versions at least, a deletion among them."""
    table = ty.Table.create(root, rows(0, COUNT), durability="os", stable_row_ids=trial.stable, primary_key=["id"] if trial.keyed else None)
    table.append(rows(COUNT, 10))
    table.delete("id = 3")
    for step in trial.before:
        step(table)
    if trial.branch:
        table.branches.create("side")


def clone_root(root: str | Path) -> Path:
    return Path(f"{root}-clone")


def _indexed(table: ty.Table) -> object:
    return table.create_index("v", "BTREE")


def _grown(table: ty.Table) -> object:
    return table.append(rows(200, 5))


def _add_by_function(table: ty.Table, reach: Reach) -> object:
    def half(batch: pa.RecordBatch) -> pa.RecordBatch:
        reach("a function at work")
        return pa.record_batch({"half": pa.array([one.as_py() / 2 for one in batch["v"]], pa.float64())})

    return table.add_columns(half, read_columns=["v"])


def _replaced(table: ty.Table, reach: Reach) -> object:
    def negative(batch: pa.RecordBatch) -> pa.RecordBatch:
        reach("a function at work")
        return pa.record_batch({"v": pa.array([-one.as_py() for one in batch["v"]], pa.int64())})

    return table.distributed.replace_data(negative, ["v"])


def _merge(table: ty.Table, reach: Reach) -> object:
    return table.merge(rows(45, 10)).when_matched_update_all().when_not_matched_insert_all().execute()


def _upserted(table: ty.Table, reach: Reach) -> object:
    return table.merge(rows(45, 10).slice(0, 5), on=["id"]).when_matched_update_all().execute()


def _tagged(table: ty.Table) -> object:
    return table.tags.create("old", 2)


def _cleaned(table: ty.Table, reach: Reach) -> object:
    return table.cleanup(keep_versions=1, grace=timedelta(days=7))


def _log(table: ty.Table) -> object:
    return table.indices.mem_wal.initialize()


TRIALS: dict[str, Trial] = {
    "append": Trial(lambda t, r: t.append(rows(100, 10)), 14),
    "append with a key": Trial(lambda t, r: t.append(rows(100, 10)), keyed=True),
    "append a stream": Trial(lambda t, r: t.append(stream(rows(100, 10), r), files=ty.FileLimits(rows=4)), 16),
    "overwrite": Trial(lambda t, r: t.overwrite(rows(500, 5))),
    "delete": Trial(lambda t, r: t.delete("id < 5"), 12),
    "delete on a branch": Trial(lambda t, r: t.delete("id < 5"), branch=True),
    "update rows": Trial(lambda t, r: t.update({"v": "v + 1"}, "id < 5", mode="rows"), 12),
    "update columns": Trial(lambda t, r: t.update({"v": "v + 1"}, "id < 30", mode="columns")),
    "merge": Trial(_merge, 12, keyed=True),
    "merge without a key": Trial(_upserted),
    "add a column by SQL": Trial(lambda t, r: t.add_columns({"w": "v * 2"})),
    "add a column by a function": Trial(_add_by_function, 12),
    "drop a column": Trial(lambda t, r: t.drop_columns(["s"])),
    "alter a column": Trial(lambda t, r: t.alter_columns({"path": "v", "data_type": pa.int32()})),
    "rename a column": Trial(lambda t, r: t.alter_columns({"path": "v", "name": "w"})),
    "replace data": Trial(_replaced, 12),
    "config": Trial(lambda t, r: t.update_config({"a": "1"})),
    "restore": Trial(lambda t, r: t.restore(1)),
    "tag": Trial(lambda t, r: t.tags.create("new", 2), 6),
    "move a tag": Trial(lambda t, r: t.tags.update("old", 1), 6, (_tagged,)),
    "make a branch": Trial(lambda t, r: t.branches.create("side", 2), 14),
    "remove a branch": Trial(lambda t, r: t.branches.delete("side"), 10, (lambda t: t.branches.create("side"),)),
    "clone, shallow": Trial(lambda t, r: t.clone(clone_root(t.uri)), 10),
    "clone, deep": Trial(
        lambda t, r: t.clone(clone_root(t.uri), shallow=False, options=ty.CloneOptions(1, told(r, "copying"))), 16, (_indexed,)
    ),
    "compact": Trial(lambda t, r: t.compact(progress=told(r, "compaction")), 16, (_indexed, _grown)),
    "compact, stable row ids": Trial(lambda t, r: t.compact(progress=told(r, "compaction")), 14, (_indexed, _grown), stable=True),
    "create an index": Trial(lambda t, r: t.indices.create("v", ty.IndexSpec("BTREE", progress=told(r, "indexing"))), 14),
    "create a full-text index": Trial(lambda t, r: t.indices.create("s", ty.IndexSpec("INVERTED", progress=told(r, "indexing"))), 10),
    "extend an index": Trial(lambda t, r: t.indices.optimize(), 12, (_indexed, _grown)),
    "drop an index": Trial(lambda t, r: t.drop_index("v_idx"), 8, (_indexed,)),
    "set up a log": Trial(lambda t, r: t.indices.mem_wal.initialize(), 8),
    "mark a log": Trial(lambda t, r: t.indices.mem_wal.mark_merged(SHARD, 3), 8, (_log,)),
    "clean up": Trial(_cleaned, 20, (_tagged, _grown)),
}


def opened(root: Path, trial: Trial) -> ty.Table:
    """The handle on which the verb is called, made by the means that tests have patched."""
    return ty.Table._open(open_access(str(root), ty.Storage(durability="os")), branch="side" if trial.branch else None)
