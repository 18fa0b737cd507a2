"""What a table should hold, as plain Python: columns and rows that keep their identity, and settings.

Rows and columns have numbers that nobody outside the model sees. So it can be said what an operation that was worked out on an older
version means on a newer one: it is about the same rows and columns, wherever they are and whatever they are called by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

Value = int | float | str | None
Values = Mapping[int, Value]
"""By the number of the column; what is missing is null."""
Texts = Mapping[str, str]

KINDS: Final = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "string": pa.string()}
NUMBERS: Final = ("int64", "int32", "float64")
ID: Final = 0
"""The column that all tables have and never lose; the primary key where there is one."""

_numbers = itertools.count(1)


def next_number() -> int:
    """A number no row or column has had yet."""
    return next(_numbers)


@dataclass(frozen=True)
class Column:
    number: int
    name: str
    kind: str
    nullable: bool = True
    metadata: Texts = field(default_factory=dict)

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, KINDS[self.kind], self.nullable)

    def value(self, seed: int) -> Value:
        """A value for this column: null for 0, where it may be."""
        if seed == 0 and self.nullable:
            return None
        return f"t{seed}" if self.kind == "string" else self.fitting(seed)

    def fitting(self, value: Value) -> Value:
        """A value of another column under this one's type."""
        if value is None or self.kind == "string":
            return value
        return float(value) if self.kind == "float64" else int(value)

    @property
    def shape(self) -> tuple[int, str, str, bool]:
        return self.number, self.name, self.kind, self.nullable


FIRST_COLUMNS: Final = (Column(ID, "id", "int64", False), Column(-1, "n", "int64"), Column(-2, "s", "string"))


@dataclass(frozen=True)
class World:
    """A table at one version."""

    columns: tuple[Column, ...] = FIRST_COLUMNS
    rows: Mapping[int, Values] = field(default_factory=dict)
    """By the number of the row; in no order."""
    keyed: bool = False
    config: Texts = field(default_factory=dict)
    metadata: Texts = field(default_factory=dict)
    schema_metadata: Texts = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)
    """Name and number of the column."""
    generations: Mapping[str, int] | None = None
    """What the state of the write-ahead log says, if there is one."""
    bases: frozenset[str] = field(default_factory=frozenset)

    @property
    def key(self) -> Column:
        return self.columns[0]

    @property
    def shape(self) -> tuple[tuple[int, str, str, bool], ...]:
        return tuple(one.shape for one in self.columns)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.columns]

    def column(self, name: str) -> Column:
        return next(one for one in self.columns if one.name == name)

    def named(self, values: Values) -> dict[str, Value]:
        return {one.name: values.get(one.number) for one in self.columns}

    @property
    def ids(self) -> list[int]:
        return [values[ID] for values in self.rows.values()]  # type: ignore[misc]

    @property
    def numbers(self) -> list[Column]:
        return [one for one in self.columns if one.kind in NUMBERS]

    @property
    def free(self) -> list[Column]:
        """Columns that may change: all but the first."""
        return list(self.columns[1:])

    @cached_property
    def plain_rows(self) -> list[tuple[Value, ...]]:
        order = [one.number for one in self.columns]
        return sorted((tuple(values.get(number) for number in order) for values in self.rows.values()), key=repr)

    def has_double_ids(self) -> bool:
        return len(set(self.ids)) < len(self.rows)

    def with_rows(self, rows: Mapping[int, Values]) -> World:
        return replace(self, rows=rows)

    def without_column(self, number: int) -> World:
        return replace(
            self,
            columns=tuple(one for one in self.columns if one.number != number),
            indices={name: column for name, column in self.indices.items() if column != number},
        )

    def changed_column(self, column: Column) -> World:
        return replace(self, columns=tuple(column if one.number == column.number else one for one in self.columns))


# ---- conditions and assignments --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A SQL condition, and the same in Python over a row by names."""

    sql: str
    names: tuple[str, ...]
    test: Callable[[Mapping[str, Any]], bool]

    def fits(self, world: World) -> bool:
        return set(self.names) <= set(world.names)

    def holding(self, world: World) -> list[int]:
        assert self.fits(world)
        return [number for number, values in world.rows.items() if self.test(world.named(values))]


@dataclass(frozen=True)
class Where:
    """A condition that fits any table: which column it is about is found out when it is used."""

    what: str
    column: int = 0
    number: int = 0

    def bound(self, world: World) -> Bound:
        key, number = world.key.name, self.number
        name = world.numbers[self.column % len(world.numbers)].name
        any_name = world.columns[self.column % len(world.columns)].name
        match self.what:
            case "some":
                chosen = _picked(world.ids, (number, number + 2))
                return Bound(f"{key} in ({', '.join(map(str, chosen)) or '-1'})", (key,), lambda row: row[key] in chosen)
            case "third":
                return Bound(f"{key} % 3 = {number % 3}", (key,), lambda row: row[key] % 3 == number % 3)
            case "below":
                return Bound(f"{name} < {number}", (name,), lambda row: row[name] is not None and row[name] < number)
            case "equal":
                return Bound(f"{name} = {number}", (name,), lambda row: row[name] is not None and row[name] == number)
            case "null":
                return Bound(f"{any_name} is null", (any_name,), lambda row: row[any_name] is None)
            case "both":
                sql = f"{key} % 2 = {number % 2} and {any_name} is not null"
                return Bound(sql, (key, any_name), lambda row: row[key] % 2 == number % 2 and row[any_name] is not None)
        return Bound("true", (), lambda row: True)


