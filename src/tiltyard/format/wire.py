"""The few pieces of protobuf's wire form that splicing writes by hand, zeros included."""

from __future__ import annotations


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
