"""Turns at one table, by a clock that the test moves: who is answered when, and whether anybody starves."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from lance_namespace import ThrottlingError

from tiltyard.server.table_turns import TableTurns

SEED = 20261118
Result = TypeVar("Result")


def turns(most: int = 8) -> TableTurns:
    return TableTurns(most, asyncio.get_running_loop().time)


async def wins(table: TableTurns, peer: str) -> None:
    table.begin(["t"], peer)
    await table.won(["t"], peer)


async def serves(table: TableTurns, begun: list[str], name: str, end: asyncio.Event) -> None:
    async with table.served(["t"]):
        begun.append(name)
        await end.wait()


def test_a_lone_writer_is_answered_at_once() -> None:
    async def run() -> None:
        table = turns()
        for _ in range(3):
            await asyncio.wait_for(wins(table, "a"), 60)
        assert (table.waiting(), table._tables) == (0, {})

    asyncio.run(run())


def test_a_winner_waits_for_who_lost_and_then_they_take_turns() -> None:
    async def run() -> None:
        table = turns()
        table.begin(["t"], "a")
        table.begin(["t"], "b")
        first = asyncio.create_task(table.won(["t"], "a"))
        await asyncio.sleep(0)
        assert first.done()  # nobody had lost yet
        table.failed(["t"], "b", lost=True)
        assert table.holds(["t", "other"])
        assert not table.holds(["other"])
        held = asyncio.create_task(wins(table, "a"))
        await asyncio.sleep(0)
        assert not held.done()
        back = asyncio.create_task(wins(table, "b"))
        await asyncio.wait_for(held, 60)  # b had its version, so the first in line is answered
        assert not back.done()
        again = asyncio.create_task(wins(table, "a"))
        await asyncio.wait_for(back, 60)  # a came back and is behind b now
        await asyncio.wait_for(again, 60)

    asyncio.run(run())


def test_commits_of_the_server_wait_for_who_lost_and_are_begun_together() -> None:
    async def run() -> None:
        table, begun, end = turns(), list[str](), asyncio.Event()
        table.begin(["t"], "stock")
        table.failed(["t"], "stock", lost=True)
        rows = [asyncio.create_task(serves(table, begun, f"rows {number}", end)) for number in range(3)]
        await asyncio.sleep(0)
        stock = asyncio.create_task(wins(table, "other"))
        await asyncio.sleep(0)
        late = asyncio.create_task(serves(table, begun, "late", end))
        await asyncio.sleep(0)
        assert (begun, table.waiting()) == ([], 5)
        table.forget("stock")
        for _ in range(4):
            await asyncio.sleep(0)
        assert begun == ["rows 0", "rows 1", "rows 2"], "those that stand one behind the other, and not the one behind a stock client"
        assert not stock.done()
        end.set()
        await asyncio.wait_for(stock, 60)
        assert begun == ["rows 0", "rows 1", "rows 2"], "it is the stock client's turn"
        table.forget("other")
        await asyncio.wait_for(asyncio.gather(*rows, late), 60)
        assert (table.waiting(), table._tables) == (0, {})

    asyncio.run(run())


def test_commits_of_the_server_are_begun_at_once_where_nobody_else_writes() -> None:
    async def run() -> None:
        table, begun, end = turns(), list[str](), asyncio.Event()
        rows = [asyncio.create_task(serves(table, begun, str(number), end)) for number in range(3)]
        await asyncio.sleep(0)
        assert begun == ["0", "1", "2"]
        end.set()
        await asyncio.gather(*rows)
        assert table._tables == {}

    asyncio.run(run())


@pytest.mark.parametrize("begun", [False, True])
def test_a_commit_of_the_server_that_is_cancelled_leaves_nothing(begun: bool) -> None:
    async def run() -> None:
        table = turns()
        table.begin(["t"], "stock")
        table.failed(["t"], "stock", lost=not begun)
        row = asyncio.create_task(serves(table, [], "rows", asyncio.Event()))
        await asyncio.sleep(0)
        assert table.waiting() == 1
        row.cancel()
        await asyncio.wait([row])
        table.forget("stock")
        assert (table.waiting(), table._tables) == (0, {})

    asyncio.run(run())


def test_who_writes_several_tables_waits_at_each_of_them() -> None:
    async def run() -> None:
        table = turns()
        for name in ("t", "u"):
            table.begin([name], f"loser of {name}")
            table.failed([name], f"loser of {name}", lost=True)
        table.begin(["t", "u", "v"], "a")
        both = asyncio.create_task(table.won(["t", "u", "v"], "a"))
        table.forget("loser of t")
        await asyncio.sleep(0)
        assert not both.done()
        table.forget("loser of u")
        await asyncio.wait_for(both, 60)
        table.forget("a")
        assert (table.waiting(), table._tables) == (0, {})

    asyncio.run(run())


def test_nobody_waits_for_a_connection_that_closed() -> None:
    async def run() -> None:
        table = turns()
        table.begin(["t"], "b")
        table.failed(["t"], "b", lost=True)
        held = asyncio.create_task(wins(table, "a"))
        await asyncio.sleep(0)
        assert not held.done()
        table.forget("b")
        await asyncio.wait_for(held, 60)

    asyncio.run(run())


def test_a_loser_that_does_not_come_is_waited_for_once() -> None:
    async def run() -> None:
        table = turns()
        table.begin(["t"], "b")
        table.failed(["t"], "b", lost=True)
        await asyncio.wait_for(wins(table, "a"), 60)
        table.begin(["t"], "c")
        table.failed(["t"], "c", lost=False)

    asyncio.run(run())


@pytest.mark.parametrize(("away", "patience"), [(0.5, 2.2), (20.0, 0.3)])
def test_a_pause_between_two_commits_is_no_slow_try(away: float, patience: float) -> None:
    """Others wait for who lost for as long as it may sleep, which follows from its try, not from what it did before."""

    async def run() -> None:
        table, loop = turns(), asyncio.get_running_loop()
        await wins(table, "b")
        table.begin(["t"], "a")  # keeps the table in use
        await asyncio.sleep(away)
        table.begin(["t"], "b")
        table.failed(["t"], "b", lost=True)
        assert table._tables["t"].losers["b"] - loop.time() == pytest.approx(patience)

    virtually(run())


@pytest.mark.parametrize(("away", "patience"), [(1.1, 0.5 * 8.8), (40.0, 0.3)])
def test_how_long_somebody_slept_tells_how_long_it_sleeps_next(away: float, patience: float) -> None:
    """Unless it was away for longer than a stock client tries."""

    async def run() -> None:
        table, loop = turns(), asyncio.get_running_loop()
        table.begin(["t"], "a")
        for pause in (away, 0.0):
            table.begin(["t"], "b")
            table.failed(["t"], "b", lost=True)
            waits = table._tables["t"].losers["b"] - loop.time()
            await asyncio.sleep(pause)
        assert waits == pytest.approx(patience)

    virtually(run())


def test_a_crowd_is_refused() -> None:
    async def run() -> None:
        table = turns(most=2)
        table.begin(["t"], "a")
        table.begin(["t", "u"], "b")
        with pytest.raises(ThrottlingError):
            table.begin(["u", "t"], "c")
        for names, peer in ((["t"], "a"), (["t", "u"], "b")):
            table.failed(names, peer, lost=False)
        assert table._tables == {}, "who was refused is nowhere counted"

    asyncio.run(run())


# ---- writers in closed loops, in virtual time ------------------------------------------------------------------------------------------


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, and then at once."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self.now


class _Skipping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.now += timeout or 0.0
        return super().select(0)


def virtually(work: Coroutine[Any, Any, Result]) -> Result:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


@dataclass
class Table:
    """A table whose catalog compares numbers, the writers before it, and how often one of them was told of a conflict, or gave up.

    ``pace`` is how many times as long everything takes as on an idle machine.
    """

    turns: TableTurns
    random: random.Random
    pace: float = 1.0
    version: int = 0
    commits: dict[str, int] = field(default_factory=dict)
    conflicts: int = 0
    gave_up: int = 0

    async def publish(self, built_on: int) -> bool:
        """Whether the next number was free when its turn in the catalog came."""
        await self.pause(0.002)
        if self.version != built_on:
            return False
        self.version += 1
        return True

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.pace * self.random.uniform(0.5, 1.5))

    async def stock(self, peer: str) -> None:
        while True:
            added = await self._added_by_stock(peer)
            self.commits[peer] += added
            self.gave_up += not added

    async def _added_by_stock(self, peer: str) -> bool:
        """As lancedb does: after a loss it sleeps for a random number of slots, each as long as its first try; their number doubles."""
        loop = asyncio.get_running_loop()
        began, slots, slot = loop.time(), 4, 0.0
        while loop.time() - began < 30.0:
            built_on = self.version
            await self.pause(0.004)
            self.turns.begin(["t"], peer)
            if await self.publish(built_on):
                await self.turns.won(["t"], peer)
                return True
            self.conflicts += 1
            self.turns.failed(["t"], peer, lost=True)
            slot = slot or loop.time() - began
            await asyncio.sleep(self.random.randrange(slots) * slot)
            slots *= 2
        return False

    async def ours(self, peer: str, *, in_line: bool = True) -> None:
        """As a lake does that was opened by the server's address: after a loss it rebases at once."""
        while True:
            await self.pause(0.003)
            while True:
                built_on = self.version
                await self.pause(0.001)
                if in_line:
                    self.turns.begin(["t"], peer)
                if await self.publish(built_on):
                    if in_line:
                        await self.turns.won(["t"], peer)
                    break
                self.conflicts += 1
                if in_line:
                    self.turns.failed(["t"], peer, lost=True)
            self.commits[peer] += 1

    async def rows(self, peer: str) -> None:
        """As a client does that sends rows: the server commits them, and rebases by itself."""
        while True:
            await self.pause(0.001)
            async with self.turns.served(["t"]):
                await self.pause(0.004)  # until a thread has time for it
                while not await self.publish(self.version):
                    pass
            self.commits[peer] += 1


