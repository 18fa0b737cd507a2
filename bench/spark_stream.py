"""Micro-batches into a table of a lake, by the catalog, against Spark's Parquet sink; and whether they stay as fast.

    python -m bench.spark_stream                        80 micro-batches of 1,000 rows on each side, in turn, about two minutes
    python -m bench.spark_stream --epochs 500 --flat    one stream of ours alone: the last fifty against the first fifty
                                                        --json for figures, --check to fail when an aim is missed

The time of a micro-batch is what Spark reports of its trigger: planning, offsets, rows, commit. Neither side flushes to disk: Parquet never
does.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import tiltyard as ty
from bench.circumstances import circumstances, in_words
from bench.commit import Figure
from bench.spark_session import arguments, session, show
from tiltyard.spark import enable

AIM: Final = 1.15
FLAT_AIM: Final = 1.25
"""How much longer the last fifty of five hundred may take than the first fifty, after some to get warm."""
WARM: Final = 10
TURNS: Final = 4
EDGE: Final = 50


def run(spark: SparkSession, place: Path, side: str, turn: int, rows: int, epochs: int) -> list[Mapping[str, int]]:
    """One stream of so many micro-batches; what each took, part by part, in milliseconds."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=2).load()
    writer = source.writeStream.option("checkpointLocation", str(place / f"{side}-checkpoint-{turn}"))
    if side == "ours":
        query = writer.toTable(f"lake.stream_{turn}")
    else:
        query = writer.format("parquet").option("path", str(place / f"parquet-{turn}")).start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < epochs and query.isActive:
            time.sleep(0.05)
        if (failure := query.exception()) is not None:
            raise failure
    finally:
        query.stop()
    found: list[Mapping[str, int]] = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
    return found[:epochs]


def parts_of(taken: list[Mapping[str, int]]) -> str:
    names = sorted({name for batch in taken for name in batch} - {"triggerExecution"})
    return ", ".join(f"{name} {statistics.median(batch.get(name, 0) for batch in taken):.0f}" for name in names)


def beside(spark: SparkSession, place: Path, rows: int, epochs: int) -> Iterator[Figure]:
    """Both sinks in turn, so that both have the same machine."""
    taken: dict[str, list[Mapping[str, int]]] = {"ours": [], "parquet": []}
    for turn in range(TURNS):
        for side, found in taken.items():
            found += run(spark, place, side, turn, rows, epochs // TURNS + WARM)[WARM:]
    for side, found in taken.items():
        print(f"{side}: {parts_of(found)}", file=sys.stderr)
    whole = {side: statistics.median(batch["triggerExecution"] for batch in found) for side, found in taken.items()}
    yield Figure(f"micro-batch of {rows} rows", whole["ours"], whole["parquet"], "ms", AIM)


def flat(spark: SparkSession, place: Path, rows: int, epochs: int) -> Iterator[Figure]:
    taken = [batch["triggerExecution"] for batch in run(spark, place, "ours", 0, rows, epochs + WARM)[WARM:]]
    first, last = (statistics.median(some) for some in (taken[:EDGE], taken[-EDGE:]))
    yield Figure(f"last {EDGE} of {len(taken)} micro-batches", last, first, "ms", FLAT_AIM)


def main() -> None:
    parser = arguments(__doc__, 1000, 1, "of a micro-batch")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--flat", action="store_true", help="one stream of ours: do micro-batches stay as fast?")
    options = parser.parse_args()
    before: Any = circumstances()
    with session(options.cores) as (spark, place):
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(options.epochs + 2 * WARM))
        enable(spark, lake=ty.Lake.open(place / "lake", durability="os"))
        show((flat if options.flat else beside)(spark, place, options.rows, options.epochs), options)
    print(in_words(before), file=sys.stderr)


if __name__ == "__main__":
    main()
