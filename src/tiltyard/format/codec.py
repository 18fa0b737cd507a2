"""Values <-> protobuf messages, for everything but whole manifests (``manifest``).

Decoding checks what a hostile file could get wrong: ids and counts in range, paths that stay inside the table.
"""

from __future__ import annotations

import uuid as uuidlib
from collections.abc import Iterable
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.safe_text import check_relative
from tiltyard.format.values import (
    EMPTY_BYTES,
    BasePath,
    DataFile,
    DataFormat,
    DataFragment,
    DeletionFile,
    Field,
    IndexFile,
    IndexMetadata,
    WriterVersion,
)

MARKERS = ("column_row_ids", "column_last_updated_at_versions", "column_created_at_versions")
_SEQUENCES = ("row_id_sequence", "last_updated_at_version_sequence", "created_at_version_sequence")

MAX_FRAGMENT_ID = 2**32 - 1
MAX_FRAGMENT_ROWS = 2**32
"""A row address gives the offset 32 bits."""


def data_file_from_pb(message: pb.DataFile, source: str) -> DataFile:
    check_relative(message.path, source)
    columns = tuple(message.column_indices)
    if columns and len(columns) != len(message.fields):
        raise CorruptTable(source, f"data file {message.path[:60]!r} has {len(message.fields)} fields but {len(columns)} columns")
    return DataFile(
        path=message.path,
        fields=tuple(message.fields),
        column_indices=columns,
        major=message.file_major_version,
        minor=message.file_minor_version,
        size=message.file_size_bytes,
        base_id=message.base_id if message.HasField("base_id") else None,
        unknown=unknown_fields(message),
    )


def data_file_to_pb(value: DataFile) -> pb.DataFile:
    message = pb.DataFile(
        path=value.path,
        fields=value.fields,
        column_indices=value.column_indices,
        file_major_version=value.major,
        file_minor_version=value.minor,
        file_size_bytes=value.size,
        base_id=value.base_id,
    )
    return with_unknown(message, value.unknown)


def deletion_file_from_pb(message: pb.DeletionFile, physical_rows: int, source: str) -> DeletionFile:
    if message.file_type not in (pb.DeletionFile.ARROW_ARRAY, pb.DeletionFile.BITMAP):
        raise CorruptTable(source, f"a deletion file has the unknown type {message.file_type}")
    if message.num_deleted_rows > physical_rows:
        raise CorruptTable(source, f"a deletion file hides {message.num_deleted_rows} of {physical_rows} rows")
    return DeletionFile(
        bitmap=message.file_type == pb.DeletionFile.BITMAP,
        read_version=message.read_version,
        id=message.id,
        deleted_rows=message.num_deleted_rows,
        base_id=message.base_id if message.HasField("base_id") else None,
        unknown=unknown_fields(message),
    )


def deletion_file_to_pb(value: DeletionFile) -> pb.DeletionFile:
    message = pb.DeletionFile(
        file_type=pb.DeletionFile.BITMAP if value.bitmap else pb.DeletionFile.ARROW_ARRAY,
        read_version=value.read_version,
        id=value.id,
        num_deleted_rows=value.deleted_rows,
        base_id=value.base_id,
    )
    return with_unknown(message, value.unknown)


def fragment_from_pb(message: pb.DataFragment, source: str) -> DataFragment:
    if message.id > MAX_FRAGMENT_ID:
        raise CorruptTable(source, f"fragment id {message.id} does not fit 32 bits")
    if message.physical_rows > MAX_FRAGMENT_ROWS:
        raise CorruptTable(source, f"fragment {message.id} claims {message.physical_rows} rows")
    row_ids, updated_at, created_at = arms = tuple(map(message.WhichOneof, _SEQUENCES))
    for arm in arms:
        if arm is not None and arm.startswith("external_"):
            raise CorruptTable(source, f"fragment {message.id} uses the retired member {arm}")
    deletion = None
    if message.HasField("deletion_file"):
        uncounted = bool(message.files) and not any((message.physical_rows, *(file.file_major_version for file in message.files)))
        deletion = deletion_file_from_pb(message.deletion_file, MAX_FRAGMENT_ROWS if uncounted else message.physical_rows, source)
    return DataFragment(
        id=message.id,
        files=tuple([data_file_from_pb(file, source) for file in message.files]),
        physical_rows=message.physical_rows,
        deletion_file=deletion,
        row_ids=message.inline_row_ids if row_ids == "inline_row_ids" else None,
        updated_at=message.inline_last_updated_at_versions if updated_at == "inline_last_updated_at_versions" else None,
        created_at=message.inline_created_at_versions if created_at == "inline_created_at_versions" else None,
        row_ids_spilled=row_ids == "column_row_ids",
        updated_at_spilled=updated_at == "column_last_updated_at_versions",
        created_at_spilled=created_at == "column_created_at_versions",
        overlays=tuple([overlay.SerializeToString(deterministic=True) for overlay in message.overlays]),
        unknown=unknown_fields(message, *[arm for arm in arms if arm in MARKERS]),
    )


