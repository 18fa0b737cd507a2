"""Runs of 64-bit numbers: the building block of row-id and row-version sequences.

A segment is kept as compactly as it came, and its ``count`` is arithmetic: nothing grows with a number a hostile file claims, only
with the bytes it has. ``to_numpy`` is the one place that allocates, after the caller has compared the count with the fragment.
``highest`` is the largest of the numbers, of which there must be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb

U64Values: TypeAlias = npt.NDArray[np.uint64]

_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers from ``start`` up to but not including ``end``."""

    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def highest(self) -> int:
        return self.end - 1

    def to_numpy(self) -> U64Values:
        return np.arange(self.count, dtype=np.uint64) + np.uint64(self.start)


@dataclass(frozen=True, slots=True)
class Holes:
    """A range without some numbers, which are held as little-endian bytes."""

    start: int
    end: int
    holes: bytes

    @property
    def count(self) -> int:
        return self.end - self.start - len(self.holes) // 8

    @property
    def highest(self) -> int:
        top = self.end - 1
        for hole in np.frombuffer(self.holes, "<u8")[::-1].tolist():
            if hole != top:
                break
            top -= 1
        return top

    def to_numpy(self) -> U64Values:
        kept = np.ones(self.end - self.start, dtype=bool)
        kept[np.frombuffer(self.holes, "<u8") - np.uint64(self.start)] = False
        return np.flatnonzero(kept).astype(np.uint64) + np.uint64(self.start)


@dataclass(frozen=True, slots=True)
class Bits:
    """Numbers from ``start`` on, one bit each, least significant bit first."""

    start: int
    end: int
    bits: bytes

    @property
    def count(self) -> int:
        return int.from_bytes(self.bits, "little").bit_count()

    @property
    def highest(self) -> int:
        return self.start + int.from_bytes(self.bits, "little").bit_length() - 1

    def to_numpy(self) -> U64Values:
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint64) + np.uint64(self.start)


@dataclass(frozen=True, slots=True)
class Listed:
    """Numbers in any order, held as little-endian bytes."""

    values: bytes

    @property
    def count(self) -> int:
        return len(self.values) // 8

    @property
    def highest(self) -> int:
        return int(np.frombuffer(self.values, "<u8").max())

    def to_numpy(self) -> U64Values:
        return np.frombuffer(self.values, "<u8").astype(np.uint64)


Segment: TypeAlias = Range | Holes | Bits | Listed


