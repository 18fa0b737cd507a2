"""Rows that come, go and change: Append, Overwrite, Delete and Update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import decode_roaring
from tiltyard.format.values import CREATED_AT_FIELD, ROW_ID_FIELD, UPDATED_AT_FIELD, DataFragment
from tiltyard.transaction.apply.coverage import current, family, retained, with_indices, with_moved_rows, without_coverage
from tiltyard.transaction.apply.frame import Beside, distinct, found, gone, has_stable_row_ids, invalid, rebuilt, with_ids
from tiltyard.transaction.apply.mem_wal_state import with_progress
from tiltyard.transaction.apply.row_lineage import moved_only, row_ids_left, some_updated, with_fresh_lineage, with_moved_lineage
from tiltyard.transaction.operations import Append, Delete, Overwrite, Update, UpdateMode

OF_OLD_FRAGMENTS = int(Feature.DELETION_FILES | Feature.SPILLED_ROW_LINEAGE)
"""Features that only the fragments themselves need, gone when they are."""

LINEAGE = frozenset({ROW_ID_FIELD, CREATED_AT_FIELD, UPDATED_AT_FIELD})
"""Fields that no schema names and that a file is kept for all the same."""


# ---- new rows --------------------------------------------------------------------------------------------------------------


def append(operation: Append, base: Manifest) -> Manifest:
    added, highest, next_row_id = _numbered(operation.fragments, base)
    return replace(
        base,
        version=base.version + 1,
        fragments=base.fragments.appended(added),
        max_fragment_id=highest,
        next_row_id=next_row_id,
    )


def overwrite(operation: Overwrite, base: Manifest) -> Manifest:
    known = {field.id for field in operation.schema}
    columns = {number for fragment in operation.fragments for file in fragment.files for number in file.fields if number >= 0}
    if not columns <= known:
        # Readers would see nulls in place of these columns.
        raise invalid(f"The files hold field {min(columns - known)}, which the new schema lacks.", "schema")
    added, highest, next_row_id = _numbered(operation.fragments, base)
    allocated = base.max_allocated_field_id
    if allocated is not None:
        allocated = max([allocated, *(field.id for field in operation.schema)])
    return replace(
        base,
        version=base.version + 1,
        fields=operation.schema,
        schema_metadata=operation.schema_metadata,
        fragments=FragmentList(added),
        index_section=b"",
        config={**base.config, **operation.config_upsert_values} if operation.config_upsert_values else base.config,
        max_fragment_id=highest,
        next_row_id=next_row_id,
        max_allocated_field_id=allocated,
        reader_flags=base.reader_flags & ~OF_OLD_FRAGMENTS,
        writer_flags=base.writer_flags & ~OF_OLD_FRAGMENTS,
    )


def _numbered(fragments: Iterable[DataFragment], base: Manifest) -> tuple[list[DataFragment], int | None, int]:
    """The new fragments with their ids and, on tables that have them, row ids; and the high-water marks after them."""
    stable = has_stable_row_ids(base)
    numbered, highest = with_ids(fragments, base)
    next_row_id = base.next_row_id
    if stable:
        for place, fragment in enumerate(numbered):
            row_ids_left(next_row_id, fragment.physical_rows)
            numbered[place] = with_fresh_lineage(fragment, next_row_id, base.version + 1)
            next_row_id += fragment.physical_rows
    return numbered, highest, next_row_id


# ---- rows that go ----------------------------------------------------------------------------------------------------------


def delete(operation: Delete, base: Manifest) -> Manifest:
    updated = distinct((fragment.id for fragment in operation.updated_fragments), "Fragment")
    removed = set(operation.deleted_fragment_ids)
    there = found(base, {*updated, *removed}, operation.name)
    changes: dict[int, DataFragment | None] = {
        fragment.id: with_deletions(there[fragment.id], fragment, operation.name) for fragment in operation.updated_fragments
    }
    changes.update(dict.fromkeys(removed))  # where both are said, the fragment goes
    return _with_relevant_indices(rebuilt(base, changes), base)


def with_deletions(before: DataFragment, after: DataFragment, operation: str) -> DataFragment:
    """The fragment as it is, with the deletions of another state of it.

    Only these are taken over: what else changed since the operation was made (a column that was dropped, say) stays as it is.
    """
    check_same_rows(before, after, operation)
    return replace(before, deletion_file=after.deletion_file)


def check_same_rows(before: DataFragment, after: DataFragment, operation: str) -> None:
    """Refuses a state of a fragment that is not a later one: other rows, or rows that were deleted and would come back."""
    if before.physical_rows != after.physical_rows:
        what = f"fragment {before.id} has {before.physical_rows} rows, the operation knows {after.physical_rows}"
        raise gone(operation, what, fragments=[before.id])
    old, new = before.deletion_file, after.deletion_file
    # A file is made from a version that was read, so a later state comes from a later version than the one before it did.
    unseen = old is not None and new is not None and new != old and new.read_version <= old.read_version
    if unseen or before.live_rows < after.live_rows:
        raise gone(operation, f"deleted rows of fragment {before.id} would come back", fragments=[before.id])


def _with_relevant_indices(made: Manifest, base: Manifest) -> Manifest:
    before = current(base)
    return with_indices(made, retained(before, made.fields, made.fragments.ids())) if before else made


# ---- rows that change ------------------------------------------------------------------------------------------------------


def update(operation: Update, base: Manifest, beside: Beside) -> Manifest:
    updated = distinct((fragment.id for fragment in operation.updated_fragments), "Fragment")
    removed = set(operation.removed_fragment_ids)
    there = found(base, {*updated, *removed}, operation.name)
    changes: dict[int, DataFragment | None] = {
        fragment.id: _changed(there[fragment.id], fragment, operation, base, beside) for fragment in operation.updated_fragments
    }
    changes.update(dict.fromkeys(removed))
    added, _ = with_ids((replace(fragment, row_ids=None) for fragment in operation.new_fragments), base)
    added = [replace(fragment, row_ids=given.row_ids) for fragment, given in zip(added, operation.new_fragments, strict=True)]
    next_row_id = base.next_row_id
    if has_stable_row_ids(base):
        sources = [there[number] for number in sorted(there)]
        added, next_row_id = with_moved_lineage(added, sources, next_row_id, base.version + 1, beside.spilled)
    elif any(fragment.row_ids is not None for fragment in added):
        raise invalid("The new fragments have row ids, and the rows of this table have none.", "new_fragments")
    made = rebuilt(base, changes, added, next_row_id)
    after = without_coverage(current(base), updated, family(base.fields, operation.fields_modified))
    if has_stable_row_ids(base) and operation.update_mode is UpdateMode.REWRITE_ROWS:
        moved = [fragment.id for fragment, given in zip(added, operation.new_fragments, strict=True) if moved_only(given)]
        after = with_moved_rows(after, there, moved, family(base.fields, operation.fields_for_preserving_frag_bitmap))
    after = retained(after, base.fields, made.fragments.ids())
    if operation.compacted_sstables:
        after = with_progress(after, operation.compacted_sstables, made.version, operation.name)
    return with_indices(made, after)


def _changed(before: DataFragment, after: DataFragment, operation: Update, base: Manifest, beside: Beside) -> DataFragment:
    if operation.update_mode is UpdateMode.REWRITE_ROWS and not operation.fields_modified:
        return with_deletions(before, after, operation.name)
    check_same_rows(before, after, operation.name)
    known = {field.id for field in base.fields}
    if missing := set(operation.fields_modified) - known:
        raise gone(operation.name, f"version {base.version} has no field {min(missing)}")
    # A file that a projection took out meanwhile must not come back, and one of which only dropped columns are left is of no use.
    here = {(file.path, file.base_id): file.fields for file in before.files}
    live = known | LINEAGE
    files = tuple(file for file in after.files if here.get((file.path, file.base_id)) == file.fields or live.intersection(file.fields))
    kept = {number for file in before.files for number in file.fields if number in known}
    if lost := kept - {number for file in files for number in file.fields}:
        raise invalid(f"Fragment {before.id} would lose field {min(lost)}.", "updated_fragments")
    made = replace(before, files=files, deletion_file=after.deletion_file)
    offsets = operation.updated_fragment_offsets.get(before.id)
    if offsets is None or not has_stable_row_ids(base):
        return made
    return some_updated(made, _bitmap(offsets, before.id), base.version + 1, beside.spilled)


def _bitmap(data: bytes, fragment: int) -> BitMap:
    try:
        return decode_roaring(data, "the operation")
    except CorruptTable as error:
        raise invalid(
            f"The bitmap of changed rows of fragment {fragment} is invalid: {error.reason}.", "updated_fragment_offsets"
        ) from error
