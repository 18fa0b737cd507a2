"""Operations <-> their wire messages.

Forms that older writers used are read and turned into today's; only today's are written. An operation that holds something our classes
have no place for decodes to None: its bytes must then be kept whole (``UnknownOperation``), since half an operation is a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message
from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import (
    MAX_FRAGMENT_ID,
    base_path_from_pb,
    base_path_to_pb,
    data_file_from_pb,
    data_file_to_pb,
    field_from_pb,
    field_to_pb,
    fragments_from_pb,
    fragments_to_pb,
    index_file_from_pb,
    index_file_to_pb,
    index_from_pb,
    index_to_pb,
    unknown_fields,
    uuid_from_pb,
    uuid_to_pb,
    with_unknown,
)
from tiltyard.format.values import Field
from tiltyard.transaction import operations as ops
from tiltyard.transaction.config_codec import config_from_pb, config_to_pb

OpPb = pb.Transaction
"""The operations' messages live inside this one."""


def operation_to_pb(operation: ops.KnownOperation) -> tuple[str, Message]:
    """The member of ``pb.Transaction`` an operation belongs in, and its message."""
    arm, encode = _ENCODERS[type(operation)]
    return arm, with_unknown(encode(operation), operation.unknown)


def operation_from_pb(message: pb.Transaction, source: str) -> ops.KnownOperation | None:
    """The operation of a transaction; None without one, or when it cannot be said in full by our classes."""
    arm = message.WhichOneof("operation")
    decode = _DECODERS.get(arm or "")
    return decode(getattr(message, str(arm)), source) if decode else None


# ---- parts -----------------------------------------------------------------------------------------------------------------


def _fragment_ids(values: Iterable[int], source: str) -> tuple[int, ...]:
    ids = tuple(values)
    if ids and max(ids) > MAX_FRAGMENT_ID:
        raise CorruptTable(source, f"fragment id {max(ids)} does not fit 32 bits")
    return ids


def _fields_from_pb(messages: Iterable[pb.Field], source: str) -> tuple[Field, ...]:
    return tuple(field_from_pb(message, source) for message in messages)


def _sstables_to_pb(values: Iterable[ops.CompactedSsTable]) -> list[pb.CompactedSsTable]:
    return [
        with_unknown(pb.CompactedSsTable(shard_id=uuid_to_pb(value.shard_id), generation=value.generation), value.unknown)
        for value in values
    ]


def _sstables_from_pb(messages: Iterable[pb.CompactedSsTable], source: str) -> tuple[ops.CompactedSsTable, ...]:
    return tuple(
        ops.CompactedSsTable(uuid_from_pb(message.shard_id, source), message.generation, unknown_fields(message, "shard_id"))
        for message in messages
    )


def _key_filter_to_pb(value: ops.KeyExistenceFilter) -> pb.KeyExistenceFilter:
    message = pb.KeyExistenceFilter(field_ids=value.field_ids)
    if value.exact is not None:
        message.exact.SetInParent()
        message.exact.key_hashes.extend(value.exact)
    if value.bloom is not None:
        bloom = pb.KeyExistenceFilter.Bloom(
            bitmap=value.bloom.bitmap,
            num_bits=value.bloom.num_bits,
            number_of_items=value.bloom.number_of_items,
            probability=value.bloom.probability,
        )
        message.bloom.CopyFrom(with_unknown(bloom, value.bloom.unknown))
    return with_unknown(message, value.unknown)


def _key_filter_from_pb(message: pb.KeyExistenceFilter) -> ops.KeyExistenceFilter | None:
    if unknown_fields(message.exact):
        return None
    bloom = None
    if message.HasField("bloom"):
        found = message.bloom
        bloom = ops.BloomFilter(found.bitmap, found.num_bits, found.number_of_items, found.probability, unknown_fields(found))
    return ops.KeyExistenceFilter(
        field_ids=tuple(message.field_ids),
        exact=tuple(message.exact.key_hashes) if message.HasField("exact") else None,
        bloom=bloom,
        unknown=unknown_fields(message),
    )


# ---- rows ------------------------------------------------------------------------------------------------------------------


def _append_to_pb(value: ops.Append) -> pb.Transaction.Append:
    return OpPb.Append(fragments=fragments_to_pb(value.fragments))


def _append_from_pb(message: pb.Transaction.Append, source: str) -> ops.Append:
    return ops.Append(fragments_from_pb(message.fragments, source), unknown_fields(message))


