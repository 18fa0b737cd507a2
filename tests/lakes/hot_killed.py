"""A writer of a lake at a table that others want as well, in a process that may kill itself while it is its turn."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

from tests.support.lakes import Site, ids, numbers
from tiltyard.catalog.lake_values import Moved
from tiltyard.catalog.records import Decide, Found, Offering, Writes
from tiltyard.lake import Lake
from tiltyard.lakes.commit_transaction import StagedTransaction
from tiltyard.lakes.hot_tables import HotTables, Turn

T = TypeVar("T")

POINTS: Final = ("turn taken", "rebased", "publish: before", "publish: decided", "publish: after", "named", "turn given back")
"""Where a writer may die that others wait for."""
SPAN: Final = 1_000_000
"""Numbers of one writer."""


def deadly(point: str, lake: Lake) -> None:
    """Sees to it that this process dies at a point, when it has waited for others before."""
    waited = False

    def reached(here: str) -> None:
        if here == point and waited:
            os.kill(os.getpid(), signal.SIGKILL)

    take, leave, carry_over = Turn.take, Turn.leave, StagedTransaction._carry_over

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

    always: Callable[[HotTables, Collection[str]], list[str]] = lambda _, tables: list(tables)  # noqa: E731
    for owner, name, value in (
        (HotTables, "among", always),
        (Turn, "take", taking),
        (Turn, "leave", leaving),
        (StagedTransaction, "_carry_over", carrying),
    ):
        setattr(owner, name, value)
    tell_of_decisions(lake, reached)


def tell_of_decisions(lake: Lake, reached: Callable[[str], None], when: Callable[[], bool] = lambda: True) -> None:
    """Has ``reached`` called before, in and after each decision about a publication."""
    transact = lake.catalog.records.transact

    def transacting(exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if not when() or not any(key.startswith("tip/") for key in exclusive):
            return transact(exclusive, shared, decide)

        def decided(found: Found) -> Writes[T]:
            writes = decide(found)
            reached("publish: decided")
            return writes

        reached("publish: before")
        result = transact(exclusive, shared, decided)
        reached("publish: after")
        return result

    setattr(lake.catalog.records, "transact", transacting)  # noqa: B010 - mypy does not let a method be replaced


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


def kill_one_after_another(site: Site, points: Sequence[str], kills: int, writers: int, work: Callable[..., None] = work) -> Lake:
    """Has writers go on beside one that dies, at one point after the other; the lake afterwards, in which nothing is lost or doubled."""
    lake = site.open()
    for name in ("hot", "victim", *(f"own{number}" for number in range(writers))):
        lake.create_table(name, numbers(0))
    acknowledged: set[int] = set()
    with ExitStack() as stack:
        others = [
            stack.enter_context(writer(site.uri, site.arguments, f"own{number}", (number + 1) * SPAN, work=work))
            for number in range(writers)
        ]
        for number, point in enumerate(islice(cycle(points), kills)):
            with writer(site.uri, site.arguments, "victim", (writers + 1 + number) * SPAN, point, work) as victim:
                acknowledged |= victim.rest()
                victim.process.join(60)
                assert victim.process.exitcode == -signal.SIGKILL, point
            acknowledged |= {other.next() for other in others}
        for other in others:
            other.over.close()
            acknowledged |= other.rest()
            other.process.join(60)
            assert other.process.exitcode == 0
    found = site.open()
    _check(found, acknowledged)
    return found


def committed(lake: Lake) -> list[int]:
    """The numbers in the table that all share."""
    return [number for number in ids(lake.table("hot")) if number]


def _check(lake: Lake, acknowledged: set[int]) -> None:
    hot = committed(lake)
    assert len(hot) == len(set(hot)), "a transaction was committed twice"
    assert acknowledged <= set(hot)
    own = [number for name in lake.tables() if name != "hot" for number in ids(lake.table(name)) if number]
    assert sorted(own) == hot, "a transaction is in one of its tables only"
    assert not lake.check().problems
    with lake.transaction() as tx:
        tx.table("hot").append(numbers(0))
