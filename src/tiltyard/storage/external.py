"""Versions decided outside the store: a ledger elsewhere says who has a number, and the store follows.

A commit takes four steps: stage the bytes under a name that no reader looks at, claim the number in the ledger, give the bytes their final
name, and tell the ledger so. The claim decides. Whoever finds a claim that was not brought to its end, reader or writer, finishes it first;
so a reader who knows nothing of the ledger is at most one commit behind, and the directory alone is always a whole table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from tiltyard.errors import AlreadyExists, ContentionError, CorruptTable, NotFound, StorageError, TiltyardError, UnsafeStore, fit
from tiltyard.interfaces import CommitQueue, ObjectInfo, ObjectStore, Runtime
from tiltyard.storage.handlers import version_of
from tiltyard.storage.probe import ensure_safe
from tiltyard.storage.wrapper import ForwardingStore

_log = logging.getLogger("tiltyard.lake")

VERSIONS: Final = "_versions/"
_MANIFEST: Final = ".manifest"
_TRIES: Final = 3
"""How often a number is claimed anew after the version below it had to be finished first."""


class UnfinishedError(Exception):
    """From a ledger to its handler: an earlier version has not got its final name yet, so no later one can be claimed."""


@dataclass(frozen=True, slots=True)
class VersionClaim:
    """A version that somebody has for certain, or wants to have.

    Attributes:
        version: its number.
        path: the name under which everybody looks for it.
        staged: where its bytes wait until they are there.
        data: these bytes, where the ledger has them: what is staged, and even the final name, may not have been flushed then.
    """

    version: int
    path: str
    staged: str
    data: bytes = field(default=b"", compare=False, repr=False)


class Ledger(Protocol):
    """The account of one table: which numbers are taken, and which of them are still to be finished."""

    def unfinished(self) -> Sequence[VersionClaim]:
        """Claims that were granted and not yet settled, lowest version first. Empty most of the time."""

    def claim(self, claim: VersionClaim, data: bytes) -> None:
        """Takes a number, for at most one of any number of callers.

        Raises:
            AlreadyExists: somebody has it.
            UnfinishedError: an earlier version is to be finished first.
            StorageError: with ``maybe_applied`` where nobody can say whether it was granted.
        """

    def settle(self, claim: VersionClaim, *, foreign: bool) -> None:
        """Notes that a version has its final name; asking again does no harm.

        Args:
            claim: as ``unfinished`` gave it.
            foreign: somebody who does not know the ledger had taken the name before, with other bytes.
        """


class ExternalStore(ForwardingStore):
    """A table's store as those see it who know the ledger: what was claimed is finished before anybody looks."""

    def __init__(self, inner: ObjectStore, ledger: Ledger, runtime: Runtime) -> None:
        super().__init__(inner)
        self.ledger = ledger
        self._runtime = runtime

    def finish(self) -> bool:
        """Brings claims to their end; whether there were any.

        Raises:
            CorruptTable: the bytes of a claim are gone, or somebody else's stand in their place and cannot stay there.
            StorageError: the store or the ledger failed; never ``maybe_applied``, since who calls this has written nothing of its own.
        """
        claims = self.ledger.unfinished()
        try:
            for claim in claims:
                self.finish_one(claim)
        except StorageError as error:
            if not error.maybe_applied:
                raise
            what = f"A version that another writer committed could not be finished ({error})."
            raise StorageError(fit(what), name=error.name, transient=error.transient, advice="Nothing was written; try again.") from error
        return bool(claims)

    def finish_one(self, claim: VersionClaim) -> bool | None:
        """Gives staged bytes their final name. Whether they have it now; None where somebody else finished it before."""
        foreign = finalize(self.inner, claim, self.is_conditional(), lambda: claim in self.ledger.unfinished())
        if foreign is None:
            return None
        try:
            self.ledger.settle(claim, foreign=foreign)
        except (StorageError, ContentionError) as error:
            if foreign:
                raise
            # It has its name, for good. The staged bytes stay for whoever finds the claim, and settles it.
            _log.info("version %s is committed, but its claim is not closed yet: %s", claim.version, error)
            return True
        discard(self.inner, claim)
        return not foreign

    def is_conditional(self) -> bool:
        """Whether the store itself lets only one of many create a name. If not, the ledger alone keeps writers apart."""
        if getattr(self.inner, "conditional_put_known", False):
            return True
        try:
            ensure_safe(self.inner, self._runtime)
        except UnsafeStore:
            return False
        return True

    def names(self, prefix: str) -> Iterator[str]:
        if prefix == VERSIONS:
            self.finish()
        return super().names(prefix)

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        if VERSIONS.startswith(prefix) or prefix.startswith(VERSIONS):
            self.finish()
        return super().list(prefix, offset=offset)

    def get(self, path: str) -> bytes:
        try:
            return self.inner.get(path)
        except NotFound:
            if not self._finished(path):
                raise
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        try:
            return self.inner.get_range(path, start, length)
        except NotFound:
            if not self._finished(path):
                raise
        return self.inner.get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        try:
            return self.inner.head(path)
        except NotFound:
            if not self._finished(path):
                raise
        return self.inner.head(path)

    def _finished(self, path: str) -> bool:
        """Whether a path that is not there is worth asking for again: a version may just have got its name, from this call or another."""
        if not _is_version(path):
            return False
        self.finish()
        return True