def _delete_to_pb(value: ops.Delete) -> pb.Transaction.Delete:
    return OpPb.Delete(
        updated_fragments=fragments_to_pb(value.updated_fragments),
        deleted_fragment_ids=value.deleted_fragment_ids,
        predicate=value.predicate,
    )


def _delete_from_pb(message: pb.Transaction.Delete, source: str) -> ops.Delete:
    return ops.Delete(
        updated_fragments=fragments_from_pb(message.updated_fragments, source),
        deleted_fragment_ids=_fragment_ids(message.deleted_fragment_ids, source),
        predicate=message.predicate,
        unknown=unknown_fields(message),
    )


def _overwrite_to_pb(value: ops.Overwrite) -> pb.Transaction.Overwrite:
    return OpPb.Overwrite(
        fragments=fragments_to_pb(value.fragments),
        schema=[field_to_pb(field) for field in value.schema],
        schema_metadata=dict(value.schema_metadata),
        config_upsert_values=dict(value.config_upsert_values),
        initial_bases=[base_path_to_pb(base) for base in value.initial_bases],
    )


def _overwrite_from_pb(message: pb.Transaction.Overwrite, source: str) -> ops.Overwrite:
    return ops.Overwrite(
        fragments=fragments_from_pb(message.fragments, source),
        schema=_fields_from_pb(message.schema, source),
        schema_metadata=message.schema_metadata,
        config_upsert_values=message.config_upsert_values,
        initial_bases=tuple(base_path_from_pb(base) for base in message.initial_bases),
        unknown=unknown_fields(message),
    )


def _update_to_pb(value: ops.Update) -> pb.Transaction.Update:
    return OpPb.Update(
        removed_fragment_ids=value.removed_fragment_ids,
        updated_fragments=fragments_to_pb(value.updated_fragments),
        new_fragments=fragments_to_pb(value.new_fragments),
        fields_modified=value.fields_modified,
        compacted_sstables=_sstables_to_pb(value.compacted_sstables),
        fields_for_preserving_frag_bitmap=value.fields_for_preserving_frag_bitmap,
        update_mode=int(value.update_mode),  # type: ignore[arg-type]
        inserted_rows=None if value.inserted_rows is None else _key_filter_to_pb(value.inserted_rows),
        updated_fragment_offset_bitmaps=dict(value.updated_fragment_offsets),
    )


def _update_from_pb(message: pb.Transaction.Update, source: str) -> ops.Update | None:
    inserted = _key_filter_from_pb(message.inserted_rows)
    # A mode of the future means something; to take it for one of ours would be a guess.
    if inserted is None or int(message.update_mode) not in _MODES:
        return None
    offsets: Mapping[int, bytes] = message.updated_fragment_offset_bitmaps
    if not offsets:  # else the older form beside it says the same
        offsets = {id: BitMap(old.values).serialize() for id, old in message.updated_fragment_offsets.items() if old.values}
    _fragment_ids(offsets, source)
    return ops.Update(
        removed_fragment_ids=_fragment_ids(message.removed_fragment_ids, source),
        updated_fragments=fragments_from_pb(message.updated_fragments, source),
        new_fragments=fragments_from_pb(message.new_fragments, source),
        fields_modified=tuple(message.fields_modified),
        compacted_sstables=_sstables_from_pb(message.compacted_sstables, source),
        fields_for_preserving_frag_bitmap=tuple(message.fields_for_preserving_frag_bitmap),
        update_mode=ops.UpdateMode(message.update_mode),
        inserted_rows=inserted if message.HasField("inserted_rows") else None,
        updated_fragment_offsets=offsets,
        unknown=unknown_fields(message),
    )


# ---- the same rows, arranged otherwise -------------------------------------------------------------------------------------


def _create_index_to_pb(value: ops.CreateIndex) -> pb.Transaction.CreateIndex:
    return OpPb.CreateIndex(
        new_indices=[index_to_pb(index) for index in value.new_indices],
        removed_indices=[index_to_pb(index) for index in value.removed_indices],
    )


def _create_index_from_pb(message: pb.Transaction.CreateIndex, source: str) -> ops.CreateIndex:
    return ops.CreateIndex(
        new_indices=tuple(index_from_pb(index, source) for index in message.new_indices),
        removed_indices=tuple(index_from_pb(index, source) for index in message.removed_indices),
        unknown=unknown_fields(message),
    )


