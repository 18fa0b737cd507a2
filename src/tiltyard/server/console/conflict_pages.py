"""The pages about conflicts: which operations met how often, what was refused and why, and the rules themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from typing import Final, TypeAlias

from tiltyard import conflicts, metrics
from tiltyard.catalog.lake_values import Snapshot, TableHead
from tiltyard.errors import TiltyardError
from tiltyard.format.safe_text import check_text
from tiltyard.lakes.refusals import LakeRefusal, RefusedTable, refusals_of
from tiltyard.lakes.table_names import logical_name, shown
from tiltyard.server.console.lake_viewer import HistoryPage, LakeViewer, makers, versions_rebased_over
from tiltyard.server.console.page_values import ConsolePage, PageRequest, page_of, said
from tiltyard.verbs.explain import ATTEMPTS, FailedAttempt, read_attempt

LOOKED_AT: Final = 500
"""Snapshots whose rebases are counted."""
MOST_TABLES: Final = 50
"""Tables whose refusals are read: those that changed last."""
MOST_REFUSALS: Final = 20
MOST_READ: Final = 100
"""Records of refused transactions that are read, of all branches."""
ONLY_FOR_ALL: Final = "Users with a role for the whole lake see why."
"""In the place of an error's text, which may name any table."""
Makers: TypeAlias = "Mapping[tuple[str, int], tuple[Snapshot, str]]"
"""By table and version, the snapshot that made it and the operation that did."""


