"""Who may create a version: three ways to let exactly one of many writers create an object.

==================  =================================  =========================================
name                the deciding step                  for
==================  =================================  =========================================
``rename``          rename, unless the name is taken   file systems
``conditional-put`` put, unless the name is taken      object stores that honour the condition
``lock``            look, then put, under a lock       stores with neither, given a lock
==================  =================================  =========================================

All writers of one table must use ways that exclude each other: the first two do on a local disk, and ``lock`` excludes only those
who take the same lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError, TiltyardError, UnsupportedFeature
from tiltyard.interfaces import CommitHandler, ObjectStore, Randomness, Runtime, SystemRandomness
from tiltyard.storage.file_lock import FileLock
from tiltyard.storage.open_store import local_path
from tiltyard.storage.probe import ensure_safe

CommitLock = Callable[[int], AbstractContextManager[Any, Any]]
"""Given the version to be written, a context manager inside which nobody else writes. pylance's ``commit_lock`` is the same."""

LOCK_FILE = "_commit.lock"
"""The lock file of a local table, in its root: a name that neither pylance nor its cleanup takes for its own."""

_LAST_VERSION = 2**64 - 1
_PUTS = 3
"""How often a write whose outcome is open is sent inside a lock before the lock is left all the same."""


class RenameHandler:
    """Writes the bytes beside the target, then renames them to it unless it exists."""

    name = "rename"
    needs_conditional_put = True

    def __init__(self, random: Randomness | None = None) -> None:
        # The system's chance is made where it is used: it cannot be pickled, and a handler should be able to move.
        self._random = random

    def __repr__(self) -> str:
        return "RenameHandler()"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        """Creates a version by a rename that replaces nothing."""
        directory, slash, _ = path.rpartition("/")
        # The name ends in the uuid: pylance takes whatever ends in "manifest" for a version, and its cleanup collects ".tmp*".
        temporary = f"{directory}{slash}.tmp.{(self._random or SystemRandomness()).uuid()}"
        try:
            store.put(temporary, data)
        except StorageError as error:
            _discard(store, temporary)
            # Whatever became of the temporary object, the target was not touched: this failure is certain.
            raise StorageError(
                f"{path} was not created: its bytes could not be staged ({error}).", name=path, transient=error.transient
            ) from error
        try:
            store.rename_if_absent(temporary, path)
        except NotFound as error:
            # Our own object is gone. Perhaps a client that repeats requests moved it and then missed it.
            raise StorageError(f"The staged bytes of {path} are gone; perhaps they were renamed.", name=path, maybe_applied=True) from error
        except AlreadyExists:
            _discard(store, temporary)
            raise
        except StorageError as error:
            # While the outcome is open nothing is deleted; a temporary object that stays behind is the cleanup's.
            if not error.maybe_applied:
                _discard(store, temporary)
            raise


class ConditionalPutHandler:
    """Leaves the decision to the store's own put-if-absent."""

    name = "conditional-put"
    needs_conditional_put = True

    def __repr__(self) -> str:
        return "ConditionalPutHandler()"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        """Creates a version by a conditional put."""
        store.put_if_absent(path, data)


class LockHandler:
    """Checks that the target does not exist and writes it, inside a lock that all writers take.

    A plain put, because the stores that need a lock are those that ignore the condition of put-if-absent or refuse it. But a lock
    cannot fence: a holder that loses it (its server restarts) may still have a write under way, which would replace what the next
    holder creates; the loss is reported (``maybe_applied``), the replaced version is not. A store known to honour the condition
    (``conditional_put_known``) is therefore given it all the same, which closes that gap. For the same reason a put without an answer
    is checked before the lock is released: once our bytes are stored, a late copy of the request changes nothing.

    Args:
        lock: called with the version; pylance's commit locks and ours.
    """

    name = "lock"
    needs_conditional_put = False

    def __init__(self, lock: CommitLock) -> None:
        if not callable(lock):
            raise InvalidInput("A commit lock is a function from a version to a context manager.", argument="lock")
        self._lock = lock

    def __repr__(self) -> str:
        # A foreign lock's repr may show anything, so only its type is said.
        return f"LockHandler({type(self._lock).__name__})"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        """Creates a version while the lock is held."""
        version = version_of(path)
        entered = False
        failure: TiltyardError | None = StorageError(f"The write of {path} was cut short.", name=path, maybe_applied=True)
        try:
            with self._lock(version):
                entered = True
                # Returned, not raised: a foreign lock could hide an error that passes through it, or put its own in the place.
                failure = _create_unless_there(store, path, data)
        except Exception as error:
            if not entered:
                failure = _lock_refused(path, error)
            elif failure is None:
                failure = _lock_lost(path, error)
            if failure is error:
                raise
            raise failure from error
        if failure is not None:
            raise failure


class RefusingHandler:
    """Creates nothing: for places that may be read, but where our commits would not exclude those of others."""

    name = "refusing"
    needs_conditional_put = False

    def __init__(self, reason: str, advice: str) -> None:
        self._reason = reason
        self._advice = advice

    def __repr__(self) -> str:
        return f"RefusingHandler({self._reason!r})"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        raise self.refusal()

    def refusal(self) -> UnsupportedFeature:
        return UnsupportedFeature(self._reason, feature="external manifest store", writing=True, advice=self._advice)


