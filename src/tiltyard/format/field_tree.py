"""The fields of a schema as the tree they describe: checked once, then asked for members and column paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.logical_types import MAX_DEPTH, fixed_list_levels
from tiltyard.format.values import Field

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
        if level + fixed_list_levels(field.logical_type) > MAX_DEPTH:
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
        raise InvalidInput(f"{path!r} is not a column path.", argument=path, advice="Join names by dots; put odd ones in backticks.")
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
