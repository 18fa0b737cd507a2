"""From a run that broke a promise to a short one that still does: fewer actors, fewer faults, fewer changes of turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from tiltyard_proofs.simulator.actors import MakeCommitter, real_committer
from tiltyard_proofs.simulator.random_runs import scripted
from tiltyard_proofs.simulator.scenario import Outcome, Part, Scenario, run

MOST_RUNS = 1500


class _Search:
    """The shortest failing run so far, and how many more may be tried."""

    def __init__(self, failing: Outcome, make_committer: MakeCommitter) -> None:
        self.best = failing
        self.code = _code(failing)
        self.left = MOST_RUNS
        self._make_committer = make_committer

    def attempt(self, scenario: Scenario, schedule: list[int]) -> bool:
        """Whether this run breaks the same promise; then it is the best one."""
        if self.left <= 0:
            return False
        self.left -= 1
        outcome = run(scenario, scripted(schedule), self._make_committer)
        if outcome.violation is None or _code(outcome) != self.code:
            return False
        outcome.schedule = schedule  # as it was given: what comes after its end goes without saying
        self.best = outcome
        return True


def _code(outcome: Outcome) -> str:
    """What tells one broken promise from another."""
    return str(outcome.violation).split()[0]


def shrink(failing: Outcome, make_committer: MakeCommitter = real_committer) -> Outcome:
    """The shortest run found that breaks the promise ``failing`` breaks."""
    search = _Search(failing, make_committer)
    search.attempt(failing.scenario, list(failing.schedule))
    before = None
    while before is not search.best and search.left > 0:
        before = search.best
        _simpler(search)
        _fewer_turns(search)
    _earlier_turns(search)
    return search.best


def _simpler(search: _Search) -> None:
    """Drops actors, intentions, faults and jumps, one at a time."""
    changed = True
    while changed and search.left > 0:
        changed = any(search.attempt(scenario, list(search.best.schedule)) for scenario in _simplifications(search.best.scenario))


def _simplifications(scenario: Scenario) -> Iterator[Scenario]:
    for place, part in enumerate(scenario.parts):
        if part.role != "absent":
            yield _with_part(scenario, place, Part(part.name, "absent"))
    for place, part in enumerate(scenario.parts):
        for number in part.faults:
            yield _with_part(scenario, place, replace(part, faults={k: v for k, v in part.faults.items() if k != number}))
        if len(part.intentions) > 1:
            for number in range(len(part.intentions)):
                yield _with_part(scenario, place, replace(part, intentions=part.intentions[:number] + part.intentions[number + 1 :]))
        for number, wanted in enumerate(part.intentions):
            for key in wanted.keys if len(wanted.keys) > 1 else ():
                fewer = replace(wanted, keys=tuple(kept for kept in wanted.keys if kept != key))
                several = (*part.intentions[:number], fewer, *part.intentions[number + 1 :])
                yield _with_part(scenario, place, replace(part, intentions=several))
    if scenario.jumps:
        yield replace(scenario, jumps={})
    if scenario.executions > 1:
        yield replace(scenario, executions=1)


def _with_part(scenario: Scenario, place: int, part: Part) -> Scenario:
    return replace(scenario, parts=(*scenario.parts[:place], part, *scenario.parts[place + 1 :]))


def _fewer_turns(search: _Search) -> None:
    """Takes parts out of the schedule, large ones first; who is not named goes on at the end."""
    size = max(len(search.best.schedule) // 2, 1)
    while size >= 1 and search.left > 0:
        start = 0
        while start < len(search.best.schedule):
            schedule = list(search.best.schedule)
            if not search.attempt(search.best.scenario, schedule[:start] + schedule[start + size :]):
                start += size
        size //= 2


def _earlier_turns(search: _Search) -> None:
    """Lets actors go on where they were interrupted for nothing: swaps neighbours if that means fewer changes of turn."""
    changed = True
    while changed and search.left > 0:
        changed = False
        schedule = list(search.best.schedule)
        for place in range(len(schedule) - 1):
            swapped = [*schedule[:place], schedule[place + 1], schedule[place], *schedule[place + 2 :]]
            if _turns(swapped) < _turns(schedule) and search.attempt(search.best.scenario, swapped):
                changed = True
                break


def _turns(schedule: list[int]) -> int:
    return sum(actor != following for actor, following in pairwise(schedule))
