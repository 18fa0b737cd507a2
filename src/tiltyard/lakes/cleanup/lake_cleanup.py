"""Cleaning up a whole lake while others work on it: old snapshots, what only they needed, and what dead transactions left.

First it is written down what is given up; from then on nobody counts on it, under the locks that every commit takes. Only then is
anything deleted: records of snapshots, versions and files of tables, directories of tables that no snapshot shows. Each step can be
repeated, and a cleanup that died is ended by the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tiltyard.catalog.expiry import condemn, expire, forget, give_up_below
from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.merge_records import LineGraph
from tiltyard.catalog.records import GivesSpaceBack
from tiltyard.catalog.snapshot_index import BranchHistory, read_line
from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.interfaces import ObjectInfo
from tiltyard.lakes.cleanup.dead_transactions import Silent, Sweep, drop_detached, drop_staged, sweep
from tiltyard.lakes.cleanup.merged_pins import release_merged
from tiltyard.lakes.cleanup.orphans import (
    Candidate,
    Judge,
    Lines,
    Orphan,
    as_directories,
    committed_beyond,
    directories,
    known_locations,
    lost_line,
    own_lines,
)
from tiltyard.lakes.cleanup.pins import mend_pins, pin_kept
from tiltyard.lakes.cleanup.references import References
from tiltyard.lakes.cleanup.removal import check_asked, file_grace, proved, remove_directories
from tiltyard.lakes.finishing import recover
from tiltyard.lakes.recovery.journal import complete_journal
from tiltyard.lakes.refusals import remove_refusals
from tiltyard.lakes.retention import Key, Need, Needs, Retention, needs_of
from tiltyard.lakes.table_names import shown
from tiltyard.options import LakeRetention
from tiltyard.storage.local import ADVICE
from tiltyard.storage.staged import COLLECTED
from tiltyard.verbs.cleanup.cleanup_plan import Policy
from tiltyard.verbs.cleanup.run_cleanup import CleanupReport, cleanup_table
from tiltyard.verbs.table_refs import Branches

if TYPE_CHECKING:
    from tiltyard.lake import Lake

GRACE: Final = timedelta(days=1)
"""How long a transaction may be silent before it is given up."""


Progress = Callable[[int, int], object]
"""Is told how many of how many tables are done."""


@dataclass(frozen=True, slots=True)
class LakeCleanupReport:
    """What a cleanup of a lake did, or would do.

    Attributes:
        url: the catalog.
        dry_run: whether nothing was changed.
        floors: for each branch the oldest snapshot that stays by age and number; 0 where nothing was ever removed.
        snapshots: for each branch those that were removed.
        kept: for each branch those below its floor that stay, each with the reasons.
        tables: what was removed of each table, by name.
        dropped: directories that were removed: of dropped tables, and of tables that were never committed.
        expired: how many records of committed transactions were removed, so that their outcome can no longer be asked for.
        catalog_bytes: how much smaller the catalog's file is.
        orphans: directories that no snapshot shows and that nothing proves to be this lake's to delete; they stay.
        transactions: those that were aborted, with all they had written.
        held: those that are not committed and are kept for now.
        skipped: what could not be cleaned up, and why.
        refusals: how many records of refused transactions were removed.
    """

    url: str
    dry_run: bool
    floors: Mapping[str, int]
    snapshots: Mapping[str, tuple[int, ...]]
    kept: Mapping[str, Mapping[int, tuple[str, ...]]]
    tables: Mapping[str, CleanupReport]
    dropped: tuple[str, ...]
    transactions: tuple[Silent, ...]
    held: tuple[Silent, ...]
    skipped: Mapping[str, str]
    orphans: tuple[Orphan, ...] = ()
    expired: int = 0
    catalog_bytes: int = 0
    refusals: int = 0

    @property
    def bytes(self) -> int:
        """How many bytes the removed files of tables had, those of dropped tables not counted."""
        return sum(report.bytes for report in self.tables.values())

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        tables = {name: report.to_dict() for name, report in self.tables.items()}
        kept = {branch: {str(number): list(why) for number, why in found.items()} for branch, found in self.kept.items()}
        orphans = [orphan.to_dict() for orphan in self.orphans]
        return {**asdict(self), "tables": tables, "kept": kept, "bytes": self.bytes, "orphans": orphans}


@dataclass(slots=True)
class CleanupRun:
    lake: Lake
    retention: Retention
    grace: timedelta
    dry_run: bool
    now: datetime
    lines: list[BranchHistory] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    include: frozenset[str] = frozenset()
    """Orphans that the caller wants to be deleted, by name."""
    strange: dict[str, list[ObjectInfo]] = field(default_factory=dict)
    """Directories of this lake that no snapshot shows, with their files."""
    candidates: dict[str, Candidate] = field(default_factory=dict)
    orphans: dict[str, Orphan] = field(default_factory=dict)
    swept: Sweep = field(default_factory=Sweep)
    quarantined: dict[Key, str] = field(default_factory=dict)
    tables: dict[str, CleanupReport] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    expired: int = 0
    freed: int = 0
    refusals: int = 0
    references: References = field(init=False)

    def __post_init__(self) -> None:
        self.references = References(self.lake)

    @property
    def needed_directories(self) -> set[str]:
        """Directories that snapshots need under another spelling: a dropped table that was registered again."""
        return as_directories(self.lake, {location for location, _ in self.needs.tables})


def _names(include: Iterable[str]) -> frozenset[str]:
    if isinstance(include, str):
        raise InvalidInput("include_unknown is a list of names.", argument="include_unknown")
    return frozenset(include)


def cleanup_lake(
    lake: Lake,
    retention: Retention,
    grace: timedelta,
    kept: LakeRetention,
    *,
    dry_run: bool,
    progress: Progress | None,
) -> LakeCleanupReport:
    """See ``Lake.cleanup``."""
    if not isinstance(grace, timedelta) or grace < timedelta(0):
        raise InvalidInput("grace must be a timedelta of zero or more.", argument="grace")
    include = _names(kept.include_unknown)
    check_asked(lake, include)
    recover(lake)
    work = CleanupRun(lake, retention, grace, dry_run, lake.catalog.runtime.clock.now(), include=include)
    _decide(work)
    _forget(work)
    _pin(work, kept.pin_snapshots)
    _sweep(work)
    _clean_tables(work, progress or (lambda done, total: None))
    remove_directories(work)
    _expire(work, kept)
    return _report(work)


# ---- snapshots -------------------------------------------------------------------------------------------------------------------


def _read_lines(lake: Lake) -> list[BranchHistory]:
    return [read_line(lake.catalog.records, branch) for branch in (MAIN, *lake.branches)]


def _decide(work: CleanupRun) -> None:
    """Which snapshots stay. After the floor is raised nobody names a snapshot below it, so by then all names are there to be seen."""
    lake = work.lake
    work.lines = _read_lines(lake)
    for line in work.lines:
        floor = work.floors[line.branch] = work.retention.floor(line, work.now)
        if floor > line.begin and not work.dry_run:
            at = next(step.at for step in line.steps if step.id == floor)
            heads = next(dict(heads) for number, heads, _ in line.cuts() if number == floor)
            give_up_below(lake.catalog, line, floor, at, heads)
    work.reasons = _named(lake)
    refs = {branch: set(found) for branch, found in work.reasons.items()}
    work.needs = needs_of(work.lines, work.floors, refs)
    for line in work.lines:
        for head in lake.catalog.cut(line.branch).tables.values():
            if head.quarantine:
                work.quarantined[head.location, head.branch] = head.quarantine


def needs_now(lake: Lake) -> Needs:
    """What all snapshots of a lake need, none of them given up."""
    lines = _read_lines(lake)
    refs = {branch: set(found) for branch, found in _named(lake).items()}
    return needs_of(lines, {line.branch: line.begin for line in lines}, refs)


def _named(lake: Lake) -> dict[str, dict[int, list[str]]]:
    """Snapshots that tags and branches keep, by branch."""
    found: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for tag in lake.tags.list():
        found[tag.branch][tag.snapshot].append(f"tag {tag.name}")
    for branch in lake.branches.list():
        found[branch.origin][branch.snapshot].append(f"branch {branch.name}")
    for source, snapshot, target in LineGraph.read(lake.catalog.records).kept():
        found[source][snapshot].append(f"merge into {target}")
    return found


def _forget(work: CleanupRun) -> None:
    if work.dry_run:
        return
    catalog = work.lake.catalog
    condemn(catalog, proved(work))  # before the snapshots go that tell of them
    for line in work.lines:
        forget(catalog, line, work.floors[line.branch], work.needs.named.get(line.branch, {}))


def _pin(work: CleanupRun, pin_snapshots: bool) -> None:
    """Tags for foreign cleanups, before the tables are cleaned up: what nothing refers to any more goes with the rest."""
    if work.dry_run:
        return
    try:
        mend_pins(work.lake)
        pin_kept(work.lake, work.needs.tables.values(), wanted=pin_snapshots)
        locations = {need.head.location for need in work.needs.tables.values()}
        release_merged(work.lake, locations, work.references, work.now, work.grace)
        complete_journal(work.lake)
    except TiltyardError as error:
        work.skipped["pins"] = str(error)


# ---- transactions ----------------------------------------------------------------------------------------------------------------


def _sweep(work: CleanupRun) -> None:
    lake = work.lake
    found = directories(lake.root_access())
    known = known_locations(lake) | set(work.needs.seen)
    strange = {directory: files for directory, files in found.items() if directory not in known}
    work.candidates, orphans = Judge(lake).judge(strange)
    work.orphans.update((orphan.path, orphan) for orphan in orphans)
    work.strange = {directory: strange[directory] for directory in work.candidates}
    places = {_called(need): lake.access_of(need.head, need.lake_branch) for need in work.needs.tables.values()}
    places |= {directory: lake.plain_access_of(TableHead("", "", directory, 0, 0)) for directory in work.strange}
    work.swept = sweep(lake, places, work.grace, dry_run=work.dry_run, committed=lambda: _committed_unrecorded(work))
    work.skipped.update(work.swept.unreadable)


def _committed_unrecorded(work: CleanupRun) -> set[str]:
    """Transactions that the files say are committed, of which a catalog that was restored from a copy has no record."""
    lake = work.lake
    heads = [(lake.plain_access_of(need.head).on_branch(need.head.branch), need.newest) for need in work.needs.tables.values()]
    return committed_beyond(heads, lake.id) | Judge(lake).committed()


# ---- tables ----------------------------------------------------------------------------------------------------------------------


def _called(need: Need) -> str:
    name = shown(need.head.name)
    other = need.head.branch or (need.lake_branch if need.lake_branch != MAIN else "")
    return f"{name}@{other} {need.head.id[:8]}" if other else f"{name} {need.head.id[:8]}" if not need.tips else name


def _clean_tables(work: CleanupRun, progress: Progress) -> None:
    for location in sorted({location for location, _ in work.needs.tables}):
        try:
            _drop_lines(work, location)  # first: they keep the versions that they began at
        except TiltyardError as error:
            work.skipped[location] = str(error)
    total = len(work.needs.tables)
    for done, (key, need) in enumerate(work.needs.tables.items(), 1):
        name = _called(need)
        try:
            if key in work.quarantined:
                work.skipped[name] = work.quarantined[key]
            else:
                work.tables[name] = _clean_table(work, need, name)
        except TiltyardError as error:
            work.skipped[name] = str(error)
        progress(done, total)


def _clean_table(work: CleanupRun, need: Need, name: str) -> CleanupReport:
    lake = work.lake
    access, main = lake.access_of(need.head, need.lake_branch), lake.plain_access_of(need.head)
    going = frozenset(work.swept.paths[name])
    policy = Policy(
        keep=frozenset(need.keep),
        grace=file_grace(work.grace),
        before=need.before,
        dead=frozenset(work.swept.dead[name]),
        ignored=going,
        named=work.references.named(need.head),
    )
    if not work.dry_run:
        drop_detached(access.store, going)
    report = cleanup_table(access, main, need.newest, policy, dry_run=work.dry_run)
    if not work.dry_run:
        drop_staged(access.store, going)  # last: what is dead is known from these
        if any(path.startswith(COLLECTED) for path in going):
            access.store.delete(ADVICE)  # pylance left it, and may have meant a version that was never published
    return report


def _drop_lines(work: CleanupRun, location: str) -> None:
    """Removes branches of a table that a branch of the lake made which is gone."""
    head = next(need.head for (where, _), need in work.needs.tables.items() if where == location)
    branches = Branches(work.lake.plain_access_of(head))
    there = own_lines(branches)
    if not there:
        return
    # Read after the tables' branches: each of them is made for a line of the lake that was there before.
    lines = Lines.of(work.lake)
    going = [name for name in there if not lines.is_alive(name) and (location, name) not in work.needs.tables]
    for name in list(going):
        orphan = lost_line(work.lake, head, name, lines)
        if orphan is not None and orphan.path not in work.include:
            going.remove(name)
            work.orphans[orphan.path] = orphan
    for name in [name for name in going if work.references.named(replace(head, branch=name))]:
        going.remove(name)  # a later cleanup has another look: a compaction, or the end of old versions, frees it
        work.skipped[f"{location} branch {name}"] = "it was merged, and versions that stay name files of it"
    parents = {name: branches[name].parent_branch for name in there}
    while going:
        used = {parent for name, parent in parents.items() if parent is not None}
        ends = [name for name in going if name not in used]  # what others were forked from goes after them, and stays with them
        if not ends:
            return
        for name in ends:
            if not work.dry_run:
                branches.delete(name, force=True)
            work.dropped.append(f"{location} branch {name}")
            del parents[name]
        going = [name for name in going if name not in ends]


def _expire(work: CleanupRun, kept: LakeRetention) -> None:
    catalog = work.lake.catalog
    work.expired = expire(catalog, kept.outcomes, kept.keys, work.now, dry_run=work.dry_run)
    if not work.dry_run and isinstance(catalog.records, GivesSpaceBack):
        work.freed = catalog.records.give_space_back()
    try:
        work.refusals = remove_refusals(work.lake, work.now, kept.outcomes, dry_run=work.dry_run)
    except TiltyardError as error:
        work.skipped["refusals"] = str(error)


def _report(work: CleanupRun) -> LakeCleanupReport:
    gone: dict[str, tuple[int, ...]] = {}
    kept: dict[str, dict[int, tuple[str, ...]]] = {}
    for line in work.lines:
        floor, named = work.floors[line.branch], work.needs.named.get(line.branch, {})
        below = [number for number in (*line.strays, *(step.id for step in line.steps)) if number < floor]
        gone[line.branch] = tuple(number for number in below if number not in named)
        reasons = work.reasons.get(line.branch, {})
        kept[line.branch] = {number: tuple(reasons.get(number, ())) for number in sorted(named)}
    return LakeCleanupReport(
        work.lake.url,
        work.dry_run,
        dict(work.floors),
        gone,
        kept,
        work.tables,
        tuple(dict.fromkeys(work.dropped)),
        tuple(work.swept.given_up),
        tuple(work.swept.held),
        work.skipped,
        tuple(sorted(work.orphans.values(), key=lambda orphan: orphan.path)),
        work.expired,
        work.freed,
        work.refusals,
    )
