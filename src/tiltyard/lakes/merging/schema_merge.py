"""Three-way comparison of a table's schema and settings: what one side changed is taken, what both changed alike is agreed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tiltyard.format.keys import primary_key_fields
from tiltyard.format.logical_types import has_members
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import Field
from tiltyard.lakes.merging.merge_values import ConflictKind
from tiltyard.lakes.merging.place_merge import Three
from tiltyard.lakes.merging.table_state import PhysicalChange, TableState
from tiltyard.transaction.operations import UpdateConfig, UpdateMap

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Clash:
    """Why two changes of a table's schema or settings do not go together: its kind, and a sentence."""

    kind: ConflictKind
    detail: str


@dataclass(frozen=True, slots=True)
class SchemaMerge:
    """The schema after a merge.

    Attributes:
        fields: all of them.
        added: ids of those that only the branch has.
        clashes: what does not go together.
    """

    fields: tuple[Field, ...]
    added: frozenset[int]
    clashes: tuple[Clash, ...]


def merged_schema(base: TableState, ours: TableState, theirs: TableState) -> SchemaMerge:
    """The fields of both sides, by their ids."""
    was, mine, other = (_by_id(state.manifest) for state in (base, ours, theirs))
    clashes: list[Clash] = []
    result: dict[int, Field] = {}
    for number, field in mine.items():
        if number not in was:
            if number in other and other[number] != field:
                clashes.append(Clash("column", f"both sides added a column: {field.name} and {other[number].name}"))
            result[number] = field
        elif number in other:
            result[number] = _field(was[number], field, other[number], clashes)
        elif field != was[number]:
            clashes.append(Clash("column", f"column {field.name} was changed on one side and dropped on the other"))
    for number, field in was.items():
        if number not in mine and number in other and other[number] != field:
            clashes.append(Clash("column", f"column {field.name} was dropped on one side and changed on the other"))
    added = [field for number, field in other.items() if number not in was and number not in mine]
    result.update((field.id, field) for field in added)
    _check_structs(result, [*mine.values(), *other.values()], clashes)
    _check_names(result.values(), clashes)
    if _keys(was) not in (_keys(mine), _keys(other)) and _keys(mine) != _keys(other):
        clashes.append(Clash("setting", "the primary key was changed on both sides"))
    clashes += [
        Clash("column", f"the primary key was set on one side, and its column {field.name} takes nulls on the other")
        for field in primary_key_fields(result.values())
        if field.nullable
    ]
    fields = _ordered(result, other if [*mine] == [*was] else mine, mine)
    return SchemaMerge(fields, frozenset(field.id for field in added if field.id in result), tuple(clashes))


def unlike_columns(
    base: TableState, later: TableState, change: PhysicalChange, *, lasting: Callable[[frozenset[int]], frozenset[int]]
) -> list[Clash]:
    """Columns with the id of another one: an overwrite gives out all ids again, and so does each line of history for itself.

    One of another type is another one, since a cast gives a new id. One that has another name is the same one if a fragment that both
    have reads it from the same file, or if the history shows that nothing gave out its id again.

    Args:
        base, later: two states of the table.
        change: what happened in between.
        lasting: those of some ids that the history shows to be of the same column; asked only where files do not tell.
    """
    was, found, renamed = _by_id(base.manifest), [], {}
    pairs = [(base.backing(number), later.backing(there)) for number, there in change.kept.items()]
    for field in later.manifest.fields:
        before = was.get(field.id)
        if before is None or (before.name, before.logical_type, before.parent_id) == (field.name, field.logical_type, field.parent_id):
            continue
        if (before.logical_type, before.parent_id) != (field.logical_type, field.parent_id):
            found.append(Clash("column", f"an overwrite replaced {before.name} by {field.name}, another column or type"))
        elif not any(field.id in here and here[field.id] == there.get(field.id) for here, there in pairs):
            renamed[field.id] = f"it is not known whether {before.name} was renamed to {field.name} or is another column"
    known = lasting(frozenset(renamed)) if renamed else frozenset()
    return [*found, *(Clash("column", words) for number, words in renamed.items() if number not in known)]


