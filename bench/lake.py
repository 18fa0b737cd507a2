"""What the catalog of a lake costs: a transaction over two tables against one over a single table, and writers that share nothing but it.

    make bench-lake                             SQLite and PostgreSQL, about two minutes
    make bench-lake ARGS="--catalog sqlite --commits 50"   less; --json for figures, --check to fail when a target is missed
    make bench-lake ARGS="hot"                  many writers that meet at one table; see lake_hot
    make bench-lake ARGS="growth"               a small lake against a large one; see lake_growth

Writers are processes, started together. In one arrangement their tables are in one lake, in the other each has a lake of its own; the two
take turns, so that a noisy machine hits both alike.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard as ty
from bench import lake_growth, lake_hot
from bench.commit import Figure, in_turn
from bench.lake_sites import Catalogs, postgres

WRITERS = 8
TWO_TABLES, SHARED = 2.5, 1.25
"""Highest ratios we are content with; losing a fifth of the throughput is taking a quarter longer."""


def rows() -> pa.Table:
    return pa.table({"id": pa.array(range(100), pa.int64()), "text": ["row"] * 100})


def transactions(catalogs: Catalogs, count: int) -> Figure:
    """One transaction that appends to two tables, against one that appends to one."""
    address, root = catalogs.make()
    lake = ty.Lake.open(address, root=root)
    for name in ("a", "b"):
        lake.create_table(name, rows())

    def append(*names: str) -> Callable[[], None]:
        def work() -> None:
            with lake.transaction() as tx:
                for name in names:
                    tx.table(name).append(rows())

        return work

    taken = in_turn(count, two=append("a", "b"), one=append("a"))
    lake.close()
    return Figure(
        f"{catalogs.kind}: two tables against one", statistics.median(taken["two"]), statistics.median(taken["one"]), "ms", TWO_TABLES
    )


def _write(address: str, root: str, table: str, commits: int, ready: Any, go: Any, done: Any) -> None:
    with ty.Lake.open(address, root=root) as lake:
        handle = lake.table(table)
        handle.append(rows())  # everything is loaded and connected
        ready.release()
        go.wait()
        for _ in range(commits):
            handle.append(rows())
    done.release()


def seconds_of(places: list[tuple[str, str]], commits: int) -> float:
    """How long writers take that start together, one for each table."""
    context = multiprocessing.get_context("spawn")
    ready, done, go = context.Semaphore(0), context.Semaphore(0), context.Event()
    workers = [context.Process(target=_write, args=(*place, f"t{number}", commits, ready, go, done)) for number, place in enumerate(places)]
    for one in workers:
        one.start()
    for _ in workers:
        ready.acquire()
    begun = time.perf_counter()
    go.set()
    for _ in workers:
        done.acquire()
    taken = time.perf_counter() - begun
    for one in workers:
        one.join()
    return taken


def prepared(places: list[tuple[str, str]]) -> list[tuple[str, str]]:
    for number, (address, root) in enumerate(places):
        with ty.Lake.open(address, root=root) as lake:
            lake.create_table(f"t{number}", rows())
    return places


def writers(catalogs: Catalogs, commits: int, rounds: int) -> Figure:
    """Writers on tables of one lake against writers on lakes of their own."""
    shared, apart = [], []
    for _ in range(rounds):
        shared.append(seconds_of(prepared([catalogs.make()] * WRITERS), commits))
        apart.append(seconds_of(prepared([catalogs.make() for _ in range(WRITERS)]), commits))
    name = f"{catalogs.kind}: {WRITERS} writers, one lake against one each"
    return Figure(name, statistics.median(shared), statistics.median(apart), "s", SHARED)


def main() -> None:
    others = {"hot": lake_hot.main, "growth": lake_growth.main}
    if len(sys.argv) > 1 and sys.argv[1] in others:
        sys.exit(others[sys.argv[1]](sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--catalog", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--commits", type=int, default=60, help="by each writer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-bench-")))
        for kind in ["sqlite", "postgresql"] if options.catalog == "both" else [options.catalog]:
            server = stack.enter_context(postgres()) if kind == "postgresql" else None
            catalogs = Catalogs(kind, directory, server)
            figures.append(transactions(catalogs, options.commits))
            figures.append(writers(catalogs, options.commits, options.rounds))
    for one in figures:
        verdict = "met" if one.met else "MISSED"
        if not options.json:
            print(f"{one.name:<52} {one.ours:9.2f} {one.unit} {one.against:9.2f} {one.unit} {one.ratio:7.2f} {one.target:7.2f}  {verdict}")
    if options.json:
        print(json.dumps([{**asdict(one), "ratio": one.ratio, "met": one.met} for one in figures], indent=2))
    if options.check and not all(one.met for one in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