def fragment_to_pb(value: DataFragment) -> pb.DataFragment:
    message = pb.DataFragment(
        id=value.id,
        files=[data_file_to_pb(file) for file in value.files],
        deletion_file=deletion_file_to_pb(value.deletion_file) if value.deletion_file else None,
        physical_rows=value.physical_rows,
        inline_row_ids=value.row_ids,
        inline_last_updated_at_versions=value.updated_at,
        inline_created_at_versions=value.created_at,
        column_row_ids=pb.Marker() if value.row_ids_spilled else None,
        column_last_updated_at_versions=pb.Marker() if value.updated_at_spilled else None,
        column_created_at_versions=pb.Marker() if value.created_at_spilled else None,
        overlays=[pb.DataOverlayFile.FromString(overlay) for overlay in value.overlays],
    )
    return with_unknown(message, value.unknown)


def fragments_to_pb(values: Iterable[DataFragment]) -> list[pb.DataFragment]:
    return [fragment_to_pb(value) for value in values]


def fragments_from_pb(messages: Iterable[pb.DataFragment], source: str) -> tuple[DataFragment, ...]:
    return tuple(fragment_from_pb(message, source) for message in messages)


def base_path_from_pb(message: pb.BasePath) -> BasePath:
    return BasePath(
        id=message.id,
        path=message.path,
        is_dataset_root=message.is_dataset_root,
        name=message.name if message.HasField("name") else None,
        unknown=unknown_fields(message),
    )


def base_path_to_pb(value: BasePath) -> pb.BasePath:
    message = pb.BasePath(id=value.id, path=value.path, is_dataset_root=value.is_dataset_root, name=value.name)
    return with_unknown(message, value.unknown)


def writer_from_pb(message: pb.WriterVersion) -> WriterVersion:
    return WriterVersion(
        library=message.library,
        version=message.version,
        prerelease=message.prerelease if message.HasField("prerelease") else None,
        build_metadata=message.build_metadata if message.HasField("build_metadata") else None,
        unknown=unknown_fields(message),
    )


def writer_to_pb(value: WriterVersion) -> pb.WriterVersion:
    message = pb.WriterVersion(
        library=value.library, version=value.version, prerelease=value.prerelease, build_metadata=value.build_metadata
    )
    return with_unknown(message, value.unknown)


def data_format_from_pb(message: pb.DataStorageFormat) -> DataFormat:
    return DataFormat(message.file_format, message.version, unknown_fields(message))


def data_format_to_pb(value: DataFormat) -> pb.DataStorageFormat:
    return with_unknown(pb.DataStorageFormat(file_format=value.file_format, version=value.version), value.unknown)


def uuid_from_pb(message: pb.Uuid, source: str) -> str:
    if len(message.uuid) != 16:
        raise CorruptTable(source, f"a uuid has {len(message.uuid)} bytes instead of 16")
    return str(uuidlib.UUID(bytes=message.uuid))


def uuid_to_pb(value: str) -> pb.Uuid:
    return pb.Uuid(uuid=uuidlib.UUID(value).bytes)


def index_file_from_pb(message: pb.IndexFile, source: str) -> IndexFile:
    check_relative(message.path, source)
    return IndexFile(message.path, message.size_bytes, unknown_fields(message))


def index_file_to_pb(value: IndexFile) -> pb.IndexFile:
    return with_unknown(pb.IndexFile(path=value.path, size_bytes=value.size), value.unknown)


