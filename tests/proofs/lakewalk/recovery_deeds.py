"""Backups, and a lake that gets its catalog back: from one of them, or from the files alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.proofs.lakewalk.acting import Walk, deed, told
from tests.proofs.lakewalk.catalog_deeds import cast_shadow
from tests.proofs.lakewalk.model import MAIN, Line, State, Tab, Tag
from tests.proofs.lakewalk.world import DONE, Broken, Site, pick, rows_of
from tests.support.lakes import recovering
from tiltyard.errors import AlreadyExists, TiltyardError
from tiltyard.lake import Lake

BACKUPS = 2


@deed(3, nested=True)
def back_up(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    plan = walk.plan(random, 4, process)
    path = str(walk.world.base / f"backup-{walk.world.token('of')}")
    end, result = walk.act(site, process, lambda state: state, lambda: process.lake.backup(path), plan, must=True)
    if end == DONE:
        site.backups = [*site.backups[-BACKUPS + 1 :], path]
    return f"{site.name} {told(end, result)}"


@deed(4)
def recover_catalog(walk: Walk, random: Random) -> str:
    """The catalog is lost, or taken for lost; it comes back with all that the tables hold, wherever this is interrupted."""
    lost = [one for one in walk.world.sites if one.lost and one.before_loss is not None]
    site: Site = pick(random, lost) if lost and random.random() < 0.8 else walk.site(random)
    backup, plan = pick(random, site.backups), walk.plan(random, 12, often=True)
    rebuild = backup is None or random.random() < 0.5
    if plan is not None and plan.deed is not None:
        plan = None  # whoever comes in between would be at work on a lake that is not there
    expected = _expected(walk, site)
    if expected is None:
        return "not now"
    site.forget_handles()
    cast_shadow(site, "it was live when the catalog was recovered")
    given = {"runtime": walk.world.runtime, **site.shelf.arguments}
    call: Any = (
        (lambda **more: Lake.rebuild(site.shelf.uri, **recovering(given, **more)))
        if rebuild
        else (lambda **more: Lake.restore(site.shelf.uri, backup, **recovering(given, **more)))
    )
    there = not site.lost
    end, report = walk.world.perform(site, lambda state: state, lambda: call(replace=there), plan)
    if end != DONE:
        end, report = _again(walk, site, call)
    if end != DONE:
        raise Broken(f"{site.name}: its catalog does not come back: {type(report).__name__}: {report}")
    _found_again(walk, site, expected, report)
    how = "rebuilt" if rebuild else "restored"
    return f"{site.name} {how}{'' if report.complete else ' incomplete'} {told(end, report)}"


def _expected(walk: Walk, site: Site) -> State | None:
    """What must come back: what there was when the catalog was lost, or what there is."""
    if site.lost:
        return site.before_loss
    walk.watcher.look(all_lakes=True)
    if len(site.states) != 1 or site.state.pending or site.broken or site.hidden or site.odd:
        return None
    return site.state


def _again(walk: Walk, site: Site, call: Any) -> tuple[str, Any]:
    """Whoever is interrupted does it once more."""
    try:
        return DONE, call(replace=True)
    except AlreadyExists as error:
        return "refused", error
    except TiltyardError as error:
        return "refused", error


def _found_again(walk: Walk, site: Site, expected: State, report: Any) -> None:
    site.lost = site.hidden = False
    site.remember_times()
    site.kept, site.heads, site.tags, site.broken = {}, {}, {}, set()
    site.calm.clear()
    site.copies.clear()
    site.moves += 1
    site.watcher = walk.world.open(site)
    site.states = [(replace(expected, pending=()), False)]
    try:
        walk.watcher.look()
    except Broken as error:
        if report.complete and not site.forked:
            raise Broken(f"{site.name}: recovered and said to be complete, but {error}") from error
        site.states = [(resynchronised(walk, site, expected), False)]
        if not site.forked:  # which of two histories a rebuilt catalog follows nobody has said
            _nothing_is_lost(site, expected, report)
        walk.watcher.look()
    site.odd = site.odd or "its catalog was recovered"
    site.before_loss = None


def resynchronised(walk: Walk, site: Site, before: State) -> State:
    """The state as it is seen now, where the model cannot say which of several it must be."""
    assert site.watcher is not None
    tokens = {identity: token for token, identity in site.ids.items()}
    lines: dict[str, Line] = {}
    for name in (MAIN, *sorted(site.watcher.branches)):
        shot = site.watcher.on_branch(name).snapshot()
        tables = {}
        for table in shot.tables():
            head = shot.cut.tables[table.replace(".", "$")]
            token = tokens.get(head.id) or walk.world.token("table")
            site.ids[token] = head.id
            tables[table] = Tab(token, frozenset(rows_of(shot.table(table))))
        old = before.lines.get(name)
        lines[name] = Line(old.token if old else walk.world.token("line"), tables, tables, tables)
    tags = {}
    for tag in site.watcher.tags.list():
        shot = site.watcher.snapshot(tag.name)
        known = {name: tab.token for line in lines.values() for name, tab in line.tables.items()}
        tags[tag.name] = Tag("", {name: Tab(known.get(name, name), frozenset(rows_of(shot.table(name)))) for name in shot.tables()})
    return State(lines, tags)


def _nothing_is_lost(site: Site, expected: State, report: Any) -> None:
    """An incomplete recovery says what is missing: a table of main that is not there is named."""
    there = {tab.token: tab.rows for tab in site.state.lines[MAIN].tables.values()}
    text = " ".join([*report.unknown, *report.missing, *report.not_taken, *report.not_taken.values(), *report.in_doubt])
    for name, tab in expected.lines[MAIN].tables.items():
        if there.get(tab.token) != tab.rows and name not in text and site.ids.get(tab.token, "?") not in text:
            raise Broken(
                f"{site.name}: after recovery {name} holds {there.get(tab.token)}, expected {sorted(tab.rows)}; the report says {text}"
            )
