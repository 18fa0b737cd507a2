"""The pages about the history: the timeline, and one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from tiltyard import conflicts
from tiltyard.catalog.lake_values import MAIN, Change, Snapshot, TableHead
from tiltyard.errors import InvalidInput, NotFound, TiltyardError
from tiltyard.format.digests import SEAL
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.lake_tables import LakeReader
from tiltyard.outcomes import Committed
from tiltyard.server.console.conflict_pages import branch_of_refused
from tiltyard.server.console.lake_viewer import HistoryFilter, LakeViewer, makers, table_of, versions_rebased_over
from tiltyard.server.console.page_rendering import path_to
from tiltyard.server.console.page_values import ConsolePage, PageRequest, page_of, said
from tiltyard.server.console.timeline import SPANS, Timeline, read_timeline
from tiltyard.server.console.timeline_svg import timeline_svg
from tiltyard.transaction.transaction import MESSAGE_PROPERTY
from tiltyard.transaction.verify import PARENT

LOOKED_BACK: Final = 400
"""Snapshots that are searched for those that a change was rebased over."""
MOST_CHANGES: Final = 100
MOST_OVER: Final = 8
MOST_FILES: Final = 12
_OWN: Final = (MESSAGE_PROPERTY, PARENT, SEAL)
"""Properties that commits carry for the engine: the message is shown by itself."""
_OPERATIONS: Final = ("create", "drop", "rename", "register", "adopt", *conflicts.OPERATIONS.values())


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The timeline, drawn and as a list.

    Attributes:
        timeline: what is drawn.
        drawing: as SVG, in which all texts are escaped.
        wanted: the filter.
        operations: what a filter may ask for.
        spans: how far it can be zoomed.
        span: how far it is.
        newer: pass it as ``before`` for the page after this one; None where there is none.
        over: by snapshot, those that it was rebased over, as the arrows have it.
    """

    timeline: Timeline
    drawing: str
    wanted: HistoryFilter
    operations: tuple[str, ...]
    spans: tuple[int, ...]
    span: int
    newer: int | None
    over: Mapping[int, tuple[int, ...]]

    @property
    def closer(self) -> int | None:
        """How many snapshots there are one step further in."""
        return max((span for span in self.spans if span < self.span), default=None)

    @property
    def wider(self) -> int | None:
        """How many there are one step further out; None where all are shown."""
        more = self.timeline.older or self.newer
        return min((span for span in self.spans if span > self.span), default=None) if more else None


def timeline_page(asked: PageRequest) -> ConsolePage:
    """Snapshots against tables: who changed what together, and who was rebased over whom."""
    viewer, span = asked.viewer, asked.number("span", SPANS[1])
    if span not in SPANS:
        raise InvalidInput(f"span must be one of {', '.join(map(str, SPANS))}.", argument="span")
    before, wanted = asked.optional_number("before"), asked.wanted
    timeline = read_timeline(viewer, span, before, wanted)
    drawing = timeline_svg(timeline, lambda snapshot: path_to("transactions", viewer.branch, snapshot))
    newer = None
    if not timeline.is_latest and before is not None:
        newer = before + span
    view = TimelineView(timeline, drawing, wanted, _OPERATIONS, SPANS, span, newer, _over(timeline))
    return page_of(asked, "timeline.html", "Timeline", "timeline", view, live=timeline.tip if timeline.is_latest else None)


def _over(timeline: Timeline) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for arrow in timeline.arrows:
        found.setdefault(arrow.by, []).append(arrow.over)
    return {snapshot: tuple(dict.fromkeys(over[-MOST_OVER:])) for snapshot, over in found.items()}


