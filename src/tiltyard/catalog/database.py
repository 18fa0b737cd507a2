"""What two SQL databases do differently, as one small interface."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.records import Ticket


class Trouble(Enum):
    """What a failed statement means for the one who sent it."""

    BUSY = "locked by another connection; nothing was applied, and a retry may succeed"
    LOST = "no answer came; the statement may have been applied"
    FAILED = "the database rejected the statement"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed statement, told in codes alone: the words of a driver may quote an address or a record.

    Attributes:
        trouble: what it means.
        code: the SQLSTATE, or the name of SQLite's result.
        transient: whether trying again later may help.
        advice: what to do next.
    """

    trouble: Trouble
    code: str
    transient: bool = False
    advice: str = ""


class Database(Protocol):
    """One address of one kind of database."""

    shown: str
    """The address, without credentials."""

    patience: Patience

    one_writer: bool
    """Whether only one transaction can write at a time anyway, so that the threads of a process had better queue up."""

    queue: Path | None
    """A directory at which the processes of this machine stand in line, where only one transaction can write at a time."""

    lock_all: str
    """Within a transaction: keeps everybody else from changing the tables' form. May be empty."""

    def engine(self) -> Engine:
        """Fresh connections, in autocommit mode: transactions are begun and ended by statements, so that it is known what was sent."""

    def read(self, connection: Connection, keys: Collection[str]) -> Sequence[tuple[str, str]]:
        """The records under these keys, however many they are, in one statement."""

    def begin(self, connection: Connection) -> None:
        """Begins a transaction that will write."""

    def look(self, connection: Connection, ordered: Sequence[tuple[str, bool]]) -> Sequence[tuple[str, str]]:
        """Locks the records that are there, one by one in the given order, and reads them as they are then.

        Args:
            ordered: keys, and whether each is to be locked exclusively.
        """

    def insert(self, connection: Connection, new: Sequence[tuple[str, str]]) -> set[str]:
        """Creates records, and tells which keys were free; waits for others who are about to create the same."""

    def update(self, connection: Connection, known: Sequence[tuple[str, str]]) -> None:
        """Gives records that are there other bodies."""

    def delete(self, connection: Connection, keys: Collection[str]) -> None:
        """Removes records, whether or not they are there."""

    def ticket(self, engine: Engine, names: Collection[str], longest: float) -> Ticket:
        """See ``GivesTickets.ticket``."""

    def holder(self, engine: Engine) -> str:
        """Who has held the catalog's locks for longest, and what to do about it, in a sentence; empty where that cannot be told."""

    def failure(self, error: BaseException | None) -> Failure:
        """What an error of the driver means."""

    def committed(self, cursor: Any) -> bool:
        """Whether the answer to a COMMIT, where the driver passes one on, says that it was one."""
