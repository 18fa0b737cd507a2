"""Arrow schema <-> schema fields."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, UnsupportedFeature
from tiltyard.format.fields import BLOB_V2, ROOT, FieldTree, assign_ids, field_tree, format_path, is_blob_v2
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
        members = [built[member.id] for member in tree.members.get(field.id, ())]
        label = f"{field.id} ({field.name[:40]!r})"
        built[field.id] = _arrow_field(field, arrow_type(field.logical_type, members, source=source, path=label), label, source)
    metadata = {key.encode(): _as_text(value) for key, value in schema_metadata.items()}
    try:
        return with_extensions([built[field.id] for field in tree.members.get(ROOT, ())], metadata)
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


@dataclass(frozen=True, slots=True)
class SchemaMatch:
    """How data maps onto a table."""

    schema: pa.Schema
    """What to cast the data to before writing. Its columns and members are in the data's own order, so no values move."""
    fields: tuple[Field, ...]
    """The table's fields that the data covers, in the same order: ``leaf_ids`` of them is what the data file lists."""
    missing: tuple[str, ...]
    """Paths of nullable columns and members the data lacks; they read as null."""
    check_not_null: tuple[str, ...]
    """Paths that the table declares not null and the data does not; the values decide."""


def match_schema(table_fields: Iterable[Field], schema: pa.Schema) -> SchemaMatch:
    """Matches data of this schema with the table's fields.

    Types must be the same, but for what never reaches a file: views, names of list items, nullability, metadata.

    Raises:
        InvalidInput: columns that differ, are not in the table, or are missing though not nullable; the text lists them all as far as
            it may, ``argument`` is the path of the first.
    """
    table = field_tree(table_fields)
    whole = arrow_from_fields(table.fields)  # the walk below trusts the table's fields
    matching = _Matching(table)
    matching.by_name(list(schema), ROOT, ())
    if matching.problems:
        path, _ = matching.problems[0]
        text = "; ".join(problem for _, problem in matching.problems)
        raise InvalidInput(f"the data does not fit the table: {text}.", argument=path, advice="Cast, rename or drop columns first.")
    fields = tuple(matching.covered)
    alike = len(fields) == len(table.fields) and all(map(operator.is_, fields, table.fields))
    return SchemaMatch(
        schema=whole if alike else arrow_from_fields(fields),
        fields=fields,
        missing=tuple(matching.missing),
        check_not_null=tuple(matching.check_not_null),
    )


class _Matching:
    """One walk over both sides, collecting as it goes."""

    def __init__(self, table: FieldTree) -> None:
        self.table = table
        self.covered: list[Field] = []
        self.missing: list[str] = []
        self.check_not_null: list[str] = []
        self.problems: list[tuple[str, str]] = []

    def problem(self, path: str, text: str) -> None:
        self.problems.append((path, f"column {path} {text}"))

    def by_name(self, given: list[pa.Field], parent_id: int, above: tuple[str, ...]) -> None:
        wanted = {field.name: field for field in self.table.below(parent_id)}
        seen: set[str] = set()
        for field in given:
            names = (*above, field.name)
            if field.name in seen:
                self.problem(format_path(names), "occurs twice")
            elif field.name not in wanted:
                self.problem(format_path(names), "is not in the table")
            else:
                self.one(field, wanted[field.name], names)
            seen.add(field.name)
        for name, mine in wanted.items():
            if name not in seen:
                self.lacking(mine, format_path((*above, name)))

    def by_place(self, given: list[pa.Field], parent_id: int, above: tuple[str, ...]) -> None:
        """Members of lists and maps: what they are called is up to whoever made the data."""
        for field, mine in zip(given, self.table.below(parent_id), strict=True):
            self.one(field, mine, (*above, mine.name))

    def lacking(self, mine: Field, path: str) -> None:
        if mine.nullable:
            self.missing.append(path)
        else:
            self.problem(path, f"is missing and not nullable (table: {mine.logical_type})")

    def one(self, given: pa.Field, mine: Field, names: tuple[str, ...]) -> None:
        path = format_path(names)
        if len(names) > MAX_DEPTH:
            self.problem(path[:60], f"has more than {MAX_DEPTH} levels")
            return
        if is_blob_v2(mine) and is_legacy_blob(given):
            # Blobs in their first form are turned into the second while the file is written; until then they are plain binary.
            logical = "binary" if pa.types.is_binary(given.type) else "large_binary"
            self.cover(given, replace(mine, logical_type=logical, metadata={BLOB_KEY.decode(): b"true"}, extension_name=""), path)
            return
        try:
            logical, _ = field_logical_type(given, path)
        except InvalidInput:
            logical = str(given.type)
        if logical != mine.logical_type:
            self.problem(path, f"is {logical} but {mine.logical_type} in the table")
            return
        self.cover(given, mine, path)
        self.members(member_fields(given.type), mine, names)

    def cover(self, given: pa.Field, mine: Field, path: str) -> None:
        self.covered.append(mine)
        if given.nullable and not mine.nullable:
            self.check_not_null.append(path)

    def members(self, given: list[pa.Field], mine: Field, names: tuple[str, ...]) -> None:
        above = self.table.by_id.get(mine.parent_id)
        if mine.logical_type != "struct" or (above is not None and above.logical_type == "map"):
            self.by_place(given, mine.id, names)
        elif self.table.below(mine.id) and not given:
            self.problem(format_path(names), "is a struct without members")
        else:
            self.by_name(given, mine.id, names)


_VARIABLE_ITEM: Final = re.compile(r"(fixed_size_list:)+(dict:|(large_)?(string|binary)(:|$))")
_STRUCT_ITEM: Final = "fixed_size_list:struct:"
_LISTS: Final = re.compile(r"(large_)?list(\.struct)?|map|fixed_size_list:struct:.*")


def check_encodable(fields: Iterable[Field], file_version: tuple[int, int]) -> None:
    """Refuses rows of these fields where data files of this version would lose them.

    Raises:
        InvalidInput: ``argument`` is the column's path.
        UnsupportedFeature: the legacy format, which stores null numbers as zeros.
    """
    if file_version < (2, 0):
        name = f"data format {file_version[0]}.{file_version[1]}"
        raise UnsupportedFeature(
            f"Rows in {name} would lose their nulls, so this format is only read.",
            feature=name,
            writing=True,
            advice="Copy the table into a newer format.",
        )
    tree = field_tree(fields)
    for field in tree.fields:
        problem = _problem(field, tree, file_version)
        if problem is not None:
            path = tree.path(field)
            raise InvalidInput(
                f"column {path} cannot be stored in data files of format {file_version[0]}.{file_version[1]}: {problem}.", argument=path
            )


def _problem(field: Field, tree: FieldTree, version: tuple[int, int]) -> str | None:
    kind = field.logical_type
    if _VARIABLE_ITEM.match(kind):
        return "items of a fixed-size list must have a fixed width"
    if kind == "struct" and not tree.below(field.id) and version > (2, 0) and len(tree.fields) > 1:
        return "a struct without members makes the columns after it read wrongly"
    if kind.startswith(_STRUCT_ITEM):
        alone = field.parent_id == ROOT and len(tree.below(ROOT)) == 1
        if version < (2, 2) or not alone or _holds_lists(field, tree):
            return "a fixed-size list of structs can be read back only from 2.2 on, as the only column, and without lists inside"
    return None


def _holds_lists(field: Field, tree: FieldTree) -> bool:
    return any(_LISTS.fullmatch(member.logical_type) or _holds_lists(member, tree) for member in tree.below(field.id))
