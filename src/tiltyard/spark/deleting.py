"""Deletes rows: a condition of Spark finds them in executors, the driver strikes them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tiltyard.distributed import Pinned, RowChange, RowPlan
from tiltyard.spark.expressions import Told, checked_expression, mentioned
from tiltyard.spark.jobs import ADDRESS, scan_frame
from tiltyard.spark.row_jobs import ACTION, Action, changed
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def delete_rows(
    spark: SparkSession, table: ty.Table, where: str | Column | Told, how: Mapping[str, Any], work: Work, alias: str | None = None
) -> ty.CommitResult:
    """Deletes the rows that a condition holds for. Where there are none, nothing is committed."""
    condition = checked_expression(where)

    def worker(pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        work.begin("finding rows")
        frame = mentioned_rows(spark, pinned, [where], work, alias).where(condition)
        change = changed(frame.select(f.lit(0).alias(ACTION), f.col(ADDRESS)), pinned, [Action("delete")])
        work.begin("committing")
        return RowChange(change.taken, counts={"deleted": change.counts["deleted"]})

    return table.change_rows(worker, RowPlan("delete", predicate=str(where)), **how)


def mentioned_rows(spark: SparkSession, pinned: Pinned, expressions: list[Any], work: Work, alias: str | None = None) -> DataFrame:
    """All rows of a version with those columns that expressions may be about, and where each is."""
    frame = scan_frame(spark, pinned.scan_task(), pinned.schema, mentioned(pinned.schema.names, expressions), work)
    return frame if alias is None else frame.alias(alias)
