"""History, changes and checks of a table, and the low-level commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from tiltyard.handles.base import Handle
from tiltyard.options import CommitOptions
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.changes import changes_between
from tiltyard.verbs.check.check_table import check_table
from tiltyard.verbs.check.findings import CheckReport
from tiltyard.verbs.commit_operation import as_transaction, commit_transaction
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.explain import Explanation, FailedAttempt, attempts_of, explain_transaction
from tiltyard.verbs.outcome import Outcome, outcome_of
from tiltyard.verbs.table_history import HistoryEntry, describe, history

Uri = str | os.PathLike[str]


class TableTransactions:
    """What became of single transactions."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    def describe(self, version: int | None = None) -> HistoryEntry:
        """The history entry of one version; by default the handle's."""
        table = self._table
        if version is not None and version != table.version:
            table._access.load(version, table._scheme)
        return describe(table._access.log, table.version if version is None else version, table._scheme)

    def outcome(self, transaction_id: str, *, version: int | None = None) -> Outcome:
        """What became of a transaction that ended in ``OutcomeUnknown``.

        Args:
            transaction_id: the id in the error.
            version: the version in the error; the handle remembers it for its own commits.

        Returns:
            ``Committed(version)``, ``NotCommitted(reason)`` or ``Unknown(reason)``, see ``tiltyard.outcomes``.
        """
        return outcome_of(self._table._access, transaction_id, self._tried(transaction_id, version))

    def explain(self, transaction_id: str, *, version: int | None = None) -> Explanation:
        """What became of a transaction, and why: what it was rebased over, or what it conflicts with.

        A commit that fails because of others (a conflict, contention, a history that cannot be read) leaves a small record, which this
        reads; its error has the ``transaction_id``. With the config key ``tiltyard.failed_attempts`` set to ``off`` there is none.

        Args:
            transaction_id: the id, in full.
            version: the version it tried to make, if an ``OutcomeUnknown`` said so.
        """
        return explain_transaction(self._table._access, transaction_id, self._tried(transaction_id, version))

    def failed(self) -> list[FailedAttempt]:
        """Commits that failed because of others, latest first; a cleanup removes their records."""
        return sorted(attempts_of(self._table._access), key=lambda attempt: attempt.time, reverse=True)

    def _tried(self, transaction_id: str, version: int | None) -> int | None:
        return self._table._in_doubt.get(transaction_id) if version is None else version


class History(Handle):
    """History and checks of a handle."""

    @property
    def transactions(self) -> TableTransactions:
        """What became of single transactions."""
        return TableTransactions(self)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The versions with who made them and how, latest first."""
        return list(history(self._access, limit))

    def changes(
        self, since: int, until: int | None = None, *, old_values: bool = False, columns_of: int | None = None
    ) -> pa.RecordBatchReader:
        """What changed after one version up to another, as a stream of rows.

        The rows have the columns of ``until``; what a row is too old to have is null. ``_change`` is ``"insert"``, ``"update"`` or
        ``"delete"`` and ``_version`` the version that made the change. Versions come in order, and in each of them deletions first,
        insertions last. Updates show the new values; tables without stable row ids know none of them and show a deletion and an
        insertion. Compaction, schema changes and the like change no row.

        Args:
            since: the version to begin after; 0 for the whole history.
            until: the last version; by default this handle's.
            old_values: whether there is a column ``_old`` that has the values before each update.
            columns_of: a later version, to show the rows with its columns instead: then the feeds of parts of a history, one after the
                other, are the feed of all of it.

        Raises:
            HistoryUnavailable: a version that is needed was cleaned up.
            NotFound: there is no such version yet.
        """
        last = self.version if until is None else until
        return changes_between(self._access, since, last, self._scheme, old_values=old_values, columns_of=columns_of)

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks the table: metadata of all versions, and keys of this one.

        Args:
            versions: which ones; all by default.
            data: whether every file is read, too, and compared with the digest that was kept when it was written, and every row of this
                version with what the indices answer. Files that others wrote have no digest; they are counted as ``unverified``.
            progress: called with how many of how many bytes were read.
        """
        return check_table(self._access, versions, data=data, progress=progress)


class CommitVerb(Handle):
    """How a handle adds to the history directly."""

    def commit(
        self,
        operation: Operation | Transaction,
        *,
        read_version: int | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Commits an operation whose files are written already.

        It cannot be re-executed here, so a conflict is raised at once, whatever it allows.

        Args:
            operation: an operation, or a whole transaction of any Lance writer, which brings version and properties along.
            read_version: the version it was built on; by default this handle's.
            message: a sentence for the history.
            commit: properties, race retries and deadline; ``reexecutions`` does not apply.

        Raises:
            ConflictError: it conflicts with a commit in between; see ``tiltyard.conflicts.resolve``.
            ContentionError, HistoryUnavailable, OutcomeUnknown: see ``tiltyard.errors``.
        """
        terms, bounds = commit_terms(commit, message)
        policy = replace(bounds.race, deadline=bounds.deadline)
        access, read = self._whole()
        described = None if message is None and (commit is None or commit.properties is None) else terms
        transaction = as_transaction(operation, read_version, described, access, read)
        return self._commit(lambda: (access, read), commit_transaction, transaction, policy)
