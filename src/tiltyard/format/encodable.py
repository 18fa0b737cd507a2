"""Types a schema can name but the data files of some format cannot hold: writers take the rows, readers cannot give them back.

Each rule here stands for rows that pylance acknowledged and then failed to read, or read wrongly. Better to refuse them before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.format.field_tree import ROOT, FieldTree, field_tree
from tiltyard.format.values import Field

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
