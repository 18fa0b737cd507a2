"""Turns at a table that several clients write to, so that none of them starves.

A stock client that loses a race is told so at once: it measures how long its first try took, sleeps for a random multiple of that, which
doubles with each loss, looks into the store and comes again. Left alone it mostly loses again, to those who won before. So whoever wins
while others have lost gets its answer late: its version is committed and has its name, but it cannot begin the next one yet. Answers that
are held back form a line. When nobody is left who lost, they are given one at a time, in their order: each has the table for itself until
it has brought its next version, or until it has not come for as long as that took lately. So writers in closed loops take turns without a
conflict, and nobody is told of one that is none.

Everything that commits to a table through the server stands in its line: versions that stock clients staged, publications of lakes that
were opened by the address of the server, batches, and rows that clients send. The last are committed by the server, which loses to nobody:
they wait before they are begun, so that none of them comes in somebody else's turn, and those that stand one behind the other are begun
together, so that they can be one version.

How long others wait for somebody follows from how long a try takes: on a busy machine a hundred times as long as on an idle one.

It orders, and decides nothing: the catalog compares numbers as ever. A client that hangs holds up others for seconds at most; one whose
connection closes, for no time. A table with one writer, or whose writers never met, costs nothing. All of it is used from one event loop,
so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from lance_namespace import ThrottlingError

from tiltyard.catalog.lake_values import MAIN

LONGEST_HOLD: Final = 10.0
"""Seconds for which somebody is held back at most, and others wait for somebody who lost."""
SHORTEST_PATIENCE: Final = 0.3
"""Seconds for which others wait for somebody who lost, at least."""
FIRST_SLEEP: Final = 4.4
"""How many times as long as its first try took a stock client sleeps after its first loss, at most; after each further one twice that."""
GIVES_UP: Final = 30.0
"""Seconds after which a stock client gives up: whoever lost and comes later than that begins anew."""
FIRST_GAP: Final = 0.025
SHORTEST_GAP: Final = 0.005
LONGEST_GAP: Final = 1.0
"""Seconds for which whoever was answered has the table for itself: what it took lately, and four times the deviation of that."""
_WEIGHT: Final = 0.2
_MOST_ANSWERED: Final = 4096
"""Of how many it is remembered when they were answered."""
_SERVER: Final = object()
"""Whose turn it is while the server commits for those who sent rows."""


def branched(branch: str | None, name: str) -> str:
    """Where writers of a table meet: each branch has its own versions."""
    return name if branch in (None, MAIN) else f"{branch}/{name}"


@dataclass(eq=False, slots=True)
class _Held:
    """Somebody in line.

    Attributes:
        peer: who waits for its answer, or the server, for what it will commit.
        end: what ends the wait.
    """

    peer: Hashable
    end: asyncio.Future[None]


@dataclass(slots=True)
class _Table:
    """One table.

    Attributes:
        losers: who lost a race and has not won since: until when others wait for them.
        losses: how often those lost that have not won since, waited for or not, and when they did so last.
        line: who is held back, first come first.
        turn: who was answered last and has not come back.
        tries: how long the first try of those took who are at work, or lost.
        timer: ends the turn of somebody who does not come.
        took, deviation: seconds from an answer to the next version, lately.
        at_work: commits on their way.
        serving: how many of them the server makes.
        coming: how many more it will make.
    """

    losers: dict[Hashable, float] = field(default_factory=dict)
    losses: dict[Hashable, tuple[int, float]] = field(default_factory=dict)
    line: deque[_Held] = field(default_factory=deque)
    turn: Hashable | None = None
    tries: dict[Hashable, float] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    took: float = FIRST_GAP / 3
    deviation: float = FIRST_GAP / 6
    at_work: int = 0
    serving: int = 0
    coming: int = 0

    @property
    def gap(self) -> float:
        """How long somebody may take who was answered."""
        return min(max(self.took + 4 * self.deviation, SHORTEST_GAP), LONGEST_GAP)

    def came(self, peer: Hashable, now: float, answered: float | None) -> None:
        """A peer brings a version; how long it took tells how long others have to wait for it and its like."""
        times, since = self.losses.get(peer, (0, now))
        if now - since > GIVES_UP:
            self.forget(peer)
        elif times:  # it slept for half of the longest time, on average
            self.tries[peer] = max(self.tries.get(peer, 0.0), 2 * (now - since) / (FIRST_SLEEP * (1 << times - 1)))
        elif answered is not None and (took := now - answered) <= LONGEST_GAP:
            # Else it had something else to do. Who came after its turn counts: the turn was too short.
            self.tries[peer] = took
            self.deviation += _WEIGHT * (abs(took - self.took) - self.deviation)
            self.took += _WEIGHT * (took - self.took)

    def lost(self, peer: Hashable, now: float) -> float:
        """A peer lost, and sleeps; for how long others wait for it."""
        times, _ = self.losses.get(peer, (0, 0.0))
        sleep = FIRST_SLEEP * (1 << times) * self.tries.get(peer, self.took)
        patience = min(max(SHORTEST_PATIENCE, sleep), LONGEST_HOLD)
        self.losers[peer], self.losses[peer] = now + patience, (times + 1, now)
        return patience

    def forget(self, peer: Hashable) -> None:
        """Nobody waits for a peer any more."""
        for known in (self.losers, self.losses, self.tries):
            known.pop(peer, None)


class TableTurns:
    """The turns at all tables.

    Args:
        most: how many requests may be at one table.
        clock: seconds that only go forward.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._tables: dict[str, _Table] = {}
        self._answered: OrderedDict[tuple[str, Hashable], float] = OrderedDict()

    def waiting(self) -> int:
        """How many are held back, and commits are on their way, at all tables."""
        return sum(len(table.line) + table.at_work for table in self._tables.values())

    def holds(self, names: Collection[str]) -> bool:
        """Whether somebody would be held back at these tables now."""
        return any(table.losers or table.line for name in names if (table := self._tables.get(name)) is not None)

    def _crowded(self, names: Collection[str]) -> None:
        for name in names:
            table = self._tables.get(name)
            if table is not None and table.at_work + len(table.line) >= self._most:
                raise ThrottlingError(f"Too many requests wait for {name}. Try again in a second.")

    # ---- who brings its version itself -----------------------------------------------------------------------------------------

    def begin(self, names: Collection[str], peer: Hashable) -> None:
        """Somebody brings versions of tables, built on what it knows.

        Raises:
            ThrottlingError: too many are at one of them.
        """
        self._crowded(names)
        for name in names:
            table = self._tables.setdefault(name, _Table())
            table.at_work += 1
            table.came(peer, self._clock(), self._answered.pop((name, peer), None))
            if table.turn == peer:
                self._stop_timer(table)  # it came; the turn ends when its version is decided

    def failed(self, names: Collection[str], peer: Hashable, *, lost: bool) -> None:
        """Nothing was committed: somebody else was faster, and it will come again, or something else went wrong."""
        for name in names:
            table = self._tables[name]
            table.at_work -= 1
            if lost:
                patience = table.lost(peer, self._clock())
                asyncio.get_running_loop().call_later(patience, self._ended, name, table, None)
            else:
                table.forget(peer)
            self._ended(name, table, peer)

    async def won(self, names: Collection[str], peer: Hashable) -> None:
        """Something was committed. Returns when it is the client's turn to be answered, at each of its tables."""
        for name in names:
            table = self._tables[name]
            table.at_work -= 1
            table.forget(peer)
        waits = self._in_line(names, peer)
        for name in names:
            self._ended(name, self._tables[name], peer)
        await self._held(waits)
        for name in names:
            self._answered[name, peer] = self._clock()
        while len(self._answered) > _MOST_ANSWERED:
            self._answered.popitem(last=False)

    def forget(self, peer: Hashable) -> None:
        """A connection is gone: nobody waits for it."""
        for name, table in [*self._tables.items()]:
            table.forget(peer)
            self._ended(name, table, peer)

    # ---- what the server commits -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def served(self, names: Collection[str]) -> AsyncIterator[None]:
        """The server commits to tables within: first it waits for its turn at each of them.

        Raises:
            ThrottlingError: too many are at one of them.
        """
        self._crowded(names)
        tables = {name: self._tables.setdefault(name, _Table()) for name in names}
        for table in tables.values():
            table.coming += 1
        begun = False
        try:
            await self._held(self._in_line(names, _SERVER))
            begun = True
            for table in tables.values():
                table.at_work += 1
                table.serving += 1
            yield
        finally:
            for name, table in tables.items():
                table.coming -= 1
                table.at_work -= begun
                table.serving -= begun
                self._ended(name, table, None if table.serving else _SERVER)

    # ---- the line --------------------------------------------------------------------------------------------------------------

    def _in_line(self, names: Collection[str], peer: Hashable) -> list[tuple[str, _Table, _Held]]:
        """Puts somebody at the end of the line of each table where there is one, or has to be one."""
        waits = []
        for name in names:
            table = self._tables[name]
            if table.losers or table.line or (peer is _SERVER and table.turn not in (None, _SERVER)):
                held = _Held(peer, asyncio.get_running_loop().create_future())
                table.line.append(held)
                waits.append((name, table, held))
        return waits

    async def _held(self, waits: Collection[tuple[str, _Table, _Held]]) -> None:
        if not waits:
            return
        try:
            await asyncio.wait([held.end for _, _, held in waits], timeout=LONGEST_HOLD)
        finally:
            for name, table, held in waits:
                if held in table.line:
                    table.line.remove(held)
                    self._ended(name, table, None)

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
        if not (table.losers or table.line or table.at_work or table.coming or table.turn) and self._tables.get(name) is table:
            del self._tables[name]

    def _answer(self, name: str, table: _Table) -> None:
        """Answers the first in line; what the server commits is begun together."""
        while True:
            held = table.line.popleft()
            if not held.end.done():
                held.end.set_result(None)
            if held.peer is not _SERVER or not table.line or table.line[0].peer is not _SERVER:
                break
        table.turn = held.peer
        longest = LONGEST_GAP if held.peer is _SERVER else table.gap
        table.timer = asyncio.get_running_loop().call_later(longest, self._ended, name, table, held.peer)

    def _stop_timer(self, table: _Table) -> None:
        if table.timer is not None:
            table.timer.cancel()
            table.timer = None
