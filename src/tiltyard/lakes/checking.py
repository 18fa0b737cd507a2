"""Is this lake sound? What the catalog says of itself, and whether the tables are where it says they are."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from tiltyard.catalog.lake_values import MAIN, Change, Snapshot, TableHead, VersionStep
from tiltyard.catalog.ledger import maker_of
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.snapshot_index import BranchHistory
from tiltyard.errors import CorruptTable, NotFound, TiltyardError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.check_catalog import (
    LakeCheckReport,
    LakeFindings,
    check_directories,
    check_heads,
    check_names,
    check_orphans,
    check_outcomes,
    check_pending,
    check_refs,
    is_there,
    read_lines,
    shared_tables,
)
from tiltyard.lakes.finishing import finish_before, recover
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.sharded.shard_check import INVARIANT, lake_problems
from tiltyard.lakes.table_names import shown
from tiltyard.transaction.head import read_floor
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.check.check_table import check_table

if TYPE_CHECKING:
    from tiltyard.lake import Lake

Progress = Callable[[int, int], object]


def check_lake(lake: Lake, *, tables: bool, data: bool = False, progress: Progress | None) -> LakeCheckReport:
    """See ``Lake.check``."""
    findings = LakeFindings(data=data)
    recover(lake)  # the one read after which catalog and store have to agree
    lines = read_lines(lake, findings)
    # Looked at after the snapshots: a version of theirs that is not among these has its name.
    unfinished = {(pending.table, pending.branch, pending.version) for pending in lake.catalog.pending()}
    for line in lines:
        check_heads(lake, line, findings)
        check_names(lake, line.branch, findings)
    check_refs(lake, findings)
    check_outcomes(lake, lines, findings)
    check_pending(lake, findings)
    check_directories(lake, findings)
    check_orphans(lake, findings)
    stores = _Stores(lake)
    for line in lines:
        _all_or_nothing(line, stores, unfinished, findings)
    shared_tables(lake, [line.branch for line in lines], findings.add)
    _tables(lake, lines, stores, findings, tables, progress or (lambda done, total: None))
    problems, orphans = tuple(findings.problems), tuple(findings.orphans)
    return LakeCheckReport(lake.url, findings.snapshots, findings.transactions, findings.tables, problems, orphans)


class _Stores:
    """Stores of tables, as those see them who know nothing of the lake, each opened once; and who made their versions."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[tuple[str, str | None], tuple[ObjectStore, int]] = {}
        self._makers: dict[tuple[str, str | None, str], str | None] = {}

    def of(self, head: TableHead) -> tuple[ObjectStore, int]:
        """Its store, and the number below which versions may be gone."""
        key = (head.location, head.branch)
        if key not in self._known:
            store = self._lake.plain_access_of(head).on_branch(head.branch).store
            self._known[key] = (store, read_floor(store).version)
        return self._known[key]

    def maker(self, head: TableHead, path: str) -> str | None:
        """The transaction that made a version; None where there is none of that name."""
        key = (head.location, head.branch, path)
        if key not in self._makers:
            try:
                self._makers[key] = self._maker(self.of(head)[0], path)
            except NotFound:
                self._makers[key] = None
        return self._makers[key]

    def _maker(self, store: ObjectStore, path: str) -> str:
        try:
            return maker_of(store.get(path), path).uuid
        except CorruptTable:
            # Stock writers may keep the transaction in a file beside the version.
            log = VersionLog(store)
            one = next((name for name in log.versions() if manifest_path(name.version, name.scheme) == path), None)
            if one is None:
                raise
            return log.transaction_of(log.load(one.version, one.scheme)).uuid


def _all_or_nothing(line: BranchHistory, stores: _Stores, unfinished: Set[tuple[str, str | None, int]], findings: LakeFindings) -> None:
    """I11: of all tables that a snapshot changed, each has exactly what the snapshot says, or all of them are before it."""
    by_id: dict[int, dict[str, TableHead]] = {}
    wanted = {step.id for step in line.steps}
    for number, heads, changed in line.cuts():
        if number in wanted:
            by_id[number] = {table: heads[table] for table in changed if table in heads}
    for snapshot in line.steps:
        there: list[str] = []
        missing: list[str] = []
        for change in snapshot.changes:
            head = by_id[snapshot.id].get(change.table)
            if head is None or snapshot.voided:
                continue
            for step in change.steps:
                if (head.id, head.branch, step.version) in unfinished:
                    continue  # committed since the recovery, and its writer is still giving it its name
                _one_step(snapshot, change, step, head, stores, there, missing, findings)
        if there and missing:
            text = f"{', '.join(sorted(set(there)))} has its version of the transaction, {', '.join(sorted(set(missing)))} does not"
            findings.add("I11", f"{text}: transaction {snapshot.transaction}", snapshot=snapshot.id)


