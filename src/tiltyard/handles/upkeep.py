"""Verbs that keep a table in shape. They change no row."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.compact import Compaction, Progress, compact_table
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy


class Upkeep(Handle):
    """What a handle does for a table's shape."""

    def compact(
        self,
        *,
        target_rows: int = 1024 * 1024,
        max_bytes: int | None = None,
        deletions: float | None = 0.1,
        progress: Progress | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Puts the rows of small fragments, and of those with many deletions, into fewer ones. Others may write meanwhile.

        Rows that others delete or update while it works are followed: neither side starts again. Indices stay valid.

        Args:
            target_rows: rows that a fragment should have; smaller neighbours are joined.
            max_bytes: bytes after which a new data file is begun.
            deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
            progress: called with how many of how many groups of fragments are written.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Returns:
            What became of it. If there was nothing to gain, nothing is committed and ``version`` stays.
        """
        compaction = Compaction(target_rows, max_bytes, deletions, progress)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: compact_table(self._place, self._file, self._scheme, compaction, described, policy))
