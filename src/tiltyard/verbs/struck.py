"""Rows that go: found by a scan, struck out of their fragments by new deletion files."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment
from tiltyard.transaction.rebase import fragments_of
from tiltyard.transaction.vectors import Vectors
from tiltyard.verbs.deletions import check_deletions
from tiltyard.verbs.expressions import condition
from tiltyard.verbs.lance import lance_errors, open_dataset
from tiltyard.verbs.place import Place

if TYPE_CHECKING:
    from lance import LanceDataset

Rows: TypeAlias = Mapping[int, BitMap]
"""Offsets by fragment id."""

ADDRESS = "_rowaddr"
ROW_ID = "_rowid"
_BATCH: Final = 1 << 14
"""Rows that a condition is applied to at a time."""


def dataset_at(place: Place, manifest: Manifest) -> LanceDataset:
    """pylance's handle on a version whose deletion files were looked at first."""
    check_deletions(place, manifest)
    return open_dataset(place, manifest.version)


class Addresses:
    """Collects row addresses from batches as they go by."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        # Copied: a column of a batch can keep all of its columns in memory.
        self._parts.append(np.array(column.to_numpy(), np.uint64))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def in_order(self) -> npt.NDArray[np.uint64]:
        return np.concatenate(self._parts)

    def by_fragment(self) -> dict[int, BitMap]:
        """The offsets in each fragment."""
        every = self.in_order()
        if not len(every):
            return {}
        if (every[1:] < every[:-1]).any():  # a scan gives them in order
            every.sort()
        offsets = offsets_in(every)
        fragments = (every >> np.uint64(32)).astype(np.uint32)
        starts = np.flatnonzero(fragments[1:] != fragments[:-1]) + 1
        numbers = fragments[np.concatenate([[0], starts])]
        return {int(number): bitmap_of(part) for number, part in zip(numbers, np.split(offsets, starts), strict=True)}


def offsets_in(addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Where rows are in their fragments."""
    return addresses.astype(np.uint32)  # drops the upper half


def bitmap_of(offsets: npt.NDArray[np.uint32]) -> BitMap:
    """Other than from an array of C, pyroaring takes numbers one by one."""
    return BitMap(array("I", offsets.tobytes()))


def matching_rows(place: Place, manifest: Manifest, where: str) -> dict[int, BitMap]:
    """The live rows of a version that a condition holds for."""
    found = Addresses()
    dataset = dataset_at(place, manifest)
    sql = condition(where, dataset.schema)
    with lance_errors(place, "find rows", manifest.version):
        found.add(dataset.scanner(columns=[], filter=sql, with_row_address=True, batch_size=_BATCH).to_table().column(ADDRESS))
    return found.by_fragment()


@dataclass(frozen=True, slots=True)
class Struck:
    """What is left of fragments after rows were struck out.

    Attributes:
        updated: fragments with their new deletion files.
        removed: ids of those that have no row left.
        rows: what was struck out.
    """

    updated: tuple[DataFragment, ...]
    removed: tuple[int, ...]
    rows: Rows = field(default_factory=dict)

    def files(self) -> list[str]:
        return [one.deletion_file.path(one.id) for one in self.updated if one.deletion_file is not None]


def strike_out(place: Place, manifest: Manifest, rows: Rows) -> Struck:
    """Writes deletion files for rows of a version that are live in it."""
    vectors = Vectors(place.store, place.runtime.random, place.open_base, place.digests.note)
    updated, removed = [], []
    for number, fragment in fragments_of(manifest, rows).items():
        deleted = vectors.of(fragment, manifest.base_paths) | rows[number]
        if len(deleted) == fragment.physical_rows:
            removed.append(number)
        else:
            updated.append(replace(fragment, deletion_file=vectors.write(fragment, deleted, manifest.version)))
    return Struck(tuple(updated), tuple(removed), rows)


def discard_files(place: Place, paths: Iterable[str], failure: TiltyardError) -> None:
    """Removes files no version will ever name, unless the failure leaves that open. What cannot be removed is cleanup's."""
    if not isinstance(failure, OutcomeUnknown):
        for path in paths:
            with suppress(StorageError):
                place.store.delete(path)
