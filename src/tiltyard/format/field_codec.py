"""Schema fields: wire message <-> value."""

from __future__ import annotations

from types import MappingProxyType

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.unknown import unknown_fields, with_unknown
from tiltyard.format.values import EMPTY_BYTES, Field


def field_to_pb(value: Field) -> pb.Field:
    message = pb.Field(
        type=value.type,
        name=value.name,
        id=value.id,
        # Protobuf omits zero only, so the -1 of a top-level field reaches the wire as readers demand.
        parent_id=value.parent_id,
        logical_type=value.logical_type,
        nullable=value.nullable,
        encoding=value.encoding,
        extension_name=value.extension_name,
        metadata=value.metadata,
        unenforced_primary_key=value.primary_key,
        unenforced_primary_key_position=value.primary_key_position,
        unenforced_clustering_key=value.clustering_key,
        unenforced_clustering_key_position=value.clustering_key_position,
    )
    if value.dictionary is not None:
        message.dictionary.offset, message.dictionary.length = value.dictionary
        # Both members may be zero; presence has meaning of its own.
        message.dictionary.SetInParent()
    return with_unknown(message, value.unknown)


def field_from_pb(message: pb.Field, source: str) -> Field:
    """Reads one field; ``source`` names the file in errors. The tree as a whole is checked by ``field_tree``."""
    if not message.logical_type:
        raise CorruptTable(source, f"field {message.id} ({message.name[:40]!r}) has no type")
    return Field(
        name=message.name,
        id=message.id,
        parent_id=message.parent_id,
        logical_type=message.logical_type,
        nullable=message.nullable,
        metadata=MappingProxyType(dict(message.metadata)) if message.metadata else EMPTY_BYTES,
        type=message.type,
        encoding=message.encoding,
        dictionary=(message.dictionary.offset, message.dictionary.length) if message.HasField("dictionary") else None,
        extension_name=message.extension_name,
        primary_key=message.unenforced_primary_key,
        primary_key_position=message.unenforced_primary_key_position,
        clustering_key=message.unenforced_clustering_key,
        clustering_key_position=message.unenforced_clustering_key_position,
        unknown=unknown_fields(message, "dictionary"),
    )
