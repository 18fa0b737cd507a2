"""Many writers of a lake that meet at one hot table: how much they get done together, how evenly, and whether any of them fails.

    make bench-lake ARGS="hot"                              1, 4 and 16 writers on SQLite and PostgreSQL, about two minutes
    make bench-lake ARGS="hot --writers 16 --seconds 5"     less of it; --json for figures, --check to fail when a target is missed

Every writer is a process in a closed loop of transactions, each of which appends to a table of its own and to the one that all share.
Each acknowledged row is counted afterwards, in both tables.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pyarrow as pa

import tiltyard as ty
from bench.lake_sites import Catalogs, postgres
from bench.scratch import scratch

RATE, FAIRNESS, TAIL = 0.8, 0.3, 20.0
"""With sixteen writers: the least part of one writer's rate, of the fastest's share, and the most p99 by p50 that we are content with."""
MOST = 16
"""Writers for which the targets are stated."""


@dataclass(frozen=True)
class Told:
    """What one writer did: seconds of each transaction that was acknowledged, and how many were not."""

    seconds: list[float]
    failed: int


@dataclass(frozen=True)
class HotFigure:
    """One run. ``fairness`` is what the slowest got done by what the fastest did, ``rate`` the part of one writer's rate."""

    catalog: str
    writers: int
    per_second: float
    rate: float
    fairness: float
    p50_ms: float
    p99_ms: float
    failed: int

    @property
    def met(self) -> bool | None:
        """Whether it is what we are content with; None where nothing is stated."""
        if self.writers != MOST:
            return None
        return not self.failed and self.rate >= RATE and self.fairness >= FAIRNESS and self.p99_ms <= TAIL * self.p50_ms


def _rows(writer: int) -> pa.Table:
    return pa.table({"writer": pa.array([writer], pa.int64()), "n": pa.array([0], pa.int64())})


def _write(address: str, root: str, writer: int, seconds: float, batch: bool, start: Barrier, told: Queue[Told]) -> None:
    rows, taken, failed = _rows(writer), list[float](), 0
    with ty.Lake.open(address, root=root) as lake:
        _add(lake, writer, rows, batch)  # everything is loaded and connected
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            try:
                _add(lake, writer, rows, batch)
                taken.append(time.perf_counter() - begun)
            except ty.TiltyardError:
                failed += 1
    told.put(Told(taken, failed))


def _add(lake: ty.Lake, writer: int, rows: pa.Table, batch: bool) -> None:
    with lake.transaction() as tx:
        tx.batch = batch
        tx.table(f"own{writer}").append(rows)
        tx.table("hot").append(rows)


def measure(catalogs: Catalogs, writers: int, seconds: float, alone: float | None, *, batch: bool = False) -> HotFigure:
    """One run on a new lake; ``alone`` is what one writer reaches, None where this is that one; ``batch`` lets them be committed together.

    Raises:
        AssertionError: a row that was acknowledged is missing, or came twice.
    """
    address, root = catalogs.make()
    with ty.Lake.open(address, root=root) as lake, lake.transaction() as tx:
        for name in ("hot", *(f"own{writer}" for writer in range(writers))):
            tx.create_table(name, _rows(-1))
    context = multiprocessing.get_context("spawn")
    start, queue = context.Barrier(writers), context.Queue()
    processes = [context.Process(target=_write, args=(address, root, number, seconds, batch, start, queue)) for number in range(writers)]
    for process in processes:
        process.start()
    told: list[Told] = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    taken = sorted(second for writer in told for second in writer.seconds)
    with ty.Lake.open(address, root=root) as lake:
        assert lake.table("hot").count_rows() == len(taken) + writers + 1
        assert sum(lake.table(f"own{writer}").count_rows() for writer in range(writers)) == len(taken) + 2 * writers
    counts = [len(writer.seconds) for writer in told]
    return HotFigure(
        catalogs.kind,
        writers,
        per_second := len(taken) / seconds,
        per_second / alone if alone else 1.0,
        min(counts) / max(*counts, 1),
        1000 * taken[len(taken) // 2],
        1000 * taken[len(taken) * 99 // 100],
        sum(writer.failed for writer in told),
    )


def _line(figure: HotFigure) -> str:
    verdict = {None: "", True: "  met", False: "  MISSED"}[figure.met]
    return (
        f"{figure.catalog:10s} {figure.writers:3d} writers {figure.per_second:7.1f}/s  {figure.rate:5.2f} of one  least/most "
        f"{figure.fairness:4.2f}  p50 {figure.p50_ms:8.1f} ms  p99 {figure.p99_ms:9.1f} ms  failed {figure.failed}{verdict}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--writers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--batch", action="store_true", help="let those who wait be committed together")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    figures: list[HotFigure] = []
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("lake-hot"))
        for kind in ["sqlite", "postgresql"] if given.catalog == "both" else [given.catalog]:
            server = stack.enter_context(postgres()) if kind == "postgresql" else None
            catalogs = Catalogs(kind, directory, server)
            alone: float | None = None
            for writers in (1, *(number for number in given.writers if number > 1)):
                figures.append(measure(catalogs, writers, given.seconds, alone, batch=given.batch))
                alone = alone or figures[-1].per_second
                if not given.json:
                    print(_line(figures[-1]), flush=True)
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    return 1 if given.check and any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