def index_from_pb(message: pb.IndexMetadata, source: str) -> IndexMetadata:
    details = None
    if message.HasField("index_details"):
        details = (message.index_details.type_url, message.index_details.value)
    return IndexMetadata(
        uuid=uuid_from_pb(message.uuid, source),
        fields=tuple(message.fields),
        name=message.name,
        dataset_version=message.dataset_version,
        fragment_bitmap=message.fragment_bitmap or None,
        details=details,
        index_version=message.index_version if message.HasField("index_version") else None,
        created_at=message.created_at if message.HasField("created_at") else None,
        base_id=message.base_id if message.HasField("base_id") else None,
        files=tuple(index_file_from_pb(file, source) for file in message.files),
        covering_fields=tuple(message.covering_fields),
        unknown=unknown_fields(message, "uuid", "index_details"),
    )


def index_to_pb(value: IndexMetadata) -> pb.IndexMetadata:
    message = pb.IndexMetadata(
        uuid=uuid_to_pb(value.uuid),
        fields=value.fields,
        name=value.name,
        dataset_version=value.dataset_version,
        fragment_bitmap=value.fragment_bitmap or b"",
        index_details=pb.AnyDetails(type_url=value.details[0], value=value.details[1]) if value.details else None,
        index_version=value.index_version,
        created_at=value.created_at,
        base_id=value.base_id,
        files=[index_file_to_pb(file) for file in value.files],
        covering_fields=value.covering_fields,
    )
    return with_unknown(message, value.unknown)


def varint(value: int) -> bytes:
    """An unsigned integer, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(number: int, value: int) -> bytes:
    """An unsigned integer field, written even when it is zero."""
    return varint(number << 3) + varint(value)


def length_delimited(number: int, body: bytes) -> bytes:
    """A string, bytes or message field."""
    return b"".join((varint(number << 3 | 2), varint(len(body)), body))


Encodable: TypeAlias = "int | bytes | list[tuple[int, Encodable]]"
"""An integer, a string or message as bytes, or the fields of a message."""


def encode_fields(fields: Iterable[tuple[int, Encodable]]) -> bytes:
    """Fields of a message by number, zeros included."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(integer(number, value))
        else:
            parts.append(length_delimited(number, value if isinstance(value, bytes) else encode_fields(value)))
    return b"".join(parts)


M = TypeVar("M", bound=Message)


def unknown_fields(message: Message, *members: str) -> bytes:
    """The unknown fields of ``message`` itself, as wire bytes.

    ``members`` names messages inside it that have no value of their own to keep such fields: theirs come along, in their place.
    """
    inner = b""
    for name in members:
        if message.HasField(name) and (content := unknown_fields(getattr(message, name))):
            inner += length_delimited(message.DESCRIPTOR.fields_by_name[name].number, content)
    if not len(UnknownFieldSet(message)):
        return inner
    rest = type(message)()
    rest.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        rest.ClearField(descriptor.name)
    return rest.SerializeToString() + inner


def with_unknown(message: M, unknown: bytes) -> M:
    """Puts bytes from ``unknown_fields`` back into ``message`` and returns it."""
    if unknown:
        message.MergeFromString(unknown)
    return message


def parse_sound(kind: type[M], data: bytes, what: str, source: str) -> M:
    """The message without its unknown fields, proven to have none that a newer writer could not have meant.

    A parser takes a member that comes in another wire type than its own for unknown, so that one flipped bit would make a fragment
    vanish without a word. No writer, however new, uses a number again for something else: such bytes are damaged.

    Raises:
        CorruptTable: no message at all, or one with a misplaced member.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise CorruptTable(source, f"{what} cannot be decoded ({error})") from error
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:  # seldom: only then is it worth while to look where they are
        refuse_misplaced(kind.FromString(data), what, source)
    return message


def refuse_misplaced(message: Message, what: str, source: str) -> None:
    """Refuses a known member in a wire type that is not its own, anywhere in the message."""
    known = message.DESCRIPTOR.fields_by_number
    for found in UnknownFieldSet(message):  # type: ignore[attr-defined]
        if found.field_number in known:
            raise CorruptTable(source, f"{what} has {known[found.field_number].name} in a form that no writer uses")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            inner = descriptor.message_type.fields_by_name["value"].message_type
            parts = list(value.values()) if inner is not None else []
        else:
            parts = [value] if isinstance(value, Message) else list(value)
        for part in parts:
            refuse_misplaced(part, what, source)


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