def _by_id(manifest: Manifest) -> dict[int, Field]:
    return {field.id: field for field in manifest.fields}


def _keys(fields: Mapping[int, Field]) -> tuple[int, ...]:
    return tuple(field.id for field in primary_key_fields(fields.values()))


def _field(was: Field, mine: Field, other: Field, clashes: list[Clash]) -> Field:
    """One field that all three have, member by member; its metadata key by key."""
    changed: dict[str, Any] = {}
    for member in Field.__slots__:
        old, new, theirs = (getattr(field, member) for field in (was, mine, other))
        if member == "metadata":
            changed[member], bad = merged_map(old, new, theirs)
            clashes.extend(Clash("setting", f"metadata {key} of column {mine.name} was changed on both sides") for key in bad)
        elif new in (old, theirs):
            changed[member] = theirs
        elif theirs != old:
            clashes.append(Clash("column", f"column {was.name} was changed on both sides"))
    return replace(mine, **changed)


def _check_structs(result: dict[int, Field], sides: Iterable[Field], clashes: list[Clash]) -> None:
    """Takes out structs whose members were dropped by both sides together, and finds members whose struct one side dropped."""
    structs = {field.parent_id for field in sides}
    while empty := [
        number
        for number, field in result.items()
        if has_members(field.logical_type) and number in structs - {field.parent_id for field in result.values()}
    ]:
        for number in empty:
            del result[number]
    clashes += [
        Clash("column", f"{field.name} was added to a struct on one side, which the other side dropped")
        for field in result.values()
        if field.parent_id >= 0 and field.parent_id not in result
    ]


def _check_names(fields: Iterable[Field], clashes: list[Clash]) -> None:
    seen: dict[tuple[int, str], Field] = {}
    for field in fields:
        if seen.setdefault((field.parent_id, field.name), field) is not field:
            clashes.append(Clash("column", f"both sides have a column {field.name}, and they are not the same"))


def _ordered(fields: Mapping[int, Field], first: Iterable[int], second: Iterable[int]) -> tuple[Field, ...]:
    """The fields in the order of the side that changed it, parents before children, new ones last."""
    order = dict.fromkeys([*first, *second, *fields])
    return tuple(fields[number] for number in order if number in fields)


def schema_clashes(merged: SchemaMerge, three: Three, mine: PhysicalChange, other: PhysicalChange) -> list[Clash]:
    """What a schema that fits both sides makes of rows that only one of them wrote."""
    ours, theirs = three.ours, three.theirs
    ids, known = ({field.id for field in state.manifest.fields} for state in (ours, theirs))
    found = [*_unknown_columns(merged, ours, mine, known), *_unknown_columns(merged, theirs, other, ids)]
    own = {field.id for field in merged.fields} - known
    both = (ids & known) - {field.id for field in three.base.manifest.fields}
    if (mine.moved_rows or mine.brought_back) and _gave_values(theirs, other, merged.added | both):
        found.append(Clash("column", "the branch added a column with values, and rows were rewritten or restored on the target"))
    if other.moved_rows and _gave_values(ours, mine, own | both):
        found.append(Clash("column", "the target added a column with values, and rows were rewritten on the branch"))
    for number in both:
        pairs = [(ours.backing(mine.kept[place]), theirs.backing(other.kept[place])) for place in mine.kept.keys() & other.kept.keys()]
        if any(here.get(number) != there.get(number) for here, there in pairs):
            name = next(field.name for field in ours.manifest.fields if field.id == number)
            found.append(Clash("column", f"both sides added the column {name}, with values of their own"))
    keys = [*_new_keys(merged, ours, theirs, mine, other), *_new_nulls(merged, ours, mine), *_new_nulls(merged, theirs, other)]
    return [*found, *keys]


