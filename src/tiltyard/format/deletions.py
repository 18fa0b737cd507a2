"""Deletion files: the complete set of deleted row offsets of one fragment, as an Arrow file or a Roaring bitmap."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format.roaring import decode_roaring, encode_roaring

BITMAP_FROM: Final = 5000
"""Stock writers change from Arrow to Roaring at this many offsets."""

_COLUMN: Final = "row_id"
"""The name is historical: the values are offsets inside the fragment, not row ids."""
_MOST_ROWS: Final = 1 << 32


def decode_deletions(data: bytes, *, bitmap: bool, physical_rows: int, expected_count: int | None, source: str) -> BitMap:
    """Offsets of the deleted rows.

    Args:
        data: the whole file.
        bitmap: whether the manifest calls it a Roaring file; the form is never guessed from the bytes.
        physical_rows: rows of the fragment; every offset lies below.
        expected_count: what the manifest says; None only when it does not say.
        source: the file's path, for messages.
    """
    if bitmap:
        deleted = decode_roaring(data, source)
    else:
        values = read_uint32_column(bytes(data), _COLUMN, most=min(physical_rows, _MOST_ROWS), expected=expected_count, source=source)
        deleted = BitMap(np.frombuffer(values, "<u4").astype(np.uint32, copy=True))
        if len(deleted) != len(values) // 4:
            raise CorruptTable(source, f"{len(values) // 4 - len(deleted)} offsets appear twice")
    if deleted and deleted.max() >= physical_rows:
        raise CorruptTable(source, f"offset {deleted.max()} is deleted, the fragment has {physical_rows} rows")
    if expected_count is not None and len(deleted) != expected_count:
        raise CorruptTable(source, f"{len(deleted)} offsets are deleted, the manifest says {expected_count}")
    return deleted


def encode_deletions(deleted: BitMap) -> tuple[bool, bytes]:
    """Whether the file is a bitmap, and its bytes, in the form stock writers choose for this many offsets."""
    if len(deleted) >= BITMAP_FROM:
        return True, encode_roaring(deleted)
    schema = pa.schema([pa.field(_COLUMN, pa.uint32(), nullable=False)])
    batch = pa.record_batch([pa.array(np.array(deleted.to_array(), dtype=np.uint32))], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return False, sink.getvalue().to_pybytes()


_MAGIC: Final = b"ARROW1"
_CONTINUATION: Final = 0xFFFFFFFF
_METADATA_V4_V5: Final = (3, 4)
_HEADER_RECORD_BATCH: Final = 3
_TYPE_INT: Final = 2
_CODECS: Final = {0: "lz4", 1: "zstd"}
_LARGEST_RATIO: Final = 16
"""Distinct numbers do not shrink to half their size; a file that claims this much more is a trap, not a deletion vector."""
_SLACK: Final = 1 << 16


class _OutOfBounds(Exception):
    """A flatbuffer position outside its bytes. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """Bounds-checked view on a flatbuffer: the few reads this module needs."""

    data: bytes

    def number(self, position: int, code: str) -> int:
        size = struct.calcsize(code)
        if position < 0 or position + size > len(self.data):
            raise _OutOfBounds
        return int(struct.unpack_from("<" + code, self.data, position)[0])

    def root(self) -> int:
        return self.number(0, "I")

    def slot(self, table: int, field: int) -> int | None:
        """Where the field's value is, or None when it is left at its default."""
        vtable = table - self.number(table, "i")
        entry = 4 + 2 * field
        if entry + 2 > self.number(vtable, "H"):
            return None
        offset = self.number(vtable + entry, "H")
        return table + offset if offset else None

    def scalar(self, table: int, field: int, code: str, default: int = 0) -> int:
        slot = self.slot(table, field)
        return default if slot is None else self.number(slot, code)

    def reference(self, table: int, field: int) -> int | None:
        slot = self.slot(table, field)
        return None if slot is None else slot + self.number(slot, "I")

    def vector(self, table: int, field: int, item_size: int) -> tuple[int, int]:
        """Start and count of a vector, with its items proven to lie inside."""
        start = self.reference(table, field)
        if start is None:
            return 0, 0
        count = self.number(start, "I")
        if start + 4 + count * item_size > len(self.data):
            raise _OutOfBounds
        return start + 4, count

    def text(self, table: int, field: int) -> bytes:
        start, count = self.vector(table, field, 1)
        return self.data[start : start + count]


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: int
    nulls: int
    validity: tuple[int, int]
    values: tuple[int, int]
    codec: str | None
    body: bytes


