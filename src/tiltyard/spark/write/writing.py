"""Batch write: tasks write files where the rows are, the driver commits them in one step.

Spark runs the parts in processes of their own: one makes the writer, others run tasks, one more commits or aborts. So everything that a
part needs to know travels inside the writer and the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import tiltyard as ty
from tiltyard.distributed import Piece, WriteTask
from tiltyard.errors import AlreadyCommitted, AlreadyExists, InvalidInput, NotFound
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.idempotency import committing, is_done, is_in_doubt
from tiltyard.spark.source_options import Options
from tiltyard.spark.target import Target
from tiltyard.spark.worker_process import begin_work
from tiltyard.spark.write.schema_fit import new_columns, table_columns
from tiltyard.spark.write.write_options import WRITE, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """What a task made."""

    piece: Piece | None


class TiltyardWriter(DataSourceArrowWriter):
    """One write of a data frame. Made on the driver, where it finds out whether the rows fit; then it travels."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        options.require_known(WRITE, "batch write")
        self.target = Target.from_options(options).require_newest("write")
        self.how = WriteOptions.of(options)
        self.overwrite = overwrite
        self.idle = False
        _check_numbered(self.how)
        if self.how.expected_version is not None and not overwrite:
            raise InvalidInput(
                "expected_version is for an overwrite, not for an append.", argument="expected_version", advice="Leave the option out."
            )
        self.task, self.columns, self.names = self._prepared(schema)

    def _prepared(self, schema: StructType) -> tuple[WriteTask, pa.Schema, dict[str, str]]:
        table = existing_table(self.target)
        if table is None:
            return self._for_new_table(schema)
        if not self.overwrite and self.how.if_exists == "error":
            raise AlreadyExists(f"There is a table {self.target.name} already.", name=self.target.name)
        self.idle = is_done(table, self.how.query_id, self.how.epoch) or (not self.overwrite and self.how.if_exists == "ignore")
        return prepared_for(table, schema, self.how, overwrite=self.overwrite)

    def _for_new_table(self, schema: StructType) -> tuple[WriteTask, pa.Schema, dict[str, str]]:
        columns = new_columns(schema, self.how.vectors)
        return new_table_task(self.target, columns, self.how), columns, {name: name for name in columns.names}

    # ---- in executors ----------------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one partition's rows as files. An attempt that fails takes its own files away."""
        begin_work()
        if self.idle:
            return Written(None)
        return Written(self.task.write(converted(iterator, self.columns, self.names), part=part_of_task()))

    # ---- on the driver ---------------------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits all pieces in one step; files of attempts that were lost go."""
        pieces = pieces_of(messages)
        if self.idle:
            return
        try:
            with committing(self.task.token):
                commit_pieces(self.target, self.task, pieces, self.how, overwrite=self.overwrite, epoch=self.how.epoch)
        except AlreadyCommitted:  # by another driver, or by this one before it was taken for dead
            self.task.discard(pieces, all_of_token=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes what was written, unless it is committed after all, or nobody knows: then the table's cleanup decides."""
        discard_unless_committed(self.target, self.task, pieces_of(messages))


def discard_unless_committed(target: Target, task: WriteTask, pieces: Sequence[Piece]) -> None:
    """After a failure that may as well have been the death of the process that committed, a moment after the commit."""
    if is_in_doubt(task.token):
        return
    existing_table(target)  # of a lake: versions that are decided get the names that discarding looks for
    with suppress(InvalidInput):  # a version has them
        task.discard(pieces, all_of_token=True)


def pieces_of(messages: Sequence[WriterCommitMessage | None]) -> list[Piece]:
    """The pieces of the tasks that came to an end."""
    return [message.piece for message in messages if isinstance(message, Written) and message.piece is not None]


def converted(batches: Iterator[pa.RecordBatch], columns: pa.Schema, names: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Spark's batches under the columns of the table."""
    convert = None
    back = {given: name for name, given in names.items()}
    for batch in batches:
        if convert is None:
            told = pa.schema([item.with_name(back.get(item.name, item.name)) for item in batch.schema])
            convert = batch_converter(told, columns)
        if batch.num_rows:
            yield convert(pa.RecordBatch.from_arrays(batch.columns, schema=told))


def part_of_task() -> str | None:
    """Which part of the rows this task has, the same in each attempt at it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else str(context.partitionId())


# ---- tables ------------------------------------------------------------------------------------------------------------------


def existing_table(target: Target, lake: ty.Lake | None = None) -> ty.TableWriter | None:
    """The table, if it is there; through a lake that is open, if that is given."""
    if target.lake is not None:
        lake = target.open_lake() if lake is None else lake
        return lake.table(str(target.table)) if target.table in lake.tables() else None
    try:
        return target.open_latest()
    except NotFound:
        if target.branch is not None:
            raise
        return None


def prepared_for(
    table: ty.TableWriter, schema: StructType, how: WriteOptions, *, overwrite: bool
) -> tuple[WriteTask, pa.Schema, dict[str, str]]:
    """The task for rows of a data frame, the columns they get, and what the data frame calls each of these."""
    if overwrite:
        columns = new_columns(schema, how.vectors, table.schema)
        task = table.distributed.write_task(
            overwrite=True, schema=columns, primary_key=how.primary_key, on_duplicate=how.on_duplicate, files=how.files
        )
        return task, columns, {name: name for name in columns.names}
    columns, names = table_columns(schema, table.schema)
    check_same_key(how, table)
    return table.distributed.write_task(schema=columns, on_duplicate=how.on_duplicate, files=how.files), columns, names


def new_table_task(target: Target, columns: pa.Schema, how: WriteOptions) -> WriteTask:
    """A task for a table that is not there yet."""
    if target.branch is not None and target.lake is None:
        raise InvalidInput("A new table has no branches yet.", argument="branch")
    if target.lake is not None:
        return target.open_lake().new_table_task(
            str(target.table), columns, primary_key=how.primary_key, stable_row_ids=how.stable_row_ids, options=how.new_table
        )
    return ty.distributed.new_table(
        str(target.path),
        columns,
        primary_key=how.primary_key,
        stable_row_ids=how.stable_row_ids,
        options=how.new_table,
        storage=target.reached_by,
    )


def commit_pieces(
    target: Target, task: WriteTask, pieces: Sequence[Piece], how: WriteOptions, *, overwrite: bool, epoch: int | None
) -> None:
    """Commits what tasks wrote, to the table as it is now.

    Raises:
        AlreadyCommitted: it was, before.
        ConflictError: what the rules say.
    """
    commit = how.commit(how.numbered(epoch))
    told: dict[str, Any] = {"message": how.message, "commit": commit, "leftovers": True}
    if task.kind == "create":
        try:
            _create(target, task, pieces, told)
            return
        except AlreadyExists:  # somebody made it meanwhile; whether that is a table for these rows has to be seen
            task = _for_the_one_there(target.open_latest(), task, overwrite=overwrite)
    table = target.open_latest()
    told["on_duplicate"] = how.on_duplicate
    if task.kind == "overwrite":
        table.distributed.overwrite(task, pieces, **{**told, "commit": replace(commit, expected_version=how.expected_version)})
    else:
        table.distributed.append(pieces, **told)


def _create(target: Target, task: WriteTask, pieces: Sequence[Piece], told: dict[str, Any]) -> None:
    if target.lake is not None:
        target.open_lake().create_table_from_pieces(str(target.table), task, pieces, **told)
    else:
        ty.distributed.create_table(task, pieces, storage=target.reached_by, **told)


def _for_the_one_there(table: ty.TableWriter, task: WriteTask, *, overwrite: bool) -> WriteTask:
    """The task for a table that another writer has just created, if its files can become part of that one."""
    there = table.distributed.write_task()
    same = there.uri == task.uri and there.data_format == task.data_format
    if not same or (not overwrite and there.fields != task.fields):
        raise AlreadyExists(
            f"Another writer created {table.uri} meanwhile, with a schema that does not fit these rows.",
            name=table.uri,
            advice="Write the rows again.",
        )
    return replace(task, kind="overwrite" if overwrite else "append", version=there.version)


def check_same_key(how: WriteOptions, table: ty.TableWriter) -> None:
    """Refuses another primary key than the table has."""
    if how.primary_key is not None and how.primary_key != table.primary_key:
        has = ", ".join(table.primary_key) or "none"
        raise InvalidInput(
            f"The table has another primary key: {has}.",
            argument="primary_key",
            advice="Leave the option out: an append cannot change the key.",
        )


def _check_numbered(how: WriteOptions) -> None:
    if (how.query_id is None) != (how.epoch is None):
        raise InvalidInput(
            "Options query_id and epoch go together.",
            argument="epoch",
            advice="Give both: together they make sure that a batch is committed once.",
        )
