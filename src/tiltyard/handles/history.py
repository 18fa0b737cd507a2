"""Verbs about a table's past and its health, and the low door into its history."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.names import Scheme
from tiltyard.handles.base import Handle
from tiltyard.storage import Durability
from tiltyard.transaction.commit import CommitResult
from tiltyard.transaction.operations import Operation
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.check.check_table import CheckReport, check_table
from tiltyard.verbs.commit_operation import as_transaction, commit_transaction
from tiltyard.verbs.engine.access import open_place
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.explain import Explanation, FailedAttempt, attempts_of, explain_transaction
from tiltyard.verbs.outcome import Outcome, outcome_of
from tiltyard.verbs.table_history import HistoryEntry, describe, history
from tiltyard.verbs.table_settings import migrate_names

Uri = str | os.PathLike[str]


class History(Handle):
    """What a handle knows of the past, and how it adds to it directly."""

    def commit(
        self,
        operation: Operation | Transaction,
        *,
        read_version: int | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        deadline: float | None = None,
    ) -> CommitResult:
        """The low door: commits an operation whose files are written already.

        Nobody can work it out again here, so a conflict is raised at once, whatever it allows.

        Args:
            operation: an operation, or a whole transaction of any Lance writer, which brings the next three along.
            read_version: the version it was built on; by default this handle's.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            deadline: seconds after which it is not begun again.

        Raises:
            ConflictError: a commit in between does not go together with it; see ``tiltyard.resolve``.
            ContentionError, HistoryUnavailable, OutcomeUnknown: see ``tiltyard.errors``.
        """
        policy = replace(retry_policy(max_retries), deadline=RerunPolicy(deadline=deadline).deadline)
        read, scheme = self._file, self._scheme
        described = None if properties is None and message is None else properties_with_message(properties, message)
        transaction = as_transaction(operation, read_version, described, self._place, read)
        return self._commit(lambda: commit_transaction(self._place, read, scheme, transaction, policy))

    def versions(self) -> list[int]:
        """The versions that can still be opened, ascending."""
        return [name.version for name in self._place.log.versions()]

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """What happened, newest first."""
        return list(history(self._place, limit))

    def describe(self, version: int | None = None) -> HistoryEntry:
        """The history entry of one version; by default this handle's."""
        if version is not None and version != self.version:
            self._place.load(version, self._scheme)
        return describe(self._place.log, self.version if version is None else version, self._scheme)

    def outcome(self, transaction_id: str, *, version: int | None = None) -> Outcome:
        """What became of a transaction that ended in ``OutcomeUnknown``.

        Args:
            transaction_id: the id in the error.
            version: the version in the error; this handle remembers it for its own commits.

        Returns:
            ``Committed(version)``, ``NotCommitted(reason)`` or ``Unknown(reason)``.
        """
        return outcome_of(self._place, transaction_id, self._in_doubt.get(transaction_id) if version is None else version)

    def why(self, transaction_id: str, *, version: int | None = None) -> Explanation:
        """What became of a transaction, and why: what it was rebased over, or what stood in its way.

        A commit that fails because of others (a conflict, contention, a history that cannot be read) leaves a small record, from which
        this tells of it: its error has the ``transaction_id``. The config key ``tiltyard.failed_attempts`` set to ``off`` leaves none.

        Args:
            transaction_id: the id, in full.
            version: the version it tried to make, if an ``OutcomeUnknown`` said so.
        """
        return explain_transaction(self._place, transaction_id, self._in_doubt.get(transaction_id) if version is None else version)

    def failed_attempts(self) -> list[FailedAttempt]:
        """Commits that failed because of others, newest first, as far as no cleanup has removed their records."""
        return sorted(attempts_of(self._place), key=lambda one: one.time, reverse=True)

    @staticmethod
    def outcome_at(
        uri: Uri, transaction_id: str, *, version: int | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> Outcome:
        """What became of a transaction, where there may be no table: that of a ``create`` which ended in ``OutcomeUnknown``.

        Args:
            uri: where the table is, or was to be.
            transaction_id: the id in the error.
            version: the version in the error.
            storage_options: as for pylance: keys, endpoint, region.
        """
        return outcome_of(open_place(uri, storage_options=storage_options), transaction_id, version)

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks every promise a table's files can keep or break; reads metadata of all versions, and keys of this one.

        Args:
            versions: which ones; all by default.
            data: whether every file is read, too, and compared with the digest that was kept when it was written, and every row of this
                version with what the indices answer. Files that others wrote have no digest; they are counted as ``unverified``.
            progress: called with how many of how many bytes were read.
        """
        return check_table(self._place, versions, data=data, progress=progress)

    def migrate_manifest_names(self) -> int:
        """Renames manifests from V1 to V2 names. Only while nobody else uses the table. Returns how many were renamed."""
        if self.branch is not None:
            raise UnsupportedFeature("Names are migrated from the main branch.", feature="migration", writing=True)
        count = migrate_names(self._place)
        self._move(self._file, Scheme.V2)
        self._lance = None  # pylance knows the version by its old name
        return count

    @staticmethod
    def resume_migration(uri: Uri, *, storage_options: Mapping[str, Any] | None = None, durability: Durability = "fsync") -> int:
        """Ends a migration of manifest names that was interrupted and left a table that does not open. Returns how many it renamed."""
        return migrate_names(open_place(uri, storage_options=storage_options, durability=durability))
