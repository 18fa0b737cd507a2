"""Verbs that keep a table in shape, as ``t.maintenance`` has them. They change no row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.names import Scheme
from tiltyard.handles.base import Handle, shorthand
from tiltyard.options import CommitOptions
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.check.check_table import check_table
from tiltyard.verbs.check.findings import CheckReport
from tiltyard.verbs.cleanup.cleanup_plan import GRACE, Policy
from tiltyard.verbs.cleanup.run_cleanup import CleanupReport, Progress, cleanup_table
from tiltyard.verbs.compact import Compaction, compact_table
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.statistics.analyze import TableStatistics, analyze_table
from tiltyard.verbs.table_settings import migrate_names


class Upkeep:
    """Maintenance that any handle that writes may do."""

    def __init__(self, table: Handle) -> None:
        self._table = table

    def compact(
        self,
        *,
        target_rows: int = 1024 * 1024,
        max_bytes: int | None = None,
        deletions: float | None = 0.1,
        progress: Progress | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Rewrites small fragments, and those with many deletions, into fewer ones.

        Others may write meanwhile: deletions and updates are rebased, and neither side is re-executed. Indices stay valid.

        Args:
            target_rows: rows that a fragment should have; smaller neighbours are joined.
            max_bytes: bytes after which a new data file is begun.
            deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
            progress: called with how many of how many groups of fragments are written.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it. If there was nothing to gain, nothing is committed and ``version`` stays.
        """
        compaction = Compaction(target_rows, max_bytes, deletions, progress)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, compact_table, compaction, described, policy)

    def optimize(
        self,
        where: str | None = None,
        *,
        cluster_by: Sequence[str] = (),
        target_rows: int = 1024 * 1024,
        progress: Progress | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Sorts the rows of fragments by columns, or compacts these, where a condition may hold.

        Others may write meanwhile. On a table without stable row ids, a change of rows that are being sorted is a conflict: the second
        of the two is re-executed. Indices stay valid.

        Args:
            where: only fragments that may hold rows for which this condition is true, by their statistics.
            cluster_by: columns that all rows of these fragments are sorted by: in Z-order, if there are several. Without them rows keep
                their order, and only small fragments and those with many deletions are rewritten.
            target_rows: rows that a fragment should have.
            progress: called with how many of how many parts are written.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it. If there was nothing to gain, nothing is committed and ``version`` stays.

        Raises:
            InvalidInput: a column does not exist or cannot be sorted, or the condition is not a condition.
            UnsupportedFeature: the rows are to be sorted, and have blobs.
        """
        compaction = Compaction(target_rows, progress=progress, where=where, cluster_by=cluster_by)
        described, policy = commit_terms(commit, message)
        table = self._table
        return table._commit(table._whole, compact_table, compaction, described, policy)

    def analyze(self, columns: Sequence[str] | None = None, *, progress: Progress | None = None) -> TableStatistics:
        """Reads columns without statistics, keeps what it finds beside the data, and says what is known.

        Writers keep bounds and nulls of long data files by themselves. This adds what they left out: short files, those of foreign writers,
        and how many distinct values there are. Nothing is committed, and ``version`` stays: statistics belong to data files.

        Args:
            columns: which; all that statistics are kept of without.
            progress: called with how many of how many fragments were read.

        Raises:
            InvalidInput: there is no such column, or statistics are not kept of its type.
        """
        access, file = self._table._whole()
        return analyze_table(access, file.manifest, columns, progress)

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks the table; arguments are those of ``TableReader.check``."""
        return check_table(self._table._access, versions, data=data, progress=progress)


class TableMaintenance(Upkeep):
    """Maintenance of a table that no lake owns: compaction, checks, cleanup, migration of names."""

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
        """Removes old versions and uncommitted files. Others may read and write meanwhile.

        It removes versions older than ``older_than`` and not among the ``keep_versions`` latest, whichever of the two is given; with
        neither, only uncommitted files are removed. The latest version always stays, as do those that a tag, a
        branch or ``keep`` names and the one this handle is at. A writer that built on a removed version gets ``HistoryUnavailable``.
        With ``keep_versions`` alone, versions of the last hour stay where writers of other software were seen within it.

        Args:
            older_than: how old a version has to be.
            keep_versions: how many of the latest stay.
            keep: versions that stay, this time.
            dry_run: only report what would be removed, and why.
            progress: called with how many of how many files are deleted.
            grace: how old a file must be that no version names: longer than your longest write. Zero is for a table without other users.

        Returns:
            What was removed, what stayed, and why.
        """
        policy = Policy(older_than, keep_versions, frozenset(keep), grace)
        table = self._table
        return cleanup_table(table._access, table._main, table.version, policy, dry_run=dry_run, progress=progress)

    def migrate_manifest_names(self) -> int:
        """Renames manifests from V1 to V2 names; returns how many. Only while nothing else uses the table."""
        table = self._table
        if table.branch is not None:
            raise UnsupportedFeature(
                "The names of manifests are migrated on the main branch only.",
                advice="Open the table without branch=.",
                feature="migration",
                writing=True,
            )
        count = migrate_names(table._access)
        table._move(table._file, Scheme.V2)
        table._lance = None  # pylance knows the version by its old name
        return count


class UpkeepVerbs(Handle):
    """Maintenance of a handle that writes, and its shorthand."""

    @property
    def maintenance(self) -> Upkeep:
        """Compaction and checks; on a table that no lake owns also cleanup."""
        return Upkeep(self)

    compact = shorthand("maintenance", Upkeep.compact)


class Cleaning(UpkeepVerbs):
    """Maintenance of a table that no lake owns: what a lake does for its tables, this one does for itself."""

    _cleans_up = True

    @property
    def maintenance(self) -> TableMaintenance:
        """Compaction, cleanup and checks."""
        return TableMaintenance(self)

    cleanup = shorthand("maintenance", TableMaintenance.cleanup)
