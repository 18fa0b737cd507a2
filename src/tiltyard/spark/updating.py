"""Gives columns new values: Spark works them out in executors, which write the changed rows anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import Pinned, RowChange, RowPlan
from tiltyard.errors import InvalidInput
from tiltyard.spark.deleting import mentioned_rows
from tiltyard.spark.expressions import Told, checked_expression
from tiltyard.spark.jobs import ADDRESS, ROW_ID
from tiltyard.spark.row_jobs import ACTION, VALUE, Action, changed
from tiltyard.spark.types import spark_schema
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def update_rows(
    spark: SparkSession,
    table: ty.Table,
    values: Mapping[str, Any],
    where: str | Column | Told | None,
    how: Mapping[str, Any],
    work: Work,
    alias: str | None = None,
) -> ty.CommitResult:
    """Updates rows. Where the condition holds for none, nothing is committed."""
    if not isinstance(values, Mapping) or not values or not all(isinstance(name, str) for name in values):
        raise InvalidInput("Values are expressions of Spark by column, at least one.", argument="values")
    condition = checked_expression("true" if where is None else where)

    def worker(pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        work.begin("finding rows")
        names = [name for name in pinned.schema.names if name in values]
        types = spark_schema(pa.schema([pinned.schema.field(name) for name in names]))
        given = [
            checked_expression(values[name], "values").cast(types[name].dataType).alias(f"{VALUE}{place}")
            for place, name in enumerate(names)
        ]
        places = [f.col(ADDRESS), *([f.col(ROW_ID)] if pinned.stable else [])]
        frame = mentioned_rows(spark, pinned, ["" if where is None else where, *values.values()], work, alias).where(condition)
        change = changed(frame.select(f.lit(0).alias(ACTION), *places, *given), pinned, [Action("update", tuple(names))])
        work.begin("committing")
        return RowChange(change.taken, change.pieces, change.moved, counts={"updated": change.counts["updated"]})

    return table.change_rows(worker, RowPlan("update", updated=frozenset(values)), **how)
