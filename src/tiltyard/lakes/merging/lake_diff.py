"""How two snapshots of a lake differ: its tables, their columns and settings, and rows, of which no more are read than have to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.line_identity import same_version
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.fields import field_tree
from tiltyard.format.schema import arrow_from_fields
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.merging.row_identity import (
    Identity,
    Place,
    PlaceList,
    Row,
    common_columns,
    content,
    identities,
    identity_of,
    read_rows,
)
from tiltyard.lakes.merging.table_state import TableState, physical_change, state_of
from tiltyard.lakes.table_names import JOINT, shown
from tiltyard.verbs.changed_rows import Places

if TYPE_CHECKING:
    from tiltyard.lake import Lake

LakeRef: TypeAlias = "int | str | datetime | LakeSnapshot"
"""A snapshot: its number, a branch, a tag, a branch and a number with ``@`` between them, a moment, or the snapshot itself."""
RowKind: TypeAlias = Literal["added", "removed", "changed"]
TableKind: TypeAlias = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that differs.

    Attributes:
        change: ``added``, ``removed`` or ``changed``.
        before, after: its values on either side; None where there is no such row.
    """

    change: RowKind
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some rows of a difference.

    Attributes:
        rows: in an order that stays the same between calls.
        next: what ``after`` is for the next page; None where this was the last.
    """

    rows: tuple[RowDifference, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class TableDifference:
    """How one table differs.

    Attributes:
        table: what it is called in the second snapshot, or was called in the first.
        change: ``added``, ``removed`` or ``changed``.
        former: what it was called in the first, if that is another name.
        versions: in both snapshots; None where there is no such table.
        columns: for each column that differs its type before and after, None where there is none.
        settings: the same for config and metadata, by name.
        added, removed, changed: numbers of rows.
    """

    table: str
    change: TableKind
    former: str = ""
    versions: tuple[int | None, int | None] = (None, None)
    columns: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    settings: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    added: int = 0
    removed: int = 0
    changed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "table": self.table,
            "change": self.change,
            "former": self.former,
            "versions": list(self.versions),
            "columns": {name: list(pair) for name, pair in self.columns.items()},
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "rows": {"added": self.added, "removed": self.removed, "changed": self.changed},
        }


class LakeDiff:
    """How one snapshot of a lake differs from another. ``Lake.diff`` makes it.

    Attributes:
        before, after: the two snapshots.
    """

    def __init__(self, lake: Lake, before: LakeSnapshot, after: LakeSnapshot) -> None:
        self._lake = lake
        self.before, self.after = before, after
        self._compared: dict[str, TableRows] = {}

    def __repr__(self) -> str:
        return f"LakeDiff({self.before.branch}@{self.before.id}, {self.after.branch}@{self.after.id}, tables={len(self.tables)})"

    def __bool__(self) -> bool:
        return bool(self.tables)

    @cached_property
    def tables(self) -> tuple[TableDifference, ...]:
        """The tables that differ, by name."""
        found = [self._table(before, after) for before, after in _pairs(self.before.cut, self.after.cut)]
        return tuple(sorted((table for table in found if table is not None), key=lambda table: table.table))

    def table(self, table: str) -> TableDifference | None:
        """How one table differs; None if it does not. No other table is read.

        Args:
            table: as for ``rows``.

        Raises:
            NotFound: neither snapshot has such a table.
        """
        return self._table(*self._named(table))

    def rows(self, table: str, *, limit: int = 100, after: int | None = None) -> RowPage:
        """Rows of one table that differ, a page at a time: first removed, then changed, then added.

        Args:
            table: its name in the second snapshot; in the first, if it is only there.
            limit: at most so many.
            after: ``RowPage.next`` of the previous page.

        Raises:
            NotFound: neither snapshot has such a table.
        """
        for name, value, least in (("limit", limit, 1), ("after", after, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}.", argument=name)
        compared = self._rows_of(*self._named(table))
        begin = after or 0
        page = compared.page(begin, limit)
        return RowPage(page, begin + len(page) if begin + len(page) < len(compared) else None)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        ends = [{"branch": shot.branch, "snapshot": shot.id} for shot in (self.before, self.after)]
        return {"before": ends[0], "after": ends[1], "tables": [table.to_dict() for table in self.tables]}

    def _table(self, before: TableHead | None, after: TableHead | None) -> TableDifference | None:
        head = after or before
        assert head is not None
        former = before.name if before is not None and after is not None and before.name != after.name else ""
        if before is not None and after is not None and same_version(before, after) and before.location == after.location:
            return TableDifference(shown(after.name), "changed", shown(former), (before.version, after.version)) if former else None
        rows = self._rows_of(before, after)
        made = TableDifference(
            shown(head.name),
            "changed" if before is not None and after is not None else "added" if before is None else "removed",
            shown(former),
            (None if before is None else before.version, None if after is None else after.version),
            _differing(_columns(rows.before), _columns(rows.after)),
            _differing(_settings(rows.before), _settings(rows.after)),
            len(rows.added), len(rows.removed), len(rows.changed),
        )  # fmt: skip
        nothing = made.change == "changed" and not (made.former or made.columns or made.settings or len(rows))
        return None if nothing else made

    def _named(self, table: str) -> tuple[TableHead | None, TableHead | None]:
        full = table.replace(".", JOINT)
        after = self.after.cut.find(full)
        before = self.before.cut.find(full) if after is None else self.before.cut.by_id(after.id)
        if after is None and before is None:
            raise NotFound(f"Neither snapshot has a table {table!r}.", name=table, advice="See diff.tables.")
        return before, self.after.cut.by_id(before.id) if after is None and before is not None else after

    def _rows_of(self, before: TableHead | None, after: TableHead | None) -> TableRows:
        head = after or before
        assert head is not None
        if head.id not in self._compared:
            old = None if before is None else state_of(self._lake, before, self.before.branch)
            new = None if after is None else state_of(self._lake, after, self.after.branch)
            one_line = before is not None and after is not None and before.branch == after.branch
            self._compared[head.id] = compare_rows(old, new, one_line=one_line)
        return self._compared[head.id]


def diff(lake: Lake, before: LakeRef, after: LakeRef) -> LakeDiff:
    """See ``Lake.diff``."""
    return LakeDiff(lake, snapshot_at(lake, before), snapshot_at(lake, after))


def snapshot_at(lake: Lake, ref: LakeRef) -> LakeSnapshot:
    """The snapshot that somebody means.

    Raises:
        NotFound: there is none.
        InvalidInput: a tag and a branch have that name.
    """
    if isinstance(ref, LakeSnapshot):
        return ref
    if isinstance(ref, str):
        if ref in lake.branches:
            if ref in lake.tags:
                raise InvalidInput(
                    f"Both a branch and a tag are called {ref!r}.", argument="ref", advice="Give the snapshot: lake.snapshot(...)."
                )
            return lake.on_branch(ref).snapshot()
        branch, at, number = ref.rpartition("@")
        if at and number.isdecimal() and branch in lake.branches:
            return lake.on_branch(branch).snapshot(int(number))
    return lake.snapshot(ref)


def _pairs(before: Cut, after: Cut) -> Iterator[tuple[TableHead | None, TableHead | None]]:
    old = {head.id: head for head in before.tables.values()}
    new = {head.id: head for head in after.tables.values()}
    return ((old.get(table), new.get(table)) for table in {**old, **new})


def _columns(state: TableState | None) -> dict[str, str]:
    if state is None:
        return {}
    tree = field_tree(state.manifest.fields)
    types = {part.name: str(part.type) for part in arrow_from_fields(state.manifest.fields, {})}
    return {
        tree.path(part): (types[part.name] if part.parent_id < 0 else part.logical_type) + ("" if part.nullable else " not null")
        for part in tree.fields
    }


def _settings(state: TableState | None) -> dict[str, str]:
    if state is None:
        return {}
    manifest = state.manifest
    maps: Sequence[tuple[str, Mapping[str, str | bytes]]] = (
        ("config", manifest.config), ("metadata", manifest.table_metadata), ("schema", manifest.schema_metadata),
    )  # fmt: skip
    return {
        f"{kind}.{key}": value.decode(errors="replace") if isinstance(value, bytes) else value
        for kind, values in maps
        for key, value in values.items()
    }


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {key: (before.get(key), after.get(key)) for key in {**before, **after} if before.get(key) != after.get(key)}


# ---- rows ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRows:
    """Places of the rows in which two states of a table differ."""

    before: TableState | None
    after: TableState | None
    removed: Collection[Place] | PlaceList
    changed: Sequence[tuple[Place, Place]]
    added: Collection[Place] | PlaceList

    def __len__(self) -> int:
        return len(self.removed) + len(self.changed) + len(self.added)

    def page(self, begin: int, limit: int) -> tuple[RowDifference, ...]:
        """Some of them, with their values."""
        every = chain(
            (_Entry("removed", place, None) for place in self.removed),
            (_Entry("changed", old, new) for old, new in self.changed),
            (_Entry("added", None, place) for place in self.added),
        )
        wanted = list(islice(every, begin, begin + limit))
        old = iter(_values(self.before, [entry.before for entry in wanted]))
        new = iter(_values(self.after, [entry.after for entry in wanted]))
        return tuple(
            RowDifference(entry.change, next(old) if entry.before else None, next(new) if entry.after else None) for entry in wanted
        )


class _Entry(NamedTuple):
    """A row that differs, by its places."""

    change: RowKind
    before: Place | None
    after: Place | None


def _values(state: TableState | None, places: Iterable[Place | None]) -> list[Row]:
    return [] if state is None else read_rows(state, [place for place in places if place is not None])


def compare_rows(before: TableState | None, after: TableState | None, *, one_line: bool) -> TableRows:
    """Finds the rows that differ. Rows are read only where some went and others came, which may be the same ones."""
    if before is None or after is None:
        there = before or after
        assert there is not None
        every = PlaceList(there.every_row())
        return TableRows(before, after, every if after is None else (), (), every if before is None else ())
    change = physical_change(before, after)
    went, came = dict(change.went), dict(change.came)
    for number in change.refiled:
        went[number], came[change.kept[number]] = before.live(number), after.live(change.kept[number])
    if not went or not came:
        return TableRows(before, after, PlaceList(went), (), PlaceList(came))
    identity = identity_of([before, after], same_ids=one_line)
    return (_by_identity if identity else _by_value)(before, after, went, came, identity)


def _by_identity(before: TableState, after: TableState, went: Places, came: Places, identity: Identity) -> TableRows:
    old, new = identities(before, went, identity), identities(after, came, identity)
    both = [(old[found], new[found]) for found in old if found in new]
    values = _contents(before, after, [pair[0] for pair in both], [pair[1] for pair in both])
    changed = [pair for pair, (was, now) in zip(both, values, strict=True) if was is None or was != now]
    removed = [place for found, place in old.items() if found not in new]
    return TableRows(before, after, sorted(removed), changed, sorted(place for found, place in new.items() if found not in old))


def _contents(before: TableState, after: TableState, old: list[Place], new: list[Place]) -> list[tuple[Any, Any]]:
    """Values of pairs of rows in the columns that both states have; None where they cannot be compared."""
    common = common_columns([before, after])
    if common is None:
        return [(None, None)] * len(old)
    was, now = read_rows(before, old, common[0]), read_rows(after, new, common[1])
    return list(zip(map(content, was), map(content, now), strict=True))


def _by_value(before: TableState, after: TableState, went: Places, came: Places, identity: Identity) -> TableRows:
    """Where nothing tells rows apart, those that are equal are the same: a compaction changes nothing."""
    old, new = list(PlaceList(went)), list(PlaceList(came))
    common = common_columns([before, after])
    if common is None:
        return TableRows(before, after, old, [], new)
    was = list(map(content, read_rows(before, old, common[0])))
    now = list(map(content, read_rows(after, new, common[1])))
    same = Counter(was) & Counter(now)
    return TableRows(before, after, _without(old, was, same), [], _without(new, now, same))


def _without(places: list[Place], values: list[Any], same: Counter[Any]) -> list[Place]:
    left, kept = Counter(same), []
    for place, value in zip(places, values, strict=True):
        if left[value] > 0:
            left[value] -= 1
        else:
            kept.append(place)
    return kept
