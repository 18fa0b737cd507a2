"""What every action needs: who acts, on what, and what happens to him meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.proofs.lakewalk.faults import Plan
from tests.proofs.lakewalk.model import MAIN, Draft, Effect, Tab
from tests.proofs.lakewalk.watching import Watcher
from tests.proofs.lakewalk.world import KILLED, REFUSED, Process, Site, World, pick
from tiltyard.lake import Lake

NAMES: Final = ("a", "b", "sales.c")
BRANCHES: Final = ("x", "y")
TAGS: Final = ("t1", "t2")
PROCESSES: Final = 2
HELD: Final = 2
OPEN: Final = 2


@dataclass
class Walk:
    """A walk under way.

    Attributes:
        depth: 1 while somebody comes in between the calls of somebody else.
        busy: the process that waits meanwhile.
    """

    world: World
    watcher: Watcher
    depth: int = 0
    busy: Process | None = None
    faults: bool = True
    strict: bool = True
    lazily: bool = False
    notes: list[str] = field(default_factory=list)

    # ---- who and where --------------------------------------------------------------------------------------------------------------

    def site(self, random: Random) -> Site:
        """One of the lakes, the first of them more often, so that much happens in one place."""
        alive = [site for site in self.world.sites if not site.lost]
        found: Site = alive[0] if random.random() < 0.5 else pick(random, alive)
        return found

    def process(self, site: Site, random: Random) -> Process:
        free = [one for one in site.processes if one is not self.busy]
        if not free or (len(free) < PROCESSES and random.random() < 0.15):
            free = [Process(self.world.open(site))]
            site.processes += free
        found: Process = pick(random, free)
        return found

    def bury(self, site: Site, process: Process) -> None:
        process.lake.close()
        site.processes.remove(process)

    def line(self, site: Site, random: Random) -> str:
        """Main more often than each branch."""
        lines = sorted(site.state.lines)
        return MAIN if random.random() < 0.4 else str(pick(random, lines))

    def branch(self, site: Site, random: Random) -> str:
        """The name of a branch, there or not; one that somebody is at work on more often."""
        busy = {one.draft.line for process in site.processes for one in process.open}
        busy |= {one.line for process in site.processes for one in process.held}
        chosen = sorted(busy - {MAIN}) if random.random() < 0.6 else []
        return str(pick(random, chosen or BRANCHES))

    def side(self, site: Site, random: Random) -> str:
        """A line to stay on for a while: a branch more often, if there is one."""
        branches = sorted({*site.state.lines} - {MAIN})
        return str(pick(random, branches)) if branches and random.random() < 0.65 else MAIN

    def lake_on(self, process: Process, line: str) -> Lake:
        return process.lake if line == MAIN else process.lake.on_branch(line)

    def own(self, site: Site, line: str) -> dict[str, Tab]:
        """Tables whose files are there, as far as anybody knows."""
        there = site.state.lines[line]
        return {name: tab for name, tab in sorted(there.tables.items()) if (there.token, tab.token) not in site.broken}

    def draft(self, site: Site, line: str) -> Draft:
        there = site.state.lines[line]
        return Draft(line, there.token, there.tables)

    # ---- what happens meanwhile -----------------------------------------------------------------------------------------------------

    def plan(self, random: Random, calls: int, process: Process | None = None, *, often: bool = False) -> Plan | None:
        """Somebody dies, or somebody else comes in between, at one of about so many calls; most often nothing happens.

        Chance is asked as often in any case, so that what follows does not depend on whether there is a plan.
        """
        chance, at, when, seed = random.random(), 1 + random.randrange(calls), random.random(), random.randrange(1 << 30)
        chance /= 2 if often else 1
        if not self.faults or self.depth:
            return None
        if chance < 0.10:
            return Plan(at, "before" if when < 0.5 else "after")
        if chance < 0.20:
            return Plan(1 + (at * 3) % (calls * 3), "before" if when < 0.5 else "after", lambda: self._meanwhile(seed, process))
        return None

    def _meanwhile(self, seed: int, process: Process | None) -> None:
        from tests.proofs.lakewalk.walk import run_nested

        busy, self.busy = self.busy, process
        self.depth += 1
        try:
            self.notes.append(run_nested(self, seed))
        finally:
            self.depth -= 1
            self.busy = busy

    def act(
        self, site: Site, process: Process, effect: Effect, call: Callable[[], Any], plan: Plan | None = None, *, must: bool = False
    ) -> tuple[str, Any]:
        """Does something by a process of a lake. Whoever is killed is gone with all he held."""
        end, result = self.world.perform(site, effect, call, plan, must=must and not site.odd and len(site.states) == 1)
        if end == KILLED:
            self.bury(site, process)
        return end, result


Action = Callable[[Walk, Random], str]


@dataclass(frozen=True, slots=True)
class Deed:
    """An action, how often it is chosen, and whether it may come in between another one's calls."""

    name: str
    run: Action
    weight: int
    nested: bool


DEEDS: dict[str, Deed] = {}


def deed(weight: int, *, nested: bool = False) -> Callable[[Action], Action]:
    """Enters an action into the list of all that can happen."""

    def enter(run: Action) -> Action:
        name = run.__name__.strip("_")
        DEEDS[name] = Deed(name, run, weight, nested)
        return run

    return enter


def told(end: str, result: Any) -> str:
    """How something ended, for the trace and for counting."""
    return f"{end} {type(result).__name__}" if end == REFUSED else end


def fresh_name(tables: Sequence[str] | dict[str, Tab], random: Random, names: Sequence[str] = NAMES) -> str:
    """A name, more often one that is free."""
    free = [name for name in names if name not in tables]
    return str(pick(random, free if free and random.random() < 0.85 else names))