@dataclass(frozen=True, slots=True)
class PairCount:
    """Two operations that met.

    Attributes:
        ours, theirs: the one that was committing, and the one that had been committed.
        rebased: how often ours went over theirs.
        refused: how often it was refused.
    """

    ours: str
    theirs: str
    rebased: int
    refused: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A commit that was refused, with the table it was for, and the snapshots that made the versions it lost to, by version."""

    table: str
    attempt: FailedAttempt
    came_first: Mapping[int, Snapshot]

    @property
    def time(self) -> datetime:
        return self.attempt.time

    @property
    def pair(self) -> tuple[str, str] | None:
        """The operation that was refused, and the last one that it lost to; None where nobody is known."""
        return (self.attempt.operation, self.attempt.winners[-1].operation) if self.attempt.winners else None

    @property
    def sentence(self) -> str:
        return said(self.attempt.sentence)

    @property
    def sample(self) -> str:
        return said(", ".join(self.attempt.sample), 200)


@dataclass(frozen=True, slots=True)
class CameFirst:
    """A commit that a refused transaction lost to, with its snapshot where that is still in the history."""

    operation: str
    author: str
    snapshot: int | None


@dataclass(frozen=True, slots=True)
class RefusedTransaction:
    """A transaction over several tables that was refused.

    Attributes:
        refusal: the record of it; nothing in it names what the role does not show.
        tables: what it was to change, each with what the table is called by now; empty for one that is not there.
        came_first: whom it lost to, oldest first.
    """

    refusal: LakeRefusal
    tables: tuple[tuple[RefusedTable, str], ...]
    came_first: tuple[CameFirst, ...]

    @property
    def time(self) -> datetime:
        return self.refusal.time

    @property
    def contested(self) -> tuple[RefusedTable, str] | None:
        """The table with the conflict, with its name by now."""
        return next((pair for pair in self.tables if pair[0] is self.refusal.contested), None)

    @property
    def pair(self) -> tuple[str, str] | None:
        """What it was to do to the table with the conflict, and what was done to that last; None where one of them is not known."""
        contested = self.refusal.contested
        ours = contested.operations[-1:] if contested is not None else ()
        return (ours[0], self.came_first[-1].operation) if ours and self.came_first else None

    @property
    def sentence(self) -> str:
        return said(self.refusal.sentence)

    @property
    def sample(self) -> str:
        return said(", ".join(self.refusal.sample), 200)


@dataclass(frozen=True, slots=True)
class ConflictsView:
    """What met, what was refused, and the rules.

    Attributes:
        operations: that occur in the counts, in the order of the rules.
        pairs: counts by the two operations.
        refusals: the last ones, latest first.
        looked_at: how many snapshots were counted.
        tables: of how many tables refusals were read, and how many there are.
        names: all operations of the rules; ``signs`` what becomes of each pair of them, in one word.
        counted: what this process counted since it started: commits, lost races, re-executions; empty for roles that do not see all tables.
    """

    operations: tuple[str, ...]
    pairs: dict[tuple[str, str], PairCount]
    refusals: tuple[Refusal | RefusedTransaction, ...]
    looked_at: int
    tables: tuple[int, int]
    names: tuple[str, ...]
    signs: dict[tuple[str, str], str]
    counted: tuple[tuple[str, int], ...]


def conflicts_page(asked: PageRequest) -> ConsolePage:
    """Which operations collide."""
    viewer = asked.viewer
    tip = viewer.tip()
    page = viewer.history(LOOKED_AT)
    made = makers(page.snapshots)
    rebased, looked_at = _rebases(page, made), page.searched
    heads = sorted(viewer.heads().items(), key=lambda item: -item[1].changed)
    refusals: list[Refusal | RefusedTransaction] = [*_refusals(viewer, heads[:MOST_TABLES], made)]
    refusals += islice(_refused_transactions(viewer, page, made), MOST_REFUSALS)
    refusals.sort(key=lambda refusal: refusal.time, reverse=True)
    refused = Counter(refusal.pair for refusal in refusals if refusal.pair is not None)
    pairs = {pair: PairCount(*pair, rebased[pair], refused[pair]) for pair in {*rebased, *refused}}
    known = [name for name in conflicts.OPERATIONS.values() if any(name in pair for pair in pairs)]
    others = sorted({name for pair in pairs for name in pair} - set(known))
    counted = _counted() if viewer.sees_all else ()
    names = tuple(conflicts.OPERATIONS.values())
    view = ConflictsView(
        (*known, *others), pairs, tuple(refusals[:MOST_REFUSALS]), looked_at, (min(len(heads), MOST_TABLES), len(heads)), names,
        {(ours, theirs): _sign(ours, theirs) for ours in names for theirs in names}, counted,
    )  # fmt: skip
    return page_of(asked, "conflicts.html", "Conflicts", "conflicts", view, live=tip)


def _counted() -> tuple[tuple[str, int], ...]:
    """Of all tables together, so not for everybody."""
    process = metrics.snapshot()
    return ("commits", process.commits), ("lost races", process.lost_races), ("re-executions", process.reruns)


def _rebases(page: HistoryPage, made: Makers) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for snapshot in page.snapshots:
        for change in snapshot.changes:
            ours = change.operations[0] if change.operations else change.kind
            over = (made.get((change.table, version)) for version in versions_rebased_over(change))
            counts.update((ours, maker[1]) for maker in over if maker is not None and maker[1])
    return counts


def _refusals(viewer: LakeViewer, heads: list[tuple[str, TableHead]], made: Makers) -> list[Refusal]:
    """Refusals that writers left a record of, latest first. Of each table only the latest are read."""
    found = []
    for name, head in heads:
        access = viewer.lake.plain_access_of(head).on_branch(head.branch)
        try:
            kept = sorted(access.store.list(ATTEMPTS), key=lambda info: info.modified, reverse=True)[:MOST_REFUSALS]
            attempts = [read_attempt(access, info.path.removeprefix(ATTEMPTS).removesuffix(".json")) for info in kept]
        except TiltyardError:
            continue
        for attempt in attempts:
            if attempt is not None:
                known = {winner.version: made.get((head.id, winner.version)) for winner in attempt.winners}
                found.append(Refusal(name, attempt, {version: maker[0] for version, maker in known.items() if maker is not None}))
    return found


def _refused_transactions(viewer: LakeViewer, page: HistoryPage, made: Makers) -> Iterator[RefusedTransaction]:
    """Refusals of transactions over several tables, on this line of history, as far as the role shows them."""
    kept = refusals_of(viewer.lake, MOST_READ)
    if (first := _next(kept)) is None:
        return  # most lakes have none, and need no second look at all tables
    cut = viewer.lake.catalog.cut(viewer.branch)
    known = {head.id: _called(head.name) for head in cut.tables.values()}
    by_transaction = {snapshot.transaction: snapshot for snapshot in page.snapshots}
    for found in chain([first], iter(lambda: _next(kept), None)):
        # One that was refused since its branch is another line by now is about both.
        of_this = found.branch == viewer.branch and (found.line == cut.line or found.cause == "line")
        refusal = _as_seen(viewer, found, known) if of_this else None
        if refusal is not None:
            tables = tuple((table, known.get(table.id, "")) for table in refusal.tables)
            yield RefusedTransaction(refusal, tables, tuple(_came_first(refusal, made, by_transaction)))


def branch_of_refused(viewer: LakeViewer, transaction: str) -> str | None:
    """The branch on whose conflicts page a refused transaction is shown; None where it is on none, or may not be seen."""
    kept = refusals_of(viewer.lake, MOST_READ)
    found = next((refusal for refusal in iter(lambda: _next(kept), None) if refusal.transaction_id == transaction), None)
    if found is None or found.branch not in viewer.branches():
        return None
    shown_there = islice(_refused_transactions(viewer.on_branch(found.branch), HistoryPage((), None, 0), {}), MOST_REFUSALS)
    return found.branch if any(told.refusal.transaction_id == transaction for told in shown_there) else None


def _next(kept: Iterator[LakeRefusal]) -> LakeRefusal | None:
    """Another record; None where there is none, or the store does not give it: the page is the same without."""
    try:
        return next(kept, None)
    except TiltyardError:
        return None


def _as_seen(viewer: LakeViewer, refusal: LakeRefusal, known: Mapping[str, str]) -> LakeRefusal | None:
    """A refusal as far as the role shows it; None where one of its tables may not be seen, by the name of then or by that of now."""
    if viewer.sees_all:
        return refusal
    named = {name for table in refusal.tables for name in (table.name, known.get(table.id, table.name))}
    if refusal.contested is None or refusal.more or not all(map(viewer.sees, named)):
        return None
    # What the error said may name any table, and rows of a time when this one had another name.
    return replace(refusal, sentence=ONLY_FOR_ALL, sample=(), winners=())


def _called(full: str) -> str:
    return shown(logical_name(full) or full)


def _came_first(refusal: LakeRefusal, made: Makers, by_transaction: Mapping[str, Snapshot]) -> Iterator[CameFirst]:
    if refusal.winners:
        for winner in refusal.winners:
            step = made.get((refusal.table, winner.version))
            snapshot = step[0] if step is not None else by_transaction.get(winner.transaction_id)
            author = (snapshot.author if snapshot is not None else "") or winner.author or winner.writer
            yield CameFirst(winner.operation.rpartition(", ")[2], author, None if snapshot is None else snapshot.id)
    elif refusal.expected is not None and refusal.actual is not None and refusal.cause not in ("line", "freed"):
        for version in range(max(refusal.expected + 1, refusal.actual - MOST_REFUSALS), refusal.actual + 1):
            if (step := made.get((refusal.table, version))) is not None:
                yield CameFirst(step[1], step[0].author, step[0].id)


def _sign(ours: str, theirs: str) -> str:
    outcomes = {rule.then.value for rule in conflicts.RULES[ours][theirs]} if theirs in conflicts.RULES[ours] else set()
    return next((word for word in ("incompatible", "retry", "rebase") if word in outcomes), "compatible")


# ---- one pair ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairView:
    """A pair of operations, with its rules and examples."""

    explanation: conflicts.PairExplanation


def pair_page(asked: PageRequest) -> ConsolePage:
    """What becomes of one operation that meets another, with worked examples."""
    ours, theirs = (check_text(asked.path[name], "An operation", name) for name in ("ours", "theirs"))
    explanation = conflicts.explain(ours, theirs)
    title = f"{explanation.committing} after {explanation.committed}"
    return page_of(asked, "pair.html", title, "conflicts", PairView(explanation))
