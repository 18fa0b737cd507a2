"""What this machine can do at most: how fast the parts are that every commit is made of."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

CREATE_AND_RENAME: Final = "create + rename"
CREATE_AND_FLUSH: Final = "create + fsync"
SQLITE: Final = "SQLite commit"
POSTGRESQL: Final = "PostgreSQL commit"
LIMITS: Final = (CREATE_AND_RENAME, CREATE_AND_FLUSH, SQLITE, POSTGRESQL)
CONTENT: Final = b"x" * 400


def timed_limits(directory: Path, server: str, times: int) -> Iterator[tuple[str, list[float]]]:
    """Seconds of each of so many, by what they are; ``server`` is the address of a PostgreSQL."""
    import psycopg

    directory.mkdir(parents=True, exist_ok=True)

    def renamed(number: int) -> None:
        path = directory / f"a{number}.tmp"
        path.write_bytes(CONTENT)
        path.rename(directory / f"a{number}")

    def flushed(number: int) -> None:
        with (directory / f"b{number}").open("wb") as file:
            file.write(CONTENT)
            file.flush()
            os.fsync(file.fileno())

    yield CREATE_AND_RENAME, _timed(renamed, times)
    yield CREATE_AND_FLUSH, _timed(flushed, times)
    with closing(sqlite3.connect(directory / "limit.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE t (n INTEGER)")
        yield SQLITE, _timed(lambda number: database.execute("INSERT INTO t VALUES (?)", (number,)), times)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("create table if not exists limit_of_commits (n integer)")
        yield POSTGRESQL, _timed(lambda number: connection.execute("insert into limit_of_commits values (%s)", (number,)), times)


def _timed(work: Callable[[int], object], times: int) -> list[float]:
    taken = []
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        taken.append(time.perf_counter() - begun)
    return taken
