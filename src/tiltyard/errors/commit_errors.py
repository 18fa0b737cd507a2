"""Errors of a commit that other writers or a lost answer kept from succeeding. All of them name the operation and the winners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiltyard.errors.general_errors import TiltyardError, Winner


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
        cause: ``write`` if both wrote to it, ``read`` if this transaction only read it, ``incompatible`` if it was dropped or renamed or
            its name is taken, ``foreign`` if a foreign writer took the version, ``replaced`` if another commit has that version number
            now, ``line`` if the lake's branch was recreated or fast-forwarded, ``name`` if a name that was looked up now belongs to
            another table, ``freed`` if a name that is taken or freed was in use by another table since (for ``line`` and ``freed`` the two
            versions are snapshots).
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


class MergeConflict(ConflictError):
    """Two branches of a lake changed the same things, or it is not known whether they did.

    Attributes:
        conflicts: all that conflicts, table by table.
    """

    kind = "merge-conflict"
    default_advice = "Nothing was committed. Settle the conflicts with on_conflict=, and merge again."

    def __init__(self, what: str, *, conflicts: Sequence[Any] = (), **facts: Any) -> None:
        super().__init__(what, **facts)
        self.conflicts = tuple(conflicts)


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
    default_advice = (
        "Nothing was committed. Try again when fewer writers are at work, batch small commits, or raise the limits in ty.CommitOptions."
    )
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
