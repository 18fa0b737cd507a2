"""Operations changed so that they stand on a later version: pure functions, each of one kind of change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from pyroaring import BitMap

from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.footprint import coverage
from tiltyard.transaction.operations import CreateIndex, Delete, Rewrite, RewriteGroup, Update

RowChange: TypeAlias = Delete | Update


def fragments_of(manifest: Manifest, ids: Iterable[int]) -> dict[int, DataFragment]:
    """Those of these fragments that a version has."""
    wanted = frozenset(ids)
    if not wanted:
        return {}
    return {one: manifest.fragments[place] for place, one in enumerate(manifest.fragments.ids()) if one in wanted}


def arrivals(after: Manifest, before: Manifest) -> dict[tuple[str, int | None], DataFragment]:
    """Fragments that only the later version has, by their first file. In an operation they may not have had their ids yet."""
    new = set(after.fragments.ids()).difference(before.fragments.ids())
    return {first_file(one): one for one in fragments_of(after, new).values()}


def first_file(fragment: DataFragment) -> tuple[str, int | None]:
    return (fragment.files[0].path, fragment.files[0].base_id) if fragment.files else ("", None)


# ---- indices ---------------------------------------------------------------------------------------------------------------


def trimmed(operation: CreateIndex, trims: Mapping[str, Collection[int]]) -> CreateIndex:
    """Takes fragments out of what new indices cover, by uuid."""
    new = []
    for index in operation.new_indices:
        covered = coverage(index)
        if covered is not None and index.uuid in trims:
            index = replace(index, fragment_bitmap=encode_roaring(covered - BitMap(trims[index.uuid])))
        new.append(index)
    return replace(operation, new_indices=tuple(new))


def redirected(operation: CreateIndex, rewrite: Rewrite, after: Iterable[IndexMetadata]) -> CreateIndex:
    """Drops what a rewrite put in the place of indices that were to be dropped. ``after`` holds the indices of the rewrite's version."""
    followers = {one.old_id: one.new_id for one in rewrite.rewritten_indices}
    there = {one.uuid: one for one in after}
    removed = [there.get(followers.get(one.uuid, one.uuid), one) for one in operation.removed_indices]
    return replace(operation, removed_indices=tuple(removed))


# ---- rows ------------------------------------------------------------------------------------------------------------------


def moved(operation: RowChange, old: Collection[int], new: Iterable[DataFragment]) -> RowChange:
    """The operation with other fragments in the place of those that a rewrite took away."""
    updated = (*(one for one in operation.updated_fragments if one.id not in old), *new)
    if isinstance(operation, Delete):
        left = tuple(one for one in operation.deleted_fragment_ids if one not in old)
        return replace(operation, updated_fragments=updated, deleted_fragment_ids=left)
    left = tuple(one for one in operation.removed_fragment_ids if one not in old)
    return replace(operation, updated_fragments=updated, removed_fragment_ids=left)


def exchanged(operation: RowChange, changes: Mapping[int, DataFragment | None]) -> RowChange:
    """The operation with other states of fragments it changes; None for one of which no row is left."""
    states = [changes.get(one.id, one) for one in operation.updated_fragments]
    updated = tuple(one for one in states if one is not None)
    emptied = tuple(number for number, one in changes.items() if one is None)
    if isinstance(operation, Delete):
        gone = tuple(dict.fromkeys((*operation.deleted_fragment_ids, *emptied)))
        return replace(operation, updated_fragments=updated, deleted_fragment_ids=gone)
    gone = tuple(dict.fromkeys((*operation.removed_fragment_ids, *emptied)))
    return replace(operation, updated_fragments=updated, removed_fragment_ids=gone)


def regrouped(
    operation: Rewrite,
    carried: Collection[int],
    there: Mapping[int, DataFragment],
    merged: Callable[[DataFragment], DataFragment | None],
) -> Rewrite:
    """A rewrite over deletions: old fragments as they are now, new ones with what was deleted meanwhile; what is empty goes.

    Args:
        operation: the rewrite.
        carried: old fragments in which rows were deleted.
        there: those of them that the head still has.
        merged: gives a new fragment with its deletions, or None if no row is left.
    """
    groups = []
    for group in operation.groups:
        old = tuple(
            replace(one, deletion_file=there[one.id].deletion_file) if one.id in carried else one
            for one in group.old_fragments
            if one.id in there or one.id not in carried
        )
        new = tuple(one for fragment in group.new_fragments if (one := merged(fragment)) is not None)
        if old or new:
            groups.append(RewriteGroup(old, new, group.unknown))
    return replace(operation, groups=tuple(groups))


def deletion_files(operation: RowChange | Rewrite) -> set[str]:
    """Deletion files below the table's root that the operation puts into a version."""
    if isinstance(operation, Rewrite):
        fragments = [one for group in operation.groups for one in group.new_fragments]
    else:
        fragments = [*operation.updated_fragments]
    return {file.path(one.id) for one in fragments if (file := one.deletion_file) is not None and file.base_id is None}
