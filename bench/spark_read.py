"""Reading through Spark against Spark's own Parquet, on the same rows, in turn in one session.

    python -m bench.spark_read                      a million rows, about a minute
    python -m bench.spark_read --rows 12000000      what the aims are meant for; --json for figures, --check to fail on a miss

Each case is run ``--rounds`` times on both sides in turn, after one run that does not count; ratios are of medians. Results are not
collected but for a few rows: whole scans go to Spark's ``noop`` sink.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from bench.commit import Figure
from bench.spark_session import arguments, session, show, warmed
from tiltyard.spark import enable

SEED = 7
ROWS_PER_FILE = 1 << 20
Case = tuple[str, Callable[[DataFrame], object], float]


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
    parser = arguments(__doc__, 1_000_000, 5)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--no-rule", action="store_true", help="without the optimizer's rule")
    options = parser.parse_args()
    with session(options.cores) as (spark, place):
        make(options.rows, place)
        print(enable(spark, rule=not options.no_rule), file=sys.stderr)
        show(measure(spark, place, options.rows, options.rounds, options.only), options)


if __name__ == "__main__":
    main()