class ExternalHandler:
    """Creates versions through a ledger.

    Args:
        ledger: of this table.
        staged_name: where the bytes of a version wait, from its final name; another place each time it is asked.
        queue: where commits to the table wait for each other, if anywhere.
    """

    name = "external"
    needs_conditional_put = False

    def __init__(self, ledger: Ledger, staged_name: Callable[[str], str], queue: CommitQueue | None = None) -> None:
        self._ledger, self.queue = ledger, queue
        self._staged_name = staged_name

    def __repr__(self) -> str:
        return f"ExternalHandler({type(self._ledger).__name__})"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        outer = store
        while not isinstance(outer, ExternalStore):  # it may be wrapped once more, by whoever counts or breaks calls
            outer = outer.inner  # type: ignore[attr-defined]
        claim = VersionClaim(version_of(path), path, self._staged_name(path))
        _refuse_taken(outer.inner, path)
        _stage(outer.inner, claim, data)
        try:
            self._claim(outer, claim, data)
        except TiltyardError as error:
            if not (isinstance(error, StorageError) and error.maybe_applied):
                discard(outer.inner, claim)
            raise
        try:
            ours = outer.finish_one(claim)
            ours = outer.inner.get(path) == data if ours is None else ours
        except (StorageError, ContentionError) as error:
            # The number is ours, but somebody who does not know the ledger may still take the name: whoever reads back will tell.
            raise StorageError(f"{path} was claimed but not finished ({error}).", name=path, maybe_applied=True, transient=True) from error
        if not ours:
            raise AlreadyExists(f"{path!r} was taken by a writer that does not use the commit store or catalog.", name=path)

    def _claim(self, store: ExternalStore, claim: VersionClaim, data: bytes) -> None:
        for _ in range(_TRIES):
            try:
                return self._ledger.claim(claim, data)
            except UnfinishedError:
                store.finish()
        raise StorageError(f"{claim.path} waits for an earlier version that could not be finished.", name=claim.path, transient=True)


def finalize(store: ObjectStore, claim: VersionClaim, conditional: bool, is_open: Callable[[], bool]) -> bool | None:
    """Gives staged bytes their final name, unless they have it. Any number of callers may do so at once.

    Args:
        store: of the table.
        claim: what was granted.
        conditional: whether the store creates a name once.
        is_open: whether the ledger still has the claim, asked where nothing of it is found in the store.

    Returns:
        Whether somebody else's bytes stand there; None where another caller finished it before and removed what was staged.

    Raises:
        CorruptTable: neither the staged bytes nor the final name are there.
    """
    try:
        staged = store.get(claim.staged)
    except NotFound:
        staged = b""
        there = _read(store, claim.path)
        if there is None and not is_open():
            return None  # finished by somebody else, and cleaned up since
        if there is None and not claim.data:
            raise CorruptTable(claim.path, f"version {claim.version} was committed, but its bytes at {claim.staged} are gone") from None
        if not claim.data:
            return None
    data, there = claim.data or staged, None
    if conditional:
        try:
            store.put_if_absent(claim.path, data)
        except AlreadyExists:
            there = store.get(claim.path)
    else:
        there = _read(store, claim.path)
        if there is None:
            store.put(claim.path, data)
    if there is None:
        return False
    if there == data:
        _flush(store, claim.path, data)
        return False
    if claim.data and is_torn(there, data):
        store.put(claim.path, data)
        return False
    return True


def _flush(store: ObjectStore, path: str, data: bytes) -> None:
    """Makes a version survive a power loss: whoever gave it its name may have died before it was flushed, or failed to flush it.

    A flush that failed proves nothing when it is asked again, so the bytes are written anew then.
    """
    try:
        store.sync([path])
    except NotFound:
        pass  # cleaned up since
    except StorageError:
        store.put(path, data)


def is_torn(there: bytes, data: bytes) -> bool:
    """Whether a file is what a power loss leaves of bytes that were not flushed: shorter, or zeros where bytes should be."""
    return len(there) <= len(data) and all(found in (0, wanted) for found, wanted in zip(there, data, strict=False))


def _read(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except NotFound:
        return None


def _refuse_taken(store: ObjectStore, path: str) -> None:
    """Writers that do not know the ledger may be ahead of it; their versions count."""
    try:
        store.head(path)
    except NotFound:
        return
    raise AlreadyExists(f"{path!r} exists already.", name=path)


def _stage(store: ObjectStore, claim: VersionClaim, data: bytes) -> None:
    try:
        store.put(claim.staged, data)
    except StorageError as error:
        discard(store, claim)
        # Whatever became of the staged bytes, nobody has claimed anything for them.
        what = f"{claim.path} was not created: its bytes could not be staged ({error})."
        raise StorageError(what, name=claim.path, transient=error.transient) from error


def discard(store: ObjectStore, claim: VersionClaim) -> None:
    """Removes staged bytes that nobody needs any more. What stays behind, cleanup knows by its place."""
    with suppress(StorageError):
        store.delete(claim.staged)


def _is_version(path: str) -> bool:
    return path.startswith(VERSIONS) and path.endswith(_MANIFEST)
