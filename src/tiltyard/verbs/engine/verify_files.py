"""Compares files with the digests that were kept when they were written.

A digest is found in the transaction that brought its file, in the table or in the base where the file lies, and in records that a cleanup
leaves of the transactions it removes. Files that others wrote have none: they are told apart, not called damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.errors import CorruptTable
from tiltyard.format.digests import Digest, file_key
from tiltyard.format.fields import is_blob_v2
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.new_files import at_once, digest_of
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.digest_history import DigestHistory

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many of how many bytes were read."""


@dataclass(frozen=True, slots=True)
class FileAt:
    """A file of a version: the key of its digest, and where it lies."""

    key: str
    store: ObjectStore
    path: str
    inside: str
    """Its path below a table's root, whatever base it lies in."""
    base: BasePath | None = None
    size: int = 0

    @property
    def shown(self) -> str:
        """What a message calls it."""
        return self.path if self.base is None else f"{self.store.uri}/{self.path}"


class Bases:
    """The stores of a version's bases, each opened once."""

    def __init__(self, access: TableAccess, manifest: Manifest) -> None:
        self._access = access
        self.by_id = {base.id: base for base in manifest.base_paths}
        self._stores: dict[int, ObjectStore] = {}

    def store(self, base_id: int) -> ObjectStore:
        if base_id not in self._stores:
            self._stores[base_id] = self._access.open_base(self.by_id[base_id])
        return self._stores[base_id]

    def locate(self, inside: str, base_id: int | None, size: int = 0) -> FileAt:
        """Where a file lies that a version names.

        Raises:
            InvalidInput: the store of its base cannot be opened.
        """
        if base_id is None:
            return FileAt(inside, self._access.store, inside, inside, size=size)
        base = self.by_id[base_id]
        path = inside if base.is_dataset_root else inside.partition("/")[2]
        return FileAt(file_key(inside, base_id), self.store(base_id), path, inside, base, size)


def files_of(access: TableAccess, manifest: Manifest, fragments: Iterable[DataFragment] | None = None) -> Iterator[FileAt]:
    """The data, blob, deletion and index files of a version; of some fragments only, if they are given."""
    bases = Bases(access, manifest)
    blobs = any(map(is_blob_v2, manifest.fields))
    for fragment in manifest.fragments if fragments is None else fragments:
        for file in fragment.files:
            found = bases.locate(f"data/{file.path}", file.base_id, file.size)
            yield found
            if blobs:
                yield from _below(bases, f"data/{file.path.removesuffix('.lance')}/", file.base_id)
        deletion = fragment.deletion_file
        if deletion is not None:
            yield bases.locate(deletion.path(fragment.id), deletion.base_id)
    for index in decode_indices(manifest, f"version {manifest.version}"):
        directory = f"_indices/{index.uuid}/"
        if index.files:
            yield from (bases.locate(directory + file.path, index.base_id, file.size) for file in index.files)
        elif index.fields:
            yield from _below(bases, directory, index.base_id)


def _below(bases: Bases, directory: str, base_id: int | None) -> Iterator[FileAt]:
    there = bases.locate(directory, base_id)
    for info in there.store.list(there.path):
        yield bases.locate(directory + info.path[len(there.path) :], base_id, info.size)


def known_digests(access: TableAccess, files: Sequence[FileAt], manifest: Manifest) -> dict[str, Digest]:
    """Digests of files of a version, by key, wherever they are kept.

    Raises:
        CorruptTable: a record of digests is damaged.
    """
    inline = bool(manifest.writer_flags & Feature.NO_TRANSACTION_FILE)
    found = _history(access, None).find((file.key for file in files), inline_only=inline)
    for base in manifest.base_paths:
        missing = [file for file in files if file.base is not None and file.key not in found]
        if not missing:
            break
        if base.is_dataset_root:
            # What lies in the base is known there by its path; what lies in another one, by the number that base has there as well.
            names = {file.key: file.inside if file.base == base else file.key for file in missing}
            known = _history(access, base).find(names.values())
            found.update({key: known[name] for key, name in names.items() if name in known})
    return found


def _history(access: TableAccess, base: BasePath | None) -> DigestHistory:
    where = "" if base is None else base.path
    if where not in access.histories:
        access.histories[where] = DigestHistory(access.store if base is None else access.open_base(base))
    return access.histories[where]


# ---- comparing -------------------------------------------------------------------------------------------------------------


def damage(file: FileAt, expected: Digest) -> str | None:
    """What is wrong with a file; None if it is what was written.

    Raises:
        NotFound: it is not there.
    """
    found = digest_of(file.store, file.path)
    if found.size != expected.size:
        return f"it has {found.size} bytes, and {expected.size} were written"
    return None if found == expected else "its bytes are not those that were written: their digest differs"


def verify_version(access: TableAccess, manifest: Manifest) -> None:
    """Compares all files of a version that this place has not compared yet.

    Raises:
        CorruptTable: naming the first that is not what was written.
        NotFound: one is missing.
    """
    files = [file for file in dict.fromkeys(files_of(access, manifest)) if file.key not in access.verified]
    if not files:
        return
    known = known_digests(access, files, manifest)

    def compare(file: FileAt) -> tuple[FileAt, str | None]:
        expected = known.get(file.key)
        return file, None if expected is None else damage(file, expected)

    for file, wrong in at_once(compare, files):
        if wrong is not None:
            raise CorruptTable(file.shown, wrong)
        access.verified.add(file.key)
