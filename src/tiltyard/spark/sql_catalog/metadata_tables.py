"""Tables that tell about a table: ``t.history``, ``t.snapshots``, ``t.fragments``, ``t.refs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import types as st

import tiltyard as ty

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Rows = list[list[Any]]


def _history(lake: ty.Lake, name: str) -> Rows:
    entries = lake.table(name).history()
    return [
        [entry.version, micros(entry.timestamp), entry.operation, entry.message, entry.writer, entry.transaction_id, entry.rows]
        for entry in entries
    ]


def _snapshots(lake: ty.Lake, name: str) -> Rows:
    return [[entry.id, micros(entry.at), entry.author, entry.message, ", ".join(entry.tables)] for entry in lake.history()]


def _fragments(lake: ty.Lake, name: str) -> Rows:
    return [
        [fragment.id, fragment.physical_rows, len(fragment.files), sum(file.size or 0 for file in fragment.files)]
        for fragment in lake.table(name).layout.fragments
    ]


def _refs(lake: ty.Lake, name: str) -> Rows:
    tags = [["tag", tag.name, tag.snapshot, tag.branch] for tag in lake.tags.list()]
    return tags + [["branch", branch.name, branch.snapshot, None] for branch in lake.branches.list()]


METADATA: Final[Mapping[str, tuple[str, Callable[[ty.Lake, str], Rows]]]] = {
    "history": (
        "version bigint, timestamp timestamp, operation string, message string, writer string, transaction_id string, rows bigint",
        _history,
    ),
    "snapshots": ("id bigint, timestamp timestamp, author string, message string, tables string", _snapshots),
    "fragments": ("id bigint, rows bigint, files bigint, bytes bigint", _fragments),
    "refs": ("type string, name string, snapshot bigint, branch string", _refs),
}
"""What each shows: its columns, and where its rows come from."""


def metadata_rows(lake: ty.Lake, table: str, kind: str) -> dict[str, Any]:
    """All rows of one of them, as they are now."""
    columns, rows = METADATA[kind]
    return told(columns, rows(lake, table))


def told(columns: str, rows: Rows) -> dict[str, Any]:
    """Rows as the JVM side takes them."""
    schema = st.StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema = schema.add(name, _TYPES[kind])
    return {"schema": schema.json(), "rows": rows}


_TYPES: Final = {"bigint": st.LongType(), "string": st.StringType(), "timestamp": st.TimestampType(), "boolean": st.BooleanType()}


def micros(moment: datetime | None) -> int | None:
    """A moment as Spark counts."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int((aware - _EPOCH).total_seconds() * 1_000_000)
