"""Writing through Spark against Spark's own Parquet, the same rows, in turn in one session.

    python -m bench.spark_write                      a million rows, about two minutes
    python -m bench.spark_write --rows 12000000      what the aims are meant for; --json for figures, --check to fail on a miss

Rows are kept in memory beforehand, so that making them is not measured. Each case is run ``--rounds`` times on both sides in turn, after
one run that does not count; ratios are of medians. Neither side flushes to disk (``durability=os``): Parquet never does.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from bench.commit import Figure
from bench.spark_session import arguments, session, show, warmed
from tiltyard.spark import enable
from tiltyard.spark.spark_table import SparkTable

DIMENSION = 128
VECTORS_PER_ROW = 40
"""One vector for so many rows of the first case."""
SMALL = 100


def readings(spark: SparkSession, rows: int, parts: int) -> DataFrame:
    """Seven columns: a key, numbers, text of few and of many values, a moment."""
    return spark.range(0, rows, 1, parts).selectExpr(
        "id",
        "cast(hash(id) % 1000 as int) sensor",
        "hash(id, 1) / 1e6 value",
        "cast(hash(id, 2) / 2147483648.0 as float) quality",
        "concat('station ', cast(abs(hash(id, 3)) % 50 as string)) station",
        "concat('reading ', cast(id as string)) note",
        "timestamp_micros(1700000000000000 + id * 1000000) at",
    )


def vectors(spark: SparkSession, rows: int, parts: int) -> DataFrame:
    """A key and a vector."""
    values = f"transform(sequence(1, {DIMENSION}), i -> cast(hash(id, i) / 2147483648.0 as float)) v"
    return spark.range(0, rows, 1, parts).selectExpr("id", values)


class Fresh:
    """Places that are empty each time."""

    def __init__(self, place: Path) -> None:
        self._access = place
        self._count = 0

    def __call__(self) -> str:
        shutil.rmtree(self._access, ignore_errors=True)
        self._count += 1
        return str(self._access / str(self._count))


def ours(frame: DataFrame, fresh: Fresh, **options: str) -> Callable[[], None]:
    return lambda: frame.write.format("tiltyard").mode("append").options(durability="os", **options).save(fresh())


def parquet(frame: DataFrame, fresh: Fresh) -> Callable[[], None]:
    return lambda: frame.write.mode("append").parquet(fresh())


def whole(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int) -> Figure:
    frame = readings(spark, rows, parts).cache()
    frame.count()
    taken = warmed(rounds, ours=ours(frame, Fresh(place / "a")), parquet=parquet(frame, Fresh(place / "b")))
    frame.unpersist()
    return Figure("write", statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", 0.9)


def with_key(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int) -> Figure:
    """The same into a table with a primary key, whose keys are looked at."""
    frame = readings(spark, rows, parts).cache()
    frame.count()
    told = {"primary_key": "id"}
    taken = warmed(rounds, ours=ours(frame, Fresh(place / "a"), **told), parquet=parquet(frame, Fresh(place / "b")))
    frame.unpersist()
    return Figure("write with a key", statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", 1.3)


def of_vectors(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int) -> Figure:
    frame = vectors(spark, max(rows // VECTORS_PER_ROW, 1), parts).cache()
    frame.count()
    told = {"vectors": f"v:{DIMENSION}"}
    taken = warmed(rounds, ours=ours(frame, Fresh(place / "a"), **told), parquet=parquet(frame, Fresh(place / "b")))
    frame.unpersist()
    return Figure(f"write vectors of {DIMENSION}", statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", 0.3)


def small(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int) -> Figure:
    """A few rows added to what is there: on our side by the handle, which does not start tasks for them."""
    frame = spark.createDataFrame(readings(spark, SMALL, 1).toArrow())
    table = ty.Table.create(place / "small", frame.toArrow().schema, durability="os")
    handle = SparkTable(spark, table)
    there = str(place / "small-parquet")
    taken = warmed(rounds, ours=lambda: handle.append(frame), parquet=lambda: frame.write.mode("append").parquet(there))
    return Figure(f"append of {SMALL} rows", statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", 0.2)


def small_through_the_source(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int) -> Figure:
    """The same through the data source, where Spark plans, runs a task and starts processes whatever the size. Without an aim."""
    frame = spark.createDataFrame(readings(spark, SMALL, 1).toArrow())
    there, that = str(place / "through"), str(place / "through-parquet")
    write = frame.write.format("tiltyard").mode("append").options(durability="os")
    taken = warmed(rounds, ours=lambda: write.save(there), parquet=lambda: frame.write.mode("append").parquet(that))
    name = f"append of {SMALL} rows, data source"
    return Figure(name, statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", None)


CASES = {"write": whole, "write with a key": with_key, "vectors": of_vectors, "small": small, "small source": small_through_the_source}


def measure(spark: SparkSession, place: Path, rows: int, rounds: int, parts: int, only: str) -> Iterator[Figure]:
    for name, case in CASES.items():
        if only in name:
            yield case(spark, place, rows, rounds, parts)


def main() -> None:
    parser = arguments(__doc__, 1_000_000, 5)
    parser.add_argument("--only", default="", help="cases with this in their name: write, vectors, small")
    options = parser.parse_args()
    with session(options.cores) as (spark, place):
        enable(spark)
        show(measure(spark, place, options.rows, options.rounds, options.cores, options.only), options)


if __name__ == "__main__":
    main()