def _group_to_pb(value: ops.RewriteGroup) -> pb.Transaction.Rewrite.RewriteGroup:
    message = OpPb.Rewrite.RewriteGroup(
        old_fragments=fragments_to_pb(value.old_fragments), new_fragments=fragments_to_pb(value.new_fragments)
    )
    return with_unknown(message, value.unknown)


def _rewritten_index_to_pb(value: ops.RewrittenIndex) -> pb.Transaction.Rewrite.RewrittenIndex:
    message = OpPb.Rewrite.RewrittenIndex(
        old_id=uuid_to_pb(value.old_id),
        new_id=uuid_to_pb(value.new_id),
        new_index_details=pb.AnyDetails(type_url=value.details[0], value=value.details[1]) if value.details else None,
        new_index_version=value.index_version,
        new_index_files=[index_file_to_pb(file) for file in value.files],
    )
    return with_unknown(message, value.unknown)


def _rewritten_index_from_pb(message: pb.Transaction.Rewrite.RewrittenIndex, source: str) -> ops.RewrittenIndex:
    details = None
    if message.HasField("new_index_details"):
        details = (message.new_index_details.type_url, message.new_index_details.value)
    return ops.RewrittenIndex(
        old_id=uuid_from_pb(message.old_id, source),
        new_id=uuid_from_pb(message.new_id, source),
        details=details,
        index_version=message.new_index_version,
        files=tuple(index_file_from_pb(file, source) for file in message.new_index_files),
        unknown=unknown_fields(message, "old_id", "new_id", "new_index_details"),
    )


def _rewrite_to_pb(value: ops.Rewrite) -> pb.Transaction.Rewrite:
    return OpPb.Rewrite(
        groups=[_group_to_pb(group) for group in value.groups],
        rewritten_indices=[_rewritten_index_to_pb(index) for index in value.rewritten_indices],
    )


def _rewrite_from_pb(message: pb.Transaction.Rewrite, source: str) -> ops.Rewrite:
    groups = tuple(
        ops.RewriteGroup(
            fragments_from_pb(group.old_fragments, source), fragments_from_pb(group.new_fragments, source), unknown_fields(group)
        )
        for group in message.groups
    )
    if not groups and (message.old_fragments or message.new_fragments):
        groups = (ops.RewriteGroup(fragments_from_pb(message.old_fragments, source), fragments_from_pb(message.new_fragments, source)),)
    indices = tuple(_rewritten_index_from_pb(index, source) for index in message.rewritten_indices)
    return ops.Rewrite(groups, indices, unknown_fields(message))


def _replacement_to_pb(value: ops.DataReplacement) -> pb.Transaction.DataReplacement:
    return OpPb.DataReplacement(
        replacements=[
            with_unknown(
                OpPb.DataReplacement.Group(fragment_id=replacement.fragment_id, new_file=data_file_to_pb(replacement.new_file)),
                replacement.unknown,
            )
            for replacement in value.replacements
        ]
    )


def _replacement_from_pb(message: pb.Transaction.DataReplacement, source: str) -> ops.DataReplacement:
    _fragment_ids((group.fragment_id for group in message.replacements), source)
    return ops.DataReplacement(
        tuple(
            ops.Replacement(group.fragment_id, data_file_from_pb(group.new_file, source), unknown_fields(group))
            for group in message.replacements
        ),
        unknown_fields(message),
    )


# ---- schema and versions ---------------------------------------------------------------------------------------------------


def _merge_to_pb(value: ops.Merge) -> pb.Transaction.Merge:
    return OpPb.Merge(
        fragments=fragments_to_pb(value.fragments),
        schema=[field_to_pb(field) for field in value.schema],
        schema_metadata=dict(value.schema_metadata),
        preserves_nullability=value.preserves_nullability,
    )


def _merge_from_pb(message: pb.Transaction.Merge, source: str) -> ops.Merge:
    return ops.Merge(
        fragments=fragments_from_pb(message.fragments, source),
        schema=_fields_from_pb(message.schema, source),
        schema_metadata=message.schema_metadata,
        preserves_nullability=message.preserves_nullability,
        unknown=unknown_fields(message),
    )


def _project_to_pb(value: ops.Project) -> pb.Transaction.Project:
    return OpPb.Project(schema=[field_to_pb(field) for field in value.schema], preserves_nullability=value.preserves_nullability)


