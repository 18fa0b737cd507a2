"""Maintenance of a lake: cleanup, check, backup, repair; and the namespace for clients that know only tables."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast

from tiltyard.errors import InvalidInput
from tiltyard.lakes.check_catalog import LakeCheckReport
from tiltyard.lakes.checking import check_lake
from tiltyard.lakes.cleanup.lake_cleanup import GRACE, LakeCleanupReport, Progress, cleanup_lake
from tiltyard.lakes.lake_clone import LakeClone, clone_lake
from tiltyard.lakes.merging.merge_branches import adopt_foreign
from tiltyard.lakes.recovery.backup import LakeBackup, backup_lake
from tiltyard.lakes.recovery.repairing import Keep, LakeRepairReport, repair_table
from tiltyard.lakes.recovery.upgrade import LakeUpgradeReport, upgrade_lake
from tiltyard.lakes.retention import Retention
from tiltyard.options import LakeRetention, Storage

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.namespace import LakeNamespace


class Keeping:
    """A lake, as far as its upkeep goes."""

    @property
    def _lake(self) -> Lake:
        return cast("Lake", self)

    def namespace(self, at: int | str | datetime | None = None) -> LakeNamespace:
        """The lake as a namespace for other Lance clients.

        ``lance.dataset(namespace_client=lake.namespace(), table_id=["sales", "orders"])`` opens a table.

        They list its tables and open them by name, at the version that the catalog has. What they commit through it is decided in the
        catalog, as a transaction of one table.

        Args:
            at: a snapshot, tag or timestamp, to be read only; by default the latest state, at each call.
        """
        from tiltyard.lakes.namespace import LakeNamespace

        return LakeNamespace(self._lake, at)

    def clone(
        self,
        uri: str | os.PathLike[str],
        at: int | str | datetime | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        catalog: Literal["sqlite", "manifest"] | None = None,
        storage: Storage | None = None,
        message: str | None = None,
    ) -> LakeClone:
        """Makes a new lake of a snapshot of this one, in one commit. No data is copied.

        Its tables name the files here.
        The clone is written to like any lake, and nothing of that is seen here. The snapshot gets a tag here, so that cleanups keep the
        files; delete it when the clone is gone.

        Args:
            uri: where to make it, as for ``Lake.open``; there may be an empty lake.
            at: the snapshot, a tag or a timestamp; the latest of this branch by default.
            root: of the clone, as for ``Lake.open``.
            catalog: of the clone, as for ``Lake.open``.
            storage: of the clone; by default that of this lake.
            message: for its history.

        Raises:
            AlreadyExists: there is a lake with tables.
            NotFound: there is no such snapshot.
            InvalidInput: it would be inside this lake.
        """
        from tiltyard.lake import Lake

        lake = self._lake
        if at is None:
            adopt_foreign(lake, lake.branch)
        shot = lake.snapshot(at)
        there = storage or replace(lake.where.storage, allowed_bases=())
        with Lake.open(uri, root=root, catalog=catalog, author=lake.author, storage=there) as target:
            return clone_lake(lake, target, shot, uri, message)

    # ---- upkeep ----------------------------------------------------------------------------------------------------------------

    def cleanup(
        self,
        *,
        older_than: timedelta | None = None,
        keep_snapshots: int | None = None,
        dry_run: bool = False,
        grace: timedelta = GRACE,
        retention: LakeRetention | None = None,
        progress: Progress | None = None,
    ) -> LakeCleanupReport:
        """Removes old snapshots, what only they need, and files of dead transactions.

        Others may read and write meanwhile.

        A snapshot is removed if it is older than ``older_than`` and not among the ``keep_snapshots`` latest of its branch, whichever of
        the two is given; with neither, no snapshot is removed. The latest of each branch always stays, as do those that a tag names and
        those that a branch began at. A transaction that was built on a removed snapshot gets ``HistoryUnavailable``.

        A directory is deleted only if its own mark says that this lake made it, and a record of the catalog that nothing needs it. All
        other directories that no snapshot shows are ``orphans`` of the report, and stay.

        Args:
            older_than: how old a snapshot has to be.
            keep_snapshots: how many of the latest stay.
            dry_run: only reports what would be removed.
            grace: how long a transaction may be silent before it is aborted; if it continues after that it is refused. Uncommitted
                files wait for seven days at least. Zero, for a lake without other users, waits for nothing.
            retention: how long outcomes and idempotency keys hold, whether snapshots are pinned, and which orphans are deleted.
            progress: called with how many of how many tables are done.
        """
        snapshots, kept = Retention(older_than, keep_snapshots), retention or LakeRetention()
        try:
            return cleanup_lake(self._lake, snapshots, grace, kept, dry_run=dry_run, progress=progress)
        finally:
            self._lake.forget_stores()  # they may remember directories that are gone

    def backup(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> LakeBackup:
        """Writes the catalog, as of one moment, into a file that ``Lake.restore`` reads.

        Others may write meanwhile.

        The tables are not in it: copy them by other means, or keep them where they are. A file of that name is replaced once the new
        one is whole.

        Args:
            path: a local file.
            progress: called with how many of how many records are done.
        """
        return backup_lake(self._lake, path, progress=progress)

    def upgrade(self, *, dry_run: bool = False, progress: Progress | None = None) -> LakeUpgradeReport:
        """Upgrades a lake of an earlier release: claims its root and marks its tables as this lake's.

        Others may work meanwhile, with this release; an earlier one cannot open the lake any more. It is safe to repeat.

        Args:
            dry_run: only says what would be done.
            progress: called with how many of how many tables are done.
        """
        return upgrade_lake(self._lake, dry_run=dry_run, progress=progress or (lambda done, total: None))

    def check(self, *, tables: bool = True, data: bool = False, progress: Progress | None = None) -> LakeCheckReport:
        """Checks the catalog, that it agrees with the tables, and each of the tables.

        What was committed and not finished is finished first, as any reader would. Others may work meanwhile.

        Args:
            tables: whether every version of every table is checked, too, which reads all their metadata.
            data: whether all files of these are read and compared with their digests, as ``Table.check`` does.
            progress: called with how many of how many tables are done.

        Raises:
            InvalidInput: ``data`` without ``tables``.
        """
        if data and not tables:
            raise InvalidInput(
                "data=True needs tables=True: the data is checked together with the tables.",
                argument="data",
                advice="Leave tables=False out.",
            )
        return check_lake(self._lake, tables=tables, data=data, progress=progress)

    def repair(self, table: str, *, keep: Keep | None = None) -> LakeRepairReport:
        """Repairs a quarantined table.

        It refuses writes because a foreign writer took the number of a version that was committed together with
        others. The version that loses is moved aside, not deleted.

        Where there is nothing to decide, unfinished commits are finished, versions of foreign writers are adopted, and a lost name is
        restored.

        Args:
            table: which one.
            keep: ``"ours"`` for the version of the lake, ``"theirs"`` for the other one. With theirs, the other tables keep what was
                committed together with the version that is lost.

        Raises:
            InvalidInput: the caller has to decide, and ``keep`` is missing.
            NotFound: there is no such table.
        """
        return repair_table(self._lake, table, keep)
