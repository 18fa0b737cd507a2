"""What a turn at a hot table of a lake is made of: its requests, in virtual time, and what deciding for several at once could save.

    python -m bench.scale.turns                      8 writers, 60 commits, S3 and PostgreSQL; then a disk and SQLite

A batch can share what does not depend on who commits: the heads, the version to build on, the decision. What each member has of its own
stays: its version is staged and gets its name, one after the other, since readers who know nothing of the catalog must not see a gap.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Final
from unittest.mock import patch

from bench.scale.lake_runs import HOT, LakeRun
from bench.scale.virtual_stores import Conditions
from tiltyard.lakes.hot_tables import Turn

PLACES: Final = {
    "S3 and PostgreSQL": Conditions(),
    "a disk and SQLite": Conditions(put=0.0012, get=0.0002, spread=0.0, bytes_per_second=1e9, statement=0.0008),
}
"""The second with what a flushed file, a read and a statement of a flushed transaction take on a disk of ours."""
SHARED: Final = ("GET", "LIST", "SQL")
"""Requests of a turn that a batch needs once."""
SIZES: Final = (1, 4, 16)


class TurnCounts:
    """The requests of those who have the turn, and how long they have it."""

    def __init__(self, run: LakeRun) -> None:
        self._run = run
        self._owner = 0
        self._since = 0.0
        self.seconds = list[float]()
        self.inside: Counter[str] = Counter()
        run.site.requests = _Noted(self._note)

    def _note(self, kind: str) -> None:
        if threading.get_ident() == self._owner:
            self.inside[kind] += 1

    def taken(self) -> None:
        self._owner, self._since = threading.get_ident(), self._run.time.seconds

    def left(self) -> None:
        self.seconds.append(self._run.time.seconds - self._since)
        self._owner = 0


class _Noted(Counter[str]):
    def __init__(self, note: Any) -> None:
        super().__init__()
        self._told = note

    def __setitem__(self, kind: str, count: int) -> None:
        super().__setitem__(kind, count)
        self._told(kind)


def measured(conditions: Conditions, writers: int, commits: int) -> TurnCounts:
    """One run in which all writers want the same table."""
    run = LakeRun(HOT, writers, seed=1, conditions=conditions)
    counts = TurnCounts(run)
    take, leave = Turn.take, Turn.leave

    def taking(self: Turn, lost: Any = ()) -> bool:
        had, waited = self.taken, take(self, lost)
        if self.taken and not had:
            counts.taken()
        return waited

    def leaving(self: Turn) -> None:
        if self.taken:
            counts.left()
        leave(self)

    with patch.object(Turn, "take", taking), patch.object(Turn, "leave", leaving):
        run.run(commits, 10_000.0)
    return counts


def main() -> None:
    for name, conditions in PLACES.items():
        counts = measured(conditions, 8, 60)
        turns = len(counts.seconds)
        each = {kind: count / turns for kind, count in sorted(counts.inside.items())}
        turn = sum(counts.seconds) / turns
        costs = {"PUT": conditions.put, "create": conditions.put, "SQL": conditions.statement}
        shared = sum(count * costs.get(kind, conditions.get) for kind, count in each.items() if kind in SHARED)
        print(f"{name}: a turn takes {1000 * turn:.1f} ms; in it " + ", ".join(f"{count:.2f} {kind}" for kind, count in each.items()))
        for size in SIZES:
            whole = shared + size * max(turn - shared, 0.0)
            print(f"  {size:2d} decided at once: {size / whole:6.1f} commits/s, {turn * size / whole:.2f} times what turns give")


if __name__ == "__main__":
    main()
