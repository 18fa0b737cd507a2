"""One number, one walk: the steps of a seed, how a walk is run, told and made shorter."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.proofs.lakewalk import branch_deeds, catalog_deeds, foreign_deeds, recovery_deeds, table_deeds, transaction_deeds, upkeep_deeds
from tests.proofs.lakewalk.acting import DEEDS, NAMES, Walk
from tests.proofs.lakewalk.faults import directed_classes
from tests.proofs.lakewalk.model import MAIN
from tests.proofs.lakewalk.watching import Watcher
from tests.proofs.lakewalk.world import Broken, World, numbers
from tiltyard.testing.faults import Killed

LENGTH: Final = 60
"""Steps of a walk. Long enough for a table to be made, branched, dropped and cleaned up; short enough to stay cheap."""
LOOK_EVERY: Final = 10
READ_EVERY: Final = 30
CHECK_AT_END: Final = True
MODULES: Final = (branch_deeds, catalog_deeds, foreign_deeds, recovery_deeds, table_deeds, transaction_deeds, upkeep_deeds)

_LINES = (
    "create_table 3 write_rows 8 drop_table 2 rename_table 2 hold_table 3 use_held 5 begin 7 work 10 commit 8 rollback 1 "
    "several 2 create_branch 8 delete_branch 1 recreate_branch 7 fast_forward 9 create_tag 1 delete_tag 1 cleanup 3 check 2 pass_time 1 "
    "reopen 2 repair 1"
)
_CATALOGS = (
    "create_table 6 write_rows 6 drop_table 3 several 2 begin 2 work 3 commit 3 create_branch 3 recreate_branch 1 fast_forward 2 "
    "create_tag 2 copy_catalog 4 put_back_copy 4 lose_catalog 3 open_lost 3 register_lost 4 other_door 4 back_up 3 recover_catalog 5 "
    "cleanup 10 check 5 pass_time 5 reopen 2 stray 1"
)
_FOREIGN = (
    "create_table 4 write_rows 8 drop_table 2 rename_table 1 begin 4 work 6 commit 5 hold_table 2 use_held 3 several 2 create_branch 3 "
    "fast_forward 3 create_tag 2 foreign_write 9 foreign_cleanup 3 register 6 stray 2 other_table 1 cleanup 6 check 4 pass_time 3 reopen 2"
)
_LOSSES = (
    "create_table 5 write_rows 3 several 1 copy_catalog 4 put_back_copy 5 lose_catalog 3 open_lost 3 register_lost 4 other_door 4 "
    "back_up 2 recover_catalog 4 cleanup 10 check 5 pass_time 3 drop_table 2 create_branch 3 fast_forward 3 create_tag 1"
)
THEMES: Final = {"all": "", "lines": _LINES, "catalogs": _CATALOGS, "foreign": _FOREIGN, "losses": _LOSSES}
"""What walks are about. Those about everything rarely do enough of one thing in a row; each seed has one of these."""

Step = tuple[str, int]
"""An action, and the seed of all its choices."""


@dataclass(slots=True)
class Ended:
    """How a walk ended.

    Attributes:
        seed: of the walk.
        steps: all of them up to the failure.
        trace: what each came to.
        broken: the promise that does not hold; empty where all do.
    """

    seed: int
    steps: list[Step]
    trace: list[str]
    broken: str = ""
    done: Counter[str] = field(default_factory=Counter)


def kind_of(seed: int, postgres: bool) -> str:
    """Most walks are over SQLite, which is the fastest; a share over the others."""
    if seed % 40 == 13:
        return "manifest"
    return "postgres" if postgres and seed % 20 == 7 else "sqlite"


def theme_of(seed: int) -> str:
    return list(THEMES)[seed % len(THEMES)]


def steps_of(seed: int, length: int = LENGTH, without: Sequence[str] = (), deeds: str = "") -> list[Step]:
    random = Random(seed)
    words = (deeds or THEMES[theme_of(seed)]).split()
    chosen = dict(zip(words[::2], map(int, words[1::2]), strict=True)) or {name: one.weight for name, one in DEEDS.items()}
    names = [name for name in chosen if name not in without]
    weights = [chosen[name] for name in names]
    return [(random.choices(names, weights)[0], random.randrange(1 << 30)) for _ in range(length)]


def run_nested(walk: Walk, seed: int) -> str:
    """What somebody else does between two calls, and a look at the lake right then."""
    random = Random(seed)
    names = [name for name in DEEDS if DEEDS[name].nested]
    name = random.choices(names, [DEEDS[one].weight for one in names])[0]
    lazily = random.random() < 0.7
    before, walk.lazily = walk.lazily, True
    try:
        walk.watcher.look(lazily=True)
        told = DEEDS[name].run(walk, random)
        walk.watcher.look(lazily=lazily)
    finally:
        walk.lazily = before
    return f"[meanwhile {name} {told}]"


def run_steps(seed: int, steps: Sequence[Step], *, postgres: str | None = None, faults: bool = True, strict: bool = True) -> Ended:
    """Walks, and stops at the first promise that does not hold."""
    ended = Ended(seed, [], [])
    world = World(seed, postgres=postgres)
    kind = kind_of(seed, postgres is not None)
    try:
        with directed_classes():
            walk = Walk(world, Watcher(world), faults=faults, strict=strict)
            world.add_site(kind, inside=kind != "postgres")
            if theme_of(seed) in ("all", "catalogs", "losses"):
                world.add_site("sqlite", inside=False)
            _guarded(lambda: _begin(walk), ("the beginning", 0), ended)
            for number, step in enumerate(steps):
                ended.steps.append(step)
                _step(walk, step, number, ended)
                if ended.broken:
                    break
            else:
                _last_look(walk, ended)
    finally:
        world.close()
    return ended


def _begin(walk: Walk) -> None:
    """A lake with something in it, so that from the first step on there is something to lose."""
    site = walk.world.sites[0]
    process = walk.process(site, Random(0))
    draft = walk.draft(site, MAIN)
    for name in NAMES[:2]:
        rows = walk.world.fresh_rows(2)
        draft.create(name, walk.world.token("table"), rows)
        process.lake.create_table(name, numbers(rows))
    walk.world.perform(site, draft.effect, lambda: None)
    walk.watcher.look(all_lakes=True)


def _step(walk: Walk, step: Step, number: int, ended: Ended) -> None:
    name, seed = step
    random = Random(seed)
    walk.world.clock.advance(1)
    walk.notes.clear()

    def run() -> None:
        told = DEEDS[name].run(walk, random)
        ended.trace.append(f"{name}: {told} {' '.join(walk.notes)}".rstrip())
        ended.done[name] += 1
        ended.done[f"{name} {_ending(told)}"] += 1
        for note in walk.notes:
            ended.done["meanwhile"] += 1
            ended.done[f"meanwhile {note.split()[1]}"] += 1
        walk.world.stamp()
        walk.watcher.look(lazily=random.random() < 0.3, all_lakes=number % LOOK_EVERY == 0)
        if number % READ_EVERY == READ_EVERY - 1:
            for site in walk.world.sites:
                walk.watcher.read_all(site)

    _guarded(run, step, ended)


def _ending(told: str) -> str:
    words = told.split()
    return " ".join(words[-2:]) if len(words) > 1 and words[-2] in ("refused", "not", "incomplete") else words[-1] if words else ""


def _last_look(walk: Walk, ended: Ended) -> None:
    def run() -> None:
        walk.watcher.look(all_lakes=True)
        for site in walk.world.sites:
            walk.watcher.read_all(site)

    _guarded(run, ("the end", 0), ended)


def _guarded(run: Callable[[], None], step: Step, ended: Ended) -> None:
    try:
        run()
    except Broken as error:
        ended.broken = str(error)
        ended.trace.append(f"{step[0]}: BROKEN {error}")
    except (Exception, Killed) as error:  # noqa: BLE001 - whatever else comes out is a failure, too, and is told with its place
        where = "".join(traceback.format_exception(error)[-3:])
        ended.broken = f"{type(error).__name__} in {step[0]}: {error}"
        ended.trace.append(f"{step[0]}: {where}")


def run_seed(seed: int, length: int = LENGTH, *, postgres: str | None = None, without: Sequence[str] = (), strict: bool = True) -> Ended:
    return run_steps(seed, steps_of(seed, length, without), postgres=postgres, strict=strict)


def kind_of_failure(broken: str) -> str:
    """The words of a failure without its names and numbers, to tell whether a shorter walk fails in the same way."""
    return " ".join("".join(" " if not letter.isalpha() else letter for letter in broken).split()[:6])


def shrunk(ended: Ended, *, postgres: str | None = None, tries: int = 150) -> Ended:
    """The same failure with fewer steps, as far as so many tries lead."""
    best = ended
    size = max(len(best.steps) // 2, 1)
    while tries > 0 and size:
        at = 0
        while at < len(best.steps) and tries > 0:
            fewer = best.steps[:at] + best.steps[at + size :]
            tries -= 1
            again = run_steps(best.seed, fewer, postgres=postgres)
            if again.broken and kind_of_failure(again.broken) == kind_of_failure(ended.broken):
                best = again
            else:
                at += size
        size //= 2
    return best


def described(ended: Ended) -> str:
    lines = [f"seed {ended.seed}, {len(ended.steps)} steps: {ended.broken or 'all promises hold'}"]
    lines += [f"  {number:3} {text}" for number, text in enumerate(ended.trace, 1)]
    return "\n".join(lines)


@contextmanager
def quietly() -> Iterator[None]:
    """Conflicts and deaths are logged; here they are made by the thousand."""
    log = logging.getLogger("tiltyard")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
