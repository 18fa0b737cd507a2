"""Appends to a table on an S3-like store: how long one takes, how many requests, and what many writers get done together.

    make bench-object-store                                          about four minutes: 0 and 50 ms, 1, 8 and 32 writers
    make bench-object-store ARGS="--delays 50 --seconds 5 --json"    less of it

SeaweedFS is behind a proxy that delays each request and counts it. Ours and pylance's take turns. A writer is a thread in a closed loop,
with a handle of its own; ``8x4`` is 8 processes of 4. Each acknowledged row is counted afterwards.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Literal

import lance
import pyarrow as pa

import tiltyard as ty
from bench.delaying_proxy import DelayingProxy, delaying_proxy
from bench.scratch import scratch
from tests.support.servers import S3Server, seaweedfs

Kind = Literal["ours", "pylance"]
KINDS: tuple[Kind, ...] = ("ours", "pylance")
BUCKET = "bench"
_numbers = count(1)


@dataclass(frozen=True)
class Told:
    """What the writers of one process did: seconds of each acknowledged append, by writer, and how many appends failed."""

    seconds: list[list[float]]
    failed: int


@dataclass(frozen=True)
class Figure:
    """One run. ``requests`` are those of an append on average; ``fairness`` is what the slowest writer got done by what the fastest did."""

    kind: Kind
    delay_ms: float
    writers: str
    per_second: float
    p50_ms: float
    p99_ms: float
    fairness: float
    failed: int
    versions: int
    requests: Mapping[str, float]


def _rows(writer: int) -> pa.Table:
    return pa.table({"writer": pa.array([writer], pa.int64()), "n": pa.array([0], pa.int64())})


def _appender(kind: Kind, uri: str, options: dict[str, str]) -> Callable[[pa.Table], object]:
    """Appends by a handle that stays open."""
    if kind == "ours":
        return ty.Table.open(uri, storage_options=options).append
    dataset = lance.dataset(uri, storage_options=options)

    def append(rows: pa.Table) -> None:
        nonlocal dataset
        dataset = lance.write_dataset(rows, dataset, mode="append", storage_options=options)

    return append


def _write(
    kind: Kind, uri: str, options: dict[str, str], first: int, threads: int, seconds: float, start: Barrier, told: Queue[Told]
) -> None:
    taken: list[list[float]] = [[] for _ in range(threads)]
    failed = [0] * threads
    appenders = [_appender(kind, uri, options) for _ in range(threads)]
    start.wait()
    end = time.perf_counter() + seconds

    def loop(number: int) -> None:
        rows = _rows(first + number)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            try:
                appenders[number](rows)
                taken[number].append(time.perf_counter() - begun)
            except (ty.TiltyardError, OSError):
                failed[number] += 1

    workers = [threading.Thread(target=loop, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    told.put(Told(taken, sum(failed)))


@dataclass(frozen=True)
class Site:
    """Where the tables are."""

    server: S3Server
    proxy: DelayingProxy

    @property
    def options(self) -> dict[str, str]:
        return {**self.server.storage_options, "aws_endpoint": self.proxy.endpoint}

    def new_table(self) -> str:
        uri = f"s3://{BUCKET}/table-{next(_numbers)}"
        ty.Table.create(uri, _rows(-1), storage_options=self.server.storage_options)
        return uri


def measure_alone(site: Site, delay: float, appends: int) -> list[Figure]:
    """Appends of one writer, ours and pylance's one after the other in turn, each to a table of its own."""
    tables = {kind: site.new_table() for kind in KINDS}
    site.proxy.delay = 0.0
    append = {kind: _appender(kind, tables[kind], site.options) for kind in KINDS}
    for kind in KINDS:
        append[kind](_rows(0))
    site.proxy.delay = delay
    taken: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    seen: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
    for _ in range(appends):
        for kind in KINDS:
            site.proxy.seen.clear()
            begun = time.perf_counter()
            append[kind](_rows(0))
            taken[kind].append(time.perf_counter() - begun)
            seen[kind] += site.proxy.kinds()
    return [_figure(kind, delay, "1", [taken[kind]], sum(taken[kind]), 0, appends, seen[kind]) for kind in KINDS]


