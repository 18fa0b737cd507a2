"""Damaged bytes: what a bad disk, a cut-off upload or a malicious writer makes of a good file. Deterministic by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

from tiltyard.errors import CorruptTable, UnsupportedFeature

Value = TypeVar("Value")

_EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 1 << 40]


def read_or_refuse(read: Callable[[], Value], source: str) -> Value | None:
    """What is read, or None when it is refused as it must be: ``CorruptTable`` naming the source, or a feature we lack."""
    try:
        return read()
    except UnsupportedFeature:
        return None  # a damaged word of flags looks like that of a newer writer
    except CorruptTable as error:
        refusal = error
    assert refusal.file == source
    assert refusal.reason
    return None


def damaged(originals: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """``count`` variants, one to three wounds each."""
    random = Random(seed)
    for _ in range(count):
        data = random.choice(originals)
        for _ in range(random.randint(1, 3)):
            data = _wound(data, random)
        yield data


def _wound(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    kind = random.randrange(7)
    if kind == 0 or not data:
        return data[:at] + random.randbytes(random.randint(1, 16)) + data[at:]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data + random.randbytes(random.randint(1, 16))
    if kind == 3:
        return data[:at] + data[at + random.randint(1, 16) :]
    if kind == 4:
        size = random.choice([1, 2, 4, 8])
        extreme = random.choice(_EXTREMES) & ((1 << 8 * size) - 1)
        return (data[:at] + extreme.to_bytes(size, "little") + data[at + size :])[: max(len(data), at + size)]
    at = min(at, len(data) - 1)
    changed = data[at] ^ (1 << random.randrange(8)) if kind == 5 else random.randrange(256)
    return data[:at] + bytes([changed]) + data[at + 1 :]
