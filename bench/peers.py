"""Tiltyard beside its peers: pylance, delta-rs, pyiceberg and DuckLake, each in an environment of its own.

    make bench-peers                                        installs them on first use below .bench/, then measures: about ten minutes
    make bench-peers ARGS="--only tiltyard delta --seconds 3 --commits 100"   less of it; --json

Small appends one after the other; writer processes in closed loops on one table and on their own; opening; one upsert. None but SQLite and
PostgreSQL themselves flushes to the disk here. Every acknowledged row is counted afterwards. What the machine can do at most stands
beside it: files made and renamed, files made and flushed, commits of SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

WORKER: Final = Path(__file__).with_name("peer_writer.py")
PLACE: Final = Path(__file__).resolve().parent.parent / ".bench" / "peers"
PACKAGES: Final = {
    "delta": ("deltalake==1.6.6", "pyarrow==26.0.1"),
    "iceberg": ("pyiceberg[sql-sqlite]==0.12.0", "pyarrow==26.0.1"),
    "ducklake": (
        "duckdb==1.5.5",
        "duckdb-extension-ducklake==1.5.5",
        "duckdb-extension-sqlite-scanner==1.5.5",
        "duckdb-extension-postgres-scanner==1.5.5",
        "pyarrow==26.0.1",
    ),
}
"""What a peer needs beside the standard library; the others are in our own environment."""
ALL: Final = ("tiltyard", "pylance", "delta", "iceberg", "ducklake")
HUNDRED: Final = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    Attributes:
        case: what was measured.
        peer: of whom.
        per_second: how many in a second; None where one was timed.
        p50_ms, p99_ms: of those that were acknowledged.
        fairness: what the slowest writer got done by what the fastest did; None for one.
        failed: how many were not acknowledged.
        note: whatever else is to be said.
    """

    case: str
    peer: str
    per_second: float | None
    p50_ms: float
    p99_ms: float
    fairness: float | None = None
    failed: int = 0
    note: str = ""


