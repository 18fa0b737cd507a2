"""Cleanup, check, recovery, and the passing of time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

from tests.proofs.lakewalk.acting import Walk, deed, told
from tests.proofs.lakewalk.model import MAIN
from tests.proofs.lakewalk.world import DONE, Broken, Process, Site


@deed(6)
def pass_time(walk: Walk, random: Random) -> str:
    days = random.choice([0.01, 1, 2, 9, 9, 30])
    walk.world.clock.advance(days * 86400 * min(1.0, 300 / (walk.world.days + 1)))
    walk.world.days += days
    return f"{days} days"


@deed(9, nested=True)
def cleanup(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    older = random.choice([None, None, timedelta(0), timedelta(days=3)])
    keep = random.choice([None, None, 1, 3])
    grace = random.choice([timedelta(days=1), timedelta(days=1), timedelta(hours=1)])
    plan = walk.plan(random, 40, process)
    if random.random() < 0.4 and not walk.depth:
        pass_time(walk, random)
    release(walk, site, older, keep, among_others=walk.depth > 0 or (plan is not None and plan.deed is not None))
    end, result = walk.act(
        site,
        process,
        lambda state: state,
        lambda: process.lake.cleanup(older_than=older, keep_snapshots=keep, grace=grace),
        plan,
        must=True,
    )
    dropped = len(result.dropped) if end == DONE else 0
    return f"{site.name} older {older} keep {keep}{' dropped' if dropped else ''} {told(end, result)}"


def release(walk: Walk, site: Site, older: timedelta | None, keep: int | None, *, among_others: bool) -> None:
    """What a cleanup may take is not asked for any more.

    The deed it comes in between of, or one that comes in between its own calls, may make a snapshot that it counts and nobody has seen.
    """
    there = {version.directory for heads in site.heads.values() for version in heads.values()}
    for version in [one for one in site.shadow if one.directory in site.known - there]:
        del site.shadow[version]  # dropped, by a catalog that knows the table
    if older is None and keep is None:
        return
    now = walk.world.clock.now()
    for line in site.state.lines.values():
        kept = site.kept.get(line.token, {})
        newest = max(site.tips.get(line.token, 0), max(kept, default=0)) + among_others
        for number in [one for one in kept if one != newest]:
            young = older is not None and now - kept[number].at <= older
            among = keep is not None and number > newest - keep
            if not young and not among:
                if number == site.tips.get(line.token):  # the next look meets it again, which does not make it any younger
                    site.times[line.token, kept[number].versions] = kept[number].at
                del kept[number]


@deed(3, nested=True)
def check(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    plan = walk.plan(random, 30, process)
    end, report = walk.act(site, process, lambda state: state, lambda: process.lake.check(), plan, must=True)
    if end != DONE:
        return f"{site.name} {told(end, report)}"
    judge(walk, site, report.ok, [f"{one.table}: {one.text}" for one in report.problems], interrupted=plan is not None)
    return f"{site.name} {'ok' if report.ok else 'not ok'}"


def judge(walk: Walk, site: Site, ok: bool, problems: list[str], *, interrupted: bool = False) -> None:
    """A check never says that all is well where the model knows better, and raises no false alarm."""
    heads = {(line.token, tab.token) for line in site.state.lines.values() for tab in line.tables.values()}
    missing = site.broken & heads
    if ok and missing:
        raise Broken(f"{site.name}: check says ok, but the files of {sorted(missing)} are gone")
    there = {version.directory for found in site.heads.values() for version in found.values()}
    hidden = {one.directory for one in site.shadow if Path(one.directory).parent == site.root and one.directory not in site.known | there}
    if ok and hidden:
        raise Broken(f"{site.name}: check says ok, but its catalog hides {sorted(Path(one).name for one in hidden)}")
    if not ok and not missing and not site.odd and not interrupted and walk.depth == 0 and not site.state.pending:
        raise Broken(f"{site.name}: check raises a false alarm: {problems[:4]}")


@deed(4, nested=True)
def reopen(walk: Walk, random: Random) -> str:
    """A process goes and another one comes, which ends what was begun."""
    site = walk.site(random)
    process = walk.process(site, random)
    plan = walk.plan(random, 8, process)
    end, lake = walk.world.perform(site, lambda state: state, lambda: walk.world.open(site), plan, must=not site.odd)
    if end == DONE:
        walk.bury(site, process)
        site.processes.append(Process(lake))
    return f"{site.name} {told(end, lake)}"


@deed(2)
def repair(walk: Walk, random: Random) -> str:
    """A repair of a table that nothing is wrong with changes no row."""
    site = walk.site(random)
    process = walk.process(site, random)
    name, plan = next(iter(walk.own(site, MAIN)), None), walk.plan(random, 6, process)
    if name is None:
        return "nothing there"
    end, result = walk.act(site, process, lambda state: state, lambda: process.lake.repair(name), plan)
    return f"{site.name} {name} {told(end, result)}"
