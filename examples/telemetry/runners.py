"""The processes of the demo: runners of pipelines, and a reader that follows a table. Each says what it does in lines of JSON."""

from __future__ import annotations

import json
import signal
import sys
import threading
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard as ty
from tiltyard.pipeline import Event, Pipeline, RunReport, Schedule, repeat, stopped_by_signals
from tiltyard.pipeline.spark_session import start

READINGS = "telemetry.readings"
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
PAUSE = timedelta(milliseconds=300)


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def run_pipelines(lake_uri: str, author: str, files: list[str]) -> None:
    """Runs pipelines one after the other, again and again, in one process with one Spark, until SIGTERM."""
    schedule = Schedule(PAUSE)
    with ty.Lake.open(lake_uri, author=author) as lake, stopped_by_signals(schedule):
        runners = [Pipeline.load(file).runner(lake, observer=tell) for file in files]

        def turn() -> RunReport:
            reports = [runner.run() for runner in runners]
            for report in reports[:-1]:
                tell_report(report)
            return reports[-1]

        repeat(turn, schedule, tell_report, lambda error: say(trouble=str(error)))
        tell_report(turn())  # a runner that is stopped after the others has seen the last of what they did
        for runner in runners:
            runner.spark.stop()
    say(ended=True)


def tell(event: Event) -> None:
    if event.point in ("spark is there", "output written", "publishing"):
        say(point=event.point, what=event.what)


def tell_report(report: RunReport) -> None:
    if report.transaction is not None or report.conflicts:
        say(report=report.to_dict())
    elif any("became" in task.did for task in report.upkeep):
        say(upkeep=[part for task in report.upkeep for part in task.did.split("; ") if "became" in part])


def follow(lake_uri: str, seen_file: str) -> None:
    """Follows the changes of the readings as a stream of Spark; at SIGTERM it catches up and leaves all it saw in a file."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = start("reader", {"master": "local[1]", "spark.driver.memory": "512m", **SMALL})
    ty.spark.enable(spark, rule=False)
    seen = Seen()
    options = {"lake": lake_uri, "table": READINGS, "read_changes": "true"}
    stream = spark.readStream.format("tiltyard").options(**options).load().writeStream
    stream = stream.foreachBatch(lambda frame, number: seen.add(frame.toArrow())).option("checkpointLocation", seen_file + ".checkpoint")
    query = stream.trigger(processingTime="1 second").start()
    stopping.wait()
    query.stop()
    last = stream.trigger(availableNow=True).start()
    last.awaitTermination()
    spark.stop()
    Path(seen_file).write_text(json.dumps({"seen": list(seen.rows.items()), **seen.counts}))
    say(ended=True)


class Seen:
    """What a reader saw: how rows came and changed, and what they are now."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[float, str]] = {}
        self.counts = {"inserted": 0, "updated": 0, "doubled": 0}

    def add(self, batch: pa.Table) -> None:
        version = 0
        for row in sorted(batch.to_pylist(), key=itemgetter("_commit_version")):
            came = row["_change_type"] == "insert"
            self.counts["doubled"] += came and row["reading"] in self.rows
            self.counts["inserted"] += came
            self.counts["updated"] += row["_change_type"].startswith("update")
            self.rows[row["reading"]] = (row["temperature"], row["quality"])
            version = row["_commit_version"]
        say(version=version, **self.counts)


if __name__ == "__main__":
    what, lake_uri, *rest = sys.argv[1:]
    if what == "follow":
        follow(lake_uri, rest[0])
    else:
        run_pipelines(lake_uri, rest[0], rest[1:])
