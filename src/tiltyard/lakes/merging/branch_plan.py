"""What a merge does to each table: told from three snapshots, table by table, by id; names are compared as a set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.line_identity import owns, same_version
from tiltyard.lakes.merging.apply_merge import TablePlan
from tiltyard.lakes.merging.merge_values import ConflictKind, FoundConflicts, Settlement, Use
from tiltyard.lakes.merging.place_merge import Three
from tiltyard.lakes.merging.replay import MadeVersion, versions_to_replay
from tiltyard.lakes.merging.row_merge import RowMerge, plan_rows
from tiltyard.lakes.merging.schema_merge import Clash, merged_schema, merged_settings, schema_clashes, unlike_columns
from tiltyard.lakes.merging.table_state import TableState, physical_change, state_of
from tiltyard.lakes.table_names import shown

if TYPE_CHECKING:
    from tiltyard.lake import Lake


_COMPARED: Final = ("fields", "config", "table_metadata", "schema_metadata")
"""Of a manifest what counts as a change of its table, beside rows."""


@dataclass(frozen=True, slots=True)
class MergeCuts:
    """The lake at the common ancestor, on the target and on the branch.

    Attributes:
        ours_ids, theirs_ids: whether row ids of the base stand for the same rows on that side, which is so if it began there.
    """

    base: Cut
    ours: Cut
    theirs: Cut
    ours_ids: bool
    theirs_ids: bool


@dataclass(slots=True)
class BranchPlan:
    """All that a merge does, by tables' ids.

    Attributes:
        replayed: tables that only the branch changed, with the versions to repeat.
        merged: tables that both changed.
        restored: tables that go back to an older version of their own.
        taken_in: tables that the branch made.
        dropped: tables that it dropped.
        renamed: new names.
        kept: names of tables that stay as they are because a conflict was settled for the target.
        conflicts: what nobody settled.
    """

    replayed: dict[str, list[MadeVersion]] = field(default_factory=dict)
    merged: dict[str, TablePlan] = field(default_factory=dict)
    restored: dict[str, int] = field(default_factory=dict)
    taken_in: dict[str, TableHead] = field(default_factory=dict)
    dropped: dict[str, TableHead] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    conflicts: FoundConflicts = field(default_factory=FoundConflicts)
    tables: dict[str, str] = field(default_factory=dict)
    """The tables' ids that conflicts are about, by name."""

    def __bool__(self) -> bool:
        return bool(self.replayed or self.merged or self.restored or self.taken_in or self.dropped or self.renamed)


def plan_merge(lake: Lake, cuts: MergeCuts, settle: Settlement, *, restoring: bool = False) -> BranchPlan:
    """Plans a merge; nothing is changed. With ``restoring`` the branch is an older state of the target."""
    planner = _Planner(lake, cuts, settle, BranchPlan(), restoring)
    base, ours, theirs = (_by_id(cut) for cut in (cuts.base, cuts.ours, cuts.theirs))
    for table in sorted({**base, **theirs}, key=lambda table: (theirs.get(table) or base[table]).name):
        planner.table(base.get(table), ours.get(table), theirs.get(table))
    planner.names(ours)
    return planner.plan


def _by_id(cut: Cut) -> dict[str, TableHead]:
    return {head.id: head for head in cut.tables.values()}


