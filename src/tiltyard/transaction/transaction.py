"""A transaction: an operation, the version it was built on, and who it is. The wire form is the one all Lance writers share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import parse_sound, unknown_fields, with_unknown
from tiltyard.transaction.operation_codec import operation_from_pb, operation_to_pb
from tiltyard.transaction.operations import Operation, Overwrite, UnknownOperation

MESSAGE_PROPERTY: Final = "__lance_commit_message"
LAKE_MARKS: Final = "tiltyard.lake."
"""What the names of properties and config keys begin with that a lake writes for itself."""
MAX_TRANSACTION_BYTES: Final = 2**28
FIRST_ARM: Final = 100
"""Members from this number on are operations, one of which a transaction holds."""

_SAFE_UUID: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,99}")


def is_transaction_id(text: str) -> bool:
    """Whether a text can be the id of a transaction: it is part of names of files and keys of records."""
    return _SAFE_UUID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one writer wants to commit. ``uuid`` identifies it and is part of a file's name."""

    read_version: int
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    unknown: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not _SAFE_UUID.fullmatch(self.uuid):
            raise InvalidInput(f"{self.uuid[:40]!r} cannot be a transaction id.", argument="uuid", advice="Use a uuid in its usual form.")
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))

    @property
    def message(self) -> str:
        """What the writer said about the commit."""
        return self.properties.get(MESSAGE_PROPERTY, "")

    @property
    def file_name(self) -> str:
        """Its name inside ``_transactions``."""
        return f"{self.read_version}-{self.uuid}.txn"

    def to_bytes(self) -> bytes:
        """The wire form; equal transactions give equal bytes."""
        try:
            return self._encode()
        except (TypeError, ValueError) as error:
            what = f"The {self.operation.name} cannot be written as a transaction: {str(error).rstrip('.')}."
            raise InvalidInput(what, argument="operation", advice="Correct that value.") from error

    def _encode(self) -> bytes:
        message = pb.Transaction(read_version=self.read_version, uuid=self.uuid, tag=self.tag, transaction_properties=dict(self.properties))
        if isinstance(self.operation, UnknownOperation):
            return message.SerializeToString(deterministic=True) + self.operation.wire + self.unknown
        arm, operation = operation_to_pb(self.operation)
        getattr(message, arm).CopyFrom(operation)
        return with_unknown(message, self.unknown).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "transaction") -> Transaction:
        """Reads what any Lance writer wrote; ``source`` names the file in errors.

        Raises:
            CorruptTable: the bytes are not a transaction, or not a valid one.
        """
        if len(data) > MAX_TRANSACTION_BYTES:
            raise CorruptTable(source, f"{len(data)} bytes are more than a transaction may have")
        parse_sound(pb.Transaction, data, "the transaction", source)
        message = pb.Transaction.FromString(data)
        if not _SAFE_UUID.fullmatch(message.uuid):
            raise CorruptTable(source, f"{message.uuid[:40]!r} cannot be a transaction id")
        operation: Operation | None = operation_from_pb(message, source)
        unknown = unknown_fields(message)
        # An operation we know beside one that we do not is no operation we know.
        if operation is None or any(number >= FIRST_ARM for number, _ in _records(unknown)):
            operation = _unknown_operation(data)
            unknown = b"".join(record for number, record in _records(unknown) if number < FIRST_ARM)
        return cls(message.read_version, message.uuid, operation, message.transaction_properties, message.tag, unknown)


@dataclass(frozen=True, slots=True)
class CommitMarks:
    """What each commit of one writer to one table says of itself, whatever the caller wrote under these names.

    Attributes:
        properties: for every version.
        own_id: the property that is the transaction's own id, unless ``properties`` have another value for it.
        config: for the first version of a table.
    """

    properties: Mapping[str, str]
    own_id: str
    config: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, mine: Transaction) -> Transaction:
        """The same transaction with its marks."""
        operation = mine.operation
        if isinstance(operation, Overwrite) and mine.read_version == 0:
            operation = replace(operation, config_upsert_values={**(operation.config_upsert_values or {}), **self.config})
        return replace(mine, operation=operation, properties={**mine.properties, self.own_id: mine.uuid, **self.properties})


@dataclass(frozen=True, slots=True)
class Heading:
    """Who a transaction is and what it says of itself; read without its operation, which may name very many fragments."""

    uuid: str
    properties: Mapping[str, str]

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Heading:
        """Reads what any Lance writer wrote.

        Raises:
            CorruptTable: the bytes are not a transaction, or its id cannot be one.
        """
        message = parse_sound(pb.Transaction, data, "the transaction", source)
        if not _SAFE_UUID.fullmatch(message.uuid):
            raise CorruptTable(source, f"{message.uuid[:40]!r} cannot be a transaction id")
        return cls(message.uuid, dict(message.transaction_properties))


def _unknown_operation(data: bytes) -> UnknownOperation:
    """All that could be an operation in the bytes of a transaction, as it is."""
    found = [(number, record) for number, record in _records(data) if number >= FIRST_ARM]
    return UnknownOperation(max((number for number, _ in found), default=None), b"".join(record for _, record in found))


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The top-level members of a message that protobuf has parsed (so its bytes are well formed): number, and the whole record."""
    at = start = depth = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(data, at)
                at += length
            case 5:
                at += 4
            case kind:  # a group opens or closes: its members belong to the record that opens it
                depth += 1 if kind == 3 else -1
        if depth == 0:
            yield key >> 3, data[start:at]
            start = at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 0x7F:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1
