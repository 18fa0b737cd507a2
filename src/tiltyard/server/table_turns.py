"""Turns at a table that several clients write to, so that none of them starves.

A stock client that loses a race is told so at once: it measures how long its first try took, sleeps for a random multiple of that, which
doubles with each loss, looks into the store and comes again. Left alone it mostly loses again, to those who won before. So whoever wins
while others have lost gets its answer late: its version is committed and has its name, but it cannot begin the next one yet. Answers that
are held back form a line. When nobody is left who lost, they are given one at a time, in their order: each has the table for itself until
it has brought its next version, or until it has not come for as long as that took lately. So writers in closed loops take turns without a
conflict, and nobody is told of one that is none.

Everything that commits to a table through the server stands in its line: versions that stock clients staged, publications of lakes that
were opened by the address of the server, batches, and rows that clients send. The last are committed by the server, which loses to nobody:
those that stand one behind the other are answered together, so that their next commits can be one.

It orders, and decides nothing: the catalog compares numbers as ever. A client that hangs holds up others for seconds at most; one whose
connection closes, for no time. A table with one writer, or whose writers never met, costs nothing. All of it is used from one event loop,
so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Final

from lance_namespace import ThrottlingError

from tiltyard.catalog.lake_values import MAIN

LONGEST_HOLD: Final = 3.0
"""Seconds for which an answer is held back at most, and others wait for somebody who lost twice: it would soon give up."""
FIRST_PATIENCE: Final = 0.3
"""Seconds for which others wait for somebody who lost once."""
FIRST_GAP: Final = 0.025
SHORTEST_GAP: Final = 0.005
LONGEST_GAP: Final = 0.25
"""Seconds for which whoever was answered has the table for itself: twice what it took lately, within these bounds."""
_WEIGHT: Final = 0.2


def branched(branch: str | None, name: str) -> str:
    """Where writers of a table meet: each branch has its own versions."""
    return name if branch in (None, MAIN) else f"{branch}/{name}"


@dataclass(eq=False, slots=True)
class _Held:
    """An answer that is held back.

    Attributes:
        peer: who waits for it.
        brings: whether that one brings its next version itself, built on what it knows; else the server makes it.
        end: what ends the wait.
    """

    peer: Hashable
    brings: bool
    end: asyncio.Future[None]


@dataclass(slots=True)
class _Table:
    """One table.

    Attributes:
        losers: who lost a race and has not won since: until when others wait for them.
        line: answers that are held back, first come first.
        turn, since: who was answered last and has not come back, and when that was.
        timer: ends the turn of somebody who does not come.
        gap: how long that takes.
        at_work: commits on their way.
    """

    losers: dict[Hashable, float] = field(default_factory=dict)
    line: deque[_Held] = field(default_factory=deque)
    turn: Hashable | None = None
    since: float = 0.0
    timer: asyncio.TimerHandle | None = None
    gap: float = FIRST_GAP
    at_work: int = 0


class TableTurns:
    """The turns at all tables.

    Args:
        most: how many requests may be at one table.
        clock: seconds that only go forward.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._tables: dict[str, _Table] = {}

    def waiting(self) -> int:
        """How many answers are held back, and commits are on their way, at all tables."""
        return sum(len(table.line) + table.at_work for table in self._tables.values())

    def begin(self, names: Collection[str], peer: Hashable) -> None:
        """Somebody is about to commit to tables.

        Raises:
            ThrottlingError: too many are at one of them.
        """
        for name in names:
            table = self._tables.get(name)
            if table is not None and table.at_work + len(table.line) >= self._most:
                raise ThrottlingError(f"Too many requests wait for {name}. Try again in a second.")
        for name in names:
            table = self._tables.setdefault(name, _Table())
            table.at_work += 1
            if table.turn == peer:
                took = self._clock() - table.since
                table.gap = min(max((1 - _WEIGHT) * table.gap + _WEIGHT * 2 * took, SHORTEST_GAP), LONGEST_GAP)
                self._stop_timer(table)  # it came; the turn ends when its version is decided

    def failed(self, names: Collection[str], peer: Hashable, *, lost: bool) -> None:
        """Nothing was committed: somebody else was faster, and it will come again, or something else went wrong."""
        for name in names:
            table = self._tables[name]
            table.at_work -= 1
            if lost:
                patience = LONGEST_HOLD if peer in table.losers else FIRST_PATIENCE
                table.losers[peer] = self._clock() + patience
                asyncio.get_running_loop().call_later(patience, self._ended, name, table, None)
            else:
                table.losers.pop(peer, None)
            self._ended(name, table, peer)

    def holds(self, names: Collection[str]) -> bool:
        """Whether an answer about these tables would be held back now."""
        return any(table.losers or table.line for name in names if (table := self._tables.get(name)) is not None)

    async def won(self, names: Collection[str], peer: Hashable, *, brings: bool = True) -> None:
        """Something was committed. Returns when it is the client's turn to be answered, at each of its tables.

        Args:
            names: of the tables.
            peer: who is to be answered.
            brings: whether its next version is one that it makes itself.
        """
        waits: list[tuple[str, _Table, _Held]] = []
        for name in names:
            table = self._tables[name]
            table.at_work -= 1
            table.losers.pop(peer, None)
            if table.losers or table.line:
                held = _Held(peer, brings, asyncio.get_running_loop().create_future())
                table.line.append(held)
                waits.append((name, table, held))
            self._ended(name, table, peer)
        if not waits:
            return
        try:
            await asyncio.wait([held.end for _, _, held in waits], timeout=LONGEST_HOLD)
        finally:
            for name, table, held in waits:
                if held in table.line:
                    table.line.remove(held)
                    self._ended(name, table, None)

    def forget(self, peer: Hashable) -> None:
        """A connection is gone: nobody waits for it."""
        for name, table in [*self._tables.items()]:
            table.losers.pop(peer, None)
            self._ended(name, table, peer)

    def _ended(self, name: str, table: _Table, peer: Hashable | None) -> None:
        """Something changed: the turn of a peer is over, if it had one, and the next in line is answered if nobody is in the way."""
        if peer is not None and table.turn == peer:
            self._stop_timer(table)
            table.turn = None
        now = self._clock()
        for loser in [loser for loser, until in table.losers.items() if until <= now]:
            del table.losers[loser]
        if table.turn is None and not table.losers and table.line:
            self._answer(name, table)
        if not (table.losers or table.line or table.at_work or table.turn) and self._tables.get(name) is table:
            del self._tables[name]

    def _answer(self, name: str, table: _Table) -> None:
        """Answers the first in line; those whose commits the server makes together."""
        while True:
            held = table.line.popleft()
            if not held.end.done():
                held.end.set_result(None)
            if held.brings or not table.line or table.line[0].brings:
                break
        table.turn, table.since = held.peer, self._clock()
        table.timer = asyncio.get_running_loop().call_later(table.gap, self._ended, name, table, held.peer)

    def _stop_timer(self, table: _Table) -> None:
        if table.timer is not None:
            table.timer.cancel()
            table.timer = None
