"""A table inside an open transaction: versions that only the transaction sees, on top of one that stays where it is.

Verbs commit as always, but what they create lies apart until the whole transaction is published: under ``_tiltyard/staged``, where
nobody looks, and, for pylance to read one's own writes, as detached versions, which have numbers no table counts up to.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, cast

from tiltyard.catalog.lake_values import VersionStep
from tiltyard.catalog.marks import OWNER_FILE, Marks
from tiltyard.errors import AlreadyExists, NotFound, StorageError, TiltyardError, UnsupportedFeature
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file, encode_manifest_file
from tiltyard.format.names import HINT_PATH, Scheme, detached_name, manifest_name, parse_manifest_name
from tiltyard.interfaces import CommitHandler, ObjectInfo, ObjectStore
from tiltyard.storage.handlers import ConditionalPutHandler
from tiltyard.storage.wrapper import ForwardingStore
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.key_filter import WrittenKeys
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS
from tiltyard.transaction.new_files import LOOK_AFTER, check_there, new_files
from tiltyard.transaction.operations import Append, CreateIndex, Operation, ReserveFragments, Rewrite, UpdateBases, UpdateMemWalState
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import without_marks
from tiltyard.verbs.engine.access import WRITER, TableAccess

STAGED: Final = "_tiltyard/staged/"
_DETACHED_BIT: Final = 1 << 63

UPKEEP: Final = (Rewrite, CreateIndex, ReserveFragments, UpdateMemWalState, UpdateBases)
"""Operations that leave rows and schema as they are."""


@dataclass(frozen=True, slots=True)
class _Staged:
    version: int
    staged: str
    data: bytes


class StagingStore(ForwardingStore):
    """A table's store as one transaction sees it: pinned at a version, with the transaction's own ones above it."""

    def __init__(self, inner: ObjectStore, transaction: str, base: int, scheme: Scheme) -> None:
        super().__init__(inner)
        self.ordered = True  # the newest name comes first, so that finding the head costs nothing
        self._transaction = transaction
        self._scheme = scheme
        self._count = 0
        self._lock = threading.RLock()
        self.base = base
        self.private: dict[str, _Staged] = {}
        self._detached: dict[str, int] = {}
        self._left: list[str] = []

    # ---- what the transaction sees ---------------------------------------------------------------------------------------------

    def names(self, prefix: str) -> Iterator[str]:
        if prefix != VERSIONS:
            return self.inner.names(prefix)
        return self._version_names()

    def _version_names(self) -> Iterator[str]:
        own = sorted(path[len(VERSIONS) :] for path in self.private)
        base = manifest_name(self.base, self._scheme) if self.base else ""
        yield from own
        if not base:
            return
        yield base
        for name in sorted(self.inner.names(VERSIONS)):
            parsed = parse_manifest_name(name)
            if parsed is not None and not parsed.detached and parsed.version < self.base:
                yield name

    def put(self, path: str, data: bytes) -> None:
        if path != HINT_PATH:  # nobody else may hear of a version that may never be
            self.inner.put(path, data)

    def get(self, path: str) -> bytes:
        own = self.private.get(path)
        return self.inner.get(path) if own is None else own.data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        own = self.private.get(path)
        if own is None:
            return self.inner.get_range(path, start, length)
        first = max(len(own.data) + start, 0) if start < 0 else start
        return own.data[first : first + length]

    def head(self, path: str) -> ObjectInfo:
        own = self.private.get(path)
        return self.inner.head(path if own is None else own.staged)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if not path.startswith(VERSIONS):
            return self.inner.put_if_absent(path, data)
        parsed = parse_manifest_name(path[len(VERSIONS) :])
        assert parsed is not None
        with self._lock:
            if path in self.private or parsed.version <= self.base:
                raise AlreadyExists(f"{path!r} exists already.", name=path)
            self._count += 1
            staged = f"{STAGED}{self._transaction}/{self._count}-{path[len(VERSIONS) :]}"
            self.inner.put(staged, data)
            self._scheme = parsed.scheme
            self.private[path] = _Staged(parsed.version, staged, data)
        return None

    # ---- what becomes of it ----------------------------------------------------------------------------------------------------

    def lance_version(self, version: int) -> int:
        """The number under which pylance can open a version: its own, or that of a detached one made for the purpose."""
        path = VERSIONS + manifest_name(version, self._scheme)
        with self._lock:
            own = self.private.get(path)
            if own is None:
                return version
            number = self._detached.get(own.staged)
            if number is None:
                number = detached_number(own.staged)
                file = decode_manifest_file(own.data, source=path, version=version)
                data, _ = encode_manifest_file(replace(file.manifest, version=number), file.transaction)
                self.inner.put(VERSIONS + detached_name(number), data)
                self._detached[own.staged] = number
            return number

    def steps(self, recorded: Sequence[Recorded]) -> tuple[VersionStep, ...]:
        """The versions to be published, lowest first, given the commits that made them."""
        own = sorted(self.private.items(), key=lambda one: one[1].version)
        return tuple(
            VersionStep(
                staged.version, path, staged.staged, made.transaction.uuid, made.operation.name, not isinstance(made.operation, UPKEEP)
            )
            for (path, staged), made in zip(own, recorded, strict=True)
        )

    def move_to(self, base: int) -> None:
        """Stands on another version, with nothing of its own above it yet."""
        with self._lock:
            self._forget()
            self.base = base

    def _forget(self) -> None:
        self._left += [own.staged for own in self.private.values()]
        self.private = {}

    def clear(self, *, published: bool) -> None:
        """Removes what only this transaction needed. What cannot be removed the sweeper finds by its name.

        Args:
            published: whether the versions are committed; their staged bytes then go when they have their final names, not here.
        """
        with self._lock:
            if not published:
                self._forget()
            paths = [*self._left, *(VERSIONS + detached_name(number) for number in self._detached.values())]
            self._left, self._detached = [], {}
        for path in paths:
            with suppress(StorageError):
                self.inner.delete(path)


def detached_number(staged: str) -> int:
    """The number of the detached version made of a staged one, which can be told from its place alone."""
    return int.from_bytes(hashlib.sha256(staged.encode()).digest()[:8], "big") | _DETACHED_BIT


@dataclass(frozen=True, slots=True)
class Recorded:
    """A commit inside the transaction, with all that is needed to make it again on another version.

    Attributes:
        transaction: as it was committed, carried over whatever came in between.
        read: the version it stands on.
    """

    transaction: Transaction
    read: ManifestFile
    scheme: Scheme
    keys: WrittenKeys | None = None
    reuse: Any = None
    at: float = 0.0
    """When it was committed here, on the monotonic clock."""

    @property
    def operation(self) -> Operation:
        return self.transaction.operation


@dataclass(frozen=True, slots=True)
class RecordingCommitter(Committer):
    """A commit loop that remembers what it committed."""

    recorded: list[Recorded] = field(default_factory=list)

    def commit(
        self, transaction: Transaction, read: ManifestFile, scheme: Scheme, policy: RetryPolicy, **more: Any
    ) -> tuple[CommitResult, ManifestFile]:
        done, file = Committer.commit(self, transaction, read, scheme, policy, **more)
        settled = self.log.transaction_of(file)
        # What it was carried over is part of what it says now, and must not be taken for its own.
        below = file.manifest.version - 1
        ground = read if read.manifest.version == below else self.log.load(below, scheme)
        at = self.runtime.clock.monotonic()
        self.recorded.append(Recorded(without_marks(settled), ground, scheme, more.get("keys"), more.get("reuse"), at))
        return done, file

    def create_table(
        self, transaction: Transaction, creation: Any, scheme: Scheme, *, begun: float | None = None
    ) -> tuple[CommitResult, ManifestFile]:
        done, file = Committer.create_table(self, transaction, creation, scheme, begun=begun)
        self.recorded.append(Recorded(transaction, file, scheme, at=self.runtime.clock.monotonic()))
        return done, file


@dataclass(frozen=True)
class StagedAccess(TableAccess):
    """Where a table lives, for one transaction."""

    @property
    def staging(self) -> StagingStore:
        return cast(StagingStore, self.store)

    @cached_property
    def committer(self) -> RecordingCommitter:
        return RecordingCommitter(self.log, self.handler, self.runtime, WRITER, self.trusted, self.open_base, self.stamp, self.digests)

    def lance_version(self, version: int) -> int:
        return self.staging.lance_version(version)

    def ensure_safe(self) -> None:
        """Whether the store can create a name once does not matter here: the catalog decides."""

    def on_branch(self, branch: str | None) -> TableAccess:
        if branch == self.branch:
            return self
        raise UnsupportedFeature(
            "A table's own branches cannot be used inside a lake's transaction.", feature="branches in a transaction", writing=True
        )

    def replay(self, base: ManifestFile, head: int) -> None:
        """Makes the transaction's commits again on a newer version, by the rules for one table. Data files are used as they are.

        Raises:
            ConflictError: the rules do not allow it.
        """
        recorded = list(self.committer.recorded)
        self.committer.recorded.clear()
        self.staging.move_to(head)
        try:
            for commit in recorded:
                read = base if isinstance(commit.operation, Append) else commit.read
                again = replace(commit.transaction, read_version=read.manifest.version)
                self.committer.commit(again, read, commit.scheme, RetryPolicy(), keys=commit.keys, reuse=commit.reuse)
        except TiltyardError:
            self.committer.recorded[:] = recorded  # all of it is still to be thrown away
            raise
        kept = {commit.transaction.file_name for commit in self.committer.recorded}
        for name in {commit.transaction.file_name for commit in recorded} - kept:
            with suppress(StorageError):
                self.store.delete(TRANSACTIONS + name)

    def can_replay(self, *, blind_only: bool) -> bool:
        """Whether the commits do not build on one another, so that the rules for one commit hold for each."""
        operations = [commit.operation for commit in self.committer.recorded]
        if all(isinstance(operation, Append) for operation in operations):
            return True
        return len(operations) == 1 and not blind_only

    def new_files(self) -> Sequence[str]:
        """All that the transaction wrote into the table's directory, apart from versions."""
        found: dict[str, None] = {}
        for commit in self.committer.recorded:
            base: Manifest | None = commit.read.manifest if commit.transaction.read_version else None
            found.update(dict.fromkeys(new_files(commit.operation, base)))
            found[TRANSACTIONS + commit.transaction.file_name] = None
        return list(found)

    def check_files(self) -> None:
        """Makes sure that what the transaction wrote is there, before the catalog names it.

        Raises:
            StorageError: a file is gone.
        """
        recorded = self.committer.recorded
        if recorded:
            ask = self.runtime.clock.monotonic() - min(commit.at for commit in recorded) >= LOOK_AFTER
            check_there(self.staging.inner, [path for path in self.new_files() if not path.endswith("/")], "transaction", ask=ask)

    def throw_away(self) -> None:
        """Removes everything the transaction wrote, after it was certain that it is not committed."""
        store = self.staging.inner
        for path in self.new_files():
            with suppress(StorageError):
                for file in [path + name for name in store.names(path)] if path.endswith("/") else [path]:
                    store.delete(file)
        self.staging.clear(published=False)
        if not self.staging.base:
            remove_owner(self)


def write_owner(access: TableAccess, marks: Marks, line: str) -> None:
    """Says whose a new table's directory is, before anything else is in it."""
    access.store.put(OWNER_FILE, marks.owner(access.runtime.clock.now().isoformat(), line).to_bytes())


def remove_owner(access: TableAccess) -> None:
    """Takes that back where nothing else is left; whatever is left is somebody's, and cleanup has to know whose."""
    with suppress(StorageError, NotFound):
        if [info.path for info in access.store.list("")] == [OWNER_FILE]:
            access.store.delete(OWNER_FILE)


def staged_access(access: TableAccess, transaction: str, base: int, scheme: Scheme) -> StagedAccess:
    """The same table's place, for one transaction, pinned at a version; 0 for a table that is to be made."""
    facts: Mapping[str, Any] = {name: getattr(access, name) for name in TableAccess.__dataclass_fields__}
    handler: CommitHandler = ConditionalPutHandler()
    return StagedAccess(**{**facts, "store": StagingStore(access.store, transaction, base, scheme), "handler": handler})
