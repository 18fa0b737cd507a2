"""A driver that runs a statement through the catalog and dies, by SIGKILL, at a point that is named before.

Run as ``python -m tests.spark.spark_catalog_killed '{"lake": ..., "text": ..., "point": ...}'``; it has a Spark of its own, which
ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiltyard as ty
from tests.spark.spark_merge_killed import NamedSteps
from tests.support.lake_killed import SteppingStore
from tests.support.spark import start_spark
from tiltyard.spark.sql_catalog import row_statements, statements_run
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.write import row_jobs
from tiltyard.storage import open_store
from tiltyard.verbs.engine import access

BEFORE, STORE, AFTER = "rows are written", "put _deletions: after", "committed, and not told"
POINTS = (BEFORE, STORE, AFTER)


def dying(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; nobody hears of its result."""

    def run(*given: Any, **named: Any) -> Any:
        work(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return run


def main(job: dict[str, Any]) -> None:
    place = Path(job["lake"]).parent
    spark = start_spark(place / "spark", "local[1]", say_which_python=False)
    ty.spark.enable(spark)
    spark.range(2).write.format("tiltyard").mode("append").save(str(place / "by_name"))
    assert ty.Table.open(place / "by_name").count_rows() == 2
    use_lake(spark, "lake", {"lake": job["lake"], "durability": "os"})
    steps = NamedSteps(job["point"])
    vars(access)["open_store"] = lambda *given, **more: SteppingStore(open_store(*given, **more), steps)
    if job["point"] == BEFORE:
        vars(row_statements)["changed"] = dying(row_jobs.changed)
    if job["point"] == AFTER:
        vars(statements_run)["execute"] = dying(statements_run.execute)
    spark.sql(job["text"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
