"""Handles on tables of a lake: one that commits at once, one inside a transaction, one that only reads."""

from __future__ import annotations

from tiltyard.catalog.read_set import TableScope
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.handles.batches import WriterVerb
from tiltyard.handles.cloning import CloneVerb
from tiltyard.table import TableReader, TableWriter
from tiltyard.verbs.engine.staged_access import StagedAccess


class LakeTable(CloneVerb, WriterVerb, TableWriter):
    """A table of a lake. Each verb is a transaction of its own, decided in the lake's catalog.

    It is opened by ``lake.table`` and made by ``lake.create_table``. It has no ``cleanup``: snapshots of the lake may need what this table
    alone does not, so ``lake.cleanup`` does that.
    """

    name: str = ""


class TransactionTable(TableWriter):
    """A table in a transaction: the version the transaction began with, plus its own writes.

    It has no ``clone``, which a transaction could not roll back, and neither tags nor branches: those of the lake are over all tables.

    Every use of it is noted by its scope, and refused once the transaction is used up. A new verb that asks for no less is noted as reading
    everything.
    """

    _scope: TableScope

    def __init__(self, scope: TableScope, access: StagedAccess, file: ManifestFile, scheme: Scheme) -> None:
        super().__init__(access, file, scheme, scope=scope)

    @property
    def name(self) -> str:
        """What the transaction calls it."""
        return self._scope.name

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"


class LakeReader(TableReader):
    """A table of a snapshot: it reads, and stays at its version."""

    name: str = ""

    def refresh(self) -> LakeReader:
        """Stays where it is: a snapshot does not move."""
        return self
