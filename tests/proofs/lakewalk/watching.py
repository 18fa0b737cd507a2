"""Looks at lakes after every step: is each in a state that it may be in, and is every byte there that somebody needs?

Versions do not change, so each is read once and known from then on; later steps only look whether its files are still there. That makes
a look cheap enough for every step; every now and then everything is read again through the lake.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.proofs.lakewalk.disk import Version, files_of
from tests.proofs.lakewalk.model import MAIN, Rows, State, expanded, shown
from tests.proofs.lakewalk.world import Broken, Kept, Site, World, rows_of
from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.errors import TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.lake_snapshot import LakeSnapshot


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as the catalog shows it; ``rows`` is None where it cannot be read without finishing what somebody began."""

    id: str
    version: Version
    rows: Rows | None


@dataclass(slots=True)
class Sight:
    """What one line of a lake shows."""

    number: int
    tables: dict[str, Seen]


class Watcher:
    """Knows what every version that was ever seen holds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows: dict[Version, tuple[int, Rows]] = {}
        self._files: dict[Version, tuple[str, ...]] = {}

    # ---- what is there --------------------------------------------------------------------------------------------------------------

    def look(self, *, lazily: bool = False, all_lakes: bool = False) -> None:
        """Compares every lake with its model, and narrows the model down to what is seen.

        Args:
            lazily: leaves versions alone that are committed and not finished, as a process does that never reads them.
            all_lakes: looks also where nobody did anything since the last look.
        """
        for site in self._world.sites:
            if not site.lost and (all_lakes or site.looked != site.moves):
                self._compare(site, self._sights(site, lazily))
                site.looked = site.moves if not lazily else -1
        self.guard()

    def _sights(self, site: Site, lazily: bool) -> dict[str, Sight]:
        if site.watcher is None:
            site.watcher = self._world.open(site)
        lake = site.watcher
        found = {}
        for line in (MAIN, *sorted(lake.branches)):
            shot = lake.on_branch(line).snapshot()
            found[line] = Sight(shot.id, {name: self._seen(site, shot, name, lazily, line) for name in shot.tables()})
        return found

    def _seen(self, site: Site, shot: LakeSnapshot, name: str, lazily: bool, line: str) -> Seen:
        head = shot.cut.tables[name.replace(".", "$")]
        version = version_of(site.watcher, head)
        if lazily and shot.cut.is_unfinished(head):
            return Seen(head.id, version, None)
        known = self._rows.get(version)
        inode = _inode(version.manifest)
        if known is not None and known[0] == inode:
            return Seen(head.id, version, known[1])
        if self._is_broken(site, line, head):
            return Seen(head.id, version, None)
        try:
            found = rows_of(shot.table(name))
            self._files[version] = files_of(version)
        except (TiltyardError, FileNotFoundError) as error:
            raise Broken(f"{site.name}: {name} on {line} cannot be read at version {version.number}: {error}") from error
        rows = frozenset(found)
        if len(rows) != len(found):
            raise Broken(f"{site.name}: {name} on {line} has rows twice: {sorted(found)}")
        self._rows[version] = (_inode(version.manifest), rows)
        return Seen(head.id, version, rows)

    def _is_broken(self, site: Site, line: str, head: TableHead) -> bool:
        tokens = [token for token, identity in site.ids.items() if identity == head.id]
        return any((state.lines[line].token, token) in site.broken for state, _ in site.states if line in state.lines for token in tokens)

    def known(self, version: Version) -> Rows | None:
        """What a version holds, if it was ever seen."""
        found = self._rows.get(version)
        return None if found is None else found[1]

    def files(self, version: Version) -> tuple[str, ...]:
        if version not in self._files:
            self._files[version] = files_of(version)
        return self._files[version]

    # ---- is it what it must be ------------------------------------------------------------------------------------------------------

    def _compare(self, site: Site, sights: Mapping[str, Sight]) -> None:
        fits, reasons = [], []
        for state, counted in expanded(site.states):
            why = self._differs(site, state, sights)
            if not why:
                fits.append((state, counted))
            else:
                reasons.append(why)
        if not fits:
            raise Broken(f"{site.name} is in no state that it may be in: {' | or: '.join(dict.fromkeys(reasons))[:1500]}")
        site.states = fits
        for name, line in fits[0][0].lines.items():
            site.tips[line.token] = sights[name].number
        if len({counted for _, counted in fits}) == 1:
            self._note(site, fits[0][0], sights)

    def _differs(self, site: Site, state: State, sights: Mapping[str, Sight]) -> str:
        if set(state.lines) != set(sights):
            return f"branches {sorted(sights)}, expected {sorted(state.lines)}"
        assert site.watcher is not None
        tags = {tag.name for tag in site.watcher.tags.list()}
        if tags != set(state.tags):
            return f"tags {sorted(tags)}, expected {sorted(state.tags)}"
        for name, line in state.lines.items():
            seen = sights[name].tables
            if set(seen) != set(line.tables):
                return f"tables {sorted(seen)} on {name}, expected {sorted(line.tables)}"
            for table, tab in line.tables.items():
                one = seen[table]
                if one.rows is not None and one.rows != tab.rows and (line.token, tab.token) not in site.broken:
                    return f"{table} on {name} holds {sorted(one.rows)}, expected {sorted(tab.rows)}"
                if site.ids.get(tab.token, one.id) != one.id:
                    return f"{table} on {name} is another table than before"
        return ""

    def _note(self, site: Site, state: State, sights: Mapping[str, Sight]) -> None:
        """Remembers what is certain now: who is who, where everything lies, and what this moment shows."""
        used = {identity: token for token, identity in site.ids.items()}
        for name, line in state.lines.items():
            sight = sights[name]
            for table, tab in line.tables.items():
                identity = sight.tables[table].id
                if used.setdefault(identity, tab.token) != tab.token:
                    raise Broken(f"{site.name}: {table} on {name} has the id of another table")
                site.ids[tab.token] = identity
            site.heads[line.token] = {line.tables[table].token: seen.version for table, seen in sight.tables.items()}
            if all(seen.rows is not None for seen in sight.tables.values()):
                versions = tuple(seen.version for seen in sight.tables.values())
                kept = site.kept.setdefault(line.token, {})
                if sight.number not in kept:
                    at = site.times.pop((line.token, versions), self._world.clock.now())
                    kept[sight.number] = Kept(shown(line.tables), versions, at)
        alive = {line.token for line in state.lines.values()}
        for token in {*site.kept, *site.heads} - alive:  # a fast-forward takes the snapshots of a line away before its heads
            site.kept.pop(token, None)
            site.heads.pop(token, None)
        for name in [one for one in site.tags if one not in state.tags]:
            del site.tags[name]
        for name in state.tags:
            if name not in site.tags:
                assert site.watcher is not None
                cut = site.watcher.snapshot(name).cut
                site.tags[name] = tuple(version_of(site.watcher, head) for head in cut.tables.values())

    # ---- is every byte there ----------------------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """No file is gone that a head, a tag, a kept snapshot, a registered table or somebody else needs."""
        world = self._world
        for site in world.sites:
            for version, why in self._needed(site):
                self._all_there(version, f"{site.name}: {why}")
        for directory, why in world.strays.items():
            self._all_there(Version(directory, "", 1), why)

    def _needed(self, site: Site) -> Iterable[tuple[Version, str]]:
        for line, heads in site.heads.items():
            for token, version in heads.items():
                if (line, token) not in site.broken:
                    yield version, f"the head of {token} on {line}"
        for line, kept in site.kept.items():
            for number, one in kept.items():
                for version in one.versions:
                    yield version, f"snapshot {number} of {line}"
        for tag, versions in site.tags.items():
            for version in versions:
                yield version, f"tag {tag}"
        current = [version for found in site.heads.values() for version in found.values()]
        for version, why in list(site.shadow.items()):
            if any(one.root == version.root and one.number >= version.number for one in current):
                del site.shadow[version]  # the catalog has it again
            else:
                yield version, why

    def _all_there(self, version: Version, why: str) -> None:
        known = self._rows.get(version)
        if known is None and version not in self._files and not os.path.exists(version.manifest):  # noqa: PTH110 - counted
            return  # never finished, and never read
        try:
            files = self.files(version)
        except FileNotFoundError:
            files = (version.manifest,)
        for path in files:
            if not os.path.exists(path):  # noqa: PTH110 - called a thousand times a step
                raise Broken(f"{why} needs {path.removeprefix(str(self._world.base))}, which is gone")

    def is_whole(self, version: Version) -> bool:
        """Whether all files of a version are there."""
        try:
            return all(os.path.exists(path) for path in files_of(version))  # noqa: PTH110
        except FileNotFoundError:
            return False

    # ---- everything again, through the lake ---------------------------------------------------------------------------------------------

    def read_all(self, site: Site) -> None:
        """Reads all heads, and all snapshots and tags that must be there, as a user does."""
        lake = site.watcher
        if site.lost or lake is None or len(site.states) != 1:
            return
        state = site.state
        for name, line in state.lines.items():
            there = lake.on_branch(name)
            self._same(site, there.snapshot(), shown(line.tables), f"line {name}", {t.token for t in line.tables.values()}, line.token)
            for number, kept in site.kept.get(line.token, {}).items():
                self._same(site, self._shot(site, there, number), kept.shows, f"snapshot {number} of {name}")
        for name, tag in state.tags.items():
            self._same(site, self._shot(site, lake, name), shown(tag.tables), f"tag {name}")

    def _shot(self, site: Site, lake: Lake, at: int | str) -> LakeSnapshot:
        try:
            return lake.snapshot(at)
        except TiltyardError as error:
            raise Broken(f"{site.name}: snapshot {at!r} must be there: {error}") from error

    def _same(self, site: Site, shot: LakeSnapshot, expected: Mapping[str, Rows], what: str, *broken: object) -> None:
        if set(shot.tables()) != set(expected):
            raise Broken(f"{site.name}: {what} shows {shot.tables()}, expected {sorted(expected)}")
        for name, rows in expected.items():
            if site.broken:
                continue
            try:
                found = rows_of(shot.table(name))
            except TiltyardError as error:
                raise Broken(f"{site.name}: {name} of {what} cannot be read: {error}") from error
            if sorted(found) != sorted(rows):
                raise Broken(f"{site.name}: {name} of {what} holds {sorted(found)}, expected {sorted(rows)}")


def version_of(lake: Lake | None, head: TableHead) -> Version:
    assert lake is not None
    return Version(os.path.realpath(lake._where.uri_of(head.location)), head.branch or "", head.version, head.naming)


def cut_of(lake: Lake) -> Cut:
    return lake.snapshot().cut


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116
    except FileNotFoundError:
        return 0
