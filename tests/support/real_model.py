"""What a table holds, as plain Python: rows, settings, indices. Says what operations mean without any of our code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import tiltyard as ty
from tests.support.tables import open_stock

Row = Mapping[str, Any]

COLUMNS: Final = ("id", "price", "note")
SINGLETONS: Final = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})


@dataclass(frozen=True)
class World:
    """A table as a person would describe it. Rows have no order."""

    rows: tuple[Row, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    config: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    schema_metadata: Mapping[str, str] = field(default_factory=dict)
    field_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)
    """Name and column."""
    bases: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """What columns are called now that had another name. Operations mean a column, whatever it is called by then."""

    def now(self, column: str) -> str:
        return self.renamed.get(column, column)

    def plain(self) -> dict[str, Any]:
        """In a form that can be compared, and read when it differs."""
        return {
            "columns": list(self.columns),
            "rows": sorted((tuple(row[name] for name in self.columns) for row in self.rows), key=repr),
            "config": dict(self.config),
            "metadata": dict(self.metadata),
            "schema_metadata": dict(self.schema_metadata),
            "field_metadata": {name: dict(entries) for name, entries in self.field_metadata.items() if entries},
            "indices": dict(sorted(self.indices.items())),
            "bases": sorted(self.bases),
        }


Past = Mapping[int, World]
"""What versions held."""
Effect = Callable[[World, Past], World]


def row(number: int, price: float | None = None, note: str | None = None) -> Row:
    return {"id": number, "price": float(number) if price is None else price, "note": f"n{number}" if note is None else note}


# ---- effects ---------------------------------------------------------------------------------------------------------------


def nothing(world: World, past: Past) -> World:
    return world


def without(ids: Iterable[int]) -> Effect:
    gone = frozenset(ids)
    return lambda world, past: replace(world, rows=tuple(one for one in world.rows if one["id"] not in gone))


def added(new: Iterable[Row]) -> Effect:
    """Columns the rows do not have are null, columns the table does not have are left out."""
    held = tuple(new)

    def effect(world: World, past: Past) -> World:
        here = [{world.now(name): value for name, value in one.items()} for one in held]
        return replace(world, rows=(*world.rows, *({name: one.get(name) for name in world.columns} for one in here)))

    return effect


def changed(ids: Iterable[int] | None, column: str, value: Callable[[Row], Any]) -> Effect:
    """A column set in some rows, or in all."""
    wanted = None if ids is None else frozenset(ids)

    def effect(world: World, past: Past) -> World:
        name = world.now(column)
        if name not in world.columns:
            return world
        return replace(world, rows=tuple({**one, name: value(one)} if wanted is None or one["id"] in wanted else one for one in world.rows))

    return effect


def columned(name: str, value: Callable[[Row], Any]) -> Effect:
    def effect(world: World, past: Past) -> World:
        return replace(world, columns=(*world.columns, name), rows=tuple({**one, name: value(one)} for one in world.rows))

    return effect


def dropped(name: str) -> Effect:
    def effect(world: World, past: Past) -> World:
        return replace(
            world,
            columns=tuple(one for one in world.columns if one != name),
            field_metadata={column: entries for column, entries in world.field_metadata.items() if column != name},
            indices={index: column for index, column in world.indices.items() if column != name},
        )

    return effect


def renamed(old: str, new: str) -> Effect:
    def effect(world: World, past: Past) -> World:
        return replace(
            world,
            columns=tuple(new if one == old else one for one in world.columns),
            rows=tuple({new if name == old else name: value for name, value in one.items()} for one in world.rows),
            field_metadata={new if name == old else name: entries for name, entries in world.field_metadata.items()},
            indices={index: new if column == old else column for index, column in world.indices.items()},
            renamed={**world.renamed, old: new},
        )

    return effect


def replaced_by(rows: Iterable[Row], config: Mapping[str, str]) -> Effect:
    held = tuple(rows)

    def effect(world: World, past: Past) -> World:
        kept = {**world.config, **config}
        return World(held, config=kept, metadata=world.metadata, bases=world.bases)

    return effect


def back_to(version: int) -> Effect:
    return lambda world, past: past[version]


def indexed(name: str, column: str) -> Effect:
    return lambda world, past: replace(world, indices={**world.indices, name: world.now(column)})


def unindexed(name: str) -> Effect:
    return lambda world, past: replace(world, indices={index: column for index, column in world.indices.items() if index != name})


def mapped(member: str, entries: Mapping[str, str | None], whole: bool) -> Effect:
    """One of the table's maps changed: a key without a value goes."""

    def effect(world: World, past: Past) -> World:
        changed: Any = {member: after(getattr(world, member), entries, whole)}
        return replace(world, **changed)

    return effect


def described(column: str, entries: Mapping[str, str | None]) -> Effect:
    def effect(world: World, past: Past) -> World:
        name = world.now(column)
        if name not in world.columns:
            return world
        return replace(
            world, field_metadata={**world.field_metadata, name: after(world.field_metadata.get(name, {}), entries, whole=False)}
        )

    return effect


def after(before: Mapping[str, str], entries: Mapping[str, str | None], whole: bool) -> dict[str, str]:
    merged: dict[str, str | None] = {**({} if whole else before), **entries}
    return {key: value for key, value in merged.items() if value is not None}


def with_base(path: str) -> Effect:
    return lambda world, past: replace(world, bases=world.bases | {path})


def both(*effects: Effect) -> Effect:
    def effect(world: World, past: Past) -> World:
        for one in effects:
            world = one(world, past)
        return world

    return effect


# ---- what is really there --------------------------------------------------------------------------------------------------


def text(entries: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (entries or {}).items()}


def seen_by_pylance(uri: str | Path, version: int | None = None) -> World:
    """Everything but the bases, which pylance does not show."""
    stock = open_stock(str(uri), version)
    stock.validate()
    schema = stock.schema
    return World(
        rows=tuple(stock.to_table(use_scalar_index=False).to_pylist()),
        columns=tuple(schema.names),
        config=stock.config(),
        metadata=stock.metadata,
        schema_metadata=text(schema.metadata),
        field_metadata={one.name: text(one.metadata) for one in schema},
        indices={one.name: ",".join(one.field_names) for one in stock.describe_indices() if one.name not in SINGLETONS},
    )


def seen_by_us(table: ty.Table) -> World:
    schema = table.schema
    names = {one.id: one.name for one in table._file.manifest.fields}
    return World(
        rows=tuple(table.to_arrow().to_pylist()),
        columns=tuple(schema.names),
        config=table.settings.config,
        metadata=table.settings.metadata,
        schema_metadata=text(schema.metadata),
        field_metadata={one.name: text(one.metadata) for one in schema},
        indices={
            one.name: ",".join(names[number] for number in one.fields) for one in table.indices.segments if one.name not in SINGLETONS
        },
        bases=frozenset(base.path for base in table._file.manifest.base_paths),
    )
