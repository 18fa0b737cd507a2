"""What makes a row the same row in two states of a table: its primary key, its stable row id, or nothing; and its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.format.fields import ROOT, FieldTree, field_tree
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import Field
from tiltyard.lakes.merging.table_state import TableState
from tiltyard.verbs.changed_rows import Places, chunks, top_level
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.keys.primary_keys import Key, check_comparable, key_of_fields, primary_key_of

Row = dict[str, Any]
Place = tuple[int, int]
"""A fragment, and an offset in it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How rows are told apart.

    Attributes:
        by: by which means.
        fields: ids of the key's fields.
    """

    by: Literal["key", "row id", "nothing"]
    fields: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.by != "nothing"


NOTHING = Identity("nothing")


def identity_of(states: Sequence[TableState], *, same_ids: bool) -> Identity:
    """What tells rows apart in all of some states.

    Args:
        states: of one table.
        same_ids: whether a row id stands for the same row in all of them: lines of history give out the same numbers on their own.
    """
    keys = [primary_key_of(state.manifest) for state in states]
    first = keys[0]
    if first is not None and all(key is not None and key.fields == first.fields for key in keys):
        check_comparable(states[0].manifest, first)
        return Identity("key", first.fields)
    return Identity("row id") if same_ids and all(state.side.stable for state in states) else NOTHING


def identities(state: TableState, places: Places, identity: Identity) -> dict[Hashable, Place]:
    """Where each row is, by what makes it that row. Of a key only its columns are read."""
    found: dict[Hashable, Place] = {}
    if identity.by == "row id":
        for number, rows in places.items():
            found.update(zip(state.side.ids(number, rows).tolist(), _each(number, rows), strict=True))
        return found
    key = key_of_fields(state.manifest, identity.fields)
    assert key is not None
    for place, row in keys_at(state, places, key):
        found[row] = place
    return found


def keys_at(state: TableState, places: Places, key: Key) -> Iterator[tuple[Place, Hashable]]:
    """The key of each row at some places."""
    for number, rows in places.items():
        at = _each(number, rows)
        for part in state.side.read({number: rows}, key.columns):
            columns = [column.to_pylist() for column in key.of(part).columns]
            yield from zip((next(at) for _ in range(part.num_rows)), map(_hashable, zip(*columns, strict=True)), strict=True)


def _each(number: int, rows: BitMap) -> Iterator[Place]:
    return ((number, offset) for offset in rows)


def places_of(several: Iterable[Place]) -> Places:
    """The same places as bitmaps, by fragment."""
    found: Places = {}
    for number, offset in several:
        found.setdefault(number, BitMap()).add(offset)
    return found


# ---- values ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns to read in one state, and how they are to look: two states call them otherwise, or have other members in a struct.

    Attributes:
        names: what each top-level column is to be called, by its name in the state.
        fields: all fields of the state that are wanted, by id, with what they are to be called.
        tree: the fields of the state.
    """

    names: Mapping[str, str]
    fields: Mapping[int, str]
    tree: FieldTree

    def of(self, table: pa.Table) -> pa.Table:
        """The columns of a table that was read, as they are to look."""
        tops = {field.name: field for field in self.tree.below(ROOT)}
        columns = [with_members(table.column(name), tops[name], self) for name in table.column_names]
        return pa.table(columns, [self.names[name] for name in table.column_names])


