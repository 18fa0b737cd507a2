"""Field ids: giving out new ones, and which of them a data file lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tiltyard.errors import InvalidInput
from tiltyard.format.extension_types import EXTENSION_NAME
from tiltyard.format.field_tree import ROOT, field_tree
from tiltyard.format.values import DataFragment, Field

BLOB_V2: Final = "lance.blob.v2"
MAX_FIELD_ID: Final = 2**31 - 1
_PACKED_KEYS: Final = ("packed", "lance-encoding:packed")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})


def says_yes(value: bytes | None) -> bool:
    """Whether a metadata value turns something on."""
    return value is not None and value.decode("utf-8", "replace").lower() in _TRUE


def next_field_id(fields: Iterable[Field], fragments: Iterable[DataFragment] = (), max_allocated: int | None = None) -> int:
    """The first id nobody has: above the schema's, above all that live data files mention and above the high-water mark, if kept.

    Ids of dropped columns still stand in data files; giving one out again would bring the old values back.
    """
    highest = max((field.id for field in fields), default=-1)
    for fragment in fragments:
        for file in fragment.files:
            highest = max(highest, max(file.fields, default=-1))
    if max_allocated is not None:
        highest = max(highest, max_allocated)
    return highest + 1


def assign_ids(fields: Sequence[Field], start: int) -> tuple[Field, ...]:
    """The same tree with ids ``start``, ``start + 1`` ... in list order."""
    if start < 0 or start + len(fields) - 1 > MAX_FIELD_ID:
        raise InvalidInput(f"{len(fields)} field ids from {start} on do not exist.", advice=f"Ids go from 0 to {MAX_FIELD_ID}.")
    new = {field.id: start + number for number, field in enumerate(field_tree(fields).fields)}
    new[ROOT] = ROOT
    return tuple(replace(field, id=new[field.id], parent_id=new[field.parent_id]) for field in fields)


def leaf_ids(fields: Iterable[Field], file_version: tuple[int, int]) -> tuple[int, ...]:
    """Field ids a data file of this version lists for these columns, in the order of its own columns.

    ``file_version`` is (major, minor) as in ``DataFile``: major 0 is the oldest format, which lists everything; 2.0 lists parents and
    members; from 2.1 on only what holds values is listed. Some nested fields are one column of their own, with nothing listed below.
    """
    tree = field_tree(fields)
    if file_version[0] < 2:
        return tuple(field.id for field in tree.fields)
    listed: list[int] = []
    stack = list(reversed(tree.below(ROOT)))
    while stack:
        field = stack.pop()
        members = () if _is_one_column(field, file_version) else tree.below(field.id)
        if not members or file_version == (2, 0):
            listed.append(field.id)
        stack.extend(reversed(members))
    return tuple(listed)


def is_blob_v2(field: Field) -> bool:
    return field.metadata.get(EXTENSION_NAME) == BLOB_V2.encode()


def _is_one_column(field: Field, file_version: tuple[int, int]) -> bool:
    if file_version == (2, 0) and field.logical_type.startswith("fixed_size_list:"):
        return True
    return field.logical_type == "struct" and (is_blob_v2(field) or any(says_yes(field.metadata.get(key)) for key in _PACKED_KEYS))
