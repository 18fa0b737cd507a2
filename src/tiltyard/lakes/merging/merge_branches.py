"""Merges one branch of a lake into another: three snapshots are compared, and the difference is committed in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.ledger import adopt
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.merge_records import LineGraph, MergeStep, merged_key, picked_into, publish_merge
from tiltyard.catalog.records import Body
from tiltyard.catalog.snapshot_index import floor_key
from tiltyard.errors import (
    ConflictError,
    ContentionError,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    InvalidInput,
    MergeConflict,
    NotFound,
)
from tiltyard.format.names import Scheme
from tiltyard.lakes.branches.table_branches import forked, is_written
from tiltyard.lakes.cleanup.merged_pins import pin_merged
from tiltyard.lakes.conflict_report import steps_of
from tiltyard.lakes.finishing import finish_before
from tiltyard.lakes.merging.apply_merge import MergedTable, apply_plan, rows_in
from tiltyard.lakes.merging.branch_plan import BranchPlan, MergeCuts, plan_merge
from tiltyard.lakes.merging.merge_values import ConflictingStep, MergeOptions, MergeResult, Settlement, TableConflict, TableMerge
from tiltyard.lakes.merging.replay import replay
from tiltyard.lakes.table_names import shown
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.verify import transaction_id

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_transaction import LakeTransaction

TRIES: Final = 16
"""How often others may commit to the target while a merge is planned and written."""
PROPERTIES: Final = {
    "merge": "merged-from",
    "rebase": "rebased-onto",
    "cherry-pick": "picked-from",
    "revert": "reverts",
    "restore": "restored-from",
}
"""The property of the snapshot that names the other parent: branch, snapshot and line."""


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """What a caller wants.

    Attributes:
        source, target: the branches.
        settle: answers to conflicts.
        message: for the history.
        dry_run: whether nothing is to be changed.
        options: what it counts on.
        kind: what of the branch: all of it (a merge or, seen from the target, a rebase), what one snapshot did, the opposite of that, or
            everything as a snapshot has it.
        snapshot: which one.
    """

    source: str
    target: str
    settle: Settlement
    message: str | None = None
    dry_run: bool = False
    options: MergeOptions = field(default_factory=MergeOptions)
    kind: Literal["merge", "rebase", "cherry-pick", "revert", "restore"] = "merge"
    snapshot: int = 0

    @property
    def whole(self) -> bool:
        """Whether all of the branch comes, which is then noted as merged."""
        return self.kind in ("merge", "rebase")


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a merge is planned on."""

    cuts: MergeCuts
    up_to_date: bool
    seen: Body | None
    floor: Body | None


def merge(lake: Lake, request: MergeRequest) -> MergeResult:
    """See ``LakeBranches.merge``."""
    last: ConflictError | None = None
    for _ in range(TRIES):
        try:
            return _merge(lake, request)
        except ConflictError as error:
            if _is_final(error):
                raise
            last = error  # others committed to the target, or merged the branch: what is left is planned anew
    raise ContentionError(
        f"Others commit to {request.target!r} faster than {request.source!r} can be merged there.", attempts=TRIES, operation="merge"
    ) from last


def _is_final(error: ConflictError) -> bool:
    """Whether planning again would not help."""
    if isinstance(error, ExpectedVersionMismatch):
        return error.cause in ("source", "target")
    return not error.retryable


def _merge(lake: Lake, request: MergeRequest) -> MergeResult:
    if request.whole and request.source == request.target:
        there = lake.catalog.cut(request.source)
        return MergeResult(
            request.source, there.snapshot, request.target, request.source, there.snapshot, there.snapshot, up_to_date=True,
            dry_run=request.dry_run,
        )  # fmt: skip
    for branch in {request.source: None, request.target: None}:
        adopt_foreign(lake, branch)
    ground = _ground(lake, request) if request.whole else _picked_ground(lake, request)
    cuts = ground.cuts
    if request.options.source_at not in (None, cuts.theirs.snapshot):
        raise _moved_on(request.source, request.options.source_at, cuts.theirs, "source")
    if request.options.target_at not in (None, cuts.ours.snapshot):
        raise _moved_on(request.target, request.options.target_at, cuts.ours, "target")
    done = partial(
        MergeResult, request.source, cuts.theirs.snapshot, request.target, cuts.base.branch, cuts.base.snapshot, dry_run=request.dry_run
    )
    if ground.up_to_date:
        return done(cuts.ours.snapshot, up_to_date=True)
    for head in cuts.theirs.tables.values():
        finish_before(lake, cuts.theirs, head, request.source)
    plan = plan_merge(lake, cuts, request.settle, restoring=request.kind == "restore")
    if not plan and not plan.conflicts.found and not request.whole:
        return done(cuts.ours.snapshot, up_to_date=True)
    conflicts = tuple(_told(lake, cuts, plan))
    if request.dry_run:
        return done(cuts.ours.snapshot, tables=_foreseen(cuts, plan), conflicts=conflicts)
    if conflicts:
        raise _refused(request, conflicts)
    return _commit(lake.on_branch(request.target), request, ground, plan, done)


