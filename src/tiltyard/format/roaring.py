"""Roaring bitmaps of 32-bit numbers in the portable serialization: deletion vectors and the fragment bitmaps of indices.

The native library trusts much of what it is given, so untrusted bytes are walked here first, container by container, and reach
it only when every length, key, cardinality and offset agrees and nothing is left over.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from tiltyard.errors import CorruptTable

_COOKIE_PLAIN: Final = 12346
_COOKIE_RUNS: Final = 12347
_MAX_CONTAINERS: Final = 1 << 16
_ARRAY_LIMIT: Final = 4096
"""Most values a container holds as a sorted list; beyond it is a set of 65536 bits."""
_BITSET_BYTES: Final = 8192
_OFFSETS_FROM: Final = 4
"""With run containers about, the table of offsets appears only from this many containers on."""


class _Container(NamedTuple):
    cardinality: int
    is_run: bool


class _Header(NamedTuple):
    containers: list[_Container]
    offsets: tuple[int, ...] | None
    size: int


def encode_roaring(bitmap: BitMap) -> bytes:
    """The portable serialization."""
    return bytes(bitmap.serialize())


def decode_roaring(data: bytes, source: str) -> BitMap:
    """Reads exactly one bitmap that fills ``data``; anything else is ``CorruptTable`` naming ``source``."""
    data = bytes(data)
    header = _read_header(data, source)
    position = header.size
    for number, container in enumerate(header.containers):
        if header.offsets is not None and header.offsets[number] != position:
            raise CorruptTable(source, f"roaring container {number} is at byte {position}, its header says {header.offsets[number]}")
        position = _check_container(data, position, number, container, source)
    if position != len(data):
        raise CorruptTable(source, f"the roaring bitmap ends at byte {position} of {len(data)}")
    try:
        return BitMap.deserialize(data)
    except ValueError as error:
        raise CorruptTable(source, f"the roaring bitmap cannot be read ({error})") from error


def _take(data: bytes, position: int, length: int, what: str, source: str) -> bytes:
    if position + length > len(data):
        raise CorruptTable(source, f"{what} of the roaring bitmap needs bytes up to {position + length}, there are {len(data)}")
    return data[position : position + length]


def _read_header(data: bytes, source: str) -> _Header:
    cookie = int.from_bytes(_take(data, 0, 4, "the cookie", source), "little")
    position = 4
    runs = b""
    has_runs = cookie & 0xFFFF == _COOKIE_RUNS
    if has_runs:
        count = (cookie >> 16) + 1
        runs = _take(data, position, (count + 7) // 8, "the run flags", source)
        position += len(runs)
        if int.from_bytes(runs, "little") >> count:
            raise CorruptTable(source, "the roaring bitmap has run flags beyond its last container")
    elif cookie == _COOKIE_PLAIN:
        count = int.from_bytes(_take(data, position, 4, "the container count", source), "little")
        position += 4
        if count > _MAX_CONTAINERS:
            raise CorruptTable(source, f"the roaring bitmap claims {count} containers, at most {_MAX_CONTAINERS} are possible")
    else:
        raise CorruptTable(source, f"roaring cookie {cookie:#x} is unknown")
    words = struct.unpack(f"<{2 * count}H", _take(data, position, 4 * count, "the container table", source))
    position += 4 * count
    keys = words[0::2]
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptTable(source, "the keys of the roaring bitmap do not ascend")
    containers = [_Container(words[2 * i + 1] + 1, bool(has_runs and runs[i // 8] >> (i % 8) & 1)) for i in range(count)]
    offsets = None
    if not has_runs or count >= _OFFSETS_FROM:
        offsets = struct.unpack(f"<{count}I", _take(data, position, 4 * count, "the offset table", source))
        position += 4 * count
    return _Header(containers, offsets, position)


def _check_container(data: bytes, position: int, number: int, container: _Container, source: str) -> int:
    """Returns where the container ends."""
    what = f"container {number}"
    if container.is_run:
        count = int.from_bytes(_take(data, position, 2, what, source), "little")
        body = _take(data, position + 2, 4 * count, what, source)
        _check_runs(body, container.cardinality, number, source)
        return position + 2 + len(body)
    if container.cardinality <= _ARRAY_LIMIT:
        body = _take(data, position, 2 * container.cardinality, what, source)
        values = np.frombuffer(body, "<u2")
        if not bool(np.all(values[1:] > values[:-1])):
            raise CorruptTable(source, f"the values of roaring container {number} do not ascend")
        return position + len(body)
    body = _take(data, position, _BITSET_BYTES, what, source)
    bits = int.from_bytes(body, "little").bit_count()
    if bits != container.cardinality:
        raise CorruptTable(source, f"roaring container {number} has {bits} bits set, its header says {container.cardinality}")
    return position + _BITSET_BYTES


def _check_runs(body: bytes, cardinality: int, number: int, source: str) -> None:
    """Runs must ascend with a gap between them: touching ones would make equal sets compare as different."""
    last = -2
    total = 0
    for start, extra in struct.iter_unpack("<HH", body):
        if start <= last + 1:
            raise CorruptTable(source, f"the runs of roaring container {number} overlap or are adjacent")
        last = start + extra
        if last > 0xFFFF:
            raise CorruptTable(source, f"a run of roaring container {number} leaves the container")
        total += extra + 1
    if total != cardinality:
        raise CorruptTable(source, f"the runs of roaring container {number} hold {total} values, its header says {cardinality}")
