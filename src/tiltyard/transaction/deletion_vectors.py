"""Deletion vectors as a commit needs them: read from the files that versions name, and written where two of them are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.deletions import decode_deletions, encode_deletions
from tiltyard.format.values import BasePath, DataFragment, DeletionFile
from tiltyard.interfaces import ObjectStore, Randomness

MAX_FILE_ID: Final = 2**63
"""Of a file's random number, so that no reader has to doubt its sign."""


def base_out_of_reach(base: BasePath) -> ObjectStore:
    """Stands where nobody said how to open a base."""
    raise UnsupportedFeature(
        f"A deletion file is in base {base.id}, which cannot be opened here.", feature="deletions in a base", writing=True
    )


@dataclass(frozen=True, slots=True)
class DeletionVectors:
    """The deleted offsets of fragments. What was read once is remembered: a deletion file never changes."""

    store: ObjectStore
    random: Randomness
    open_base: Callable[[BasePath], ObjectStore] = base_out_of_reach
    note: Callable[[str, bytes], object] = lambda path, data: None
    """Is told of each file that was written."""
    _known: dict[tuple[str, int | None], BitMap] = field(default_factory=dict)

    def of(self, fragment: DataFragment, bases: Iterable[BasePath] = ()) -> BitMap:
        """Offsets that are deleted in a state of a fragment.

        Raises:
            NotFound: the file it names is missing.
            CorruptTable: the file does not hold what the fragment says of it.
        """
        file = fragment.deletion_file
        if file is None:
            return BitMap()
        path = file.path(fragment.id)
        known = self._known.get((path, file.base_id))
        if known is None:
            store, name = self._where(file, path, bases)
            known = decode_deletions(
                store.get(name), bitmap=file.bitmap, physical_rows=fragment.physical_rows, expected_count=file.deleted_rows, source=path
            )
            self._known[path, file.base_id] = known
        return known

    def _where(self, file: DeletionFile, path: str, bases: Iterable[BasePath]) -> tuple[ObjectStore, str]:
        if file.base_id is None:
            return self.store, path
        base = next((base for base in bases if base.id == file.base_id), None)
        if base is None:
            raise UnsupportedFeature(f"{path} is in base {file.base_id}, which the table does not have.", feature="bases", writing=True)
        return self.open_base(base), path if base.is_dataset_root else path.partition("/")[2]

    def write(self, fragment: DataFragment, deleted: BitMap, version: int) -> DeletionFile:
        """Writes a vector that was made on top of ``version``; gives what the fragment has to name."""
        bitmap, data = encode_deletions(deleted)
        file = DeletionFile(bitmap, version, self.random.randrange(MAX_FILE_ID), len(deleted))
        path = file.path(fragment.id)
        self.store.put(path, data)
        self.note(path, data)
        self._known[path, None] = deleted
        return file


def all_rows(fragment: DataFragment) -> BitMap:
    """Every offset of the fragment, deleted or not."""
    everything = BitMap()
    everything.add_range(0, fragment.physical_rows)
    return everything
