"""The page about a lake's health: is it sound, what takes room, what a cleanup would remove, and what has no owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from lance_namespace import PermissionDeniedError

from tiltyard.catalog.lake_values import Snapshot
from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.lakes.check_catalog import LakeCheckReport
from tiltyard.lakes.cleanup.lake_cleanup import LakeCleanupReport
from tiltyard.lakes.cleanup.orphans import Orphan
from tiltyard.server.console.lake_viewer import LakeViewer, table_of
from tiltyard.server.console.page_values import ConsolePage, PageRequest, page_of, said

LOOKED_AT: Final = 12
"""Snapshots whose storage is compared."""
MOST_TABLES: Final = 200
"""Tables whose files are added up."""
MOST_SHOWN: Final = 50

_looking = threading.Lock()
"""Held by the one page that looks through the whole lake: a check reads all of its metadata."""


@dataclass(frozen=True, slots=True)
class QuickFacts:
    """What the catalog tells by itself.

    Attributes:
        tables: how many.
        quarantined: tables that take no writes, with the reasons.
        pending: versions that were committed and have not got their final names yet.
        snapshots: the latest one, and the oldest that can be read.
        tags, branches: how many.
    """

    tables: int
    quarantined: tuple[tuple[str, str], ...]
    pending: int
    latest: int
    oldest: int
    tags: int
    branches: int


@dataclass(frozen=True, slots=True)
class TableStorage:
    """What the data files of a table take at the latest snapshot."""

    name: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class SnapshotStorage:
    """What the data files of all tables took at a snapshot, and what it added and dropped."""

    snapshot: int
    at: datetime
    author: str
    total: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class StorageView:
    """Storage by table and by snapshot. ``unreadable`` tables are not counted: those in quarantine, for example."""

    tables: tuple[TableStorage, ...]
    snapshots: tuple[SnapshotStorage, ...]
    total: int
    left_out: int
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CleanupView:
    """What a cleanup would remove."""

    keep: int
    snapshots: tuple[tuple[str, int], ...]
    tables: tuple[tuple[str, int, int], ...]
    bytes: int
    dropped: tuple[str, ...]
    held: int
    orphans: tuple[Orphan, ...]


@dataclass(frozen=True, slots=True)
class HealthView:
    """All of it; parts that were not asked for are None."""

    facts: QuickFacts
    may_look: bool
    check: LakeCheckReport | None = None
    deep: bool = False
    cleanup: CleanupView | None = None
    storage: StorageView | None = None
    keep: int = 10
    looks: tuple[str, ...] = field(default=("check", "deep", "storage", "cleanup"))


def health_page(asked: PageRequest) -> ConsolePage:
    """The state of the lake, and what somebody asked to be looked through."""
    viewer, look, keep = asked.viewer, asked.text("look"), asked.number("keep", 10, 1, 1_000_000)
    view = HealthView(_facts(viewer), viewer.sees_all, keep=keep)
    if look:
        view = _looked(viewer, view, look)
    return page_of(asked, "health.html", "Health", "health", view)


def _looked(viewer: LakeViewer, view: HealthView, look: str) -> HealthView:
    if look not in view.looks:
        raise InvalidInput(f"look must be one of {', '.join(view.looks)}.", argument="look")
    if not viewer.sees_all:
        raise PermissionDeniedError("Checking the whole lake needs a role for all tables.")
    facts, keep = view.facts, view.keep
    if look == "storage":
        return HealthView(facts, True, storage=_alone(lambda: _storage(viewer)), keep=keep)
    if look == "cleanup":
        report = _alone(lambda: viewer.lake.cleanup(keep_snapshots=keep, dry_run=True))
        return HealthView(facts, True, cleanup=_cleanup(report, keep), keep=keep)
    report = _alone(lambda: viewer.lake.check(tables=look == "deep"))
    return HealthView(facts, True, report, look == "deep", keep=keep)


def _alone(work: Callable[[], Any]) -> Any:
    """Looks through a lake, one page at a time.

    Raises:
        InvalidInput: another page does so at this moment.
    """
    if not _looking.acquire(blocking=False):
        raise InvalidInput("Another check of the lake is still running.", argument="look", advice="Try again in a moment.")
    try:
        return work()
    finally:
        _looking.release()


def _facts(viewer: LakeViewer) -> QuickFacts:
    heads = viewer.heads()
    catalog = viewer.lake.catalog
    return QuickFacts(
        len(heads),
        tuple((name, said(head.quarantine)) for name, head in heads.items() if head.quarantine),
        len(catalog.pending()) if viewer.sees_all else 0,
        viewer.tip(),
        catalog.floor(viewer.branch).snapshot,
        len(viewer.lake.tags.list()),
        len(viewer.lake.branches.list()),
    )


def _cleanup(report: LakeCleanupReport, keep: int) -> CleanupView:
    tables = sorted(
        ((name, len(table.removed), table.bytes) for name, table in report.tables.items() if table.removed), key=lambda line: -line[2]
    )
    return CleanupView(
        keep,
        tuple((branch, len(gone)) for branch, gone in report.snapshots.items() if gone),
        tuple(tables[:MOST_SHOWN]),
        report.bytes,
        report.dropped[:MOST_SHOWN],
        len(report.held),
        report.orphans[:MOST_SHOWN],
    )


# ---- storage -----------------------------------------------------------------------------------------------------------------------


def _storage(viewer: LakeViewer) -> StorageView:
    """Adds up data files of the latest snapshot, then goes back in time by what each snapshot added and removed."""
    heads = viewer.heads()
    shot = viewer.snapshot(viewer.tip()) if viewer.tip() else viewer.snapshot()
    tables, unreadable = [], []
    for name in list(heads)[:MOST_TABLES]:
        try:
            tables.append(_table_storage(shot.table(name).layout.fragments, name))
        except TiltyardError:
            unreadable.append(name)
    total = sum(table.bytes for table in tables)
    lines, now = [], total
    for snapshot in viewer.history(LOOKED_AT).snapshots:
        added, removed = _moved(viewer, snapshot)
        lines.append(SnapshotStorage(snapshot.id, snapshot.at, snapshot.author, now, added, removed))
        now += removed - added
    largest = sorted(tables, key=lambda table: -table.bytes)[:MOST_SHOWN]
    return StorageView(tuple(largest), tuple(lines), total, max(len(heads) - MOST_TABLES, 0), tuple(unreadable))


def _table_storage(fragments: Any, name: str) -> TableStorage:
    files = [file for fragment in fragments for file in fragment.files]
    return TableStorage(name, sum(file.size for file in files), len(files))


def _moved(viewer: LakeViewer, snapshot: Snapshot) -> tuple[int, int]:
    """Bytes that the tables of a snapshot have more than before, and less."""
    added = removed = 0
    for change in snapshot.changes[:MOST_TABLES]:
        after = _bytes_at(viewer, snapshot.id, table_of(change)) if change.kind != "drop" else {}
        before = _bytes_at(viewer, snapshot.id - 1, change.former or table_of(change)) if change.kind not in ("create", "register") else {}
        added += sum(count for path, count in after.items() if path not in before)
        removed += sum(count for path, count in before.items() if path not in after)
    return added, removed


def _bytes_at(viewer: LakeViewer, number: int, name: str) -> dict[str, int]:
    try:
        fragments = viewer.snapshot(number).table(name).layout.fragments
    except TiltyardError:
        return {}  # cleaned up since, or not there yet
    return {file.path: file.size for fragment in fragments for file in fragment.files}
