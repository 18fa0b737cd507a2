"""Tiltyard beside its peers: pylance, delta-rs, pyiceberg and DuckLake, each in an environment of its own.

    make bench                                       all of it, about an hour on quiet cores; writes the page and its plots
    make bench ARGS="--cases shared --writers 1 8"   one part of it: its figures take the place of those that stand in the page
    make bench ARGS="--long"                         ten seconds for each count of writers instead of three, five minutes for each series
    make bench ARGS="--quick"                        every case in small, some minutes, figures on the screen alone
    make bench ARGS="--only tiltyard delta --cases serial --commits 100"   of some peers alone, figures on the screen; --seconds, --json

Peers are installed on first use below .bench/. Nobody but the databases flushes to the disk here. Every acknowledged row is counted
afterwards. What the machine can do at most stands beside it. Peers take turns within each case, so that whatever else the machine does
hits all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.circumstances import circumstances
from bench.delaying_proxy import delaying_proxy
from bench.lake_sites import postgres
from bench.limits import timed_limits
from bench.peer_processes import PACKAGES, POSTGRES, Process, ProcessFailedError, Sites
from bench.scratch import scratch, spread
from tests.support.servers import ACCESS_KEY, SECRET_KEY, seaweedfs

RESULTS: Final = Path(__file__).resolve().parent / "results" / "peers.json"
ALL: Final = ("tiltyard", "pylance", "delta", "iceberg", "iceberg-postgres", "ducklake", "ducklake-postgres")
PAIRED: Final = ("tiltyard", "tiltyard-postgres", "ducklake", "ducklake-postgres")
"""Those that have transactions over two tables; pylance, delta-rs and pyiceberg have none."""
HUNDRED: Final = 100
ROWS_OF_ONE_FILE: Final = 100_000
ON_STORES: Final = ("tiltyard", "pylance", "delta", "iceberg-postgres", "ducklake-postgres")
"""Those whose data can be in an object store while writers are on many machines: a catalog in SQLite is a file of one."""
BUCKET: Final = "bench"
FAR: Final = 0.05
"""Seconds that a request to a store far away takes more."""
CASES: Final = ("limits", "serial", "shared", "own", "wide", "upsert", "deletes", "pairs", "s3", "s3-far")


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
    """How much is measured. Appends one after the other end after ``series`` seconds: some get slower with each."""

    commits: int
    writers: tuple[int, ...]
    on_stores: tuple[int, ...]
    seconds: float
    files: tuple[int, ...]
    rows: int
    pairs: int
    series: float


FULL: Final = Extent(2000, (1, 2, 4, 8, 16), (1, 8, 32), 3.0, (1_000, 10_000, 100_000), 1_000_000, 100, 45.0)
LONG: Final = replace(FULL, seconds=10.0, pairs=300, series=300.0)
QUICK: Final = Extent(30, (1, 4), (1, 4), 1.0, (100, 1_000), 10_000, 10, 30.0)


def _figure(case: str, peer: str, size: int, taken: Sequence[float], elapsed: float | None, **more: Any) -> Figure:
    ordered = sorted(taken) or [0.0]
    rate = None if elapsed is None else len(taken) / elapsed
    middle, last = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return Figure(case, peer, size, rate, 1000 * middle, 1000 * last, done=len(taken), **more)


# ---- cases: steps that a run takes one after the other ------------------------------------------------------------------------------

Step = Callable[[], Iterable[Figure]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What the steps of a case have at hand."""

    sites: Sites
    peers: Sequence[str]
    directory: Path
    extent: Extent
    server: str

    def limits(self) -> Iterator[Step]:
        """How fast the parts are that every commit is made of."""

        def step() -> Iterator[Figure]:
            for name, taken in timed_limits(self.directory, self.server, 10 * self.extent.pairs):
                yield _figure("limits", name, len(taken), taken, sum(taken))

        yield step

    def serial(self) -> Iterator[Step]:
        """Small appends, one after the other, and what opening costs afterwards."""
        commits = self.extent.commits

        def step(peer: str) -> Iterator[Figure]:
            told = self.sites.run(peer, "serial", self.directory / peer, commits=commits, most_seconds=self.extent.series)
            seconds = told["seconds"]
            few = min(HUNDRED, max(commits // 2, 1))
            course = [1000 * statistics.median(seconds[first : first + few]) for first in range(0, len(seconds), few)]
            yield _figure("serial", peer, commits, seconds, sum(seconds), course=tuple(course))
            opened = self.sites.run(peer, "open", self.directory / peer, times=30)["seconds"]
            yield _figure("open", peer, commits, opened, None)

        return (partial(step, peer) for peer in self.peers)

    def shared(self) -> Iterator[Step]:
        return (partial(self.writers, peer, count, shared=True) for count in self.extent.writers for peer in self.peers)

    def own(self) -> Iterator[Step]:
        return (partial(self.writers, peer, count, shared=False) for count in self.extent.writers for peer in self.peers)

    def writers(self, peer: str, count: int, *, shared: bool) -> list[Figure]:
        """Writers in closed loops, on one table or each on its own.

        Raises:
            AssertionError: a row that was acknowledged is missing.
        """
        sites, seconds = self.sites, self.extent.seconds
        if shared:
            place = self.directory / f"{peer}-{count}"
            sites.run(peer, "create", place)
            told = _at_once([sites.start(peer, "loop", place, writer=number, seconds=seconds) for number in range(count)])
            return [_together("shared", peer, count, seconds, told, sites.run(peer, "count", place)["rows"] - 1)]
        places = [self.directory / f"{peer}-{count}-{number}" for number in range(count)]
        told = _at_once([sites.start(peer, "own", place, writer=number, seconds=seconds) for number, place in enumerate(places)])
        return [_together("own", peer, count, seconds, told, sum(writer["rows"] - 1 for writer in told))]

    def wide(self) -> Iterator[Step]:
        """One more file on a table of very many."""

        def step(peer: str, files: int) -> list[Figure]:
            seconds = self.sites.run(peer, "wide", self.directory / f"{peer}-{files}", files=files, times=10)["seconds"]
            return [_figure("wide", peer, files, seconds, None)]

        return (partial(step, peer, files) for files in self.extent.files for peer in self.peers)

    def upsert(self) -> Iterator[Step]:
        """A tenth of the rows, half of them new."""
        rows = self.extent.rows

        def step(peer: str) -> list[Figure]:
            seconds = self.sites.run(peer, "upsert", self.directory / peer, rows=rows, changed=rows // 10)["seconds"]
            return [_figure("upsert", peer, rows, seconds, None)]

        return (partial(step, peer) for peer in self.peers)

    def deletes(self) -> Iterator[Step]:
        """Writers that delete different rows of one file at a time."""
        sites, seconds = self.sites, self.extent.seconds

        def step(peer: str, count: int) -> list[Figure]:
            place = self.directory / f"{peer}-{count}"
            sites.run(peer, "create", place, rows=ROWS_OF_ONE_FILE)
            job = {"seconds": seconds, "writers": count}
            told = _at_once([sites.start(peer, "delete", place, writer=number, **job) for number in range(count)])
            gone = ROWS_OF_ONE_FILE - sites.run(peer, "count", place)["rows"]
            return [_together("deletes", peer, count, seconds, told, gone)]

        return (partial(step, peer, count) for count in self.extent.writers for peer in self.peers)

    def pairs(self) -> Iterator[Step]:
        """Transactions over two tables."""

        def step(peer: str) -> list[Figure]:
            seconds = self.sites.run(peer, "pairs", self.directory / peer, commits=self.extent.pairs)["seconds"]
            return [_figure("pairs", peer, self.extent.pairs, seconds, sum(seconds))]

        wanted = {peer.removesuffix(POSTGRES) for peer in self.peers}
        return (partial(step, peer) for peer in PAIRED if peer.removesuffix(POSTGRES) in wanted)

    def s3(self) -> Iterator[Step]:
        """Writers on one table in an object store on this machine."""
        return self.on_a_store("s3", 0.0)

    def s3_far(self) -> Iterator[Step]:
        """The same with a store each of whose requests takes longer."""
        return self.on_a_store("s3-far", FAR)

    def on_a_store(self, case: str, delay: float) -> Iterator[Step]:
        with seaweedfs(self.directory) as store, delaying_proxy(store.endpoint) as proxy:
            store.create_bucket(BUCKET)
            sites = Sites(self.server, {"endpoint": proxy.endpoint, "key": ACCESS_KEY, "secret": SECRET_KEY})
            seconds = 3 * self.extent.seconds  # an append there may take a second

            def step(peer: str, count: int) -> list[Figure]:
                place = f"s3://{BUCKET}/{peer}-{count}"
                sites.run(peer, "create", place)
                writers = [sites.start(peer, "loop", place, writer=number, seconds=seconds) for number in range(count)]
                ready = [writer.ready() for writer in writers]
                proxy.delay = delay
                try:
                    told = _let_go(ready)
                finally:
                    proxy.delay = 0.0
                return [_together(case, peer, count, seconds, told, sites.run(peer, "count", place)["rows"] - 1)]

            for count in self.extent.on_stores:
                yield from (partial(step, peer, count) for peer in ON_STORES if peer in self.peers)


def _at_once(processes: Sequence[Process]) -> list[dict[str, Any]]:
    return _let_go([process.ready() for process in processes])


def _let_go(ready: Sequence[Process]) -> list[dict[str, Any]]:
    return [process.told() for process in [process.go() for process in ready]]


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


def figures(cases: Sequence[str], peers: Sequence[str], extent: Extent, problems: list[str]) -> Iterator[Figure]:
    """All that was asked for, as it comes; what went wrong is added to the problems, and the rest goes on."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        directory = stack.enter_context(scratch("peers"))
        sites = Sites(server)
        for case in cases:
            place = directory / case
            place.mkdir()
            with suppress(OSError):  # what one left behind and deleted must not make the next one slower
                spread(str(place))
            steps: Iterator[Step] = getattr(Bench(sites, peers, place, extent, server), case.replace("-", "_"))()
            for step in steps:
                try:
                    yield from step()
                except (ProcessFailedError, AssertionError) as error:
                    problems.append(f"{case}: {error}")
                    print(problems[-1], file=sys.stderr, flush=True)


def _line(figure: Figure) -> str:
    rate = f"{figure.per_second:8.0f}/s" if figure.per_second is not None else " " * 10
    fair = f"  least/most {figure.fairness:4.2f}" if figure.fairness is not None else ""
    failed = f"  failed {figure.failed}" if figure.failed else ""
    note = f"  {figure.note}" if figure.note else ""
    return (
        f"{figure.case:8s} {figure.size:9,d} {figure.peer:18s} {rate}  p50 {figure.p50_ms:8.2f} ms  p99 {figure.p99_ms:8.2f} ms"
        f"{fair}{failed}{note}"
    )


def _measured(case: str, peers: Sequence[str], extent: Extent, silent: bool) -> dict[str, Any]:
    """The figures of one case, how much was measured and under what circumstances."""
    before, found, problems = circumstances(), list[Figure](), list[str]()
    for figure in figures([case], peers, extent, problems):
        found.append(figure)
        if not silent:
            print(_line(figure), flush=True)
    return {
        "before": before,
        "after": circumstances(),
        "extent": asdict(extent),
        "problems": problems,
        "figures": [asdict(figure) for figure in found],
    }


def _keep(case: str, told: dict[str, Any]) -> None:
    """Puts the figures of a case in the place of those that were there."""
    there = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    cases = {name: told if name == case else there[name] for name in CASES if name == case or name in there}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"packages": PACKAGES, "cases": cases}, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every case in small")
    parser.add_argument("--long", action="store_true", help="every case at length")
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--commits", type=int)
    parser.add_argument("--writers", type=int, nargs="+")
    parser.add_argument("--on-stores", type=int, nargs="+", help="counts of writers on object stores")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--files", type=int, nargs="+")
    parser.add_argument("--rows", type=int, help="of the table that is upserted into")
    parser.add_argument("--pairs", type=int, help="transactions over two tables")
    parser.add_argument("--series", type=float, help="seconds after which appends one after the other end")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    stated = {name: value for name in asdict(FULL) if (value := getattr(given, name)) is not None}
    extent = replace(QUICK if given.quick else LONG if given.long else FULL, **stated)
    kept = not given.quick and not given.json and given.only == list(ALL)
    told = {}
    for case in given.cases:
        told[case] = _measured(case, given.only, extent, given.json)
        if kept:
            _keep(case, told[case])
    if given.json:
        print(json.dumps({"packages": PACKAGES, "cases": told}, indent=1))
    return 1 if any("tiltyard" in problem for case in told.values() for problem in case["problems"]) else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
