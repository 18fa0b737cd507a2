"""Deletion files are looked at before pylance reads them: it believes what they claim, and some claims end the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyroaring import BitMap

from tiltyard.format.codec import MAX_FRAGMENT_ROWS
from tiltyard.format.deletions import decode_deletions
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFragment, DeletionFile
from tiltyard.interfaces import ObjectStore
from tiltyard.verbs.place import Place
from tiltyard.verbs.verify import verify_version

_AT_ONCE: Final = 16
"""Requests under way at one time; where each takes a while, a thousand files would take long one by one."""


def check_deletions(place: Place, manifest: Manifest) -> None:
    """Reads the deletion files of a version that were not read before; compares all its files with their digests, if that was asked for.

    Raises:
        CorruptTable: one does not hold what the manifest says, or is not what was written.
        NotFound: one is missing.
    """
    if place.verify == "read":
        verify_version(place, manifest)
    pending = [found for found in _deletions(manifest.fragments.with_deletions()) if _key(*found) not in place.sound_deletions]
    if not pending:
        return
    stores = _stores(place, manifest.base_paths, {deletion.base_id for _, deletion in pending})
    with ThreadPoolExecutor(min(_AT_ONCE, len(pending))) as pool:
        for done in pool.map(lambda found: _read(found[0], found[1], stores), pending):
            place.sound_deletions.add(_key(*done))


def _deletions(fragments: Iterable[DataFragment]) -> Iterator[tuple[DataFragment, DeletionFile]]:
    for fragment in fragments:
        if fragment.deletion_file is not None:
            yield fragment, fragment.deletion_file


def _key(fragment: DataFragment, deletion: DeletionFile) -> tuple[str, int | None, int, int]:
    """All that the content was compared with."""
    return deletion.path(fragment.id), deletion.base_id, deletion.deleted_rows, fragment.physical_rows


def _stores(place: Place, bases: Iterable[BasePath], needed: set[int | None]) -> dict[int | None, tuple[ObjectStore, bool]]:
    """The store of each base, and whether files lie in the usual directories there."""
    stores: dict[int | None, tuple[ObjectStore, bool]] = {None: (place.store, True)}
    for base in bases:
        if base.id in needed:
            stores[base.id] = place.open_base(base), base.is_dataset_root
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
