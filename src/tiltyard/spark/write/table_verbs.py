"""Adds columns, compacts and creates indices, with the work in executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import ClusterTask, ColumnTask, CompactTask, IndexTask
from tiltyard.errors import InvalidInput
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.jobs import ADDRESS, Batches, group_numbers, per_group, per_task, results, scan_frame, tasks_in
from tiltyard.spark.placement import Work
from tiltyard.spark.spark_expressions import checked_expression, mentioned
from tiltyard.spark.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_ADDRESS = "_rowaddr"
"""What a query calls where a row is."""


def add_columns(
    spark: SparkSession,
    table: ty.TableWriter,
    columns: Mapping[str, str | Column] | Callable[[DataFrame], DataFrame],
    how: Mapping[str, Any],
    work: Work,
) -> ty.CommitResult:
    """Adds columns to all rows."""
    schema = table.schema

    def query(scan: ty.distributed.ScanTask) -> DataFrame:
        names = mentioned(schema.names, list(columns.values())) if isinstance(columns, Mapping) else list(schema.names)
        rows = scan_frame(spark, scan, schema, names, work).withColumnRenamed(ADDRESS, ROW_ADDRESS)
        return _made(rows, columns)

    new = arrow_schema(query(table.distributed.scan_task()).drop(ROW_ADDRESS).schema)
    new = pa.schema([item.with_nullable(True) for item in new])

    def worker(task: ColumnTask) -> dict[int, Any]:
        work.begin("computing columns")
        made = _written(query(task.scan), task, work)
        work.begin("committing")
        return made

    return table.distributed.add_columns(new, worker, **how)


def _made(rows: DataFrame, columns: Mapping[str, str | Column] | Callable[[DataFrame], DataFrame]) -> DataFrame:
    from pyspark.sql import functions as f

    if callable(columns):
        made: DataFrame = columns(rows)
        if ROW_ADDRESS not in made.columns or len(made.columns) < 2:
            raise InvalidInput(
                f"The query must keep {ROW_ADDRESS} and add columns to it.", argument="columns", advice=f"It gave {made.columns}."
            )
        return made
    if not isinstance(columns, Mapping) or not columns:
        raise InvalidInput("Columns are expressions of Spark by name, or a function of a data frame.", argument="columns")
    return rows.select(f.col(ROW_ADDRESS), *(checked_expression(value, "columns").alias(name) for name, value in columns.items()))


def _written(frame: DataFrame, task: ColumnTask, work: Work) -> dict[int, Any]:
    """Brings the rows of each fragment together and has its file written. Fragments that the query left out get theirs, too."""
    from pyspark.sql import functions as f

    number = f.shiftrightunsigned(f.col(ROW_ADDRESS), 32).cast("long")
    pending = set(task.fragments)
    chosen = frame.withColumn(_FRAGMENT, number).where(f.col(_FRAGMENT).isin([*pending]) if len(pending) < _MANY else f.lit(True))
    spread = chosen.repartition(f.col(_FRAGMENT)).sortWithinPartitions(_FRAGMENT)
    wanted = task.schema

    def run(batches: Batches) -> dict[int, Any]:
        done: dict[int, Any] = {}
        kept: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for pair in _by_fragment(batch):
                place = pair[0]
                for ready in [number for number in kept if number != place]:
                    done[ready] = task.write(ready, pa.concat_tables(kept.pop(ready)))
                kept.setdefault(place, []).append(_values(pair[1], wanted))
        for place, tables in kept.items():
            done[place] = task.write(place, pa.concat_tables(tables))
        return {number: file for number, file in done.items() if number in pending}

    files = {number: file for part in results(spread, run) for number, file in part.items()}
    missing = sorted(pending - files.keys())
    empty = pa.schema([pa.field(ROW_ADDRESS, pa.uint64()), *wanted]).empty_table()
    return files | {number: task.write(number, empty) for number in missing}


_FRAGMENT = "_ty_fragment"
_MANY = 1000


def _by_fragment(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    numbers = batch.column(_FRAGMENT)
    found = []
    for number in numbers.unique().to_pylist():
        found.append((number, batch.filter(pa.compute.equal(numbers, number))))
    return found


def _values(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
    schema = pa.schema([pa.field(ROW_ADDRESS, pa.uint64()), *wanted])
    return pa.Table.from_batches([batch_converter(batch.schema, schema)(batch)])


def compact(spark: SparkSession, table: ty.TableWriter, how: Mapping[str, Any], work: Work) -> ty.CommitResult:
    """Compacts a table; what is small is done by the driver."""
    if _is_small(table, work):
        work.begin("compacting on the driver")
        return table.compact(**how)
    return table.distributed.compact(_runner(spark, work), **how)


def optimize(spark: SparkSession, table: ty.TableWriter, how: Mapping[str, Any], work: Work) -> ty.CommitResult:
    """Sorts rows of a table, or compacts fragments of it; what is small is done by the driver."""
    if _is_small(table, work):
        work.begin("compacting on the driver")
        return table.maintenance.optimize(**how)
    return table.distributed.optimize(_runner(spark, work), **how)


def _is_small(table: ty.TableWriter, work: Work) -> bool:
    return table.count_rows() <= work.driver_rows and bool(work.driver_bytes)


def _runner(spark: SparkSession, work: Work) -> Callable[[Sequence[CompactTask | ClusterTask]], list[Any]]:
    """Runs tasks in executors, and has what they return in order."""

    def runner(tasks: Sequence[CompactTask | ClusterTask]) -> list[Any]:
        work.begin("compacting")

        def run(batches: Batches) -> list[tuple[int, Any]]:
            return [(number, task.run()) for number, task in tasks_in(batches)]

        told = dict(pair for part in results(per_task(spark, list(enumerate(tasks))), run) for pair in part)
        work.begin("committing")
        return [told[number] for number in range(len(tasks))]

    return runner


def create_index(
    spark: SparkSession, table: ty.TableWriter, column: str, spec: ty.IndexSpec, how: Mapping[str, Any], work: Work
) -> ty.CommitResult:
    """Creates an index. Small tables and vector indices, whose parts learn from all rows, are done by the driver."""
    if _is_small(table, work):
        work.begin("indexing on the driver")
        return table.indices.create(column, spec, **how)

    def runner(task: IndexTask) -> list[Any]:
        groups = task.scan.groups(work.tasks(spark))
        work.begin("indexing")

        def run(batches: Batches) -> list[Any]:
            return [task.segment(groups[number]) for number in group_numbers(batches)]

        made = [item for part in results(per_group(spark, groups), run) for item in part] if groups else [task.segment(())]
        work.begin("committing")
        return made

    return table.indices.create(column, replace(spec, runner=runner), **how)
