"""The timeline of a lake as values: snapshots against tables, and which change was rebased over which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from tiltyard.catalog.lake_values import Change, Snapshot
from tiltyard.server.console.lake_viewer import HistoryFilter, LakeViewer, makers, table_of, versions_rebased_over

MOST_LANES: Final = 24
"""Tables that have a lane of their own; the others share the last one."""
MOST_ARROWS: Final = 300
SPANS: Final = (20, 40, 80, 160)
"""Snapshots on one page, by how far it is zoomed out."""

StepState = Literal["", "voided", "unknown"]


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """What a snapshot did to one table.

    Attributes:
        lane: the place of the table among the lanes.
        table: its name.
        kind: as of a ``Change``; ``adopt`` for versions of a foreign writer.
        version: that it came to.
        operations: what was done, in order.
        lost: whether versions never took effect, since a foreign writer had taken their numbers.
    """

    lane: int
    table: str
    kind: str
    version: int
    operations: tuple[str, ...]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One snapshot.

    Attributes:
        snapshot: its number.
        at: when it was committed.
        author, message, transaction: as the history has them.
        marks: one for each table that it changed.
        state: ``voided`` or ``unknown``, see ``Snapshot``; empty for any other.
        tags: names that the lake has for it.
        branches: branches that begin at it.
    """

    snapshot: int
    at: datetime
    author: str
    message: str
    transaction: str
    marks: tuple[TimelineMark, ...]
    state: StepState = ""
    tags: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """A table, or all those that have no lane of their own.

    Attributes:
        name: the table; empty for the others.
        quarantine: why it takes no writes; empty most of the time.
        tables: how many tables it stands for.
    """

    name: str
    quarantine: str = ""
    tables: int = 1


@dataclass(frozen=True, slots=True)
class RebaseArrow:
    """A change that was rebased over another one.

    Attributes:
        lane: of the table.
        table: its name.
        over: the snapshot that came first.
        by: the snapshot that was rebased.
        version: of the table, that came first.
        theirs, ours: the two operations.
    """

    lane: int
    table: str
    over: int
    by: int
    version: int
    theirs: str
    ours: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A part of the history, ready to be drawn.

    Attributes:
        branch: of the lake.
        steps: oldest first.
        lanes: from top to bottom.
        arrows: who was rebased over whom.
        tip: the latest snapshot of the branch.
        is_latest: whether it is the page with that one.
        older: pass it as ``before`` for the page before; None where there is none.
        searched: snapshots that were read for it.
        unseen: versions that changes were rebased over, made by snapshots that are not on this page.
    """

    branch: str
    steps: tuple[TimelineStep, ...]
    lanes: tuple[TimelineLane, ...]
    arrows: tuple[RebaseArrow, ...]
    tip: int
    is_latest: bool = True
    older: int | None = None
    searched: int = 0
    unseen: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        steps = [{**asdict(step), "at": step.at.isoformat()} for step in self.steps]
        return {**asdict(self), "steps": steps}


def read_timeline(viewer: LakeViewer, span: int, before: int | None = None, wanted: HistoryFilter | None = None) -> Timeline:
    """Reads a page of the history for a timeline.

    Args:
        viewer: the lake, on a branch, and who looks at it.
        span: how many snapshots.
        before: only those before this one.
        wanted: only those.
    """
    page = viewer.history(span, before, wanted)
    snapshots = page.snapshots[::-1]
    heads = viewer.heads()
    lanes, place = _lanes(snapshots, {name: head.quarantine for name, head in heads.items() if head.quarantine}, wanted)
    tags, begun = _refs(viewer)
    steps = tuple(_step(snapshot, place, tags, begun) for snapshot in snapshots)
    arrows, unseen = _arrows(snapshots, place)
    tip = viewer.tip()
    return Timeline(viewer.branch, steps, lanes, arrows, tip, before is None or before > tip, page.next, page.searched, unseen)


def _lanes(
    snapshots: Sequence[Snapshot], quarantined: Mapping[str, str], wanted: HistoryFilter | None
) -> tuple[tuple[TimelineLane, ...], dict[str, int]]:
    """Lanes by name. Where there are too many tables, those that changed most often have one, and those in quarantine."""
    often = Counter(table_of(change) for snapshot in snapshots for change in snapshot.changes)
    if not (wanted and wanted.table):
        often.update(dict.fromkeys(quarantined, 0))
    chosen = sorted(often, key=lambda name: (name not in quarantined, -often[name], name))[: len(often) if len(often) <= MOST_LANES else 23]
    lanes = [TimelineLane(name, quarantined.get(name, "")) for name in sorted(chosen)]
    place = {lane.name: number for number, lane in enumerate(lanes)}
    others = [name for name in often if name not in place]
    if others:
        place |= dict.fromkeys(others, len(lanes))
        lanes.append(TimelineLane("", tables=len(others)))
    return tuple(lanes), place


def _refs(viewer: LakeViewer) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Tags and beginnings of branches on this branch, by snapshot."""
    tags, begun = defaultdict(list), defaultdict(list)
    for tag in viewer.lake.tags.list():
        if tag.branch == viewer.branch:
            tags[tag.snapshot].append(tag.name)
    for branch in viewer.lake.branches.list():
        if branch.origin == viewer.branch:
            begun[branch.snapshot].append(branch.name)
    return tags, begun


def _step(
    snapshot: Snapshot, place: Mapping[str, int], tags: Mapping[int, Sequence[str]], begun: Mapping[int, Sequence[str]]
) -> TimelineStep:
    state: StepState = "unknown" if snapshot.unknown else "voided" if snapshot.voided else ""
    return TimelineStep(
        snapshot.id,
        snapshot.at,
        ", ".join(snapshot.authors),
        snapshot.message,
        snapshot.transaction,
        tuple(_mark(change, place) for change in snapshot.changes),
        state,
        tuple(tags.get(snapshot.id, ())),
        tuple(begun.get(snapshot.id, ())),
    )


def _mark(change: Change, place: Mapping[str, int]) -> TimelineMark:
    name = table_of(change)
    return TimelineMark(place[name], name, change.kind, change.version, change.operations, bool(change.lost))


@dataclass(slots=True)
class _Arrows:
    """Arrows while they are found: one for each pair of snapshots and table."""

    found: dict[tuple[int, int, int], RebaseArrow] = field(default_factory=dict)
    unseen: int = 0


def _arrows(snapshots: Sequence[Snapshot], place: Mapping[str, int]) -> tuple[tuple[RebaseArrow, ...], int]:
    made, arrows = makers(snapshots), _Arrows()
    for snapshot in snapshots:
        for change in snapshot.changes:
            over = versions_rebased_over(change)
            arrows.unseen += max(0, len(over) - len(snapshots) * 4)
            for version in over[-len(snapshots) * 4 :]:
                maker = made.get((change.table, version))
                if maker is None:
                    arrows.unseen += 1
                    continue
                ours = change.operations[0] if change.operations else change.kind
                lane, name = place[table_of(change)], table_of(change)
                arrow = RebaseArrow(lane, name, maker[0].id, snapshot.id, version, maker[1], ours)
                arrows.found.setdefault((lane, arrow.over, arrow.by), arrow)
    return tuple(arrows.found.values())[-MOST_ARROWS:], arrows.unseen
