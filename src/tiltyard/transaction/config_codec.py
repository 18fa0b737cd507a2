"""Changes of settings <-> their wire message: config, table, schema and field metadata, in today's form and in an older one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import unknown_fields, with_unknown
from tiltyard.transaction import operations as ops

MAX_FIELD_ID: Final = 2**31 - 1
_CONFIG_MAPS: Final = ("config_updates", "table_metadata_updates", "schema_metadata_updates")


def config_to_pb(value: ops.UpdateConfig) -> pb.Transaction.UpdateConfig:
    """Writes today's form."""
    message = pb.Transaction.UpdateConfig()
    for member in _CONFIG_MAPS:
        update: ops.UpdateMap | None = getattr(value, member)
        if update is not None:
            getattr(message, member).CopyFrom(_update_map_to_pb(update))
    for id, update in value.field_metadata_updates.items():
        message.field_metadata_updates[id].CopyFrom(_update_map_to_pb(update))
    return message


def config_from_pb(message: pb.Transaction.UpdateConfig, source: str) -> ops.UpdateConfig | None:
    """Reads both forms; None where there is more in it than our classes can hold."""
    maps = {member: _update_map_from_pb(getattr(message, member)) for member in _CONFIG_MAPS if message.HasField(member)}
    fields = {id: _update_map_from_pb(update) for id, update in message.field_metadata_updates.items()}
    if message.upsert_values or message.delete_keys or message.schema_metadata or message.field_metadata:
        if maps or fields:
            raise CorruptTable(source, "an UpdateConfig mixes the old form of its maps with the new one")
        return _old_config_from_pb(message, source)
    if None in maps.values() or None in fields.values():
        return None
    return ops.UpdateConfig(
        **maps,
        field_metadata_updates={id: update for id, update in fields.items() if update is not None},
        unknown=unknown_fields(message),
    )


def _old_config_from_pb(message: pb.Transaction.UpdateConfig, source: str) -> ops.UpdateConfig | None:
    """In the old form config changed key by key, while schema and field metadata were replaced as a whole."""
    if any(unknown_fields(update) for update in message.field_metadata.values()):
        return None
    if message.field_metadata and max(message.field_metadata) > MAX_FIELD_ID:
        raise CorruptTable(source, f"field id {max(message.field_metadata)} does not fit 31 bits")
    config: list[tuple[str, str | None]] = sorted(message.upsert_values.items())
    config += [(key, None) for key in message.delete_keys]
    schema = message.schema_metadata
    return ops.UpdateConfig(
        config_updates=ops.UpdateMap(tuple(config)) if config else None,
        schema_metadata_updates=_replacing(schema) if schema else None,
        field_metadata_updates={id: _replacing(update.metadata) for id, update in message.field_metadata.items()},
        unknown=unknown_fields(message),
    )


def _replacing(values: Mapping[str, str]) -> ops.UpdateMap:
    return ops.UpdateMap(tuple(sorted(values.items())), replace=True)


def _update_map_to_pb(value: ops.UpdateMap) -> pb.UpdateMap:
    entries = [pb.UpdateMap.Entry(key=key, value=text) for key, text in value.entries]
    return with_unknown(pb.UpdateMap(update_entries=entries, replace=value.replace), value.unknown)


def _update_map_from_pb(message: pb.UpdateMap) -> ops.UpdateMap | None:
    if any(unknown_fields(entry) for entry in message.update_entries):
        return None
    entries = tuple((entry.key, entry.value if entry.HasField("value") else None) for entry in message.update_entries)
    return ops.UpdateMap(entries, message.replace, unknown_fields(message))