def read_uint32_column(data: bytes, name: str, *, most: int, expected: int | None, source: str) -> bytes:
    """The column's values as little-endian bytes, four each.

    The file must hold one batch of exactly one column ``name``, unsigned 32-bit without nulls, of at most ``most`` rows and of
    ``expected`` ones where that is known, plain or compressed. Anything else is ``CorruptTable`` naming ``source``.
    """
    try:
        batch = _read_batch(data, name, source)
    except _OutOfBounds:
        raise CorruptTable(source, "the Arrow metadata points outside the file") from None
    if batch.nulls:
        raise CorruptTable(source, f"column {name} claims {batch.nulls} nulls")
    if not 0 <= batch.rows <= most:
        raise CorruptTable(source, f"the batch claims {batch.rows} rows, at most {most} are possible")
    if expected is not None and batch.rows != expected:
        raise CorruptTable(source, f"{batch.rows} offsets are deleted, the manifest says {expected}")
    if batch.rows * 4 > _LARGEST_RATIO * len(data) + _SLACK:
        raise CorruptTable(source, f"the batch claims {batch.rows} rows in {len(data)} bytes")
    if batch.validity[1] and batch.rows:
        bits = int.from_bytes(_buffer(batch, batch.validity, (batch.rows + 7) // 8, source), "little")
        if bits & ((1 << batch.rows) - 1) != (1 << batch.rows) - 1:
            raise CorruptTable(source, f"column {name} has nulls")
    return _buffer(batch, batch.values, 4 * batch.rows, source)


def _read_batch(data: bytes, name: str, source: str) -> _Batch:
    footer = _footer(data, source)
    table = footer.root()
    schema = footer.reference(table, 1)
    if schema is None:
        raise CorruptTable(source, "the Arrow footer has no schema")
    _check_schema(footer, schema, name, source)
    if footer.vector(table, 2, 24)[1]:
        raise CorruptTable(source, "the Arrow file has dictionaries")
    block, blocks = footer.vector(table, 3, 24)
    if blocks != 1:
        raise CorruptTable(source, f"the Arrow file holds {blocks} batches instead of one")
    offset, header_size, body_size = footer.number(block, "q"), footer.number(block + 8, "i"), footer.number(block + 16, "q")
    if offset < 8 or header_size < 8 or body_size < 0 or offset + header_size + body_size > len(data):
        raise CorruptTable(source, "the Arrow batch lies outside the file")
    message = data[offset : offset + header_size]
    # Files from before Arrow 0.15 have no continuation mark in front of the length.
    start = 8 if int.from_bytes(message[:4], "little") == _CONTINUATION else 4
    length = int.from_bytes(message[start - 4 : start], "little")
    if start + length > len(message):
        raise CorruptTable(source, "the Arrow message is longer than its block")
    return _message(_Flat(message[start : start + length]), data[offset + header_size :][:body_size], source)


def _footer(data: bytes, source: str) -> _Flat:
    if len(data) < 8 + 4 + len(_MAGIC) or not data.startswith(_MAGIC) or not data.endswith(_MAGIC):
        raise CorruptTable(source, "not a whole Arrow file (magic missing)")
    end = len(data) - len(_MAGIC) - 4
    size = int.from_bytes(data[end : end + 4], "little", signed=True)
    if not 0 < size <= end - 8:
        raise CorruptTable(source, f"the Arrow footer claims {size} bytes of {len(data)}")
    return _Flat(data[end - size : end])


def _check_schema(footer: _Flat, schema: int, name: str, source: str) -> None:
    if footer.scalar(schema, 0, "h"):
        raise CorruptTable(source, "the Arrow file is big-endian")
    fields, count = footer.vector(schema, 1, 4)
    if count != 1:
        raise CorruptTable(source, f"the Arrow file has {count} columns instead of one")
    field = fields + footer.number(fields, "I")
    if footer.text(field, 0) != name.encode():
        raise CorruptTable(source, f"the Arrow column is {footer.text(field, 0)[:40]!r} instead of {name!r}")
    kind = footer.reference(field, 3)
    plain = kind is not None and footer.scalar(field, 2, "B") == _TYPE_INT and footer.reference(field, 4) is None
    if kind is None or not plain or footer.scalar(kind, 0, "i") != 32 or footer.scalar(kind, 1, "B"):
        raise CorruptTable(source, f"the Arrow column {name} is not of type uint32")


def _message(flat: _Flat, body: bytes, source: str) -> _Batch:
    message = flat.root()
    if flat.scalar(message, 0, "h") not in _METADATA_V4_V5 or flat.scalar(message, 1, "B") != _HEADER_RECORD_BATCH:
        raise CorruptTable(source, "the Arrow block is not a record batch of a known version")
    batch = flat.reference(message, 2)
    if batch is None:
        raise CorruptTable(source, "the Arrow message is empty")
    node, nodes = flat.vector(batch, 1, 16)
    buffer, buffers = flat.vector(batch, 2, 16)
    rows = flat.scalar(batch, 0, "q")
    if nodes != 1 or buffers != 2 or flat.number(node, "q") != rows:
        raise CorruptTable(source, "the Arrow batch does not describe one plain column")
    compression = flat.reference(batch, 3)
    codec = None
    if compression is not None:
        codec = _CODECS.get(flat.scalar(compression, 0, "b"))
        if codec is None or flat.scalar(compression, 1, "b"):
            raise CorruptTable(source, "the Arrow batch is compressed in an unknown way")
    spans = [(flat.number(buffer + 16 * i, "q"), flat.number(buffer + 16 * i + 8, "q")) for i in range(2)]
    return _Batch(rows, flat.number(node + 8, "q"), spans[0], spans[1], codec, body)


def _buffer(batch: _Batch, span: tuple[int, int], needed: int, source: str) -> bytes:
    """The first ``needed`` bytes of a buffer; it may be padded, but by no more than the slack."""
    start, length = span
    if start < 0 or length < 0 or start + length > len(batch.body):
        raise CorruptTable(source, "an Arrow buffer lies outside its batch")
    raw = batch.body[start : start + length]
    if batch.codec is not None and raw:
        raw = _decompress(raw, batch.codec, needed, source)
    if len(raw) < needed:
        raise CorruptTable(source, f"an Arrow buffer has {len(raw)} bytes, {needed} are needed")
    return raw[:needed]


def _decompress(raw: bytes, codec: str, needed: int, source: str) -> bytes:
    """Compressed buffers begin with their plain length; -1 says that the rest is plain after all."""
    if len(raw) < 8:
        raise CorruptTable(source, "a compressed Arrow buffer is truncated")
    size = int.from_bytes(raw[:8], "little", signed=True)
    if size == -1:
        return raw[8:]
    if not 0 <= size <= needed + _SLACK:
        raise CorruptTable(source, f"a compressed Arrow buffer claims {size} bytes, {needed} are needed")
    try:
        return bytes(pa.Codec(codec).decompress(raw[8:], decompressed_size=size, asbytes=True)) if size else b""
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptTable(source, f"a compressed Arrow buffer cannot be unpacked ({str(error)[:80]})") from error
