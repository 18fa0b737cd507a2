"""Many writers of small appends on one table: how much they get done together, how evenly, and whether any of them fails.

    make bench-writers                                      1, 2, 4, 8 and 16 writers, ours and pylance's in turn, about five minutes
    make bench-writers ARGS="--writers 8 --seconds 3"       less of it; --durability fsync, --beside 1, --json
    make bench-writers ARGS="--writers 1 --batching 256"    one batching writer, of whose appends so many wait for their receipts

Every writer is a process in a closed loop. Each acknowledged row is counted afterwards. ``--beside`` lets so many of pylance's writers
work beside ours. Nothing is compacted, so a minute of it takes up to 40 GB: each version names all fragments. With ``--batching`` a writer
goes on before its last append is acknowledged, and what is measured is the time from an append to its receipt.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa

import tiltyard as ty
from bench.limits import flushed_files, work_of_two
from bench.scratch import scratch

Kind = Literal["ours", "batching", "pylance"]
_LONG = 20.0
"""Seconds after which a table is so large that it cannot stay."""


@dataclass(frozen=True)
class How:
    """What all writers of a run have in common; ``batching`` is how many appends of a batching writer wait for their receipts."""

    durability: Literal["fsync", "os"]
    seconds: float
    batching: int = 0


@dataclass(frozen=True)
class Told:
    """What one writer did.

    Attributes:
        seconds: of each append that was acknowledged in time.
        late: how many were acknowledged after the end.
        failed: how many were not; ``error`` is the last reason.
        worked: how long it computed.
    """

    kind: Kind
    seconds: list[float]
    late: int
    failed: int
    worked: float
    error: str


@dataclass(frozen=True)
class Figure:
    """One run.

    Attributes:
        fairness: what the slowest got done by what the fastest did.
        processor_ms: how long processors worked for an append, in its writer or in whoever committed it.
        share: what pylance's got of an even share.
    """

    writers: int
    kind: str
    durability: str
    per_second: float
    fairness: float
    p50_ms: float
    p99_ms: float
    failed: int
    versions: int
    processor_ms: float
    share: float | None = None
    error: str = ""


def _rows(writer: int) -> pa.Table:
    return pa.table({"writer": pa.array([writer], pa.int64()), "n": pa.array([0], pa.int64())})


def _write(how: How, kind: Kind, writer: int, path: str, start: Barrier, told: Queue[Told]) -> None:
    table = None if kind == "pylance" else ty.Table.open(path, storage=ty.Storage(durability=how.durability))
    rows = _rows(writer)
    start.wait()
    worked = time.process_time()
    late = 0
    if table is None:
        taken, reasons = _looped(lambda: lance.write_dataset(rows, path, mode="append"), how.seconds)
    elif kind == "batching":
        taken, late, reasons = _batched(table, rows, how)
    else:
        taken, reasons = _looped(lambda: table.append(rows), how.seconds)
    told.put(Told(kind, taken, late, len(reasons), time.process_time() - worked, reasons[-1] if reasons else ""))


def _looped(append: Callable[[], object], seconds: float) -> tuple[list[float], list[str]]:
    """Appends one after the other: how long each took, and why those failed that did."""
    taken: list[float] = []
    reasons: list[str] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        try:
            append()
            taken.append(time.perf_counter() - begun)
        except (ty.TiltyardError, OSError) as error:
            reasons.append(str(error))
    return taken, reasons


def _batched(table: ty.Table, rows: pa.Table, how: How) -> tuple[list[float], int, list[str]]:
    """The same through a batching writer: how long each waited for its receipt, how many came after the end, and why some failed."""
    free, waited, reasons = threading.Semaphore(how.batching), list[tuple[float, float]](), list[str]()
    end = time.perf_counter() + how.seconds

    def acknowledged(begun: float, receipt: Future[ty.CommitResult]) -> None:
        if (error := receipt.exception()) is None:
            waited.append((begun, time.perf_counter()))
        else:
            reasons.append(str(error))
        free.release()

    with table.writer(max_delay=0) as writer:
        while time.perf_counter() < end:
            free.acquire()
            writer.append(rows).add_done_callback(partial(acknowledged, time.perf_counter()))
    taken = [told - begun for begun, told in waited if told <= end]
    return taken, len(waited) - len(taken), reasons


def measure(kinds: list[Kind], how: How, root: Path) -> Figure:
    """One run of writers of these kinds on a new table below ``root``, which stays there: to delete it would slow the next one down.

    That of a long run goes, since it fills the disk.

    Raises:
        AssertionError: a row that was acknowledged is missing, or came twice.
    """
    path = tempfile.mkdtemp(prefix="t", dir=root)
    ty.Table.create(path, _rows(-1), storage=ty.Storage(durability=how.durability))
    told = _run(kinds, path, how)
    table = ty.Table.open(path)
    done = sum(len(writer.seconds) + writer.late for writer in told)
    rows = table.count_rows() - 1
    # pylance may fail after it committed; ours never does.
    assert done <= rows <= done + sum(writer.failed for writer in told if writer.kind == "pylance"), f"{rows} rows, {done} acknowledged"
    if how.seconds > _LONG:
        shutil.rmtree(path)
    return _figure(told, how, table.version)


def _run(kinds: list[Kind], path: str, how: How) -> list[Told]:
    context = multiprocessing.get_context("spawn")
    start, queue = context.Barrier(len(kinds)), context.Queue()
    processes = [context.Process(target=_write, args=(how, kind, number, path, start, queue)) for number, kind in enumerate(kinds)]
    for process in processes:
        process.start()
    told: list[Told] = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return told


def _figure(told: list[Told], how: How, version: int) -> Figure:
    ours = [writer for writer in told if writer.kind != "pylance"]
    pylance = [writer for writer in told if writer.kind == "pylance"]
    taken = sorted(second for writer in told for second in writer.seconds)
    counts = [len(writer.seconds) for writer in (ours or told)]
    share = sum(len(writer.seconds) for writer in pylance) / len(taken) * len(told) / len(pylance) if ours and pylance and taken else None
    return Figure(
        writers=len(told),
        kind="both" if ours and pylance else told[0].kind,
        durability=how.durability if ours else "os",
        per_second=len(taken) / how.seconds,
        fairness=min(counts) / max(*counts, 1),
        p50_ms=1000 * taken[len(taken) // 2] if taken else 0.0,
        p99_ms=1000 * taken[len(taken) * 99 // 100] if taken else 0.0,
        failed=sum(writer.failed for writer in told),
        versions=version - 1,
        processor_ms=1000 * sum(writer.worked for writer in told) / max(sum(len(writer.seconds) + writer.late for writer in told), 1),
        share=share,
        error=next((writer.error for writer in told if writer.error), ""),
    )


def _line(figure: Figure) -> str:
    share = f", pylance got {figure.share:.2f} of an even share" if figure.share is not None else ""
    return (
        f"{figure.writers:3d} {figure.kind:8s} {figure.durability:6s} {figure.per_second:7.0f}/s  least/most {figure.fairness:4.2f}  "
        f"p50 {figure.p50_ms:7.2f} ms  p99 {figure.p99_ms:8.2f} ms  failed {figure.failed}  versions {figure.versions}  "
        f"processors {figure.processor_ms:.2f} ms each{share}" + (f"\n    {figure.error}" if figure.error else "")
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--durability", choices=["os", "fsync"], default="os")
    parser.add_argument("--beside", type=int, default=0, help="so many of pylance's writers beside ours, instead of a run of their own")
    parser.add_argument("--batching", type=int, default=0, help="our writers are batching ones; so many of their appends may wait")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    figures: list[Figure] = []
    how = How(given.durability, given.seconds, given.batching)
    with scratch("writers") as root:
        if not given.json:
            print(f"machine: two busy processes do {work_of_two():.2f} times the work of one; create + fsync {flushed_files(root):.0f}/s")
        for _ in range(given.rounds):
            for writers in given.writers:
                ours: list[Kind] = ["batching" if given.batching else "ours"] * writers
                pylance: list[Kind] = ["pylance"] * (given.beside or writers)
                for kinds in [[*ours, *pylance]] if given.beside else [ours] if given.ours_only else [ours, pylance]:
                    figures.append(measure(kinds, how, root))
                    if not given.json:
                        print(_line(figures[-1]), flush=True)
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    return 0 if all(not figure.failed for figure in figures if figure.kind != "pylance") else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
