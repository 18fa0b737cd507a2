"""Primary and clustering keys: field metadata <-> column paths in key order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypedDict

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import FieldTree, field_tree, format_path, parse_path, says_yes
from tiltyard.format.logical_types import has_members
from tiltyard.format.values import Field

PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION: Final = "lance-schema:unenforced-primary-key:position"
CLUSTERING_KEY_POSITION: Final = "lance-schema:unenforced-clustering-key:position"
_KEY_ENTRIES: Final = frozenset({PRIMARY_KEY.encode(), PRIMARY_KEY_POSITION.encode()})
_NUMBER: Final = re.compile(rb"\+?[0-9]{1,10}")


class KeyMembers(TypedDict):
    """The members of a ``Field`` that repeat what its metadata says of keys."""

    primary_key: bool
    primary_key_position: int
    clustering_key: bool
    clustering_key_position: int


def key_members(metadata: Mapping[str, bytes]) -> KeyMembers:
    """Members as pylance derives them: a position makes a column part of the key whatever the other entry says."""
    position = _position(metadata.get(PRIMARY_KEY_POSITION))
    clustering = _position(metadata.get(CLUSTERING_KEY_POSITION))
    return KeyMembers(
        primary_key=position is not None or says_yes(metadata.get(PRIMARY_KEY)),
        primary_key_position=position or 0,
        clustering_key=False,
        clustering_key_position=clustering or 0,
    )


def _position(value: bytes | None) -> int | None:
    if value is None or not _NUMBER.fullmatch(value) or int(value) >= 2**32:
        return None
    return int(value)


# ---- reading ---------------------------------------------------------------------------------------------------------------


def primary_key_fields(fields: Iterable[Field]) -> tuple[Field, ...]:
    """The key's fields in key order: by position, then those without one in schema order."""
    return _in_key_order([(field, field.primary_key_position) for field in fields if field.primary_key or field.primary_key_position])


def primary_key(fields: Iterable[Field], source: str = "schema") -> tuple[str, ...]:
    """Column paths of the primary key in key order; empty if the table has none."""
    tree = field_tree(fields, source)
    return tuple(tree.path(field) for field in primary_key_fields(tree.fields))


def clustering_key(fields: Iterable[Field], source: str = "schema") -> tuple[str, ...]:
    """Column paths of the clustering key in key order; empty if the table has none."""
    tree = field_tree(fields, source)
    found = [(field, field.clustering_key_position) for field in tree.fields if field.clustering_key or field.clustering_key_position]
    return tuple(tree.path(field) for field in _in_key_order(found))


def _in_key_order(found: list[tuple[Field, int]]) -> tuple[Field, ...]:
    return tuple(field for field, position in sorted(found, key=lambda pair: (pair[1] == 0, pair[1])))


# ---- checking and writing --------------------------------------------------------------------------------------------------


def check_primary_key(fields: Iterable[Field]) -> None:
    """Refuses a key that other writers refuse, too: it must be a leaf, not null, and neither may anything above it be.

    Raises:
        InvalidInput: ``argument`` is the column path.
    """
    tree = field_tree(fields)
    for field in primary_key_fields(tree.fields):
        _check_key_field(tree, field)


def _check_key_field(tree: FieldTree, field: Field) -> None:
    path = tree.path(field)
    if has_members(field.logical_type):
        raise InvalidInput(f"primary key column {path} is {field.logical_type}.", argument=path, advice="Choose a column of a simple type.")
    for above in tree.ancestors(field):
        if above.logical_type != "struct":
            raise InvalidInput(
                f"primary key column {path} is inside a {above.logical_type}.", argument=path, advice="Choose another column."
            )
    if any(part.nullable for part in (*tree.ancestors(field), field)):
        raise InvalidInput(
            f"primary key column {path}, or a column around it, is nullable.",
            argument=path,
            advice="Name the column in primary_key=, or declare it not null.",
        )


def with_primary_key(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The schema with these columns, in this order, as its primary key.

    Arrow makes columns nullable unless told otherwise, and a key cannot be. Naming a column as key says that it holds no nulls, so the
    column and the structs around it become not null here, and the data must be checked for nulls when it is written.

    Raises:
        InvalidInput: no such column, one named twice, a column that cannot be a key, or a different key in the schema's metadata.
    """
    paths = [parse_path(key) for key in ([keys] if isinstance(keys, str) else keys)]
    if len(set(paths)) < len(paths):
        raise InvalidInput("primary_key names a column twice.", argument="primary_key")
    declared = _declared(list(schema), ())
    if declared and declared != paths:
        named = ", ".join(format_path(path) for path in declared)
        raise InvalidInput(
            f"the schema's metadata declares another primary key ({named}).",
            argument="primary_key",
            advice="Name the same key, or drop it.",
        )
    for position, path in enumerate(paths, start=1):
        index = _index_of(path[0], schema.names, path)
        # One key column needs no position. With several, both entries are written: readers that know no positions see the key at least.
        marks = {PRIMARY_KEY: "true"} | ({PRIMARY_KEY_POSITION: str(position)} if len(paths) > 1 else {})
        schema = schema.set(index, _marked(schema.field(index), path, 1, marks))
    return schema


def _declared(fields: Sequence[pa.Field], above: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths the metadata already marks, in key order. Looks into structs alone; elsewhere keys are refused anyway."""
    found: list[tuple[int, tuple[str, ...]]] = []
    pending = [(field, (*above, field.name)) for field in reversed(fields)]
    while pending:
        field, path = pending.pop()
        members = key_members({key.decode("utf-8", "replace"): value for key, value in (field.metadata or {}).items()})
        if members["primary_key"]:
            found.append((members["primary_key_position"], path))
        if pa.types.is_struct(field.type):
            pending.extend((member, (*path, member.name)) for member in reversed(list(field.type)))
    return [path for _, path in sorted(found, key=lambda pair: (pair[0] == 0, pair[0]))]


def _index_of(name: str, names: Sequence[str], path: tuple[str, ...]) -> int:
    if name not in names:
        known = f"Columns there: {', '.join(names[:8])}."[:100]
        raise InvalidInput(f"there is no column {format_path(path)} for the primary key.", argument="primary_key", advice=known)
    return list(names).index(name)


def _marked(field: pa.Field, path: tuple[str, ...], depth: int, marks: dict[str, str]) -> pa.Field:
    if pa.types.is_null(field.type):
        raise InvalidInput(f"primary key column {format_path(path)} has no type.", argument="primary_key", advice="Choose another column.")
    field = field.with_nullable(False)
    if depth == len(path):
        metadata = {key: value for key, value in (field.metadata or {}).items() if key not in _KEY_ENTRIES}
        return field.with_metadata(metadata | {key.encode(): value.encode() for key, value in marks.items()})
    if not pa.types.is_struct(field.type):
        raise InvalidInput(
            f"primary key column {format_path(path)} is inside a {field.type}.",
            argument="primary_key",
            advice="Use a top-level column, or a member of a struct.",
        )
    members = list(field.type)
    index = _index_of(path[depth], [member.name for member in members], path)
    members[index] = _marked(members[index], path, depth + 1, marks)
    return field.with_type(pa.struct(members))
