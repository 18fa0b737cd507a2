"""Distributed verbs against rewriting a Parquet table with a join, on the same rows, in turn in one session.

    python -m bench.spark_verbs                      a hundred thousand rows into a million
    python -m bench.spark_verbs --rows 1000000       what the aim is meant for: a million into ten; --json for figures, --check to fail

Half of the rows that are merged are there already. Our table is copied before each run, outside of the measurement; the source is a Parquet
file for both sides.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from bench.commit import Figure, timed
from bench.spark_read import ROWS_PER_FILE, batches
from bench.spark_session import arguments, session, show
from tiltyard.spark import SparkTable

AIM = 1.0
"""No slower than rewriting."""

_FEW = "id % 20 = 7"
_NEWER = "source.quality >= target.quality OR source.id % 2 = 0"


def make(rows: int, place: Path) -> None:
    """Ten times as many rows on both sides, and the rows to be merged into them."""
    (place / "parquet").mkdir()
    table: ty.Table | None = None
    for number, part in enumerate(batches(10 * rows)):
        pq.write_table(part, place / "parquet" / f"part-{number:04}.parquet", row_group_size=ROWS_PER_FILE // 8)
        if table is None:
            table = ty.Table.create(place / "ours", part, primary_key=["id"], durability="os")
        else:
            table.append(part, on_duplicate="allow")
    source = pa.concat_tables(batches(rows))
    moved = source.set_column(0, "id", pa.compute.add(source.column("id"), 10 * rows - rows // 2))
    pq.write_table(moved, place / "source.parquet", row_group_size=1 << 17)


def upsert(table: SparkTable, source: DataFrame) -> object:
    return table.merge(source).when_matched_update_all().when_not_matched_insert_all().execute()


def upsert_newer(table: SparkTable, source: DataFrame) -> object:
    return table.merge(source).when_matched_update_all(_NEWER).when_not_matched_insert_all().execute()


def delete(table: SparkTable, source: DataFrame) -> object:
    return table.delete(_FEW)


def rewritten(target: DataFrame, source: DataFrame) -> DataFrame:
    return target.join(source, "id", "left_anti").unionByName(source)


def rewritten_newer(target: DataFrame, source: DataFrame) -> DataFrame:
    joined = target.alias("target").join(source.alias("source"), "id", "full")
    take = f"target.sensor IS NULL OR (source.sensor IS NOT NULL AND ({_NEWER.replace('source.id', 'id')}))"
    names = [name for name in target.columns if name != "id"]
    return joined.selectExpr("id", *(f"if({take}, source.{name}, target.{name}) AS {name}" for name in names))


def rewritten_without(target: DataFrame, source: DataFrame) -> DataFrame:
    return target.filter(f"NOT ({_FEW})")


CASES: dict[str, tuple[Callable[[SparkTable, DataFrame], object], Callable[[DataFrame, DataFrame], DataFrame], float]] = {
    "upsert": (upsert, rewritten, AIM),
    "upsert under a condition": (upsert_newer, rewritten_newer, AIM),
    "delete of 5 %": (delete, rewritten_without, AIM),
}


def measure(spark: SparkSession, place: Path, rounds: int) -> Iterator[Figure]:
    source = spark.read.parquet(str(place / "source.parquet"))
    for name, (change, rewrite, aim) in CASES.items():
        taken: dict[str, list[float]] = {"ours": [], "parquet": []}
        for number in range(rounds + 1):  # the first does not count
            copy, out = place / "copy", place / "out"
            shutil.copytree(place / "ours", copy)
            ours = timed(lambda: change(SparkTable.for_path(spark, copy), source))  # noqa: B023 - run at once
            target = spark.read.parquet(str(place / "parquet"))
            parquet = timed(lambda: rewrite(target, source).write.parquet(str(out)))  # noqa: B023 - run at once
            if number == 0:
                same = ty.Table.open(copy).count_rows(), spark.read.parquet(str(out)).count()
                if same[0] != same[1]:
                    raise SystemExit(f"{name}: {same[0]} rows here, {same[1]} there")
            else:
                taken["ours"].append(ours)
                taken["parquet"].append(parquet)
            shutil.rmtree(copy)
            shutil.rmtree(out)
        yield Figure(name, statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", aim)


def main() -> None:
    options = arguments(__doc__, 100_000, 3, "to merge, into ten times as many").parse_args()
    with session(options.cores) as (spark, place):
        make(options.rows, place)
        show(measure(spark, place, options.rounds), options)


if __name__ == "__main__":
    main()
