"""Writers in line before a table: a test holds the lead until all who are to wait do so. Then it lets go, and the first of them leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tiltyard as ty
from tiltyard.storage.local_queue import QUEUE, LocalPlace, LocalQueue

LONG = 60.0

Work = Callable[[ty.Table], Any]


@contextmanager
def held(uri: str) -> Iterator[LocalPlace]:
    """The lead, in other hands than those of the thread that asks for it."""
    place = LocalQueue(uri).place("held", 0.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(place.lead).result()
        try:
            yield place
        finally:
            pool.submit(place.leave).result()


def waiting(uri: str) -> int:
    return len(list((Path(uri) / QUEUE).glob(".tmp.q*")))


def in_company(table: ty.Table, others: int = 1) -> ty.Table:
    """A handle that has met others a moment ago, as writers in a loop have: it leaves it to whoever leads to write its rows."""
    queue = table._access.committer.queue
    assert isinstance(queue, LocalQueue)
    queue.company = others
    return table


def in_line(uri: str, works: Sequence[Work], before: Callable[[], object] = lambda: None, *, company: bool = True) -> list[Future[Any]]:
    """Has all of these wait, one after the other, does something, and lets them go; each on a handle of its own.

    Unless they have no ``company`` yet, they offer rows where they can, and files otherwise.
    """
    tables = [in_company(ty.Table.open(uri), len(works) - 1 if company else 0) for _ in works]
    with ThreadPoolExecutor(len(works)) as pool:
        with held(uri):
            futures = []
            for number, (work, table) in enumerate(zip(works, tables, strict=True)):
                futures.append(pool.submit(work, table))
                until(partial(_in_line, uri, number + 1, futures))
            before()
        for future in futures:
            future.exception(LONG)
    return futures


def _in_line(uri: str, wanted: int, futures: Sequence[Future[Any]]) -> bool:
    return waiting(uri) >= wanted or any(future.done() for future in futures)


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(LONG * 1000)):
        if true():
            return
        pause.wait(0.001)
    raise AssertionError("nobody came to wait")
