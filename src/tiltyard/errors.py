"""Every error Tiltyard raises, arranged by what the caller does next.

    TiltyardError
    +-- ConflictError                another commit won; nothing of ours is visible
    |   +-- RetryableConflict        refresh and re-execute the operation on the latest version
    |   |   +-- ExpectedVersionMismatch
    |   |   +-- KeyConflict
    |   +-- IncompatibleConflict     a person decides: re-executing it may mean something else
    +-- ContentionError              too many lost races; wait, or send fewer commits
    +-- OutcomeUnknown               ask ``t.transactions.outcome(id)`` or ``ty.outcomes.outcome_at``; delete nothing
    +-- HistoryUnavailable           reopen the table: a version since the one it read cannot be read
    +-- CorruptTable                 a file holds wrong bytes; restore it, or open another version
    +-- UnsupportedFeature           the table needs a newer release; upgrade
    +-- UnsafeStore                  the store overwrites existing objects; use a lock, or another store
    +-- OwnershipError               open the lake that owns it, or rebuild its catalog
    +-- NotFound                     (also LookupError) no such table, version, tag or object
    +-- AlreadyExists                the name is taken
    +-- AlreadyCommitted             nothing to do: this idempotency key was committed before
    +-- InvalidInput                 (also ValueError) correct the argument
    +-- StorageError                 (also OSError) the store failed; ``maybe_applied`` says whether the request may have succeeded

``kind`` is a stable, machine-readable code. Messages are for people, stay under 300 characters and are not an API. Programs use the
attributes; ``to_dict()`` returns all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

MESSAGE_LIMIT = 299


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit of another writer that conflicted with ours, or won the race for a version."""

    version: int
    transaction_id: str
    operation: str
    writer: str = ""
    message: str = ""
    author: str = ""
    """Who committed it, as recorded in a lake's history."""

    def __str__(self) -> str:
        by = f" by {self.author or self.writer}" if self.author or self.writer else ""
        return f"version {self.version} ({self.operation}{by})"


