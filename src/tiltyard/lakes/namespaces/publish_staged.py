"""Publishes a version that a stock client staged, by names alone where the store is a local disk.

The client's file is moved to where staged versions lie, so that a client that gives up cannot take away what is about to be decided. Then
the catalog decides, and the file gets its final name as a second one. What is left is bookkeeping: the name is flushed, the catalog is told
that the version has it, and the staged name goes. That may be done later, by whoever is asked to: a record in the catalog names the staged
file until then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from tiltyard.errors import AlreadyExists, ContentionError, NotFound, StorageError, TiltyardError
from tiltyard.storage.external import ExternalStore, UnfinishedError, VersionClaim, discard
from tiltyard.storage.local import LocalStore
from tiltyard.storage.staged import STAGED
from tiltyard.verbs.engine.access import TableAccess

Later = Callable[[Callable[[], None]], None]
"""Does a piece of bookkeeping, now or soon."""

_TRIES: Final = 3


def at_once(work: Callable[[], None]) -> None:
    """Does bookkeeping before the answer."""
    work()


def publish_staged(access: TableAccess, version: int, path: str, staged: str, data: bytes, later: Later) -> None:
    """Publishes a version.

    Args:
        access: the table, its versions decided in the catalog.
        version: its number.
        path: the name under which everybody will look for it.
        staged: what the client called it.
        data: its bytes, read and checked.
        later: does the bookkeeping.

    Raises:
        AlreadyExists: the number is taken.
        StorageError: with ``maybe_applied`` where nobody can say whether it was published.
    """
    store = cast(ExternalStore, access.store)
    if not isinstance(store.inner, LocalStore) or not store.is_conditional():
        access.handler.create(store, path, data)
        with suppress(StorageError):
            store.delete(staged)
        return
    inner = store.inner
    claim = VersionClaim(version, path, f"{STAGED}{access.runtime.random.uuid()}.manifest")
    _refuse_taken(inner, path)
    inner.rename_if_absent(staged, claim.staged)
    try:
        _claim(store, claim, data)
    except TiltyardError as error:
        if not (isinstance(error, StorageError) and error.maybe_applied):
            discard(inner, claim)
        raise
    try:
        inner.link_if_absent(claim.staged, path)
    except (AlreadyExists, NotFound):
        _finished_by_others(store, claim, data)
        return
    except StorageError as error:
        raise StorageError(f"{path} was claimed but not finished ({error}).", name=path, maybe_applied=True, transient=True) from error
    later(lambda: _settle(store, inner, claim))


def _refuse_taken(inner: LocalStore, path: str) -> None:
    """Writers that do not know the catalog may be ahead of it; their versions count."""
    with suppress(NotFound):
        inner.head(path)
        raise AlreadyExists(f"{path!r} exists already.", name=path)


def _claim(store: ExternalStore, claim: VersionClaim, data: bytes) -> None:
    for _ in range(_TRIES):
        try:
            return store.ledger.claim(claim, data)
        except UnfinishedError:
            store.finish()
    raise StorageError(f"{claim.path} waits for an earlier version that does not get finished.", name=claim.path, transient=True)


def _finished_by_others(store: ExternalStore, claim: VersionClaim, data: bytes) -> None:
    """The name is there: a reader finished our version, or a writer that does not know the catalog has the number."""
    try:
        ours = store.finish_one(claim)
        ours = store.inner.get(claim.path) == data if ours is None else ours
    except (StorageError, ContentionError) as error:
        what = f"{claim.path} was claimed but not finished ({error})."
        raise StorageError(what, name=claim.path, maybe_applied=True, transient=True) from error
    if not ours:
        raise AlreadyExists(f"{claim.path!r} was taken by a writer that does not know the catalog.", name=claim.path)


def _settle(store: ExternalStore, inner: LocalStore, claim: VersionClaim) -> None:
    """Whatever fails here is left to whoever finds the record: the version is committed and has its name."""
    with suppress(StorageError, ContentionError):
        inner.flush(claim.path)
        store.ledger.settle(claim, foreign=False)
        discard(inner, claim)
