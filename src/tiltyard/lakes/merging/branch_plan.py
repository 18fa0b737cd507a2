"""What a merge does to each table: told from three snapshots, table by table, by id; names are compared as a set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.line_identity import owns, same_version
from tiltyard.lakes.merging.apply_merge import TablePlan
from tiltyard.lakes.merging.merge_values import ConflictKind, FoundConflicts, Settlement, Use
from tiltyard.lakes.merging.place_merge import Three
from tiltyard.lakes.merging.replay import MadeVersion, lasting_fields, versions_to_replay
from tiltyard.lakes.merging.row_merge import RowMerge, plan_rows
from tiltyard.lakes.merging.schema_merge import Clash, merged_schema, merged_settings, schema_clashes, unlike_columns
from tiltyard.lakes.merging.table_state import TableState, physical_change, state_of
from tiltyard.lakes.table_names import logical_name, shown

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
    base, ours, theirs = (_by_id(cut) for cut in (cuts.base, cuts.ours, cuts.theirs))
    families = _families(cuts)
    forced: dict[str, Use] = {}
    while True:
        planner = _Planner(lake, cuts, settle, BranchPlan(), restoring, families, forced)
        own = [table for table in ours if forced.get(families.get(table, ""))]
        for table in sorted({**base, **theirs, **dict.fromkeys(own)}, key=lambda table: _first(table, theirs, base, ours).name):
            planner.table(base.get(table), ours.get(table), theirs.get(table))
        planner.names(ours, theirs)
        if planner.whole.keys() <= forced.keys():
            return planner.plan
        forced = {**planner.whole, **forced}  # what was said of a part of a sharded table is for all of it


def _first(table: str, *several: Mapping[str, TableHead]) -> TableHead:
    return next(heads[table] for heads in several if table in heads)


def _families(cuts: MergeCuts) -> dict[str, str]:
    """For each part of a sharded table, which of them is the table itself: they are one thing, whatever their names."""
    found: dict[str, str] = {}
    for cut in (cuts.base, cuts.ours, cuts.theirs):
        for head in cut.tables.values():
            logical = logical_name(head.name)
            if logical is not None and logical in cut.tables:
                anchor = cut.tables[logical].id
                found |= {head.id: anchor, anchor: anchor}
    return found


def _by_id(cut: Cut) -> dict[str, TableHead]:
    return {head.id: head for head in cut.tables.values()}


@dataclass(slots=True)
class _Planner:
    lake: Lake
    cuts: MergeCuts
    settle: Settlement
    plan: BranchPlan
    restoring: bool
    families: Mapping[str, str]
    forced: Mapping[str, Use]
    """Sharded tables of which one side is right as a whole."""
    whole: dict[str, Use] = field(default_factory=dict)
    """Those of which a part was settled so."""
    gave_way: set[str] = field(default_factory=set)
    """Tables that have their name on the branch because another one of the branch needs theirs."""

    def table(self, base: TableHead | None, ours: TableHead | None, theirs: TableHead | None) -> None:
        any_head = ours or theirs or base
        assert any_head is not None
        use = self.forced.get(self.families.get(any_head.id, ""))
        if use is not None:
            self._as_a_whole(use, ours, theirs)
        elif base is None:
            assert theirs is not None
            if ours is None:
                self.plan.taken_in[theirs.id] = theirs
            elif not same_version(ours, theirs) and self._use(ours) == "theirs":
                self._as_a_whole("theirs", ours, theirs)
            elif not same_version(ours, theirs):
                self._both_ways(ours, "created", "the table was created on both sides, and its origin is not known", theirs="")
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

    def _as_a_whole(self, use: Use, ours: TableHead | None, theirs: TableHead | None) -> None:
        """A part of a sharded table of which one side is right."""
        if use == "ours" or ours is theirs is None:
            self._keep(ours or theirs)
        elif theirs is None:
            assert ours is not None
            self.plan.dropped[ours.id] = ours
        elif ours is None:
            self.plan.taken_in[theirs.id] = theirs
        else:
            if ours.name != theirs.name:
                self.plan.renamed[ours.id] = theirs.name
            mine = self._state(ours, self.cuts.ours.branch)
            three = Three(mine, mine, self._state(theirs, self.cuts.theirs.branch), ours_ids=True, theirs_ids=False)
            self._take(ours, three, planned(three, self.settle, self._label(ours), [])[0])

    def _label(self, head: TableHead) -> str:
        """What a conflict about a table is called: a part of a sharded table by the name of the table."""
        anchor = self.families.get(head.id)
        heads = [cut.tables.values() for cut in (self.cuts.ours, self.cuts.theirs, self.cuts.base)]
        return shown(head.name if anchor is None else next(found.name for cut in heads for found in cut if found.id == anchor))

    def _use(self, head: TableHead) -> Use | None:
        """Which side is right about a table as a whole."""
        use = self.settle.of_table(self._label(head))
        if use is not None and head.id in self.families:
            self.whole[self.families[head.id]] = use
        return use

    def _keep(self, head: TableHead | None) -> None:
        if head is not None and self._label(head) not in self.plan.kept:
            self.plan.kept.append(self._label(head))

    def _conflict(self, head: TableHead, kind: ConflictKind, detail: str, **more: object) -> None:
        name = self._label(head)
        self.plan.tables[name] = head.id
        if more or not any((found.table, found.kind, found.detail) == (name, kind, detail) for found in self.plan.conflicts.found):
            self.plan.conflicts.add(name, kind, detail, **more)  # type: ignore[arg-type]

    def _both_ways(self, head: TableHead, kind: ConflictKind, detail: str, theirs: str) -> None:
        """A conflict about a table as a whole, unless somebody settled it."""
        use = self._use(head)
        if use == "ours":
            self._keep(head)
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
        use = self.settle.of_table(self._label(ours))
        if ours.name == base.name or use == "theirs":
            self.plan.renamed[ours.id] = theirs.name
        elif use != "ours":
            self._conflict(ours, "name", f"it was renamed to {shown(ours.name)} on the target and to {shown(theirs.name)} on the branch")

    def names(self, ours: Mapping[str, TableHead], theirs: Mapping[str, TableHead]) -> None:
        """Looks for names that two tables would have, until none is left."""
        while (pair := self._two_of_one_name(ours)) is not None:
            self._one_name(*pair, ours, theirs)

    def _two_of_one_name(self, ours: Mapping[str, TableHead]) -> tuple[TableHead, TableHead] | None:
        """A table that gets its name from the branch, and another one of the target that has it."""
        plan = self.plan
        there = {head.name: head for head in ours.values() if head.id not in plan.dropped and head.id not in plan.renamed}
        wanted = {**plan.renamed, **{table: head.name for table, head in plan.taken_in.items()}}
        for table, name in wanted.items():
            if name in there and there[name].id != table:
                return ours.get(table) or plan.taken_in[table], there[name]
        return None

    def _one_name(self, claimant: TableHead, rival: TableHead, ours: Mapping[str, TableHead], theirs: Mapping[str, TableHead]) -> None:
        """Gives a name to one of two tables: the branch's, and then the other has the name that it has there, or goes; or the target's."""
        plan = self.plan
        use = self.settle.of_table(self._label(claimant))
        in_base = any(head.id == rival.id for head in self.cuts.base.tables.values())
        # One that gave way before, or that somebody wants to keep though the branch dropped it, does not give way.
        if use == "theirs" and rival.id in theirs and rival.id not in self.gave_way:
            for table in self._parts(rival.id, ours, theirs):
                plan.renamed[table] = theirs[table].name
                self.gave_way.add(table)
            return
        if use == "theirs" and rival.id not in theirs and not in_base:
            plan.dropped.update((table, ours[table]) for table in self._parts(rival.id, ours, ours))
            return
        if claimant.id in plan.renamed:
            new = shown(plan.renamed[claimant.id])
            detail = f"the branch renamed it to {new}, which another table of the target is called"
        else:
            detail = "both sides have a new table of that name"
        for table in self._parts(claimant.id, theirs, theirs):
            plan.renamed.pop(table, None)
            plan.taken_in.pop(table, None)
        if use == "ours":
            self._keep(claimant)
        else:
            self._conflict(claimant, "name" if claimant.id in ours else "created", detail)

    def _parts(self, table: str, *several: Mapping[str, TableHead]) -> list[str]:
        """A table, with all parts of it that are there if it is sharded."""
        anchor = self.families.get(table)
        parts = [table] if anchor is None else [part for part, whole in self.families.items() if whole == anchor]
        return [part for part in parts if all(part in heads for heads in several)]

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
        name = self._label(ours)
        made, clashes = planned(three, self.settle, name, self._unlike(three, base, ours, theirs))
        if clashes:
            use = self._use(ours)
            if use is None:
                for clash in clashes:
                    self._conflict(ours, clash.kind, clash.detail)
                return
            if use == "ours":
                self._keep(ours)
                return
            made, clashes = planned(replace(three, base=three.ours, ours_ids=True, theirs_ids=False), self.settle, name, [])
            assert not clashes, clashes
        self._take(ours, three, made)

    def _take(self, ours: TableHead, three: Three, made: TablePlan) -> None:
        """Notes what is done to the content of a table, if anything is."""
        rows = made.rows
        if rows.untold:
            kind: ConflictKind = "key" if rows.by_key == rows.untold else "rows"
            self._conflict(ours, kind, _about_rows(made), rows=rows.untold, sample=tuple(rows.conflicts))
        elif rows or made.settings is not None or made.schema.fields != three.ours.manifest.fields or _indices_differ(three):
            self.plan.merged[ours.id] = made

    def _unlike(self, three: Three, base: TableHead, ours: TableHead, theirs: TableHead) -> list[Clash]:
        """Columns that have the id of another column of the base: they matter to what the other side did since."""
        mine, other = physical_change(three.base, three.ours), physical_change(three.base, three.theirs)
        fields = three.base.manifest.fields
        found: list[Clash] = []
        if other or three.theirs.manifest.fields != fields:
            lasting = partial(lasting_fields, self.lake, self.cuts.ours.branch, base, ours) if three.ours_ids else _none_lasts
            found += unlike_columns(three.base, three.ours, mine, lasting=lasting)
        if mine or three.ours.manifest.fields != fields:
            lasting = partial(lasting_fields, self.lake, self.cuts.theirs.branch, base, theirs) if three.theirs_ids else _none_lasts
            found += unlike_columns(three.base, three.theirs, other, lasting=lasting)
        return found


def _none_lasts(_: frozenset[int]) -> frozenset[int]:
    """For a side that does not come from the base: no history is between the two."""
    return frozenset()


def _indices_differ(three: Three) -> bool:
    return three.base.manifest.index_section != three.theirs.manifest.index_section


def _about_rows(made: TablePlan) -> str:
    rows = made.rows
    if rows.by_key == rows.untold:
        return f"both sides inserted the same {_many(rows.untold, 'key')}, with other values"
    if rows.conflicts and not rows.conflicts[0].key:
        return f"{_many(rows.untold, 'row')} were moved or deleted on both sides, and no key or stable row id identifies them"
    return f"both sides changed the same {_many(rows.untold, 'row')}"


def _many(number: int, what: str) -> str:
    return what if number == 1 else f"{number:,} {what}s"


def planned(three: Three, settle: Settlement, name: str, unlike: list[Clash]) -> tuple[TablePlan, list[Clash]]:
    """A plan for a table that both sides changed, and why its schema or settings forbid it.

    Args:
        three: the table.
        settle: answers to conflicts.
        name: its name, for these.
        unlike: columns that are known to be others than their ids say.
    """
    mine, other = physical_change(three.base, three.ours), physical_change(three.base, three.theirs)
    schema = merged_schema(three.base, three.ours, three.theirs)
    settings, clashes = merged_settings(three.base.manifest, three.ours.manifest, three.theirs.manifest)
    found = [*unlike, *schema.clashes, *clashes]
    found += schema_clashes(schema, three, mine, other) if not found else []
    plan = plan_rows(three, mine, other, settle, name) if not found else RowMerge()
    if plan.untold and not any(row.key for row in plan.conflicts) and settle.of_table(name) is not None:
        found.append(Clash("rows", "rows cannot be identified"))  # so that the answer is for the table as a whole
    return TablePlan(three, mine, other, schema, settings, plan), found
