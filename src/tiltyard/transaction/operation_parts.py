"""Parts that several operations have: fields, key filters, tables of a write-ahead log, updates of maps; as messages and back."""

from __future__ import annotations

from collections.abc import Iterable

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import (
    MAX_FRAGMENT_ID,
    field_from_pb,
    unknown_fields,
    uuid_from_pb,
    uuid_to_pb,
    with_unknown,
)
from tiltyard.format.values import Field
from tiltyard.transaction import operations as ops


def fragment_ids(values: Iterable[int], source: str) -> tuple[int, ...]:
    ids = tuple(values)
    if ids and max(ids) > MAX_FRAGMENT_ID:
        raise CorruptTable(source, f"fragment id {max(ids)} does not fit 32 bits")
    return ids


def fields_from_pb(messages: Iterable[pb.Field], source: str) -> tuple[Field, ...]:
    return tuple(field_from_pb(message, source) for message in messages)


def sstables_to_pb(values: Iterable[ops.CompactedSsTable]) -> list[pb.CompactedSsTable]:
    return [
        with_unknown(pb.CompactedSsTable(shard_id=uuid_to_pb(value.shard_id), generation=value.generation), value.unknown)
        for value in values
    ]


def sstables_from_pb(messages: Iterable[pb.CompactedSsTable], source: str) -> tuple[ops.CompactedSsTable, ...]:
    return tuple(
        ops.CompactedSsTable(uuid_from_pb(message.shard_id, source), message.generation, unknown_fields(message, "shard_id"))
        for message in messages
    )


def key_filter_to_pb(value: ops.KeyExistenceFilter) -> pb.KeyExistenceFilter:
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


def key_filter_from_pb(message: pb.KeyExistenceFilter) -> ops.KeyExistenceFilter | None:
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


def update_map_to_pb(value: ops.UpdateMap) -> pb.UpdateMap:
    entries = [pb.UpdateMap.Entry(key=key, value=text) for key, text in value.entries]
    return with_unknown(pb.UpdateMap(update_entries=entries, replace=value.replace), value.unknown)


def update_map_from_pb(message: pb.UpdateMap) -> ops.UpdateMap | None:
    if any(unknown_fields(entry) for entry in message.update_entries):
        return None
    entries = tuple((entry.key, entry.value if entry.HasField("value") else None) for entry in message.update_entries)
    return ops.UpdateMap(entries, message.replace, unknown_fields(message))
