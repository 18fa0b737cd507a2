"""One table inside a transaction: where its base is, what was done to it, and what is to be published of it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.lake_values import Change, TableHead
from tiltyard.catalog.staging import StagedAccess
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.storage.external import ExternalStore


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
    file: ManifestFile | None = None
    """The base version."""
    base: int = 0
    """Where its writes stand now: the base, or what they were carried over to."""
    ground: TableHead | None = None
    """The head that is: as the catalog had it, before the table was forked for this line of history."""
    former: str = ""
    dropped: bool = False
    taken_in: TableHead | None = None
    """A table that is there already, on another branch of the lake; its owner is who may write to it afterwards."""

    @property
    def wrote(self) -> bool:
        return self.access is not None and bool(self.access.staging.private)

    @property
    def defines(self) -> bool:
        """Whether the transaction makes, takes in, renames or drops it."""
        return self.head is None or self.dropped or bool(self.former)

    @property
    def newest(self) -> int:
        assert self.access is not None
        return max(staged.version for staged in self.access.staging.private.values())

    @property
    def store(self) -> ExternalStore:
        assert self.access is not None
        return cast(ExternalStore, self.access.staging.inner)

    def pending(self, transaction: str, lake_branch: str) -> list[Pending]:
        """Its versions as the catalog has them now."""
        assert self.access is not None
        branch = self.head.branch if self.head is not None else None
        steps = self.access.staging.steps(self.access.committer.recorded)
        line = self.head.owner if self.head is not None else ""
        return [
            Pending(self.id, lake_branch, branch, step.version, step.path, step.staged or "", transaction, False, line) for step in steps
        ]

    def change(self) -> Change | None:
        """What the transaction does to the table; None where it only reads it."""
        steps = self.access.staging.steps(self.access.committer.recorded) if self.access is not None else ()
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


def rearrange(
    by_name: dict[str, StagedTable],
    heads: Mapping[str, TableHead],
    names: Mapping[str, str],
    dropped: Collection[str],
    taken_in: Iterable[TableHead],
) -> None:
    """Moves names as a set, so that no order among them matters.

    Args:
        by_name: the tables of a transaction; all that move are among them.
        heads: as its base has them, by tables' ids.
        names: new full names by tables' ids.
        dropped: ids of tables that go.
        taken_in: tables that come.
    """
    going = {*names, *dropped}
    moving = {touched.id: by_name.pop(name) for name, touched in [*by_name.items()] if touched.id in going}
    for table in dropped:
        moving[table].dropped = True
        by_name[f"{heads[table].name} {table}"] = moving[table]
    for table, name in names.items():
        moving[table].former = heads[table].name if heads[table].name != name else ""
        moving[table].name = name
        by_name[name] = moving[table]
    for head in taken_in:
        by_name[head.name] = StagedTable(head.id, head.name, location=head.location, taken_in=head)
