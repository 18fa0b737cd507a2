"""Streaming write: each micro-batch is one commit, which also says that the batch is in. So it is there once, however often it is sent.

Who the query is and which batch it writes Spark tells the tasks, and they tell the driver: in its own process it would not be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import tiltyard as ty
from tiltyard.distributed import Piece, Pinned, RowChange, RowPlan, WriteTask, pack_rows
from tiltyard.errors import AlreadyCommitted, AlreadyExists, InvalidInput
from tiltyard.spark.idempotency import committing, is_done, source_of
from tiltyard.spark.source_options import Options
from tiltyard.spark.target import Target
from tiltyard.spark.worker_process import begin_work
from tiltyard.spark.write.row_verbs import fit, replacing
from tiltyard.spark.write.schema_fit import new_columns
from tiltyard.spark.write.write_options import STREAM_WRITE, WriteOptions
from tiltyard.spark.write.writing import converted, discard_unless_committed, existing_table, part_of_task, prepared_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""What Spark calls, in each task, the query (as its checkpoint has it, so the same after a restart) and the micro-batch."""


@dataclass
class Sent(WriterCommitMessage):
    """What a task made, for which query."""

    piece: Piece
    task: WriteTask
    query: str | None


class TiltyardStreamWriter(DataSourceStreamArrowWriter):
    """One query's sink. Spark makes it once for the tasks, and anew for each commit.

    A lake is opened once, or given by whoever has it open, and stays with the process: tasks need none.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool, lake: ty.Lake | None = None) -> None:
        options.require_known(STREAM_WRITE, "streaming write")
        self.target = Target.from_options(options).require_newest("write")
        self.how = WriteOptions.of(options)
        self.upserts = options.one_of("mode", ("append", "upsert"), "append") == "upsert"
        self.on = options.names("on")
        self.newest_by = options.text("newest_by")
        self.overwrite = overwrite
        if overwrite and self.upserts:
            raise InvalidInput("An upsert needs output mode append or update, not complete.", argument="mode")
        if not self.upserts and (self.on or self.newest_by):
            raise InvalidInput("Options on and newest_by are for mode upsert.", argument="on")
        self.lake = self.target.open_lake() if lake is None and self.target.lake is not None else lake
        self.task, self.columns, self.names = self._prepared(schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None}

    def _prepared(self, schema: StructType) -> tuple[WriteTask, pa.Schema, dict[str, str]]:
        table = existing_table(self.target, self.lake) or self._made(schema)
        if not self.upserts:
            return prepared_for(table, schema, self.how, overwrite=self.overwrite)
        prepared = prepared_for(table, schema, replace(self.how, on_duplicate="allow"), overwrite=False)
        self._check_keys(table, prepared[1])
        return prepared

    def _made(self, schema: StructType) -> ty.TableWriter:
        """An empty table, so that the first batch is one like all others."""
        columns, how = new_columns(schema, self.how.vectors), self.how
        options = ty.TableOptions(data_format=how.data_format)
        told: dict[str, Any] = {"primary_key": how.primary_key, "stable_row_ids": how.stable_row_ids, "options": options}
        try:
            if self.lake is not None:
                return self.lake.create_table(str(self.target.table), columns, **told)
            return ty.Table.create(str(self.target.path), columns, storage=self.target.reached_by, **told)
        except AlreadyExists:  # somebody else was faster
            return self.target.open_latest()

    def _check_keys(self, table: ty.TableWriter, columns: pa.Schema) -> None:
        on = self.on or table.primary_key
        if not on:
            raise InvalidInput("An upsert needs a key.", argument="on", advice="Give option on, or a table with a primary key.")
        for name in (*on, *filter(None, [self.newest_by])):
            if name not in columns.names:
                raise InvalidInput(f"The rows have no column {name!r} to match them by.", argument="on")

    # ---- in executors ----------------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Writes one partition of a micro-batch as files."""
        from pyspark import TaskContext

        begin_work()
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        # Each batch has files of its own names, so that what is left over of one is told from the rows of another; also where it
        # is sent again by tasks that were planned once. All attempts at its tasks are of one stage, and no other batch is.
        stage = context.stageId() if context is not None else None
        task = self.task.grouped(f"{query} {batch} {stage}")
        return Sent(task.write(converted(iterator, self.columns, self.names), part=part_of_task()), task, query)

    # ---- on the driver ---------------------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits a micro-batch, or finds that it is in."""
        sent = [message for message in messages if isinstance(message, Sent)]
        if not sent:
            return
        task, pieces = sent[0].task, [batch.piece for batch in sent]
        source = source_of(self.how.query_id, sent[0].query)
        table = self.target.open_latest() if self.lake is None else self.lake.table(str(self.target.table))
        told = {"message": self.how.message, "commit": self.how.commit(ty.distributed.once(source, batchId))}
        try:
            if is_done(table, source, batchId):
                task.discard(pieces, all_of_token=True)
            elif self.upserts:
                self._merge(table, task, pieces, told)
            else:
                with committing(task.token):
                    self._add(table, task, pieces, told)
        except AlreadyCommitted:  # by a driver that was taken for dead, a moment ago
            task.discard(pieces, all_of_token=True)

    def _add(self, table: ty.TableWriter, task: WriteTask, pieces: Sequence[Piece], told: dict[str, Any]) -> None:
        how: dict[str, Any] = {**told, "leftovers": True, "on_duplicate": self.how.on_duplicate}
        if self.overwrite:
            table.distributed.overwrite(task, pieces, **how)
        elif any(piece.rows for piece in pieces):
            table.distributed.append(pieces, **how)

    def _merge(self, table: ty.TableWriter, task: WriteTask, pieces: Sequence[Piece], told: dict[str, Any]) -> None:
        chosen = [piece for piece in _first_of_each_part(pieces) if piece.rows]
        on, how = tuple(self.on or table.primary_key), told
        with committing(task.token):
            if chosen and self._merged_by_files(table, task, chosen, on, how):
                return
        if chosen:
            self._merge_rows(table, task.read(chosen).select(self.columns.names), on, how)
        # The rows are in files of the merge's own by now; if it failed, Spark sends the batch again.
        task.discard(pieces, all_of_token=True)

    def _merged_by_files(
        self, table: ty.TableWriter, task: WriteTask, pieces: list[Piece], on: tuple[str, ...], how: dict[str, Any]
    ) -> bool:
        """By the files that the tasks wrote, if they can stay as they are; the driver reads keys only."""
        rows = task.read(pieces, [*dict.fromkeys([*on, *filter(None, [self.newest_by])])])
        if self.newest_by is not None and newest(rows, on, self.newest_by).num_rows < rows.num_rows:
            return False
        plan = RowPlan(matched=True, on=on, inserting=True, updated=frozenset(self.columns.names))
        try:
            table.distributed.change_rows(_Upsert(rows, pieces, task.uri), plan, **how)
        except _NotByFiles:
            return False
        return True

    def _merge_rows(self, table: ty.TableWriter, rows: pa.Table, on: Sequence[str], how: dict[str, Any]) -> None:
        """By the driver: rows that give some columns only, keep their ids, replace several each, or are older than others of the batch."""
        if self.newest_by is not None:
            rows = newest(rows, on, self.newest_by)
        table.merge(rows, list(on)).when_matched_update_all().when_not_matched_insert_all().execute(**how)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Removes what was written, unless a commit was begun and nobody knows how it ended."""
        sent = [message for message in messages if isinstance(message, Sent)]
        if sent:
            discard_unless_committed(self.target, sent[0].task, [batch.piece for batch in sent])


class _NotByFiles(Exception):
    """The rows have to be merged one by one. No error of ours: with one of those the files would be removed."""


class _Upsert:
    """Every row of a batch becomes a row of the table, in the files that the tasks wrote: only its keys are looked for, by the driver."""

    def __init__(self, keys: pa.Table, pieces: list[Piece], uri: str) -> None:
        self.keys, self.pieces, self.uri = keys, pieces, uri

    def __call__(self, pinned: Pinned) -> RowChange:
        # On each version anew: others may have added a column meanwhile, or made the table again elsewhere.
        if pinned.write_task().uri != self.uri or not fit(pinned, self.pieces):
            raise _NotByFiles
        assert pinned.key_reader is not None
        keys = pinned.checked_keys(pinned.key_reader.of(self.keys))
        found = pinned.match_task(keys).find()
        change = replacing(keys, self.pieces, found.rows, pack_rows(found.addresses), len(found.addresses))
        if change is None:
            raise _NotByFiles
        return change


def _first_of_each_part(pieces: Sequence[Piece]) -> list[Piece]:
    found: dict[object, Piece] = {}
    for number, piece in enumerate(pieces):
        found.setdefault(number if piece.part is None else piece.part, piece)
    return list(found.values())


def newest(rows: pa.Table, on: Sequence[str], column: str) -> pa.Table:
    """Of the rows with one key the one that is the highest in a column; of equals the one that came last."""
    place, there = pa.array(range(rows.num_rows), pa.int64()), pc.is_valid(rows[column])
    order = pc.sort_indices(  # a null is lower than everything
        pa.table([there, rows[column], place], names=["there", "value", "place"]),
        sort_keys=[("there", "ascending"), ("value", "ascending"), ("place", "ascending")],
    )
    ranked = rows.select([*on]).take(order).append_column("_ty_rank", place)
    last = ranked.group_by([*on]).aggregate([("_ty_rank", "max")])["_ty_rank_max"].combine_chunks()
    return rows.take(order.take(last))