def measure_writers(site: Site, kind: Kind, delay: float, processes: int, threads: int, seconds: float) -> Figure:
    """One run of many writers on a new table.

    Raises:
        AssertionError: a row that was acknowledged is missing, or came twice.
    """
    uri = site.new_table()
    context = multiprocessing.get_context("spawn")
    start, queue = context.Barrier(processes + 1), context.Queue()
    given = (kind, uri, site.options)
    workers = [context.Process(target=_write, args=(*given, n * threads, threads, seconds, start, queue)) for n in range(processes)]
    for worker in workers:
        worker.start()
    start.wait()
    site.proxy.delay = delay
    site.proxy.seen.clear()
    told: list[Told] = [queue.get() for _ in workers]
    site.proxy.delay = 0.0
    seen = site.proxy.kinds()
    for worker in workers:
        worker.join()
    table = ty.Table.open(uri, storage_options=site.server.storage_options)
    taken = [writer for process in told for writer in process.seconds]
    done, failed, rows = sum(map(len, taken)), sum(process.failed for process in told), table.count_rows() - 1
    # pylance may fail after it committed; ours never does.
    assert done <= rows <= done + (failed if kind == "pylance" else 0), f"{rows} rows, {done} acknowledged"
    return _figure(kind, delay, f"{processes}x{threads}", taken, seconds, failed, table.version - 1, seen)


def _figure(
    kind: Kind, delay: float, writers: str, taken: list[list[float]], seconds: float, failed: int, versions: int, seen: Counter[str]
) -> Figure:
    every = sorted(second for writer in taken for second in writer)
    counts = list(map(len, taken))
    return Figure(
        kind=kind,
        delay_ms=1000 * delay,
        writers=writers,
        per_second=len(every) / seconds,
        p50_ms=1000 * every[len(every) // 2] if every else 0.0,
        p99_ms=1000 * every[len(every) * 99 // 100] if every else 0.0,
        fairness=min(counts) / max(*counts, 1),
        failed=failed,
        versions=versions,
        requests={name: round(number / max(len(every), 1), 2) for name, number in sorted(seen.items())},
    )


def _line(figure: Figure) -> str:
    requests = " ".join(f"{name} {number:.2f}" for name, number in figure.requests.items())
    return (
        f"{figure.delay_ms:4.0f} ms  {figure.writers:>5s} {figure.kind:8s} {figure.per_second:6.1f}/s  p50 {figure.p50_ms:6.0f} ms  "
        f"p99 {figure.p99_ms:6.0f} ms  least/most {figure.fairness:4.2f}  failed {figure.failed}  versions {figure.versions}  {requests}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 50.0], help="milliseconds for each request")
    parser.add_argument("--writers", nargs="+", default=["1", "8x1", "4x8"], help="processes x threads; 1 for one that is alone")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--appends", type=int, default=40, help="of one that is alone")
    parser.add_argument("--ours-only", action="store_true", help="of writers that are not alone")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    figures: list[Figure] = []
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("object-store"))
        server = stack.enter_context(seaweedfs(directory))
        server.create_bucket(BUCKET)
        site = Site(server, stack.enter_context(delaying_proxy(server.endpoint)))
        for delay in (milliseconds / 1000 for milliseconds in asked.delays):
            for writers in asked.writers:
                if writers == "1":
                    made = measure_alone(site, delay, asked.appends)
                else:
                    processes, threads = (int(part) for part in writers.split("x"))
                    made = [
                        measure_writers(site, kind, delay, processes, threads, asked.seconds)
                        for kind in KINDS[: 1 if asked.ours_only else 2]
                    ]
                figures += made
                if not asked.json:
                    for figure in made:
                        print(_line(figure), flush=True)
    if asked.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
