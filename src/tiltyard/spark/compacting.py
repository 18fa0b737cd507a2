"""Puts small fragments together: executors write, one commit follows what others did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tiltyard.distributed import CompactTask
from tiltyard.spark.jobs import Batches, group_numbers, per_group, results
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact(spark: SparkSession, table: ty.Table, how: Mapping[str, Any], work: Work) -> ty.CommitResult:
    """Compacts a table; what is small is done by the driver."""
    if table.count_rows() <= work.driver_rows and work.driver_bytes:
        work.begin("compacting on the driver")
        return table.compact(**how)

    def runner(tasks: Sequence[CompactTask]) -> list[str]:
        work.begin("compacting")

        def run(batches: Batches) -> list[tuple[int, str]]:
            return [(number, tasks[number].run()) for number in group_numbers(batches)]

        told = dict(pair for part in results(per_group(spark, tasks), run) for pair in part)
        work.begin("committing")
        return [told[number] for number in range(len(tasks))]

    return table.compact_parts(runner, **how)
