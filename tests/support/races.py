"""Writers that race for versions, as functions that a fresh process can import quickly."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tests.support.children import fork_server
from tiltyard.errors import AlreadyExists
from tiltyard.interfaces import CommitHandler, ObjectStore
from tiltyard.storage.handlers import CommitLock
from tiltyard.storage.local import LocalStore

WRITERS = 8
PATIENCE = 300.0
"""Seconds after which something that should have happened is called a failure, however busy the machine is."""

_server = fork_server()
_start: Barrier | None = None


class CarelessStore(LocalStore):
    """A store that takes every condition for decoration: whoever writes last wins."""

    conditional_put_known = False

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.put(path, data)

    def rename_if_absent(self, source: str, target: str) -> None:
        self.put(target, self.get(source))
        self.delete(source)


def manifest(version: int) -> str:
    return f"_versions/{2**64 - 1 - version:020}.manifest"


def claim(store: ObjectStore, handler: CommitHandler, writer: int, versions: int) -> list[int]:
    """Tries to create every version in turn; returns those this writer won."""
    won = []
    for version in range(1, versions + 1):
        try:
            handler.create(store, manifest(version), content(writer, version))
        except AlreadyExists:
            continue
        won.append(version)
    return won


def content(writer: int, version: int) -> bytes:
    return f"{writer}:{version}".encode() * 200


def race_threads(store: ObjectStore, handler: CommitHandler, versions: int) -> list[list[int]]:
    start = threading.Barrier(WRITERS)

    def run(writer: int) -> list[int]:
        start.wait(PATIENCE)
        return claim(store, handler, writer, versions)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


def race_processes(pool: ProcessPoolExecutor, store: ObjectStore, handler: CommitHandler, versions: int) -> list[list[int]]:
    futures = [pool.submit(_claim_together, store, handler, writer, versions) for writer in range(WRITERS)]
    return [future.result(PATIENCE) for future in futures]


def check_race(store: ObjectStore, won: list[list[int]], versions: int) -> None:
    """Every version has exactly one winner, and holds the winner's bytes."""
    winners = Counter(version for list_of_one in won for version in list_of_one)
    assert winners == Counter(range(1, versions + 1))
    for writer, list_of_one in enumerate(won):
        for version in list_of_one:
            assert store.get(manifest(version)) == content(writer, version)


@contextmanager
def process_pool() -> Iterator[ProcessPoolExecutor]:
    """As many processes as writers, which start each race together."""
    barrier = _server.Barrier(WRITERS)
    with ProcessPoolExecutor(WRITERS, mp_context=_server, initializer=_remember, initargs=(barrier,)) as pool:
        yield pool


def _remember(barrier: Barrier) -> None:
    global _start
    _start = barrier


def _claim_together(store: ObjectStore, handler: CommitHandler, writer: int, versions: int) -> list[int]:
    assert _start is not None
    # No process can take a second job before all have taken their first, so each gets exactly one.
    _start.wait(PATIENCE)
    return claim(store, handler, writer, versions)


@contextmanager
def holder(lock: CommitLock) -> Iterator[ForkServerProcess]:
    """Another process that is inside the lock, for certain, and stays there until it is killed."""
    ours, theirs = _server.Pipe()
    process = _server.Process(target=_hold, args=(lock, theirs))
    process.start()
    try:
        theirs.close()
        assert ours.poll(PATIENCE), "the other process did not get the lock"
        assert ours.recv() == "inside"
        yield process
    finally:
        process.kill()
        process.join(PATIENCE)
        ours.close()


def _hold(lock: CommitLock, pipe: Connection) -> None:
    with lock(1):
        pipe.send("inside")
        pipe.recv()  # nothing ever comes


def increment(lock: CommitLock, counter: Path, times: int) -> None:
    """Reads a number and writes it back one higher, in two steps that only a lock keeps together."""
    for _ in range(times):
        with lock(1):
            counter.write_text(str(int(counter.read_text()) + 1))


def together(pool: ProcessPoolExecutor, job: Callable[..., None], *arguments: object) -> None:
    """Runs one job in all processes at once."""
    for future in [pool.submit(_run_together, job, arguments) for _ in range(WRITERS)]:
        future.result(PATIENCE)


def _run_together(job: Callable[..., None], arguments: tuple[object, ...]) -> None:
    assert _start is not None
    _start.wait(PATIENCE)
    job(*arguments)
