"""What an operation touches: fragments, fields, indices, keys, shards. Pure readers, each of one operation.

Bitmaps and details inside an operation are bytes of whoever wrote it. Bytes that cannot be read raise ``CorruptTable``: what they stand
for is unknown, so nobody may decide as if they stood for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyroaring import BitMap

from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import parse_sound, uuid_from_pb
from tiltyard.format.keys import PRIMARY_KEY, PRIMARY_KEY_POSITION
from tiltyard.format.roaring import decode_roaring
from tiltyard.format.values import DataFragment, IndexMetadata
from tiltyard.transaction.operations import (
    CreateIndex,
    DataReplacement,
    Delete,
    Operation,
    Overwrite,
    Rewrite,
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
        return frozenset(one.id for one in operation.updated_fragments) | removed_fragments(operation)
    if isinstance(operation, Rewrite):
        return frozenset(one.id for group in operation.groups for one in group.old_fragments)
    if isinstance(operation, DataReplacement):
        return frozenset(one.fragment_id for one in operation.replacements)
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
        return frozenset(one.id for one in operation.updated_fragments)
    # Writers that do not say so are found out by their files.
    return frozenset(one.id for one in operation.updated_fragments if one.id in base and _columns(base[one.id]) != _columns(one))


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
    return frozenset((one.fragment_id, number) for one in operation.replacements for number in one.new_file.fields if number >= 0)


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
        found = [(one.shard_id, one.generation) for one in operation.compacted_sstables]
    else:
        index = installs(operation, MEM_WAL)
        return {} if index is None else progress_of(index)
    return _highest(found)


def progress_of(index: IndexMetadata) -> dict[str, int]:
    """The same of the entry that says so for the table."""
    tables = _mem_wal_details(index).compacted_sstables
    return _highest((uuid_from_pb(one.shard_id, f"index {MEM_WAL}"), one.generation) for one in tables)


def _highest(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for shard, generation in found:
        highest[shard] = max(generation, highest.get(shard, 0))
    return highest
