"""The pages about branches and tags: compare two branches, see what a merge would do and what conflicts, and do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lance_namespace import PermissionDeniedError

from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.line_identity import same_version
from tiltyard.errors import ConflictError, ProtectedBranch, TiltyardError
from tiltyard.lakes.branches.lake_refs import LakeBranch
from tiltyard.lakes.table_names import shown
from tiltyard.merges import ConflictingRow, LakeDiff, MergeOptions, MergeResult, TableConflict, TableDifference
from tiltyard.server.console.lake_viewer import LakeViewer
from tiltyard.server.console.merge_answers import MergeAnswers, row_token
from tiltyard.server.console.page_rendering import path_to
from tiltyard.server.console.page_values import ConsolePage, PageRequest, cell, page_of, said

MOST_COUNTED: Final = 1000
MOST_COLUMNS: Final = 12
NOT_ANSWERED: Final = MergeAnswers()
UNPLANNED: Final = "What a merge would do is not known at the moment. Users with a role for the whole lake see why."


@dataclass(frozen=True, slots=True)
class BranchLine:
    """A branch in the list.

    Attributes:
        name, origin, snapshot, created: where it began.
        tip: its latest snapshot.
        ahead: how many snapshots it has of its own.
        behind: how many the branch it began at has made since.
    """

    name: str
    origin: str
    snapshot: int
    created: datetime | None
    tip: int
    ahead: int
    behind: int


@dataclass(frozen=True, slots=True)
class TagLine:
    """A tag in the list."""

    name: str
    branch: str
    snapshot: int
    created: datetime


@dataclass(frozen=True, slots=True)
class BranchesView:
    """All branches and tags."""

    branches: tuple[BranchLine, ...]
    tags: tuple[TagLine, ...]


def branches_page(asked: PageRequest) -> ConsolePage:
    """Branches with how far they are apart, and tags."""
    viewer = asked.viewer
    tips = {name: viewer.on_branch(name).tip() for name in viewer.branches()}
    lines = [BranchLine(MAIN, "", 0, None, tips[MAIN], tips[MAIN], 0)]
    for branch in sorted(viewer.lake.branches.list(), key=lambda branch: branch.name):
        behind = max(tips.get(branch.origin, branch.snapshot) - branch.snapshot, 0)
        tip = tips.get(branch.name, branch.snapshot)
        lines.append(BranchLine(branch.name, branch.origin, branch.snapshot, branch.created, tip, tip - branch.snapshot, behind))
    tags = sorted(viewer.lake.tags.list(), key=lambda tag: tag.created, reverse=True)
    view = BranchesView(tuple(lines), tuple(TagLine(tag.name, tag.branch, tag.snapshot, tag.created) for tag in tags[:MOST_COUNTED]))
    return page_of(asked, "branches.html", "Branches", "branches", view)


# ---- compare and merge -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowConflictView:
    """A row that both sides changed, as text: its key, and by column what it was and what each side made of it.

    ``token`` stands for it in the form; empty where it has no key, so that only the table as a whole can be answered for.
    """

    key: str
    columns: tuple[tuple[str, str, str, str], ...]
    token: str


@dataclass(frozen=True, slots=True)
class TableConflictView:
    """Why a table cannot be merged, and the answer that was chosen for it."""

    conflict: TableConflict
    rows: tuple[RowConflictView, ...]
    chosen: str

    @property
    def by_row(self) -> bool:
        """Whether each row can be answered for."""
        return any(row.token for row in self.rows)


@dataclass(frozen=True, slots=True)
class AnsweredRows:
    """Rows of a table that were answered for: the tokens of those for either side."""

    table: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompareView:
    """Two branches, what differs, and what a merge would come to.

    Attributes:
        source, into: the branch to be merged, and the one that changes.
        targets: branches that it could be merged into.
        differences: tables that changed on the source since it began, and differ; all that differ where that cannot be told.
            None where they cannot be read.
        others: how many tables differ only since the target changed them.
        plan: what a merge would do; None where it cannot be planned.
        trouble: why not.
        conflicts: that have to be settled first.
        answered: rows that were; they are conflicts no more.
        seen: what the plan was made for: whoever decides by it decides about these snapshots.
        may_act: whether the role allows merging.
        can_forward: whether the branch can be fast-forwarded.
        notice: what happened to the last attempt.
    """

    source: str
    into: str
    targets: tuple[str, ...]
    differences: tuple[TableDifference, ...] | None
    others: int
    plan: MergeResult | None
    trouble: str
    conflicts: tuple[TableConflictView, ...]
    answered: tuple[AnsweredRows, ...]
    seen: str
    may_act: bool
    can_forward: bool
    notice: str = ""
    message: str = ""


def compare_page(asked: PageRequest) -> ConsolePage:
    """A branch beside another one, and what a merge would do."""
    view = _compared(asked.viewer, asked.path["branch"], asked.text("into") or MAIN)
    return page_of(asked, "compare.html", f"{view.source} into {view.into}", "branches", view)


def merge_action(asked: PageRequest) -> ConsolePage:
    """Merges a branch, with the answers to conflicts that the form brings; or shows the next rows that need one.

    Nothing is done where either branch has moved since the form was made: its answers were given for other rows.
    """
    viewer, source, into = asked.viewer, asked.path["branch"], asked.form.get("into", "") or MAIN
    _check_role(viewer)
    answers = MergeAnswers.of_form(asked.form)
    message = asked.form.get("message", "").strip()[:500]
    view = replace(_compared(viewer, source, into, answers), message=message)
    if view.seen != asked.form.get("seen"):
        return _again(asked, view, "One of the branches has moved since you looked. This is what a merge would do now.")
    if asked.form.get("do") == "next":
        return page_of(asked, "compare.html", f"{source} into {into}", "branches", view)
    source_tip, into_tip = map(int, view.seen.split("-")[:2])
    looked_at = MergeOptions(source_tip, into_tip)
    try:
        done = viewer.lake.branches.merge(source, into, on_conflict=answers.for_all(), message=message or None, options=looked_at)
    except (ConflictError, ProtectedBranch) as error:
        return _again(asked, view, said(str(error)))
    return ConsolePage("", location=path_to("transactions", into, done.snapshot))


def forward_action(asked: PageRequest) -> ConsolePage:
    """Brings main to where a branch is."""
    viewer, source = asked.viewer, asked.path["branch"]
    _check_role(viewer)
    view = _compared(viewer, source, MAIN)
    if view.seen != asked.form.get("seen"):
        return _again(asked, view, "One of the branches has moved since you looked.")
    try:
        done = viewer.lake.branches.fast_forward(source)
    except (ConflictError, ProtectedBranch) as error:
        return _again(asked, view, said(str(error)))
    return ConsolePage("", location=path_to("transactions", MAIN, done.snapshot))


def _check_role(viewer: LakeViewer) -> None:
    if not viewer.may_act:
        raise PermissionDeniedError("Merging needs the role maintainer for the whole lake.")


def _again(asked: PageRequest, view: CompareView, notice: str) -> ConsolePage:
    return page_of(asked, "compare.html", f"{view.source} into {view.into}", "branches", replace(view, notice=notice), status=409)


def _compared(viewer: LakeViewer, source: str, into: str, answers: MergeAnswers = NOT_ANSWERED) -> CompareView:
    begun = viewer.lake.branches[source] if source != MAIN else None
    source_view, into_view = viewer.on_branch(source), viewer.on_branch(into)
    seen = f"{source_view.tip()}-{into_view.tip()}-{begun.id if begun else ''}"
    plan, trouble, others = None, "", 0
    differences: tuple[TableDifference, ...] | None = None
    try:
        differences, others = _differences(viewer, viewer.lake.diff(into, source), begun)
        plan = viewer.lake.branches.merge(source, into, on_conflict=answers.for_rows(), dry_run=True)
    except TiltyardError as error:
        # The message may be about a table that the role does not show.
        trouble = said(str(error)) if viewer.sees_all else UNPLANNED
    conflicts = tuple(
        TableConflictView(conflict, tuple(_row(conflict.table, row) for row in conflict.sample), answers.tables.get(conflict.table, ""))
        for conflict in (plan.conflicts if plan else ())
        if viewer.sees(conflict.table)
    )
    if plan is not None:
        plan = replace(plan, tables=tuple(table for table in plan.tables if viewer.sees(table.table)))
    answered = tuple(AnsweredRows(table, answers.tokens(table, "ours"), answers.tokens(table, "theirs")) for table in answers.rows)
    targets = tuple(name for name in viewer.branches() if name != source)
    can_forward = begun is not None and into == MAIN and begun.origin == MAIN and into_view.tip() == begun.snapshot < source_view.tip()
    return CompareView(source, into, targets, differences, others, plan, trouble, conflicts, answered, seen, viewer.may_act, can_forward)


def _differences(viewer: LakeViewer, found: LakeDiff, begun: LakeBranch | None) -> tuple[tuple[TableDifference, ...], int]:
    """How tables differ that changed on the source. Those that only the target changed are counted by their heads, and not read."""
    old, new = ({head.id: head for head in shot.cut.tables.values()} for shot in (found.before, found.after))
    began = _began(viewer, begun)
    differences, others = [], 0
    for table in {**old, **new}:
        name = shown((new.get(table) or old[table]).name)
        if _is_same(old.get(table), new.get(table)) or not viewer.sees(name):
            continue
        if began is not None and _is_same(began.get(table), new.get(table)):
            others += 1
        elif (difference := found.table(name)) is not None:
            differences.append(viewer.difference(difference))
    return tuple(sorted(differences, key=lambda difference: difference.table)), others


def _began(viewer: LakeViewer, begun: LakeBranch | None) -> dict[str, TableHead] | None:
    """The tables as a branch found them when it began; None where that cannot be told any more."""
    try:
        cut = viewer.on_branch(begun.origin).snapshot(begun.snapshot).cut if begun is not None else None
    except TiltyardError:
        return None
    return None if cut is None else {head.id: head for head in cut.tables.values()}


def _is_same(one: TableHead | None, other: TableHead | None) -> bool:
    if one is None or other is None:
        return one is other
    return same_version(one, other) and (one.name, one.location) == (other.name, other.location)


def _row(table: str, row: ConflictingRow) -> RowConflictView:
    sides = (row.base, row.ours, row.theirs)
    names = list(dict.fromkeys(name for side in sides for name in side or {}))
    lines = [(name, *(_side(side, name) for side in sides)) for name in names]
    differing = [line for line in lines if len(set(line[1:])) > 1] or lines
    key = ", ".join(f"{name} = {cell(value)}" for name, value in row.key.items()) or "a row without a key"
    columns = tuple((name, base, ours, theirs) for name, base, ours, theirs in differing[:MOST_COLUMNS])
    return RowConflictView(key, columns, row_token(table, row.key))


def _side(values: Mapping[str, Any] | None, name: str) -> str:
    return "no such row" if values is None else cell(values.get(name))
