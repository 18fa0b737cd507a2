"""Digests of the files a transaction brings: taken before it is committed, kept in its properties.

Who takes them is the caller's business: here it is only said of which files. Whoever commits files that others made (``Table.commit``)
knows nothing of how they came to be, and takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

import xxhash

from tiltyard.errors import NotFound, StorageError
from tiltyard.format.digests import DIGESTS, Digest, decode_digests, digest, encode_digests, file_key
from tiltyard.format.fields import has_blobs
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFile, DataFragment, IndexFile
from tiltyard.interfaces import ObjectStore, SeesFiles, SendsAtOnce, ask_at_once
from tiltyard.transaction.footprint import fragments_of
from tiltyard.transaction.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Rewrite,
    Update,
)
from tiltyard.transaction.transaction import Transaction


class Digests(Protocol):
    """Who knows the digests of files that were written for a table."""

    def note(self, path: str, data: bytes) -> None:
        """Tells of a file below the table's root that was just written."""

    def of(self, paths: Sequence[str], *, blobs: bool) -> Mapping[str, Digest]:
        """Digests of files; of all below one for a path that ends in ``/``. With ``blobs``, also of the blobs beside data files."""

    def noted(self, keys: Iterable[str]) -> Mapping[str, Digest]:
        """Digests of files in bases, as far as their writer told of them."""


class NoDigests:
    """Takes none."""

    def note(self, path: str, data: bytes) -> None:
        pass

    def of(self, paths: Sequence[str], *, blobs: bool) -> Mapping[str, Digest]:
        return {}

    def noted(self, keys: Iterable[str]) -> Mapping[str, Digest]:
        return {}


NO_DIGESTS: Final = NoDigests()


class Taken:
    """The digests of one commit, each taken once however often the race is run."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._known: dict[str, Digest] = {}
        self._asked: set[str] = set()

    def added_to(self, transaction: Transaction, base: Manifest | None) -> Transaction:
        """The transaction with the digests of the files that it brings on top of ``base``."""
        operation = transaction.operation
        stated = transaction.properties.get(DIGESTS)
        if stated is not None:  # it is made again on another version, with the files it had
            self._known.update(decode_digests(stated, "the transaction"))
        paths = dict.fromkeys(new_files(operation, base))
        missing = [path for path in paths if path not in self._known and path not in self._asked]
        self._asked.update(missing)
        if missing:
            self._known.update(self._digests.of(missing, blobs=_has_blobs(operation, base)))
        beside = dict.fromkeys(_in_bases(operation))
        self._known.update(self._digests.noted(key for key in beside if key not in self._known))
        known = {key: found for key, found in self._known.items() if key in beside or _brought_by(key) in paths or key in paths}
        if not known:
            return transaction
        return replace(transaction, properties={**transaction.properties, DIGESTS: encode_digests(known)})


def _has_blobs(operation: Operation, base: Manifest | None) -> bool:
    fields = (*(base.fields if base is not None else ()), *(operation.schema if isinstance(operation, Overwrite | Merge) else ()))
    return has_blobs(fields)


def _brought_by(key: str) -> str:
    """The path that an operation names and that a file comes with: the data file of a blob, the directory of an index."""
    top, _, rest = key.partition("/")
    return f"data/{rest.partition('/')[0]}.lance" if top == "data" else f"{top}/{rest.partition('/')[0]}/"


def _in_bases(operation: Operation) -> list[str]:
    """Keys of data files that an operation puts into bases."""
    fragments = operation.fragments if isinstance(operation, Append | Overwrite) else ()
    return [file_key(f"data/{file.path}", file.base_id) for fragment in fragments for file in fragment.files if file.base_id is not None]


LOOK_AFTER: Final = 600.0
"""Seconds after which new files are looked for before the commit even where each costs a request."""


def new_files(operation: Operation, base: Manifest | None) -> list[str]:
    """Files that a version would name and the one below it does not; for indices that do not list theirs, the directory, with a ``/``."""
    new = (path for fragment in _added(operation) for path in (*_data_files(fragment.files), *_deletions(fragment)))
    changed = _of_changed(_changed(operation), base)
    return list(dict.fromkeys((*new, *changed, *_of_columns(operation), *_of_indices(operation))))


def check_there(store: ObjectStore, paths: Sequence[str], operation: str, *, ask: bool) -> None:
    """Refuses to commit files that are not there any more: a cleanup whose clock is days ahead takes new files for orphans.

    Args:
        store: where they lie.
        paths: below the table's root.
        operation: what is to be committed.
        ask: whether they are worth a request each, where it takes one.

    Raises:
        StorageError: naming the first that is gone.
    """
    missing: Callable[[Sequence[str]], Sequence[str] | None] | None = getattr(store, "missing", None)  # of a ``SeesFiles``
    gone = missing(paths) if missing is not None else None
    if gone is None:
        gone = [path for path in paths if is_missing(store, path)] if ask else []
    if gone:
        others = f" and {len(gone) - 1} others" if len(gone) > 1 else ""
        raise StorageError(
            f"{gone[0]}{others}, written for this {operation}, were deleted before the commit, as a cleanup does with orphans.",
            name=gone[0],
            advice="Nothing was committed. Check the clock of the machine that runs cleanup, then re-execute the operation.",
        )


def is_missing(store: ObjectStore, path: str) -> bool:
    """Whether a file is certainly not there."""
    gone = store.missing([path]) if isinstance(store, SeesFiles) else None
    if gone is not None:
        return bool(gone)
    try:
        store.head(path)
    except NotFound:
        return True
    return False


def _added(operation: Operation) -> list[DataFragment]:
    """Fragments that no version has yet. Most have no id, and must not be taken for the one whose id is 0."""
    if isinstance(operation, Append | Overwrite):
        return [*operation.fragments]
    if isinstance(operation, Update):
        return [*operation.new_fragments]
    if isinstance(operation, Rewrite):
        return [fragment for group in operation.groups for fragment in group.new_fragments]
    return []


def _changed(operation: Operation) -> list[DataFragment]:
    """New states of fragments that are there."""
    if isinstance(operation, Delete | Update):
        return [*operation.updated_fragments]
    return [*operation.fragments] if isinstance(operation, Merge) else []


def _of_changed(fragments: list[DataFragment], base: Manifest | None) -> Iterator[str]:
    known = fragments_of(base, {fragment.id for fragment in fragments}) if base is not None and fragments else {}
    for fragment in fragments:
        before = known.get(fragment.id)
        # By name: of a file that stays, an operation may well say other things than before.
        there = {*_data_files(before.files), *_deletions(before)} if before is not None else set()
        yield from (path for path in (*_data_files(fragment.files), *_deletions(fragment)) if path not in there)


def _deletions(fragment: DataFragment) -> tuple[str, ...]:
    file = fragment.deletion_file
    return (file.path(fragment.id),) if file is not None and file.base_id is None else ()


def _data_files(files: Iterable[DataFile]) -> Iterator[str]:
    return (f"data/{file.path}" for file in files if file.base_id is None)


def _of_columns(operation: Operation) -> Iterator[str]:
    return (
        _data_files(replacement.new_file for replacement in operation.replacements) if isinstance(operation, DataReplacement) else iter(())
    )


def _of_indices(operation: Operation) -> Iterator[str]:
    if isinstance(operation, CreateIndex):
        for index in operation.new_indices:
            if index.base_id is None and index.fields:
                yield from _index_files(index.uuid, index.files)
    if isinstance(operation, Rewrite):
        for mapped in operation.rewritten_indices:
            yield from _index_files(mapped.new_id, mapped.files)


def _index_files(uuid: str, files: tuple[IndexFile, ...]) -> Iterator[str]:
    directory = f"_indices/{uuid}/"
    return (directory + file.path for file in files) if files else iter((directory,))


T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 8
"""Files that are read at a time."""
_FEW: Final = 2
"""So few files are read one after the other: to start threads takes longer than to hash a small one."""
_MOST_NOTED: Final = 50_000
_LOCAL_PART: Final = 1024**2
"""Fits the processor's cache, so that what was read is hashed from there."""
_REMOTE_PART: Final = 16 * 1024**2
"""Where each request takes a while, fewer of them."""
_PARTS_AT_ONCE: Final = 4
"""Parts of one file that are read at a time."""


