"""Snapshots of two lines of random operations, picked and reverted one by one, beside the model of ``merge_model``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.lakes.merge_model import Content, Line, copied
from tests.lakes.merge_run import SIDE, MergeRun
from tests.support.lakes import Site
from tiltyard.catalog.lake_values import MAIN
from tiltyard.merges import MergeResult

PICKED = "picked"
"""The line of the model that has what a snapshot would bring."""


@dataclass(frozen=True, slots=True)
class Step:
    """A snapshot of a branch, with the state before and after it."""

    branch: str
    snapshot: int
    before: Line
    after: Line


class PickRun(MergeRun):
    """One lake with two lines; ``run`` raises ``AssertionError`` where a pick or a revert is not what the model says."""

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self.log = [f"seed {seed} of test_pick_model.py"]
        self.steps: list[Step] = []
        self.bring: Any = None

    def run(self, tables: int, steps: int, rounds: int) -> None:
        try:
            for _ in range(tables):
                self.create(MAIN)
            self.branch(SIDE, MAIN)
            for _ in range(rounds):
                for _ in range(steps):
                    self.recorded(self.random.choice((MAIN, SIDE)))
                for step in self.random.sample(self.steps, min(len(self.steps), 6)):
                    if step in self.steps:
                        self.pick(step) if step.branch == SIDE else self.revert(step)
            assert self.lake.check().problems == ()
        except Exception as error:
            raise AssertionError("\n".join([*self.log, f"{type(error).__name__}: {error}"])) from error

    def recorded(self, branch: str) -> None:
        """One operation, noted if it made one snapshot."""
        before, at = copied(self.lines[branch]), self.on(branch).snapshot().id
        self.step(branch)
        self.adopt(branch)
        now = self.on(branch).snapshot().id
        if now == at + 1:
            self.log[-1] += f" (snapshot {now})"
            self.steps.append(Step(branch, now, before, copied(self.lines[branch])))

    def pick(self, step: Step) -> None:
        """Brings a snapshot of the branch to main, on a branch that is made for it."""
        name = f"try{next(self.numbers)}"
        self.lake.branches.create(name)
        self.note(MAIN, f"pick snapshot {step.snapshot}")
        self.lines[PICKED] = relative(step.after, step.before)
        self.bring = lambda **how: self.lake.branches.cherry_pick(SIDE, step.snapshot, name, **how)
        self.attempt(PICKED, name, step.before, relative(self.lines[MAIN], step.before), first=False)
        self.lake.branches.delete(name)

    def revert(self, step: Step) -> None:
        """Takes a snapshot of main back, for good."""
        self.note(MAIN, f"revert snapshot {step.snapshot}")
        self.lines[PICKED] = relative(step.before, step.after)
        self.bring = lambda **how: self.lake.branches.revert(step.snapshot, **how)
        ours = self.lines[MAIN]
        after, _ = self.attempt(PICKED, MAIN, step.after, relative(ours, step.after), first=True)
        self.steps.remove(step)
        for token, table in after.items():
            mine, was, other = ours.get(token), step.after.get(token), step.before.get(token)
            if mine is not None and was is not None and other is not None and was.changes == other.changes:  # only its name
                name, after[token] = table.name, mine
                mine.name = name
                continue
            if not table.key:  # whether a row that came back has its place or its id is not known: no second time for such a table
                self.steps = [step for step in self.steps if not touches(step, token)]
            table.changes = 1_000 + next(self.numbers)
            table.rewrote, table.did, table.restored, table.overwritten = "maybe", {"append", "delete"}, True, True
            table.spent = table.odd = table.shared_before = table.in_place = True
            table.added_values |= {*table.columns}
            for row in table.rows.values():
                row.doubt = next(self.numbers)
        self.lines[MAIN] = after
        self.past.clear()

    def merged(self, source: str, target: str, kinds: dict[str, set[str]], use: Any = None) -> MergeResult | None:
        return self.tried(source, target, kinds, use, self.bring)


def touches(step: Step, token: int) -> bool:
    """Whether a snapshot did something to a table."""
    was, then = step.before.get(token), step.after.get(token)
    return was is None or then is None or (was.changes, was.name) != (then.changes, then.name)


def relative(line: Line, base: Line) -> Line:
    """A line as it differs from a base: how many operations were done to each table in between, in whatever direction."""
    return {token: _since(table, base[token]) if token in base else table.copy() for token, table in line.items()}


def _since(table: Content, base: Content) -> Content:
    made = table.copy()
    made.changes, made.maintained = abs(table.changes - base.changes), abs(table.maintained - base.maintained)
    made.strayed = made.restored = table.restored or base.restored  # the way back may lead over versions before the base
    made.overwritten, made.rewrote = table.overwritten or base.overwritten, table.rewrote or base.rewrote
    made.did = {"append", "delete"} if table.did | base.did else set()  # the way back of a delete brings rows
    made.in_place = table.in_place or base.in_place
    made.spent, made.odd = table.spent or base.spent, table.odd or base.odd
    made.added_values = table.added_values | base.added_values | {*table.columns}
    return made
