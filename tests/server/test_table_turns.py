"""Turns at one table, by a clock that the test moves: who is answered when."""

from __future__ import annotations

import asyncio

import pytest
from lance_namespace import ThrottlingError

from tiltyard.server.table_turns import TableTurns


def turns(most: int = 8) -> TableTurns:
    return TableTurns(most, asyncio.get_running_loop().time)


async def wins(table: TableTurns, peer: str) -> None:
    table.begin("t", peer)
    await table.won("t", peer)


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
        table.begin("t", "a")
        table.begin("t", "b")
        first = asyncio.create_task(table.won("t", "a"))
        await asyncio.sleep(0)
        assert first.done()  # nobody had lost yet
        table.failed("t", "b", lost=True)
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


def test_nobody_waits_for_a_connection_that_closed() -> None:
    async def run() -> None:
        table = turns()
        table.begin("t", "b")
        table.failed("t", "b", lost=True)
        held = asyncio.create_task(wins(table, "a"))
        await asyncio.sleep(0)
        assert not held.done()
        table.forget("b")
        await asyncio.wait_for(held, 60)

    asyncio.run(run())


def test_a_loser_that_does_not_come_is_waited_for_once() -> None:
    async def run() -> None:
        table = turns()
        table.begin("t", "b")
        table.failed("t", "b", lost=True)
        await asyncio.wait_for(wins(table, "a"), 60)
        table.begin("t", "c")
        table.failed("t", "c", lost=False)

    asyncio.run(run())


def test_a_crowd_is_refused() -> None:
    async def run() -> None:
        table = turns(most=2)
        table.begin("t", "a")
        table.begin("t", "b")
        with pytest.raises(ThrottlingError):
            table.begin("t", "c")

    asyncio.run(run())
