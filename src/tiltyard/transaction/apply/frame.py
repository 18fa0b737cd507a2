"""What all operations share: refusals, the list of fragments after a change, and the marks that only rise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable, IncompatibleConflict, InvalidInput
from tiltyard.format.codec import MAX_FRAGMENT_ID, MAX_FRAGMENT_ROWS, fragment_to_pb
from tiltyard.format.fields import field_tree
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import check_fragment, check_new_fragment
from tiltyard.format.manifest import Manifest
from tiltyard.format.row_ids import RowIds, RowVersions
from tiltyard.format.values import TOMBSTONE, DataFragment, Field, IndexMetadata

MEND = "Nothing was committed. Correct the operation."
SAMPLE = 5
"""How many ids an error names."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """Row ids and row versions of a fragment that keeps them in its data files, as somebody read them there."""

    row_ids: RowIds
    created_at: RowVersions
    updated_at: RowVersions


@dataclass(frozen=True, slots=True)
class Beside:
    """What some operations need and neither the transaction nor the manifest says."""

    restored: Manifest | None = None
    """For Restore: the version to go back to."""
    reuse: IndexMetadata | None = None
    """For Rewrite: the entry that lets other indices follow later. It has no place in a transaction."""
    spilled: Mapping[int, Spilled] = field(default_factory=dict)
    """By fragment id, for Update: see ``Spilled``."""


# ---- refusals --------------------------------------------------------------------------------------------------------------


def invalid(what: str, argument: str = "operation") -> InvalidInput:
    """The operation is wrong in itself."""
    return InvalidInput(what, argument=argument, advice=MEND)


def gone(operation: str, what: str, *, fragments: Iterable[int] = ()) -> IncompatibleConflict:
    """The operation speaks of something that the version it would be put on does not have."""
    return IncompatibleConflict(f"{operation} cannot be applied: {what}.", operation=operation, fragments=sorted(fragments)[:SAMPLE])


def some(ids: Collection[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(ids)[:SAMPLE])
    return shown if len(ids) <= SAMPLE else f"{shown} and {len(ids) - SAMPLE} more"


# ---- marks and flags -------------------------------------------------------------------------------------------------------


def has_stable_row_ids(manifest: Manifest) -> bool:
    return bool(manifest.writer_flags & Feature.STABLE_ROW_IDS)


def highest_fragment_id(manifest: Manifest) -> int | None:
    """The highest id ever given out; where nobody wrote it down, the highest one there is."""
    if manifest.max_fragment_id is None and len(manifest.fragments):
        return max(manifest.fragments.ids())
    return manifest.max_fragment_id


def next_fragment_id(highest: int | None) -> int:
    following = 0 if highest is None else highest + 1
    if following > MAX_FRAGMENT_ID:
        raise InvalidInput("The table has no fragment ids left.", argument="fragments")
    return following


# ---- fragments -------------------------------------------------------------------------------------------------------------


def found(base: Manifest, ids: Collection[int], operation: str) -> dict[int, DataFragment]:
    """The fragments with these ids; only they are decoded."""
    wanted = set(ids)
    if not wanted:
        return {}
    places = {number: place for place, number in enumerate(base.fragments.ids()) if number in wanted}
    if missing := wanted - places.keys():
        what = f"version {base.version} has no fragment {some(missing)}"
        raise gone(operation, what, fragments=missing)
    return {number: base.fragments[place] for number, place in places.items()}


def distinct(ids: Iterable[int], what: str) -> list[int]:
    listed = list(ids)
    if len(set(listed)) != len(listed):
        doubled = next(each_number for number, each_number in enumerate(listed) if each_number in listed[:number])
        raise invalid(f"{what} {doubled} occurs twice in the operation.")
    return listed


def without_dead_files(fragment: DataFragment) -> DataFragment:
    """Leaves out files none of whose columns count any more."""
    files = tuple(file for file in fragment.files if any(number != TOMBSTONE for number in file.fields))
    return fragment if len(files) == len(fragment.files) else replace(fragment, files=files)


def rebuilt(
    base: Manifest,
    changes: Mapping[int, DataFragment | None],
    added: Iterable[DataFragment] = (),
    next_row_id: int | None = None,
) -> Manifest:
    """The next version with some fragments replaced, left out (None) or added; all of them checked.

    The words of flags come out as an upper bound, for whoever computes them from the content.
    """
    base = base if next_row_id is None else replace(base, next_row_id=next_row_id)
    kept = {number: None if change is None else _checked(without_dead_files(change), base) for number, change in changes.items()}
    new = [_checked(without_dead_files(fragment), base) for fragment in added]
    highest = max([*([] if (mark := highest_fragment_id(base)) is None else [mark]), *(fragment.id for fragment in new)], default=None)
    fragments = base.fragments.changed(kept, new).in_order()
    spilled = Feature.SPILLED_ROW_LINEAGE if any(is_spilled(fragment) for fragment in (*kept.values(), *new) if fragment) else 0
    return replace(
        base,
        version=base.version + 1,
        fragments=fragments,
        max_fragment_id=highest,
        reader_flags=base.reader_flags | spilled,
        writer_flags=base.writer_flags | spilled,
    )


def is_spilled(fragment: DataFragment) -> bool:
    return fragment.row_ids_spilled or fragment.created_at_spilled or fragment.updated_at_spilled


def _checked(fragment: DataFragment, base: Manifest) -> DataFragment:
    """Refuses what we would refuse to read."""
    bases = frozenset(path.id for path in base.base_paths)
    given_out = base.next_row_id if has_stable_row_ids(base) else None
    try:
        record = fragment_to_pb(fragment).SerializeToString(deterministic=True)
        check_fragment(record, bases, given_out, "the operation", version=base.version + 1)
    except CorruptTable as error:
        raise invalid(f"It would make an unreadable version: {error.reason}.") from error
    except (ValueError, TypeError, DecodeError) as error:  # numbers that do not fit the wire
        raise invalid(f"Fragment {fragment.id} cannot be written: {error}.") from error
    if problem := _other_format(fragment, base):
        raise invalid(f"Fragment {fragment.id} {problem}.")
    return fragment


def with_ids(fragments: Iterable[DataFragment], base: Manifest) -> tuple[list[DataFragment], int | None]:
    """New fragments with the ids after the highest one ever given out, and the highest one now.

    Refuses what would make the next version unreadable, or readable with other rows than were meant.
    """
    highest = highest_fragment_id(base)
    numbered = []
    for fragment in fragments:
        if problem := new_fragment_problem(fragment, base):
            raise InvalidInput(f"A new fragment {problem}.", argument="fragments", advice=MEND)
        highest = next_fragment_id(highest)
        numbered.append(replace(fragment, id=highest))
    return numbered, highest


def new_fragment_problem(fragment: DataFragment, base: Manifest) -> str:
    """Why a fragment of new rows cannot be taken, or nothing."""
    if fragment.deletion_file or fragment.overlays:
        return "has deletions or overlays, whose names need a fragment id that is not assigned yet"
    if is_spilled(fragment):
        return "has row ids or row versions, which are assigned at the commit"
    if not 0 <= fragment.physical_rows <= MAX_FRAGMENT_ROWS:
        return f"claims {fragment.physical_rows} rows"
    try:
        check_new_fragment(fragment, frozenset(path.id for path in base.base_paths), "the operation")
    except CorruptTable as error:
        return f"is invalid: {error.reason}"
    return _other_format(fragment, base)


def _other_format(fragment: DataFragment, base: Manifest) -> str:
    """What is wrong with a fragment whose files have another format than the table's, or nothing."""
    if base.data_format is None or base.writer_flags & Feature.MIXED_FILE_VERSIONS:
        return ""
    for file in fragment.files:
        if file.major >= 2 and f"{file.major}.{file.minor}" != base.data_format.version:
            return f"has a file of format {file.major}.{file.minor}, the table has {base.data_format.version}"
    return ""


# ---- schema ----------------------------------------------------------------------------------------------------------------


def with_schema(manifest: Manifest, fields: tuple[Field, ...]) -> Manifest:
    """The manifest with another schema; the mark of field ids, where there is one, follows."""
    try:
        field_tree(fields, "the operation")
    except CorruptTable as error:
        raise invalid(f"The schema is invalid: {error.reason}.", "schema") from error
    mark = manifest.max_allocated_field_id
    if mark is not None:
        mark = max([mark, *(field.id for field in fields)])
    return replace(manifest, fields=fields, max_allocated_field_id=mark)
