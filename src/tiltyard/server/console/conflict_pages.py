"""The pages about conflicts: which operations met how often, what was refused and why, and the rules themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tiltyard import conflicts, metrics
from tiltyard.catalog.lake_values import Snapshot, TableHead
from tiltyard.errors import TiltyardError
from tiltyard.format.safe_text import check_text
from tiltyard.server.console.lake_viewer import HistoryPage, LakeViewer, makers, versions_rebased_over
from tiltyard.server.console.page_values import ConsolePage, PageRequest, page_of, said
from tiltyard.verbs.explain import ATTEMPTS, FailedAttempt, read_attempt

LOOKED_AT: Final = 500
"""Snapshots whose rebases are counted."""
MOST_TABLES: Final = 50
"""Tables whose refusals are read: those that changed last."""
MOST_REFUSALS: Final = 20
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
    def sentence(self) -> str:
        return said(self.attempt.sentence)

    @property
    def sample(self) -> str:
        return said(", ".join(self.attempt.sample), 200)


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
    refusals: tuple[Refusal, ...]
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
    refusals = _refusals(viewer, heads[:MOST_TABLES], made)
    refused = Counter((refusal.attempt.operation, winner.operation) for refusal in refusals for winner in refusal.attempt.winners[-1:])
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
    return sorted(found, key=lambda refusal: refusal.attempt.time, reverse=True)


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