def with_members(values: pa.ChunkedArray | pa.Array, field: Field, columns: Columns) -> pa.ChunkedArray | pa.Array:
    """Values with those members of structs that are wanted."""
    members = columns.tree.below(field.id)
    if field.logical_type != "struct" or all(columns.fields.get(number) == name for number, name in _family(columns.tree, field)):
        return values
    if isinstance(values, pa.ChunkedArray):
        chunks = [with_members(chunk, field, columns) for chunk in values.chunks or [pa.array([], values.type)]]
        return pa.chunked_array(chunks)
    kept = [(place, member) for place, member in enumerate(members) if member.id in columns.fields]
    parts = [with_members(values.field(place), member, columns) for place, member in kept]
    named = [pa.field(columns.fields[member.id], part.type) for (_, member), part in zip(kept, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=named, mask=values.is_null())


def _family(tree: FieldTree, field: Field) -> Iterator[tuple[int, str]]:
    """All fields below one, by id."""
    for member in tree.below(field.id):
        yield member.id, member.name
        yield from _family(tree, member)


def wanted_columns(state: TableState, fields: Mapping[int, str]) -> Columns | None:
    """How to read some fields of a state; None where a list holds structs that would have to look otherwise.

    Args:
        state: the table.
        fields: what they are to be called, by id.
    """
    tree = field_tree(state.manifest.fields)
    found: dict[str, str] = {}
    for top in tree.below(ROOT):
        family = [top, *(tree.by_id[number] for number, _ in _family(tree, top))]
        lists = [field for field in family if field.logical_type != "struct" and tree.below(field.id)]
        if top.id not in fields or not any(field.id in fields for field in family if not tree.below(field.id)):
            continue
        if any(fields.get(number) != name for field in lists for number, name in _family(tree, field)):
            return None
        found[top.name] = fields[top.id]
    return Columns(found, fields, tree)


def common_columns(states: Sequence[TableState]) -> list[Columns] | None:
    """Columns and members that all states have, called as in the second of them; None where they cannot be compared, as blobs cannot."""
    if any(has_blobs(field) for state in states for field in arrow_from_fields(state.manifest.fields, {})):
        return None
    ids = [{field.id: field.name for field in state.manifest.fields} for state in states]
    shared = {number: name for number, name in ids[1].items() if all(number in known for known in ids)}
    found = [wanted_columns(state, shared) for state in states]
    same = [columns for columns in found if columns is not None]
    if len(same) < len(found) or len({frozenset(columns.names.values()) for columns in same}) > 1:
        return None
    return same


def read_rows(state: TableState, several: Sequence[Place], columns: Columns | None = None) -> list[Row]:
    """Rows at places, in that order, as values by column.

    Args:
        state: the table.
        several: where they are.
        columns: how to read them; all columns, as they are, without it.
    """
    if not several:
        return []
    wanted = list(columns.names) if columns is not None else [field.name for field in plain_columns(state)]
    side = state.side
    known = {number: dict(zip(rows, side.ids(number, rows).tolist(), strict=True)) for number, rows in places_of(several).items()}
    ids = np.array([known[number][offset] for number, offset in several], np.uint64)
    rows: list[Row] = []
    for part in chunks(ids):
        found = side.take(part, wanted)
        rows += _as_rows(found if columns is None else columns.of(found)) if wanted else [{} for _ in part]
    return rows


def plain_columns(state: TableState) -> list[Field]:
    """Top-level columns but for blobs."""
    blobs = {field.name for field in arrow_from_fields(state.manifest.fields, {}) if has_blobs(field)}
    return [field for field in top_level(state.manifest) if field.name not in blobs]


def _as_rows(table: pa.Table) -> list[Row]:
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def content(row: Row | None) -> Hashable:
    """The values of a row, so that rows can be compared: a NaN is equal to itself; None for no row."""
    return None if row is None else tuple((name, _hashable(row[name])) for name in sorted(row))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and math.isnan(value):
        return ("NaN",)
    if isinstance(value, float) and value == 0:
        return (math.copysign(1, value), "zero")
    if isinstance(value, Mapping):
        return tuple((key, _hashable(value[key])) for key in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def key_shown(state: TableState, identity: Identity) -> Callable[[Hashable], Row]:
    """Names the parts of an identity, for people."""
    if identity.by == "row id":
        return lambda found: {"_rowid": found}
    key = key_of_fields(state.manifest, identity.fields)
    assert key is not None
    return lambda found: dict(zip(key.names, found, strict=True)) if isinstance(found, tuple) else {}


class PlaceList:
    """Places in order, listed as they are looked at: a table of many rows takes little memory."""

    def __init__(self, places: Places) -> None:
        self._places = dict(sorted(places.items()))

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def __iter__(self) -> Iterator[Place]:
        return ((number, offset) for number, rows in self._places.items() for offset in rows)
