"""Rows of small tables, read on the driver while a query is planned.

A job, a task and a Python worker cost more than a few thousand rows do, and a query over a star reads many such tables. So their rows go to
the JVM with the plan. They are of the very version, columns and condition that workers would have read, and are kept for the next query.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tiltyard.spark.read.datasets import fragments_at
from tiltyard.spark.read.reading import HIDDEN, Scan, batches, parts
from tiltyard.spark.spark_types import DIMENSION

MOST_ROWS = 16_384
"""Rows of a table, before any condition, up to which the driver reads it."""

MOST_BYTES: Final = 1 << 20
"""Bytes of the rows that are read, above which workers read them all the same: they travel with tasks."""

MOST_FILE_BYTES: Final = 8 << 20
"""Bytes of a table's files above which the driver does not even look."""

MOST_FRAGMENTS: Final = 32
_KEPT: Final = 64
_PLAIN: Final = (
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal",
)  # fmt: skip


class SmallTables:
    """Reads small tables, and keeps what it read. One a session.

    Attributes:
        most_rows: rows up to which a table is small; 0 has workers read everything.
    """

    def __init__(self) -> None:
        self.most_rows = MOST_ROWS
        self._kept: OrderedDict[str, bytes | None] = OrderedDict()
        self._lock = Lock()

    def is_small(self, scan: Scan) -> bool:
        """Whether the table has so few rows, of types that have one form for everybody, that the driver may read it."""
        names = [field.name for field in scan.schema.fields]
        if not self.most_rows or not names or any(name in HIDDEN for name in names):
            return False
        if any(field.dataType.typeName() not in _PLAIN or DIMENSION in (field.metadata or {}) for field in scan.schema.fields):
            return False
        fragments = fragments_at(scan.address)
        rows, size = sum(fragment.rows for fragment in fragments), sum(fragment.bytes for fragment in fragments)
        return rows <= self.most_rows and len(fragments) <= MOST_FRAGMENTS and size <= MOST_FILE_BYTES

    def rows_of(self, scan: Scan) -> bytes | None:
        """The rows as an Arrow stream; None where workers have to read them.

        Raises:
            TiltyardError: they cannot be read.
        """
        if not self.is_small(scan):
            return None
        # A version never changes, so neither does what it holds. Storage options may carry rights, so they are part of the key.
        key = f"{scan.address.to_json()} {scan.filter} {scan.limit} {scan.schema.json()}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = _read(scan)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def _read(scan: Scan) -> bytes | None:
    sink, wanted, size = pa.BufferOutputStream(), to_arrow_schema(scan.schema, timezone="UTC"), 0
    with pa.ipc.new_stream(sink, wanted) as writer:
        for part in parts(scan, 1):
            for batch in batches(part):
                size += batch.nbytes
                if size > MOST_BYTES:
                    return None
                writer.write_batch(batch)
    return bytes(sink.getvalue())
