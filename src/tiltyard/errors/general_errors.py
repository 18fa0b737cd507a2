"""What every error has, and the errors that have nothing to do with other writers."""

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
    if callable(getattr(value, "to_dict", None)):
        return _plain(value.to_dict())
    return str(value)  # keys and rows may hold any type: timestamps, bytes, decimals


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
    default_advice = "Nothing was committed. Use ty.Storage(handler=ty.locks.LockHandler(ty.locks.PostgresLock(...))), or another store."

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


class ProtectedBranch(TiltyardError):
    """The rule of a protected branch does not allow a commit to it. Nothing was committed.

    Attributes:
        branch: which one.
        author: who wanted to commit.
        writers: who may; empty for all.
        checks: what had to be passed first; empty if that is not why.
    """

    kind = "protected-branch"

    def __init__(
        self, what: str, *, branch: str = "", author: str = "", writers: Sequence[str] = (), checks: Sequence[str] = (),
        advice: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, advice=advice)
        self.branch = branch
        self.author = author
        self.writers = tuple(writers)
        self.checks = tuple(checks)


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
        source: the name of the job that numbers the batches, as passed to ``tiltyard.distributed.once``.
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


class WriterTimeout(TiltyardError, TimeoutError):
    """A batching writer did not get as far as its caller wanted within the time it was given.

    Attributes:
        seconds: how long it had.
        appends: how many appends wait for their commit.
        bytes: how much memory their rows take.
    """

    kind = "writer-timeout"
    retryable = True

    def __init__(self, what: str, *, seconds: float = 0.0, appends: int = 0, bytes: int = 0, advice: str | None = None) -> None:
        super().__init__(what, advice=advice)
        self.seconds = seconds
        self.appends = appends
        self.bytes = bytes


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