def adopt_foreign(lake: Lake, branch: str) -> None:
    """Takes versions into the catalog that foreign writers made of the tables that a branch writes to."""
    cut = lake.catalog.cut(branch)
    for head in cut.tables.values():
        if owns(head, branch, cut.line) and not head.quarantine:
            adopt(lake.catalog, lake.access_of(head, branch).store, head, branch, cut.line, head)


def _ground(lake: Lake, request: MergeRequest) -> _Ground:
    records = lake.catalog.records
    ours, theirs = lake.catalog.cut(request.target), lake.catalog.cut(request.source)
    found = records.get([merged_key(ours.line), floor_key(request.source)])
    graph = LineGraph.read(records)
    mine, other = (graph.beginning(cut.line, cut.snapshot) for cut in (ours, theirs))
    common = graph.common(other, mine)
    if len(common) != 1 or common[0][0] not in graph.lines:
        what = (
            "were merged into each other, so they have several common ancestors"
            if len(common) > 1
            else "have no common ancestor that still exists"
        )
        raise InvalidInput(
            f"{request.source!r} and {request.target!r} {what}.", argument="source",
            advice="Make a new branch of the target, and bring the changes there.",
        )  # fmt: skip
    line, snapshot = common[0]
    if not graph.is_certain(common[0], mine[0], other[0]):
        raise _forgotten(request, snapshot)
    try:
        base = lake.catalog.cut_at(snapshot, graph.lines[line].branch)
    except NotFound as error:
        raise HistoryUnavailable(
            f"Snapshot {snapshot} of {graph.lines[line].branch!r}, where the branches parted, was cleaned up.", read_version=snapshot
        ) from error
    ids = [graph.chain(*side).get(line, -1) >= snapshot for side in (mine, other)]
    cuts = MergeCuts(base, ours, theirs, ids[0], ids[1])
    return _Ground(cuts, common[0] == other, found.get(merged_key(ours.line)), found.get(floor_key(request.source)))


def _forgotten(request: MergeRequest, snapshot: int) -> HistoryUnavailable:
    """For lines of a lake whose catalog was lost: rows that came by an earlier merge and went since would come again."""
    return HistoryUnavailable(
        f"What was merged before the catalog was lost is not known, nor what {request.source!r} and {request.target!r} have "
        "in common. Make a new branch of the target, and bring the changes there.",
        read_version=snapshot,
    )


def _pick(request: MergeRequest, line: str) -> str:
    """Names what was brought of a line, so that it is not brought twice."""
    return f"{request.kind} {line}@{request.snapshot}"


def _picked_ground(lake: Lake, request: MergeRequest) -> _Ground:
    """For what concerns one snapshot: the state after it and the one before it, in one order or the other."""
    catalog, source = lake.catalog, request.source
    ours = catalog.cut(request.target)
    after = catalog.cut_at(request.snapshot, source)
    if request.kind == "restore":
        base, theirs = ours, after
    else:
        catalog.snapshot(request.snapshot, source)  # is there such a step at all
        before = catalog.cut_at(request.snapshot - 1, source)
        base, theirs = (before, after) if request.kind == "cherry-pick" else (after, before)
    graph = LineGraph.read(catalog.records)
    if request.kind != "restore" and any(request.snapshot <= graph.forgotten.get(line, 0) for line in (ours.line, theirs.line)):
        raise _forgotten(request, request.snapshot)
    seen = catalog.records.get([merged_key(ours.line)]).get(merged_key(ours.line))
    done = request.kind != "restore" and _pick(request, theirs.line) in picked_into(seen)
    same = graph.chain(ours.line, ours.snapshot).get(base.line, -1) >= base.snapshot
    found = catalog.records.get([floor_key(source)])
    return _Ground(MergeCuts(base, ours, theirs, same, True), done, seen, found.get(floor_key(source)))


