"""Two attempts at one task, both alive and both writing: what is committed has each row once. Run by the cluster test on its workers.

Spark starts a second attempt at a task that seems slow. Here one task of each job waits, before its first row or after its last, until
there is a second attempt; then both go on, and whichever ends first wins.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import tiltyard as ty
from tiltyard.spark import SparkTable, Work, enable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000
SLOW = 1
"""The partition whose attempts wait for each other."""
PATIENCE = 120.0


def session(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("speculation")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def slowed(frame: DataFrame, meeting: Path, *, at_end: bool) -> DataFrame:
    """The same rows; two attempts at the slow partition wait for each other."""
    meeting.mkdir(parents=True)

    def meet() -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None or context.partitionId() != SLOW:
            return
        (meeting / str(context.taskAttemptId())).touch()
        until = time.monotonic() + PATIENCE
        while len(list(meeting.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not at_end:
            meet()
        yield from batches
        if at_end:
            meet()

    return frame.mapInArrow(run, frame.schema)


def rows(spark: SparkSession, first: int) -> DataFrame:
    return spark.range(first, first + ROWS, 1, 2).selectExpr("id", "cast(id as string) name")


def by_the_source(spark: SparkSession, place: Path, frame: DataFrame) -> None:
    frame.write.format("tiltyard").mode("append").save(str(place))


def by_the_handle(spark: SparkSession, place: Path, frame: DataFrame) -> None:
    SparkTable.for_path(spark, place, work=Work(driver_bytes=0)).append(frame)


def by_a_merge(spark: SparkSession, place: Path, frame: DataFrame) -> None:
    table = SparkTable.for_path(spark, place, work=Work(driver_bytes=0, driver_table_rows=0))
    table.merge(frame, on="id").when_matched_update_all().when_not_matched_insert_all().execute()


def by_a_stream(spark: SparkSession, place: Path, frame: DataFrame) -> None:
    """The frame is a stream here."""
    write = frame.writeStream.format("tiltyard").option("mode", "upsert").option("on", "id").trigger(availableNow=True)
    write.option("checkpointLocation", str(place.with_suffix(".log"))).start(str(place)).awaitTermination()


WAYS: dict[str, Callable[[SparkSession, Path, DataFrame], None]] = {
    "source": by_the_source,
    "append": by_the_handle,
    "merge": by_a_merge,
    "stream": by_a_stream,
}


def source_of(spark: SparkSession, name: str, scratch: Path) -> DataFrame:
    frame = rows(spark, ROWS)
    if name != "stream":
        return frame
    files = scratch / "files"
    if not files.exists():
        frame.write.parquet(str(files))
    return spark.readStream.schema(frame.schema).parquet(str(files))


def unnamed(table: ty.Table, place: Path) -> int:
    """How many data files there are that the version does not name."""
    named = {file.path for fragment in table.layout.fragments for file in fragment.files}
    return sum(one.name not in named for one in (place / "data").iterdir())


def tried(spark: SparkSession, scratch: Path, name: str, *, at_end: bool) -> bool:
    """One write with a task that was run twice; whether each row is there once."""
    place, meeting = scratch / f"{name}-{at_end}", scratch / f"{name}-{at_end}-meeting"
    by_the_source(spark, place, rows(spark, 0))
    WAYS[name](spark, place, slowed(source_of(spark, name, scratch), meeting, at_end=at_end))
    table = ty.Table.open(place)
    ids = sorted(table.to_arrow(["id"])["id"].to_pylist())
    attempts = len(list(meeting.iterdir()))
    once = ids == list(range(2 * ROWS))
    when = "after its last row" if at_end else "before its first row"
    told = "each once" if once else "WRONG"
    print(f"{name}, {when}: {attempts} attempts, {len(ids):,} rows, {told}, {unnamed(table, place)} files left", flush=True)
    return once and attempts >= 2


def cleaned(place: Path) -> bool:
    """Whether cleanup finds what an attempt left that ended after the commit. By then all of them have ended."""
    table = ty.Table.open(place)
    table.cleanup(keep_versions=1, grace=timedelta(0))
    return unnamed(table, place) == 0 and table.check().ok


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("master")
    parser.add_argument("scratch", type=Path)
    given = parser.parse_args()
    spark = session(given.master)
    enable(spark)
    fine = [tried(spark, given.scratch, name, at_end=at_end) for name in WAYS for at_end in (False, True)]
    spark.stop()
    fine += [cleaned(given.scratch / f"{name}-{at_end}") for name in WAYS for at_end in (False, True)]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