Writers = Callable[[Table], dict[str, Coroutine[Any, Any, None]]]


def raced(writers: Writers, pace: float = 1.0, seconds: float = 20.0) -> Table:
    """Lets writers of one table go on for some seconds of their time, at a pace."""

    async def run() -> Table:
        table = Table(turns(most=64), random.Random(SEED), pace)
        loops = writers(table)
        table.commits = dict.fromkeys(loops, 0)
        tasks: list[Awaitable[None]] = [asyncio.create_task(work, name=name) for name, work in loops.items()]
        await asyncio.wait(tasks, timeout=seconds)  # type: ignore[type-var]
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return table

    return virtually(run())


def stock(table: Table, count: int) -> dict[str, Coroutine[Any, Any, None]]:
    return {f"stock {place}": table.stock(f"stock {place}") for place in range(count)}


def ours(table: Table, count: int, **how: bool) -> dict[str, Coroutine[Any, Any, None]]:
    return {f"ours {place}": table.ours(f"ours {place}", **how) for place in range(count)}


def fairness(table: Table) -> float:
    """Commits of the least by those of the most."""
    print(f"seed {SEED}: {table.commits}, {table.conflicts} conflicts, {table.gave_up} given up")
    return min(table.commits.values()) / max(table.commits.values())


@pytest.mark.parametrize("pace", [1, 10, 50])
@pytest.mark.parametrize(("foreign", "own", "senders"), [(8, 2, 0), (1, 4, 0), (4, 0, 4), (4, 2, 4), (5, 0, 5), (10, 0, 0)])
def test_nobody_starves(foreign: int, own: int, senders: int, pace: float) -> None:
    """On a busy machine a try takes 50 times as long: turns that did not grow with it were over before anybody came."""

    def writers(table: Table) -> dict[str, Coroutine[Any, Any, None]]:
        rows = {f"rows {place}": table.rows(f"rows {place}") for place in range(senders)}
        return {**stock(table, foreign), **ours(table, own), **rows}

    table = raced(writers, pace, seconds=20.0 + 4 * pace)
    assert fairness(table) >= 0.5
    assert table.conflicts <= 0.3 * sum(table.commits.values()), "turns are there so that commits do not meet"
    assert table.gave_up == 0


def test_writers_that_stand_in_no_line_starve_the_others() -> None:
    """What the line is for: the same writers, of which two go past it."""
    assert fairness(raced(lambda table: {**stock(table, 8), **ours(table, 2, in_line=False)})) < 0.3
