"""What makes a row the same row in two states of a table: its primary key, its stable row id, or nothing; and its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

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


def common_columns(states: Sequence[TableState]) -> list[tuple[str, ...]] | None:
    """What each column that all states have is called in each of them; None where one cannot be compared, as blobs cannot."""
    tops = [{field.id: field for field in top_level(state.manifest)} for state in states]
    shared = [number for number in tops[-1] if all(number in top for top in tops)]
    if any(has_blobs(field) for state in states for field in arrow_from_fields(state.manifest.fields, {})):
        return None
    return [tuple(top[number].name for top in tops) for number in shared]


def read_rows(state: TableState, several: Sequence[Place], columns: Mapping[str, str] | None = None) -> list[Row]:
    """Rows at places, in that order, as values by column.

    Args:
        state: the table.
        several: where they are.
        columns: what each column is to be called, by its name in this state; all columns, as they are called, without it.
    """
    if not several:
        return []
    wanted = dict(columns) if columns is not None else {field.name: field.name for field in plain_columns(state)}
    side = state.side
    known = {number: dict(zip(rows, side.ids(number, rows).tolist(), strict=True)) for number, rows in places_of(several).items()}
    ids = np.array([known[number][offset] for number, offset in several], np.uint64)
    rows: list[Row] = []
    for part in chunks(ids):
        found = side.take(part, list(wanted))
        rows += _as_rows(found, wanted) if wanted else [{} for _ in part]
    return rows


def plain_columns(state: TableState) -> list[Field]:
    """Top-level columns but for blobs."""
    blobs = {field.name for field in arrow_from_fields(state.manifest.fields, {}) if has_blobs(field)}
    return [field for field in top_level(state.manifest) if field.name not in blobs]


def _as_rows(table: pa.Table, wanted: Mapping[str, str]) -> list[Row]:
    columns = {to: table.column(name).to_pylist() for name, to in wanted.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def content(row: Row | None) -> Hashable:
    """The values of a row, so that rows can be compared: a NaN is equal to itself; None for no row."""
    return None if row is None else tuple((name, _hashable(value)) for name, value in row.items())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and math.isnan(value):
        return ("NaN",)
    if isinstance(value, float) and value == 0:
        return (math.copysign(1, value), "zero")
    if isinstance(value, Mapping):
        return tuple((key, _hashable(item)) for key, item in value.items())
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
