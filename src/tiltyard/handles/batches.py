"""``t.writer``: appends of many threads, committed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tiltyard.batching.batch_commit import BatchTarget
from tiltyard.batching.batch_writer import BatchWriter
from tiltyard.batching.write_buffer import BatchLimits
from tiltyard.errors import InvalidInput, KeyConflict, NotFound, OutcomeUnknown
from tiltyard.handles.base import Handle
from tiltyard.interfaces import Runtime
from tiltyard.options import CommitOptions, FileLimits, OnDuplicate
from tiltyard.transaction.operations import Append
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.verify import marks_in
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.engine.row_input import conformed
from tiltyard.verbs.keys.batch_keys import clashing_parts
from tiltyard.verbs.keys.primary_keys import Key, check_comparable, distinct_keys, primary_key_of
from tiltyard.verbs.outcome import Outcome, outcome_of
from tiltyard.verbs.write import Writing, append_rows


@dataclass(frozen=True, slots=True)
class HandleTarget:
    """A handle, as a batching writer uses it."""

    table: Handle
    how: Writing
    commit: CommitOptions | None

    @property
    def runtime(self) -> Runtime:
        return self.table._blind()[0].runtime

    def fit(self, rows: pa.Table) -> pa.Table:
        try:
            return self._fitted(rows)
        except InvalidInput:
            self.table.refresh()  # the columns may have changed
            return self._fitted(rows)

    def _fitted(self, rows: pa.Table) -> pa.Table:
        read = self.table._blind()[1]
        match = self.table._appends.at(read).match(rows.schema)
        fitting = conformed(rows, match.schema, match.check_not_null)
        key = self._key()
        if key is not None:
            distinct_keys(key.of(fitting), "The rows have", Append.name)
        return fitting

    def _key(self) -> Key | None:
        """The key that must hold; None where there is none, or duplicates are allowed."""
        manifest = self.table._blind()[1].manifest
        key = primary_key_of(manifest) if self.how.on_duplicate == "error" else None
        return None if key is None else check_comparable(manifest, key)

    def append(self, rows: pa.Table) -> CommitResult:
        table, (described, policy) = self.table, commit_terms(self.commit, None)
        return table._commit(table._blind, append_rows, rows, table._appends, described, self.how, policy)

    def catch_up(self) -> bool:
        access, mine = self.table._blind()
        version = mine.manifest.version
        newest = self.table.refresh()._blind()[1]
        if newest is mine:
            return True
        if newest.manifest.version <= version:  # a table that is made again counts from 1
            return False
        try:
            there = access.log.load(version, self.table._scheme)
        except NotFound:
            return True  # it was cleaned up
        return there.message.joined() == mine.message.joined()

    def culprits(self, parts: Sequence[pa.Table]) -> dict[int, KeyConflict | None]:
        access, read = self.table._blind()
        key = self._key()
        return {} if key is None else clashing_parts(access, read.manifest, key, parts)

    def outcome(self, error: OutcomeUnknown) -> Outcome:
        return outcome_of(self.table._access, error.transaction_id, error.version)


class WriterVerb(Handle):
    """A handle that many small appends go through. Not one in a transaction: that commits at its end, and nothing before."""

    def writer(
        self,
        *,
        max_delay: float = 1.0,
        max_rows: int = 1024 * 1024,
        max_bytes: int = 64 * 1024 * 1024,
        buffer_bytes: int | None = None,
        on_duplicate: OnDuplicate = "error",
        commit: CommitOptions | None = None,
    ) -> BatchWriter:
        """A writer that commits appends of many threads together.

        Each is acknowledged when its rows are committed::

            with t.writer(max_delay=0.5) as writer:
                receipt = writer.append(rows)     # from any thread
                receipt.result()                  # waits for the commit that has the rows

        Args:
            max_delay: seconds after which rows are committed, however few: how late readers may see them.
            max_rows: rows after which they are committed at once, and that a data file has at most.
            max_bytes: or bytes, in memory.
            buffer_bytes: bytes of rows not committed yet above which an append waits; four times ``max_bytes`` by default.
            on_duplicate: as for ``append``. A duplicate key is an error of the append that brings it, and of no other.
            commit: properties, retries and deadline of each commit.
        """
        limits = BatchLimits(max_delay, max_rows, max_bytes, buffer_bytes)
        described, policy = commit_terms(commit, None)
        if marks_in(described):
            raise InvalidInput(
                "A writer makes many commits, which cannot share one idempotency key.",
                argument="commit",
                advice="Append with t.append, or without the key.",
            )
        target = self._batch_target(Writing(FileLimits(max_rows, max_bytes), on_duplicate), commit)
        return BatchWriter(target, limits, policy.deadline)

    def _batch_target(self, how: Writing, commit: CommitOptions | None) -> BatchTarget:
        return HandleTarget(self, how, commit)