def fit(what: str, advice: str = "", limit: int = MESSAGE_LIMIT) -> str:
    """Joins what happened and what to do, within ``limit`` characters; the former is shortened first."""
    half = max(limit - len(what), limit - limit // 2) - 1
    if len(advice) > half:
        advice = advice[: half - 3] + "..."
    room = limit - (len(advice) + 1 if advice else 0)
    if len(what) > room:
        what = what[: max(room - 3, 0)] + "..."
    return f"{what} {advice}".strip()[:limit]


class TiltyardError(Exception):
    """Base class of all errors. ``str(error)`` says what happened, to what, and what to do next.

    Attributes:
        kind: stable code of the error class.
        advice: what to do next, in a sentence.
        retryable: whether it is safe to re-execute the operation on the latest version.
    """

    kind: ClassVar[str] = "error"
    default_advice: ClassVar[str] = ""
    retryable: bool = False

    def __init__(self, what: str, *, advice: str | None = None) -> None:
        self.advice = self.default_advice if advice is None else advice
        super().__init__(fit(what, self.advice))

    def advised(self, advice: str) -> Self:
        """Returns a copy of the error with other advice."""
        other = copy(self)
        text, old = str(self), self.advice
        if not text.endswith(old):  # it was shortened
            old = next((text[start:] for start in range(len(text)) if old.startswith(text[start:].removesuffix("..."))), "")
        other.args = (fit(text.removesuffix(old).rstrip(), advice),)
        other.advice = advice
        return other

    def to_dict(self) -> dict[str, Any]:
        """Returns the kind, the message and all attributes as plain JSON values."""
        facts = {name: _plain(value) for name, value in vars(self).items() if not name.startswith("_")}
        return {"kind": self.kind, "message": str(self), "retryable": self.retryable, **facts}

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle calls the class with the finished message, which is not what the constructors take.
        return _revive, (type(self), self.args, {name: value for name, value in vars(self).items() if name != "_window"})


def _revive(kind: type[TiltyardError], args: tuple[Any, ...], facts: dict[str, Any]) -> TiltyardError:
    """Rebuilds a pickled error."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(facts)
    return error


def _plain(value: Any) -> Any:
    if isinstance(value, Winner):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # keys and rows may hold any type: timestamps, bytes, decimals


class ConflictError(TiltyardError):
    """Another commit won, and ours cannot be rebased over it. Nothing of ours is visible.

    Attributes:
        operation: the operation that was to be committed.
        read_version: the version the operation was built on.
        winners: the commits it conflicts with, oldest first.
        fragments: ids of fragments that both sides changed (a sample).
        sample: rows or keys that both sides changed (a sample).
        executions: how often the operation was executed, each time on a later version.
        attempts: how often the last execution tried to create a version.
        transaction_id: of the last execution, for ``t.transactions.explain``; empty if it failed before it became a transaction.
        table: in a transaction over several tables, the one with the conflict; empty otherwise.
        expected, actual: the version of that table the transaction was built on, and the version it is at.
        by: the transactions that changed that table: their ids, authors, operations and messages.
    """

    kind = "conflict"
    table: str = ""
    expected: int | None = None
    actual: int | None = None
    by: tuple[dict[str, Any], ...] = ()

    def __init__(
        self,
        what: str,
        *,
        operation: str = "",
        read_version: int | None = None,
        winners: Sequence[Winner] = (),
        fragments: Sequence[int] = (),
        sample: Sequence[Any] = (),
        retryable: bool | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(what, advice=advice)
        self.operation = operation
        self.read_version = read_version
        self.winners = tuple(winners)
        self.fragments = tuple(fragments)
        self.sample = tuple(sample)
        self.executions = 1
        self.attempts = 0
        self.transaction_id = ""
        self.retryable = type(self).retryable if retryable is None else retryable


class RetryableConflict(ConflictError):
    """A later commit changed what the operation read; re-executing it on the latest version is safe."""

    kind = "retryable-conflict"
    retryable = True
    default_advice = "Nothing was committed. Refresh the table and re-execute the operation."
    _window: Any = None

    @property
    def window(self) -> Any:
        """The conflict window judged so far, for a re-execution in this process; None elsewhere."""
        return self._window

    @window.setter
    def window(self, window: Any) -> None:
        self._window = window


class ExpectedVersionMismatch(RetryableConflict):
    """A table is not at the version that the caller named or a transaction was built on.

    Attributes:
        table: the table's name.
        expected, actual: its versions; ``actual`` is None if the table was dropped.
        cause: ``write`` if both wrote to it, ``read`` if we only read it, ``incompatible`` if it was dropped or renamed or its name is
            taken, ``foreign`` if a foreign writer took the version, ``replaced`` if another commit has that version number now, ``line``
            if the lake's branch was recreated or fast-forwarded (``expected`` and ``actual`` are snapshots then).
        by: the transactions that changed it: their ids, authors, operations and messages.
    """

    kind = "expected-version-mismatch"

    def __init__(
        self,
        what: str,
        *,
        table: str,
        expected: int,
        actual: int | None,
        cause: str = "write",
        by: Sequence[dict[str, Any]] = (),
        **facts: Any,
    ) -> None:
        super().__init__(what, **facts)
        self.table = table
        self.expected = expected
        self.actual = actual
        self.cause = cause
        self.by = tuple(by)


class KeyConflict(RetryableConflict):
    """A primary key in the input already exists in the table, or a concurrent commit inserted it."""

    kind = "key-conflict"
    default_advice = "Use merge to update existing keys, or drop them from the input."


class IncompatibleConflict(ConflictError):
    """A later commit may have changed what the operation means, so it is not re-executed automatically."""

    kind = "incompatible-conflict"
    default_advice = "Nothing was committed. Look at the latest version and decide whether the operation still makes sense."


class ContentionError(TiltyardError):
    """The race for the next version was lost too often. There is no conflict with any winner.

    Attributes:
        operation: the operation that was to be committed.
        read_version: the version the operation was built on.
        attempts: how often it tried to create a version.
        winners: the commit that won each race, oldest first.
        seconds: how long it tried.
        transaction_id: of the failed transaction, for ``t.transactions.explain``.
        fragments, sample: empty; they exist so that all commit errors have the same attributes.
    """

    kind = "contention"
    default_advice = "Nothing was committed. Batch small commits, or allow more retries."
    retryable = True

    def __init__(
        self,
        what: str,
        *,
        operation: str = "",
        read_version: int | None = None,
        attempts: int = 0,
        winners: Sequence[Winner] = (),
        seconds: float = 0.0,
        advice: str | None = None,
    ) -> None:
        super().__init__(what, advice=advice)
        self.operation = operation
        self.read_version = read_version
        self.attempts = attempts
        self.winners = tuple(winners)
        self.seconds = seconds
        self.transaction_id = ""
        self.fragments: tuple[int, ...] = ()
        self.sample: tuple[Any, ...] = ()


class OutcomeUnknown(TiltyardError):
    """The store failed, and whether the commit was applied is not known yet. Nothing was deleted.

    Attributes:
        transaction_id: pass it to ``t.transactions.outcome`` once the store answers again, or to ``ty.outcomes.outcome_at``.
        version: the version the commit tried to create.
        uri: the table.
        operation: the operation that was to be committed.
        read_version: the version the operation was built on.
        winners: the commits it was rebased over, oldest first; which commit has ``version`` is not known.
        fragments, sample: empty; they exist so that all commit errors have the same attributes.
        retryable: always False; ask for the outcome first.
    """

    kind = "outcome-unknown"
    retryable = False

    def __init__(
        self,
        what: str,
        *,
        transaction_id: str,
        version: int,
        uri: str = "",
        operation: str = "",
        read_version: int | None = None,
        winners: Sequence[Winner] = (),
        advice: str | None = None,
    ) -> None:
        # Version 1 creates the table: there is no handle to ask then.
        call = "ty.outcomes.outcome_at(uri, " if version == 1 else "t.transactions.outcome("
        ask = f"Nothing was deleted. Call {call}{transaction_id!r}, version={version}) once the store answers again."
        super().__init__(what, advice=ask if advice is None else advice)
        self.transaction_id = transaction_id
        self.version = version
        self.uri = uri
        self.operation = operation
        self.read_version = read_version
        self.winners = tuple(winners)
        self.fragments: tuple[int, ...] = ()
        self.sample: tuple[Any, ...] = ()


class HistoryUnavailable(TiltyardError):
    """A version since the one read is gone or unreadable, so conflicts cannot be checked.

    Attributes:
        operation: the operation that was to be committed.
        read_version: the version the operation was built on.
        missing: versions since then that cannot be read.
        head: the latest version.
        winners: the commits since then that can be read, oldest first.
        attempts: how often it tried to create a version.
        transaction_id: of the failed transaction, for ``t.transactions.explain``; empty if it failed before it became a transaction.
        fragments, sample: empty; they exist so that all commit errors have the same attributes.
    """

    kind = "history-unavailable"
    retryable = True
    default_advice = "Nothing was committed. Reopen the table and re-execute the operation on the latest version."

    def __init__(
        self,
        what: str,
        *,
        operation: str = "",
        read_version: int | None = None,
        missing: Sequence[int] = (),
        head: int | None = None,
        winners: Sequence[Winner] = (),
        advice: str | None = None,
    ) -> None:
        super().__init__(what, advice=advice)
        self.operation = operation
        self.read_version = read_version
        self.missing = tuple(missing)
        self.head = head
        self.winners = tuple(winners)
        self.attempts = 0
        self.transaction_id = ""
        self.fragments: tuple[int, ...] = ()
        self.sample: tuple[Any, ...] = ()


def complete(
    error: TiltyardError, *, operation: str, read_version: int | None, winners: Sequence[Winner], transaction_id: str, attempts: int
) -> None:
    """Fills in the facts of the commit that the raising code did not know; attributes that are set stay."""
    if isinstance(error, ConflictError | ContentionError | HistoryUnavailable):
        error.transaction_id = error.transaction_id or transaction_id
        error.attempts = error.attempts or attempts
    if isinstance(error, ConflictError | ContentionError | OutcomeUnknown | HistoryUnavailable):
        error.operation = error.operation or operation
        error.read_version = read_version if error.read_version is None else error.read_version
    if isinstance(error, ContentionError | OutcomeUnknown | HistoryUnavailable):
        error.winners = error.winners or tuple(winners)


class CorruptTable(TiltyardError):
    """A file of the table is missing, damaged or not allowed.

    Attributes:
        file: the file's path inside the table.
        reason: what is wrong with it.
    """

    kind = "corrupt-table"
    default_advice = "Restore this file from a backup, or open another version."

    def __init__(self, file: str, reason: str, *, advice: str | None = None) -> None:
        super().__init__(f"{file} is corrupt: {reason}.", advice=advice)
        self.file = file
        self.reason = reason


class UnsupportedFeature(TiltyardError):
    """The table or the call needs a feature that this release does not have.

    Attributes:
        feature: its name.
        bits: unknown feature flags, as powers of two.
        writing: whether only writing is refused.
    """

    kind = "unsupported-feature"
    default_advice = "Upgrade tiltyard, or use the library that wrote the table."

    def __init__(self, what: str, *, feature: str = "", bits: Sequence[int] = (), writing: bool = False, advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.feature = feature
        self.bits = tuple(bits)
        self.writing = writing


class UnsafeStore(TiltyardError):
    """The store overwrites existing objects although told to create only: two writers could both win."""

    kind = "unsafe-store"
    default_advice = "Nothing was committed. Use handler=ty.locks.LockHandler(ty.locks.PostgresLock(...)), or another store."

    def __init__(self, what: str, *, store: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.store = store


class OwnershipError(TiltyardError):
    """A root, catalog or directory belongs to another lake, or to one whose catalog is lost.

    Attributes:
        root: where the tables are.
        lake: id of the lake that owns it; empty if unknown.
        catalog: the catalog of that lake, without credentials; empty if unknown.
    """

    kind = "ownership"

    def __init__(self, what: str, *, root: str = "", lake: str = "", catalog: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.root = root
        self.lake = lake
        self.catalog = catalog


class NotFound(TiltyardError, LookupError):
    """No such table, version, tag, branch or object."""

    kind = "not-found"

    def __init__(self, what: str, *, name: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.name = name


class AlreadyExists(TiltyardError):
    """The name of a table, tag, branch, index or object is taken."""

    kind = "already-exists"

    def __init__(self, what: str, *, name: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.name = name

    @classmethod
    def table(cls, uri: str) -> AlreadyExists:
        """For a table that was to be created where one exists."""
        return cls(f"A table already exists at {uri}.", name=uri, advice="Open it, or use overwrite to replace its rows.")


class AlreadyCommitted(TiltyardError):
    """A batch with this idempotency key was committed before; files of this attempt are removed.

    Attributes:
        source: who numbers the batches, as passed to ``tiltyard.distributed.once``.
        number: the number of this batch.
        last: the highest number that is committed.
    """

    kind = "already-committed"
    default_advice = "Nothing to do: the rows are in the table."

    def __init__(self, what: str, *, source: str = "", number: int = 0, last: int = 0, advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.source = source
        self.number = number
        self.last = last


class InvalidInput(TiltyardError, ValueError):
    """An argument or the input rows cannot be used. Nothing was written."""

    kind = "invalid-input"

    def __init__(self, what: str, *, argument: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.argument = argument


class StorageError(TiltyardError, OSError):
    """A request to the store failed.

    Attributes:
        maybe_applied: whether the request may have succeeded all the same.
        transient: whether a retry may help.
        unsynced: whether the object exists but may not survive a power failure.
        name: the object's path.
    """

    kind = "storage-error"

    def __init__(
        self,
        what: str,
        *,
        name: str = "",
        maybe_applied: bool = False,
        transient: bool = False,
        unsynced: bool = False,
        advice: str | None = None,
    ) -> None:
        super().__init__(what, advice=advice)
        self.name = name
        self.maybe_applied = maybe_applied
        self.transient = transient
        self.unsynced = unsynced
