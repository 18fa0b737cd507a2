"""Tiltyard beside its peers: pylance, delta-rs, pyiceberg and DuckLake, each in an environment of its own.

    make bench                                       all of it, about two hours on quiet cores; writes the page and its plots
    make bench ARGS="--quick"                        every case in small, some minutes, figures on the screen alone
    make bench ARGS="--only tiltyard delta --cases serial --commits 100"   less of it; --seconds, --json

Peers are installed on first use below .bench/. Nobody but the databases flushes to the disk here. Every acknowledged row is counted
afterwards. What the machine can do at most stands beside it. Peers take turns within each case, so that whatever else the machine does
hits all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.circumstances import circumstances
from bench.lake_sites import postgres
from bench.limits import timed_limits
from bench.peer_processes import PACKAGES, POSTGRES, ProcessFailedError, Sites

RESULTS: Final = Path(__file__).resolve().parent / "results" / "peers.json"
ALL: Final = ("tiltyard", "pylance", "delta", "iceberg", "iceberg-postgres", "ducklake", "ducklake-postgres")
PAIRED: Final = ("tiltyard", "tiltyard-postgres", "ducklake", "ducklake-postgres")
"""Those that have transactions over two tables; pylance, delta-rs and pyiceberg have none."""
HUNDRED: Final = 100
CASES: Final = ("limits", "serial", "shared", "own", "wide", "upsert", "deletes", "pairs")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    Attributes:
        case: what was measured.
        peer: of whom.
        size: how many writers, files, rows or commits it was about.
        per_second: how many in a second; None where one was timed.
        p50_ms, p99_ms: of those that were acknowledged.
        fairness: what the slowest writer got done by what the fastest did; None for one.
        done, failed: how many were acknowledged, and how many were not.
        course: medians of every hundred, one after the other.
        note: whatever else is to be said.
    """

    case: str
    peer: str
    size: int
    per_second: float | None
    p50_ms: float
    p99_ms: float
    fairness: float | None = None
    done: int = 0
    failed: int = 0
    course: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    commits: int
    writers: tuple[int, ...]
    seconds: float
    files: tuple[int, ...]
    rows: int
    pairs: int


FULL: Final = Extent(2000, (1, 2, 4, 8, 16), 10.0, (1_000, 10_000, 100_000), 1_000_000, 300)
QUICK: Final = Extent(30, (1, 4), 1.0, (100, 1_000), 10_000, 10)


def _figure(case: str, peer: str, size: int, taken: Sequence[float], elapsed: float | None, **more: Any) -> Figure:
    ordered = sorted(taken) or [0.0]
    rate = None if elapsed is None else len(taken) / elapsed
    middle, last = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return Figure(case, peer, size, rate, 1000 * middle, 1000 * last, done=len(taken), **more)


# ---- cases -------------------------------------------------------------------------------------------------------------------------


