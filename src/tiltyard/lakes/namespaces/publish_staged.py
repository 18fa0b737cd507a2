"""Publishes a version that a stock client staged, by names alone where the store is a local disk.

The client's file is moved to where staged versions lie, so that a client that gives up cannot take away what is about to be decided. Then
the catalog decides, and the file gets its final name as a second one. What is left is bookkeeping: the file and the name are flushed, the
catalog is told that the version has it, and the staged name goes. That may be done later, for many versions at once (``settle_all``): a
record in the catalog names the staged file until then.

Nothing of the version is flushed before the decision, since the catalog flushes that record anyway, and the record has the version's bytes.
So whoever finishes the version after a power loss needs no file: it is written from the record, also over what is left of a file under
its name. A large version is flushed before the decision instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

from tiltyard.catalog.ledger import ElsewhereError, LakeLedger
from tiltyard.errors import AlreadyExists, ContentionError, NotFound, StorageError, TiltyardError
from tiltyard.storage.external import ExternalStore, UnfinishedError, VersionClaim, discard
from tiltyard.storage.files import sync_path
from tiltyard.storage.local import LocalStore
from tiltyard.storage.staged import STAGED
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess

_TRIES: Final = 3
MOST_KEPT: Final = 64 * 1024
"""Bytes of a version that the catalog keeps until the store has flushed it; a larger one is flushed before it is decided."""


@dataclass(frozen=True, slots=True)
class UnsettledVersion:
    """The bookkeeping of a version that is committed and has its name.

    Attributes:
        ledger: the account of its table.
        inner: the directory of its table.
        claim: its number and names.
    """

    ledger: LakeLedger
    inner: LocalStore
    claim: VersionClaim


Later = Callable[[UnsettledVersion], None]
"""Does a piece of bookkeeping, now or soon."""


def at_once(settlement: UnsettledVersion) -> None:
    """Does bookkeeping before the answer."""
    settle_all([settlement])


def settle_all(settlements: Iterable[UnsettledVersion]) -> None:
    """Does the bookkeeping of versions of one lake: each directory is flushed once, and the catalog is told in one step.

    Whatever fails here is left to whoever finds the records: the versions are committed and have their names.
    """
    todo = list(settlements)
    by_directory: dict[tuple[str, str], list[UnsettledVersion]] = {}
    for work in todo:
        by_directory.setdefault((work.inner.uri, work.claim.path.rpartition("/")[0]), []).append(work)
    with suppress(StorageError, ContentionError, NotFound):
        for works in by_directory.values():
            _flush(works[0].inner, [work.claim for work in works])
        pending = [known for work in todo if (known := work.ledger.known.get(work.claim.version)) and known.staged == work.claim.staged]
        if pending:
            todo[0].ledger.catalog.settle(pending)
        for work in todo:
            discard(work.inner, work.claim)


def _flush(inner: LocalStore, claims: Sequence[VersionClaim]) -> None:
    """Makes versions of one directory survive a power loss, those whose bytes the catalog keeps until then with their contents."""
    for claim in (claim for claim in claims if claim.data):
        try:
            sync_path(f"{inner.uri}/{claim.path}")  # one by one: nobody waits
        except FileNotFoundError:
            continue  # finished by somebody else, and cleaned up since
        except OSError:
            inner.put(claim.path, claim.data)  # a flush that failed proves nothing when it is asked again
    inner.flush(claims[0].path)


def publish_staged(access: TableAccess, version: int, path: str, staged: str, data: bytes, made: Transaction, later: Later) -> None:
    """Publishes a version.

    Args:
        access: the table, its versions decided in the catalog.
        version: its number.
        path: the name under which everybody will look for it.
        staged: what the client called it.
        data: its bytes, read and checked.
        made: the transaction inside.
        later: does the bookkeeping.

    Raises:
        AlreadyExists: the number is taken.
        ElsewhereError: the table was only remembered, and is not what it was. The version is where the client staged it.
        StorageError: with ``maybe_applied`` where nobody can say whether it was published.
    """
    store = cast(ExternalStore, access.store)
    ledger = cast(LakeLedger, store.ledger)
    ledger.queue = None  # whatever the version says of other commits, its client wrote that
    if not isinstance(store.inner, LocalStore) or not store.is_conditional():
        access.handler.create(store, path, data)
        with suppress(StorageError):
            store.delete(staged)
        return
    inner = store.inner
    is_kept = inner.durability == "fsync" and ledger.catalog.decides_here and len(data) <= MOST_KEPT
    claim = VersionClaim(version, path, f"{STAGED}{access.runtime.random.uuid()}.manifest", data if is_kept else b"")
    _refuse_taken(inner, path)
    inner.move_if_absent(staged, claim.staged)
    try:
        if not is_kept:
            inner.sync([claim.staged])
        _claim(store, claim, made)
    except (ElsewhereError, ContentionError):
        inner.move_if_absent(claim.staged, staged)  # for another try
        raise
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
    later(UnsettledVersion(ledger, inner, claim))


def _refuse_taken(inner: LocalStore, path: str) -> None:
    """Writers that do not know the catalog may be ahead of it; their versions count."""
    with suppress(NotFound):
        inner.head(path)
        raise AlreadyExists(f"{path!r} exists already.", name=path)


def _claim(store: ExternalStore, claim: VersionClaim, made: Transaction) -> None:
    ledger = cast(LakeLedger, store.ledger)
    for _ in range(_TRIES):
        try:
            return ledger.claim_for(claim, made)
        except UnfinishedError:
            store.finish()
    raise StorageError(f"{claim.path} waits for an earlier version that could not be finished.", name=claim.path, transient=True)


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