def ensure_usable(handler: CommitHandler, store: ObjectStore, runtime: Runtime) -> None:
    """Asked before anything of a commit is written: may this handler decide in this store?

    Raises:
        UnsafeStore: the store overwrites where it was told to create, and the handler relies on it.
        UnsupportedFeature: nobody told us how commits are decided there.
    """
    if isinstance(handler, RefusingHandler):
        raise handler.refusal()
    if getattr(handler, "needs_conditional_put", True):
        ensure_safe(store, runtime)


def handler_for(store: ObjectStore, choice: str | CommitHandler | None = None) -> CommitHandler:
    """The handler for a store: the given one, the named one, or by the store's URI.

    Conditional put is the choice for every plain scheme. A local store's put-if-absent is a hard link to the final name, which decides
    exactly as a rename would, with one name less to make and remove. A scheme such as ``s3+ddb`` says that commits are decided
    elsewhere, where we cannot take part; so there is no choice, unless the caller makes one.
    """
    scheme, separator, _ = store.uri.partition("://")
    if choice is None and separator and "+" in scheme:
        return RefusingHandler(
            f"Commits to {store.uri} are decided outside the store ({scheme}), which tiltyard does not take part in.",
            "Nothing was written. Commit with pylance, or pass handler= if all writers use the same one.",
        )
    if choice is None or choice == ConditionalPutHandler.name:
        return ConditionalPutHandler()
    if choice == RenameHandler.name:
        return RenameHandler()
    if choice == LockHandler.name:
        return LockHandler(FileLock(_lock_file(store.uri)))
    if isinstance(choice, str):
        raise InvalidInput(
            f"There is no commit handler {choice!r}.", argument="handler", advice="Use 'rename', 'conditional-put', 'lock' or a handler."
        )
    if isinstance(choice, type) or not callable(getattr(choice, "create", None)):
        # Its type alone: whatever was passed by mistake may hold a secret.
        raise InvalidInput(
            f"A commit handler has a method create(store, path, data); this {type(choice).__name__} has none.",
            argument="handler",
            advice="Use 'rename', 'conditional-put', 'lock' or an instance of a handler.",
        )
    return choice


def version_of(path: str) -> int:
    """The version whose manifest has this name, which is what a commit lock is called with."""
    name = path.rpartition("/")[2]
    digits = name.removesuffix(".manifest")
    detached = digits.startswith("d")
    digits = digits.removeprefix("d")
    if not name.endswith(".manifest") or not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise InvalidInput(f"{path!r} names no version, so there is nothing to lock.", argument="path")
    # All 20 digits: counted down from the last possible version, so that a listing shows the newest first.
    return _LAST_VERSION - int(digits) if len(digits) == 20 and not detached else int(digits)


def _lock_file(uri: str) -> str:
    if "://" in uri and not uri.startswith("file://"):
        raise InvalidInput(
            f"There is no default lock for {uri}.",
            argument="handler",
            advice="Pass LockHandler(PostgresLock(url, table)), or one with a lock of your own.",
        )
    return f"{local_path(uri)}/{LOCK_FILE}"


def _create_unless_there(store: ObjectStore, path: str, data: bytes) -> TiltyardError | None:
    try:
        store.head(path)
    except NotFound:
        pass
    except TiltyardError as error:
        return error
    else:
        return AlreadyExists(f"{path} exists already.", name=path)
    try:
        if not getattr(store, "conditional_put_known", False):
            return _put_until_known(store, path, data)
        store.put_if_absent(path, data)
    except TiltyardError as error:
        return error
    return None


def _put_until_known(store: ObjectStore, path: str, data: bytes) -> StorageError | None:
    """Writes, and leaves no write under way if that can be had: looks, and sends it again, while the outcome is open."""
    doubt: StorageError | None = None
    for _ in range(_PUTS):
        try:
            store.put(path, data)
            return None
        except StorageError as error:
            if error.maybe_applied:
                doubt = error
            elif doubt is None:
                raise
        try:
            if store.get(path) != data:
                break  # somebody writes without the lock: whoever reads back will see what it came to
            if doubt.unsynced:
                store.sync([path])
            return None
        except (NotFound, StorageError):
            continue
    return doubt


def _discard(store: ObjectStore, temporary: str) -> None:
    # The caller has a more important error to tell, and cleanup finds the object by its name.
    with suppress(StorageError):
        store.delete(temporary)


def _lock_refused(path: str, error: Exception) -> TiltyardError:
    if isinstance(error, TiltyardError):
        return error
    # The type alone: a foreign text may hold an address with a password.
    what = f"The lock for {path} was not given ({type(error).__name__})."
    return StorageError(what, name=path, transient=True, advice="Nothing was written. Try again later.")


def _lock_lost(path: str, error: Exception) -> StorageError:
    if isinstance(error, StorageError) and error.maybe_applied:
        return error
    what = f"The lock failed after {path} was written ({type(error).__name__}), so another writer may have written it too."
    return StorageError(what, name=path, maybe_applied=True, advice="Read back what was written.")
