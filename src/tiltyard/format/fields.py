"""The fields of a schema as the tree they describe: checked once, then asked for members and column paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.logical_types import EXTENSION_NAME, FIXED_LIST, MAX_DEPTH, fixed_list_levels
from tiltyard.format.values import DataFragment, Field

ROOT = -1
"""Parent of top-level fields."""


@dataclass(frozen=True, slots=True)
class FieldTree:
    fields: tuple[Field, ...]
    by_id: Mapping[int, Field]
    members: Mapping[int, tuple[Field, ...]]
    """Field id (or ``ROOT``) to the fields directly below it, in column order."""

    def below(self, field_id: int) -> tuple[Field, ...]:
        return self.members.get(field_id, ())

    def ancestors(self, field: Field) -> tuple[Field, ...]:
        """From the top-level column down to the parent of ``field``."""
        found: list[Field] = []
        while field.parent_id != ROOT:
            field = self.by_id[field.parent_id]
            found.append(field)
        return tuple(reversed(found))

    def path(self, field: Field) -> str:
        return format_path([*(parent.name for parent in self.ancestors(field)), field.name])


def field_tree(fields: Iterable[Field], source: str = "schema") -> FieldTree:
    """Checks ids, parents and depth, in one pass and without recursion.

    Raises:
        CorruptTable: ids that repeat or are negative, a parent that does not come before its member, too many levels, a name or type
            that Arrow cannot pass on.
    """
    ordered = tuple(fields)
    by_id: dict[int, Field] = {}
    levels: dict[int, int] = {ROOT: 0}
    members: dict[int, list[Field]] = {}
    for field in ordered:
        if field.id < 0:
            raise CorruptTable(source, f"field {field.name[:40]!r} has the negative id {field.id}")
        if field.id in by_id:
            raise CorruptTable(source, f"field id {field.id} is used twice")
        if "\0" in field.name or "\0" in field.logical_type:
            # Libraries hand schemas to each other as C strings; pylance ends the process over such a name.
            raise CorruptTable(source, f"the name or type of field {field.id} ({field.name[:40]!r}) holds a NUL character")
        # Whatever is not there yet cannot be the parent: this rules out later parents, missing ones and cycles alike.
        if field.parent_id not in levels:
            raise CorruptTable(source, f"field {field.id} comes before its parent {field.parent_id}, or has none")
        level = levels[field.parent_id] + 1
        inside = fixed_list_levels(field.logical_type) if field.logical_type.startswith(FIXED_LIST) else 0
        if level + inside > MAX_DEPTH:
            raise CorruptTable(source, f"field {field.id} lies deeper than {MAX_DEPTH} levels")
        levels[field.id] = level
        by_id[field.id] = field
        members.setdefault(field.parent_id, []).append(field)
    return FieldTree(ordered, by_id, {parent: tuple(found) for parent, found in members.items()})


def format_path(names: Sequence[str]) -> str:
    """A column path: names joined by dots; one that holds a dot, a backtick or nothing stands in backticks."""
    return ".".join(f"`{name.replace('`', '``')}`" if not name or "." in name or "`" in name else name for name in names)


def parse_path(path: str) -> tuple[str, ...]:
    """The names in a column path.

    Raises:
        InvalidInput: empty names outside backticks, or backticks that do not match.
    """
    names: list[str] = []
    rest = path
    while True:
        name, rest = _quoted(rest, path) if rest.startswith("`") else _plain(rest, path)
        names.append(name)
        if not rest:
            return tuple(names)
        rest = rest[1:]


def _plain(rest: str, path: str) -> tuple[str, str]:
    dot = rest.find(".")
    name = rest if dot < 0 else rest[:dot]
    if not name or "`" in name:
        raise InvalidInput(
            f"{path!r} is not a column path.", argument=path, advice="Join names by dots; put names with special characters in backticks."
        )
    return name, rest[len(name) :]


def _quoted(rest: str, path: str) -> tuple[str, str]:
    letters: list[str] = []
    position = 1
    while position < len(rest):
        if rest[position] != "`":
            letters.append(rest[position])
        elif rest.startswith("``", position):
            letters.append("`")
            position += 1
        elif position + 1 == len(rest) or rest[position + 1] == ".":
            return "".join(letters), rest[position + 1 :]
        else:
            break
        position += 1
    raise InvalidInput(f"{path!r} has backticks that do not match.", argument=path, advice="Double a backtick inside a quoted name.")


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
        raise InvalidInput(f"{len(fields)} fields cannot be numbered from {start}.", advice=f"Ids go from 0 to {MAX_FIELD_ID}.")
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


def has_blobs(fields: Iterable[Field]) -> bool:
    """Whether values of a column lie in files of their own, beside the data files."""
    return any(map(is_blob_v2, fields))


def _is_one_column(field: Field, file_version: tuple[int, int]) -> bool:
    if file_version == (2, 0) and field.logical_type.startswith("fixed_size_list:"):
        return True
    return field.logical_type == "struct" and (is_blob_v2(field) or any(says_yes(field.metadata.get(key)) for key in _PACKED_KEYS))