WHERES: Final = ("some", "third", "below", "equal", "null", "both", "all")


def _picked(ids: Sequence[int], places: Iterable[int]) -> list[int]:
    known = sorted(set(ids))
    return sorted({known[place % len(known)] for place in places}) if known else []


@dataclass(frozen=True)
class Given:
    """A new value for a column: SQL, and the same in Python over a row by names."""

    sql: str
    names: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], Value]


def assignment(column: Column, what: int, world: World) -> Given:
    """One of several ways to give a column a value."""
    key, name = world.key.name, column.name
    if what == 0 and column.nullable:
        return Given("null", (), lambda row: None)
    if column.kind == "string":
        return Given(f"'u{what}'", (), lambda row: f"u{what}")
    if what % 3 == 1:
        return Given(f"{name} + {what}", (name,), lambda row: None if row[name] is None else column.fitting(row[name] + what))
    if what % 3 == 2:
        return Given(f"{key} + {what}", (key,), lambda row: column.fitting(row[key] + what))
    return Given(str(what), (), lambda row: column.fitting(what))


# ---- what becomes of rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Changes of rows, worked out on one version."""

    updated: Mapping[int, Values] = field(default_factory=dict)
    """New values by the number of the row."""
    deleted: frozenset[int] = frozenset()
    inserted: tuple[Values, ...] = ()

    def carried(self, base: World, head: World, *, new_keys: bool = False) -> World:
        """What the newest version becomes.

        A plan that was made on an older one must not touch what changed since: that would undo or revive it, and should have been noticed.

        Args:
            base: the version the plan was made on.
            head: the newest one.
            new_keys: whether rows are inserted because no other had their id.
        """
        rows = dict(head.rows)
        for number, values in self.updated.items():
            assert number in rows, "a row was updated that is gone"
            for column, value in values.items():
                before, now = base.rows[number].get(column), rows[number].get(column)
                assert before == now, f"an update was lost: {before!r} had become {now!r}, and is {value!r}"
            rows[number] = {**rows[number], **values}
        for number in self.deleted:
            assert number in rows, "a row was deleted that is gone"
            del rows[number]
        if new_keys or head.keyed:
            twice = {values[ID] for values in self.inserted}.intersection(values[ID] for values in rows.values())
            assert not twice, f"there are two rows of one key now: {twice}"
        for values in self.inserted:
            rows[next_number()] = dict(values)
        return head.with_rows(rows)


def updated(base: World, where: Bound, values: Mapping[str, Given]) -> Plan:
    """Rows with new values."""
    made = {}
    for number in where.holding(base):
        row = base.named(base.rows[number])
        made[number] = {base.column(name).number: given.value(row) for name, given in values.items()}
    return Plan(updated=made)


def numbered(world: World, rows: Iterable[Mapping[str, Value]]) -> tuple[Values, ...]:
    """Rows by names as rows of this table."""
    return tuple({world.column(name).number: world.column(name).fitting(value) for name, value in row.items()} for row in rows)


def after(before: Texts, entries: Mapping[str, str | None], whole: bool) -> Texts:
    """A map of texts with some set, and some, which are None, removed."""
    merged: dict[str, str | None] = {**({} if whole else before), **entries}
    return {key: value for key, value in merged.items() if value is not None}


# ---- lines of history ------------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """One line of history: main, or a branch."""

    worlds: dict[int, World]
    """All versions there ever were; those that are gone as well, since handles may still be at them."""
    head: int
    operations: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    refused: int = 0
    """From below this version nothing is committed any more: a cleanup without grace has seen to that."""

    floor: int = 0
    """Versions below this one are left only because somebody referred to them, and nobody else can any more."""
    gapped: bool = False
    """Whether somebody cleaned up and kept no record, so that nobody can tell a gap from a loss once the tag before it is gone."""

    @property
    def newest(self) -> World:
        return self.worlds[self.head]

    @property
    def retained(self) -> list[int]:
        return [version for version in sorted(self.worlds) if version not in self.gone]

    def since(self, version: int) -> list[str]:
        """The operations after a version, oldest first."""
        return [self.operations[one] for one in range(version + 1, self.head + 1)]

    def may_go_on_from(self, version: int) -> bool:
        """Whether what was worked out on a version can be committed: all versions from there on are left."""
        return version >= self.refused and self.gone.isdisjoint(range(version, self.head + 1))

    def add(self, version: int, world: World, operation: str) -> None:
        assert version == self.head + 1, f"version {version} follows {self.head}"
        self.worlds[version], self.operations[version], self.head = world, operation, version
