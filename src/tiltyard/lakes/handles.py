"""Handles on tables of a lake: one that commits at once, one inside a transaction, one that only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import pyarrow as pa

from tiltyard.errors import InvalidInput, NotFound, TiltyardError, UnsupportedFeature
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFragment
from tiltyard.table import Table
from tiltyard.transaction.commit import CommitResult
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.verbs.history import HistoryEntry
from tiltyard.verbs.place import Place

if TYPE_CHECKING:
    from lance import LanceDataset

    from tiltyard.catalog.staging import StagedPlace


def _not_here(what: str, instead: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"{what} is not done through a table of a lake.", feature=what, writing=True, advice=instead)


class LakeTable(Table):
    """A table of a lake. Each verb is a transaction of its own, decided in the lake's catalog."""

    name: str = ""
    in_transaction: ClassVar[bool] = False
    """Whether only its transaction can see its newest version."""

    def cleanup(self, **_: Any) -> NoReturn:
        """Not here: snapshots of the lake may need what this table alone does not."""
        raise _not_here("cleanup", "Use lake.cleanup().")

    def _committed(self, config: Mapping[str, str], version: int) -> None:
        """No automatic cleanup either, for the same reason."""


class Owner(Protocol):
    """What a handle asks of its transaction."""

    def check_open(self) -> None: ...


class TransactionTable(LakeTable):
    """A table inside a transaction: at the version the transaction began with, plus the transaction's own writes."""

    in_transaction: ClassVar[bool] = True

    def __init__(self, owner: Owner, name: str, place: StagedPlace, file: ManifestFile, scheme: Scheme) -> None:
        self._owner = owner
        self._known: tuple[Place, ManifestFile] = (place, file)
        self.name = name
        self.was_read = False
        self.dropped = False
        super().__init__(place, file, scheme)

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"

    def _check(self) -> None:
        self._owner.check_open()
        if self.dropped:
            raise NotFound(f"{self.name} was dropped by this transaction.", name=self.name)

    # Every use goes through one of these two, so none outlives the transaction.

    @property
    def _place(self) -> Place:
        self._check()
        return self._known[0]

    @_place.setter
    def _place(self, place: Place) -> None:
        self._known = (place, self._known[1])

    @property
    def _file(self) -> ManifestFile:
        self._check()
        return self._known[1]

    @_file.setter
    def _file(self, file: ManifestFile) -> None:
        self._known = (self._known[0], file)

    @property
    def lance(self) -> LanceDataset:
        self.was_read = True
        return super().lance

    @property
    def schema(self) -> pa.Schema:
        self.was_read = True
        return super().schema

    @property
    def field_ids(self) -> Mapping[str, int]:
        self.was_read = True
        return super().field_ids

    @property
    def fragments(self) -> Sequence[DataFragment]:
        self.was_read = True
        return super().fragments

    @property
    def config(self) -> Mapping[str, str]:
        self.was_read = True
        return super().config

    @property
    def metadata(self) -> Mapping[str, str]:
        self.was_read = True
        return super().metadata

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        self.was_read = True
        return super().history(limit)

    def count_rows(self, filter: str | None = None) -> int:
        self.was_read = True
        return super().count_rows(filter)

    def changes(self, *args: Any, **more: Any) -> pa.RecordBatchReader:
        self.was_read = True
        return super().changes(*args, **more)

    def _commit(self, work: Callable[[], tuple[CommitResult, ManifestFile]]) -> CommitResult:
        try:
            result = super()._commit(work)
        except TiltyardError:
            self.was_read = True  # that it failed says something of what is there
            raise
        if result.operation not in (Append.name, Overwrite.name):
            self.was_read = True  # what it does depends on what is there
        return result

    @property
    def tags(self) -> NoReturn:
        raise _not_here("tagging", "Use lake.tags, which name whole snapshots.")

    @property
    def branches(self) -> NoReturn:
        raise _not_here("branching", "Use lake.branches, which fork all tables at once.")

    def clone(self, *_: Any, **__: Any) -> NoReturn:
        """Not here: a clone is another table, which this transaction cannot take back."""
        raise _not_here("clone", "Clone the table outside the transaction.")


class ReadingTable(LakeTable):
    """A table of a snapshot: it reads, and never moves."""

    def _commit(self, work: Callable[[], tuple[CommitResult, ManifestFile]]) -> CommitResult:
        raise InvalidInput(
            f"{self.name or 'The table'} was opened from a snapshot, which is only read.", advice="Use lake.table(), or a transaction."
        )

    def refresh(self) -> ReadingTable:
        """Stays where it is: a snapshot does not move."""
        return self
