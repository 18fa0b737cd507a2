"""Handles on tables of a lake: one that commits at once, one inside a transaction, one that only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from tiltyard.catalog.lake_values import ReadLevel
from tiltyard.errors import InvalidInput, NotFound, TiltyardError, UnsupportedFeature
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.table import Table
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.engine.access import Place

if TYPE_CHECKING:
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

    def note_read(self, table: str, level: ReadLevel) -> None: ...


class TransactionTable(LakeTable):
    """A table inside a transaction: at the version the transaction began with, plus the transaction's own writes.

    Every use gets at the table through one of five members, so that none outlives the transaction, and each of them but ``_blind`` notes
    that the table was read: ``_place``, ``_main`` and ``_file`` that all of it was, ``_data`` its rows, schema and settings. A new verb
    that thinks nothing of it is noted as reading everything.
    """

    in_transaction: ClassVar[bool] = True

    def __init__(self, owner: Owner, table: str, name: str, place: StagedPlace, file: ManifestFile, scheme: Scheme) -> None:
        self._owner = owner
        self._table = table
        self._known: tuple[Place, ManifestFile] = (place, file)
        self.name = name
        self.dropped = False
        super().__init__(place, file, scheme)

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r})"

    def _check(self) -> None:
        self._owner.check_open()
        if self.dropped:
            raise NotFound(f"{self.name} was dropped by this transaction.", name=self.name)

    def _read(self, level: ReadLevel) -> tuple[Place, ManifestFile]:
        """The one place at which the table is handed out."""
        self._check()
        self._owner.note_read(self._table, level)
        return self._known

    def _blind(self) -> tuple[Place, ManifestFile]:
        self._check()
        return self._known

    def _data(self) -> tuple[Place, ManifestFile]:
        return self._read("rows")

    @property
    def _place(self) -> Place:
        return self._read("table")[0]

    @_place.setter
    def _place(self, place: Place) -> None:
        self._known = (place, self._known[1])

    @property
    def _main(self) -> Place:
        return self._read("table")[0]

    @_main.setter
    def _main(self, place: Place) -> None:
        pass  # the same as ``_place``: a transaction knows none of a table's own branches

    @property
    def _file(self) -> ManifestFile:
        return self._read("table")[1]

    @_file.setter
    def _file(self, file: ManifestFile) -> None:
        self._known = (self._known[0], file)

    @property
    def uri(self) -> str:
        return self._blind()[0].uri  # stays the same as long as the table has its id, and that is read with its name

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
