"""The verbs of a sharded table, as a handle has them: each is one lake transaction over the shards it concerns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.lakes.sharded import shard_verbs
from tiltyard.lakes.sharded.shard_definitions import reshard
from tiltyard.lakes.sharded.shard_parts import ShardedIndices, ShardedSettings, ShardedUpkeep
from tiltyard.lakes.sharded.shard_verbs import Describes
from tiltyard.lakes.sharded.sharded_reader import ShardedReading
from tiltyard.options import Backfill, CommitOptions, FileLimits
from tiltyard.table import TableWriter
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy
from tiltyard.verbs.engine.row_input import as_rows
from tiltyard.verbs.merge_plan import MergePlan
from tiltyard.verbs.update import Assignment
from tiltyard.verbs.write import Writing

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
        if commit is not None and commit.expected_version is not None:
            raise _no_one_version()
        return self._transact(lambda table: shard_verbs.summed(work(table), operation, table.version), Describes(message, commit))

    def _sees(self, version: int) -> bool:
        """Whether that is the version which all shards are expected at: the one that a transaction began with, and its own writes."""
        return False

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

    # The signatures are those of ``TableWriter``: what a verb is given comes here checked, and as values.

    def _append(self, data: Any, how: Writing, message: str | None, commit: CommitOptions | None) -> CommitResult:
        """Adds each row to its shard."""
        rows, says = as_rows(data), Describes(message, commit)
        once = not isinstance(rows, pa.Table)
        return self._transact(lambda table: shard_verbs.append(table, rows, how, says), says, once=once)

    def _overwrite(
        self, data: Any, primary_key: Sequence[str] | None, how: Writing, message: str | None, commit: CommitOptions | None
    ) -> CommitResult:
        """Replaces all rows and columns, the shard columns excepted. No one version is expected, but for what a transaction sees."""
        if commit is not None and commit.expected_version is not None and not self._sees(commit.expected_version):
            raise _no_one_version()
        rows, says = as_rows(data), Describes(message, commit)
        once = not isinstance(rows, pa.Table)
        return self._transact(lambda table: shard_verbs.overwrite(table, rows, primary_key, how, says), says, once=once)

    def _delete(self, condition: str, message: str | None, commit: CommitOptions | None) -> CommitResult:
        return self._transact(
            lambda table: shard_verbs.change(table, condition, lambda shard: shard._delete(condition, message, commit), "Delete"),
            Describes(message, commit),
        )

    def _update(self, assignment: Assignment, limits: FileLimits, message: str | None, commit: CommitOptions | None) -> CommitResult:
        """Gives columns new values, but for the shard columns."""
        shard_verbs.refuse_shard_columns(self.sharding, assignment.values, "updated", "values")
        return self._transact(
            lambda table: shard_verbs.change(
                table, assignment.where, lambda shard: shard._update(assignment, limits, message, commit), "Update"
            ),
            Describes(message, commit),
        )

    def _merge(self, source: Any, plan: MergePlan, described: Mapping[str, str], policy: ReexecutionPolicy) -> CommitResult:
        """Merges the rows of each shard into it: ``on`` has to hold the shard columns."""
        rows = as_rows(source)
        whole = rows if isinstance(rows, pa.Table) else rows.read_all()
        says = Describes(None, CommitOptions(described, reexecutions=policy.reexecutions, deadline=policy.deadline))
        return self._transact(lambda table: shard_verbs.merge(table, whole, plan, described, policy), says)

    def _add_columns(self, columns: Any, on: str | None, how: Backfill, message: str | None, commit: CommitOptions | None) -> CommitResult:
        """Adds columns to all rows of all shards."""
        given = shard_verbs.for_all_shards(columns, how)
        return self._change_columns(lambda shard: shard._add_columns(given, on, how, message, commit), Describes(message, commit))

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


def _no_one_version() -> InvalidInput:
    return InvalidInput(
        "expected_version is not supported on a sharded table: each shard has its own version.",
        argument="expected_version",
        advice="Use a serializable transaction.",
    )
