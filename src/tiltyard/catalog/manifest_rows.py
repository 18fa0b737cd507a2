"""Records as rows of a ``__manifest`` table, whose columns are those of the Lance Namespace directory layout.

The names of tables and namespaces are rows that other clients look for; all other records are rows that they pass over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tiltyard.catalog.record_codec import decode, encode
from tiltyard.catalog.records import Body

HEAD: Final = "tiltyard/head"
"""The row that every publish rewrites, so that two who change different records meet all the same."""

GONE: Final = "gone"
"""In a merge, the type of rows that are to be deleted. Never stored."""

_TABLE: Final = "table"
_NAMESPACE: Final = "namespace"
_OURS: Final = "tiltyard"
_DISCOVERED: Final = {_TABLE: "name/main/", _NAMESPACE: "namespace/"}

# As stock clients annotate it: another spelling of the same would be "migrated" by the first of them that writes, which fails.
_KEY: Final = {"lance-schema:unenforced-primary-key:position": "0"}

SCHEMA: Final = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False, metadata=_KEY),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
    ]
)

COLUMNS: Final = ("object_id", "object_type", "location", "metadata")


@dataclass(frozen=True, slots=True)
class Row:
    """One row, without the column that we do not use."""

    object_id: str
    object_type: str
    location: str | None = None
    metadata: str | None = None

    def key(self) -> str | None:
        """The key of the record; None for a row that holds none."""
        if self.object_type in _DISCOVERED:
            return _DISCOVERED[self.object_type] + self.object_id
        if self.object_type != _OURS or self.object_id == HEAD:
            return None
        return self.object_id.removeprefix("/")

    def publishes(self) -> int:
        """Of the row that every publish rewrites: how many there were."""
        count = decode(HEAD, self.metadata or "{}", self.object_id).get("publishes")
        return count if isinstance(count, int) else 0

    def body(self, where: str) -> dict[str, Any]:
        """The record. A table that another client made has no more than its location."""
        if self.object_type == _OURS:
            return decode(self.object_id, self.metadata or "", where)
        properties = decode(self.object_id, self.metadata or "{}", where)
        if isinstance(ours := properties.get(_OURS), str):
            return decode(self.object_id, ours, where)
        return {"location": self.location, "foreign": True}


def access_of(key: str) -> tuple[str, str]:
    """Type and id of the row of a record.

    Names come as they are and hold no ``/``. All others do hold one, if need be in front, so that no two records share an id.
    """
    for kind, prefix in _DISCOVERED.items():
        name = key.removeprefix(prefix)
        if name and name != key and "/" not in name:
            return kind, name
    return _OURS, key if "/" in key and not key.startswith("/") and key != HEAD else f"/{key}"


def row_of(key: str, body: Body) -> Row:
    kind, object_id = access_of(key)
    text = encode(key, body)
    if kind == _OURS:
        return Row(object_id, kind, None, text)
    location = body.get("location")
    # Other clients take the properties of a table or namespace for texts by name.
    return Row(object_id, kind, None if location is None else str(location), json.dumps({_OURS: text}))


def head_row(publishes: int, last: str) -> Row:
    return Row(HEAD, _OURS, None, json.dumps({"publishes": publishes, "last": last}))


def table_of(rows: Iterable[Row]) -> pa.Table:
    values = [{name: getattr(row, name) for name in COLUMNS} for row in rows]
    return pa.Table.from_pylist(values, SCHEMA)


def by_key(rows: Iterable[Row]) -> Mapping[str, Row]:
    return {key: row for row in rows if (key := row.key()) is not None}
