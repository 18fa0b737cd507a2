"""Wire bytes of message fields this release does not know, so that they can be written back as they came."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

M = TypeVar("M", bound=Message)


def unknown_fields(message: Message) -> bytes:
    """The unknown fields of ``message`` itself (not of messages inside it), as wire bytes."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        rest.ClearField(descriptor.name)
    return rest.SerializeToString()


def with_unknown(message: M, unknown: bytes) -> M:
    """Puts bytes from ``unknown_fields`` back into ``message`` and returns it."""
    if unknown:
        message.MergeFromString(unknown)
    return message