# ---- one transaction ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Data files that a change added and removed.

    Attributes:
        added: names and sizes of some of them.
        added_count, added_bytes, removed_count, removed_bytes: of all.
        rows: of the table, before and after.
    """

    added: tuple[tuple[str, int], ...]
    added_count: int
    added_bytes: int
    removed_count: int
    removed_bytes: int
    rows: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WinnerView:
    """A version that a change was rebased over, or that came first.

    Attributes:
        version: of the table.
        operation: that made it.
        author, message, snapshot: of the transaction that did; empty and None where it is too long ago.
        ours: the operation that was rebased.
        why: what the conflict table says of the two.
    """

    version: int
    operation: str
    author: str
    message: str
    snapshot: int | None
    ours: str
    why: str


@dataclass(frozen=True, slots=True)
class ChangeView:
    """What a transaction did to one table. ``held`` is why it is in quarantine since; empty most of the time."""

    table: str
    kind: str
    former: str
    base: int
    read: int
    version: int
    operations: tuple[str, ...]
    lost: tuple[int, ...]
    winners: tuple[WinnerView, ...]
    more_winners: int
    files: FileChanges | None
    why: str
    held: str


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction that was committed.

    Attributes:
        snapshot, at, author, message, transaction, isolation, properties: as the history has them.
        outcome: what became of it, in words.
        changes: to each table; some of them, where there are many.
        more_changes: how many are left out.
        versions: of all tables, right after it.
        older, newer: snapshots before and after it; None where there is none.
    """

    snapshot: int
    at: datetime
    author: str
    message: str
    transaction: str
    isolation: str
    properties: tuple[tuple[str, str], ...]
    outcome: str
    changes: tuple[ChangeView, ...]
    more_changes: int
    versions: tuple[tuple[str, int, bool], ...]
    older: int | None
    newer: int | None


def transaction_page(asked: PageRequest) -> ConsolePage:
    """All about one transaction: who, what, which files, over whom, and why."""
    viewer = asked.viewer.on_branch(asked.path["branch"])
    number = asked.path["snapshot"]
    if not (number.isascii() and number.isdecimal() and len(number) < 16):
        raise InvalidInput(f"A snapshot is a number, not {number[:40]!r}.", argument="snapshot")
    snapshot = viewer.one(int(number))
    before = viewer.history(LOOKED_BACK, snapshot.id).snapshots
    try:
        versions = {name: head.version for name, head in viewer.heads(snapshot.id).items()}
    except NotFound:
        versions = {}  # what the tables were then was lost with a catalog
    changed = {table_of(change) for change in snapshot.changes}
    around, made = _Around(viewer, snapshot), makers(before)
    view = TransactionView(
        snapshot.id,
        snapshot.at,
        ", ".join(snapshot.authors),
        said(snapshot.message, 1000),
        snapshot.transaction,
        snapshot.isolation,
        tuple((key, said(value)) for key, value in snapshot.properties.items() if key not in _OWN),
        _outcome(snapshot),
        tuple(_change(around, change, made) for change in snapshot.changes[:MOST_CHANGES]),
        max(len(snapshot.changes) - MOST_CHANGES, 0),
        tuple((name, version, name in changed) for name, version in versions.items()),
        before[0].id if before else None,
        viewer.after(snapshot.id),
    )
    there = PageRequest(viewer, asked.here, asked.path)
    return page_of(there, "transaction.html", f"Transaction {snapshot.id}", "timeline", view)


def find_page(asked: PageRequest) -> ConsolePage:
    """Leads from the id of a transaction to its page.

    Raises:
        NotFound: it was not committed on this branch, or may not be seen.
    """
    given = asked.text("id")
    if given.isascii() and given.isdecimal() and len(given) < 16:
        return ConsolePage("", location=path_to("transactions", asked.viewer.branch, int(given)))
    outcome = asked.viewer.lake.outcome(given) if given else None
    if isinstance(outcome, Committed):
        known = asked.viewer.lake.catalog.transaction(given) or {}
        viewer = asked.viewer.on_branch(str(known.get("branch") or asked.viewer.branch))
        if any(viewer.visible(viewer.lake.history(1, before=outcome.version + 1))):
            return ConsolePage("", location=path_to("transactions", viewer.branch, outcome.version))
    refused = branch_of_refused(asked.viewer, given) if given else None
    if refused is not None:
        return ConsolePage("", location=f"{path_to('conflicts', branch=refused if refused != MAIN else '')}#t-{given}")
    raise NotFound(
        f"No transaction {given[:60]!r} was committed.", name=given[:60], advice="See the conflicts for those that were refused."
    )