def _gave_values(side: TableState, change: PhysicalChange, fields: Collection[int]) -> bool:
    """Whether rows of the base may have values in columns that one side added."""
    there = {*change.kept.values(), *(change.came if change.moved_rows else ())}
    return any(not side.backing(number).keys().isdisjoint(fields) for number in there)


def _new_keys(merged: SchemaMerge, ours: TableState, theirs: TableState, mine: PhysicalChange, other: PhysicalChange) -> list[Clash]:
    """A primary key that only one side has: rows of the other were never compared with it."""
    keys, here, there = (
        _keys({field.id: field for field in fields}) for fields in (merged.fields, ours.manifest.fields, theirs.manifest.fields)
    )
    wrote = [bool(change.came or change.refiled) for change in (mine, other)]
    if here == there or not ((keys != here and wrote[0]) or (keys != there and wrote[1]) or all(wrote)) or (not keys and not all(wrote)):
        return []
    return [Clash("setting", "the primary key was changed on one side, and rows were written on the other")]


def _new_nulls(merged: SchemaMerge, side: TableState, change: PhysicalChange) -> list[Clash]:
    """Columns that take no nulls after the merge, and did on a side that wrote nulls."""
    took = {field.id: field for field in side.manifest.fields if field.nullable}
    strict = [took[field.id] for field in merged.fields if not field.nullable and field.id in took]
    if not strict or not (change.came or change.refiled):
        return []
    written = {**change.came, **{there: side.live(there) for number in change.refiled for there in (change.kept[number],)}}
    return [
        Clash("column", f"column {field.name} takes no nulls on one side, and the other wrote some")
        for field in strict
        if field.parent_id >= 0 or any(part.column(0).null_count for part in side.side.read(written, [field.name]))
    ]


def _unknown_columns(merged: SchemaMerge, side: TableState, change: PhysicalChange, of_other: set[int]) -> list[Clash]:
    """Columns of the result that new rows of one side have no values for, although they may not be null, or had another type."""
    if not change.came:
        return []
    known, names = {field.id for field in side.manifest.fields}, {field.name for field in side.manifest.fields}
    missing = [field for field in merged.fields if field.id not in known and field.id in of_other]
    return [
        Clash("column", f"column {field.name} was added or replaced on one side, and rows were written on the other")
        for field in missing
        if not field.nullable or field.name in names
    ]


# ---- settings --------------------------------------------------------------------------------------------------------------------


def merged_map(was: Mapping[str, V], mine: Mapping[str, V], other: Mapping[str, V]) -> tuple[dict[str, V], list[str]]:
    """A map of settings with what either side changed, and the keys that both changed in other ways."""
    result, bad = dict(mine), []
    for key in {**was, **other}:
        if other.get(key) == was.get(key) or other.get(key) == mine.get(key):
            continue
        if mine.get(key) != was.get(key):
            bad.append(key)
        elif key in other:
            result[key] = other[key]
        else:
            del result[key]
    return result, bad


def merged_settings(base: Manifest, ours: Manifest, theirs: Manifest) -> tuple[UpdateConfig | None, list[Clash]]:
    """The operation that gives the target the settings which the branch changed; None where there are none."""
    clashes: list[Clash] = []
    updates: dict[str, UpdateMap] = {}
    for member, argument in (
        ("config", "config_updates"), ("table_metadata", "table_metadata_updates"), ("schema_metadata", "schema_metadata_updates"),
    ):  # fmt: skip
        was, mine, other = (_texts(getattr(manifest, member)) for manifest in (base, ours, theirs))
        result, bad = merged_map(was, mine, other)
        clashes += [Clash("setting", f"{key} in {member} was changed on both sides") for key in bad]
        entries = [(key, result.get(key)) for key in {**mine, **result} if result.get(key) != mine.get(key)]
        if entries:
            updates[argument] = UpdateMap(tuple(entries))
    return (UpdateConfig(**updates) if updates else None), clashes  # type: ignore[arg-type]


def _texts(values: Mapping[str, str | bytes]) -> dict[str, str]:
    return {key: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for key, value in values.items()}
