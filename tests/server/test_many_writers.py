"""Many stock clients and ours on one table at once: every row is there once, and nobody starves."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

from tests.support.proving import PROVING, pick
from tests.support.served import Served, served
from tiltyard.lake import Lake

WRITER = Path(__file__).with_name("stock_writer.py")


def start(server: Served, name: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), server.url, name, str(first), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_every_row_of_every_writer_is_there_once(tmp_path: Path) -> None:
    stock, ours, count = pick(3, 8), pick(1, 2), pick(8, 50)
    with served(tmp_path / "lake") as server, server.lake() as lake:
        lake.create_table("hot", pa.table({"id": pa.array([], pa.int64())}))
        children = [start(server, "hot", place * 1000, count) for place in range(stock)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        threads = [threading.Thread(target=append, args=(server.lake(), 100_000 + place * 1000, count)) for place in range(ours)]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for thread in threads:
            thread.start()
        seconds = [float(child.communicate()[0]) for child in children]
        for thread in threads:
            thread.join()
        expected = [place * 1000 + number for place in range(stock) for number in range(count)]
        expected += [100_000 + place * 1000 + number for place in range(ours) for number in range(count)]
        assert sorted(lake.table("hot").to_arrow()["id"].to_pylist()) == sorted(expected)
        assert lake.check().ok
        figures = server.get("/metrics").body.decode()
    print(
        [round(value, 2) for value in sorted(seconds)],
        [line for line in figures.splitlines() if line.startswith("tiltyard_conflicts_total")],
    )
    if PROVING:
        assert min(seconds) / max(seconds) >= 0.5


def append(lake: Lake, first: int, count: int) -> None:
    table = lake.table("hot")
    for number in range(first, first + count):
        table.append(pa.table({"id": [number]}))