def _outcome(snapshot: Snapshot) -> str:
    if snapshot.unknown:
        return "unknown: the catalog that had it was lost"
    if snapshot.voided:
        return "voided: a foreign writer had taken the version first, so it changed nothing"
    return f"committed as snapshot {snapshot.id}"


def _change(around: _Around, change: Change, made: Mapping[tuple[str, int], tuple[Snapshot, str]]) -> ChangeView:
    over = versions_rebased_over(change)
    winners = []
    for version in over[-20:]:
        maker = made.get((change.table, version))
        ours = change.operations[0] if change.operations else change.kind
        theirs = maker[1] if maker else ""
        author, message = (maker[0].author, said(maker[0].message, 120)) if maker else ("", "")
        winners.append(WinnerView(version, theirs, author, message, maker[0].id if maker else None, ours, why_of(ours, theirs)))
    name = table_of(change)
    return ChangeView(
        name, change.kind, around.viewer.former(change.former), change.base, change.read, change.version,
        tuple(dict.fromkeys(change.operations)), tuple(step.version for step in change.lost), tuple(winners), len(over) - len(winners),
        around.files(change), _why(change, len(over)), around.held(change),
    )  # fmt: skip


def _why(change: Change, over: int) -> str:
    if change.kind == "adopt":
        return "A writer that does not know the catalog committed to the store; the lake adopted its versions."
    if change.lost:
        return "A foreign writer had taken the version number first, and its version was kept."
    if change.kind != "write":
        return f"The table was changed by {change.kind}; names are decided in the catalog."
    if not over:
        return f"It was built on version {change.base}, which was still the latest: nothing came in between."
    came, them = ("1 version", "it") if over == 1 else (f"{over} versions", "them")
    return f"It was built on version {change.read}; {came} came first, and it was rebased over {them}."


def why_of(ours: str, theirs: str) -> str:
    """What the conflict table says of two operations, in a sentence."""
    if ours not in conflicts.RULES or theirs not in conflicts.RULES:
        return ""
    rules = conflicts.explain(ours, theirs).rules
    rebases = [explained.rule.why for explained in rules if explained.rule.then is conflicts.Outcome.REBASE]
    if not rules:
        return f"{ours} and {theirs} never conflict."
    return (rebases[0] + "." if rebases else "None of the conditions for a conflict held.").capitalize()


@dataclass
class _Around:
    """The lake right after a transaction and right before it, each read once however many tables it changed."""

    viewer: LakeViewer
    snapshot: Snapshot

    @cached_property
    def after(self) -> LakeSnapshot:
        return self.viewer.snapshot(self.snapshot.id)

    @cached_property
    def before(self) -> LakeSnapshot:
        return self.viewer.snapshot(self.snapshot.id - 1)

    @cached_property
    def now(self) -> Mapping[str, TableHead]:
        return {head.id: head for head in self.viewer.heads().values()}

    def held(self, change: Change) -> str:
        """Why a table is in quarantine, if this transaction is part of the reason."""
        head = self.now.get(change.table)
        return said(head.quarantine) if head is not None and self.snapshot.transaction in head.quarantine else ""

    def files(self, change: Change) -> FileChanges | None:
        """Data files of a change, by comparing the fragments before and after; None where these cannot be read any more."""
        if not change.steps or self.snapshot.voided or self.snapshot.unknown or table_of(change) != change.name:
            return None
        was: tuple[dict[str, int], int] = {}, 0
        try:
            now = _files_of(self.after.table(change.name))
            if change.base and self.snapshot.id > 1:
                was = _files_of(self.before.table(change.former or change.name))
        except TiltyardError:
            return None
        added = {path: count for path, count in now[0].items() if path not in was[0]}
        removed = [count for path, count in was[0].items() if path not in now[0]]
        some = tuple(sorted(added.items())[:MOST_FILES])
        return FileChanges(some, len(added), sum(added.values()), len(removed), sum(removed), (was[1], now[1]))


def _files_of(reader: LakeReader) -> tuple[dict[str, int], int]:
    found = {file.path: file.size for fragment in reader.layout.fragments for file in fragment.files}
    return found, reader.count_rows()
