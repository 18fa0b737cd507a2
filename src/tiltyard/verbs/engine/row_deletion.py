"""Deletes rows: finds them by a scan and writes new deletion files for their fragments."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.codec import MAX_FRAGMENT_ROWS
from tiltyard.format.deletions import decode_deletions
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFragment, DeletionFile
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.transaction.footprint import fragments_of
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset
from tiltyard.verbs.engine.sql_expressions import condition
from tiltyard.verbs.engine.verify_files import verify_version
from tiltyard.verbs.statistics.fragment_pruning import kept_fragments

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

Rows: TypeAlias = Mapping[int, BitMap]
"""Offsets by fragment id."""

ADDRESS = "_rowaddr"
ROW_ID = "_rowid"
_BATCH: Final = 1 << 14
"""Rows that a condition is applied to at a time."""
_FOLDED_AT_ONCE: Final = 1 << 14
"""Addresses that are kept as they came before they become part of a bitmap."""


def dataset_at(access: TableAccess, manifest: Manifest) -> LanceDataset:
    """pylance's handle on a version whose deletion files were looked at first."""
    check_deletions(access, manifest)
    return open_dataset(access, manifest.version)


class Addresses:
    """Collects row addresses from batches as they go by, as bitmaps: many rows take little memory."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint64]] = []
        self._waiting = 0
        self._folded: dict[int, BitMap] = {}
        self._count = 0

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        # Copied: a column of a batch can keep all of its columns in memory.
        part = np.array(column.to_numpy(), np.uint64)
        self._parts.append(part)
        self._count += len(part)
        self._waiting += len(part)
        if self._waiting >= _FOLDED_AT_ONCE:
            self._fold()

    def __len__(self) -> int:
        return self._count

    def by_fragment(self) -> dict[int, BitMap]:
        """The offsets in each fragment."""
        self._fold()
        return dict(sorted(self._folded.items()))

    def _fold(self) -> None:
        if not self._waiting:
            return
        every = np.concatenate(self._parts)
        self._parts, self._waiting = [], 0
        if (every[1:] < every[:-1]).any():  # a scan gives them in order
            every.sort()
        offsets = offsets_in(every)
        fragments = (every >> np.uint64(32)).astype(np.uint32)
        starts = np.flatnonzero(fragments[1:] != fragments[:-1]) + 1
        numbers = fragments[np.concatenate([[0], starts])]
        for number, part in zip(numbers.tolist(), np.split(offsets, starts), strict=True):
            found = bitmap_of(part)
            self._folded[number] = self._folded[number] | found if number in self._folded else found


class RowIdColumn:
    """Collects row ids from batches as they go by, in their order."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]

    def add(self, column: pa.Array) -> None:
        self._parts.append(np.array(column.to_numpy(), np.uint64))

    def in_order(self) -> npt.NDArray[np.uint64]:
        return np.concatenate(self._parts)


