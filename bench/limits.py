"""What this machine can do at most: how fast the parts are that every commit is made of."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

CREATE_AND_RENAME: Final = "create + rename"
CREATE_AND_FLUSH: Final = "create + fsync"
DATA_FILE: Final = "a data file of one row, by pylance"
SQLITE: Final = "SQLite commit"
POSTGRESQL: Final = "PostgreSQL commit"
LIMITS: Final = (CREATE_AND_RENAME, CREATE_AND_FLUSH, DATA_FILE, SQLITE, POSTGRESQL)
CONTENT: Final = b"x" * 400
_ONE_ROW: Final = pa.record_batch({"id": [1], "value": [1.0]})


def timed_limits(directory: Path, server: str, times: int) -> Iterator[tuple[str, list[float]]]:
    """Seconds of each of so many, by what they are; ``server`` is the address of a PostgreSQL."""
    import psycopg

    directory.mkdir(parents=True, exist_ok=True)

    def renamed(number: int) -> None:
        path = directory / f"a{number}.tmp"
        path.write_bytes(CONTENT)
        path.rename(directory / f"a{number}")

    yield CREATE_AND_RENAME, _timed(renamed, times)
    yield CREATE_AND_FLUSH, _timed(partial(_flushed, directory), times)
    yield DATA_FILE, _timed(partial(_data_file, directory), times)
    with closing(sqlite3.connect(directory / "limit.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE t (n INTEGER)")
        yield SQLITE, _timed(lambda number: database.execute("INSERT INTO t VALUES (?)", (number,)), times)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("create table if not exists limit_of_commits (n integer)")
        yield POSTGRESQL, _timed(lambda number: connection.execute("insert into limit_of_commits values (%s)", (number,)), times)


def _flushed(directory: Path, number: int) -> None:
    with (directory / f"b{number}").open("wb") as file:
        file.write(CONTENT)
        file.flush()
        os.fsync(file.fileno())


def _data_file(directory: Path, number: int) -> None:
    """What a small append cannot do without, whatever else it does; nothing is flushed."""
    from lance.file import LanceFileWriter

    with LanceFileWriter(str(directory / f"c{number}.lance"), _ONE_ROW.schema) as file:
        file.write_batch(_ONE_ROW)


def flushed_files(root: Path, times: int = 500) -> float:
    """How many new files this disk flushes in a second, one after the other, in a directory of their own."""
    return times / sum(_timed(partial(_flushed, Path(tempfile.mkdtemp(prefix="limit", dir=root))), times))


def work_of_two(seconds: float = 0.5) -> float:
    """How much more two busy processes get done than one: 2 on two processors, less where they share a core."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.map(_busy, [0.05] * 2, chunksize=1)  # both are up
        alone = _busy(seconds)
        return sum(pool.map(_busy, [seconds] * 2, chunksize=1)) / alone


def _busy(seconds: float) -> int:
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        done += sum(range(100)) // 4950
    return done


def _timed(work: Callable[[int], object], times: int) -> list[float]:
    taken = []
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        taken.append(time.perf_counter() - begun)
    return taken