def _one_step(
    snapshot: Snapshot,
    change: Change,
    step: VersionStep,
    head: TableHead,
    stores: _Stores,
    there: list[str],
    missing: list[str],
    findings: LakeFindings,
) -> None:
    name = shown(change.name)
    try:
        maker = stores.maker(head, step.path)
        floor = stores.of(head)[1]
    except TiltyardError as error:
        findings.add("I10", f"version {step.version} cannot be read: {error}", change.name, snapshot.id)
        return
    if maker is None and (step.version < floor or step.version != head.version):
        return  # cleaned up, as the version inside a transaction or below what the lake keeps
    if maker == step.transaction or (maker is not None and not step.transaction):
        there.append(name)
        return
    missing.append(name)
    what = "does not exist" if maker is None else f"was made by transaction {maker}, not by {step.transaction}"
    findings.add("I10", f"version {step.version} {what}", change.name, snapshot.id)


def _tables(lake: Lake, lines: list[BranchHistory], stores: _Stores, findings: LakeFindings, deep: bool, progress: Progress) -> None:
    """I10 at the heads: what the catalog says is the newest version is the newest one; then every table by itself."""
    cuts = {line.branch: lake.catalog.cut(line.branch) for line in lines}
    seen: set[tuple[str, str | None, int]] = set()
    work = [(branch, head) for branch, cut in cuts.items() for head in cut.tables.values()]
    for done, (branch, head) in enumerate(work, 1):
        key = (head.location, head.branch, head.version)
        if key not in seen:
            seen.add(key)
            name = shown(head.name) if branch == MAIN else f"{shown(head.name)}@{branch}"
            try:
                if not head.quarantine:  # somebody may have committed since the recovery
                    finish_before(lake, cuts[branch], head, branch)
                _table(lake, branch, head, name, stores, findings, deep)
            except TiltyardError as error:
                findings.add("I10", str(error), head.name)
        progress(done, len(work))
    if deep:
        for branch, cut in cuts.items():
            for table, text in lake_problems(LakeSnapshot(lake.on_branch(branch), cut)):
                findings.add(INVARIANT, text, table)


def _table(lake: Lake, branch: str, head: TableHead, name: str, stores: _Stores, findings: LakeFindings, deep: bool) -> None:
    store, _ = stores.of(head)
    log = VersionLog(store)
    if not is_there(store, manifest_path(head.version, Scheme(head.naming))):
        if not head.quarantine and _moved_not(lake, branch, head):
            findings.add("I10", f"the catalog has it at version {head.version}, which does not exist", head.name)
        return
    path = manifest_path(head.version, Scheme(head.naming))
    if head.transaction and not head.quarantine and (maker := stores.maker(head, path)) not in (None, head.transaction):
        text = f"version {head.version} was made by transaction {maker}, the catalog has {head.transaction}"
        findings.add("I10", text, head.name)
    newest = log.head()
    at_home = owns(head, branch, lake.catalog.cut(branch).line)
    if at_home and newest is not None and newest[0] > head.version and not head.quarantine and _moved_not(lake, branch, head):
        findings.add(
            "I10",
            f"versions up to {newest[0]} were committed by foreign writers; opening the table through the lake adopts them",
            head.name,
        )
    if deep and not head.quarantine:
        report = findings.tables[name] = check_table(lake.access_of(head, branch), data=findings.data)
        for problem in report.problems:
            at = "" if problem.version is None else f" (version {problem.version})"
            findings.add(problem.invariant, problem.text + at, head.name)


def _moved_not(lake: Lake, branch: str, head: TableHead) -> bool:
    """Whether the catalog still has the table there: somebody may be at work."""
    now = lake.catalog.cut(branch).by_id(head.id)
    return now is not None and now.version == head.version
