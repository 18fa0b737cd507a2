"""Arrow schema <-> schema fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.fields import BLOB_V2, ROOT, assign_ids, field_tree, format_path
from tiltyard.format.keys import check_primary_key, key_members, with_primary_key
from tiltyard.format.logical_types import (
    ARROW_JSON,
    EXTENSION_NAME,
    JSON,
    MAX_DEPTH,
    arrow_type,
    encoding_hint,
    field_logical_type,
    fixed_list_levels,
    member_fields,
    with_extensions,
)
from tiltyard.format.safe_text import check_text
from tiltyard.format.values import EMPTY_BYTES, Field

BLOB_KEY: Final = b"lance-encoding:blob"
_BLOB_STORAGE: Final = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.string())])

RESERVED_NAMES: Final = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_row_last_updated_at_version", "_row_created_at_version"})
"""Columns every scan can produce by itself."""


# ---- Arrow -> fields -------------------------------------------------------------------------------------------------------


def fields_from_arrow(
    schema: pa.Schema,
    *,
    first_id: int = 0,
    primary_key: Sequence[str] | None = None,
    file_version: tuple[int, int] = (2, 2),
) -> tuple[tuple[Field, ...], dict[str, bytes]]:
    """Fields, depth first with ids from ``first_id`` on, and the schema's own metadata.

    Args:
        schema: what the data looks like.
        first_id: the first id to give out.
        primary_key: column paths of the key; they are stored as not null (see ``with_primary_key``).
        file_version: of the data files to be written; from 2.2 on blob columns are stored in their second form.

    Raises:
        InvalidInput: a type, name or key that a table cannot hold; ``argument`` is the column path.
    """
    _check_top_level(schema)  # before the key: a name with a dot would be looked for inside a column
    if primary_key:
        schema = with_primary_key(schema, primary_key)
    fields: list[Field] = []
    # Depth first by hand: a stack of (field, parent's id, names above), so that depth is ours to bound.
    stack: list[tuple[pa.Field, int, tuple[str, ...]]] = [(field, ROOT, (field.name,)) for field in reversed(list(schema))]
    while stack:
        field, parent_id, names = stack.pop()
        path = format_path(names)
        value, members = _one_field(field, parent_id, len(fields), path, file_version)
        if len(names) + fixed_list_levels(value.logical_type) > MAX_DEPTH:
            raise InvalidInput(f"column {path[:60]} has more than {MAX_DEPTH} levels.", argument=path, advice="Flatten it.")
        if value.logical_type == "struct" and not (fields and parent_id != ROOT and fields[parent_id].logical_type == "map"):
            _check_unique([member.name for member in members], path)
        fields.append(value)
        stack.extend((member, value.id, (*names, member.name)) for member in reversed(members))
    check_primary_key(fields)
    metadata = _text_metadata(schema.metadata or {}, "the schema")
    result = assign_ids(fields, first_id)
    _check_readable(result, metadata)
    return result, metadata


def _one_field(field: pa.Field, parent_id: int, field_id: int, path: str, file_version: tuple[int, int]) -> tuple[Field, list[pa.Field]]:
    if file_version >= (2, 2):
        field = _blob_v2(field, path)
    logical, raw = field_logical_type(field, path)
    if "\0" in field.name or "\0" in logical:
        what = "name" if "\0" in field.name else "type"
        raise InvalidInput(f"the {what} of column {path[:60]!r} holds a NUL character.", argument=path, advice="Remove it.")
    metadata = _text_metadata(raw, f"column {path}")
    value = Field(
        name=field.name,
        id=field_id,
        parent_id=parent_id,
        logical_type=logical,
        nullable=field.nullable,
        metadata=MappingProxyType(metadata) if metadata else EMPTY_BYTES,
        encoding=encoding_hint(logical),
        extension_name=metadata.get(EXTENSION_NAME, b"").decode(),
        **key_members(metadata),
    )
    return value, member_fields(field.type)


def is_legacy_blob(field: pa.Field) -> bool:
    """A binary column marked as blobs by metadata alone, the first form."""
    return field.metadata is not None and BLOB_KEY in field.metadata and not isinstance(field.type, pa.BaseExtensionType)


def has_legacy_blobs(field: pa.Field) -> bool:
    """Whether a column, or something in it, is marked as blobs in the first form."""
    return is_legacy_blob(field) or any(map(has_legacy_blobs, member_fields(field.type)))


def _blob_v2(field: pa.Field, path: str) -> pa.Field:
    if not is_legacy_blob(field) or pa.types.is_struct(field.type):
        return field
    if field.type not in (pa.binary(), pa.large_binary()):
        raise InvalidInput(f"column {path} is marked as blobs but is {field.type}.", argument=path, advice="Make it large_binary.")
    metadata = {key: value for key, value in field.metadata.items() if key != BLOB_KEY}
    return pa.field(field.name, _BLOB_STORAGE, field.nullable, metadata | {EXTENSION_NAME.encode(): BLOB_V2.encode()})


def _check_top_level(schema: pa.Schema) -> None:
    _check_unique(schema.names, "")
    for name in schema.names:
        if "." in name:
            raise InvalidInput(f"column name {name!r} holds a dot.", argument=name, advice="Rename it, or use a struct column.")
        if name in RESERVED_NAMES:
            raise InvalidInput(f"column name {name!r} is reserved.", argument=name, advice="Rename the column.")


def _check_unique(names: Sequence[str], path: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        where = f"in column {path}" if path else "in the schema"
        raise InvalidInput(f"the name {twice!r} is used twice {where}.", argument=path or twice, advice="Rename one of them.")


def _text_metadata(raw: Mapping[bytes, bytes], owner: str) -> dict[str, bytes]:
    """Metadata is text in tables, and other readers refuse or mangle what is not."""
    try:
        return {
            check_text(key.decode(), f"A key in the metadata of {owner}", "schema"): value.decode().encode() for key, value in raw.items()
        }
    except UnicodeDecodeError:
        raise InvalidInput(f"the metadata of {owner} is not UTF-8 text.", advice="Encode binary values, for example as base64.") from None


def _check_readable(fields: tuple[Field, ...], metadata: Mapping[str, bytes]) -> None:
    """Refuses what no reader could open, such as an extension type over a storage type it does not know."""
    try:
        arrow_from_fields(fields, metadata)
    except CorruptTable as error:
        raise InvalidInput(f"the schema could not be read back: {error.reason}.", argument="schema") from error


# ---- fields -> Arrow -------------------------------------------------------------------------------------------------------


def arrow_from_fields(fields: Iterable[Field], schema_metadata: Mapping[str, bytes] = EMPTY_BYTES, *, source: str = "schema") -> pa.Schema:
    """The Arrow schema of a table, equal to what pylance reports for it, metadata included.

    Raises:
        CorruptTable: fields that make no tree, unknown types, absurd numbers; ``source`` names the file.
    """
    tree = field_tree(fields, source)
    built: dict[int, pa.Field] = {}
    # Members come after their parents, so going backwards each field finds its members built.
    for field in reversed(tree.fields):
        members = [built[member.id] for member in tree.below(field.id)]
        label = f"{field.id} ({field.name[:40]!r})"
        built[field.id] = _arrow_field(field, arrow_type(field.logical_type, members, source=source, path=label), label, source)
    metadata = {key.encode(): _as_text(value) for key, value in schema_metadata.items()}
    try:
        return with_extensions([built[field.id] for field in tree.below(ROOT)], metadata)
    except (pa.ArrowException, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # Extension types bring code of their own, which fails in its own ways on metadata it does not like.
        raise CorruptTable(source, f"a column's extension type does not suit it: {str(error)[:100]}") from error


def _arrow_field(field: Field, arrow: pa.DataType, label: str, source: str) -> pa.Field:
    metadata = {key.encode(): _as_text(value) for key, value in field.metadata.items()}
    if field.logical_type == JSON:
        metadata[EXTENSION_NAME.encode()] = ARROW_JSON.encode()
    if pa.types.is_null(arrow) and not field.nullable:
        raise CorruptTable(source, f"field {label} is of type null but not nullable")
    return pa.field(field.name, arrow, field.nullable, metadata or None)


def _as_text(value: bytes) -> bytes:
    """Bytes that are no text are mended as other readers mend them."""
    return value.decode("utf-8", "replace").encode()
