"""Maintenance of a table that no lake owns: what a lake does for its tables, this one does for itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from tiltyard.handles.upkeep import TableMaintenance, UpkeepVerbs
from tiltyard.verbs.cleanup.cleanup_plan import GRACE
from tiltyard.verbs.cleanup.run_cleanup import CleanupReport, Progress


class Cleaning(UpkeepVerbs):
    """What a handle does to a table's past."""

    @property
    def maintenance(self) -> TableMaintenance:
        """Compaction, cleanup and checks."""
        return TableMaintenance(self)

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
        """Shorthand for ``t.maintenance.cleanup``."""
        return self.maintenance.cleanup(
            older_than=older_than, keep_versions=keep_versions, keep=keep, dry_run=dry_run, progress=progress, grace=grace
        )
