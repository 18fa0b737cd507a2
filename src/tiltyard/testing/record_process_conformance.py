"""What every catalog database that outlives a process must do, with several processes at work."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tiltyard.catalog.records import Found, Records, Writes
from tiltyard.testing.record_conformance import PATIENCE, Reopen, create, increment, opened, write

PROCESSES = 3


class RecordsAcrossProcessesTests:
    """The part of the suite that needs other processes."""

    rounds = 10

    def test_processes_exclude_each_other(self, records: Records, reopen: Reopen) -> None:
        with process_pool() as pool:
            for future in [pool.submit(_count_up, reopen, self.rounds) for _ in range(PROCESSES)]:
                future.result(PATIENCE)
        assert records.get(["counter"]) == {"counter": {"n": PROCESSES * self.rounds}}
        made = [body["by"] for _, body in records.scan(["made/"])]
        assert len(made) == self.rounds

    def test_a_killed_process_leaves_neither_locks_nor_halves(self, records: Records, reopen: Reopen) -> None:
        write(records, {"a": {"x": 1}, "b": {"x": 1}})
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_stop_in_the_middle, args=(reopen, theirs))
        process.start()
        try:
            theirs.close()
            assert ours.poll(PATIENCE), "the other process did not come to its decision"
            assert ours.recv() == "deciding"
        finally:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE)
            ours.close()
        assert dict(records.scan([""])) == {"a": {"x": 1}, "b": {"x": 1}}
        write(records, {"a": {"x": 2}, "b": {"x": 2}})
        assert dict(records.scan([""])) == {"a": {"x": 2}, "b": {"x": 2}}


@contextmanager
def process_pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_remember, initargs=(barrier,)) as pool:
        yield pool


_start: Any = None


def _remember(barrier: Any) -> None:
    global _start
    _start = barrier


def _count_up(reopen: Reopen, rounds: int) -> None:
    with opened(reopen, 1) as (records,):
        _start.wait(PATIENCE)  # no process can take a second job before all have taken their first
        for number in range(rounds):
            increment(records, "counter")
            create(records, f"made/{number}", os.getpid(), locked=bool(number % 2))


def _stop_in_the_middle(reopen: Reopen, pipe: Connection) -> None:
    with opened(reopen, 1) as (records,):

        def decide(found: Found) -> Writes[None]:
            pipe.send("deciding")
            pipe.recv()  # nothing ever comes
            return Writes(None, put={"a": {"x": 3}, "b": {"x": 3}})

        records.transact(["a", "b"], [], decide)
