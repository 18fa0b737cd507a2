"""Drivers of Spark for tests, each a process of its own: ``python -m tests.support.spark_jobs scratch job.json``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tests.support.children import path_of_the_tree
from tests.support.spark_killed import Death, KilledSource, die_in_driver, killed_by_name
from tiltyard.spark.sql_catalog.session_catalog import use_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def batch_write(spark: SparkSession, path: str, first: int, count: int, options: dict[str, str]) -> None:
    """Appends so many rows, in two tasks."""
    rows = spark.range(first, first + count, 1, 2).selectExpr("id", "cast(id as string) s")
    rows.write.format("tiltyard_killed").mode("append").options(**options).save(path)


def stream_write(spark: SparkSession, source: str, path: str, log: str, options: dict[str, str]) -> None:
    """Runs a query over files of JSON, one a batch, until all are read."""
    frame = spark.readStream.schema("id bigint, s string").option("maxFilesPerTrigger", "1").json(source)
    sink = frame.writeStream.format("tiltyard_killed").options(**options, path=path, checkpointLocation=log)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()


def stream_by_name(spark: SparkSession, source: str, log: str, options: dict[str, str]) -> None:
    """The same into a table of the session's lake, ``lake.t``."""
    frame = spark.readStream.schema("id bigint, s string").option("maxFilesPerTrigger", "1").json(source)
    sink = frame.writeStream.options(**options, checkpointLocation=log)
    sink.trigger(availableNow=True).toTable("lake.t").awaitTermination()


def use_named(spark: SparkSession, place: str, death: Death | None = None) -> None:
    """Makes the lake there the session's catalog; with a death, workers may die."""
    ty.spark.enable(spark)
    use_lake(spark, "lake", {"lake": place, "durability": "os"})
    if death is not None:
        spark.dataSource.register(killed_by_name(death))


def many_appends(spark: SparkSession, path: str, first: int, commits: int, rows: int) -> None:
    """Several commits, one after the other."""
    for number in range(commits):
        batch_write(spark, path, first + number * rows, rows, {})


def start(scratch: Path, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A driver that does one job and ends."""
    scratch.mkdir(parents=True, exist_ok=True)
    told = scratch / "job.json"
    told.write_text(json.dumps(job))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.support.spark_jobs", str(scratch), str(told)]
    with (scratch / "log.txt").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path_of_the_tree()}, cwd=root, start_new_session=True
        )


def main(scratch: str, told: str) -> None:
    from tests.support.spark import start_spark

    job = json.loads(Path(told).read_text())
    spark = start_spark(Path(scratch) / "spark", master=job.get("master", "local[2]"), **job.get("conf", {}))
    spark.dataSource.register(KilledSource)
    options = dict(job.get("options", {}))
    if job.get("kill_driver"):
        options["kill_also"] = str(spark.sparkContext._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
    if job["do"] == "batch":
        batch_write(spark, job["path"], job["first"], job["count"], options)
    elif job["do"] == "stream":
        stream_write(spark, job["source"], job["path"], job["log"], options)
    elif job["do"] == "stream by name":
        death = Death(job["kill_at"], job["kill_note"], options.pop("kill_also"))
        use_named(spark, job["lake"], death)
        die_in_driver(death)
        stream_by_name(spark, job["source"], job["log"], options)
    else:
        many_appends(spark, job["path"], job["first"], job["commits"], job["rows"])
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