def _project_from_pb(message: pb.Transaction.Project, source: str) -> ops.Project:
    return ops.Project(_fields_from_pb(message.schema, source), message.preserves_nullability, unknown_fields(message))


def _restore_to_pb(value: ops.Restore) -> pb.Transaction.Restore:
    return OpPb.Restore(version=value.version)


def _restore_from_pb(message: pb.Transaction.Restore, source: str) -> ops.Restore:
    return ops.Restore(message.version, unknown_fields(message))


def _reserve_to_pb(value: ops.ReserveFragments) -> pb.Transaction.ReserveFragments:
    return OpPb.ReserveFragments(num_fragments=value.num_fragments)


def _reserve_from_pb(message: pb.Transaction.ReserveFragments, source: str) -> ops.ReserveFragments:
    return ops.ReserveFragments(message.num_fragments, unknown_fields(message))


def _clone_to_pb(value: ops.Clone) -> pb.Transaction.Clone:
    return OpPb.Clone(
        is_shallow=value.is_shallow,
        ref_name=value.ref_name,
        ref_version=value.ref_version,
        ref_path=value.ref_path,
        branch_name=value.branch_name,
    )


def _clone_from_pb(message: pb.Transaction.Clone, source: str) -> ops.Clone:
    return ops.Clone(
        is_shallow=message.is_shallow,
        ref_name=message.ref_name if message.HasField("ref_name") else None,
        ref_version=message.ref_version,
        ref_path=message.ref_path,
        branch_name=message.branch_name if message.HasField("branch_name") else None,
        unknown=unknown_fields(message),
    )


# ---- bases, MemWAL ---------------------------------------------------------------------------------------------------------


def _mem_wal_to_pb(value: ops.UpdateMemWalState) -> pb.Transaction.UpdateMemWalState:
    return OpPb.UpdateMemWalState(compacted_sstables=_sstables_to_pb(value.compacted_sstables))


def _mem_wal_from_pb(message: pb.Transaction.UpdateMemWalState, source: str) -> ops.UpdateMemWalState:
    return ops.UpdateMemWalState(_sstables_from_pb(message.compacted_sstables, source), unknown_fields(message))


def _bases_to_pb(value: ops.UpdateBases) -> pb.Transaction.UpdateBases:
    return OpPb.UpdateBases(new_bases=[base_path_to_pb(base) for base in value.new_bases])


def _bases_from_pb(message: pb.Transaction.UpdateBases, source: str) -> ops.UpdateBases:
    return ops.UpdateBases(tuple(base_path_from_pb(base) for base in message.new_bases), unknown_fields(message))


_MODES: Final = frozenset(int(mode) for mode in ops.UpdateMode)

_ARMS: Final[tuple[tuple[type, str, Callable[[Any], Message], Callable[[Any, str], ops.KnownOperation | None]], ...]] = (
    (ops.Append, "append", _append_to_pb, _append_from_pb),
    (ops.Delete, "delete", _delete_to_pb, _delete_from_pb),
    (ops.Overwrite, "overwrite", _overwrite_to_pb, _overwrite_from_pb),
    (ops.CreateIndex, "create_index", _create_index_to_pb, _create_index_from_pb),
    (ops.Rewrite, "rewrite", _rewrite_to_pb, _rewrite_from_pb),
    (ops.Merge, "merge", _merge_to_pb, _merge_from_pb),
    (ops.Restore, "restore", _restore_to_pb, _restore_from_pb),
    (ops.ReserveFragments, "reserve_fragments", _reserve_to_pb, _reserve_from_pb),
    (ops.Update, "update", _update_to_pb, _update_from_pb),
    (ops.Project, "project", _project_to_pb, _project_from_pb),
    (ops.UpdateConfig, "update_config", config_to_pb, config_from_pb),
    (ops.DataReplacement, "data_replacement", _replacement_to_pb, _replacement_from_pb),
    (ops.UpdateMemWalState, "update_mem_wal_state", _mem_wal_to_pb, _mem_wal_from_pb),
    (ops.Clone, "clone", _clone_to_pb, _clone_from_pb),
    (ops.UpdateBases, "update_bases", _bases_to_pb, _bases_from_pb),
)
_ENCODERS: Final = {kind: (arm, encode) for kind, arm, encode, _ in _ARMS}
_DECODERS: Final = {arm: decode for _, arm, _, decode in _ARMS}
