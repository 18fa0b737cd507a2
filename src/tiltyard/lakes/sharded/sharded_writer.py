"""The verbs of a sharded table, as a handle has them: each is one lake transaction over the shards it concerns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.handles.rows import MergeBuilder
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.lakes.sharded import shard_verbs
from tiltyard.lakes.sharded.shard_definitions import reshard
from tiltyard.lakes.sharded.shard_parts import ShardedIndices, ShardedSettings, ShardedUpkeep
from tiltyard.lakes.sharded.shard_verbs import Describes
from tiltyard.lakes.sharded.sharded_reader import ShardedReading
from tiltyard.options import Backfill, CommitOptions, FileLimits, OnDuplicate
from tiltyard.table import TableWriter
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.arguments import sql_where
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy
from tiltyard.verbs.engine.row_input import as_rows
from tiltyard.verbs.merge_plan import MergePlan, merge_on
from tiltyard.verbs.update import Mode

if TYPE_CHECKING:
    from tiltyard.lakes.sharded.sharded_tables import ShardedTransactionTable


class ShardedVerbs(ShardedReading, TableWriter):
    """The verbs of a sharded table: each is one lake transaction over the shards it concerns."""

    @abstractmethod
    def _transact(self, work: Callable[[ShardedTransactionTable], CommitResult], says: Describes, *, once: bool = False) -> CommitResult:
        """Does something in a transaction; ``once`` for what cannot be re-executed."""

    def in_transaction(
        self,
        work: Callable[[ShardedTransactionTable], Sequence[CommitResult]],
        operation: str,
        *,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Runs a function on the shards inside one transaction, again after a retryable conflict.

        The sum of what it returns.

        Args:
            work: is given this table in the transaction; ``physical(number)`` is a shard with its verbs.
            operation: what the result calls it.
            message: a sentence for the history.
            commit: properties, re-executions and deadline.
        """
        return self._transact(lambda table: shard_verbs.summed(work(table), operation, table.version), Describes(message, commit))

    @abstractmethod
    def _compact(self, work: Callable[[TableWriter], CommitResult]) -> CommitResult:
        """Compacts each shard by that."""

    @property
    def indices(self) -> ShardedIndices:
        """Lists, creates, drops and optimizes indices of all shards."""
        return ShardedIndices(self)

    @property
    def settings(self) -> ShardedSettings:
        """Config and metadata of all shards."""
        return ShardedSettings(self)

    @property
    def maintenance(self) -> ShardedUpkeep:
        """Compaction and checks of all shards."""
        return ShardedUpkeep(self)

    def append(
        self,
        data: Any,
        *,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Adds each row to its shard; arguments are those of ``TableWriter.append``."""
        rows, says = as_rows(data), Describes(message, commit)
        once = not isinstance(rows, pa.Table)
        return self._transact(lambda table: shard_verbs.append(table, rows, on_duplicate, says, files), says, once=once)

    def overwrite(
        self,
        data: Any,
        *,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Replaces all rows and columns, the shard columns excepted.

        Arguments are those of ``TableWriter.overwrite``; there is no one version to expect."""
        if commit is not None and commit.expected_version is not None:
            raise InvalidInput(
                "expected_version is not supported on a sharded table: each shard has its own version.",
                argument="expected_version",
                advice="Use a serializable transaction.",
            )
        rows, says = as_rows(data), Describes(message, commit)
        once = not isinstance(rows, pa.Table)
        return self._transact(lambda table: shard_verbs.overwrite(table, rows, primary_key, on_duplicate, says, files), says, once=once)

    def delete(self, where: str, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Deletes the rows that a condition holds for; arguments are those of ``TableWriter.delete``."""
        condition = sql_where(where)
        return self._transact(
            lambda table: shard_verbs.change(
                table, condition, lambda shard: shard.delete(condition, message=message, commit=commit), "Delete"
            ),
            Describes(message, commit),
        )

    def update(
        self,
        values: Mapping[str, str],
        where: str | None = None,
        mode: Mode = "auto",
        *,
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Gives columns new values in the rows that a condition holds for.

        Arguments are those of ``TableWriter.update``."""
        shard_verbs.refuse_shard_columns(self.sharding, values, "updated", "values")
        return self._transact(
            lambda table: shard_verbs.change(
                table, where, lambda shard: shard.update(values, where, mode, message=message, commit=commit, files=files), "Update"
            ),
            Describes(message, commit),
        )

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | None = None,
        *,
        allow_duplicates: bool = False,
        files: FileLimits | None = None,
    ) -> MergeBuilder:
        """Merges rows by key.

        Arguments are those of ``TableWriter.merge``, and ``on`` holds the shard columns."""
        rows = as_rows(source)
        whole = rows if isinstance(rows, pa.Table) else rows.read_all()

        def run(plan: MergePlan, described: Mapping[str, str], policy: ReexecutionPolicy) -> CommitResult:
            says = Describes(None, CommitOptions(described, reexecutions=policy.reexecutions, deadline=policy.deadline))
            return self._transact(lambda table: shard_verbs.merge(table, whole, plan, described, policy), says)

        return MergeBuilder(run, merge_on(on, allow_duplicates, files))

    def add_columns(
        self,
        columns: Any,
        *,
        on: str | None = None,
        read_columns: Sequence[str] | None = None,
        backfill: Backfill | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Adds columns to all rows of all shards; arguments are those of ``TableWriter.add_columns``."""
        given = shard_verbs.for_all_shards(columns, backfill)
        return self._change_columns(
            lambda shard: shard.add_columns(given, on=on, read_columns=read_columns, backfill=backfill, message=message, commit=commit),
            Describes(message, commit),
        )

    def drop_columns(self, columns: Sequence[str], *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Drops columns of all shards; arguments are those of ``TableWriter.drop_columns``."""
        shard_verbs.refuse_shard_columns(self.sharding, columns, "dropped", "columns")
        return self._change_columns(lambda shard: shard.drop_columns(columns, message=message, commit=commit), Describes(message, commit))

    def alter_columns(self, *changes: Mapping[str, Any], message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Renames or casts columns of all shards, but for the shard columns.

        Arguments are those of ``TableWriter.alter_columns``."""
        paths = [str(change["path"]) for change in changes if isinstance(change, Mapping) and "path" in change]
        shard_verbs.refuse_shard_columns(self.sharding, paths, "altered", "changes")
        return self._change_columns(lambda shard: shard.alter_columns(*changes, message=message, commit=commit), Describes(message, commit))

    def _change_columns(self, work: Callable[[TransactionTable], CommitResult], says: Describes) -> CommitResult:
        return self._transact(lambda table: shard_verbs.change_columns(table, work, says), says)

    def reshard(self, shards: int, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Rewrites all rows into another number of shards, in one transaction. Indices are built again.

        Readers see the old shards or the new ones. Others who write meanwhile conflict with it: they, or this, are re-executed.

        Args:
            shards: how many there are to be; the same number moves rows that a foreign writer put into the wrong shard.
            message: a sentence for the history.
            commit: properties, re-executions and deadline.

        Raises:
            KeyConflict: two rows have one key, as foreign writers can leave them; nothing was changed.
        """
        says = Describes(message, commit)
        return self._transact(lambda table: reshard(table, shards), says)
