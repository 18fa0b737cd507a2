"""Builds an index in segments, each over some fragments, in executors; the driver merges them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tiltyard.distributed import IndexTask
from tiltyard.spark.jobs import Batches, group_numbers, per_group, results
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_index(spark: SparkSession, table: ty.Table, column: str, index_type: str, how: Mapping[str, Any], work: Work) -> ty.CommitResult:
    """Creates an index. Small tables and vector indices, whose parts learn from all rows, are done by the driver."""
    if table.count_rows() <= work.driver_rows and work.driver_bytes:
        work.begin("indexing on the driver")
        return table.create_index(column, index_type, **how)

    def runner(task: IndexTask) -> list[Any]:
        groups = task.scan.groups(work.tasks(spark))
        work.begin("indexing")

        def run(batches: Batches) -> list[Any]:
            return [task.segment(groups[number]) for number in group_numbers(batches)]

        made = [one for part in results(per_group(spark, groups), run) for one in part] if groups else [task.segment(())]
        work.begin("committing")
        return made

    return table.create_index_parts(runner, column, index_type, **how)
