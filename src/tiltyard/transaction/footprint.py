"""The footprint of an operation: fragments, fields, indices, keys, shards. Pure readers, each of one operation.

Bitmaps and details inside an operation are bytes of whoever wrote it. Bytes that cannot be read raise ``CorruptTable``: what they stand
for is unknown, so nobody may decide as if they stood for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from pyroaring import BitMap

from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import parse_sound, uuid_from_pb
from tiltyard.format.keys import PRIMARY_KEY, PRIMARY_KEY_POSITION
from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import decode_roaring, encode_roaring
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.operations import (
    CreateIndex,
    DataReplacement,
    Delete,
    Operation,
    Overwrite,
    Rewrite,
    RewriteGroup,
    Update,
    UpdateConfig,
    UpdateMap,
    UpdateMemWalState,
    UpdateMode,
)

FRAGMENT_REUSE: Final = "__lance_frag_reuse"
MEM_WAL: Final = "__lance_mem_wal"
SINGLETONS: Final = (FRAGMENT_REUSE, MEM_WAL)
"""Indices of which a table has one at most, kept by the engine for itself."""

_NGRAM: Final = "NGramIndexDetails"


# ---- fragments and fields --------------------------------------------------------------------------------------------------


def touched_fragments(operation: Operation) -> frozenset[int]:
    """Fragments that were there before and that the operation changes, removes or replaces."""
    if isinstance(operation, Delete | Update):
        return frozenset(fragment.id for fragment in operation.updated_fragments) | removed_fragments(operation)
    if isinstance(operation, Rewrite):
        return frozenset(fragment.id for group in operation.groups for fragment in group.old_fragments)
    if isinstance(operation, DataReplacement):
        return frozenset(replacement.fragment_id for replacement in operation.replacements)
    return frozenset()


def removed_fragments(operation: Operation) -> frozenset[int]:
    """Fragments that go as a whole."""
    if isinstance(operation, Delete):
        return frozenset(operation.deleted_fragment_ids)
    return frozenset(operation.removed_fragment_ids) if isinstance(operation, Update) else frozenset()


def recolumned_fragments(operation: Operation, base: Mapping[int, DataFragment]) -> frozenset[int]:
    """Fragments in which an update rewrote columns in place. ``base`` holds fragments as they were before, as far as that is known."""
    if not isinstance(operation, Update):
        return frozenset()
    if rewrites_columns(operation):
        return frozenset(fragment.id for fragment in operation.updated_fragments)
    # Writers that do not say so are found out by their files.
    return frozenset(
        fragment.id for fragment in operation.updated_fragments if fragment.id in base and _columns(base[fragment.id]) != _columns(fragment)
    )


def _columns(fragment: DataFragment) -> list[tuple[int | None, str, tuple[int, ...]]]:
    return [(file.base_id, file.path, file.fields) for file in fragment.files]


def rewrites_columns(operation: Operation) -> bool:
    """Whether an update says of itself that it left rows where they were."""
    return isinstance(operation, Update) and (operation.update_mode is UpdateMode.REWRITE_COLUMNS or bool(operation.fields_modified))


def rewritten_rows(operation: Operation, fragment_id: int) -> BitMap | None:
    """Rows whose columns were rewritten in place, where the operation tells which; None where it could be any."""
    if not isinstance(operation, Update) or fragment_id not in operation.updated_fragment_offsets:
        return None
    return decode_roaring(operation.updated_fragment_offsets[fragment_id], f"the rows rewritten in fragment {fragment_id}")


def written_fields(fragments: Iterable[DataFragment]) -> frozenset[int]:
    return frozenset(number for fragment in fragments for file in fragment.files for number in file.fields if number >= 0)


def replaced_cells(operation: DataReplacement) -> frozenset[tuple[int, int]]:
    """Fragment and field of every column that is replaced."""
    return frozenset(
        (replacement.fragment_id, number) for replacement in operation.replacements for number in replacement.new_file.fields if number >= 0
    )


# ---- indices ---------------------------------------------------------------------------------------------------------------


def index_fields(index: IndexMetadata) -> frozenset[int]:
    """Fields the index answers for, the ones it merely carries along included."""
    return frozenset(index.fields) | frozenset(index.covering_fields)


def coverage(index: IndexMetadata) -> BitMap | None:
    """Fragments the index was built over; None where it does not say."""
    return None if index.fragment_bitmap is None else decode_roaring(index.fragment_bitmap, f"the coverage of index {index.name}")


def is_ngram(index: IndexMetadata) -> bool:
    return index.details is not None and index.details[0].endswith(_NGRAM)


def installs(operation: Operation, name: str) -> IndexMetadata | None:
    """The index of this name that the operation adds."""
    if not isinstance(operation, CreateIndex):
        return None
    return next((index for index in operation.new_indices if index.name == name), None)


def trims_reuse(operation: CreateIndex) -> bool:
    """Whether it puts a shorter fragment reuse entry in the place of the one that is there, and does nothing else."""
    return [index.name for index in operation.new_indices] == [index.name for index in operation.removed_indices] == [FRAGMENT_REUSE]


def mem_wal_settings(index: IndexMetadata) -> bytes:
    """What the write-ahead log is set up to do, without how far it has come."""
    details = _mem_wal_details(index)
    details.ClearField("compacted_sstables")
    details.ClearField("snapshot_ts_millis")
    return details.SerializeToString(deterministic=True)


def _mem_wal_details(index: IndexMetadata) -> pb.MemWalIndexDetails:
    data = index.details[1] if index.details else b""
    parse_sound(pb.MemWalIndexDetails, data, "its details", f"index {MEM_WAL}")
    return pb.MemWalIndexDetails.FromString(data)  # with what we do not know: two such settings may differ in just that


# ---- maps and shards -------------------------------------------------------------------------------------------------------


def config_keys(operation: Operation) -> frozenset[str]:
    """The table config keys an operation sets or removes."""
    if isinstance(operation, Overwrite):
        return frozenset(operation.config_upsert_values)
    if isinstance(operation, UpdateConfig):
        return frozenset(key for key, _ in (operation.config_updates or UpdateMap()).entries)
    return frozenset()


def maps_changed(operation: UpdateConfig) -> dict[str, UpdateMap]:
    """The maps an UpdateConfig changes at all, by a name for people."""
    named: dict[str, UpdateMap | None] = {
        "config": operation.config_updates,
        "table metadata": operation.table_metadata_updates,
        "schema metadata": operation.schema_metadata_updates,
        **{f"metadata of field {number}": changes for number, changes in sorted(operation.field_metadata_updates.items())},
    }
    return {name: changes for name, changes in named.items() if changes is not None and (changes.entries or changes.replace)}


def key_fields_described(operation: UpdateConfig) -> frozenset[int]:
    """Fields of which it may say something else than before about whether they are part of the primary key."""
    marks = {PRIMARY_KEY, PRIMARY_KEY_POSITION}
    changes = operation.field_metadata_updates.items()
    return frozenset(number for number, update in changes if update.replace or marks.intersection(key for key, _ in update.entries))


def progress(operation: Operation) -> dict[str, int]:
    """Shards of the write-ahead log and the generation up to which the operation says they are in the table."""
    if isinstance(operation, Update | UpdateMemWalState):
        found = [(sstable.shard_id, sstable.generation) for sstable in operation.compacted_sstables]
    else:
        index = installs(operation, MEM_WAL)
        return {} if index is None else progress_of(index)
    return _highest(found)


def progress_of(index: IndexMetadata) -> dict[str, int]:
    """The same of the entry that says so for the table."""
    tables = _mem_wal_details(index).compacted_sstables
    return _highest((uuid_from_pb(table.shard_id, f"index {MEM_WAL}"), table.generation) for table in tables)


def _highest(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for shard, generation in found:
        highest[shard] = max(generation, highest.get(shard, 0))
    return highest


RowChange: TypeAlias = Delete | Update


def fragments_of(manifest: Manifest, ids: Iterable[int]) -> dict[int, DataFragment]:
    """Those of these fragments that a version has."""
    wanted = frozenset(ids)
    if not wanted:
        return {}
    return {number: manifest.fragments[place] for place, number in enumerate(manifest.fragments.ids()) if number in wanted}


def arrivals(after: Manifest, before: Manifest) -> dict[tuple[str, int | None], DataFragment]:
    """Fragments that only the later version has, by their first file. In an operation they may not have had their ids yet."""
    new = set(after.fragments.ids()).difference(before.fragments.ids())
    return {first_file(fragment): fragment for fragment in fragments_of(after, new).values()}


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
    followers = {index.old_id: index.new_id for index in rewrite.rewritten_indices}
    there = {index.uuid: index for index in after}
    removed = [there.get(followers.get(index.uuid, index.uuid), index) for index in operation.removed_indices]
    return replace(operation, removed_indices=tuple(removed))


# ---- rows ------------------------------------------------------------------------------------------------------------------


def moved(operation: RowChange, old: Collection[int], new: Iterable[DataFragment]) -> RowChange:
    """The operation with other fragments in the place of those that a rewrite took away."""
    updated = (*(fragment for fragment in operation.updated_fragments if fragment.id not in old), *new)
    if isinstance(operation, Delete):
        left = tuple(number for number in operation.deleted_fragment_ids if number not in old)
        return replace(operation, updated_fragments=updated, deleted_fragment_ids=left)
    left = tuple(number for number in operation.removed_fragment_ids if number not in old)
    return replace(operation, updated_fragments=updated, removed_fragment_ids=left)


def exchanged(operation: RowChange, changes: Mapping[int, DataFragment | None]) -> RowChange:
    """The operation with other states of fragments it changes; None for one of which no row is left."""
    states = [changes.get(fragment.id, fragment) for fragment in operation.updated_fragments]
    updated = tuple(state for state in states if state is not None)
    emptied = tuple(number for number, change in changes.items() if change is None)
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
            replace(fragment, deletion_file=there[fragment.id].deletion_file) if fragment.id in carried else fragment
            for fragment in group.old_fragments
            if fragment.id in there or fragment.id not in carried
        )
        new = tuple(one for fragment in group.new_fragments if (one := merged(fragment)) is not None)
        if old or new:
            groups.append(RewriteGroup(old, new, group.unknown))
    return replace(operation, groups=tuple(groups))


def deletion_files(operation: RowChange | Rewrite) -> set[str]:
    """Deletion files below the table's root that the operation puts into a version."""
    if isinstance(operation, Rewrite):
        fragments = [fragment for group in operation.groups for fragment in group.new_fragments]
    else:
        fragments = [*operation.updated_fragments]
    return {file.path(fragment.id) for fragment in fragments if (file := fragment.deletion_file) is not None and file.base_id is None}
