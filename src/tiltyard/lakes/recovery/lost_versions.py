"""What a restored catalog counts on that the files no longer have: versions that were cleaned up, taken by others, or finished since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.expiry import forget, give_up_below
from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.ledger import foreign_maker, maker_of
from tiltyard.catalog.merge_records import merged_key, with_forgotten
from tiltyard.catalog.snapshot_index import BranchHistory, read_line
from tiltyard.catalog.value_codec import TAGS
from tiltyard.errors import CorruptTable, NotFound
from tiltyard.format.manifest_file import MAGIC
from tiltyard.format.names import Scheme
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.merging.merge_branches import PROPERTIES
from tiltyard.lakes.recovery.found import LineKey
from tiltyard.lakes.recovery.reconstruct import Reconstruction
from tiltyard.lakes.recovery.repairing import set_aside, take_back
from tiltyard.lakes.retention import needs_of
from tiltyard.lakes.table_names import shown

if TYPE_CHECKING:
    from tiltyard.lake import Lake


def settle_pending(work: Reconstruction) -> None:
    """Brings versions that waited for their names when the backup was taken to where their files are by now."""
    lake = work.lake
    by_table: dict[tuple[str, str, str | None], list[Pending]] = defaultdict(list)
    for pending in lake.catalog.pending():
        by_table[pending.lake_branch, pending.table, pending.branch].append(pending)
    for (lake_branch, table, branch), waiting in by_table.items():
        head = lake.catalog.cut(lake_branch).by_id(table)
        if head is None:
            continue  # dropped before it was finished; cleanup takes all of it
        store = lake.plain_access_of(head).on_branch(branch).store
        # One whose bytes the record keeps is finished from there, as ever, whatever a power loss left of its file.
        going = [pending for pending in waiting if not pending.data and not _is_there(store, pending.staged)]
        taken = [pending for pending in going if _is_foreign(store, pending, _maker(work, pending))]
        lake.catalog.settle([pending for pending in going if pending not in taken])
        if taken and taken[0].alone:
            lake.catalog.void(taken[0], foreign_maker(store, taken[0].version, taken[0].path))
        elif taken:
            take_back(lake, head, [pending for pending in going if pending.version >= taken[0].version])
            work.unknown.append(
                f"what {shown(head.name)} had at version {taken[0].version}: a foreign writer took the number, and ours is gone"
            )


def set_aside_torn(work: Reconstruction, lake: Lake) -> None:
    """Moves latest versions out of the way that a power loss left without their end, after all that can be finished has been.

    While such a file stands there, nobody can read the table or commit the next version.
    """
    for (location, branch), line in work.lines.items():
        if not line.torn:
            continue
        store = lake.plain_access_of(TableHead("", "", location, 0, 0)).on_branch(branch).store
        torn: dict[str, bytes] = {}
        for path in line.torn:
            with suppress(NotFound):
                torn[path] = store.get(path)
        torn = {path: data for path, data in torn.items() if not data.endswith(MAGIC)}
        for path, aside in zip(torn, set_aside(lake, store, torn), strict=True):
            store.delete(path)
            work.unknown.append(f"what was in {location}/{path}: it ends in the middle, as after a power loss, and was moved to {aside}")


def _maker(work: Reconstruction, pending: Pending) -> str:
    """The table's own transaction that made a version, as its snapshot says."""
    record = work.lake.catalog.transaction(pending.transaction) or {}
    try:
        snapshot = work.lake.catalog.snapshot(int(record.get("snapshot", 0)), pending.lake_branch)
    except NotFound:
        return ""
    steps = [step for change in snapshot.changes if change.table == pending.table for step in change.steps]
    return next((step.transaction for step in steps if step.version == pending.version), "")


def _is_foreign(store: ObjectStore, pending: Pending, maker: str) -> bool:
    """Whether somebody else has the name of a version. One that is gone was finished and cleaned up."""
    try:
        return bool(maker) and maker_of(store.get(pending.path), pending.path).uuid != maker
    except NotFound:
        return False
    except CorruptTable:
        return True


