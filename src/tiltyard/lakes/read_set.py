"""What a transaction was told: the tables it looked at and how closely, the names it asked for, and whether it saw the list of all names.

A read is noted where a manifest or a name is handed out, so that no way of reading can be forgotten: ``Names`` hands out names and
``TransactionTable`` manifests. Under serializable isolation ``publishing.decide`` compares all of it once more, under lock.

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
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tiltyard.catalog.lake_values import READ_LEVELS, Cut, ExpectedHead, ReadLevel, TableHead

if TYPE_CHECKING:
    from tiltyard.lakes.commit_transaction import StagedTable


class ReadSet:
    """What one transaction has read of its base. May be added to by many threads."""

    def __init__(self, cut: Cut) -> None:
        self._by_id = {head.id: head for head in cut.tables.values()}
        self._lock = threading.Lock()
        self._levels: dict[str, ReadLevel] = {}
        self._absent: dict[str, None] = {}
        self._names: int | None = None
        self._snapshot_of_names = cut.names

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

    def note_everything(self) -> None:
        """Notes that the names and versions of all tables were read."""
        self.note_list()
        for table in self._by_id:
            self.note(table, "table")

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


class Names:
    """The names of a transaction's tables: those of its base, and what it made of them. Whatever it hands out is noted."""

    def __init__(self, cut: Cut, reads: ReadSet) -> None:
        self._base: Mapping[str, TableHead] = cut.tables
        self._reads = reads

    def list(self, touched: Mapping[str, StagedTable]) -> set[str]:
        """All names."""
        self._reads.note_list()
        return {name for name in {*self._base, *touched} if self._stands(name, touched)}

    def find(self, name: str, touched: Mapping[str, StagedTable]) -> TableHead | StagedTable | None:
        """What a name stands for: one of the base, or one the transaction has touched."""
        self._note(name)
        if not self._stands(name, touched):
            return None
        found = touched.get(name)
        return self._base[name] if found is None else found

    def _note(self, name: str) -> None:
        head = self._base.get(name)
        if head is None:
            self._reads.note_absent(name)
        else:
            self._reads.note(head.id, "name")

    def _stands(self, name: str, touched: Mapping[str, StagedTable]) -> bool:
        found = touched.get(name)
        if found is not None:
            return not found.dropped
        return name in self._base and name not in left_by(touched.values())


def left_by(touched: Iterable[StagedTable]) -> Collection[str]:
    """Names of the base that the transaction took from their tables."""
    return {table.former for table in touched if table.former} | {one.name for one in touched if one.dropped and one.head is not None}
