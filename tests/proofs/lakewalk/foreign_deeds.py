"""Those who do not know the lake: stock pylance on a table's directory, tables of somebody else, directories that only look like ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import lance

from tests.proofs.lakewalk.acting import Walk, deed, fresh_name, told
from tests.proofs.lakewalk.disk import Version, as_old_as_they_are
from tests.proofs.lakewalk.model import Foreign, by_token, registered
from tests.proofs.lakewalk.world import Broken, Site, numbers, pick


def _at_home(walk: Walk, site: Site) -> Iterator[tuple[str, str, str]]:
    """(line, table's token, directory) of tables whose own main line is what a line of the lake writes to."""
    assert site.watcher is not None
    for line, there in sorted(site.state.lines.items()):
        cut = site.watcher.on_branch(line).snapshot().cut
        tokens = {site.ids.get(tab.token): tab.token for tab in there.tables.values()}
        for head in sorted(cut.tables.values(), key=lambda one: one.name):
            token = tokens.get(head.id)
            if head.branch is None and head.home == line and token is not None and (there.token, token) not in site.broken:
                yield line, token, site.watcher._where.uri_of(head.location)


@deed(5, nested=True)
def foreign_write(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    verb, rows = random.choice(["append", "append", "delete", "overwrite"]), walk.world.fresh_rows()
    if site.watcher is None or site.watcher.catalog.pending() or len(site.states) != 1:
        return (
            "somebody is at work"  # who takes the number of a version that is committed decides for people: see tests/lakes/test_repair.py
        )
    found = pick(random, _at_home(walk, site))
    if found is None:
        return "nothing there"
    line, token, directory = found
    name, tab = by_token(site.state.lines[line].tables)[token]
    old = pick(random, sorted(tab.rows))
    change = Foreign(line, token, rows)
    if verb == "append":
        lance.write_dataset(numbers(rows), directory, mode="append")
    elif verb == "overwrite":
        lance.write_dataset(numbers(rows), directory, mode="overwrite")
        change = Foreign(line, token, rows, replaced=True)
    elif old is not None:
        lance.dataset(directory).delete(f"id = {old}")
        change = Foreign(line, token, remove=frozenset({old}))
    else:
        return "nothing there"
    site.states = [(replace(state, pending=(*state.pending, change)), counted) for state, counted in site.states]
    site.moves += 1
    return f"{site.name} {line} {name} {verb}"


@deed(3)
def foreign_cleanup(walk: Walk, random: Random) -> str:
    """A cleanup of one table that knows nothing of snapshots, such as lancedb's ``optimize``."""
    site = walk.site(random)
    if site.watcher is None:
        return "nobody was there yet"
    found = pick(random, _at_home(walk, site))
    if found is None:
        return "nothing there"
    line, token, directory = found
    if site.state.pending:
        return "not adopted yet"  # what was the head is nothing to them, and goes
    with as_old_as_they_are(directory, walk.world.clock.now()):
        try:
            lance.dataset(directory).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
        except OSError as error:
            return f"{site.name} {line} {token} pylance refused: {type(error).__name__}"
    place = os.path.realpath(directory)
    for kept in site.kept.values():  # only what has a name is safe from others
        past = [key for key in kept if key != max(kept)]
        for number in [key for key in past if any(version.directory == place for version in kept[key].versions)]:
            del kept[number]
    site.odd = site.odd or "others cleaned up"
    site.moves += 1
    return f"{site.name} {line} {token}"


def _spelt(directory: str, random: Random, base: Path) -> str:
    """The same place in another spelling."""
    how = random.randrange(4)
    if how == 0:
        return directory + "/"
    if how == 1:
        return f"{directory}/../{Path(directory).name}"
    if how == 2:
        link = base / f"link-{Path(directory).name}"
        if not link.is_symlink():
            link.symlink_to(directory)
        return str(link)
    return directory


@deed(4)
def register(walk: Walk, random: Random) -> str:
    """A table of somebody else comes into the lake, perhaps for the second time and in another spelling."""
    site = walk.site(random)
    process = walk.process(site, random)
    again, inside = random.random() < 0.5, random.random() < 0.3
    line, plan = walk.line(site, random), walk.plan(random, 4, process)
    known = [one for one in sorted(walk.world.outside) if walk.world.outside[one] == site.name]
    if again and known:
        directory = pick(random, known)
    else:
        rows = walk.world.fresh_rows(2)
        home = site.root if inside else walk.world.base / "outside"
        directory = str(home / f"theirs{min(rows)}.lance")
        lance.write_dataset(numbers(rows), directory)
        walk.world.outside[directory] = site.name
    name, token = fresh_name(list(site.state.lines[line].tables), random), walk.world.token("outside")
    found = frozenset(int(one) for one in lance.dataset(directory).to_table()["id"].to_pylist())
    effect = registered(line, name, token, found, directory)
    uri = _spelt(directory, random, walk.world.base)
    end, result = walk.act(site, process, effect, lambda: walk.lake_on(process, line).register_table(name, uri), plan)
    return f"{site.name} {line} {name} {'again ' if again else ''}{told(end, result)}"


@deed(2)
def stray(walk: Walk, random: Random) -> str:
    """Somebody puts a table below the root that looks like one of the lake's own."""
    site = walk.site(random)
    rows = walk.world.fresh_rows(2)
    directory = str(site.root / f"{random.getrandbits(48):012x}_stray.lance")
    lance.write_dataset(numbers(rows), directory)
    walk.world.strays[directory] = f"somebody else's table below the root of {site.name}"
    walk.watcher.files(Version(directory, "", 1))
    site.odd = site.odd or "somebody else's table below its root"
    return site.name


@deed(1)
def other_table(walk: Walk, random: Random) -> str:
    """A registered table stays where it is, whatever the lake does with its name: its owner reads it."""
    directory = pick(random, sorted(walk.world.outside))
    if directory is None:
        return "nothing there"
    try:
        lance.dataset(directory).to_table()
    except (OSError, ValueError) as error:
        raise Broken(f"a registered table is gone from {Path(directory).name}: {error}") from error
    return "read"