def _is_there(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def note_untrusted(work: Reconstruction) -> None:
    """Tells of tables that name files outside the lake, as those of a clone do: which places are trusted only the lost catalog knew."""
    for branch in (MAIN, *work.lake.branches):
        for head in work.lake.catalog.cut(branch).tables.values():
            access = work.lake.plain_access_of(head).on_branch(head.branch)
            try:
                access.trusted(access.log.peek(head.version, Scheme(head.naming)))
            except CorruptTable as error:
                work.unknown.append(
                    f"whether {shown(head.name)} may be read: {error.reason}; if so, pass storage=ty.Storage(allowed_bases=[...])"
                )
            except NotFound:
                continue  # it has not got its name yet


# ---- snapshots that cannot be read any more ----------------------------------------------------------------------------------------


def forget_unreadable(work: Reconstruction) -> None:
    """Raises the floor of each branch above snapshots whose versions were cleaned up after the backup was taken."""
    lake = work.lake
    _drop_unreadable_tags(work)
    lines = [read_line(lake.catalog.records, branch) for branch in (MAIN, *lake.branches)]
    refs: dict[str, set[int]] = defaultdict(set)
    for tag in lake.tags.list():
        refs[tag.branch].add(tag.snapshot)
    for branch in lake.branches.list():
        refs[branch.origin].add(branch.snapshot)
    floors = {line.branch: _floor(work, line) for line in lines}
    needs = needs_of(lines, floors, refs)
    for line in lines:
        floor = floors[line.branch]
        if floor <= line.begin:
            continue
        at = next(step.at for step in line.steps if step.id == floor)
        heads = next(dict(heads) for number, heads, _ in line.cuts() if number == floor)
        give_up_below(lake.catalog, line, floor, at, heads)
        forget(lake.catalog, line, floor, needs.named.get(line.branch, {}))
        work.unknown.append(f"snapshots of {line.branch} below {floor}: versions that they show were cleaned up since")


def _floor(work: Reconstruction, line: BranchHistory) -> int:
    """The oldest snapshot from which on all can be read; the beginning where nothing is missing, or the newest one cannot be read."""
    unreadable: set[str] = set()
    floor = line.begin
    unknown = {step.id for step in line.steps if step.unknown}
    was_readable = True
    for number, heads, changed in line.cuts():
        for table in changed:
            unreadable.discard(table)
            if table in heads and _is_gone(work, heads[table]):
                unreadable.add(table)
        unreadable &= set(heads)
        if unreadable:
            was_readable = False
        elif not was_readable and number not in unknown:
            floor, was_readable = number, True
    return floor


def _is_gone(work: Reconstruction, head: TableHead) -> bool:
    """Whether a version was cleaned up: later ones of its line are there."""
    key: LineKey = (head.location, head.branch)
    found = work.lines.get(key)
    return found is not None and head.version not in found.present and head.version < max(found.present, default=0)


def _drop_unreadable_tags(work: Reconstruction) -> None:
    """A tag keeps all its versions; one whose versions are gone was deleted before they were cleaned up."""
    gone = []
    for tag in work.lake.tags.list():
        try:
            heads: Iterable[TableHead] = work.lake.catalog.cut_at(tag.snapshot, tag.branch).tables.values()
        except NotFound:
            heads = ()
            gone.append(tag.name)
        if any(_is_gone(work, head) for head in heads):
            gone.append(tag.name)
    if gone:
        work.put({}, [TAGS + name for name in gone])
        work.unknown.append(f"tag {', '.join(gone)}: what it named was cleaned up since, so it was deleted before")


# ---- merges that only the catalog knew of ------------------------------------------------------------------------------------------
# Without the record of a merge its branch looks as if it never came home: merged again, it would bring back rows that were deleted since;
# and a cleanup would not know that main names files of the branch.


def note_lost_merges(work: Reconstruction, before: Mapping[str, int]) -> None:
    """Notes for each branch up to where merges into it may be forgotten.

    Args:
        work: the catalog as it was brought to where the files are.
        before: the last snapshot of each branch that a backup knew.
    """
    branches = (MAIN, *work.lake.branches)
    if len(branches) == 1:
        return
    for branch in branches:
        cut = work.lake.catalog.cut(branch)
        known = before.get(branch, 0)
        if known == 0 or _may_have_merged(work, branch, known, cut.snapshot):
            key = merged_key(cut.line)
            work.put({key: with_forgotten(work.lake.catalog.records.get([key]).get(key), cut.snapshot)})


def _may_have_merged(work: Reconstruction, branch: str, known: int, tip: int) -> bool:
    """Whether one of the snapshots after the last known one is a merge, or nobody knows what it is."""
    for number in range(known + 1, tip + 1):
        snapshot = work.lake.catalog.snapshot(number, branch)
        if snapshot.unknown or not snapshot.properties.keys().isdisjoint(PROPERTIES.values()):
            return True
    return False
