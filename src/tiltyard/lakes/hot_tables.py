"""Hot tables: where transactions lost to others of late, they wait for their turn before they publish.

Most tables have one writer at a time, and a transaction over these asks for nothing beforehand. One that finds a table moved takes a ticket
of the catalog for it, and keeps it until it is through. From then on this process takes a ticket first, for as long as
others want the table, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.records import GivesTickets, Offering, ShowsOffers, TakesOffers, Ticket
from tiltyard.catalog.value_codec import table_key
from tiltyard.interfaces import Clock

HOT_FOR: Final = 10.0
"""Seconds for which a table is called hot after the last sign of somebody else."""
LONGEST_WAIT: Final = 600.0
"""Seconds after which a transaction goes on without a turn. Nobody dead or stopped is waited for, so a long wait is a long line that moves:
whoever gave up its place would lose races to those who have theirs."""
_MOST: Final = 1024
"""Tables to remember."""


class HotTables:
    """The tables at which this process met others of late. Threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._met: dict[str, float] = {}

    def note(self, tables: Collection[str]) -> None:
        """Notes that somebody else writes to tables as well."""
        if len(self._met) > _MOST:
            self._met = {}
        self._met.update(dict.fromkeys(tables, self._clock.monotonic()))

    def among(self, tables: Collection[str]) -> list[str]:
        """Those that are hot."""
        since = self._clock.monotonic() - HOT_FOR
        return [table for table in tables if self._met.get(table, since) > since]


class Turn:
    """A transaction's turn at the tables it writes."""

    def __init__(self, catalog: Catalog, hot: HotTables, branch: str, tables: Collection[str]) -> None:
        self._catalog, self._hot = catalog, hot
        self._branch, self._tables = branch, tables
        self._ticket: Ticket | None = None

    @property
    def taken(self) -> bool:
        return self._ticket is not None

    def is_wanted(self, lost: Collection[str] = ()) -> bool:
        """Whether a table is hot, or was just ``lost`` to others, and the turn is not ours yet."""
        if lost:
            self._hot.note(lost)
        return self._ticket is None and bool(self._hot.among(self._tables))

    def take(self, who: Offering | None = None) -> bool:
        """Waits for the turn, as one ``who`` may be spared the wait. Whether we took it just now: tables may have moved since."""
        records, hot = self._catalog.records, self._hot.among(self._tables)
        if self._ticket is not None or not hot or not isinstance(records, GivesTickets):
            return False
        names = [table_key(self._branch, table) for table in hot]
        if who is not None and isinstance(records, TakesOffers):
            self._ticket = records.ticket_for(names, LONGEST_WAIT, who)
        else:
            self._ticket = records.ticket(names, LONGEST_WAIT)
        if self._ticket.waited:
            self._hot.note(hot)
        return True

    def shown(self) -> ShowsOffers | None:
        """Our ticket, if it shows what others offer."""
        return self._ticket if isinstance(self._ticket, ShowsOffers) else None

    def awaited(self) -> list[str]:
        """The tables at which others may wait for us."""
        return [] if self._ticket is None else self._hot.among(self._tables)

    def leave(self) -> None:
        """Lets the next one go on. Leaving twice does no harm."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.give_back()
