"""Where rows are after a rewrite of their fragments, where that is certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from pyroaring import BitMap

from tiltyard.errors import CorruptTable
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.values import DataFragment
from tiltyard.transaction.apply.row_lineage import locate
from tiltyard.transaction.transaction import Transaction

ROW_ORDER: Final = "tiltyard.row_order"
KEPT: Final = "kept"
"""A rewrite says with this property that its new fragments hold the live rows of each group's old ones, one after the other."""
CHANGED: Final = "changed"
"""A rewrite that sorted rows says this."""

Rows: TypeAlias = Mapping[int, BitMap]
"""Offsets of rows, by fragment id."""


def keeps_order(rewrite: Transaction) -> bool:
    return rewrite.properties.get(ROW_ORDER) == KEPT


def by_row_id(rows: Rows, old: Sequence[DataFragment], new: Sequence[DataFragment]) -> dict[int, BitMap] | None:
    """Where rows of old fragments are in the new ones, on a table whose rows keep their ids."""
    try:
        ids = [_ids(fragment)[np.array(rows[fragment.id], np.int64)] for fragment in old if rows.get(fragment.id)]
        wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *ids]))
        found: dict[int, BitMap] = {}
        for fragment in new:
            _, offsets = locate(
                wanted, decode_row_ids(fragment.row_ids or b"", physical_rows=fragment.physical_rows, source=f"fragment {fragment.id}")
            )
            if len(offsets):
                found[fragment.id] = BitMap(offsets.astype(np.uint32))
    except CorruptTable:
        return None
    return found if sum(map(len, found.values())) == len(wanted) == sum(map(len, ids)) else None


def _ids(fragment: DataFragment) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return decode_row_ids(fragment.row_ids or b"", physical_rows=fragment.physical_rows, source=f"fragment {fragment.id}").to_numpy()


def in_order(rows: Rows, old: Sequence[tuple[DataFragment, BitMap]], new: Sequence[DataFragment]) -> dict[int, BitMap] | None:
    """Where rows of old fragments (with what was deleted in them) are in new ones that hold the live rows in the same order."""
    if sum(fragment.physical_rows - len(deleted) for fragment, deleted in old) != sum(piece.physical_rows for piece in new):
        return None
    places: list[int] = []
    begin = 0
    for fragment, deleted in old:
        for offset in rows.get(fragment.id, ()):
            if offset in deleted:
                return None
            places.append(begin + offset - deleted.rank(offset))
        begin += fragment.physical_rows - len(deleted)
    found: dict[int, BitMap] = {}
    begin = 0
    for fragment in new:
        inside = BitMap(place - begin for place in places if begin <= place < begin + fragment.physical_rows)
        if inside:
            found[fragment.id] = inside
        begin += fragment.physical_rows
    return found
