"""Removing directories of tables: only those that marks and records prove to be this lake's, and orphans that the caller named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tiltyard.catalog.expiry import condemn, condemned, emptied, reprieve
from tiltyard.catalog.marks import OWNER_FILE
from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.interfaces import KeepsTemporaries, ObjectInfo
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.lakes.cleanup.orphans import Judge, find_orphans, known_locations, orphan_of, removable
from tiltyard.lakes.table_names import resolved
from tiltyard.verbs.cleanup.cleanup_plan import GRACE as FILE_GRACE
from tiltyard.verbs.cleanup.run_cleanup import deletions
from tiltyard.verbs.engine.access import TableAccess

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.cleanup.lake_cleanup import CleanupRun


def file_grace(grace: timedelta) -> timedelta:
    """How old a file must be that nobody names. Writers that announced nothing yet, and those that do not know us, count on days."""
    return max(grace, FILE_GRACE) if grace else grace


def proved(work: CleanupRun) -> list[str]:
    """Directories of dropped tables that this lake made, by their own mark. What was registered belongs to somebody else."""
    judge, found = Judge(work.lake), []
    for location, head in work.needs.vanished.items():
        if not TABLE_DIRECTORY.fullmatch(location) or location in work.needed_directories:
            continue
        owner = judge.owner(location)
        reason = judge.not_ours(location, owner, head.id) or judge.pinned_by_others(location)
        if not reason:
            found.append(location)
        elif files := list(work.lake.root_access().store.list(f"{location}/")):
            work.orphans[location] = orphan_of(location, files, owner, reason)
    return found


def remove_directories(work: CleanupRun) -> None:
    """Removes directories that are proved to be dead, and those that the caller named."""
    lake = work.lake
    _remove_unfinished(work)
    asked = sorted(name for name in work.include if name in work.orphans and TABLE_DIRECTORY.fullmatch(name))
    abandoned = [directory for directory, files in work.strange.items() if _is_abandoned(work, directory, files)]
    if work.dry_run:
        work.dropped += [*proved(work), *abandoned, *asked]
        return
    abandoned = [directory for directory in abandoned if _never_committed(work, directory)]
    condemn(lake.catalog, [*abandoned, *asked, *_spelled_out(lake, asked)])
    # Whoever made a table there before that is seen now; whoever comes later is refused.
    known = known_locations(lake)
    reprieve(lake.catalog, [directory for directory in (*abandoned, *asked, *_spelled_out(lake, asked)) if directory in known])
    root, judge = lake.root_access(), Judge(lake)
    for directory, left in condemned(lake.catalog).items():
        if not (left or directory in work.strange) or directory in known or not TABLE_DIRECTORY.fullmatch(directory):
            continue
        try:
            if directory not in asked and judge.not_ours(directory, judge.owner(directory)) and _has_files(root, directory):
                continue  # what is condemned is ours by the catalog's word, but not by its own: it is among the orphans
            _remove_directory(root, directory)
        except TiltyardError as error:
            work.skipped[directory] = str(error)
            continue
        if left:
            _settle(work, directory)
        work.orphans.pop(directory, None)
        work.dropped.append(directory)


def check_asked(lake: Lake, include: Collection[str]) -> None:
    """Looks at the orphans that the caller wants to be deleted, before anything is changed.

    Raises:
        InvalidInput: one is no orphan, or another lake's.
    """
    if not include:
        return
    orphans = {orphan.path: orphan for orphan in find_orphans(lake)}
    for name in sorted(include):
        orphan = orphans.get(name)
        if orphan is None:
            known = ", ".join(list(orphans)[:3]) or "none"
            raise InvalidInput(f"{name[:80]!r} is not an orphan of this lake.", argument="include_unknown", advice=f"Orphans are: {known}.")
        if orphan.lake not in ("", lake.id):
            raise InvalidInput(
                f"{name} belongs to lake {orphan.lake[:8]}, and is not deleted here.",
                argument="include_unknown",
                advice="Open that lake and drop the table there, or remove the directory by hand.",
            )


def _remove_unfinished(work: CleanupRun) -> None:
    """Removes owner files that their writer died over: nothing else is in such a directory, so nothing says whose it would have been."""
    root = work.lake.root_access()
    if work.dry_run or not isinstance(root.store, KeepsTemporaries):
        return
    begun: dict[str, list[ObjectInfo]] = {}
    for info in root.store.temporary(""):
        directory = info.path.partition("/")[0]
        if TABLE_DIRECTORY.fullmatch(directory):
            begun.setdefault(directory, []).append(info)
    for directory, files in begun.items():
        old = work.now - max(info.modified for info in files) >= file_grace(work.grace)
        if (
            old
            and all(info.path.startswith(f"{directory}/{OWNER_FILE.partition('/')[0]}/") for info in files)
            and not _has_files(root, directory)
        ):
            for info in files:
                root.store.delete(info.path)


def _spelled_out(lake: Lake, directories: Iterable[str]) -> list[str]:
    """The same directories as somebody would register them."""
    return [resolved(lake.uri_of(directory)) for directory in directories]


def _never_committed(work: CleanupRun, directory: str) -> bool:
    """Sees to it that the transaction which made a directory can never be committed: the record that its deletion rests on.

    For a table of a branch that has ended, that is such a record.
    """
    candidate = work.candidates[directory]
    transaction = candidate.owner.transaction
    return candidate.ended or not transaction or work.lake.catalog.abort(transaction)


def _has_files(root: TableAccess, directory: str) -> bool:
    return next(iter(root.store.list(f"{directory}/")), None) is not None


def _is_abandoned(work: CleanupRun, directory: str, files: Sequence[ObjectInfo]) -> bool:
    """Whether nobody is about to make a table in a directory, or will be refused if he is."""
    swept = work.swept
    if any(directory in transaction.tables for transaction in swept.held) or any(directory == where for where, _ in swept.unreadable):
        return False
    given_up = any(directory in transaction.tables for transaction in swept.given_up)
    return given_up or work.now - max(info.modified for info in files) >= file_grace(work.grace)


def _remove_directory(root: TableAccess, directory: str) -> None:
    """Deletes all files of a table, and those that were being written."""
    paths = [info.path for info in root.store.list(f"{directory}/")]
    if isinstance(root.store, KeepsTemporaries):
        paths += [info.path for info in root.store.temporary(f"{directory}/")]
    for part in removable(paths, directory):
        for _ in deletions(root.store, part):
            pass


def _settle(work: CleanupRun, directory: str) -> None:
    head = work.needs.seen.get(directory)
    if head is not None:
        work.lake.catalog.settle([pending for pending in work.lake.catalog.pending() if pending.table == head.id])
    emptied(work.lake.catalog, directory)
