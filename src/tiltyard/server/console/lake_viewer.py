"""A lake as one principal sees it: only tables that their roles show, and snapshots that changed some of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiltyard.catalog.lake_values import MAIN, Change, Snapshot, TableHead
from tiltyard.catalog.value_codec import tip_key
from tiltyard.errors import NotFound
from tiltyard.lake import Lake
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.table_names import JOINT, full_name, logical_name, shown
from tiltyard.merges import TableDifference
from tiltyard.server.principals import Principal
from tiltyard.server.routes import Role

SEARCHED: Final = 2_000
"""Snapshots that one page reads at most while it looks for those that a filter lets through."""
NEARBY: Final = 100
"""Snapshots that are searched for the next one that a role shows."""


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which snapshots a page shows.

    Attributes:
        author: a part of the author's name, in any case.
        table: a table, or a namespace with all tables below it.
        operation: what was done to a table, such as ``Append`` or ``drop``, in any case.
    """

    author: str = ""
    table: str = ""
    operation: str = ""

    def __bool__(self) -> bool:
        return bool(self.author or self.table or self.operation)

    def passes(self, snapshot: Snapshot) -> bool:
        if self.author and not any(self.author.lower() in author.lower() for author in snapshot.authors):
            return False
        changes = [change for change in snapshot.changes if self._is_of(table_of(change))]
        if self.table and not changes:
            return False
        wanted = self.operation.lower()
        return not wanted or any(wanted in (change.kind, *map(str.lower, change.operations)) for change in changes)

    def _is_of(self, name: str) -> bool:
        return not self.table or name == self.table or name.startswith(self.table + ".")


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some snapshots, latest first.

    Attributes:
        snapshots: those that the filter and the roles let through.
        next: pass it as ``before`` for the next page; None where there is no more.
        searched: how many were read for it.
    """

    snapshots: tuple[Snapshot, ...]
    next: int | None
    searched: int


@dataclass(frozen=True, slots=True)
class LakeViewer:
    """A lake, and who looks at it.

    Attributes:
        lake: on the branch that is looked at.
        principal: their roles decide what is shown.
    """

    lake: Lake
    principal: Principal

    @property
    def branch(self) -> str:
        return self.lake.branch

    @property
    def sees_all(self) -> bool:
        """Whether the role is for the lake as a whole."""
        return self.principal.may(Role.READER, ())

    @property
    def may_act(self) -> bool:
        """Whether branches may be merged: that may change, create and drop any table."""
        return self.principal.may(Role.MAINTAINER, ())

    def sees(self, name: str) -> bool:
        """Whether a table may be seen, by its name as people write it."""
        return self.principal.sees(name.replace(".", JOINT))

    def former(self, name: str) -> str:
        """What a table was called before; empty where that name may not be seen."""
        return name if name and self.sees(name) else ""

    def difference(self, found: TableDifference) -> TableDifference:
        """How a table differs, without a name that may not be seen."""
        return replace(found, former=self.former(found.former))

    def on_branch(self, branch: str) -> LakeViewer:
        """The same lake on another branch.

        Raises:
            NotFound: there is no such branch.
        """
        return self if branch in ("", self.branch) else LakeViewer(self.lake.on_branch(branch), self.principal)

    def tip(self) -> int:
        """The number of the latest snapshot, by one read."""
        key = tip_key(self.branch)
        return int(self.lake.catalog.records.get([key]).get(key, {}).get("snapshot", 0))

    def branches(self) -> list[str]:
        return [MAIN, *sorted(self.lake.branches)]

    def heads(self, at: int | None = None) -> dict[str, TableHead]:
        """The tables that may be seen, by name; shards are left out."""
        cut = self.lake.catalog.cut(self.branch) if at is None else self.lake.catalog.cut_at(at, self.branch)
        return {shown(name): head for name, head in sorted(cut.tables.items()) if logical_name(name) is None and self.principal.sees(name)}

    def snapshot(self, at: int | None = None) -> LakeSnapshot:
        return self.lake.snapshot(at)

    def check_table(self, name: str) -> str:
        """The name of a table that may be seen; one that may not is as good as not there.

        Raises:
            NotFound: it may not be seen.
            InvalidInput: it is no name.
        """
        if not self.principal.sees(full_name(name)):
            raise NotFound(f"There is no table {name!r} in the lake.", name=name)
        return name

    def visible(self, snapshots: Iterable[Snapshot]) -> Iterator[Snapshot]:
        """Snapshots with the changes that may be seen; those that have none are left out."""
        for snapshot in snapshots:
            changes = tuple(change for change in snapshot.changes if self.sees(table_of(change)))
            if changes or (self.sees_all and not snapshot.changes):
                yield snapshot if len(changes) == len(snapshot.changes) else replace(snapshot, changes=changes)

    def history(self, limit: int, before: int | None = None, wanted: HistoryFilter | None = None) -> HistoryPage:
        """A page of the history. Reads no more than ``SEARCHED`` snapshots for it."""
        narrow = wanted or HistoryFilter()
        found: list[Snapshot] = []
        searched, last = 0, None
        for snapshot in self.lake.history(SEARCHED, before=before):
            searched, last = searched + 1, snapshot.id
            found += [seen for seen in self.visible([snapshot]) if narrow.passes(seen)]
            if len(found) == limit:
                break
        stopped = len(found) == limit or searched == SEARCHED
        more = last is not None and stopped and bool(self.lake.history(1, before=last)[:1])
        return HistoryPage(tuple(found), last if more else None, searched)

    def after(self, number: int) -> int | None:
        """The snapshot after one that may be seen, too; None where there is none nearby."""
        if self.sees_all:
            return number + 1 if number < self.tip() else None
        later = self.visible(self.lake.history(NEARBY, before=number + 1 + NEARBY))
        return min((snapshot.id for snapshot in later if snapshot.id > number), default=None)

    def one(self, number: int) -> Snapshot:
        """A snapshot by its number.

        Raises:
            NotFound: there is none, or it changed nothing that may be seen.
        """
        found = next(self.visible(self.lake.history(1, before=number + 1)), None)
        if found is None or found.id != number:
            raise NotFound(f"There is no snapshot {number} on branch {self.branch!r}.", name=str(number))
        return found


def table_of(change: Change) -> str:
    """The table that a change is about, as people know it: a shard counts as the table it is a part of."""
    full = change.name.replace(".", JOINT)
    return shown(logical_name(full) or full)


def versions_rebased_over(change: Change) -> range:
    """The versions that came between the one a change was built on and its own."""
    return range(change.read + 1, change.base + 1) if 0 < change.read < change.base else range(0)


def makers(snapshots: Sequence[Snapshot]) -> dict[tuple[str, int], tuple[Snapshot, str]]:
    """By table id and version: the snapshot that made it, and its operation."""
    return {
        (change.table, step.version): (snapshot, step.operation)
        for snapshot in snapshots
        for change in snapshot.changes
        for step in change.steps
    }
