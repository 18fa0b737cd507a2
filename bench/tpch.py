"""The 22 questions of TPC-H: Spark over the tables of a lake, by the catalog, against Spark over the same rows in Parquet.

    make bench-tpch                                     scale factor 0.5, all of them, about ten minutes
    make bench-tpch ARGS="--scale 0.1 --only 1 17 18"   smaller, and some; --json for figures, --check to fail when an aim is missed
    make bench-tpch ARGS="--keep /tmp/tpch --plans"     data is made once; and what Spark planned on either side

Both sides run in turn in one session, ``--rounds`` times after one run that does not count; ratios are of medians, results of all runs are
compared value by value. ``--no-columns`` hands rows over one by one, as before there were columnar batches.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import tiltyard as ty
from bench.circumstances import circumstances, in_words
from bench.spark_session import session
from bench.tpch_data import tables
from bench.tpch_queries import QUERIES
from tiltyard.spark import enable
from tiltyard.spark.read.optimizer_rule import install, remove

ROWS_PER_FILE: Final = 1 << 20
MEAN_AIM: Final = 1.1
WORST_AIM: Final = 1.6
SIDES: Final = {"ours": "lake.", "parquet": "parquet_"}


@dataclass(frozen=True)
class Answer:
    """One query on one side: what it took, and what Spark planned."""

    milliseconds: tuple[float, ...]
    planning: float
    plan: dict[str, int]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def make(scale: float, seed: int, place: Path) -> None:
    """The same rows in files of the same length on both sides; nothing where they are already."""
    if (place / "made").exists():
        if (place / "made").read_text() != f"{scale} {seed}":
            raise SystemExit(f"{place} holds other data: {(place / 'made').read_text()}")
        return
    place.mkdir(parents=True, exist_ok=True)
    lake = ty.Lake.open(place / "lake", durability="os")
    for name, rows in tables(scale, seed).items():
        (place / "parquet" / name).mkdir(parents=True)
        table: Any = None
        for number, start in enumerate(range(0, rows.num_rows, ROWS_PER_FILE)):
            part = rows.slice(start, ROWS_PER_FILE)
            # As Spark's own writer does: decimals of up to 18 digits are whole numbers.
            path = place / "parquet" / name / f"part-{number:04}.parquet"
            pq.write_table(part, path, row_group_size=ROWS_PER_FILE // 8, store_decimal_as_integer=True)
            if table is None:
                table = lake.create_table(name, part)
            else:
                table.append(part)
    (place / "made").write_text(f"{scale} {seed}")


def planned(frame: Any) -> dict[str, int]:
    """What the plan that was executed has of what decides about time."""
    text = str(frame._jdf.queryExecution().executedPlan().toString())
    final = text.split("== Initial Plan ==")[0]
    counted = {
        "broadcast joins": r"BroadcastHashJoin",
        "sort-merge joins": r"SortMergeJoin",
        "exchanges": r"(?<!Reused)(?:Broadcast)?Exchange (?:hashpartitioning|rangepartitioning|SinglePartition|HashedRelation)",
        "reused": r"ReusedExchange",
        "scans": r"BatchScan|FileScan",
        "columnar": r"ColumnarToRow",
    }
    return {name: len(re.findall(pattern, final)) for name, pattern in counted.items()}


def planning_of(frame: Any) -> float:
    """Milliseconds that Spark analyzed, optimized and planned for."""
    phases = frame._jdf.queryExecution().tracker().phases()
    names, total = phases.keysIterator(), 0.0
    while names.hasNext():
        name = names.next()
        if name != "parsing":
            total += float(phases.apply(name).durationMs())
    return total


def run_once(spark: SparkSession, text: str) -> tuple[float, Any, list[Any]]:
    begun = time.perf_counter()
    frame = spark.sql(text)
    rows = frame.collect()
    return (time.perf_counter() - begun) * 1000, frame, rows


def asked(spark: SparkSession, name: str, text: str, rounds: int) -> dict[str, Answer]:
    """One query on both sides in turn; the results of every run must be the same."""
    taken: dict[str, list[float]] = {side: [] for side in SIDES}
    planning: dict[str, list[float]] = {side: [] for side in SIDES}
    plans: dict[str, dict[str, int]] = {}
    first: list[Any] | None = None
    for turn in range(rounds + 1):
        for side, before in SIDES.items():
            took, frame, rows = run_once(spark, text.replace("@", before))
            if first is None:
                first = rows
            if rows != first:
                raise SystemExit(f"{name}: {side} differs: {len(rows)} rows, {rows[:2]} where {len(first)}, {first[:2]} were expected")
            if turn:
                taken[side].append(took)
                planning[side].append(planning_of(frame))
            plans[side] = planned(frame)
    return {side: Answer(tuple(taken[side]), statistics.median(planning[side]), plans[side]) for side in SIDES}


def shown(number: int, found: dict[str, Answer], plans: bool) -> None:
    ours, parquet = found["ours"], found["parquet"]
    head = f"Q{number:<3} {ours.median:8.0f} ms {parquet.median:8.0f} ms {ours.median / parquet.median:6.2f}"
    print(f"{head}   planning {ours.planning:4.0f} {parquet.planning:4.0f} ms", flush=True)
    if plans:
        for side, answer in found.items():
            print(f"       {side:<8} " + ", ".join(f"{name} {count}" for name, count in answer.plan.items() if count), flush=True)


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", default=list(QUERIES), help="numbers of queries")
    parser.add_argument("--keep", type=Path, help="where data is, or is made and kept")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--no-columns", action="store_true")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    before = circumstances()
    with session(options.cores) as (spark, directory):
        place = options.keep or directory / "tpch"
        make(options.scale, options.seed, place)
        print(enable(spark, lake=str(place / "lake")), file=sys.stderr)
        if options.no_columns:
            remove(spark)
            install(spark, columnar=False)
        for folder in sorted((place / "parquet").iterdir()):
            spark.read.parquet(str(folder)).createOrReplaceTempView(f"parquet_{folder.name}")
        found = {}
        for number in options.only:
            found[number] = asked(spark, f"query {number}", QUERIES[number], options.rounds)
            shown(number, found[number], options.plans)
    ratios = [answers["ours"].median / answers["parquet"].median for answers in found.values()]
    print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.2f}, scale factor {options.scale}. {in_words(before)}")
    if options.json:
        told = {number: {side: asdict(answer) for side, answer in answers.items()} for number, answers in found.items()}
        options.json.write_text(json.dumps({"circumstances": before, "scale": options.scale, "queries": told}, indent=1))
    if options.check and (geometric_mean(ratios) > MEAN_AIM or max(ratios) > WORST_AIM):
        sys.exit(1)


if __name__ == "__main__":
    main()
