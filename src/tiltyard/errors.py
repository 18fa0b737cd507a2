"""Every error Tiltyard raises, arranged by what the caller does next.

    TiltyardError
    +-- ConflictError                another commit won; nothing of ours is visible
    |   +-- RetryableConflict        read the newest version and run the operation again
    |   |   +-- ExpectedVersionMismatch
    |   |   +-- KeyConflict
    |   +-- IncompatibleConflict     a person decides: running it again may mean something else
    +-- ContentionError              too many lost races; wait, or send fewer commits
    +-- OutcomeUnknown               ask ``t.transactions.outcome(id)`` or ``ty.outcomes.outcome_at``; delete nothing
    +-- HistoryUnavailable           open the table anew: what happened in between cannot be read
    +-- CorruptTable                 the bytes are wrong; restore the file or another version
    +-- UnsupportedFeature           a newer writer made this; upgrade
    +-- UnsafeStore                  use another store or a lock: this one overwrites
    +-- OwnershipError               open the lake that owns it, or rebuild its catalog
    +-- NotFound                     (also LookupError) no such table, version, tag or object
    +-- AlreadyExists                the name is taken
    +-- AlreadyCommitted             nothing: the same piece of work was committed before
    +-- InvalidInput                 (also ValueError) mend the argument
    +-- StorageError                 (also OSError) the store failed; ``maybe_applied`` says how

``kind`` is a stable, machine-readable code. Messages are for people, stay under 300 characters and are not an API; whatever a
program needs is an attribute, and ``to_dict()`` gives them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

MESSAGE_LIMIT = 299


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit that stood in the way of ours."""

    version: int
    transaction_id: str
    operation: str
    writer: str = ""
    message: str = ""
    author: str = ""
    """Who committed it, where a lake's history says so."""

    def __str__(self) -> str:
        by = f" by {self.author or self.writer}" if self.author or self.writer else ""
        return f"version {self.version} ({self.operation}{by})"


