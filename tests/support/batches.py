"""Transactions that wait for each other on purpose, so that what they offer is committed in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiltyard.catalog.lake_values import LakeCommit
from tiltyard.catalog.records import GivesTickets, ShowsOffers, Ticket
from tiltyard.catalog.value_codec import table_key
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction

PATIENCE = 60.0


@dataclass
class Waiter:
    """A transaction that is committed in a thread of its own.

    Attributes:
        tx: the transaction.
        commit: what came of it; None as long as nothing did.
        error: what it failed with.
    """

    tx: LakeTransaction
    commit: LakeCommit | None = None
    error: BaseException | None = None
    thread: threading.Thread = field(default_factory=threading.Thread)

    def start(self) -> Waiter:
        def work() -> None:
            try:
                self.commit = self.tx.commit()
            except BaseException as error:  # noqa: BLE001 - for the test to look at
                self.error = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        return self

    def done(self) -> LakeCommit:
        """What it was committed as."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "a transaction hangs"
        if self.error is not None:
            raise self.error
        assert self.commit is not None
        return self.commit

    def failed(self) -> BaseException:
        self.thread.join(PATIENCE)
        assert self.error is not None, "it was committed"
        return self.error


@dataclass
class HeldTurn:
    """The turn at some tables, which the test has: all who want it wait until it is given back."""

    ticket: Ticket
    waiters: list[Waiter] = field(default_factory=list)

    def offers(self) -> int:
        assert isinstance(self.ticket, ShowsOffers)
        return len(self.ticket.offers())

    def offered(self) -> list[bytes]:
        """What they offer."""
        assert isinstance(self.ticket, ShowsOffers)
        return [data for _, data in self.ticket.offers()]

    def line_up(self, tx: LakeTransaction, *, offers: bool = True, batch: bool = True) -> Waiter:
        """Has a transaction wait behind all that do; it is in its place, with its offer if it makes one, when this returns."""
        before, standing = self.offers(), len(self._entries())
        tx.batch = batch
        waiter = Waiter(tx).start()
        self.waiters.append(waiter)
        until(lambda: (self.offers() > before) if offers else len(self._entries()) > standing or not waiter.thread.is_alive())
        return waiter

    def _entries(self) -> list[str]:
        from tiltyard.catalog.tickets import FileTicket, _queue_of, _queued

        assert isinstance(self.ticket, FileTicket)
        return [name for mine, _ in self.ticket._entries for name in _queued(self.ticket.directory, _queue_of(mine))]

    def give_back(self) -> list[LakeCommit]:
        """Lets the first of them go on, and waits for all; what they were committed as."""
        self.ticket.give_back()
        return [waiter.done() for waiter in self.waiters]


@contextmanager
def held_turn(lake: Lake, *tables: str) -> Iterator[HeldTurn]:
    """Holds the turn at some tables of a lake, and sees to it that all who use this handle wait for turns there."""
    heads = lake.catalog.cut(lake.branch).tables
    found = [heads[name].id for name in tables]
    lake.hot.note(found)
    records = lake.catalog.records
    assert isinstance(records, GivesTickets)
    held = HeldTurn(records.ticket([table_key(lake.branch, table) for table in found], PATIENCE))
    try:
        yield held
    finally:
        held.ticket.give_back()
        for waiter in held.waiters:
            waiter.thread.join(PATIENCE)


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that other threads do."""
    never, tries = threading.Event(), 0
    while not holds():
        never.wait(0.005)
        tries += 1
        assert tries < PATIENCE / 0.005, "nobody does what was waited for"
