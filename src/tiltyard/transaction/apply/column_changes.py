"""Columns that come, go and are replaced: Merge, Project and DataReplacement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tiltyard.format.manifest import Manifest
from tiltyard.format.values import CREATED_AT_FIELD, ROW_ID_FIELD, TOMBSTONE, UPDATED_AT_FIELD, DataFile, DataFragment
from tiltyard.transaction.apply.coverage import (
    current,
    family,
    moved_columns,
    retained,
    with_indices,
    without_coverage,
)
from tiltyard.transaction.apply.frame import distinct, found, gone, has_stable_row_ids, invalid, rebuilt, some, with_schema
from tiltyard.transaction.apply.row_changes import check_same_rows
from tiltyard.transaction.apply.row_lineage import all_updated
from tiltyard.transaction.operations import DataReplacement, Merge, Project

# ---- the whole table -------------------------------------------------------------------------------------------------------


def merge(operation: Merge, base: Manifest) -> Manifest:
    """The fragments of the operation take the place of those with their ids: all of them, and no others."""
    given = distinct((fragment.id for fragment in operation.fragments), "Fragment")
    there = found(base, given, operation.name)
    if forgotten := set(base.fragments.ids()) - there.keys():
        raise gone(operation.name, f"it leaves out fragment {some(forgotten)}", fragments=forgotten)
    stable = has_stable_row_ids(base)
    changes: dict[int, DataFragment | None] = {}
    indices = current(base)
    for fragment in operation.fragments:
        old = there[fragment.id]
        check_same_rows(old, fragment, operation.name)
        if fragment.deletion_file != old.deletion_file:
            raise gone(operation.name, f"rows of fragment {fragment.id} were deleted since", fragments=[fragment.id])
        if _identity(fragment) == _identity(old):
            continue
        new = replace(old, files=fragment.files)
        indices = without_coverage(indices, [fragment.id], family(base.fields, moved_columns(old, new)))
        changes[fragment.id] = all_updated(new, base.version + 1) if stable else new
    made = with_schema(rebuilt(base, changes), operation.schema)
    if operation.schema_metadata:  # writers leave it out: nothing said is nothing changed
        made = replace(made, schema_metadata=operation.schema_metadata)
    return with_indices(made, retained(indices, made.fields, given))


def _identity(fragment: DataFragment) -> list[tuple[object, ...]]:
    """What tells files apart; a size may be filled in later."""
    return [(file.path, file.base_id, file.fields, file.column_indices, file.major, file.minor) for file in fragment.files]


def project(operation: Project, base: Manifest) -> Manifest:
    """Another schema over the same files. Files that hold nothing of it go; others keep their dropped columns, unread."""
    if new := {field.id for field in operation.schema} - {field.id for field in base.fields}:
        raise gone(operation.name, f"version {base.version} has no field {some(new)}")
    remaining = {field.id for field in operation.schema}
    changes: dict[int, DataFragment | None] = {}
    # Names and order alone are no reason to look at every fragment.
    for fragment in base.fragments if len(remaining) < len(base.fields) else ():
        files = tuple(file for file in fragment.files if remaining.intersection(file.fields) or _has_lineage(fragment, file))
        if len(files) != len(fragment.files):
            changes[fragment.id] = replace(fragment, files=files)
    made = with_schema(rebuilt(base, changes) if changes else replace(base, version=base.version + 1), operation.schema)
    return with_indices(made, retained(current(base), made.fields, base.fragments.ids()))


def _has_lineage(fragment: DataFragment, file: DataFile) -> bool:
    """Whether the fragment's row ids or row versions are in this file."""
    return (
        (fragment.row_ids_spilled and ROW_ID_FIELD in file.fields)
        or (fragment.created_at_spilled and CREATED_AT_FIELD in file.fields)
        or (fragment.updated_at_spilled and UPDATED_AT_FIELD in file.fields)
    )


# ---- some fragments --------------------------------------------------------------------------------------------------------


def replace_data(operation: DataReplacement, base: Manifest) -> Manifest:
    ids = distinct((replacement.fragment_id for replacement in operation.replacements), "Fragment")
    there = found(base, ids, operation.name)
    if len({replacement.new_file.fields for replacement in operation.replacements}) > 1:
        raise invalid("The new files hold different fields.", "replacements")
    known = {field.id for field in base.fields}
    replaced = {number for replacement in operation.replacements for number in replacement.new_file.fields if number >= 0}
    if missing := replaced - known:
        raise gone(operation.name, f"version {base.version} has no field {some(missing)}")
    if operation.replacements and not replaced:
        raise invalid("The new files hold no field.", "replacements")
    stable = has_stable_row_ids(base)
    changes: dict[int, DataFragment | None] = {}
    for replacement in operation.replacements:
        made = _with_file(there[replacement.fragment_id], replacement.new_file, known)
        changes[made.id] = all_updated(made, base.version + 1) if stable else made
    after = without_coverage(current(base), ids, family(base.fields, replaced))
    return with_indices(rebuilt(base, changes), after)


def _with_file(fragment: DataFragment, new: DataFile, known: Collection[int]) -> DataFragment:
    """The fragment with its columns read from another file: swapped for one of the same columns, added otherwise."""
    taken = {number for number in new.fields if number >= 0}
    for place, file in enumerate(fragment.files):
        if file.fields == new.fields and (file.major, file.minor) == (new.major, new.minor):
            if (file.path, file.base_id) == (new.path, new.base_id):
                raise invalid(f"Fragment {fragment.id} has {new.path} already.", "replacements")
            return replace(fragment, files=(*fragment.files[:place], new, *fragment.files[place + 1 :]))
    if any(file.major < 2 and taken.intersection(file.fields) for file in fragment.files):
        # Readers of the oldest format find a column by its place among the fields that are listed.
        raise invalid(f"Fragment {fragment.id} is of the oldest format, where only all columns of a file can be replaced.", "replacements")
    files = []
    for file in fragment.files:
        if taken.intersection(file.fields):
            file = replace(file, fields=tuple(TOMBSTONE if number in taken else number for number in file.fields))
            if not set(known).intersection(file.fields) and not _has_lineage(fragment, file):
                continue
        files.append(file)
    return replace(fragment, files=(*files, new))
