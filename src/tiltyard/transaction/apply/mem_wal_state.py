"""How far the shards of a write-ahead log are in the table: the one entry that says so, and its only rule - forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_from_pb, uuid_to_pb
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.apply.coverage import MEM_WAL, Indices, indices_of, with_indices
from tiltyard.transaction.apply.frame import gone, invalid
from tiltyard.transaction.operations import CompactedSsTable, UpdateMemWalState


def update_mem_wal(operation: UpdateMemWalState, base: Manifest) -> Manifest:
    made = replace(base, version=base.version + 1)
    return with_indices(made, with_progress(indices_of(base), operation.compacted_sstables, made.version, operation.name))


def with_progress(indices: Indices, tables: Sequence[CompactedSsTable], version: int, operation: str) -> Indices:
    """Records what was taken over. A generation that is not higher than the recorded one was taken over by somebody else already."""
    if not tables:
        return indices
    if len({table.shard_id for table in tables}) != len(tables):
        raise invalid("A shard occurs twice in the operation.", "compacted_sstables")
    place = next((number for number, index in enumerate(indices) if index.name == MEM_WAL), None)
    if place is None:
        raise gone(operation, "the table has no write-ahead log")
    return (*indices[:place], _advanced(indices[place], tables, version, operation), *indices[place + 1 :])


def _advanced(entry: IndexMetadata, tables: Sequence[CompactedSsTable], version: int, operation: str) -> IndexMetadata:
    url, data = entry.details or ("", b"")
    try:
        details = pb.MemWalIndexDetails.FromString(data)
    except DecodeError as error:
        raise CorruptTable(f"index {MEM_WAL}", f"its details cannot be read ({error})") from error
    recorded = {uuid_from_pb(sstable.shard_id, f"index {MEM_WAL}"): sstable for sstable in details.compacted_sstables}
    for table in tables:
        known = recorded.get(table.shard_id)
        if known is None:
            details.compacted_sstables.add(shard_id=uuid_to_pb(table.shard_id), generation=table.generation)
        elif table.generation <= known.generation:
            what = f"shard {table.shard_id} is at generation {known.generation}, the operation brings {table.generation}"
            raise gone(operation, what)
        else:
            known.generation = table.generation
    return replace(entry, dataset_version=version, details=(url, details.SerializeToString(deterministic=True)))
