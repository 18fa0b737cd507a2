"""Stock clients and ours on one table through one server: every row is there once, and nobody starves.

    python -m bench.served_writers                      8 lancedb and 2 lakes by the server's address, 50 commits each
    python -m bench.served_writers --rounds 3 --check   fails where rows are missing, or the fairness is below the target

Each writer is a process of its own that commits in a closed loop. The fairness is the time of the first to be done by that of the last.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard as ty
from bench.served_load import server_on

TARGET = 0.5
TABLE = "hot"


@dataclass(frozen=True, slots=True)
class Fairness:
    """What a run came to.

    Attributes:
        stock, ours: seconds that each writer took.
        missing, extra: rows that were acknowledged and are not there; rows that nobody wrote, or that are there twice.
        sound: whether ``lake.check()`` is.
        conflicts: requests that were told of a lost race.
    """

    stock: tuple[float, ...]
    ours: tuple[float, ...]
    missing: int
    extra: int
    sound: bool
    conflicts: int

    @property
    def share(self) -> float:
        """The least by the most."""
        taken = self.stock + self.ours
        return min(taken) / max(taken)

    @property
    def is_whole(self) -> bool:
        return self.sound and not self.missing and not self.extra


def run_writers(home: Path, stock: int, ours: int, commits: int) -> Fairness:
    """Lets writers of both kinds commit so many times each to one table of a lake."""
    with ty.Lake.open(home) as lake:
        lake.create_table(TABLE, pa.table({"id": pa.array([], pa.int64())}))
        kinds = ["stock"] * stock + ["ours"] * ours
        with server_on(home) as server:
            children = [_start(kind, server.url, place * 1_000_000, commits) for place, kind in enumerate(kinds)]
            for child in children:
                _expect_ready(child)
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            seconds = [float(child.communicate(timeout=600)[0]) for child in children]
            conflicts = _conflicts(server.url)
            server.stop()
        wanted = sorted(place * 1_000_000 + number for place in range(len(kinds)) for number in range(commits))
        there = lake.table(TABLE).to_arrow()["id"].to_pylist()
        missing = len(set(wanted) - set(there))
        return Fairness(
            tuple(seconds[:stock]), tuple(seconds[stock:]), missing, len(there) + missing - len(wanted), lake.check().ok, conflicts
        )


def _start(kind: str, url: str, first: int, commits: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.served_writers", "--child", kind, url, str(first), str(commits)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _expect_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise RuntimeError("a writer did not start")


def _conflicts(url: str) -> int:
    import urllib.request

    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("tiltyard_conflicts_total")))


def child(kind: str, url: str, first: int, commits: int) -> None:
    """One writer; prints how long its commits took."""
    add = _stock(url) if kind == "stock" else _ours(url)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for number in range(first, first + commits):
        add(pa.table({"id": pa.array([number], pa.int64())}))
    print(time.perf_counter() - began, flush=True)


def _stock(url: str) -> Callable[[pa.Table], Any]:
    import lancedb

    return lancedb.connect_namespace("rest", {"uri": url}).open_table(TABLE).add


def _ours(url: str) -> Callable[[pa.Table], Any]:
    return ty.Lake.open(url).table(TABLE).append


def told(seconds: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in sorted(seconds)) + " s" if seconds else "none"


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        kind, url, first, commits = sys.argv[2:]
        child(kind, url, int(first), int(commits))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stock", type=int, default=8, help="writers that are lancedb")
    parser.add_argument("--ours", type=int, default=2, help="writers that opened the lake by the server's address")
    parser.add_argument("--commits", type=int, default=50, help="of each")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where the lake lies; a directory for temporary files by default")
    parser.add_argument("--check", action="store_true", help=f"fail below {TARGET}, or where rows are missing")
    given = parser.parse_args()
    runs = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.directory) as at:
            runs.append(run_writers(Path(at) / "lake", given.stock, given.ours, given.commits))
        run = runs[-1]
        print(f"lancedb {told(run.stock)}\n   ours {told(run.ours)}")
        print(f"least/most {run.share:.2f} (target {TARGET}); {run.conflicts} lost races; missing {run.missing}, extra {run.extra}", end="")
        print(f", check {'ok' if run.sound else 'NOT OK'}")
    print(f"least/most, median of {len(runs)}: {statistics.median(run.share for run in runs):.2f}")
    whole = all(run.is_whole for run in runs)
    return int(not whole or (given.check and min(run.share for run in runs) < TARGET))


if __name__ == "__main__":
    sys.exit(main())
