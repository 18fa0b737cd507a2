"""Does this data fit this table? Columns are found by name, members of structs too; order does not matter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.fields import ROOT, FieldTree, field_tree, format_path, is_blob_v2
from tiltyard.format.logical_types import MAX_DEPTH, field_logical_type, member_fields
from tiltyard.format.schema import BLOB_KEY, arrow_from_fields, is_legacy_blob
from tiltyard.format.values import Field


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
    arrow_from_fields(table.fields)  # the walk below trusts the table's fields
    matching = _Matching(table)
    matching.by_name(list(schema), ROOT, ())
    if matching.problems:
        path, _ = matching.problems[0]
        text = "; ".join(problem for _, problem in matching.problems)
        raise InvalidInput(f"the data does not fit the table: {text}.", argument=path, advice="Cast, rename or drop columns first.")
    fields = tuple(matching.covered)
    return SchemaMatch(
        schema=arrow_from_fields(fields),
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
                self.problem(format_path(names), "is there twice")
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
            f"Rows in {name} would lose their nulls, so we only read it.",
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
