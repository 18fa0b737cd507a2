"""A driver that merges and dies, by SIGKILL, at a point that is named before.

Run as ``python -m tests.spark.spark_merge_killed '{"path": ..., "how": ..., "point": ...}'``. It joins the Spark that runs for the
tests already, by the same door that ``spark-submit`` uses, so that a death does not cost the start of another one; the executors live on
and go on with whatever the dead driver asked for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tests.support.lake_killed import SteppingStore, Steps
from tests.support.spark_tables import EVERYWHERE, rows
from tiltyard.spark import SparkTable, Work
from tiltyard.storage import open_store
from tiltyard.verbs.engine import access as place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, LAST = 80, 150

STEPS = ("writing rows", "looking for keys", "committing")
UPSERT = (
    *STEPS,
    "put _deletions: before",
    "put _deletions: after",
    "put_if_absent _versions: before",
    "put_if_absent _versions: after",
    "acknowledged",
)
JOINED = ("joining", "writing rows", "committing", "put_if_absent _versions: before", "put_if_absent _versions: after")
POINTS = [*(("upsert", one) for one in UPSERT), *(("joined", one) for one in JOINED)]
"""How it is merged, and where the driver dies."""


class NamedSteps(Steps):
    """Dies at the first step of one name."""

    def __init__(self, point: str) -> None:
        super().__init__(None, Path(os.devnull))
        self.point = point

    def take(self, name: str) -> None:
        if name == self.point:
            os.kill(os.getpid(), signal.SIGKILL)


def merge(spark: SparkSession, path: str, how: str, work: Work) -> ty.CommitResult:
    """The same rows each time: done twice, it is as if it were done once."""
    source = spark.createDataFrame(rows(FIRST, LAST, 99)).repartition(2, "id")
    described = SparkTable.for_path(spark, path, work=work).merge(source)
    if how == "joined":  # a condition that always holds, for Spark to look at
        return described.when_matched_update_all("source.id = target.id").when_not_matched_insert_all().execute()
    return described.when_matched_update_all().when_not_matched_insert_all().execute()


def joined_session() -> SparkSession:
    """A session on the Spark whose door is in the environment."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark has no types for it
    running = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=running, conf=SparkConf(_jconf=running.getConf()))
    return SparkSession(context)


def run_child(spark: SparkSession, job: dict[str, Any]) -> int:
    """Runs a driver to its end or its death; what it ended with."""
    door = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]  # a classic session has one
    known = {"PYSPARK_GATEWAY_PORT": str(door.port), "PYSPARK_GATEWAY_SECRET": str(door.auth_token)}
    command = [sys.executable, "-m", "tests.spark.spark_merge_killed", json.dumps(job)]
    done = subprocess.run(command, env={**os.environ, **known}, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(done.stderr[-3000:])
    return done.returncode


def main(job: dict[str, Any]) -> None:
    steps = NamedSteps(job["point"])
    spark = joined_session()
    vars(place)["open_store"] = lambda *given, **more: SteppingStore(open_store(*given, **more), steps)
    work = Work(**{**{name: getattr(EVERYWHERE, name) for name in _names()}, "progress": steps.take})
    merge(spark, job["path"], job["how"], work)
    steps.take("acknowledged")


def _names() -> Iterator[str]:
    yield from (name for name in Work.__dataclass_fields__ if name != "progress")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
