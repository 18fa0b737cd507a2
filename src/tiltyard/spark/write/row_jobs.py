"""Rows to update, insert or delete, as Spark computed them: written in executors, reported to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import Piece, RowChange, ScanTask, WriteTask, join_rows, pack_rows
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.jobs import ADDRESS, ROW_ID, Batches, results
from tiltyard.spark.placement import Work, small_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACTION: Final = "_ty_action"
"""Which action a row is for; below zero for none."""
SOURCE_ROW: Final = "_ty_row"
"""Tells rows of a source apart: one may be there several times, for several rows of the table."""
VALUE: Final = "_ty_v_"
KEY: Final = "_ty_k_"
"""Before the number of a column: new values, in the order of the table's columns, and keys of the source."""
_SAMPLE: Final = 3


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes of some rows.

    Attributes:
        kind: whether they get new values, are new, go, or must not be there at all.
        columns: those with a new value; others keep theirs, or are null in a new row.
    """

    kind: Literal["update", "insert", "delete", "fail"]
    columns: tuple[str, ...] = ()


@dataclass
class TaskResult:
    """What one worker did."""

    piece: Piece | None = None
    taken: dict[int, bytes] = field(default_factory=dict)
    doubled: bool = False
    """Whether a row of the table was to be changed twice."""
    failed: int = 0
    failing: list[str] = field(default_factory=list)
    """Rows that must not match and do: how many, and some of their keys."""
    moved: Any = None
    keys: pa.Table | None = None
    sources: tuple[Any, pa.Table] | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"inserted": 0, "updated": 0, "deleted": 0})


@dataclass(frozen=True)
class RowWork:
    """What a worker needs to know. It is pickled.

    Attributes:
        scan: the version.
        task: writes new rows.
        schema: the table's columns; any may be null here, the task looks at that.
        assigned: columns with a new value in some action, in order.
        actions: by number.
        key: takes keys out of rows of the table; None where none are asked for.
        source_keys: types of the source's keys; None where they need not be told.
    """

    scan: ScanTask
    task: WriteTask
    schema: pa.Schema
    assigned: tuple[str, ...]
    actions: tuple[Action, ...]
    key: Any
    source_keys: pa.Schema | None

    def __call__(self, batches: Batches) -> TaskResult:
        done = _Doing(self)
        piece = self.task.write(done.new_rows(batches))
        return done.outcome(piece)


class _Doing:
    """One worker at work."""

    def __init__(self, work: RowWork) -> None:
        self.work = work
        self.made = TaskResult()
        self.taken: list[Any] = [np.empty(0, np.int64)]
        self.moved: list[Any] = [np.empty(0, np.int64)]
        self.keys: list[pa.Table] = []
        self.sources: list[tuple[Any, pa.Table]] = []

    def new_rows(self, batches: Batches) -> Batches:
        for batch in batches:
            self._note_source(batch)
            actions = batch.column(ACTION).to_numpy()
            for number, action in enumerate(self.work.actions):
                where = np.flatnonzero(actions == number)
                if len(where):
                    some = batch.take(pa.array(where))
                    yield from self._apply(action, some)

    def _note_source(self, batch: pa.RecordBatch) -> None:
        wanted = self.work.source_keys
        if wanted is None:
            return
        rows = batch.column(SOURCE_ROW)
        there = batch.filter(rows.is_valid()) if rows.null_count else batch
        names = [f"{KEY}{number}" for number in range(len(wanted))]
        keys = pa.RecordBatch.from_arrays([there.column(name) for name in names], names=list(wanted.names))
        convert = batch_converter(keys.schema, wanted)
        # Copied: a column of a batch keeps all of it in memory.
        self.sources.append((np.array(there.column(SOURCE_ROW).to_numpy()), pa.Table.from_batches([_copied(convert(keys))])))

    def _apply(self, action: Action, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if action.kind == "fail":
            self._fail(batch)
            return
        counted = {"update": "updated", "insert": "inserted", "delete": "deleted"}[action.kind]
        self.made.counts[counted] += batch.num_rows
        if action.kind != "insert":
            self.taken.append(np.array(batch.column(ADDRESS).to_numpy()))
        if action.kind == "delete":
            return
        rows = self._rows(action, batch)
        if action.kind == "insert":
            if self.work.key is not None:
                self.keys.append(pa.Table.from_batches([_copied(batch) for batch in self.work.key.of(rows).to_batches()]))
        elif self.work.scan.stable:
            self.moved.append(np.array(batch.column(ROW_ID).to_numpy()))
        yield rows

    def _fail(self, batch: pa.RecordBatch) -> None:
        self.made.failed += batch.num_rows
        if self.work.source_keys is not None and not self.made.failing:
            for row in range(min(_SAMPLE, batch.num_rows)):
                named = enumerate(self.work.source_keys.names)
                self.made.failing.append(", ".join(f"{name} {batch.column(f'{KEY}{place}')[row].as_py()!r}" for place, name in named))

    def _rows(self, action: Action, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Whole rows: new values from Spark, the others as they are in the table."""
        schema = self.work.schema
        given = [name for name in self.work.assigned if name in action.columns]
        columns = [batch.column(f"{VALUE}{self.work.assigned.index(name)}") for name in given]
        values = pa.RecordBatch.from_arrays(columns, names=given) if given else None
        fresh = pa.schema([schema.field(name) for name in given])
        made = {} if values is None else dict(zip(given, batch_converter(values.schema, fresh)(values).columns, strict=True))
        kept = [name for name in schema.names if name not in made]
        if kept and action.kind == "update":
            places = batch.column(ROW_ID if self.work.scan.stable else ADDRESS).cast(pa.uint64())
            old = self.work.scan.take(places, kept)
            made |= {name: _whole(old.column(name)) for name in kept}
        else:
            made |= {name: pa.nulls(batch.num_rows, schema.field(name).type) for name in kept}
        return pa.RecordBatch.from_arrays([_typed(made[item.name], item.type) for item in schema], schema=schema)

    def outcome(self, piece: Piece) -> TaskResult:
        made = self.made
        made.piece = piece if piece.rows else None
        taken = np.unique(np.concatenate(self.taken))
        made.doubled = len(taken) < sum(map(len, self.taken))
        made.taken = pack_rows(taken.astype(np.uint64))
        made.moved = np.concatenate(self.moved).astype(np.uint64)
        made.keys = pa.concat_tables(self.keys) if self.keys else None
        if self.sources:
            made.sources = np.concatenate([rows for rows, _ in self.sources]), pa.concat_tables([keys for _, keys in self.sources])
        return made


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    taken: pa.RecordBatch = batch.take(pa.array(np.arange(batch.num_rows)))
    return taken


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else column.cast(kind)


