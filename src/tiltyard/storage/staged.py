"""A table's store as one open transaction sees it: pinned at a version, with versions above it that nobody else sees.

What a transaction creates lies apart until all of it is published: under ``_tiltyard/staged``, where nobody looks. The transaction itself
finds it under the names that it will have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tiltyard.errors import AlreadyExists, InvalidInput, StorageError
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.storage.external import VERSIONS, ExternalStore
from tiltyard.storage.handlers import version_of
from tiltyard.storage.local import ADVICE
from tiltyard.storage.wrapper import ForwardingStore

STAGED: Final = "_tiltyard/staged/"
COLLECTED: Final = "_tiltyard/collected/"
"""Where versions wait that only a transaction of stock clients sees. They are copies: nobody else needs them."""
_TRANSACTIONS: Final = "_transactions/"


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version that only the transaction sees.

    Attributes:
        version: its number.
        path: the name under which everybody will look for it.
        staged: where its bytes wait until then.
    """

    version: int
    path: str
    staged: str
    data: bytes


class StagedStore(ForwardingStore):
    """A table's store, pinned at a version, with a transaction's own versions above it.

    Args:
        inner: the store as those see it who are in no transaction.
        transaction: its id.
        base: the version; 0 for a table that is to be made.
        base_name: what its manifest is called.
    """

    def __init__(self, inner: ObjectStore, transaction: str, base: int, base_name: str) -> None:
        super().__init__(inner)
        self.files = inner.inner if type(inner) is ExternalStore else inner
        """Where all lies that no ledger decides about, which is all but versions."""
        self.ordered = True  # the newest name comes first, so that finding the head costs nothing
        self._transaction = transaction
        self._count = 0
        self._base_name = base_name
        self._left: list[str] = []
        # What is made again on another version says the same of itself, and its files are those that were flushed before.
        self._announced: set[str] = set()
        self._synced: set[str] = set()
        self.lock = threading.RLock()
        self.base = base
        self.private: dict[str, StagedVersion] = {}
        self.detached: dict[str, str] = {}
        """Copies for pylance of versions of ours: their paths, by where the version is staged."""

    # ---- what the transaction sees ---------------------------------------------------------------------------------------------

    def names(self, prefix: str) -> Iterator[str]:
        if prefix != VERSIONS:
            return self.files.names(prefix)
        own = sorted(path[len(VERSIONS) :] for path in self.private)
        return chain(own, [self._base_name], self._older()) if self.base else iter(own)

    def _older(self) -> Iterator[str]:
        """Names of versions below the base, which are looked for only if somebody wants them."""
        for name in sorted(self.inner.names(VERSIONS)):
            with suppress(InvalidInput):
                if version_of(name) < self.base:  # detached versions have higher numbers than any other
                    yield name

    def put(self, path: str, data: bytes) -> None:
        if path == ADVICE or path in self._announced:  # nobody else may hear of a version that may never be
            return
        self.files.put(path, data)
        if path.startswith(_TRANSACTIONS):
            self._announced.add(path)

    def delete(self, path: str) -> None:
        self._announced.discard(path)
        self.files.delete(path)

    def sync(self, paths: Iterable[str]) -> None:
        new = [path for path in paths if path not in self._synced]
        self.files.sync(new)
        self._synced.update(new)

    def trust(self, paths: Iterable[str]) -> None:
        """Takes files for flushed: whoever wrote them did that."""
        self._synced.update(paths)

    def get(self, path: str) -> bytes:
        own = self.private.get(path)
        return self.inner.get(path) if own is None else own.data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        own = self.private.get(path)
        if own is None:
            return (self.inner if path.startswith(VERSIONS) else self.files).get_range(path, start, length)
        first = max(len(own.data) + start, 0) if start < 0 else start
        return own.data[first : first + length]

    def head(self, path: str) -> ObjectInfo:
        own = self.private.get(path)
        return self.inner.head(path if own is None else own.staged)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if not path.startswith(VERSIONS):
            self.inner.put_if_absent(path, data)
            return
        version = version_of(path)
        with self.lock:
            if path in self.private or version <= self.base:
                raise AlreadyExists(f"{path!r} exists already.", name=path)
            self._count += 1
            staged = f"{STAGED}{self._transaction}/{self._count}-{path[len(VERSIONS) :]}"
            self.files.put(staged, data)
            self.private[path] = StagedVersion(version, path, staged, data)

    # ---- what becomes of it ----------------------------------------------------------------------------------------------------

    def own(self) -> list[StagedVersion]:
        """The transaction's own versions, lowest first."""
        return sorted(self.private.values(), key=lambda staged: staged.version)

    def move_to(self, base: int, base_name: str) -> None:
        """Stands on another version, with nothing of its own above it yet."""
        with self.lock:
            self._forget()
            self.base, self._base_name = base, base_name

    def _forget(self) -> None:
        self._left += [own.staged for own in self.private.values()]
        self.private = {}

    def clear(self, *, published: bool) -> None:
        """Removes what only this transaction needed. What cannot be removed the sweeper finds by its name.

        Args:
            published: whether the versions are committed; their staged bytes then go when they have their final names, not here.
        """
        with self.lock:
            if not published:
                self._forget()
            paths = [*self._left, *self.detached.values()]
            self._left, self.detached = [], {}
        remove(self.inner, paths)


def remove(store: ObjectStore, paths: Iterable[str]) -> None:
    """Deletes files that nobody needs, as far as the store lets us. Of a directory, ending in a slash, all files."""
    for path in paths:
        with suppress(StorageError):
            for file in [path + name for name in store.names(path)] if path.endswith("/") else [path]:
                store.delete(file)


class StagedHandler:
    """Creates versions in a ``StagedStore``. Whether the store can create a name once does not matter: the catalog decides."""

    name = "staged"
    needs_conditional_put = False

    def __repr__(self) -> str:
        return "StagedHandler()"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        store.put_if_absent(path, data)
