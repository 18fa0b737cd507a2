"""A writer that runs one transaction over a lake and dies, by SIGKILL, at a step that is named before.

Every write to a store and every transaction of the catalog is a step, before it and after it. One run without a death tells the names of
all steps; then a run dies at each. Children come from a fork server that has loaded everything, so that three hundred deaths do not take
three hundred starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

import lance.fragment  # noqa: F401 - loaded here, so that no child has to
import pyarrow as pa

from tests.support.lakes import stores_through
from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.records import Body, Decide, Found, Records, Writes
from tiltyard.lake import Lake
from tiltyard.lakes import lake_maintenance
from tiltyard.lakes.lake_clone import clone_lake
from tiltyard.options import Storage
from tiltyard.storage.wrapper import Request, WrapperStore
from tiltyard.testing.stores import WRITES
from tiltyard.verbs.engine.access import TableAccess

T = TypeVar("T")


@dataclass
class Steps:
    """Notes every step, and dies at the one with a given number."""

    deadly: int | None
    file: Path
    count: int = 0

    def take(self, name: str) -> None:
        if self.deadly is None:
            with self.file.open("a") as lines:
                lines.write(name + "\n")
        elif self.count == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class SteppingRecords:
    """Records whose transactions are steps: before them, while they are decided, and after them."""

    def __init__(self, inner: Records, steps: Steps) -> None:
        self.inner = inner
        self.url = inner.url
        self._steps = steps

    def get(self, keys: Collection[str]) -> Found:
        return self.inner.get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        return self.inner.scan(prefixes, limit=limit, descending=descending)

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        what = "publish" if any(key.startswith("tip/") for key in exclusive) else "mark final"

        def deciding(found: Found) -> Writes[T]:
            writes = decide(found)
            self._steps.take(f"{what}: decided, not stored")
            return writes

        self._steps.take(f"{what}: before")
        done = self.inner.transact(exclusive, shared, deciding)
        self._steps.take(f"{what}: after")
        return done

    def close(self) -> None:
        self.inner.close()


class SteppingStore(WrapperStore):
    """A store whose writes are steps, before and after."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        super().__init__(inner)
        self._steps = steps

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method not in WRITES or method == "sync":
            return request(self.inner)
        where = path.rpartition("/")[0]
        self._steps.take(f"{method} {where}: before")
        answer = request(self.inner)
        self._steps.take(f"{method} {where}: after")
        return answer


class SteppingLake(Lake):
    """A lake that lets nothing be written without a step."""

    steps: Steps

    def plain_access_of(self, head: TableHead) -> TableAccess:
        place = super().plain_access_of(head)
        return replace(place, store=SteppingStore(place.store, self.steps))


CARRIED = "carried"
"""Instead of a number of tables: two of them, with one's own writes read, and one of them carried over somebody else's commit."""


def one_transaction(lake: Lake, number: int, tables: int | str, elsewhere: Callable[[], object]) -> None:
    """Leaves its number in up to three tables: a row appended, a row updated, a table made."""
    with lake.transaction(message=f"number {number}") as tx:
        tx.table("first").append(pa.table({"number": [number]}))
        if tables != 1:
            tx.table("second").update({"last": str(number)})
        if tables == 3:
            tx.create_table(f"third.made_{number}", pa.table({"number": [number]}))
        if tables == CARRIED:
            assert tx.table("second").to_arrow()["last"].to_pylist() == [number]
            assert number in tx.table("first").to_arrow()["number"].to_pylist()
            elsewhere()


def numbers_of(lake: Lake) -> tuple[set[int], set[int]]:
    """The numbers that are in the tables of one cut: those that left all they should, and those that left anything."""
    cut = lake.snapshot()
    first = set(cut.table("first").to_arrow()["number"].to_pylist())
    second = set(cut.table("second").to_arrow()["last"].to_pylist())
    third = {int(name.rpartition("_")[2]) for name in cut.tables() if name.startswith("third.")}
    return first, second | third


def run_child(uri: str, arguments: dict[str, Any], number: int, tables: int | str, deadly: int | None, names: Path, told: Path) -> None:
    with Lake.open(uri, **arguments) as lake, Lake.open(uri, **arguments) as other:
        steps = Steps(deadly, names)
        lake.__class__ = SteppingLake
        lake.steps = steps  # type: ignore[attr-defined]
        lake.catalog.records = SteppingRecords(lake.catalog.records, steps)
        one_transaction(lake, number, tables, lambda: other.table("first").append(pa.table({"number": [0]})))
        told.write_text(str(number))
        steps.take("acknowledged")


def run_forward(uri: str, arguments: dict[str, Any], branch: str, deadly: int | None, names: Path) -> None:
    """Brings a branch home by a fast-forward, and dies at a step."""
    _bring_home(uri, arguments, deadly, names, lambda lake: lake.branches.fast_forward(branch))


def run_merge(uri: str, arguments: dict[str, Any], branch: str, deadly: int | None, names: Path) -> None:
    """Merges a branch into main, and dies at a step."""
    _bring_home(uri, arguments, deadly, names, lambda lake: lake.branches.merge(branch))


def run_branch_verb(uri: str, arguments: dict[str, Any], call: tuple[Any, ...], deadly: int | None, names: Path) -> None:
    """Calls a member of ``lake.branches`` by its name, and dies at a step."""
    verb, *given = call
    _bring_home(uri, arguments, deadly, names, lambda lake: getattr(lake.branches, verb)(*given))


def run_clone(uri: str, arguments: dict[str, Any], target: str, deadly: int | None, names: Path) -> None:
    """Clones a lake, and dies at a step: of either catalog, or of a table."""
    steps = Steps(deadly, names)

    def stepping(source: Lake, target: Lake, *more: Any) -> Any:
        target.catalog.records = SteppingRecords(target.catalog.records, steps)
        return clone_lake(source, target, *more)

    setattr(lake_maintenance, clone_lake.__name__, stepping)
    with Lake.open(uri, **arguments) as lake:
        lake.catalog.records = SteppingRecords(lake.catalog.records, steps)
        with stores_through(lambda store: SteppingStore(store, steps)):
            lake.clone(target, storage=Storage(durability="os"))
        steps.take("acknowledged")


def _bring_home(uri: str, arguments: dict[str, Any], deadly: int | None, names: Path, act: Callable[[Lake], object]) -> None:
    with Lake.open(uri, **arguments) as lake:
        steps = Steps(deadly, names)
        lake.catalog.records = SteppingRecords(lake.catalog.records, steps)
        with stores_through(lambda store: SteppingStore(store, steps)):
            act(lake)
        steps.take("acknowledged")


_context: ForkServerContext | None = None


def child(*arguments: Any, target: Callable[..., None] = run_child) -> int:
    """Runs a child to its end or its death; what it ended with."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload([__name__, target.__module__])
    process = _context.Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
