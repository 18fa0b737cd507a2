"""Work done in other processes, as ``t.distributed`` has it: they read, match and write, the handle commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.handles.pieces import PieceVerbs
from tiltyard.options import Backfill, CommitOptions
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.columns.replace_data import new_data, replace_data
from tiltyard.verbs.compact import Compaction, compact_table
from tiltyard.verbs.distributed.column_tasks import ColumnWorker, add_columns_of_parts
from tiltyard.verbs.distributed.compact_tasks import CompactRunner
from tiltyard.verbs.distributed.row_tasks import RowPlan, Worker, change_rows
from tiltyard.verbs.engine.reexecution import commit_terms


class DistributedVerbs(PieceVerbs):
    """Commits of files that other processes wrote, and tasks for these."""

    def change_rows(
        self, worker: Worker, plan: RowPlan, *, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """Deletes, updates or merges rows that were found and written elsewhere, in one commit.

        Args:
            worker: is given a pinned version and says what to change there; called again on the latest version after a retryable
                conflict. It may return pieces of an earlier call again. Uncommitted files are removed.
            plan: what it is going to do, for the rules about keys.
            message: a sentence for the history.
            commit: properties, retries and deadline; ``expected_version`` for a change that was made of a whole version: the worker is
                called with that one, once.

        Raises:
            ExpectedVersionMismatch: others committed after the expected version.
            InvalidInput: the change does not fit the version it was computed on, or the plan allows duplicate primary keys.
            KeyConflict: the source has duplicate keys, or others inserted our keys, again and again.
            RetryableConflict: others changed the same rows, again and again.
        """
        described, policy = commit_terms(commit, message, replaces=True)
        table, expected = self._table, None if commit is None else commit.expected_version
        return table._commit(table._data, change_rows, worker, plan, described, policy, expected)

    def compact(
        self,
        runner: CompactRunner,
        *,
        target_rows: int = 1024 * 1024,
        max_bytes: int | None = None,
        deletions: float | None = 0.1,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """``t.compact``, with the files written elsewhere.

        Args:
            runner: is given tasks, runs each of them somewhere, and returns what they returned, in the same order.
            target_rows: rows that a fragment should have; smaller neighbours are joined.
            max_bytes: bytes after which a new data file is begun.
            deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        compaction = Compaction(target_rows, max_bytes, deletions)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, compact_table, compaction, described, policy, runner)

    def optimize(
        self,
        runner: CompactRunner,
        where: str | None = None,
        *,
        cluster_by: Sequence[str] = (),
        target_rows: int = 1024 * 1024,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """``t.maintenance.optimize``, with the files written elsewhere.

        Args:
            runner: is given tasks, runs each of them somewhere, and returns what they returned, in the same order.
            where: only fragments that may hold rows for which this condition is true, by their statistics.
            cluster_by: columns that all rows of these fragments are sorted by: in Z-order, if there are several. Without them rows keep
                their order, and only small fragments and those with many deletions are rewritten.
            target_rows: rows that a fragment should have.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        compaction = Compaction(target_rows, where=where, cluster_by=cluster_by)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, compact_table, compaction, described, policy, runner)

    def add_columns(
        self, columns: pa.Schema, worker: ColumnWorker, *, message: str | None = None, commit: CommitOptions | None = None
    ) -> CommitResult:
        """``t.add_columns``, with the values written elsewhere, by row address.

        Args:
            columns: what they are called and what they hold.
            worker: is given a task and returns for each of its fragments what ``task.write(fragment, values)`` returned; called again
                after a conflict, for fragments that changed.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._data, add_columns_of_parts, columns, worker, described, policy)

    def replace_data(
        self,
        values: Any,
        columns: Sequence[str] | None = None,
        *,
        fragments: Sequence[int] | None = None,
        backfill: Backfill | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Replaces whole columns of fragments; the other columns stay as they are.

        Args:
            values: tables by fragment id with a row for each row of the fragment, in order; or a function from ``RecordBatch`` to
                ``RecordBatch``.
            columns: which ones; with tables, those they have.
            fragments: for which ids the function is called; all by default.
            backfill: ``read_columns``, what the function is given, ``columns`` by default; and ``progress``.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: a column or fragment does not exist, the column is part of the primary key, or the values do not fit.
            RetryableConflict: others changed these rows or columns.
        """
        how = backfill or Backfill()
        if how.schema is not None or how.batch_size is not None or how.checkpoint is not None:
            raise InvalidInput("schema, batch_size and checkpoint are for columns that are added.", argument="backfill")
        new = new_data(values, columns, how.read_columns, fragments, how.progress)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._data, replace_data, new, described, policy)


class PartVerbs(Handle):
    """Work done in other processes."""

    @property
    def distributed(self) -> DistributedVerbs:
        """Tasks for other processes, and commits of what these wrote."""
        return DistributedVerbs(self)
