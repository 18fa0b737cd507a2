"""Keys looked up in a version by other processes, each in some of its fragments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tiltyard.format.manifest import Manifest
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.row_deletion import ADDRESS
from tiltyard.verbs.keys.primary_keys import Key, KnownKeys

_BATCH: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The rows that a search found.

    Attributes:
        rows: which of the keys, by their places.
        addresses: and where the row of each is.
        others: where the rows are that have none of the keys, if asked for.
    """

    rows: Any
    addresses: Any
    others: Any


@dataclass(frozen=True)
class MatchTask:
    """Finds the rows of a version that have certain keys. Picklable; the keys can travel separately.

    Attributes:
        scan: the version.
        key: the columns.
        keys: those looked for, each once; None where they come with the call.
    """

    scan: ScanTask
    key: Key
    keys: pa.Table | None = field(default=None, repr=False)

    def without_keys(self) -> MatchTask:
        """The same task without its keys, for tasks that bring their own."""
        return MatchTask(self.scan, self.key)

    def find(self, fragments: Iterable[int] | None = None, keys: KnownKeys | pa.Table | None = None, *, others: bool = False) -> FoundKeys:
        """Looks in some fragments, or in all.

        Args:
            fragments: ids.
            keys: those looked for, if the task does not bring them.
            others: whether to return rows with other keys, too.
        """
        given = self.keys if keys is None else keys
        assert given is not None
        known = given if isinstance(given, KnownKeys) else KnownKeys(given)
        rows, addresses, rest = [np.empty(0, np.int64)], [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for piece in _pieces(self.scan.scan(self.key.expressions, fragments, row_address=True, batch_size=_BATCH), known.at_once):
            both, found = known.matches(piece.select(range(len(self.key.paths))))
            where = piece.column(ADDRESS).to_numpy()
            rows.append(found)
            addresses.append(where[both])
            if others:
                rest.append(np.delete(where, both))
        return FoundKeys(np.concatenate(rows), np.concatenate(addresses), np.concatenate(rest))


def _pieces(batches: pa.RecordBatchReader, least: int) -> Iterable[pa.Table]:
    """The batches, put together to so many rows: a search has a cost of its own."""
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if sum(item.num_rows for item in kept) >= least:
            yield pa.Table.from_batches(kept)
            kept = []
    if kept:
        yield pa.Table.from_batches(kept)


def match_task(access: TableAccess, manifest: Manifest, key: Key, keys: pa.Table) -> MatchTask:
    return MatchTask(scan_task(access, manifest), key, keys)
