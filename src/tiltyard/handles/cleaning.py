"""Verbs about what a table no longer needs, and about what changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pyarrow as pa

from tiltyard.handles.base import Handle
from tiltyard.verbs.changes import changes_between
from tiltyard.verbs.cleanup.cleanup_plan import GRACE, Policy
from tiltyard.verbs.cleanup.run_cleanup import CleanupReport, Progress, cleanup_table


class Cleaning(Handle):
    """What a handle does to a table's past."""

    def cleanup(
        self,
        *,
        older_than: timedelta | None = None,
        keep_versions: int | None = None,
        keep: Iterable[int] = (),
        dry_run: bool = False,
        progress: Progress | None = None,
        grace: timedelta = GRACE,
    ) -> CleanupReport:
        """Removes old versions, and files that no version names. Others may read and write meanwhile.

        A version goes if it is older than ``older_than`` and not among the ``keep_versions`` newest, whichever of the two is given; with
        neither, no version goes and only leftovers are collected. The latest version always stays, as do those that a tag, a branch or
        ``keep`` names and the one this handle is at. A writer that built on a version that went gets ``HistoryUnavailable``.

        Args:
            older_than: how old a version has to be.
            keep_versions: how many of the newest stay.
            keep: versions that stay, this time.
            dry_run: only says what would go, and why.
            progress: called with how many of how many files are deleted.
            grace: how old a file must be that no version names: longer than your longest write. Zero is for a table that nobody else uses.

        Returns:
            What went, what stayed, and why.
        """
        policy = Policy(older_than, keep_versions, frozenset(keep), grace)
        return cleanup_table(self._place, self._main, self.version, policy, dry_run=dry_run, progress=progress)

    def changes(
        self, from_version: int, to_version: int | None = None, *, old_values: bool = False, columns_of: int | None = None
    ) -> pa.RecordBatchReader:
        """What changed after one version up to another, as a stream of rows.

        The rows have the columns of ``to_version``; what a row is too old to have is null. ``_change`` is ``"insert"``, ``"update"`` or
        ``"delete"`` and ``_version`` the version that made the change. Versions come in order, and in each of them deletions first,
        insertions last. Updates show the new values; tables without stable row ids know none of them and show a deletion and an
        insertion. Compaction, schema changes and the like change no row.

        Args:
            from_version: the version to begin after; 0 for the whole history.
            to_version: the last version; by default this handle's.
            old_values: whether there is a column ``_old`` that has the values before each update.
            columns_of: a later version, to show the rows with its columns instead: then the feeds of parts of a history, one after the
                other, are the feed of all of it.

        Raises:
            HistoryUnavailable: a version that is needed was cleaned up.
            NotFound: there is no such version yet.
        """
        last = self.version if to_version is None else to_version
        return changes_between(self._place, from_version, last, self._scheme, old_values=old_values, columns_of=columns_of)
