"""From one Arrow type to another, extension types included."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.format.field_ids import BLOB_V2


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as another type; by way of the plain type, since Arrow does not go from one extension type to another."""
    if column.type.equals(kind):
        return column
    if _is_blob(kind) and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return _as_blobs(column, kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type) and any(_is_blob(member.type) for member in kind):
        members = [cast(pc.struct_field(column, member.name), member.type) for member in kind]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    plain = _plain(column.type)
    return (column if plain.equals(column.type) else column.cast(plain)).cast(kind)


def _is_blob(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == BLOB_V2


def _as_blobs(column: pa.Array, kind: pa.BaseExtensionType) -> pa.Array:
    """Blobs in their second form, of the bytes themselves. pylance converts them too, but numbers the columns wrongly in an overwrite."""
    storage = kind.storage_type
    members = {"data": column.cast(pa.large_binary())}
    arrays = [members.get(member.name, pa.nulls(len(column), member.type)) for member in storage]
    return pa.ExtensionArray.from_storage(kind, pa.StructArray.from_arrays(arrays, fields=list(storage), mask=column.is_null()))


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