def segment_of(values: U64Values) -> Segment:
    """The shape stock writers choose for these numbers: the smallest by their own estimate, ties in the order tried."""
    if not len(values):
        return Range(0, 0)
    if not bool(np.all(values[1:] > values[:-1])):
        return _listed(values)
    start, end, count = int(values[0]), int(values[-1]) + 1, len(values)
    span = end - start
    if span == count and end <= _MAX:
        return Range(start, end)
    gaps = span - count
    sizes = (4 * gaps, (span + 7) // 8, 2 * count)
    if end > _MAX or sizes[2] < min(sizes[:2]):
        return _listed(values)
    present = np.zeros(span, dtype=bool)
    present[values - np.uint64(start)] = True
    if sizes[0] <= sizes[1]:
        return Holes(start, end, _bytes(np.flatnonzero(~present).astype(np.uint64) + np.uint64(start)))
    return Bits(start, end, np.packbits(present, bitorder="little").tobytes())


def _listed(values: U64Values) -> Listed:
    return Listed(_bytes(values))


def _bytes(values: U64Values) -> bytes:
    return values.astype("<u8").tobytes()


def read_segment(message: pb.U64Segment, source: str) -> Segment:
    """Checks the segment and keeps it small; numbers out of order or out of bounds are ``CorruptTable``."""
    arm = message.WhichOneof("segment")
    if arm == "range":
        _check_bounds(message.range.start, message.range.end, source)
        return Range(message.range.start, message.range.end)
    if arm == "range_with_holes":
        start, end = message.range_with_holes.start, message.range_with_holes.end
        _check_bounds(start, end, source)
        holes = _read_array(message.range_with_holes.holes, source)
        _check_ascending(holes, source)
        if len(holes) and not start <= int(holes[0]) <= int(holes[-1]) < end:
            raise CorruptTable(source, f"a hole lies outside its range {start}..{end}")
        return Holes(start, end, _bytes(holes))
    if arm == "range_with_bitmap":
        start, end, bits = message.range_with_bitmap.start, message.range_with_bitmap.end, message.range_with_bitmap.bitmap
        _check_bounds(start, end, source)
        if len(bits) != (end - start + 7) // 8:
            raise CorruptTable(source, f"range {start}..{end} comes with a bitmap of {len(bits)} bytes")
        if bits and bits[-1] >> ((end - start - 1) % 8 + 1):
            raise CorruptTable(source, f"the bitmap of range {start}..{end} has bits beyond its end")
        return Bits(start, end, bits)
    if arm == "sorted_array":
        values = _read_array(message.sorted_array, source)
        _check_ascending(values, source)
        return _listed(values)
    if arm == "array":
        return _listed(_read_array(message.array, source))
    raise CorruptTable(source, "a segment of numbers has no known form")


def _check_bounds(start: int, end: int, source: str) -> None:
    if end < start:
        raise CorruptTable(source, f"range {start}..{end} runs backwards")


def _check_ascending(values: U64Values, source: str) -> None:
    if not bool(np.all(values[1:] > values[:-1])):
        raise CorruptTable(source, "numbers that must ascend do not")


def _read_array(message: pb.EncodedU64Array, source: str) -> U64Values:
    arm = message.WhichOneof("array")
    if arm == "u64_array":
        return _numbers(message.u64_array.values, 8, source)
    if arm == "u32_array":
        base, offsets = message.u32_array.base, _numbers(message.u32_array.offsets, 4, source)
    elif arm == "u16_array":
        base, offsets = message.u16_array.base, _numbers(message.u16_array.offsets, 2, source)
    else:
        raise CorruptTable(source, "an array of numbers has no known width")
    if len(offsets) and base + int(offsets.max()) > _MAX:
        raise CorruptTable(source, f"offsets from base {base} leave the range of 64 bits")
    return offsets + np.uint64(base)


def _numbers(data: bytes, width: int, source: str) -> U64Values:
    if len(data) % width:
        raise CorruptTable(source, f"{len(data)} bytes are not a whole number of {width}-byte values")
    return np.frombuffer(data, f"<u{width}").astype(np.uint64)


def write_segment(segment: Segment) -> pb.U64Segment:
    """The wire form stock writers give the segment's numbers, whatever shape it came in."""
    if isinstance(segment, Range):
        return pb.U64Segment(range=pb.U64Segment.Range(start=segment.start, end=segment.end))
    values = segment.to_numpy()
    chosen = segment_of(values)
    if isinstance(chosen, Range):
        return write_segment(chosen)
    if isinstance(chosen, Holes):
        holes = _write_array(np.frombuffer(chosen.holes, "<u8").astype(np.uint64))
        return pb.U64Segment(range_with_holes=pb.U64Segment.RangeWithHoles(start=chosen.start, end=chosen.end, holes=holes))
    if isinstance(chosen, Bits):
        return pb.U64Segment(range_with_bitmap=pb.U64Segment.RangeWithBitmap(start=chosen.start, end=chosen.end, bitmap=chosen.bits))
    if bool(np.all(values[1:] > values[:-1])):
        return pb.U64Segment(sorted_array=_write_array(values))
    return pb.U64Segment(array=_write_array(values))


def _write_array(values: U64Values) -> pb.EncodedU64Array:
    """Offsets from the smallest number where they fit two or four bytes."""
    base = values.min()
    spread = int(values.max() - base)
    if spread <= 0xFFFF:
        return pb.EncodedU64Array(u16_array=pb.EncodedU64Array.U16Array(base=int(base), offsets=(values - base).astype("<u2").tobytes()))
    if spread <= 0xFFFFFFFF:
        return pb.EncodedU64Array(u32_array=pb.EncodedU64Array.U32Array(base=int(base), offsets=(values - base).astype("<u4").tobytes()))
    return pb.EncodedU64Array(u64_array=pb.EncodedU64Array.U64Array(values=_bytes(values)))
