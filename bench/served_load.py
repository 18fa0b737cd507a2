"""Many clients of one server at once: what was acknowledged is there once, how long a commit takes, and whether memory stays flat.

    python -m bench.served_load                                     200 clients over 20 tables for two minutes
    python -m bench.served_load --clients 40 --tables 8 --seconds 20 --stop   the server is stopped and started again in the middle

Half of the clients are stock lancedb, which write files and have their versions published; the others send rows over HTTP and read. Each
client waits for its answer before it goes on. A row whose request failed may be there or not, but never twice.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiltyard as ty

PER_PROCESS = 25
PER_CLIENT = 1_000_000
"""Rows of one client have numbers of their own."""
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(slots=True)
class Tally:
    """What clients did: ids that were acknowledged and ids that were not, by table, and how long each answered commit took."""

    acknowledged: dict[str, list[int]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    def add(self, other: dict[str, Any]) -> None:
        for table, ids in other["acknowledged"].items():
            self.acknowledged.setdefault(table, []).extend(ids)
        self.failed.update(other["failed"])
        self.seconds += other["seconds"]
        self.reads += other["reads"]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a run came to.

    Attributes:
        commits, failed: acknowledged, and not.
        why: what clients were told of those that failed, with how often.
        lost, doubled: rows that were acknowledged and are not there; rows that are there twice.
        rate: commits a second.
        p50, p99: milliseconds of a commit; ``read_p99`` of a count of rows.
        memory: megabytes of the server, once a second.
        sound: whether ``lake.check()`` is.
        stock: how many of the commits are stock clients'.
        least, most: commits of the client that has fewest and of the one that has most.
    """

    commits: int
    failed: int
    lost: int
    doubled: int
    rate: float
    p50: float
    p99: float
    read_p99: float
    memory: tuple[float, ...]
    sound: bool
    stock: int
    least: int
    most: int
    why: dict[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        """How much larger the server is in the last quarter of the run than in the second one."""
        quarter = max(1, len(self.memory) // 4)
        return statistics.median(self.memory[-quarter:]) / statistics.median(self.memory[quarter : 2 * quarter] or self.memory)


class ServerProcess:
    """``tiltyard serve`` on one port, which can be stopped and started again."""

    def __init__(self, home: Path) -> None:
        self._home, self._log = home, (home.parent / "server.log").open("ab")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        audit = ["--audit-log", str(self._home.parent / "audit.jsonl")]
        command = [sys.executable, "-m", "tiltyard.cli", "serve", str(self._home), "--port", str(self.port), "--json", *audit]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"}"):
                return
        raise RuntimeError("the server did not start")

    def stop(self) -> None:
        """Asks it to stop, and waits for it: a commit that was begun is finished."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(90) != 0:
            raise RuntimeError("the server did not stop by itself")
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.stop()
        self._start()

    def megabytes(self) -> float | None:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return None
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return int(found[0]) / 1024 if found else None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextmanager
def server_on(home: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(home)
    try:
        yield server
    finally:
        server.close()


def run_load(home: Path, clients: int, tables: int, seconds: float, *, stop: bool = False) -> LoadReport:
    """Loads a server with clients; afterwards all rows are counted.

    Args:
        home: where the lake is made.
        clients, tables: how many.
        seconds: for how long.
        stop: whether the server is stopped and started again in the middle.
    """
    with ty.Lake.open(home) as lake:
        for number in range(tables):
            lake.create_table(f"t{number}", pa.table({"id": pa.array([], pa.int64())}))
        with server_on(home) as server:
            tally, memory, took = _loaded(server, clients, tables, seconds, stop)
            server.stop()
        lost = doubled = 0
        for name, ids in tally.acknowledged.items():
            there = Counter(lake.table(name).to_arrow()["id"].to_pylist())
            lost += sum(row not in there for row in ids)
            doubled += sum(times > 1 for times in there.values())
        sound = lake.check().ok
    clients_of = Counter(dict.fromkeys(range(clients), 0))
    clients_of.update(row // PER_CLIENT for ids in tally.acknowledged.values() for row in ids)
    commits = sum(clients_of.values())
    quantiles = (_quantile(tally.seconds, 0.5), _quantile(tally.seconds, 0.99), _quantile(tally.reads, 0.99))
    failed = sum(tally.failed.values())
    shares = (
        sum(count for number, count in clients_of.items() if _is_stock(number, tables)),
        min(clients_of.values()),
        max(clients_of.values()),
    )
    why = dict(tally.failed.most_common(8))
    return LoadReport(commits, failed, lost, doubled, commits / took, *quantiles, tuple(memory), sound, *shares, why)


def _loaded(server: ServerProcess, clients: int, tables: int, seconds: float, stop: bool) -> tuple[Tally, list[float], float]:
    shares = [min(PER_PROCESS, clients - first) for first in range(0, clients, PER_PROCESS)]
    children = []
    for place, share in enumerate(shares):
        command = [sys.executable, "-m", "bench.served_load", "--child", server.url, str(place * PER_PROCESS), str(share), str(tables)]
        # lancedb tells on standard error of each request that a stopped server did not answer
        quiet = subprocess.DEVNULL
        children.append(subprocess.Popen([*command, str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True))
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("a client did not start")
    began = time.monotonic()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    memory: list[float] = []
    ended, stopped = threading.Event(), not stop
    while time.monotonic() - began < seconds:
        if not stopped and time.monotonic() - began > seconds / 2:
            server.restart()
            stopped = True
        if (size := server.megabytes()) is not None:
            memory.append(size)
        ended.wait(min(1.0, seconds / 20))
    tally = Tally()
    for child in children:
        tally.add(json.loads(child.communicate(timeout=120)[0]))
    return tally, memory, time.monotonic() - began


def _is_stock(number: int, tables: int) -> bool:
    """Half of the clients of each table are: clients go round the tables, and kinds change with each round."""
    return (number // tables) % 2 == 1


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# ---- clients: a process has several, each in a thread --------------------------------------------------------------------------------


def child(url: str, first: int, count: int, tables: int, seconds: float) -> None:
    """Some clients in a process of their own; prints what they did."""
    ready, tally, lock = threading.Barrier(count + 1), Tally(), threading.Lock()
    go = threading.Event()

    def client(number: int) -> None:
        name = f"t{number % tables}"
        add, read = _lancedb(url, name) if _is_stock(number, tables) else _http(url, name)
        mine = Tally()
        ready.wait()
        go.wait()
        end, row = time.monotonic() + seconds, number * PER_CLIENT
        while time.monotonic() < end:
            row += 1
            began = time.monotonic()
            try:
                add(row)
                mine.acknowledged.setdefault(name, []).append(row)
                mine.seconds.append(time.monotonic() - began)
                if row % 10 == 0:
                    began = time.monotonic()
                    read()
                    mine.reads.append(time.monotonic() - began)
            except (OSError, RuntimeError, ValueError) as error:  # what lancedb and urllib raise while the server is away
                mine.failed[_told(error)] += 1
                time.sleep(0.05)  # a client that is refused does not come back at once
        with lock:
            tally.add({"acknowledged": mine.acknowledged, "failed": mine.failed, "seconds": mine.seconds, "reads": mine.reads})

    threads = [threading.Thread(target=client, args=(first + place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in threads:
        thread.join()
    print(
        json.dumps({"acknowledged": tally.acknowledged, "failed": tally.failed, "seconds": tally.seconds, "reads": tally.reads}), flush=True
    )


def _told(error: Exception) -> str:
    """What a client is told, without numbers and ids: so failures of one kind count as one."""
    kind = "lancedb" if isinstance(error, RuntimeError | ValueError) else "rows over HTTP"
    return kind + ": " + re.sub(r"[0-9a-f]{8,}|[0-9]+(?![0-9]{2})", "#", " ".join(str(error).split()))[:160]


def _lancedb(url: str, name: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    import lancedb

    table = lancedb.connect_namespace("rest", {"uri": url}).open_table(name)
    return lambda row: table.add(pa.table({"id": pa.array([row], pa.int64())})), table.count_rows


def _http(url: str, name: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    def add(row: int) -> None:
        sink = pa.BufferOutputStream()
        rows = pa.table({"id": pa.array([row], pa.int64())})
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        _post(f"{url}/v1/table/{name}/insert", bytes(sink.getvalue()), ARROW)

    return add, lambda: _post(f"{url}/v1/table/{name}/count_rows", b"{}", "application/json")


def _post(url: str, body: bytes, kind: str) -> None:
    request = urllib.request.Request(url, data=body, headers={"content-type": kind})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{error.code} {error.read().decode(errors='replace')}") from None


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        url, first, count, tables, seconds = sys.argv[2:]
        child(url, int(first), int(count), int(tables), float(seconds))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--stop", action="store_true", help="stop the server in the middle, and start it again")
    parser.add_argument("--directory", help="where the lake lies; a directory for temporary files by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as at:
        report = run_load(Path(at) / "lake", given.clients, given.tables, given.seconds, stop=given.stop)
    print(f"{report.commits:,} commits, {report.rate:.1f} a second; {report.failed:,} requests failed")
    for told, times in report.why.items():
        print(f"  {times} times {told}")
    print(f"{report.stock:,} of them by stock clients; a client has {report.least:,} to {report.most:,}")
    print(f"commit p50 {report.p50:.0f} ms, p99 {report.p99:.0f} ms; read p99 {report.read_p99:.0f} ms")
    print(f"lost {report.lost}, doubled {report.doubled}, check {'ok' if report.sound else 'NOT OK'}")
    print(f"memory {report.memory[0]:.0f} to {report.memory[-1]:.0f} MB, last quarter {report.growth:.2f} of the second")
    return int(report.lost > 0 or report.doubled > 0 or not report.sound)


if __name__ == "__main__":
    sys.exit(main())
