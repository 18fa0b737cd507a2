"""Rows that replace those of the same keys as a whole: their files are written first, and then only keys are looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltyard.distributed import Piece, Pinned, RowChange


def fit(pinned: Pinned, pieces: Sequence[Piece]) -> bool:
    """Whether files can take the place of a version's rows as they are: they have all its columns, and no row has to keep its id."""
    task = pinned.write_task()
    wanted = {one.id: one for one in task.fields}
    return not pinned.stable and all(
        piece.data_format == task.data_format and {one.id: one for one in piece.fields} == wanted for piece in pieces
    )


def replacing(keys: pa.Table, pieces: Sequence[Piece], rows: Any, taken: Mapping[int, bytes], count: int) -> RowChange | None:
    """The change; None where several rows of the table have one key: each of them would have to be there again, under its new values.

    Args:
        keys: of the rows that come, each once.
        pieces: the files of these rows.
        rows: which of the keys the table has, by their places.
        taken: where it has them, packed.
        count: in how many rows.
    """
    new = np.ones(keys.num_rows, np.bool_)
    new[rows] = False
    inserted = int(new.sum())
    if count != keys.num_rows - inserted:
        return None
    counts = {"inserted": inserted, "updated": count, "deleted": 0}
    return RowChange(taken, pieces, (), keys.filter(pa.array(new)), counts, distinct=True)
