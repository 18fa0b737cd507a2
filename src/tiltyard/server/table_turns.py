"""Turns at a table that several stock clients write to, so that none of them starves.

A client that loses a race is told so at once, waits for a moment by itself, looks at the latest version, and comes again. Left alone it
mostly loses again, to those who won before. So its look is what takes a turn: looks of losers are answered one at a time, in the order in
which they came, and whoever was answered has the table for itself until its version is decided, or until its turn runs out. Versions that
others bring meanwhile wait for that long.

A turn orders, and decides nothing: the catalog compares numbers as ever. Whoever dies with the turn holds up others for a fraction of a
second. All of it is used from one event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from lance_namespace import ThrottlingError

SHORTEST_TURN: Final = 0.05
LONGEST_TURN: Final = 1.0
FIRST_TURN: Final = 0.25
"""Seconds for which a table is kept for whoever has the turn; four times what it took lately, within these bounds."""
PATIENCE: Final = 5.0
"""Seconds after which a look is answered without a turn."""
_MOST_LOSERS: Final = 1024


@dataclass(slots=True)
class _Table:
    """One table.

    Attributes:
        holder: who has the turn; None for nobody.
        since, until: when it began, and when it runs out.
        looking: losers whose look waits, first come first.
        waiting: versions that wait for the turn to end.
        losers: who lost a race and has not looked since.
        turn: how long the next turn may last.
    """

    holder: Hashable | None = None
    since: float = 0.0
    until: float = 0.0
    looking: deque[asyncio.Future[None]] = field(default_factory=deque)
    waiting: set[asyncio.Future[None]] = field(default_factory=set)
    losers: dict[Hashable, None] = field(default_factory=dict)
    turn: float = FIRST_TURN

    @property
    def is_idle(self) -> bool:
        return self.holder is None and not self.looking and not self.waiting and not self.losers


class TableTurns:
    """The turns at all tables.

    Args:
        most: how many may wait at one table.
        clock: seconds that only go forward.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._tables: dict[str, _Table] = {}

    def lengths(self) -> dict[str, int]:
        """How many wait at each table that somebody waits at."""
        return {name: len(table.looking) + len(table.waiting) for name, table in self._tables.items() if table.looking or table.waiting}

    async def before_look(self, name: str, peer: Hashable) -> None:
        """Waits for a turn, if this is the look of somebody who lost."""
        table = self._tables.get(name)
        if table is None or peer not in table.losers:
            return
        del table.losers[peer]
        end = self._clock() + PATIENCE
        if table.looking or self._is_held(table):
            self._refuse_crowd(name, table)
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            table.looking.append(mine)
            try:
                while not mine.done() and self._clock() < end:
                    if table.looking[0] is mine and not self._is_held(table):
                        break
                    until = min(end, max(table.until, self._clock() + 0.001)) if table.looking[0] is mine else end
                    await asyncio.wait([mine], timeout=until - self._clock())
            finally:
                table.looking.remove(mine)
        if not self._is_held(table):
            now = self._clock()
            table.holder, table.since, table.until = peer, now, now + table.turn

    async def before_create(self, name: str, peer: Hashable) -> None:
        """Waits while somebody else has the turn."""
        table = self._tables.get(name)
        if table is None or not self._is_held(table) or table.holder == peer:
            return
        self._refuse_crowd(name, table)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        table.waiting.add(mine)
        try:
            await asyncio.wait([mine], timeout=max(table.until - self._clock(), 0))
        finally:
            table.waiting.discard(mine)

    def after_create(self, name: str, peer: Hashable, *, lost: bool) -> None:
        """Ends the turn of whoever had it, and remembers a loser."""
        table = self._tables.get(name)
        if table is None:
            if not lost:
                return
            table = self._tables[name] = _Table()
        if lost:
            if len(table.losers) >= _MOST_LOSERS:
                table.losers.clear()
            table.losers[peer] = None
        if table.holder == peer:
            took = self._clock() - table.since
            table.turn = min(max(4 * took, SHORTEST_TURN, table.turn / 2), LONGEST_TURN)
            table.holder = None
        if not self._is_held(table):
            self._wake(table)
        if table.is_idle:
            del self._tables[name]

    def forget(self, peer: Hashable) -> None:
        """A connection is gone: nobody waits for it."""
        for name, table in [*self._tables.items()]:
            table.losers.pop(peer, None)
            if table.holder == peer:
                table.holder = None
                self._wake(table)
            if table.is_idle:
                del self._tables[name]

    def _is_held(self, table: _Table) -> bool:
        if table.holder is not None and self._clock() >= table.until:
            table.holder = None
        return table.holder is not None

    def _wake(self, table: _Table) -> None:
        """The next look is answered. Versions that waited are mostly too late by now, and are told so at once."""
        for future in (*list(table.looking)[:1], *table.waiting):
            if not future.done():
                future.set_result(None)

    def _refuse_crowd(self, name: str, table: _Table) -> None:
        if len(table.looking) + len(table.waiting) >= self._most:
            raise ThrottlingError(f"Too many requests wait for {name}. Try again in a second.")
