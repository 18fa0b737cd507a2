"""Where a transaction stands, and what it was told: the tables it looked at and how closely, names, and the list of all names.

A read is noted where a manifest or a name is handed out, so that no way of reading can be forgotten: ``lakes/table_names`` hands out names
and ``handles/base`` manifests. Under serializable isolation ``publishing.decide`` compares all of it once more, under lock.

| read | what the caller was told | broken by |
|---|---|---|
| ``name`` | which table a name stands for | drop, rename |
| ``rows`` | rows, schema, settings | whatever changes these, and what breaks ``name``; maintenance does not |
| ``table`` | anything else: indices, fragments, versions, history | any commit to the table, and what breaks ``name`` |
| absence | that there is no table of that name | a table that gets the name |
| list | the names of all tables | create, drop, rename and register |
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tiltyard.catalog.lake_values import READ_LEVELS, ExpectedHead, ReadLevel, TableHead
from tiltyard.errors import InvalidInput, NotFound

TransactionState = Literal["open", "committing", "in doubt", "committed", "rolled back"]


class ReadSet:
    """What one transaction has read of its base. May be added to by many threads."""

    def __init__(self, names: int) -> None:
        self._by_id: dict[str, TableHead] = {}
        self._lock = threading.Lock()
        self._levels: dict[str, ReadLevel] = {}
        self._absent: dict[str, None] = {}
        self._names: int | None = None
        self._snapshot_of_names = names

    def meet(self, head: TableHead) -> None:
        """Notes that the base has a table, which does not say yet that it was looked at."""
        with self._lock:
            self._by_id.setdefault(head.id, head)

    def note_name(self, head: TableHead) -> None:
        """Notes that the base has a table of that name."""
        self.meet(head)
        self.note(head.id, "name")

    def note(self, table: str, level: ReadLevel) -> None:
        """Notes that a table was read. One that the base does not have is the transaction's own."""
        with self._lock:
            if table in self._by_id and READ_LEVELS.index(level) > READ_LEVELS.index(self._levels.get(table, "nothing")):
                self._levels[table] = level

    def note_absent(self, name: str) -> None:
        """Notes that the base has no table of that name."""
        with self._lock:
            self._absent[name] = None

    def note_list(self) -> None:
        """Notes that the names of all tables were read."""
        with self._lock:
            self._names = self._snapshot_of_names

    def note_everything(self, heads: Iterable[TableHead]) -> None:
        """Notes that the names and versions of all tables were read."""
        self.note_list()
        for head in heads:
            self.meet(head)
            self.note(head.id, "table")

    def level(self, table: str) -> ReadLevel:
        """How closely a table was looked at."""
        return self._levels.get(table, "nothing")

    @property
    def absent(self) -> tuple[str, ...]:
        """Names that were asked for and that the base has no table of."""
        return tuple(self._absent)

    @property
    def names(self) -> int | None:
        """The snapshot that last changed a name, as the base has it; None where the list of names was not read."""
        return self._names

    def expectations(self) -> tuple[ExpectedHead, ...]:
        """What each table that was read must still be like."""
        with self._lock:
            read = [(self._by_id[table], level) for table, level in self._levels.items()]
        return tuple(ExpectedHead(head.id, head.name, head.version, head.data_version, level) for head, level in read)


class TransactionScope:
    """Where a transaction stands, and what it has read.

    open -> committing -> committed
    |            |  ^
    |            v  |  commit() again finds out
    |         in doubt
    v
    rolled back            also from committing, if the decision was no
    """

    def __init__(self, transaction: str, names: int) -> None:
        self.id = transaction
        self.state: TransactionState = "open"
        self.reads = ReadSet(names)

    def check_open(self) -> None:
        """Raises for a transaction that is used up: nothing it would say holds any more."""
        if self.state != "open":
            raise InvalidInput(f"The transaction {self.id} is {self.state}; begin another one.", argument="transaction")


@dataclass(eq=False, slots=True)
class TableScope:
    """One table in a transaction, as its handle knows it: none outlives the transaction, and what is read is noted."""

    transaction: TransactionScope
    table: str
    name: str
    dropped: bool = False

    def use(self, level: ReadLevel) -> None:
        """Called before the table is handed out to a use that looks so closely.

        Raises:
            InvalidInput: the transaction is used up.
            NotFound: it dropped the table.
        """
        self.transaction.check_open()
        if self.dropped:
            raise NotFound(f"{self.name} was dropped by this transaction.", name=self.name)
        if level != "nothing":
            self.note(level)

    def note(self, level: ReadLevel) -> None:
        """Notes what a use came to know, however it ended."""
        self.transaction.reads.note(self.table, level)
