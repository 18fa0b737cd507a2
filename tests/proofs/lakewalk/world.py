"""The world of a walk: lakes, the processes that have them open, the disk below, and one clock for all."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from tests.proofs.lakewalk.catalogs import Copy, Shelf, make_shelf
from tests.proofs.lakewalk.disk import EPOCH, Version, stamp
from tests.proofs.lakewalk.faults import DIRECTOR, Plan
from tests.proofs.lakewalk.model import Content, Draft, Effect, State, empty_state, expanded
from tests.support.lakes import stored
from tiltyard.errors import OutcomeUnknown, TiltyardError
from tiltyard.interfaces import Runtime
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.testing.clocks import ManualClock, SeededRandomness
from tiltyard.testing.faults import Killed

DONE, REFUSED, KILLED, UNKNOWN = "done", "refused", "killed", "unknown"
_log = logging.getLogger("tiltyard.walk")


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass(slots=True)
class Held:
    """A handle on a table that somebody keeps while others go on."""

    line: str
    token: str
    name: str
    table: str
    handle: Any


@dataclass(slots=True)
class Open:
    """A transaction that is not ended yet."""

    tx: LakeTransaction
    draft: Draft
    serializable: bool
    quiet: int
    """How much had been done to the lake when it began: if that is still so at the end, it must be committed."""


@dataclass(slots=True)
class Process:
    """Somebody who has a lake open; with it die its handles and transactions."""

    lake: Lake
    held: list[Held] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)


@dataclass(slots=True)
class Kept:
    """A snapshot that must be readable: what it shows, which versions it needs, and when it was made."""

    shows: dict[str, frozenset[int]]
    versions: tuple[Version, ...]
    at: datetime


@dataclass(slots=True)
class Saved:
    """A copy of a catalog, and what the lake was when it was made."""

    copy: Copy
    states: list[State]
    kept: dict[str, dict[int, Kept]]
    tags: dict[str, tuple[Version, ...]]
    heads: dict[str, dict[str, Version]]


@dataclass(slots=True)
class Site:
    """One lake: its catalog, its root, and all states it may be in.

    Attributes:
        states: possible ones, each with whether a deed under way counts in it already.
        ids: the catalog's id of each table by its token.
        heads: for each line the versions its tables were last seen at.
        kept: for each line's token its snapshots by number.
        times: when snapshots were made that a look may meet anew, by line and versions: a lost catalog knew them, or a cleanup may take
            them.
        tips: the newest snapshot of each line, by the line's token.
        tags: versions that each tag needs.
        broken: (line, table) tokens whose files were gone when an old catalog was put back, through nobody's fault.
        shadow: versions that the catalog may not know of, since it is an old copy or a new one, with why they are needed.
        known: directories that a catalog knew when it was put back.
        forked: an old copy was put back, so that the files tell of two histories that do not follow one another.
        hidden: the catalog was made anew over tables that are not in it.
        before_loss: what the lake was when its catalog was lost, as long as nothing was done without it.
        backups: files that the lake wrote.
        moves: counts deeds.
        looked: how many there were at the last look.
        lost: the catalog is gone.
        calm: for each branch where main was when it began, as long as that can be said.
        odd: why ``check`` may complain though nothing is missing; empty where it must be content.
    """

    name: str
    shelf: Shelf
    root: Path
    states: list[tuple[State, bool]] = field(default_factory=lambda: [(empty_state(), False)])
    processes: list[Process] = field(default_factory=list)
    watcher: Lake | None = None
    ids: dict[str, str] = field(default_factory=dict)
    heads: dict[str, dict[str, Version]] = field(default_factory=dict)
    kept: dict[str, dict[int, Kept]] = field(default_factory=dict)
    times: dict[tuple[str, tuple[Version, ...]], datetime] = field(default_factory=dict)
    tips: dict[str, int] = field(default_factory=dict)
    tags: dict[str, tuple[Version, ...]] = field(default_factory=dict)
    shadow: dict[Version, str] = field(default_factory=dict)
    copies: list[Saved] = field(default_factory=list)
    broken: set[tuple[str, str]] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    gone_tags: set[str] = field(default_factory=set)
    hidden: bool = False
    forked: bool = False
    before_loss: State | None = None
    backups: list[str] = field(default_factory=list)
    moves: int = 0
    looked: int = -1
    lost: bool = False
    odd: str = ""
    calm: dict[str, object] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The one it is in; between deeds there is but one."""
        return self.states[0][0]

    def remember_times(self) -> None:
        """Before its catalog goes. Of several snapshots with the same versions the latest counts, which must stay the longest."""
        for line, kept in self.kept.items():
            for _, one in sorted(kept.items()):
                self.times[line, one.versions] = one.at

    def forget_handles(self) -> None:
        for process in self.processes:
            process.lake.close()
        self.processes.clear()
        if self.watcher is not None:
            self.watcher.close()
            self.watcher = None


