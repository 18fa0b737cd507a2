"""What the Spark benchmarks share: options, a session, and how figures are shown."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.commit import Figure, in_turn
from bench.scratch import scratch

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def arguments(page: str | None, rows: int, rounds: int, about_rows: str = "of the table") -> argparse.ArgumentParser:
    """The options that all of them take."""
    parser = argparse.ArgumentParser(description=(page or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=rows, help=about_rows)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser


@contextmanager
def session(cores: int) -> Iterator[tuple[SparkSession, Path]]:
    """A session, and a directory that goes with it."""
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    with scratch("bench") as directory:
        spark = builder.config("spark.local.dir", str(directory)).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        yield spark, directory
        spark.stop()


def warmed(rounds: int, **works: Callable[[], object]) -> dict[str, list[float]]:
    """Milliseconds of each, in turn, after one run that does not count: Spark compiles a query when it first sees it."""
    for work in works.values():
        work()
    return in_turn(rounds, **works)


def show(figures: Iterable[Figure], options: argparse.Namespace) -> None:
    """Prints each as it comes, or all as JSON; with ``--check`` a missed aim is exit code 1."""
    shown = []
    for one in figures:
        shown.append(one)
        if not options.json:
            verdict = "no aim" if one.met is None else "met" if one.met else "MISSED"
            aim = "" if one.target is None else f"{one.target:.2f}"
            print(f"{one.name:<34} {one.ours:9.1f} ms {one.against:9.1f} ms {one.ratio:7.2f} {aim:>6}  {verdict}", flush=True)
    if options.json:
        print(json.dumps([{**asdict(one), "ratio": one.ratio, "met": one.met} for one in shown], indent=2))
    if options.check and any(one.met is False for one in shown):
        sys.exit(1)