def limits(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """How fast the parts are that every commit is made of."""
    for name, taken in timed_limits(directory, server, 10 * extent.pairs):
        yield _figure("limits", name, len(taken), taken, sum(taken))


def serial(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """Small appends, one after the other, and what opening costs afterwards."""
    for peer in peers:
        place = directory / peer
        seconds = sites.run(peer, "serial", place, commits=extent.commits)["seconds"]
        few = min(HUNDRED, max(extent.commits // 2, 1))
        course = [1000 * statistics.median(seconds[first : first + few]) for first in range(0, len(seconds), few)]
        growth = f"the last {few} by the first: {course[-1] / course[0]:.2f}"
        yield _figure("serial", peer, extent.commits, seconds, sum(seconds), course=tuple(course), note=growth)
        yield _figure("open", peer, extent.commits, sites.run(peer, "open", place, times=30)["seconds"], None)


def writers(sites: Sites, peer: str, directory: Path, count: int, seconds: float, *, shared: bool) -> Figure:
    """Writers in closed loops, on one table or each on its own.

    Raises:
        AssertionError: a row that was acknowledged is missing.
    """
    case = "shared" if shared else "own"
    places = [directory / f"{peer}-{case}-{count}-{0 if shared else number}" for number in range(count)]
    different = list(dict.fromkeys(places))
    for place in different:
        sites.run(peer, "create", place)
    processes = [sites.start(peer, "loop", place, writer=number, seconds=seconds) for number, place in enumerate(places)]
    told = [process.told() for process in [process.go() for process in processes]]
    there = sum(sites.run(peer, "count", place)["rows"] for place in different) - len(different)
    return _together(case, peer, count, seconds, told, there)


def _together(case: str, peer: str, count: int, seconds: float, told: list[dict[str, Any]], changed: int) -> Figure:
    """What several writers did, compared with how many rows came or went."""
    done = [len(writer["seconds"]) for writer in told]
    failed = sum(writer["failed"] for writer in told)
    # A commit that failed may have been applied all the same, except ours.
    assert sum(done) <= changed <= sum(done) + (0 if peer == "tiltyard" else failed), f"{peer}: {changed} rows, {sum(done)} acknowledged"
    taken = [second for writer in told for second in writer["seconds"]]
    fairness = min(done) / max(*done, 1) if count > 1 else None
    error = next((writer["error"] for writer in told if writer["error"]), "")
    return _figure(case, peer, count, taken, seconds, fairness=fairness, failed=failed, note=error)


def shared_tables(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    for count in extent.writers:
        for peer in peers:
            yield writers(sites, peer, directory, count, extent.seconds, shared=True)


def own_tables(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    for count in extent.writers:
        for peer in peers:
            yield writers(sites, peer, directory, count, extent.seconds, shared=False)


def wide(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """One more file on a table of very many."""
    for files in extent.files:
        for peer in peers:
            seconds = sites.run(peer, "wide", directory / f"{peer}-{files}", files=files, times=10)["seconds"]
            yield _figure("wide", peer, files, seconds, None)


def upsert(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """A tenth of the rows, half of them new."""
    for peer in peers:
        told = sites.run(peer, "upsert", directory / peer, rows=extent.rows, changed=extent.rows // 10)
        yield _figure("upsert", peer, extent.rows, told["seconds"], None)


def deletes(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """Writers that delete different rows of one file at a time."""
    there = 100_000
    for count in extent.writers:
        for peer in peers:
            place = directory / f"{peer}-{count}"
            sites.run(peer, "create", place, rows=there)
            job = {"seconds": extent.seconds, "writers": count}
            processes = [sites.start(peer, "delete", place, writer=number, **job) for number in range(count)]
            told = [process.told() for process in [process.go() for process in processes]]
            left = sites.run(peer, "count", place)["rows"]
            yield _together("deletes", peer, count, extent.seconds, told, there - left)


def pairs(sites: Sites, peers: Sequence[str], directory: Path, extent: Extent, server: str) -> Iterator[Figure]:
    """Transactions over two tables."""
    for peer in PAIRED:
        if peer.removesuffix(POSTGRES) in {name.removesuffix(POSTGRES) for name in peers}:
            seconds = sites.run(peer, "pairs", directory / peer, commits=extent.pairs)["seconds"]
            yield _figure("pairs", peer, extent.pairs, seconds, sum(seconds))


WORKS: Final[dict[str, Callable[[Sites, Sequence[str], Path, Extent, str], Iterator[Figure]]]] = {
    "limits": limits,
    "serial": serial,
    "shared": shared_tables,
    "own": own_tables,
    "wide": wide,
    "upsert": upsert,
    "deletes": deletes,
    "pairs": pairs,
}


def figures(cases: Sequence[str], peers: Sequence[str], extent: Extent) -> Iterator[Figure]:
    """All that was asked for, as it comes; what a peer cannot do is told and left out."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        directory = Path(tempfile.mkdtemp(prefix="tiltyard-peers-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        sites = Sites(server)
        for case in cases:
            for peer in peers if case not in ("limits", "pairs", "shared", "own", "deletes", "wide") else [None]:
                place = directory / case
                place.mkdir(exist_ok=True)
                try:
                    yield from WORKS[case](sites, peers if peer is None else [peer], place, extent, server)
                except ProcessFailedError:
                    traceback.print_exc()
            shutil.rmtree(directory / case, ignore_errors=True)


def _line(figure: Figure) -> str:
    rate = f"{figure.per_second:8.0f}/s" if figure.per_second is not None else " " * 10
    fair = f"  least/most {figure.fairness:4.2f}" if figure.fairness is not None else ""
    failed = f"  failed {figure.failed}" if figure.failed else ""
    note = f"  {figure.note}" if figure.note else ""
    return (
        f"{figure.case:8s} {figure.size:9,d} {figure.peer:18s} {rate}  p50 {figure.p50_ms:8.2f} ms  p99 {figure.p99_ms:8.2f} ms"
        f"{fair}{failed}{note}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every case in small")
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--commits", type=int)
    parser.add_argument("--writers", type=int, nargs="+")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--files", type=int, nargs="+")
    parser.add_argument("--rows", type=int, help="of the table that is upserted into")
    parser.add_argument("--pairs", type=int, help="transactions over two tables")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    stated = {name: getattr(given, name) for name in asdict(FULL)}
    extent = Extent(**{**asdict(QUICK if given.quick else FULL), **{name: value for name, value in stated.items() if value is not None}})
    before, found = circumstances(), list[Figure]()
    for figure in figures(given.cases, given.only, extent):
        found.append(figure)
        if not given.json:
            print(_line(figure), flush=True)
    told = {
        "circumstances": {"before": before, "after": circumstances()},
        "extent": asdict(extent),
        "packages": PACKAGES,
        "figures": [asdict(figure) for figure in found],
    }
    if given.json:
        print(json.dumps(told, indent=1))
    elif not given.quick and given.only == list(ALL) and given.cases == list(CASES):
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