def is_remote(store: ObjectStore) -> bool:
    """Whether a read goes over the network."""
    return "://" in store.uri


def digest_of(store: ObjectStore, path: str) -> Digest:
    """Reads a file in parts, for its digest.

    Raises:
        NotFound: there is none.
        StorageError: it could not be read.
    """
    part = _REMOTE_PART if is_remote(store) else _LOCAL_PART
    found, size = xxhash.xxh3_128(), 0
    while True:
        data = store.get_range(path, size, part)
        found.update(data)
        size += len(data)
        if len(data) < part:
            return Digest(size, found.hexdigest())
        if isinstance(store, SendsAtOnce):  # a long one: the rest is worth a question for its size
            return _digest_from(store, path, part, found)


def _digest_from(store: ObjectStore, path: str, part: int, found: xxhash.xxh3_128) -> Digest:
    """The digest of a file whose first part was read: the others several at a time."""
    size = store.head(path).size
    starts = range(part, size, part)
    for batch in (starts[place : place + _PARTS_AT_ONCE] for place in range(0, len(starts), _PARTS_AT_ONCE)):
        for data in ask_at_once(store, [partial(store.get_range, path, start, part) for start in batch]):
            found.update(data)
    return Digest(size, found.hexdigest())


def at_once(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Does work on several items at a time, where there are several."""
    if len(items) <= _FEW:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="digests") as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class FileDigests:
    """The digests of a table's new files: noted by whoever has the bytes, read back otherwise. Threads may share one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._noted: dict[str, Digest] = {}
        self._lock = threading.Lock()

    def note(self, path: str, data: bytes) -> None:
        self.remember({path: digest(data)})

    def remember(self, digests: Mapping[str, Digest]) -> None:
        """Takes over digests of files by ``file_key``, such as those that came with a piece."""
        with self._lock:
            self._noted.update(digests)
            for key in list(self._noted)[: max(len(self._noted) - _MOST_NOTED, 0)]:
                del self._noted[key]

    def noted(self, keys: Iterable[str]) -> dict[str, Digest]:
        with self._lock:
            return {key: self._noted[key] for key in keys if key in self._noted}

    def of(self, paths: Sequence[str], *, blobs: bool) -> dict[str, Digest]:
        wanted = [*self._expanded(paths), *(self._blobs_beside(paths) if blobs else ())]
        found = self.noted(wanted)
        for read in at_once(self._read, [path for path in wanted if path not in found]):
            found.update(read)
        return found

    def _expanded(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if path.endswith("/"):
                yield from (info.path for info in self._store.list(path))
            else:
                yield path

    def _blobs_beside(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if path.startswith("data/"):
                directory = path.removesuffix(".lance") + "/"
                yield from (directory + name for name in self._store.names(directory))

    def _read(self, path: str) -> dict[str, Digest]:
        try:
            return {path: digest_of(self._store, path)}
        except NotFound:
            return {}  # whether the files of a commit are there is another question, asked elsewhere