def fit(what: str, advice: str = "", limit: int = MESSAGE_LIMIT) -> str:
    """Joins what happened and what to do. What happened is cut first, down to half of the room: who is not told it needs no advice."""
    half = max(limit - len(what), limit - limit // 2) - 1
    if len(advice) > half:
        advice = advice[: half - 3] + "..."
    room = limit - (len(advice) + 1 if advice else 0)
    if len(what) > room:
        what = what[: max(room - 3, 0)] + "..."
    return f"{what} {advice}".strip()[:limit]


class TiltyardError(Exception):
    """Base of all errors. ``str(error)`` says what happened, who did it and what to do next.

    Attributes:
        kind: stable code of this class of errors.
        advice: what to do next, one sentence.
        retryable: whether running the operation again on the newest version is safe.
    """

    kind: ClassVar[str] = "error"
    default_advice: ClassVar[str] = ""
    retryable: bool = False

    def __init__(self, what: str, *, advice: str | None = None) -> None:
        self.advice = self.default_advice if advice is None else advice
        super().__init__(fit(what, self.advice))

    def advised(self, advice: str) -> Self:
        """The same error with other advice."""
        other = copy(self)
        told, old = str(self), self.advice
        if not told.endswith(old):  # it was cut
            old = next((told[place:] for place in range(len(told)) if old.startswith(told[place:].removesuffix("..."))), "")
        other.args = (fit(told.removesuffix(old).rstrip(), advice),)
        other.advice = advice
        return other

    def to_dict(self) -> dict[str, Any]:
        """All of the error as plain JSON values."""
        facts = {name: _plain(value) for name, value in vars(self).items() if not name.startswith("_")}
        return {"kind": self.kind, "message": str(self), "retryable": self.retryable, **facts}

    def __reduce__(self) -> tuple[Any, ...]:
        # The usual way calls the class with the finished message, which is not what the constructors take.
        return _revive, (type(self), self.args, {name: value for name, value in vars(self).items() if name != "_window"})


def _revive(kind: type[TiltyardError], args: tuple[Any, ...], facts: dict[str, Any]) -> TiltyardError:
    """An error as it was in another process."""
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
    return str(value)  # keys and rows may hold anything: moments, bytes, decimals


class ConflictError(TiltyardError):
    """Another commit won and ours cannot be carried over it. Nothing of ours is visible.

    Attributes:
        operation: what we wanted to commit.
        read_version: the version our operation was built on.
        winners: the commits that stood in the way, oldest first.
        fragments: ids of fragments both sides touched (a sample).
        sample: rows or keys both sides touched (a sample).
        executions: how many times the operation was worked out and tried, each time on a newer version.
        attempts: how many times the last of these tried to create a version.
        transaction_id: of the last of these, for ``t.transactions.explain``; empty where it did not get as far as a transaction.
        table: in a transaction over several tables, which one; empty otherwise.
        expected, actual: the versions of that table that we built on and that it is at.
        by: who moved that table: the transactions' ids, authors, operations and messages.
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
    """Evaluating the operation again on the newest version is safe."""

    kind = "retryable-conflict"
    retryable = True
    default_advice = "Refresh the table and run the operation again."
    _window: Any = None

    @property
    def window(self) -> Any:
        """What was to be committed and how far the commits since were judged, for a re-execution in this process; else None."""
        return self._window

    @window.setter
    def window(self, window: Any) -> None:
        self._window = window


class ExpectedVersionMismatch(RetryableConflict):
    """A table was not at the version the caller named, or that a transaction over several tables was built on.

    Attributes:
        table: which one.
        expected, actual: its versions; ``actual`` is None where the table is gone.
        cause: ``write`` if both wrote to it, ``read`` if we only read it, ``incompatible`` if it was dropped or renamed or its name is
            taken, ``foreign`` if a writer that does not know the lake took the version, ``replaced`` if another version has the number,
            ``line`` if the whole branch of the lake is another one (``expected`` and ``actual`` are snapshots then).
        by: who moved it: the transactions' ids, authors, operations and messages.
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
    """A key of ours was inserted by somebody else, or is there already."""

    kind = "key-conflict"
    default_advice = "Use merge to update keys that exist, or drop them from the input."


class IncompatibleConflict(ConflictError):
    """Evaluating the operation again may mean something else, so nobody does it unasked."""

    kind = "incompatible-conflict"
    default_advice = "Look at the table as it is now and decide whether the operation still makes sense."


class ContentionError(TiltyardError):
    """The race for a version was lost too often. Nobody touched what we touched: only the number of the version was taken each time.

    Attributes:
        operation: what we wanted to commit.
        read_version: the version our operation was built on.
        attempts: how many times we tried.
        winners: who won each race, oldest first.
        seconds: how long we tried.
        transaction_id: what we tried to commit, for ``t.transactions.explain``.
        fragments, sample: empty, for callers that treat all alike.
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
    """The store failed in a way that leaves open whether the commit was applied.

    Attributes:
        transaction_id: pass it to ``t.transactions.outcome`` once the store answers again, or to ``ty.outcomes.outcome_at``.
        version: the version we tried to create.
        uri: the table.
        operation: what we wanted to commit.
        read_version: the version our operation was built on.
        winners: the commits that came in between and that ours was carried over, oldest first; who has ``version`` is not known.
        fragments, sample: empty, for callers that treat all alike: nothing that was found in the way is in doubt.
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
        # Version 1 is the creation of a table: then there is no handle to ask.
        call = "ty.outcomes.outcome_at(uri, " if version == 1 else "t.transactions.outcome("
        ask = f"Nothing was deleted. Ask {call}{transaction_id!r}, version={version}) when the store answers again."
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
    """A version in the conflict window cannot be read, so the commit is refused.

    Attributes:
        operation: what we wanted to commit.
        read_version: where our window begins.
        missing: versions in the window that cannot be read.
        head: the newest version.
        winners: the commits in the window that could be read, oldest first.
        attempts: how many times we tried to create a version.
        transaction_id: what we tried to commit, for ``t.transactions.explain``; empty where it did not get as far as a transaction.
        fragments, sample: empty, for callers that treat all alike: what overlapped cannot be read.
    """

    kind = "history-unavailable"
    retryable = True
    default_advice = "Nothing was committed. Open the table anew and run the operation on the newest version."

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
    """Adds what the place that raised the error could not know of the commit; what it did know stays."""
    if isinstance(error, ConflictError | ContentionError | HistoryUnavailable):
        error.transaction_id = error.transaction_id or transaction_id
        error.attempts = error.attempts or attempts
    if isinstance(error, ConflictError | ContentionError | OutcomeUnknown | HistoryUnavailable):
        error.operation = error.operation or operation
        error.read_version = read_version if error.read_version is None else error.read_version
    if isinstance(error, ContentionError | OutcomeUnknown | HistoryUnavailable):
        error.winners = error.winners or tuple(winners)


class CorruptTable(TiltyardError):
    """A file of the table does not hold what it must.

    Attributes:
        file: path of the file inside the table.
        reason: what is wrong with it.
    """

    kind = "corrupt-table"
    default_advice = "Restore this file from a copy, or open another version."

    def __init__(self, file: str, reason: str, *, advice: str | None = None) -> None:
        super().__init__(f"{file} is corrupt: {reason}.", advice=advice)
        self.file = file
        self.reason = reason


class UnsupportedFeature(TiltyardError):
    """The table uses something this release does not know.

    Attributes:
        feature: what it is.
        bits: unknown feature bits, as powers of two.
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
    """The store overwrites where it was told to create, so two writers could both win one version."""

    kind = "unsafe-store"
    default_advice = "Nothing was committed. Use handler=ty.locks.LockHandler(ty.locks.PostgresLock(...)), or another store."

    def __init__(self, what: str, *, store: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.store = store


class OwnershipError(TiltyardError):
    """A root, catalog or directory belongs to another lake, or to one whose catalog is gone. Nothing was changed.

    Attributes:
        root: where the tables are.
        lake: id of the lake that it belongs to; empty where nobody knows.
        catalog: the catalog of that lake, without credentials; empty where nobody knows.
    """

    kind = "ownership"

    def __init__(self, what: str, *, root: str = "", lake: str = "", catalog: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.root = root
        self.lake = lake
        self.catalog = catalog


class NotFound(TiltyardError, LookupError):
    """There is no such table, version, tag, branch or object."""

    kind = "not-found"

    def __init__(self, what: str, *, name: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.name = name


class AlreadyExists(TiltyardError):
    """The name is taken: an object, a table, a tag."""

    kind = "already-exists"

    def __init__(self, what: str, *, name: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.name = name

    @classmethod
    def table(cls, uri: str) -> AlreadyExists:
        """There is a table where one was to be made."""
        return cls(f"There is a table at {uri} already.", name=uri, advice="Open it, or use overwrite to replace its rows.")


class AlreadyCommitted(TiltyardError):
    """The same piece of work was committed before, by whomever. Nothing of this try is visible; what it wrote can go.

    Attributes:
        source: who numbers the work, as ``tiltyard.distributed.once`` was told.
        number: that of this piece.
        last: the highest one the table has.
    """

    kind = "already-committed"
    default_advice = "There is nothing to do: the rows are there."

    def __init__(self, what: str, *, source: str = "", number: int = 0, last: int = 0, advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.source = source
        self.number = number
        self.last = last


class InvalidInput(TiltyardError, ValueError):
    """An argument or the data given cannot be used. Nothing was written."""

    kind = "invalid-input"

    def __init__(self, what: str, *, argument: str = "", advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.argument = argument


class StorageError(TiltyardError, OSError):
    """The store failed.

    Attributes:
        maybe_applied: whether the request may have been carried out all the same.
        transient: whether trying again may help.
        unsynced: whether the object is there but may not survive a power loss.
        name: the object concerned.
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
