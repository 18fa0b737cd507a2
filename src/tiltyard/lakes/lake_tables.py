"""Handles on tables of a lake: one that commits at once, one inside a transaction and what it staged, one that only reads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.lake_values import Change, TableHead, VersionStep
from tiltyard.catalog.marks import remove_owner
from tiltyard.catalog.read_set import TableScope
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.handles.batches import WriterVerb
from tiltyard.handles.cloning import CloneVerb
from tiltyard.interfaces import Runtime
from tiltyard.storage.external import ExternalStore
from tiltyard.table import TableReader, TableWriter
from tiltyard.transaction.operations import MAINTENANCE
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.staged_access import StagedAccess
from tiltyard.verbs.write import AppendCache

if TYPE_CHECKING:
    from tiltyard.lakes.opening import LakeLocation


class LakeTable(CloneVerb, WriterVerb, TableWriter):
    """A table of a lake. Each verb is a transaction of its own, decided in the lake's catalog.

    It is opened by ``lake.table`` and made by ``lake.create_table``. It has no ``cleanup``: snapshots of the lake may need what this table
    alone does not, so ``lake.cleanup`` does that.
    """

    name: str = ""


class TransactionTable(TableWriter):
    """A table in a transaction: the version the transaction began with, plus its own writes.

    It has no ``clone``, which a transaction could not roll back, and neither tags nor branches: those of the lake are over all tables.

    What is read through it is recorded, for serializable transactions. It cannot be used after the transaction has ended.
    """

    _scope: TableScope

    def __init__(
        self, scope: TableScope, access: StagedAccess, file: ManifestFile, scheme: Scheme, appends: AppendCache | None = None
    ) -> None:
        super().__init__(access, file, scheme, scope=scope, appends=appends)

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


MANY_TABLES: Final = 256
"""How many tables' stores a lake keeps open, with what these know of their directories."""
KEPT_BYTES: Final = 64 * 1024
"""A larger version is read again when it is needed: a lake may know many tables."""


@dataclass(eq=False, slots=True)
class OpenedTable:
    """What a lake keeps of a table that was used: its open store, what appends left, and the version that was made here last."""

    access: TableAccess
    appends: AppendCache = field(default_factory=AppendCache)
    latest: tuple[str | None, ManifestFile] | None = None
    """With the table's own branch that it is on: numbers are counted anew on each."""

    def keep(self, branch: str | None, file: ManifestFile | None) -> None:
        """Keeps a version that has its final name: the next transaction most often begins with it."""
        self.latest = (branch, file) if file is not None and len(file.message.body) <= KEPT_BYTES else None


class OpenedTables:
    """The tables that a lake used, by where they live. Threads may share it."""

    def __init__(self) -> None:
        self._by_home: dict[tuple[str, str], OpenedTable] = {}

    def at(self, location: str, where: LakeLocation, runtime: Runtime) -> OpenedTable:
        """What is kept of the table there, whose store is opened if it was not."""
        home = (where.root, location)
        known = self._by_home.get(home)
        if known is None:
            if len(self._by_home) >= MANY_TABLES:
                self._by_home.clear()
            known = self._by_home.setdefault(home, OpenedTable(open_access(where.uri_of(location), where.storage, runtime=runtime)))
        return known

    def forget(self) -> None:
        """Lets go of all."""
        self._by_home.clear()


@dataclass(eq=False, slots=True)
class StagedTable:
    """A table the transaction has opened, made, renamed or dropped."""

    id: str
    name: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    head: TableHead | None = None
    """As the base has it; None for one that this transaction makes."""
    location: str = ""
    access: StagedAccess | None = None
    handle: TransactionTable | None = None
    scope: TableScope | None = None
    opened: OpenedTable | None = None
    """What the lake keeps of it; None for one that this transaction makes."""
    file: ManifestFile | None = None
    """The base version."""
    base: int = 0
    """Where its writes stand now: the base, or what they were carried over to."""
    ground: TableHead | None = None
    """The head that is: as the catalog had it, before the table was forked for this line of history."""
    former: str = ""
    dropped: bool = False
    steps: tuple[VersionStep, ...] = ()
    """The versions that are to be published, as of the last publication."""
    taken_in: TableHead | None = None
    """A table that is there already, on another branch of the lake; its owner is who may write to it afterwards."""

    @property
    def wrote(self) -> bool:
        return self.access is not None and bool(self.access.store.private)

    @property
    def defines(self) -> bool:
        """Whether the transaction makes, takes in, renames or drops it."""
        return self.head is None or self.dropped or bool(self.former)

    @property
    def operations(self) -> tuple[str, ...]:
        """What the transaction does to it, in order: verbs by their operations, the rest by its kind."""
        made = () if self.access is None else tuple(commit.operation.name for commit in self.access.recorded)
        kinds = {"register": self.taken_in is not None, "create": self.head is None and self.taken_in is None, "drop": self.dropped}
        return (*(kind for kind, is_so in {**kinds, "rename": bool(self.former)}.items() if is_so), *made)

    @property
    def store(self) -> ExternalStore:
        assert self.access is not None
        return cast(ExternalStore, self.access.store.inner)

    def _steps(self) -> tuple[VersionStep, ...]:
        """Its versions, lowest first, with the commits that made them."""
        if self.access is None:
            return ()
        made = [(own, commit.transaction) for own, commit in zip(self.access.store.own(), self.access.recorded, strict=True)]
        return tuple(
            VersionStep(own.version, own.path, own.staged, by.uuid, by.operation.name, not isinstance(by.operation, MAINTENANCE))
            for own, by in made
        )

    def withdraw(self) -> None:
        """Removes what was written to it, and, if it was to be made, the word on whose it is."""
        if self.access is not None:
            self.access.throw_away()
            if not self.access.store.base:
                remove_owner(self.access)

    def pending(self, transaction: str, lake_branch: str) -> list[Pending]:
        """Its versions as the catalog has them now."""
        branch = self.head.branch if self.head is not None else None
        line = self.head.owner if self.head is not None else ""
        return [
            Pending(self.id, lake_branch, branch, step.version, step.path, step.staged or "", transaction, False, line)
            for step in self.steps
        ]

    def change(self) -> Change | None:
        """What the transaction does to the table, now that all is staged; None where it only reads it."""
        steps = self.steps = self._steps()
        head = self.head
        if head is None and self.taken_in is not None:
            new = self.taken_in
            return Change(
                new.id, "register", self.name, new.version, new.version, (), new.location, new.naming, new.branch,
                base_transaction=new.transaction, owner=new.owner,
            )  # fmt: skip
        if head is None:
            return Change(self.id, "create", self.name, 0, 0, steps, self.location, Scheme.V2.value)
        ground = self.ground or head
        built = partial(Change, self.id, base_branch=ground.branch or "", base_transaction=ground.transaction)
        if self.dropped:
            return built(kind="drop", name=head.name, base=self.base, read=head.version)
        branch = head.branch if steps else None
        if self.former:
            return built(kind="rename", name=self.name, base=self.base, read=head.version, steps=steps, branch=branch, former=self.former)
        return built(kind="write", name=self.name, base=self.base, read=head.version, steps=steps, branch=branch) if steps else None
