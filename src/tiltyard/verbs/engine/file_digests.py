"""Takes the digests of files that are written for a table.

Bytes that pass through us are hashed on their way. What pylance writes it writes by itself, and is read back once before the commit: from
the page cache on a local disk, over the network from an object store. So an append that is small is written to memory first and uploaded
by us, where the table lies in one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import xxhash

from tiltyard.errors import NotFound
from tiltyard.format.digests import Digest, digest
from tiltyard.interfaces import ObjectStore

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