def offsets_in(addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Where rows are in their fragments."""
    return addresses.astype(np.uint32)  # drops the upper half


def live_places(access: TableAccess, manifest: Manifest, number: int, offsets: npt.NDArray[np.uint32]) -> list[int]:
    """Where live rows of a fragment are among those that are left, which is how pylance counts when it looks rows up there."""
    fragment = fragments_of(manifest, [number])[number]
    deleted = DeletionVectors(access.store, access.runtime.random, access.open_base).of(fragment, manifest.base_paths)
    return [offset - deleted.rank(offset) for offset in offsets.tolist()] if deleted else offsets.tolist()


def bitmap_of(offsets: npt.NDArray[np.uint32]) -> BitMap:
    """Other than from an array of C, pyroaring takes numbers one by one."""
    return BitMap(array("I", offsets.tobytes()))


def matching_rows(access: TableAccess, manifest: Manifest, where: str) -> dict[int, BitMap]:
    """The live rows of a version that a condition holds for."""
    found = Addresses()
    dataset = dataset_at(access, manifest)
    sql = condition(where, dataset.schema)
    some = fragments_for(access, manifest, dataset, where)
    with lance_errors(access, "find rows", manifest.version):
        scanner = dataset.scanner(columns=[], filter=sql, fragments=some, with_row_address=True, batch_size=_BATCH, strict_batch_size=True)
        for batch in scanner.to_batches():
            found.add(batch.column(ADDRESS))
    return found.by_fragment()


def fragments_for(access: TableAccess, manifest: Manifest, dataset: LanceDataset, where: str | None) -> list[LanceFragment] | None:
    """The fragments that a condition can hold for, as pylance has them; None for all."""
    kept = kept_fragments(access, manifest, where)
    return None if kept is None else [fragment for number in kept if (fragment := dataset.get_fragment(number)) is not None]


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
        return [fragment.deletion_file.path(fragment.id) for fragment in self.updated if fragment.deletion_file is not None]


def strike_out(access: TableAccess, manifest: Manifest, rows: Rows) -> Struck:
    """Writes deletion files for rows of a version that are live in it."""
    vectors = DeletionVectors(access.store, access.runtime.random, access.open_base, access.digests.note)
    updated, removed = [], []
    for number, fragment in fragments_of(manifest, rows).items():
        deleted = vectors.of(fragment, manifest.base_paths) | rows[number]
        if len(deleted) == fragment.physical_rows:
            removed.append(number)
        else:
            updated.append(replace(fragment, deletion_file=vectors.write(fragment, deleted, manifest.version)))
    return Struck(tuple(updated), tuple(removed), rows)


def discard_files(access: TableAccess, paths: Iterable[str], failure: TiltyardError) -> None:
    """Removes files no version will ever name, unless the failure leaves that open. What cannot be removed is cleanup's."""
    if not isinstance(failure, OutcomeUnknown):
        for path in paths:
            with suppress(StorageError):
                access.store.delete(path)


_AT_ONCE: Final = 16
"""Requests under way at one time; where each takes a while, a thousand files would take long one by one."""


def check_deletions(access: TableAccess, manifest: Manifest) -> None:
    """Reads the deletion files of a version that were not read before; compares all its files with their digests, if that was asked for.

    Raises:
        CorruptTable: one does not hold what the manifest says, or is not what was written.
        NotFound: one is missing.
    """
    if access.verify == "read":
        verify_version(access, manifest)
    pending = [found for found in _deletions(manifest.fragments.with_deletions()) if _key(*found) not in access.sound_deletions]
    if not pending:
        return
    stores = _stores(access, manifest.base_paths, {deletion.base_id for _, deletion in pending})
    with ThreadPoolExecutor(min(_AT_ONCE, len(pending))) as pool:
        for done in pool.map(lambda found: _read(found[0], found[1], stores), pending):
            access.sound_deletions.add(_key(*done))


def _deletions(fragments: Iterable[DataFragment]) -> Iterator[tuple[DataFragment, DeletionFile]]:
    for fragment in fragments:
        if fragment.deletion_file is not None:
            yield fragment, fragment.deletion_file


def _key(fragment: DataFragment, deletion: DeletionFile) -> tuple[int, DeletionFile, int]:
    """All that the content was compared with."""
    return fragment.id, deletion, fragment.physical_rows


def _stores(access: TableAccess, bases: Iterable[BasePath], needed: set[int | None]) -> dict[int | None, tuple[ObjectStore, bool]]:
    """The store of each base, and whether files lie in the usual directories there."""
    stores: dict[int | None, tuple[ObjectStore, bool]] = {None: (access.store, True)}
    for base in bases:
        if base.id in needed:
            stores[base.id] = access.open_base(base), base.is_dataset_root
    return stores


def _read(
    fragment: DataFragment, deletion: DeletionFile, stores: dict[int | None, tuple[ObjectStore, bool]]
) -> tuple[DataFragment, DeletionFile]:
    store, is_root = stores[deletion.base_id]
    path = deletion.path(fragment.id)
    read_deletions(store, path if is_root else path.partition("/")[2], fragment, deletion)
    return fragment, deletion


def read_deletions(store: ObjectStore, path: str, fragment: DataFragment, deletion: DeletionFile) -> BitMap:
    """The offsets in one file, compared with all that the manifest says of them, as far as its writer could count."""
    counted = not fragment.is_legacy
    return decode_deletions(
        store.get(path),
        bitmap=deletion.bitmap,
        physical_rows=fragment.physical_rows if counted else MAX_FRAGMENT_ROWS,
        expected_count=deletion.deleted_rows if counted else None,
        source=path,
    )
