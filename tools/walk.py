"""Traces five paths through the code and prints how long each is: files, functions, crossings between modules, calls upward.

``python tools/walk.py`` prints the table, ``--check`` fails where a path is longer than its bound, ``--calls append`` lists the crossings
of one path. Each path runs once before it is traced, so that caches are warm and imports done. Comprehensions and lambdas are not counted
as functions. A crossing is a call from one of our modules into another of ours, however often it happens; an upward call goes from a
room into one that stands on it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa

import tiltyard as ty
from tiltyard.storage import files

files.TICK = 0  # directories are as good as old here, however soon they are used again

SOURCE: Final = str(Path(ty.__file__).parent) + "/"

ROOMS: Final = (
    ("errors", "interfaces", "redact", "options", "format", "storage"),
    ("transaction",),
    ("verbs",),
    ("handles", "table", "distributed", "catalog"),
    ("lakes", "lake"),
    ("spark", "pipeline", "cli"),
)
"""From the ground up: a room uses those before it and its own."""

RANK: Final = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}

Function = tuple[str, str]


@dataclass
class Trace:
    """What was called while a path ran."""

    functions: set[Function] = field(default_factory=set)
    calls: Counter[tuple[Function, Function]] = field(default_factory=Counter)
    """From one of our modules into another, with how often."""

    def run(self, path: Callable[[], Any]) -> Trace:
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)
        try:
            path()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        called = (code.co_filename.removeprefix(SOURCE), code.co_qualname)
        self.functions.add(called)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        if caller is not None and (origin := caller.f_code.co_filename.removeprefix(SOURCE)) != called[0]:
            self.calls[(origin, caller.f_code.co_qualname), called] += 1

    @property
    def length(self) -> Length:
        named = [function for function in self.functions if "<" not in function[1].rpartition(".")[2]]
        upward = sum(times for (origin, called), times in self.calls.items() if _rank(origin[0]) < _rank(called[0]))
        return Length(len({file for file, _ in self.functions}), len(named), self.calls.total(), upward)


@dataclass(frozen=True)
class Length:
    """How long a path is."""

    files: int
    functions: int
    crossings: int
    upward: int

    def beyond(self, bound: Length) -> list[str]:
        """What is over a bound, in words."""
        names = ("files", "functions", "crossings", "upward")
        return [
            f"{getattr(self, name)} {name}, bound {getattr(bound, name)}" for name in names if getattr(self, name) > getattr(bound, name)
        ]


def _rank(file: str) -> int:
    return RANK.get(file.split("/")[0].removesuffix(".py"), len(ROOMS))


# ---- the paths -----------------------------------------------------------------------------------------------------------------

SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def rows(*keys: int) -> pa.Table:
    return pa.table({"id": list(keys), "text": [f"row {key}" for key in keys]}, schema=SCHEMA)


def open_and_scan(root: Path) -> Callable[[], Any]:
    uri = root / "scanned"
    ty.Table.create(uri, rows(1, 2, 3))
    return lambda: list(ty.Table.open(uri).scan())


def append(root: Path) -> Callable[[], Any]:
    table = ty.Table.create(root / "appended", rows(1, 2, 3))
    return lambda: table.append(rows(4, 5))


def merge(root: Path) -> Callable[[], Any]:
    table = ty.Table.create(root / "merged", rows(1, 2, 3), primary_key=["id"])
    return lambda: table.merge(rows(3, 4)).when_matched_update_all().when_not_matched_insert_all().execute()


def lake_transaction(root: Path) -> Callable[[], Any]:
    lake = ty.Lake.open(root / "lake")
    for name in ("a", "b"):
        lake.create_table(name, rows(1, 2, 3))

    def path() -> None:
        with lake.transaction() as tx:
            for name in ("a", "b"):
                tx.table(name).append(rows(4, 5))

    return path


def spark_write(root: Path, session: Any) -> Callable[[], Any]:
    from tiltyard.spark import SparkTable

    table = SparkTable(session, ty.Table.create(root / "spark", rows(1, 2, 3)))
    frame = session.createDataFrame(rows(4, 5).to_pandas(), "id bigint not null, text string")
    return lambda: table.append(frame)


PATHS: Final[dict[str, Callable[[Path], Callable[[], Any]]]] = {
    "open + scan": open_and_scan,
    "append": append,
    "merge": merge,
    "lake transaction": lake_transaction,
}

BOUNDS: Final = {
    "open + scan": Length(28, 110, 70, 0),
    "append": Length(40, 223, 120, 0),
    "merge": Length(50, 325, 218, 0),
    "lake transaction": Length(60, 390, 450, 0),
    "spark write": Length(52, 282, 202, 0),
}
"""A path that gets longer than this fails the tests. Whoever shortens one lowers its bound."""


def traced(make: Callable[[Path], Callable[[], Any]]) -> Trace:
    with tempfile.TemporaryDirectory(prefix="tiltyard-walk-") as directory:
        path = make(Path(directory))
        path()
        path()  # the first makes directories, after which those beside them are flushed once more
        return Trace().run(path)


def traced_spark() -> Trace:
    from pyspark.sql import SparkSession

    with ExitStack() as stack:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        stack.callback(session.stop)
        return traced(lambda root: spark_write(root, session))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail where a path is longer than its bound")
    parser.add_argument("--spark", action="store_true", help="trace a write from Spark too, which starts a JVM")
    parser.add_argument("--calls", metavar="PATH", help="list the crossings of one path")
    given = parser.parse_args()
    traces = {name: traced(make) for name, make in PATHS.items() if given.calls in (None, name)}
    if given.spark or given.calls == "spark write":
        traces["spark write"] = traced_spark()
    print(f"{'path':<18}{'files':>7}{'functions':>11}{'crossings':>11}{'upward':>8}")
    too_long = []
    for name, trace in traces.items():
        length = trace.length
        print(f"{name:<18}{length.files:>7}{length.functions:>11}{length.crossings:>11}{length.upward:>8}")
        too_long += [f"{name}: {what}" for what in length.beyond(BOUNDS[name])]
    if given.calls:
        for ((origin, caller), (file, called)), times in traces[given.calls].calls.most_common():
            print(f"{times:4} {'^' if _rank(origin) < _rank(file) else ' '} {origin}:{caller} -> {file}:{called}")
    print("\n".join(too_long))
    return 1 if given.check and too_long else 0


if __name__ == "__main__":
    raise SystemExit(main())
