"""Wire bytes of message fields this release does not know, so that they can be written back as they came."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tiltyard.errors import CorruptTable
from tiltyard.format.wire import length_delimited

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
            raise CorruptTable(source, f"{what} has {known[found.field_number].name} in a form that nobody writes")
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