class World:
    """Everything there is in one walk.

    Attributes:
        done: how often each action ended how.
    """

    def __init__(self, seed: int, *, postgres: str | None = None, base: str | None = None) -> None:
        shm = Path("/dev/shm")
        self.base = Path(tempfile.mkdtemp(prefix="lakewalk-", dir=base or (shm if shm.is_dir() else None)))
        self.clock = ManualClock(EPOCH)
        self.runtime = Runtime(self.clock, SeededRandomness(seed))
        self.postgres = postgres
        self.sites: list[Site] = []
        self.outside: dict[str, str] = {}
        self.strays: dict[str, str] = {}
        self.done: Counter[str] = Counter()
        self.rows = 0
        self.tokens = 0
        self.days = 0.0
        self.trace: list[str] = []

    def close(self) -> None:
        for site in self.sites:
            site.forget_handles()
            if site.shelf.kind == "postgres":
                site.shelf.lose()
        shutil.rmtree(self.base, ignore_errors=True)

    # ---- small things --------------------------------------------------------------------------------------------------------------

    def fresh_rows(self, number: int = 1) -> frozenset[int]:
        self.rows += number
        return frozenset(range(self.rows - number + 1, self.rows + 1))

    def token(self, what: str) -> str:
        self.tokens += 1
        return f"{what}-{self.tokens}"

    def add_site(self, kind: str, *, inside: bool) -> Site:
        number = len(self.sites)
        home, root = self.base / f"home{number}", self.base / f"root{number}"
        site = Site(f"lake{number}", make_shelf(kind, root if inside else home, root, self.postgres), root)
        self.sites.append(site)
        return site

    def open(self, site: Site, **more: Any) -> Lake:
        return Lake.open(site.shelf.uri, **stored({"runtime": self.runtime, **site.shelf.arguments, **more}))

    def stamp(self) -> None:
        stamp(str(self.base), self.clock.now())

    # ---- deeds ---------------------------------------------------------------------------------------------------------------------

    def perform(
        self, site: Site, effect: Effect, call: Callable[[], Any], plan: Plan | None = None, *, must: bool = False
    ) -> tuple[str, Any]:
        """Does something to a lake, and says how it ended, with what it returned or raised.

        What is possible afterwards follows from the effect and from the end; where somebody else came in between, from either order.

        Args:
            site: the lake.
            effect: what it does if it is acknowledged.
            call: the deed.
            plan: who dies or comes in between.
            must: whether it may be refused only where the model says so.
        """
        before = site.states = expanded(site.states)
        if plan is not None and plan.deed is not None:
            plan = Plan(plan.at, plan.when, self._between(site, effect, plan.deed))
        result: Any = None
        try:
            with DIRECTOR.directing(plan):
                result = call()
            end = DONE
        except Killed as error:
            end, result = KILLED, error
        except OutcomeUnknown as error:
            end, result = UNKNOWN, error
        except TiltyardError as error:
            end, result = REFUSED, error
        interrupted = bool(DIRECTOR.fired) and plan is not None and plan.deed is not None
        between = site.states if interrupted else before
        site.states = self._after(between, effect, end, interrupted)
        site.moves += 1
        if not site.states:
            raise Broken(f"{site.name}: it was acknowledged, and must have been refused{f' ({DIRECTOR.fired})' if interrupted else ''}")
        if must and end == REFUSED and plan is None and all(effect(state) is not None for state, _ in before):
            raise Broken(f"{site.name}: it was refused without a reason: {type(result).__name__}: {result}")
        if end == UNKNOWN and plan is None:
            raise Broken(f"{site.name}: OutcomeUnknown, though nothing failed: {result}")
        return end, result

    def _between(self, site: Site, effect: Effect, deed: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            site.states = [(state, False) for state, _ in site.states] + [
                (after, True) for state, _ in site.states if (after := effect(state)) is not None
            ]
            return deed()

        return run

    def _after(self, states: list[tuple[State, bool]], effect: Effect, end: str, interrupted: bool) -> list[tuple[State, bool]]:
        """Flags tell, within an interruption, whether the interrupted deed counts; outside of one they are handed on as they are."""
        found: list[tuple[State, bool]] = []
        for state, counted in states:
            if interrupted and counted:
                if end != REFUSED:
                    found.append((state, False))
                continue
            if end != DONE:
                found.append((state, counted))
            if end != REFUSED and (after := effect(state)) is not None:
                found.append((after, counted))
        return found


def numbers(rows: frozenset[int]) -> pa.Table:
    return pa.table({"id": pa.array(sorted(rows), pa.int64())})


def rows_of(table: Any) -> list[int]:
    return [int(one) for one in table.to_arrow()["id"].to_pylist()]


def pick(random: Random, items: Any) -> Any:
    """One of them, in an order that does not depend on chance; None where there is none."""
    ordered = list(items)
    return ordered[random.randrange(len(ordered))] if ordered else None


def tables_of(site: Site, line: str) -> Content:
    return site.state.lines[line].tables
