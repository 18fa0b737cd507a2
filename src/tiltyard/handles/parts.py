"""The door for verbs whose work is done in other processes: they read, match and write, this handle commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tiltyard.format.manifest_file import ManifestFile
from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.compact import Compaction, compact_table
from tiltyard.verbs.distributed.column_tasks import ColumnWorker, add_columns_of_parts
from tiltyard.verbs.distributed.compact_tasks import CompactRunner
from tiltyard.verbs.distributed.row_tasks import RowPlan, Worker, change_rows
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.indices.build_index import Build, IndexRunner, NewIndex, create_index
from tiltyard.verbs.indices.optimize_indices import mended


class PartVerbs(Handle):
    """What a handle commits of work that others did."""

    def scan_task(self) -> ScanTask:
        """Reads rows of this version from any process; it is pickled there."""
        place, file = self._data()
        return scan_task(place, file.manifest)

    def change_rows(
        self,
        worker: Worker,
        plan: RowPlan,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Deletes, updates or merges rows that were found and written elsewhere, in one commit.

        Args:
            worker: is given a pinned version and says what to change there; called again on the newest version after a conflict that
                allows it. It may return pieces of an earlier call again. What it wrote in vain is removed.
            plan: what it is going to do, for the rules about keys.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the worker is called again.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: the change does not fit the version it was worked out on, or the plan could double a primary key.
            KeyConflict: the source has two rows of one key, or others inserted our keys, again and again.
            RetryableConflict: others changed the same rows, again and again.
        """
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: change_rows(*self._data(), self._scheme, worker, plan, described, policy))

    def compact_parts(
        self,
        runner: CompactRunner,
        *,
        target_rows: int = 1024 * 1024,
        max_bytes: int | None = None,
        deletions: float | None = 0.1,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """``compact``, with the files written elsewhere.

        Args:
            runner: is given tasks, runs each of them somewhere, and returns what they returned, in the same order.
            target_rows: rows that a fragment should have; smaller neighbours are joined.
            max_bytes: bytes after which a new data file is begun.
            deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
        """
        compaction = Compaction(target_rows, max_bytes, deletions)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: compact_table(self._place, self._file, self._scheme, compaction, described, policy, runner))

    def create_index_parts(
        self,
        runner: IndexRunner,
        column: str,
        index_type: str,
        *,
        name: str | None = None,
        replace: bool = False,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        **options: Any,
    ) -> CommitResult:
        """``create_index``, with segments built elsewhere, each over some fragments. A vector index is built here all the same.

        Args:
            runner: is given a task and returns the segments that ``task.segment(fragments)`` made, over all fragments, each once.
            column: the column to index.
            index_type: such as ``"BTREE"``, ``"BITMAP"`` or ``"INVERTED"``.
            name: what it is called; the column's name with ``_idx`` by default.
            replace: whether it may take the place of an index of that name.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            options: what else this type of index takes.
        """
        kind = index_type.upper() if isinstance(index_type, str) else index_type
        new = NewIndex(Build(column, kind, options), name, replace)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)

        def work() -> tuple[CommitResult, ManifestFile]:
            done = create_index(self._place, self._file, self._scheme, new, described, policy, runner)
            return mended(self._place, done, self._scheme, described, policy)

        return self._commit(work)

    def add_columns_parts(
        self,
        columns: pa.Schema,
        worker: ColumnWorker,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """``add_columns``, with the values written elsewhere, by row address.

        Args:
            columns: what they are called and what they hold.
            worker: is given a task and returns for each of its fragments what ``task.write(fragment, values)`` returned; called again
                after a conflict, for fragments that changed.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the columns are fitted to the newest version after a conflict.
            deadline: seconds after which neither is begun again.
        """
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: add_columns_of_parts(*self._data(), self._scheme, columns, worker, described, policy))
