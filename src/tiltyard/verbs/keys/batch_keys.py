"""Keys of several appends that are to be one commit: which of them cannot go along with the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tiltyard.errors import KeyConflict
from tiltyard.format.manifest import Manifest
from tiltyard.transaction.operations import Append
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.row_deletion import dataset_at
from tiltyard.verbs.keys.primary_keys import SAMPLE, Key, KnownKeys, Numbers, in_words, key_batches


def clashing_parts(access: TableAccess, manifest: Manifest, key: Key, parts: Sequence[pa.Table]) -> dict[int, KeyConflict | None]:
    """Parts that have a key in common with a row of the table, or with an earlier part. The table's keys are read once.

    Args:
        access, manifest: the version to look in.
        key: its primary key.
        parts: rows; no key occurs twice in one part.

    Returns:
        By their places: the error where a row of the table has the key, None where only an earlier part has it.
    """
    keys = pa.concat_tables([key.of(part) for part in parts])
    owners = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])
    codes = KnownKeys(keys).codes()
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)  # the first row of each key is in the first part that has it
    found: dict[int, KeyConflict | None] = dict.fromkeys(np.unique(owners[owners > owners[first][codes]]).tolist())
    there = _in_table(access, manifest, key, keys.take(pa.array(first)))
    for place in np.unique(owners[there[codes]]).tolist():
        mine = np.flatnonzero((owners == place) & there[codes])
        found[place] = _conflict(manifest, in_words(keys.take(pa.array(mine[:SAMPLE]))))
    return found


def _in_table(access: TableAccess, manifest: Manifest, key: Key, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Which of these keys, each there once, rows of the version have."""
    known = KnownKeys(keys)
    there = np.zeros(len(known), np.bool_)
    if len(manifest.fragments):
        for piece in key_batches(access, dataset_at(access, manifest), key, None, known.at_once):
            rows: Numbers = known.matches(piece)[1]
            there[rows] = True
    return there


def _conflict(manifest: Manifest, sample: Sequence[str]) -> KeyConflict:
    return KeyConflict(
        f"Version {manifest.version} already has these keys: {'; '.join(sample)}.",
        operation=Append.name,
        read_version=manifest.version,
        sample=sample,
        retryable=False,
    )
