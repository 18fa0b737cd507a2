"""Every interleaving of a scenario's steps, up to steps that commute.

Two runs that differ only in the order of neighbouring steps which commute end in the same state, so one of them is enough. The search
runs the scenario to its end, looks for steps of different actors that do not commute and were not ordered by steps between them, and
comes back to let the later one go first (dynamic partial-order reduction). At each point it also keeps whom not to try: who was tried
there before, and whose step commutes with all that was chosen since (a sleep set); thus no class of runs is visited twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tiltyard_proofs.simulator.actors import MakeCommitter, real_committer
from tiltyard_proofs.simulator.scenario import Outcome, Scenario, run
from tiltyard_proofs.simulator.stepping import Actor, Call, commute


@dataclass(slots=True)
class _Point:
    """A point where somebody was chosen."""

    waiting: dict[int, Call]
    """Who could go on, and with which call."""
    asleep: set[int]
    """Whom not to try: whatever begins with them was seen before."""
    chosen: int
    wanted: set[int]
    """Whom to try."""
    tried: set[int] = field(default_factory=set)

    @property
    def call(self) -> Call:
        return self.waiting[self.chosen]


def explore(scenario: Scenario, make_committer: MakeCommitter = real_committer, *, reduce: bool = True) -> Iterator[Outcome]:
    """Every run of the scenario that differs from the others; with ``reduce=False`` every run there is.

    Runs that are given up half way, because all that could follow was seen before, are passed over.
    """
    stack: list[_Point] = []
    while True:
        depth = 0

        def choose(waiting: Sequence[Actor]) -> Actor | None:
            nonlocal depth
            if depth == len(stack):
                point = _next_point(stack, waiting, reduce)
                if point is None:
                    return None
                stack.append(point)
            chosen = stack[depth].chosen
            depth += 1
            return next(actor for actor in waiting if actor.number == chosen)

        outcome = run(scenario, choose, make_committer)
        if not outcome.cut_short or outcome.violation is not None:
            yield outcome
        if reduce:
            _want_reversals(stack)
        if not _backtrack(stack):
            return


def _next_point(stack: list[_Point], waiting: Sequence[Actor], reduce: bool) -> _Point | None:
    calls = {actor.number: actor.pending for actor in waiting}
    if not reduce:
        return _Point(calls, set(), waiting[0].number, set(calls))
    asleep: set[int] = set()
    if stack:
        last = stack[-1]
        known = (last.asleep | last.tried) - {last.chosen}
        asleep = {number for number in known if number in calls and commute(last.waiting[number], last.call)}
    chosen = next((number for number in calls if number not in asleep), None)
    return None if chosen is None else _Point(calls, asleep, chosen, {chosen})


def _want_reversals(stack: list[_Point]) -> None:
    """For each step, finds the last one before it that could have come after it instead, and notes there to try that."""
    clocks: list[dict[int, int]] = []
    """For each step and each actor, the last step of his that this one cannot come before."""
    latest: dict[int, dict[int, int]] = {}
    for place, point in enumerate(stack):
        actor, call = point.chosen, point.call
        before = latest.get(actor, {})
        clock = dict(before)
        reversed_one = None
        for earlier in range(place - 1, -1, -1):
            other = stack[earlier]
            if other.chosen == actor or earlier <= clock.get(other.chosen, -1) or commute(other.call, call):
                continue
            if reversed_one is None and earlier > before.get(other.chosen, -1):
                reversed_one = earlier
            clock[other.chosen] = earlier
            for number, seen in clocks[earlier].items():
                clock[number] = max(clock.get(number, -1), seen)
        if reversed_one is not None:
            there = stack[reversed_one]
            there.wanted |= {actor} if actor in there.waiting else set(there.waiting)
        clock[actor] = place
        clocks.append(clock)
        latest[actor] = clock


def _backtrack(stack: list[_Point]) -> bool:
    """Goes back to the last point where somebody else is to be tried; whether there is one."""
    while stack:
        point = stack[-1]
        point.tried.add(point.chosen)
        following = min(point.wanted - point.tried - point.asleep, default=None)
        if following is not None:
            point.chosen = following
            return True
        stack.pop()
    return False


def equivalent_runs(outcome: Outcome) -> int:
    """How many orders of the steps of a run of two actors are equivalent to it, by counting the paths that keep every pair in order."""
    steps = [[(place, Call(step.method, step.path)) for place, step in enumerate(outcome.trace) if step.actor == actor] for actor in (0, 1)]
    left, right = steps
    ways = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    ways[0][0] = 1
    after_right, after_left = _predecessors(left, right), _predecessors(right, left)
    for i in range(len(left) + 1):
        for j in range(len(right) + 1):
            if i and j >= after_right[i - 1]:
                ways[i][j] += ways[i - 1][j]
            if j and i >= after_left[j - 1]:
                ways[i][j] += ways[i][j - 1]
    return ways[-1][-1]


def _predecessors(mine: Sequence[tuple[int, Call]], others: Sequence[tuple[int, Call]]) -> list[int]:
    """For each step, how many steps of the other actor have to come before it."""
    return [
        max((number + 1 for number, (at, other) in enumerate(others) if at < place and not commute(other, call)), default=0)
        for place, call in mine
    ]
