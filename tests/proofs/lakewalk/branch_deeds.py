"""Lines of history and names for snapshots."""

from __future__ import annotations

from random import Random

from tests.proofs.lakewalk.acting import BRANCHES, TAGS, Walk, deed, told
from tests.proofs.lakewalk.model import (
    MAIN,
    Content,
    State,
    Tab,
    branch_created,
    branch_deleted,
    by_token,
    fast_forwarded,
    tagged,
    untagged,
)
from tests.proofs.lakewalk.world import DONE, REFUSED, Broken, Site, pick
from tiltyard.errors import HistoryUnavailable
from tiltyard.lakes.branches.lake_refs import LakeBranch


def _past(site: Site, line: str, random: Random) -> tuple[int | None, Content | None]:
    """A snapshot to begin at: the newest, or one of the past that is kept."""
    kept = site.kept.get(site.state.lines[line].token, {})
    number = pick(random, sorted(kept)) if random.random() < 0.25 else None
    if number is None:
        return None, None
    known = {name: tab for there in site.state.lines.values() for name, tab in there.tables.items()}
    shows = kept[number].shows
    if any(name not in known for name in shows):
        return None, None  # a table that nobody has now: the model does not know which one it was
    return number, {name: Tab(known[name].token, rows) for name, rows in shows.items()}


@deed(6, nested=True)
def create_branch(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    name, origin = pick(random, BRANCHES), walk.line(site, random)
    plan, token = walk.plan(random, 4, process), walk.world.token("line")
    lake, source = walk.lake_on(process, origin), site.state.lines[origin]
    tip, made = site.tips.get(source.token), list[LakeBranch]()

    def effect(state: State) -> State | None:
        """It begins at what was newest when it was asked for, whatever is committed before the branch is there."""
        first = source.tables if made and made[0].snapshot == tip else None
        return branch_created(name, token, origin, source.token, first)(state)

    end, result = walk.act(site, process, effect, lambda: made.append(lake.branches.create(name)), plan, must=True)
    if end == DONE and plan is None:
        site.calm[token] = _main_heads(site) if origin == MAIN else None
    return f"{site.name} {name} of {origin} {told(end, result)}"


def _main_heads(site: Site) -> object:
    return dict(site.heads.get(site.state.lines[MAIN].token, {})), sorted(site.state.lines[MAIN].tables)


@deed(4, nested=True)
def delete_branch(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    name, plan = walk.branch(site, random), walk.plan(random, 4, process)
    end, result = walk.act(site, process, branch_deleted(name), lambda: process.lake.branches.delete(name), plan)
    return f"{site.name} {name} {told(end, result)}"


@deed(5, nested=True)
def recreate_branch(walk: Walk, random: Random) -> str:
    """A branch goes, and another one comes under its name."""
    site = walk.site(random)
    process = walk.process(site, random)
    name, token = walk.branch(site, random), walk.world.token("line")
    end, result = walk.act(site, process, branch_deleted(name), lambda: process.lake.branches.delete(name))
    if end != DONE:
        return f"{site.name} {name} {told(end, result)}"
    effect = branch_created(name, token, MAIN, site.state.lines[MAIN].token, None)
    end, result = walk.act(site, process, effect, lambda: process.lake.branches.create(name), must=True)
    return f"{site.name} {name} {told(end, result)}"


@deed(7, nested=True)
def fast_forward(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    name, plan = walk.branch(site, random), walk.plan(random, 40, process, often=True)
    line = site.state.lines.get(name)
    calm = line is not None and line.token in site.calm and site.calm[line.token] == _main_heads(site)
    if any(change.line == MAIN for change in site.state.pending):
        calm = False  # somebody who does not know the lake has changed main: the fast-forward adopts that first
    end, result = walk.act(site, process, fast_forwarded(name), lambda: process.lake.branches.fast_forward(name), plan)
    if line is not None and end != REFUSED:
        site.kept.pop(line.token, None)  # if it was done, what the branch was before is main's past now
    if isinstance(result, HistoryUnavailable):
        calm = False  # versions of the branch were cleaned up, which is what it says
    if end == REFUSED and calm and walk.strict and plan is None and not site.odd and not site.broken:
        raise Broken(f"{site.name}: main did not change since branch {name} began, but the fast-forward was refused: {result}")
    changed = line is not None and by_token(line.base) != by_token(line.tables)
    return f"{site.name} {name}{' changed' if changed else ''} {told(end, result)}"


@deed(3, nested=True)
def create_tag(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    name, line, plan = pick(random, TAGS), walk.line(site, random), walk.plan(random, 3, process)
    number, tables = _past(site, line, random)
    lake = walk.lake_on(process, line)
    end, result = walk.act(site, process, tagged(name, line, tables), lambda: lake.tags.create(name, number), plan, must=True)
    return f"{site.name} {name} on {line} at {number} {told(end, result)}"


@deed(2, nested=True)
def delete_tag(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    name, plan = pick(random, TAGS), walk.plan(random, 3, process)
    end, result = walk.act(site, process, untagged(name), lambda: process.lake.tags.delete(name), plan, must=True)
    return f"{site.name} {name} {told(end, result)}"
