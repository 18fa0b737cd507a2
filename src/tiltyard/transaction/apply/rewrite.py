"""The same rows in other fragments: ReserveFragments and Rewrite."""

from __future__ import annotations

from dataclasses import replace

from tiltyard.format.codec import MAX_FRAGMENT_ID
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.apply.coverage import FRAGMENT_REUSE, Indices, carried_along, current, exchanged, with_indices
from tiltyard.transaction.apply.frame import (
    distinct,
    found,
    gone,
    has_stable_row_ids,
    highest_fragment_id,
    invalid,
    next_fragment_id,
    rebuilt,
    some,
)
from tiltyard.transaction.apply.row_lineage import check_carried
from tiltyard.transaction.operations import ReserveFragments, Rewrite, RewriteGroup, RewrittenIndex


def reserve(operation: ReserveFragments, base: Manifest) -> Manifest:
    highest = (highest_fragment_id(base) or 0) + operation.num_fragments
    if operation.num_fragments < 0 or highest > MAX_FRAGMENT_ID:
        raise invalid(f"{operation.num_fragments} fragment ids cannot be reserved.", "num_fragments")
    return replace(base, version=base.version + 1, max_fragment_id=highest)


def rewrite(operation: Rewrite, base: Manifest, reuse: IndexMetadata | None = None) -> Manifest:
    old = distinct((fragment.id for group in operation.groups for fragment in group.old_fragments), "Fragment")
    there = found(base, old, operation.name)
    groups = _numbered(operation, base)
    for group in groups:
        _check_group(group, there, operation.name, base)
    added = [fragment for group in groups for fragment in group.new_fragments]
    made = rebuilt(base, dict.fromkeys(old), added)
    after = _following(current(base), operation.rewritten_indices, groups, stable=has_stable_row_ids(base))
    if reuse is not None:
        if reuse.name != FRAGMENT_REUSE:
            raise invalid(f"{reuse.name} is not the fragment reuse entry.", "reuse")
        after = (*(index for index in after if index.name != FRAGMENT_REUSE), reuse)
    return with_indices(made, after)


def _numbered(operation: Rewrite, base: Manifest) -> list[RewriteGroup]:
    """The groups with ids for new fragments that have none: most have one that was reserved."""
    highest = highest_fragment_id(base)
    groups = []
    for group in operation.groups:
        new = []
        for fragment in group.new_fragments:
            if fragment.id == 0:
                highest = next_fragment_id(highest)
                fragment = replace(fragment, id=highest)
            new.append(fragment)
        groups.append(replace(group, new_fragments=tuple(new)))
    ids = distinct((fragment.id for group in groups for fragment in group.new_fragments), "New fragment")
    if taken := set(base.fragments.ids()).intersection(ids):
        raise gone(operation.name, f"fragment {some(taken)} exists already", fragments=taken)
    if ids and (highest is None or max(ids) > highest):
        raise invalid(f"Fragment id {max(ids)} was never reserved.", "groups")
    return groups


def _check_group(group: RewriteGroup, there: dict[int, DataFragment], operation: str, base: Manifest) -> None:
    """A rewrite is of rows as they were: whatever changed in its old fragments since would be lost."""
    known = {field.id for field in base.fields}
    for fragment in group.old_fragments:
        now = there[fragment.id]
        if now.physical_rows != fragment.physical_rows or now.deletion_file != fragment.deletion_file:
            raise gone(operation, f"rows of fragment {fragment.id} were deleted since", fragments=[fragment.id])
        if _columns(now, known) != _columns(fragment, known):
            raise gone(operation, f"columns of fragment {fragment.id} were replaced since", fragments=[fragment.id])
    before, after = (sum(fragment.live_rows for fragment in side) for side in (group.old_fragments, group.new_fragments))
    if before != after:
        raise invalid(f"A rewrite makes {after} rows of {before}.", "groups")
    if has_stable_row_ids(base):
        check_carried(group.new_fragments, [there[fragment.id] for fragment in group.old_fragments], base.next_row_id)


def _columns(fragment: DataFragment, known: set[int]) -> dict[int, tuple[str, int | None]]:
    return {number: (file.path, file.base_id) for file in fragment.files for number in file.fields if number in known}


def _following(indices: Indices, rewritten: tuple[RewrittenIndex, ...], groups: list[RewriteGroup], *, stable: bool) -> Indices:
    """Indices that were mapped onto the new fragments. One that was dropped meanwhile needs nothing."""
    new = {index.old_id: index for index in rewritten}
    if len(new) != len(rewritten):
        raise invalid("One index was rewritten twice.", "rewritten_indices")
    result = []
    for index in indices:
        mapped = new.get(index.uuid)
        if mapped is not None:
            index = exchanged(index, groups)
            # Whatever base the old files lie in, the new ones were written into this table.
            index = replace(index, uuid=mapped.new_id, files=mapped.files, base_id=None)
        elif stable:
            index = carried_along(index, groups)
        result.append(index)
    if len({index.uuid for index in result}) != len(result):
        raise invalid("Two indices would have one uuid.", "rewritten_indices")
    return tuple(result)
