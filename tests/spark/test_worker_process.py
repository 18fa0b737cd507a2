"""Processes that Spark starts: what makes short work short in them, and that a driver is left alone."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.spark import worker_process
from tiltyard.spark.source import TiltyardSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, as if Spark had started it, before its first work."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    monkeypatch.setattr(worker_process, "_modules", None)
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if before:
        gc.freeze()  # as whoever runs the tests had it


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        theirs, _ = server.accept()
        with theirs:
            # A worker of Spark has a few descriptors; this process has those of all tests before.
            monkeypatch.setattr(worker_process, "_HIGHEST", 1 + max(mine.fileno(), theirs.fileno()))
            yield mine, theirs


def _at_once(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_of_this_machine_send_at_once(connection: tuple[socket.socket, socket.socket]) -> None:
    assert not any(map(_at_once, connection))
    assert worker_process.send_at_once() >= 2
    assert all(map(_at_once, connection))


def test_what_has_no_far_end_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker_process.send_at_once()
        assert not _at_once(server)
    near, far = socket.socketpair(socket.AF_UNIX)
    with near, far:
        worker_process.send_at_once()


@pytest.mark.usefixtures("worker")
def test_modules_leave_the_search_for_garbage_when_the_next_work_begins(
    monkeypatch: pytest.MonkeyPatch, connection: tuple[socket.socket, socket.socket]
) -> None:
    frozen = gc.get_freeze_count()
    worker_process.begin_work()
    assert _at_once(connection[0])
    assert gc.get_freeze_count() == frozen  # nothing was searched yet: garbage would stay for good
    monkeypatch.setitem(sys.modules, "loaded_by_the_first_work", ModuleType("loaded_by_the_first_work"))
    worker_process.begin_work()
    assert gc.get_freeze_count() > frozen + 1000
    again = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1000)]
    worker_process.begin_work()  # nothing was loaded since
    assert gc.get_freeze_count() <= again
    assert len(kept) == 1000


def test_a_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch, connection: tuple[socket.socket, socket.socket]) -> None:
    for name in worker_process._OF_WORKERS:
        monkeypatch.delenv(name, raising=False)
    # Frozen objects may go at any time, so their number tells nothing.
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("a driver drops what it loads"))
    for number in range(3):
        monkeypatch.setitem(sys.modules, f"loaded_{number}", ModuleType("loaded"))
        worker_process.begin_work()
    assert not _at_once(connection[0])


def test_workers_of_spark_begin_so(spark: SparkSession, tmp_path: Path) -> None:
    """The second task that reads in a process of Spark's has what the first one loaded out of the way."""
    spark.dataSource.register(TiltyardSource)
    ty.Table.create(tmp_path / "t", pa.table({"id": range(10)}))
    frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))

    def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        from tiltyard.spark.worker_process import is_worker, send_at_once

        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "worker": [is_worker()], "connections": [send_at_once()]})

    for _ in range(20):  # Spark takes turns among the processes that earlier tests left idle, however many those are
        assert frame.repartition(2).count() == 10
        assert sorted(row.id for row in frame.collect()) == [*range(10)]
        found = spark.range(0, 8, 1, 8).mapInArrow(look, "frozen long, worker boolean, connections long").collect()
        assert all(row.worker and row.connections for row in found)
        if any(row.frozen > 10_000 for row in found):
            return
    pytest.fail("no process that read again and again has anything out of the way")


def test_long_requests_to_the_driver_are_sent_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """py4j sends them in parts, of which the second waits 40 ms for the first one's acknowledgement."""
    ty.spark.enable(spark)
    ty.Table.create(tmp_path / "t", pa.table({"id": range(100_000)}))
    assert spark.read.format("tiltyard").load(str(tmp_path / "t")).filter("id < 10").count() == 10
    gateway: Any = spark.sparkContext._gateway
    connection = gateway.java_gateway_server.getCallbackClient().getPerThreadConnection()
    assert connection.getSocket().getTcpNoDelay()
