"""Handles on tables of a lake: one that commits at once, one inside a transaction, one that only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from tiltyard.catalog.lake_values import ReadLevel
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.handles.cloning import CloneVerb
from tiltyard.table import TableReader, TableWriter
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.access import TableAccess

if TYPE_CHECKING:
    from tiltyard.catalog.staging import StagedAccess


class LakeTable(CloneVerb, TableWriter):
    """A table of a lake. Each verb is a transaction of its own, decided in the lake's catalog.

    It is opened by ``lake.table`` and made by ``lake.create_table``. It has no ``cleanup``: snapshots of the lake may need what this table
    alone does not, so ``lake.cleanup`` does that.
    """

    name: str = ""

    def _committed(self, config: Mapping[str, str], version: int) -> None:
        """No automatic cleanup either, for the same reason."""


class TableOwner(Protocol):
    """What a handle asks of its transaction."""

    def check_open(self) -> None: ...

    def note_read(self, table: str, level: ReadLevel) -> None: ...


class TransactionTable(TableWriter):
    """A table in a transaction: the version the transaction began with, plus its own writes.

    It has no ``clone``, which a transaction could not roll back, and neither tags nor branches: those of the lake are over all tables.

    Every use gets at the table through one of five members, so that none outlives the transaction, and each of them but ``_blind`` notes
    that the table was read: ``_access``, ``_main`` and ``_file`` that all of it was, ``_data`` its rows, schema and settings. A new verb
    that uses none of the narrower ones is noted as reading everything.
    """

    name: str = ""

    def __init__(self, owner: TableOwner, table: str, name: str, access: StagedAccess, file: ManifestFile, scheme: Scheme) -> None:
        self._owner = owner
        self._table = table
        self._known: tuple[TableAccess, ManifestFile] = (access, file)
        self.name = name
        self.dropped = False
        super().__init__(access, file, scheme)

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"

    def _check(self) -> None:
        self._owner.check_open()
        if self.dropped:
            raise NotFound(f"{self.name} was dropped by this transaction.", name=self.name)

    def _read(self, level: ReadLevel) -> tuple[TableAccess, ManifestFile]:
        """The one place at which the table is handed out."""
        self._check()
        self._owner.note_read(self._table, level)
        return self._known

    def _blind(self) -> tuple[TableAccess, ManifestFile]:
        self._check()
        return self._known

    def _data(self) -> tuple[TableAccess, ManifestFile]:
        return self._read("rows")

    @property
    def _access(self) -> TableAccess:
        return self._read("table")[0]

    @_access.setter
    def _access(self, access: TableAccess) -> None:
        self._known = (access, self._known[1])

    @property
    def _main(self) -> TableAccess:
        return self._read("table")[0]

    @_main.setter
    def _main(self, access: TableAccess) -> None:
        pass  # the same as ``_access``: a transaction knows none of a table's own branches

    @property
    def _file(self) -> ManifestFile:
        return self._read("table")[1]

    @_file.setter
    def _file(self, file: ManifestFile) -> None:
        self._known = (self._known[0], file)

    @property
    def uri(self) -> str:
        return self._blind()[0].uri  # stays the same as long as the table has its id, and that is read with its name

    def _committed(self, config: Mapping[str, str], version: int) -> None:
        """No automatic cleanup: snapshots of the lake may need what this table alone does not."""

    def _commit(self, work: Callable[[], tuple[CommitResult, ManifestFile]]) -> CommitResult:
        before = self._blind()[1]
        try:
            result = super()._commit(work)
        except TiltyardError:
            self._owner.note_read(self._table, "table")  # that it failed says something of what is there
            raise
        if result.version <= before.manifest.version:
            self._owner.note_read(self._table, "rows")  # nothing was written that would be compared with what others did
        return result


class LakeReader(TableReader):
    """A table of a snapshot: it reads, and stays at its version."""

    name: str = ""

    def refresh(self) -> LakeReader:
        """Stays where it is: a snapshot does not move."""
        return self
