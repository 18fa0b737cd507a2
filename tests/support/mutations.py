"""Hypothesis strategies for damage: bytes of real files changed, cut, lengthened, spliced, or their lengths rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXTREMES: Final = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 32,
    1 << 40,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)

Mutate = Callable[[bytes, int, int, bytes], bytes]


def quiet(examples: int) -> settings:
    """Settings of a long run: the same inputs each time, no clock."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


def _flip(data: bytes, at: int, value: int, other: bytes) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ (1 << value % 8)]) + data[at + 1 :]


def _cut(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data[: at % len(data)]


def _behead(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data[at % len(data) :]


def _lengthen(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data + other[at % len(other) :][:64]


def _insert(data: bytes, at: int, value: int, other: bytes) -> bytes:
    at %= len(data)
    return data[:at] + (value % 2**64).to_bytes(8, "little")[: 1 + value % 8] + data[at:]


def _remove(data: bytes, at: int, value: int, other: bytes) -> bytes:
    at %= len(data)
    return data[:at] + data[at + 1 + value % 32 :]


def _splice(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data[: at % len(data)] + other[value % len(other) :]


def _swap_tail(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data[: -1 - at % min(len(data), 64)] + other[-1 - at % min(len(data), 64) :]


def _number(data: bytes, at: int, value: int, other: bytes) -> bytes:
    """A fixed-width number where one may stand: a section's length, an offset in the footer."""
    at %= len(data)
    size = (1, 2, 4, 8)[value % 4]
    number: int = EXTREMES[value % len(EXTREMES)] % (1 << 8 * size)
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def _footer(data: bytes, at: int, value: int, other: bytes) -> bytes:
    return data[:-16] + (at % (2 * len(data))).to_bytes(8, "little") + data[-8:]


def _varint(data: bytes, at: int, value: int, other: bytes) -> bytes:
    """A protobuf number in place of one byte."""
    at %= len(data)
    number, out = EXTREMES[value % len(EXTREMES)], b""
    while number > 0x7F:
        number, out = number >> 7, out + bytes([number & 0x7F | 0x80])
    return data[:at] + out + bytes([number]) + data[at + 1 :]


def _repeat(data: bytes, at: int, value: int, other: bytes) -> bytes:
    at %= len(data)
    return data[:at] + data[at : at + 1 + value % 200] + data[at:]


KINDS: Final[tuple[Mutate, ...]] = (
    _flip, _flip, _flip, _cut, _behead, _lengthen, _insert, _remove, _splice, _swap_tail, _number, _footer, _varint, _repeat,
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, originals: Sequence[bytes]) -> tuple[int, bytes]:
    """One of the files, by its place among them, and the same after one to three wounds."""
    which, other = draw(st.integers(0, len(originals) - 1)), draw(st.integers(0, len(originals) - 1))
    data = originals[which]
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        if data:
            mutate = draw(st.sampled_from(KINDS))
            data = mutate(data, draw(st.integers(0, 2**20)), draw(st.integers(0, 2**16)), originals[other])
    return which, data
