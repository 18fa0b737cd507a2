"""Jobs: a function in each worker makes one result of its rows, and the driver has them all, or the error that ended one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import TiltyardError
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.placement import Work
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.worker_process import begin_work
from tiltyard.spark.write.arrow_batches import unmeasured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDRESS: Final = "_ty_address"
ROW_ID: Final = "_ty_id"
"""What the driver calls where a row is and who it is; signed, since Spark knows nothing else."""

_RESULT: Final = pa.schema([pa.field("result", pa.binary())])

_MOST_NUMBERS: Final = 1 << 24
"""Numbers that a task goes through at most to tell a size: some 20 ms."""

Batches = Iterator[pa.RecordBatch]


def results(df: DataFrame, function: Callable[[Batches], Any]) -> list[Any]:
    """What a function makes of each partition. An error of ours in a worker is the same error here.

    Args:
        df: the rows.
        function: is given batches of a partition and returns anything that can be pickled; None is left out.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        begin_work()
        try:
            made = function(iter(batches))
        except TiltyardError as error:
            made = error
        if made is not None:
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(made)], pa.binary())], schema=_RESULT)

    with unmeasured(df):
        rows = df.mapInArrow(run, "result binary").collect()
    found = [pickle.loads(bytes(row.result)) for row in rows]  # our own workers made it, a moment ago
    for item in found:
        if isinstance(item, TiltyardError):
            raise item
    return found


def per_group(spark: SparkSession, groups: Sequence[Any], rows: int = 0) -> DataFrame:
    """One partition for each of some pieces of work; its one row is the number of the piece.

    Args:
        spark: the session.
        groups: the pieces.
        rows: about how many rows come of all of them, where Spark is to know. It takes what is made of a few numbers for small, and would
            send a large table to every executor for a join. So they are picked out of as many numbers as there are rows, up to a bound:
            a filter leaves the size as it is.
    """
    count = max(len(groups), 1)
    if rows <= count:
        return spark.range(0, len(groups), 1, count)
    each = min(-(-rows // count), _MOST_NUMBERS)
    return spark.range(0, count * each, 1, count).where(f"id % {each} = 0").selectExpr(f"id div {each} AS id")


def per_task(spark: SparkSession, tasks: Sequence[Any]) -> DataFrame:
    """One partition for each of some tasks; its one row is the task, since each may be long and need not be known to all workers."""
    rows = pa.table({"task": pa.array([pickle.dumps(task) for task in tasks], pa.binary())})
    return spark.createDataFrame(rows).coalesce(1).repartition(max(len(tasks), 1))


def tasks_in(batches: Batches) -> Iterator[Any]:
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield pickle.loads(task)  # the driver made it, a moment ago


def group_numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def scan_frame(
    spark: SparkSession, scan: ty.distributed.ScanTask, schema: pa.Schema, columns: Sequence[str], work: Work, *, places: bool = True
) -> DataFrame:
    """Columns of all rows of a version, read in executors, narrow and straight from the files.

    Args:
        spark: the session.
        scan: the version.
        schema: of the table.
        columns: names.
        work: in how many tasks.
        places: whether to add where each row is, and its id where rows keep theirs.
    """
    chosen = pa.schema([schema.field(name) for name in columns])
    told = spark_schema(chosen)
    wanted = expected_batches(told)
    if places:
        told = told.add(ADDRESS, "long", False)
        wanted = wanted.append(pa.field(ADDRESS, pa.int64(), nullable=False))
        if scan.stable:
            told = told.add(ROW_ID, "long", False)
            wanted = wanted.append(pa.field(ROW_ID, pa.int64(), nullable=False))
    groups = scan.groups(work.tasks(spark))

    def read_our_table(batches: Iterable[pa.RecordBatch]) -> Batches:  # the plan shows this name, and "hand_over" looks for it
        begin_work()
        for number in group_numbers(iter(batches)):
            reader = scan.scan(columns, groups[number], row_address=places, row_id=places and scan.stable)
            renamed = pa.schema([item.with_name(_NAMES.get(item.name, item.name)) for item in reader.schema])
            convert = batch_converter(renamed, wanted)
            for batch in reader:
                if batch.num_rows:
                    yield convert(pa.RecordBatch.from_arrays(batch.columns, schema=renamed))

    if not groups:
        return spark.createDataFrame([], told)
    return per_group(spark, groups, scan.rows).mapInArrow(read_our_table, told)


_NAMES: Final = {"_rowaddr": ADDRESS, "_rowid": ROW_ID}


def expected_batches(told: Any) -> pa.Schema:
    """What Spark expects batches of a schema to look like."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(told, timezone="UTC")


def written(df: DataFrame, task: ty.distributed.WriteTask, wanted: pa.Schema) -> list[ty.distributed.Piece]:
    """All rows as pieces, each partition one."""
    found: list[ty.distributed.Piece] = results(df, lambda batches: task.write(converted(batches, wanted)))
    return found


def converted(batches: Batches, wanted: pa.Schema) -> Batches:
    """Batches as Spark gives them, under the types of a table."""
    convert = None
    for batch in batches:
        if convert is None:
            convert = batch_converter(batch.schema, wanted)
        if batch.num_rows:
            yield convert(batch)