# ---- on the driver ---------------------------------------------------------------------------------------------------------


def changed(
    frame: DataFrame | pa.Table,
    pinned: ty.distributed.Pinned,
    actions: Sequence[Action],
    *,
    source_keys: bool = False,
    work: Work | None = None,
) -> RowChange:
    """Runs the job and puts together what its workers did.

    Args:
        frame: a row for each row to be changed: ``ACTION``, ``ADDRESS``, new values, and what else the actions need. Rows that are
            fetched already are written by the driver.
        pinned: the version it was worked out on.
        actions: what the numbers in ``ACTION`` mean.
        source_keys: whether the frame tells all rows of a source and their keys, to be looked at for two of one.
        work: up to which size rows are written by the driver; none are if not given.
    """
    schema = pa.schema([item.with_nullable(True).remove_metadata() for item in pinned.schema])
    assigned = tuple(name for name in schema.names if any(name in action.columns for action in actions))
    _refuse_blobs(pinned, actions)
    if pinned.stable:  # rows that moved come first in a piece, since they bring their ids
        frame = _inserts_last(frame, actions)
    key = pinned.key_reader
    told = None
    if source_keys and key is not None:
        told = key.of(pa.Table.from_batches([], pinned.schema)).schema
    job = RowWork(pinned.scan_task(), pinned.write_task(), schema, assigned, tuple(actions), key, told)
    try:
        few = frame if isinstance(frame, pa.Table) else None if work is None else small_rows(frame, work, None)
        outcomes = results(frame, job) if few is None else [job(iter(few.to_batches()))]
    except BaseException:
        job.task.discard((), all_of_token=True)
        raise
    return _put_together(pinned, outcomes)


def _inserts_last(frame: DataFrame | pa.Table, actions: Sequence[Action]) -> DataFrame | pa.Table:
    inserts = [number for number, action in enumerate(actions) if action.kind == "insert"]
    if isinstance(frame, pa.Table):
        return frame.take(pa.array(np.argsort(np.isin(frame.column(ACTION).to_numpy(), inserts), kind="stable")))
    from pyspark.sql import functions as f

    return frame.sortWithinPartitions(f.col(ACTION).isin(inserts))


def _refuse_blobs(pinned: ty.distributed.Pinned, actions: Sequence[Action]) -> None:
    for action in actions:
        if action.kind == "update":
            pinned.refuse_carrying([name for name in pinned.schema.names if name not in action.columns])


def _put_together(pinned: ty.distributed.Pinned, outcomes: Sequence[TaskResult]) -> RowChange:
    pieces = [outcome.piece for outcome in outcomes if outcome.piece is not None]
    moved = [outcome.moved for outcome in outcomes if outcome.piece is not None]
    keys = [outcome.keys for outcome in outcomes if outcome.keys is not None]
    counts: Mapping[str, int] = {name: sum(outcome.counts[name] for outcome in outcomes) for name in ("inserted", "updated", "deleted")}
    try:
        distinct = _check_source(pinned, outcomes)
        _refuse_failing(pinned, outcomes)
        if any(outcome.doubled for outcome in outcomes):
            raise ty.InvalidInput(
                "A row of the table matches several rows of the source.",
                argument="source",
                advice="Keep one row for each key in the source.",
            )
        taken = join_rows(outcome.taken for outcome in outcomes)
    except ty.TiltyardError:
        if pieces:
            pinned.write_task().discard(pieces)
        raise
    return RowChange(taken, pieces, moved, pa.concat_tables(keys) if keys else None, counts, distinct)


def _refuse_failing(pinned: ty.distributed.Pinned, outcomes: Sequence[TaskResult]) -> None:
    if failed := sum(outcome.failed for outcome in outcomes):
        sample = [text for outcome in outcomes for text in outcome.failing][:_SAMPLE]
        raise ty.KeyConflict(
            f"{failed} rows of the source are in version {pinned.version} already: {'; '.join(sample)}.",
            operation="Merge",
            read_version=pinned.version,
            sample=sample,
            retryable=False,
        )


def _check_source(pinned: ty.distributed.Pinned, outcomes: Sequence[TaskResult]) -> bool:
    """Refuses a source with two rows of one key. Whether it was looked at."""
    told = [outcome.sources for outcome in outcomes if outcome.sources is not None]
    if not told:
        return False
    rows, keys = np.concatenate([rows for rows, _ in told]), pa.concat_tables([keys for _, keys in told])
    _, first = np.unique(rows, return_index=True)
    pinned.checked_keys(keys.take(pa.array(np.sort(first))) if len(first) < len(rows) else keys)
    return True
