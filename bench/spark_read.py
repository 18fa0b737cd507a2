"""Reading through Spark against Spark's own Parquet, on the same rows, in turn in one session.

    python -m bench.spark_read                      a million rows, about a minute
    python -m bench.spark_read --rows 12000000      what the aims are meant for; --json for figures, --check to fail on a miss

Each case is run ``--rounds`` times on both sides in turn, after one run that does not count; ratios are of medians. Results are not
collected but for a few rows: whole scans go to Spark's ``noop`` sink.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from bench.commit import Figure, in_turn
from tiltyard.spark import enable

SEED = 7
ROWS_PER_FILE = 1 << 20
Case = tuple[str, Callable[[DataFrame], object], float]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def batches(rows: int) -> Iterator[pa.Table]:
    """Seven columns: a key in a random order, numbers, text of few and of many values, a moment."""
    random = np.random.default_rng(SEED)
    ids = random.permutation(rows)
    for start in range(0, rows, ROWS_PER_FILE):
        part = ids[start : start + ROWS_PER_FILE]
        count = len(part)
        yield pa.table(
            {
                "id": pa.array(part, pa.int64()),
                "sensor": pa.array(random.integers(0, 1000, count), pa.int32()),
                "value": pa.array(random.normal(size=count), pa.float64()),
                "quality": pa.array(random.random(count, dtype=np.float32), pa.float32()),
                "station": pa.array(np.char.add("station ", random.integers(0, 50, count).astype(str))),
                "note": pa.array(np.char.add("reading ", part.astype(str))),
                "at": pa.array(1_700_000_000_000_000 + part * 1_000_000, pa.timestamp("us", "UTC")),
            }
        )


def make(rows: int, place: Path) -> None:
    """The same files of the same rows on both sides."""
    (place / "parquet").mkdir()
    table: ty.Table | None = None
    for number, part in enumerate(batches(rows)):
        pq.write_table(part, place / "parquet" / f"part-{number:04}.parquet", row_group_size=ROWS_PER_FILE // 8)
        if table is None:
            table = ty.Table.create(place / "ours", part, durability="os")
        else:
            table.append(part)
    assert table is not None
    table.create_index("id", "BTREE")


def warmed(rounds: int, **works: Callable[[], object]) -> dict[str, list[float]]:
    """Milliseconds of each, in turn, after one run that does not count: Spark compiles a query when it first sees it."""
    for work in works.values():
        work()
    return in_turn(rounds, **works)


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cases(rows: int) -> list[Case]:
    """Name, work and the highest ratio we are content with."""
    low, wanted = rows // 3, rows // 2
    return [
        ("all columns", to_nowhere, 1.5),
        ("2% of the rows, all columns", lambda frame: to_nowhere(frame.filter(f"id >= {low} and id < {low + rows // 50}")), 0.8),
        ("one row by an indexed column", lambda frame: frame.filter(f"id = {wanted}").collect(), 0.5),
        ("average by group", lambda frame: frame.groupBy("sensor").agg({"value": "avg"}).collect(), 1.0),
        ("sum of one column", lambda frame: frame.agg({"value": "sum"}).collect(), 2.0),
        ("count(*)", lambda frame: frame.count(), 0.3),
    ]


def measure(spark: SparkSession, place: Path, rows: int, rounds: int, only: str) -> Iterator[Figure]:
    sides = {
        "ours": lambda: spark.read.format("tiltyard").load(str(place / "ours")),
        "parquet": lambda: spark.read.parquet(str(place / "parquet")),
    }
    for name, work, aim in cases(rows):
        if only not in name:
            continue

        def run(side: str, work: Callable[[DataFrame], object] = work) -> Callable[[], None]:
            frame = sides[side]()

            def once() -> None:
                work(frame)

            return once

        taken = warmed(rounds, ours=run("ours"), parquet=run("parquet"))
        yield Figure(name, statistics.median(taken["ours"]), statistics.median(taken["parquet"]), "ms", aim)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--no-rule", action="store_true", help="without the optimizer's rule")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    builder = SparkSession.builder.master(f"local[{options.cores}]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    figures = []
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as directory:
        make(options.rows, Path(directory))
        spark = builder.config("spark.local.dir", directory).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        print(enable(spark, rule=not options.no_rule), file=sys.stderr)
        for one in measure(spark, Path(directory), options.rows, options.rounds, options.only):
            figures.append(one)
            if not options.json:
                verdict = "met" if one.met else "MISSED"
                line = (
                    f"{one.name:<32} {one.ours:9.1f} {one.unit} {one.against:9.1f} {one.unit} {one.ratio:7.2f} {one.target:6.2f}  {verdict}"
                )
                print(line, flush=True)
        spark.stop()
    if options.json:
        print(json.dumps([{**asdict(one), "ratio": one.ratio, "met": one.met} for one in figures], indent=2))
    if options.check and not all(one.met for one in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