# ---- the commit ------------------------------------------------------------------------------------------------------------------


def _commit(on_target: Lake, request: MergeRequest, ground: _Ground, plan: BranchPlan, done: partial[MergeResult]) -> MergeResult:
    cuts = ground.cuts
    whole = request.whole
    pick = None if whole else _pick(request, cuts.theirs.line)
    strict = request.options.isolation == "serializable"
    step = MergeStep(request.source, cuts.theirs.line, cuts.theirs.snapshot, cuts.ours.line, ground.seen, ground.floor, pick, strict)
    number = cuts.theirs.snapshot if whole else request.snapshot
    tx = on_target.transaction(
        isolation=request.options.isolation,
        message=request.message or _message(request, number),
        properties={PROPERTIES[request.kind]: f"{request.source}@{number} {cuts.theirs.line}"},
    )
    tx.publish_through(partial(publish_merge, on_target.catalog, step))
    with tx:
        now = tx.cut
        if (now.line, now.snapshot) != (cuts.ours.line, cuts.ours.snapshot):
            raise _moved(request, cuts.ours, now)
        tables = [*_written(tx, cuts, plan), *_defined(cuts, plan)]
        _pin(on_target, cuts, plan, {table.table for table in tables if table.referenced})
        taken_in = [_taken_in(on_target, cuts, head) for head in plan.taken_in.values()]
        tx.rearrange(plan.renamed, plan.dropped, taken_in)
    assert tx.result is not None
    return done(tx.result.snapshot, tx.result.transaction_id, tuple(sorted(tables, key=lambda table: table.table)))


def _taken_in(lake: Lake, cuts: MergeCuts, head: TableHead) -> TableHead:
    """A table that comes, with who may write to it.

    Where the target wrote to it after that version, and dropped it then, it comes on a branch of its own: the versions above it would be
    taken for those of a foreign writer, and adopted.
    """
    head = replace(head, owner=head.owner or cuts.theirs.line)
    if not is_written(lake, head, cuts.ours.branch, cuts.ours.line):
        return head
    made = forked(lake, head, cuts.ours.branch, cuts.ours.line, unused=True)
    first = lake.plain_access_of(made).on_branch(made.branch).load(made.version, Scheme(made.naming))
    return replace(made, transaction=transaction_id(first))  # a fork begins with a copy of the version


def _message(request: MergeRequest, number: int) -> str:
    if request.kind == "rebase":
        return f"rebase onto {request.source}"
    return f"merge branch {request.source}" if request.whole else f"{request.kind} {request.source}@{number}"


def _moved_on(branch: str, expected: int | None, there: Cut, cause: Literal["source", "target"]) -> ExpectedVersionMismatch:
    return ExpectedVersionMismatch(
        f"{branch!r} is at snapshot {there.snapshot}, not at {expected}.", table="", expected=expected or 0,
        actual=there.snapshot, cause=cause, operation="merge", advice="Nothing was merged. Look at what came since.",
    )  # fmt: skip


def _moved(request: MergeRequest, before: Cut, now: Cut) -> ExpectedVersionMismatch:
    return ExpectedVersionMismatch(
        f"{request.target!r} was written to while {request.source!r} was being merged.", table="", expected=before.snapshot,
        actual=now.snapshot, cause="line", operation="merge", retryable=True,
    )  # fmt: skip


