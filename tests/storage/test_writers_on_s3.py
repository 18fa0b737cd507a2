"""Writers of several processes on one table of an S3 server, pylance beside them, some of them killed: nothing is lost or doubled."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tests.support.servers import S3Server
from tiltyard.storage.machine_queue import MachinePlace, MachineQueue

OURS = 4
KILLS = pick(2, 100)
EACH = 1_000_000
"""Numbers that one writer may use."""
PATIENCE = 300.0


def _rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64())})


def _write(uri: str, options: dict[str, str], writer: int, told: Path, over: Event, point: str) -> None:
    """Appends until it is over, and writes down each number before it is tried and after it was acknowledged."""
    MachineQueue.seldom = 4  # so that room is left while the test runs
    if point:
        _die_at(point)
    table = ty.Table.open(uri, storage_options=options) if writer else None
    with told.open("a", buffering=1) as file:
        for number in range(writer * EACH, (writer + 1) * EACH):
            if over.is_set():
                return
            file.write(f"tried {number}\n")
            try:
                if table is not None:
                    table.append(_rows(number))
                else:
                    lance.write_dataset(_rows(number), uri, mode="append", storage_options=options)
            except OSError:
                continue  # pylance gives up, and says nothing of what became of it
            file.write(f"done {number}\n")


def _die_at(point: str) -> None:
    """Kills this process when it leads, and has come to a point, for the third time."""
    plain = getattr(MachinePlace, point)
    left = [3]

    def dying(self: MachinePlace, *given: object) -> object:
        if self.leads:
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGKILL)
        return plain(self, *given)

    setattr(MachinePlace, point, dying)


class Writers:
    """Processes that write, and what they wrote down."""

    def __init__(self, uri: str, options: dict[str, str], directory: Path) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._given = (uri, options)
        self._directory = directory
        self._over = self._context.Event()
        self._next = 1
        self.running: list[tuple[BaseProcess, Path]] = []

    def start(self, *, ours: bool = True, point: str = "") -> tuple[BaseProcess, Path]:
        writer = self._next if ours else 0
        self._next += ours
        told = self._directory / f"writer-{writer}"
        process = self._context.Process(target=_write, args=(*self._given, writer, told, self._over, point))
        process.start()
        self.running.append((process, told))
        return self.running[-1]

    def wait_for(self, told: Path, more: int) -> None:
        """Returns when so many further appends of a writer were acknowledged."""
        wanted, until = len(self.numbers("done", told)) + more, time.monotonic() + PATIENCE
        while len(self.numbers("done", told)) < wanted:
            assert time.monotonic() < until, "the writers do not go on"
            time.sleep(0.01)

    def numbers(self, word: str, told: Path | None = None) -> list[int]:
        files = [told] if told is not None else sorted(self._directory.glob("writer-*"))
        lines = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()]
        return [int(line[1]) for line in lines if len(line) == 2 and line[0] == word]

    def stop(self) -> None:
        self._over.set()
        for process, _ in self.running:
            process.join(PATIENCE)
            assert process.exitcode is not None


@pytest.fixture
def table(seaweedfs_server: S3Server, fresh_s3_uri: str) -> ty.Table:
    return ty.Table.create(fresh_s3_uri, _rows(-1), storage_options=seaweedfs_server.storage_options)


def test_leaders_die_and_nothing_is_lost(table: ty.Table, seaweedfs_server: S3Server, tmp_path: Path) -> None:
    options = seaweedfs_server.storage_options
    writers = Writers(table.uri, options, tmp_path)
    steady = [writers.start() for _ in range(OURS - 1)]
    beside = writers.start(ours=False)
    for kill in range(KILLS):
        # Before the others' transactions are taken along; before it says what became of them; with the lead in its hands.
        victim, _ = writers.start(point=("offers", "carry", "tell", "leave")[kill % 4])
        victim.join(PATIENCE)
        assert victim.exitcode == -signal.SIGKILL
        writers.wait_for(steady[kill % len(steady)][1], 2)
    writers.wait_for(beside[1], 1)  # one of pylance's, which knows of no queue, is left room among busy writers of ours
    writers.stop()
    found = Counter(table.refresh().to_arrow(["id"])["id"].to_pylist())
    assert max(found.values()) == 1
    assert set(writers.numbers("done")) <= found.keys()
    assert found.keys() - {-1} <= set(writers.numbers("tried"))
    assert table.check().problems == ()
    assert max(len(entry.members) for entry in table.history()) > 0, "they did commit for each other"
