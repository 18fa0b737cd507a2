"""From one Arrow type to another, extension types included."""

from __future__ import annotations

import pyarrow as pa


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as another type; by way of the plain type, since Arrow does not go from one extension type to another."""
    if column.type.equals(kind):
        return column
    plain = _plain(column.type)
    return (column if plain.equals(column.type) else column.cast(plain)).cast(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with all extension types in it replaced by what they are stored as."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(member) for member in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return kind


def _plain_field(member: pa.Field) -> pa.Field:
    return member.with_type(_plain(member.type))