@dataclass(slots=True)
class _Planner:
    lake: Lake
    cuts: MergeCuts
    settle: Settlement
    plan: BranchPlan
    restoring: bool = False

    def table(self, base: TableHead | None, ours: TableHead | None, theirs: TableHead | None) -> None:
        if base is None:
            assert theirs is not None
            if ours is None:
                self.plan.taken_in[theirs.id] = theirs
            elif not same_version(ours, theirs):
                self._both_ways(ours, "created", "the table came to both sides, and nothing tells from where", theirs=None)
        elif theirs is None:
            if ours is not None and self._is_as_it_was(base, ours, self.cuts.ours.branch):
                self.plan.dropped[ours.id] = ours
            elif ours is not None:
                self._both_ways(ours, "dropped", "it was dropped on the branch and changed on the target", theirs="drop")
        elif ours is None:
            if not self._is_as_it_was(base, theirs, self.cuts.theirs.branch):
                self._both_ways(theirs, "dropped", "it was dropped on the target and changed on the branch", theirs="take in")
        else:
            self._name(base, ours, theirs)
            if not same_version(base, theirs):
                self._content(base, ours, theirs)

    def _conflict(self, head: TableHead, kind: ConflictKind, detail: str, **more: object) -> None:
        name = shown(head.name)
        self.plan.tables[name] = head.id
        self.plan.conflicts.add(name, kind, detail, **more)  # type: ignore[arg-type]

    def _both_ways(self, head: TableHead, kind: ConflictKind, detail: str, theirs: str | None) -> None:
        """A conflict about a table as a whole, unless somebody settled it."""
        use = self.settle.of_table(shown(head.name))
        if use == "ours":
            self.plan.kept.append(shown(head.name))
        elif use == "theirs" and theirs == "drop":
            self.plan.dropped[head.id] = head
        elif use == "theirs" and theirs == "take in":
            self.plan.taken_in[head.id] = head
        else:
            self._conflict(head, kind, detail)

    def _is_as_it_was(self, base: TableHead, later: TableHead, branch: str) -> bool:
        """Whether a table has the rows, schema, settings and name that it had."""
        if base.name != later.name:
            return False
        if same_version(base, later):
            return True
        was, now = self._state(base, self.cuts.base.branch), self._state(later, branch)
        same = all(getattr(was.manifest, name) == getattr(now.manifest, name) for name in _COMPARED)
        return same and not physical_change(was, now)

    def _state(self, head: TableHead, branch: str) -> TableState:
        return state_of(self.lake, head, branch)

    # ---- names -----------------------------------------------------------------------------------------------------------------

    def _name(self, base: TableHead, ours: TableHead, theirs: TableHead) -> None:
        if theirs.name in (base.name, ours.name):
            return
        if ours.name == base.name or self.settle.of_table(shown(ours.name)) == "theirs":
            self.plan.renamed[ours.id] = theirs.name
        elif self.settle.of_table(shown(ours.name)) != "ours":
            self._conflict(ours, "name", f"it was renamed to {shown(ours.name)} on the target and to {shown(theirs.name)} on the branch")

    def names(self, ours: Mapping[str, TableHead]) -> None:
        """Looks for names that two tables would have."""
        plan = self.plan
        taken = {plan.renamed.get(head.id, head.name): head for head in ours.values() if head.id not in plan.dropped}
        for table, name in list(plan.renamed.items()):
            holder = taken[name]
            if holder.id != table:
                del plan.renamed[table]
                self._conflict(ours[table], "name", f"the branch renamed it to {shown(name)}, which another table of the target is called")
        for table, head in list(plan.taken_in.items()):
            rival = taken.get(head.name)
            if rival is None or rival.id == table:
                continue
            use = self.settle.of_table(shown(head.name))
            if use is None:
                self._conflict(head, "created", "both sides have a new table of that name")
            if use == "theirs" and rival.id not in plan.renamed:
                plan.dropped[rival.id] = rival
                plan.replayed.pop(rival.id, None)
                plan.merged.pop(rival.id, None)
            else:
                del plan.taken_in[table]
                plan.kept += [shown(head.name)] if use == "ours" else []

    # ---- content ---------------------------------------------------------------------------------------------------------------

    def _content(self, base: TableHead, ours: TableHead, theirs: TableHead) -> None:
        if self.restoring and ours.branch == theirs.branch and owns(ours, self.cuts.ours.branch, self.cuts.ours.line):
            if not self._is_as_it_was(replace(theirs, name=ours.name), ours, self.cuts.ours.branch):
                self.plan.restored[ours.id] = theirs.version
            return
        if same_version(base, ours):
            versions = versions_to_replay(self.lake, self.cuts.theirs.branch, base, theirs)
            if versions:
                self.plan.replayed[ours.id] = versions
                return
        three = Three(
            self._state(base, self.cuts.base.branch),
            self._state(ours, self.cuts.ours.branch),
            self._state(theirs, self.cuts.theirs.branch),
            self.cuts.ours_ids,
            self.cuts.theirs_ids,
        )
        name = shown(ours.name)
        made, clashes = planned(three, self.settle, name)
        if clashes:
            use: Use | None = self.settle.of_table(name)
            if use is None:
                for clash in clashes:
                    self._conflict(ours, clash.kind, clash.detail)
                return
            if use == "ours":
                self.plan.kept.append(name)
                return
            made, clashes = planned(replace(three, base=three.ours, ours_ids=True, theirs_ids=False), self.settle, name)
            assert not clashes, clashes
        rows = made.rows
        if rows.untold:
            kind: ConflictKind = "key" if rows.by_key == rows.untold else "rows"
            self._conflict(ours, kind, _about_rows(made), rows=rows.untold, sample=tuple(rows.conflicts))
        elif rows or made.settings is not None or made.schema.fields != three.ours.manifest.fields or _indices_differ(three):
            self.plan.merged[ours.id] = made


def _indices_differ(three: Three) -> bool:
    return three.base.manifest.index_section != three.theirs.manifest.index_section


def _about_rows(made: TablePlan) -> str:
    rows = made.rows
    if rows.by_key == rows.untold:
        return f"both sides inserted the same {_many(rows.untold, 'key')}, with other values"
    if rows.conflicts and not rows.conflicts[0].key:
        return f"{_many(rows.untold, 'row')} went from their place on both sides, and no key or stable row id tells them apart"
    return f"both sides changed the same {_many(rows.untold, 'row')}"


def _many(number: int, what: str) -> str:
    return what if number == 1 else f"{number:,} {what}s"


def planned(three: Three, settle: Settlement, name: str) -> tuple[TablePlan, list[Clash]]:
    """A plan for a table that both sides changed, and why its schema or settings forbid it."""
    mine, other = physical_change(three.base, three.ours), physical_change(three.base, three.theirs)
    schema = merged_schema(three.base, three.ours, three.theirs)
    settings, clashes = merged_settings(three.base.manifest, three.ours.manifest, three.theirs.manifest)
    found = [*schema.clashes, *clashes, *schema_clashes(schema, three.ours, three.theirs, mine, other)]
    if three.base is not three.ours:  # unless one side is taken as it is
        found += [] if three.ours_ids else unlike_columns(three.base, three.ours, mine)
        found += [] if three.theirs_ids else unlike_columns(three.base, three.theirs, other)
    plan = plan_rows(three, mine, other, settle, name) if not found else RowMerge()
    if plan.untold and not any(row.key for row in plan.conflicts) and settle.of_table(name) is not None:
        found.append(Clash("rows", "rows cannot be told apart"))  # so that the answer is for the table as a whole
    return TablePlan(three, mine, other, schema, settings, plan), found