def _written(tx: LakeTransaction, cuts: MergeCuts, plan: BranchPlan) -> Iterator[TableMerge]:
    heads = {head.id: head for head in cuts.ours.tables.values()}
    for table, versions in plan.replayed.items():
        target = _target(tx, heads[table])
        replay(target, versions)
        yield _report(target, plan, heads[table], TableMerge("", "replayed"))
    for table, version in plan.restored.items():
        target = _target(tx, heads[table])
        target.commit(Restore(version))
        yield _report(target, plan, heads[table], TableMerge("", "restored"))
    for table, made in plan.merged.items():
        target = _target(tx, heads[table])
        apply_plan(target, made)
        rows = made.rows
        came = sum(made.three.theirs.fragments[number].physical_rows - len(hidden) for number, hidden in rows.bring.items())
        yield _report(target, plan, heads[table], TableMerge("", "merged", 0, came + rows_in(rows.copy), rows_in(rows.strike)))


def _pin(lake: Lake, cuts: MergeCuts, plan: BranchPlan, named: Collection[str]) -> None:
    """Keeps cleanups by others from taking files of the branch that tables of the target name from now on."""
    theirs = {head.id: head for head in cuts.theirs.tables.values()}
    for head in cuts.ours.tables.values():
        if shown(plan.renamed.get(head.id, head.name)) in named and head.id in theirs:
            pin_merged(lake, cuts.theirs.branch, theirs[head.id])


def _target(tx: LakeTransaction, head: TableHead) -> MergedTable:
    access = tx.staged_physical(head.name)
    return MergedTable(access, access.load(head.version, Scheme(head.naming)), Scheme(head.naming))


def _report(target: MergedTable, plan: BranchPlan, head: TableHead, how: TableMerge) -> TableMerge:
    return replace(
        how, table=shown(plan.renamed.get(head.id, head.name)), operations=target.operations, referenced=target.referenced,
        written=target.written, left_out=tuple(target.left_out),
    )  # fmt: skip


def _defined(cuts: MergeCuts, plan: BranchPlan) -> Iterator[TableMerge]:
    """Tables that come, go or only get another name."""
    yield from (TableMerge(shown(head.name), "created") for head in plan.taken_in.values())
    yield from (TableMerge(shown(head.name), "dropped") for head in plan.dropped.values())
    yield from (
        TableMerge(shown(name), "renamed")
        for table, name in plan.renamed.items()
        if table not in {**plan.replayed, **plan.merged, **plan.restored}
    )
    yield from (TableMerge(name, "kept") for name in plan.kept)


def _foreseen(cuts: MergeCuts, plan: BranchPlan) -> tuple[TableMerge, ...]:
    heads = {head.id: head for head in cuts.ours.tables.values()}
    written = [TableMerge(shown(heads[table].name), "replayed", len(versions)) for table, versions in plan.replayed.items()]
    written += [TableMerge(shown(heads[table].name), "restored", 1) for table in plan.restored]
    for table, made in plan.merged.items():
        rows = made.rows
        came = sum(made.three.theirs.fragments[number].physical_rows - len(hidden) for number, hidden in rows.bring.items())
        written.append(TableMerge(shown(heads[table].name), "merged", 0, came + rows_in(rows.copy), rows_in(rows.strike)))
    return tuple(sorted([*written, *_defined(cuts, plan)], key=lambda table: table.table))


# ---- conflicts -------------------------------------------------------------------------------------------------------------------


def _told(lake: Lake, cuts: MergeCuts, plan: BranchPlan) -> Iterator[TableConflict]:
    """The conflicts with who did what on both sides."""
    for conflict in plan.conflicts.found:
        table = plan.tables[conflict.table]
        sides = [
            tuple(
                ConflictingStep(side.branch, found.id, found.author, found.message, ", ".join(done))
                for found, done in steps_of(lake.catalog, side.branch, cuts.base.snapshot if side.branch == cuts.base.branch else 0, table)
            )
            for side in (cuts.ours, cuts.theirs)
        ]
        yield replace(conflict, ours=sides[0], theirs=sides[1])


def _what(request: MergeRequest) -> str:
    if request.kind == "rebase":
        return f"{request.target!r} cannot be rebased onto {request.source!r}"
    if request.whole:
        return f"{request.source!r} cannot be merged into {request.target!r}"
    return f"{request.kind} of {request.source}@{request.snapshot} cannot be brought into {request.target!r}"


def _refused(request: MergeRequest, conflicts: tuple[TableConflict, ...]) -> MergeConflict:
    first = conflicts[0]
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    return MergeConflict(
        f"{_what(request)}: {first.table}: {first.detail}{more}.",
        conflicts=conflicts,
        operation="merge",
    )
