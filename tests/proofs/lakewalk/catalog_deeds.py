"""What befalls a catalog as a whole: copied, lost, put back, opened by another door."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import lance

from tests.proofs.lakewalk.acting import Walk, deed, told
from tests.proofs.lakewalk.catalogs import SqliteShelf
from tests.proofs.lakewalk.disk import Version
from tests.proofs.lakewalk.model import MAIN, Foreign, Rows, State, empty_state, registered
from tests.proofs.lakewalk.world import REFUSED, Broken, Process, Saved, Site, pick
from tiltyard.errors import TiltyardError
from tiltyard.format.names import parse_manifest_name

COPIES = 2


@deed(3)
def copy_catalog(walk: Walk, random: Random) -> str:
    """Somebody copies the catalog while others have it open."""
    site = walk.site(random)
    walk.watcher.look()
    if len(site.states) != 1 or site.state.pending:
        return "not now"
    heads = {line: dict(found) for line, found in site.heads.items()}
    site.copies = [*site.copies[-COPIES + 1 :], Saved(site.shelf.copy(), [site.state], deepcopy(site.kept), dict(site.tags), heads)]
    return site.name


@deed(3)
def put_back_copy(walk: Walk, random: Random) -> str:
    """And puts the copy in the place of the catalog, with files alone: all that was committed since is unknown to it."""
    site = pick(random, [one for one in walk.world.sites if one.copies])
    if site is None:
        return "no copy"
    saved: Saved = pick(random, site.copies)
    walk.watcher.look()
    site.forget_handles()
    cast_shadow(site, "it was live when an old catalog was put back")
    site.shelf.put_back(saved.copy)
    state = saved.states[0]
    site.states = [(_with_later(walk, site, saved, state), False)]
    site.kept, site.tags = deepcopy(saved.kept), dict(saved.tags)
    site.heads = {line: dict(found) for line, found in saved.heads.items()}
    site.known = {version.directory for found in saved.heads.values() for version in found.values()}
    _note_what_is_gone(walk, site, state)
    site.lost, site.hidden, site.odd = False, False, "an old catalog"
    site.before_loss, site.forked = None, True
    site.calm.clear()
    site.moves += 1
    try:
        site.watcher = walk.world.open(site)
    except TiltyardError as error:  # it may be told apart from the newest one; then it is as good as lost
        site.lost = True
        return f"{site.name} refused {type(error).__name__}"
    return f"{site.name} back"


def cast_shadow(site: Site, why: str) -> None:
    for line in site.state.lines.values():
        for token, version in site.heads.get(line.token, {}).items():
            if (line.token, token) not in site.broken:
                site.shadow[version] = f"{why}: {token} on {line.token}"


def _with_later(walk: Walk, site: Site, saved: Saved, state: State) -> State:
    """Versions that were committed since the copy look like those of foreign writers to it, and may be adopted."""
    later = []
    for name, line in state.lines.items():
        for tab in line.tables.values():
            version = saved.heads.get(line.token, {}).get(tab.token)
            newest = version and _newest(version)
            if version is not None and newest is not None and newest.number > version.number:
                later.append(Foreign(name, tab.token, _rows(walk, newest), replaced=True))
    return replace(state, pending=tuple(later))


def _newest(version: Version) -> Version | None:
    names = [parse_manifest_name(path.name) for path in Path(version.root, "_versions").glob("*.manifest")]
    found = [name.version for name in names if name is not None and not name.detached]
    return replace(version, number=max(found)) if found else None


def _rows(walk: Walk, version: Version) -> Rows:
    known = walk.watcher.known(version)
    if known is not None:
        return known
    return frozenset(int(one) for one in lance.dataset(version.root, version=version.number).to_table()["id"].to_pylist())


def _note_what_is_gone(walk: Walk, site: Site, state: State) -> None:
    """What was dropped and cleaned up since the copy is gone, and nobody is to blame; but a check has to say so."""
    site.broken = {
        (line, token) for line, found in site.heads.items() for token, version in found.items() if not walk.watcher.is_whole(version)
    }
    for kept in site.kept.values():
        for number in [key for key, one in kept.items() if not all(map(walk.watcher.is_whole, one.versions))]:
            del kept[number]
    gone = [name for name, versions in site.tags.items() if not all(map(walk.watcher.is_whole, versions))]
    for name in gone:
        site.tags[name] = ()
    site.gone_tags = set(gone)


@deed(2)
def lose_catalog(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    walk.watcher.look()
    if len(site.states) != 1 or site.state.pending or not any(line.tables for line in site.state.lines.values()):
        return "not now"
    site.forget_handles()
    cast_shadow(site, "its catalog was lost")
    site.before_loss = site.state
    site.remember_times()
    site.heads, site.kept, site.tags = {}, {}, {}
    site.shelf.lose()
    site.lost = True
    if sum(not one.lost for one in walk.world.sites) < 2:
        walk.world.add_site("sqlite", inside=random.random() < 0.5)
    return site.name


@deed(3)
def open_lost(walk: Walk, random: Random) -> str:
    """A directory full of tables whose catalog is gone is no sound empty lake: it is refused, or a check says what is not in it."""
    site = pick(random, [one for one in walk.world.sites if one.lost and one.shadow and one.before_loss is not None])
    if site is None:
        return "nothing lost"
    try:
        lake = walk.world.open(site)
    except TiltyardError as error:
        return f"{site.name} refused {type(error).__name__}"
    site.before_loss = site.state
    _begin_anew(site)
    site.processes.append(Process(lake))
    return f"{site.name} done"


def _begin_anew(site: Site) -> None:
    site.states = [(empty_state(), False)]
    site.kept, site.tags, site.heads, site.broken, site.calm = {}, {}, {}, set(), {}
    site.lost, site.hidden, site.odd = False, True, "a new catalog over old tables"
    site.copies.clear()
    site.moves += 1


@deed(3)
def register_lost(walk: Walk, random: Random) -> str:
    """Tables of a lost catalog come into another one, below the same root or elsewhere."""
    site = walk.site(random)
    process = walk.process(site, random)
    found = [one for other in walk.world.sites if other.lost or other is site for one in other.shadow if not one.branch]
    version = pick(random, sorted(found, key=lambda one: (one.directory, one.number)))
    if version is None or site.state.pending:
        return "nothing lost"
    newest = _newest(version)
    if newest is None:
        return "nothing left"
    name = f"found{walk.world.tokens}"
    effect = registered(MAIN, name, walk.world.token("found"), _rows(walk, newest), version.directory)
    end, result = walk.act(site, process, effect, lambda: process.lake.register_table(name, version.directory))
    if end != REFUSED:
        for other in walk.world.sites:
            if other is not site and version in other.shadow:  # it has another lake now, so the lost one must not come back as well
                other.before_loss = None
                other.copies.clear()
                other.backups.clear()
    return f"{site.name} {name} {told(end, result)}"


@deed(3)
def other_door(walk: Walk, random: Random) -> str:
    """A second catalog in the same place, a second lake with the same root, the same lake with another root: each is refused."""
    site = walk.site(random)
    how = random.choice(["second catalog", "same root", "other root"])
    if not any(line.tables for line in site.state.lines.values()):
        return "nothing to hide"
    walk.watcher.look()
    try:
        lake = _opened(walk, site, how)
    except TiltyardError as error:
        return f"{site.name} {how} refused {type(error).__name__}"
    if lake is None:
        return "no such door"
    if walk.strict:
        lake.close()
        raise Broken(f"{site.name}: {how} was not refused")
    _let_in(walk, site, lake, how)
    return f"{site.name} {how} done"


def _opened(walk: Walk, site: Site, how: str) -> Any:
    world = walk.world
    if how == "other root":
        if "root" not in site.shelf.arguments:
            return None
        return world.open(site, root=str(world.base / f"elsewhere-{site.name}"))
    if how == "second catalog":
        if site.shelf.kind == "postgres" or "root" in site.shelf.arguments:
            return None
        return world.open(site, catalog="sqlite" if site.shelf.kind == "manifest" else "manifest")
    home = world.base / f"other{len(world.sites)}"
    home.mkdir(exist_ok=True)
    shelf = SqliteShelf(f"sqlite:///{home}/catalog.db", home / "catalog.db", {"root": str(site.root)})
    return world.open(Site("second", shelf, site.root))


def _let_in(walk: Walk, site: Site, lake: Any, how: str) -> None:
    """Where it is not refused, see what comes of it."""
    if how == "same root":
        home = walk.world.base / f"other{len(walk.world.sites)}"
        shelf = SqliteShelf(f"sqlite:///{home}/catalog.db", home / "catalog.db", {"root": str(site.root)})
        second = Site(f"lake{len(walk.world.sites)}", shelf, site.root, odd="a second lake with one root")
        second.processes.append(Process(lake))
        walk.world.sites.append(second)
        site.odd = site.odd or "a second lake with one root"
    else:
        site.processes.append(Process(lake))
        site.odd = site.odd or how
