"""A writer of a lake at a table that others want as well, in a process that may kill itself while it is its turn."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

from tests.support.lakes import numbers
from tiltyard.catalog.lake_values import Moved
from tiltyard.catalog.records import Decide, Found, Offering, Writes
from tiltyard.lake import Lake
from tiltyard.lakes.commit_transaction import StagedTransaction
from tiltyard.lakes.hot_tables import HotTables, Turn

T = TypeVar("T")

POINTS: Final = ("turn taken", "rebased", "publish: before", "publish: decided", "publish: after", "named", "turn given back")
"""Where a writer may die that others wait for."""


def deadly(point: str, lake: Lake) -> None:
    """Sees to it that this process dies at a point, when it has waited for others before."""
    waited = False

    def reached(here: str) -> None:
        if here == point and waited:
            os.kill(os.getpid(), signal.SIGKILL)

    take, leave, carry_over, transact = Turn.take, Turn.leave, StagedTransaction._carry_over, lake.catalog.records.transact

    def taking(turn: Turn, who: Offering | None = None) -> bool:
        nonlocal waited
        taken = take(turn, who)
        waited = turn._ticket is not None and turn._ticket.waited
        reached("turn taken")
        return taken

    def leaving(turn: Turn) -> None:
        held = turn.taken
        if held:
            reached("named")
        leave(turn)
        if held:
            reached("turn given back")

    def carrying(tx: StagedTransaction, several: Iterable[Moved]) -> None:
        found = list(several)
        carry_over(tx, found)
        if found:
            reached("rebased")

    def transacting(exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if not any(key.startswith("tip/") for key in exclusive):
            return transact(exclusive, shared, decide)

        def decided(found: Found) -> Writes[T]:
            writes = decide(found)
            reached("publish: decided")
            return writes

        reached("publish: before")
        result = transact(exclusive, shared, decided)
        reached("publish: after")
        return result

    always: Callable[[HotTables, Collection[str]], list[str]] = lambda _, tables: list(tables)  # noqa: E731
    for owner, name, value in (
        (HotTables, "among", always),
        (Turn, "take", taking),
        (Turn, "leave", leaving),
        (StagedTransaction, "_carry_over", carrying),
        (lake.catalog.records, "transact", transacting),
    ):
        setattr(owner, name, value)


def work(uri: str, arguments: dict[str, Any], table: str, first: int, point: str, told: Connection, over: Connection) -> None:
    """Writes numbers until ``over`` is closed, and tells each once the transaction that wrote it is acknowledged."""
    with Lake.open(uri, **{"durability": "os", **arguments}) as lake:
        if point:
            deadly(point, lake)
        number = first
        while not over.poll():
            with lake.transaction() as tx:
                tx.table(table).append(numbers(number))
                tx.table("hot").append(numbers(number))
            told.send(number)
            number += 1


@dataclass
class Writer:
    """Such a process, from outside."""

    process: BaseProcess
    told: Connection
    over: Connection

    def next(self) -> int:
        """Waits for the next number that it tells: it goes on."""
        assert self.told.poll(60), "a writer hangs, or is dead"
        return int(self.told.recv())

    def rest(self) -> set[int]:
        """All numbers that it tells until it ends."""
        found = set[int]()
        try:
            while self.told.poll(60):
                found.add(int(self.told.recv()))
        except EOFError:
            return found
        raise AssertionError("a writer hangs")


@contextmanager
def writer(
    uri: str, arguments: dict[str, Any], table: str, first: int, point: str = "", work: Callable[..., None] = work
) -> Iterator[Writer]:
    """Starts a writer. All come from a process that has loaded what they need, and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    told, tells = context.Pipe(duplex=False)
    heard, over = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(uri, arguments, table, first, point, tells, heard))
    process.start()
    tells.close()
    heard.close()
    try:
        yield Writer(process, told, over)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
