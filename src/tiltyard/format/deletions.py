"""Deletion files: the complete set of deleted row offsets of one fragment, as an Arrow file or a Roaring bitmap."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format.arrow_column import read_uint32_column
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
