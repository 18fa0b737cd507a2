"""Lookups by an index: asked once on the driver, so that only the fragments that hold something are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from lance import LanceDataset

MOST_ROWS: Final = 20_000
"""Rows above which it is no lookup, and all fragments are read at once."""

MOST_VALUES: Final = 200

_SCALAR: Final = ("BTree", "Bitmap")


def fragments_with(opened: LanceDataset, filters: Sequence[Mapping[str, Any]], sql: str | None) -> set[int] | None:
    """The fragments with rows that pass; None where no index makes it cheap to know.

    Args:
        opened: the table.
        filters: Spark's conditions, all of which have to hold.
        sql: the same for pylance, as far as it can be told.
    """
    if sql is None:
        return None
    wanted = {name for one in filters if (name := _looked_up(one["is"])) is not None}
    if not wanted or not wanted & _indexed(opened):
        return None
    found = opened.scanner(columns=[], with_row_address=True, filter=sql, limit=MOST_ROWS + 1).to_table()
    if found.num_rows > MOST_ROWS:
        return None
    return {int(one) for one in np.unique(found.column("_rowaddr").to_numpy() >> np.uint64(32))}


def _indexed(opened: LanceDataset) -> set[str]:
    if not opened.has_index:
        return set()
    return {str(one["fields"][0]) for one in opened.list_indices() if len(one["fields"]) == 1 and one["type"] in _SCALAR}


def _looked_up(node: Mapping[str, Any]) -> str | None:
    """The column of which a few values are asked for."""
    children = node["k"]
    if node["c"] == "EqualTo":
        columns = [one["n"] for one in children if one["c"] == "AttributeReference"]
        literals = [one for one in children if one["c"] == "Literal"]
        return columns[0] if len(columns) == len(literals) == 1 else None
    count = len(node["vs"]) if node["c"] == "InSet" else len(children) - 1
    if node["c"] in ("In", "InSet") and count <= MOST_VALUES and children[0]["c"] == "AttributeReference":
        return str(children[0]["n"])
    return None