class Process:
    """A process in the environment of a peer, which waits until it is let go."""

    def __init__(self, peer: str, work: str, directory: Path, **job: Any) -> None:
        self._what = f"{peer}: {work}"
        self._process = subprocess.Popen(
            [_interpreter(peer), str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        self._say(json.dumps({"peer": peer, "work": work, "directory": str(directory), "address": "", **job}))
        self._line("ready")

    def go(self) -> Process:
        self._say("go")
        return self

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._line())
        self._process.communicate()
        return found

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _line(self, expected: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected and line != expected):
            raise SystemExit(f"{self._what} ended without a word, with status {self._process.wait()}")
        return line


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def _interpreter(peer: str) -> str:
    """The Python of a peer; its environment is made when it is first asked for."""
    if peer not in PACKAGES:
        return sys.executable
    directory = PLACE / peer
    wanted, made = "\n".join(PACKAGES[peer]), directory / "installed.txt"
    if not made.exists() or made.read_text() != wanted:
        print(f"installing {', '.join(PACKAGES[peer])}", file=sys.stderr, flush=True)
        venv.create(directory, clear=True, with_pip=True)
        subprocess.run([str(directory / "bin" / "python"), "-m", "pip", "install", "-qq", *PACKAGES[peer]], check=True)
        made.write_text(wanted)
    return str(directory / "bin" / "python")


def run(peer: str, work: str, directory: Path, **job: Any) -> dict[str, Any]:
    return Process(peer, work, directory, **job).go().told()


# ---- cases -------------------------------------------------------------------------------------------------------------------------


def serial(peer: str, directory: Path, commits: int) -> list[Figure]:
    """Small appends, one after the other, and what opening costs afterwards."""
    seconds = run(peer, "serial", directory / "serial", commits=commits)["seconds"]
    few = min(HUNDRED, max(commits // 2, 1))
    growth = statistics.median(seconds[-few:]) / statistics.median(seconds[:few])
    opened = run(peer, "open", directory / "serial", times=20)["seconds"]
    return [
        _figure(f"{commits} appends", peer, seconds, sum(seconds), note=f"the last {few} by the first: {growth:.2f}"),
        _figure(f"open the latest of {commits}", peer, opened, None),
    ]


def writers(peer: str, directory: Path, count: int, seconds: float, *, shared: bool) -> Figure:
    """Writers in closed loops, on one table or each on its own.

    Raises:
        AssertionError: a row that was acknowledged is missing.
    """
    places = [directory / f"{'one' if shared else 'own'}-{count}-{0 if shared else number}" for number in range(count)]
    for place in dict.fromkeys(places):
        run(peer, "create", place)
    processes = [Process(peer, "loop", place, writer=number, seconds=seconds) for number, place in enumerate(places)]
    told = [process.told() for process in [process.go() for process in processes]]
    done = [len(writer["seconds"]) for writer in told]
    failed = sum(writer["failed"] for writer in told)
    there = sum(run(peer, "count", place)["rows"] - 1 for place in dict.fromkeys(places))
    # A commit that failed may have been applied all the same, except ours.
    assert sum(done) <= there <= sum(done) + (0 if peer == "tiltyard" else failed), f"{peer}: {there} rows, {sum(done)} acknowledged"
    taken = [second for writer in told for second in writer["seconds"]]
    case = f"{count} writers, {'one table' if shared else 'tables of their own'}"
    return _figure(case, peer, taken, seconds, fairness=min(done) / max(*done, 1) if count > 1 else None, failed=failed)


def upsert(peer: str, directory: Path, there: int) -> Figure:
    """A tenth of the rows, half of them new."""
    seconds = run(peer, "upsert", directory / "upsert", rows=there, changed=there // 10)["seconds"]
    return _figure(f"upsert {there // 10:,} into {there:,}", peer, seconds, None)


def _figure(case: str, peer: str, taken: Sequence[float], elapsed: float | None, **more: Any) -> Figure:
    ordered = sorted(taken) or [0.0]
    rate = None if elapsed is None else len(taken) / elapsed
    return Figure(case, peer, rate, 1000 * ordered[len(ordered) // 2], 1000 * ordered[len(ordered) * 99 // 100], **more)


# ---- what the machine can do -----------------------------------------------------------------------------------------------------


def limits(directory: Path, times: int) -> list[Figure]:
    """How fast the parts are that every commit is made of."""
    directory.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(directory / "limit.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (n INTEGER)")

    def renamed(number: int) -> None:
        (directory / f"a{number}.tmp").write_bytes(b"x" * 400)
        (directory / f"a{number}.tmp").rename(directory / f"a{number}")

    def flushed(number: int) -> None:
        with (directory / f"b{number}").open("wb") as file:
            file.write(b"x" * 400)
            file.flush()
            os.fsync(file.fileno())

    def committed(number: int) -> None:
        connection.execute("INSERT INTO t VALUES (?)", (number,))

    works: dict[str, Callable[[int], None]] = {"create + rename": renamed, "create + fsync": flushed, "SQLite commit": committed}
    found = []
    for name, work in works.items():
        taken = []
        for number in range(times):
            begun = time.perf_counter()
            work(number)
            taken.append(time.perf_counter() - begun)
        found.append(_figure(name, "limit", taken, sum(taken)))
    connection.close()
    return found


def _line(figure: Figure) -> str:
    rate = f"{figure.per_second:8.0f}/s" if figure.per_second is not None else " " * 10
    fair = f"  least/most {figure.fairness:4.2f}" if figure.fairness is not None else ""
    failed = f"  failed {figure.failed}" if figure.failed else ""
    note = f"  {figure.note}" if figure.note else ""
    return f"{figure.case:34s} {figure.peer:9s} {rate}  p50 {figure.p50_ms:8.2f} ms  p99 {figure.p99_ms:8.2f} ms{fair}{failed}{note}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--writers", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table that is upserted into; 0 for no upsert")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    figures: list[Figure] = []
    directory = Path(tempfile.mkdtemp(prefix="tiltyard-peers-"))

    def tell(*found: Figure) -> None:
        figures.extend(found)
        if not given.json:
            print("\n".join(map(_line, found)), flush=True)

    try:
        tell(*limits(directory / "limits", 300))
        for peer in given.only:
            tell(*serial(peer, directory / peer, given.commits))
        for shared in (True, False):
            for count in given.writers:
                for peer in given.only:
                    tell(writers(peer, directory / peer, count, given.seconds, shared=shared))
        for peer in given.only if given.rows else ():
            tell(upsert(peer, directory / peer, given.rows))
    finally:
        shutil.rmtree(directory)
    if given.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
