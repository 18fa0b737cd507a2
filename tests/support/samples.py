"""Arrow arrays of any type a table can hold: fixed values, nulls and empty lists among them."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

FLOATS: Final = [0.0, -1.5, 3.25, 65504.0]
"""Exact in half precision too, so that equality means equality."""


def sample(kind: pa.DataType, rows: int, start: int = 0, nullable: bool = True) -> pa.Array:
    """``rows`` values, different ones for another ``start``; every fifth is null where that is allowed."""
    null = np.array([nullable and (start + row) % 5 == 3 for row in range(rows)], dtype=bool)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _storage(kind, rows, start, nullable))
    for matches, build in _NESTED:
        if matches(kind):
            return build(kind, rows, start, null)
    return pa.array([None if null[row] else _scalar(kind, start + row) for row in range(rows)], kind)


def table_of(schema: pa.Schema, rows: int, start: int = 0) -> pa.Table:
    """A table with this very schema."""
    return pa.Table.from_arrays([sample(field.type, rows, start, field.nullable) for field in schema], schema=schema)


def _storage(kind: pa.BaseExtensionType, rows: int, start: int, nullable: bool) -> pa.Array:
    if kind.extension_name == "lance.blob.v2":
        return pa.array([{"data": bytes([start % 256]) * (row + 1)} for row in range(rows)], kind.storage_type)
    if kind.extension_name != "arrow.json":
        return sample(kind.storage_type, rows, start, nullable)
    texts = [None if nullable and (start + row) % 5 == 3 else json.dumps({"n": start + row}, separators=(",", ":")) for row in range(rows)]
    return pa.array(texts, kind.storage_type)


def _offsets(rows: int, start: int, null: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = [0 if null[row] else (start + row) % 3 for row in range(rows)]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _list(kind: Any, rows: int, start: int, null: np.ndarray[Any, Any]) -> pa.Array:
    offsets = _offsets(rows, start, null)
    values = sample(kind.value_type, int(offsets[-1]), start, kind.value_field.nullable)
    large = pa.types.is_large_list(kind)
    builder = pa.LargeListArray if large else pa.ListArray
    return builder.from_arrays(pa.array(offsets, pa.int64() if large else pa.int32()), values, type=kind, mask=pa.array(null))


def _vector(kind: Any, rows: int, start: int, null: np.ndarray[Any, Any]) -> pa.Array:
    # No index takes a vector with holes in it, so those of floats have none.
    nullable = kind.value_field.nullable and not pa.types.is_floating(kind.value_type)
    values = sample(kind.value_type, rows * kind.list_size, start, nullable)
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=pa.array(null))


def _map(kind: Any, rows: int, start: int, null: np.ndarray[Any, Any]) -> pa.Array:
    offsets = _offsets(rows, start, null)
    keys = sample(kind.key_type, int(offsets[-1]), start, nullable=False)
    items = sample(kind.item_type, int(offsets[-1]), start, kind.item_field.nullable)
    # A null map is made by a null offset; the last one closes the array and cannot be.
    marked = pa.array([None if row < rows and null[row] else int(offset) for row, offset in enumerate(offsets)], pa.int32())
    return pa.MapArray.from_arrays(marked, keys, items, type=kind)


def _struct(kind: Any, rows: int, start: int, null: np.ndarray[Any, Any]) -> pa.Array:
    if not kind.num_fields:
        return pa.array([None if null[row] else {} for row in range(rows)], kind)
    fields = [kind.field(position) for position in range(kind.num_fields)]
    members = [sample(field.type, rows, start, field.nullable) for field in fields]
    return pa.StructArray.from_arrays(members, fields=fields, mask=pa.array(null))


def _dictionary(kind: Any, rows: int, start: int, null: np.ndarray[Any, Any]) -> pa.Array:
    values = sample(kind.value_type, 4, 0, nullable=False)
    indices = pa.array([None if null[row] else (start + row) % 4 for row in range(rows)], kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)


_NESTED: Final[list[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]]]] = [
    (pa.types.is_map, _map),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind), _list),
    (pa.types.is_fixed_size_list, _vector),
    (pa.types.is_struct, _struct),
    (pa.types.is_dictionary, _dictionary),
]


def _scalar(kind: pa.DataType, number: int) -> Any:
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_boolean(kind):
        return number % 2 == 0
    if types.is_floating(kind):
        value = FLOATS[number % len(FLOATS)]
        return np.float16(value) if types.is_float16(kind) else value
    if types.is_fixed_size_binary(kind):
        return number.to_bytes(2, "big").rjust(kind.byte_width, b"\0")
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return ["", "a", "Ünïcode ☂"][number % 3] + str(number)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return bytes([number % 256, 0, 255])
    if types.is_decimal(kind):
        return Decimal(number % 10 * 1000).scaleb(-max(kind.scale, 0))
    if types.is_date64(kind):
        return number * 86_400_000
    return number % 100 if types.is_int8(kind) or types.is_uint8(kind) else number
