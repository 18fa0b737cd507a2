"""Rules of the state machine about versions: handles, time travel, tags, branches, clones, cleanup and what changed."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import strategies as st

import tiltyard as ty
from tests.support.stateful_bench import SMALL, WHICH, Bench, Held, deed
from tests.support.stateful_checks import assert_rows
from tests.support.stateful_model import Line, Plan, numbered
from tests.support.tables import open_stock

BRANCHES: Final = ("b0", "b1")
TAGS: Final = ("t0", "t1", "t2")
KEPT: Final = "clone"
"""The tag of the version that a shallow clone is made of; it stays."""
GONE: Final = (ty.NotFound, ty.HistoryUnavailable)


def _picked(versions: list[int], place: int) -> int:
    """The newest for 0, and then older ones."""
    return versions[-1 - place % len(versions)]


class HandleDeeds(Bench):
    """Handles come and go, and look at the past."""

    def _hold(self, which: int, table: ty.Table, branch: str | None, version: int) -> None:
        self.handles[which] = Held(table, branch)
        assert (table.version, table.branch) == (version, branch)
        self.look(self.handles[which])

    def _branch(self, number: int) -> str | None:
        names = sorted(self.lines, key=lambda name: name or "")
        return names[number % len(names)]

    @deed(which=WHICH, branch=SMALL, anew=st.booleans())
    def reopen(self, which: int, branch: int, anew: bool) -> None:
        if not anew:
            return self._refresh(which)
        name = self._branch(branch)
        self._hold(which, self.open(name), name, self.lines[name].head)
        self.done["open"] += 1
        return None

    def _refresh(self, which: int) -> None:
        held, line = self.held(which)
        held.table.refresh()
        assert held.table.version == line.head
        self.look(held)
        self.done["refresh"] += 1

    @deed(which=WHICH, branch=SMALL, place=SMALL, by_time=st.booleans())
    def travel_to_a_version(self, which: int, branch: int, place: int, by_time: bool) -> None:
        name = self._branch(branch)
        version = _picked(self.lines[name].retained, place)
        if by_time:
            moment = self.open(name).transactions.describe(version).timestamp
            self._hold(which, self.open(name, timestamp=moment), name, version)
        else:
            self._hold(which, self.open(name, version=version), name, version)
        self.done["open a timestamp" if by_time else "open a version"] += 1

    @deed(which=WHICH, tag=SMALL)
    def travel_to_a_tag(self, which: int, tag: int) -> None:
        if not self.tags:
            return self.reopen(which=which, branch=tag, anew=True)
        name = sorted(self.tags)[tag % len(self.tags)]
        branch, version = self.tags[name]
        self._hold(which, ty.Table.open(self.uri, version=name, durability="os", allowed_bases=["*"]), branch, version)
        self.done["open a tag"] += 1
        return None

    @deed(which=WHICH, column=SMALL, number=SMALL)
    def look_again(self, which: int, column: int, number: int) -> None:
        """A handle shows its version for ever, through an index as well; or says that it is gone."""
        held, line = self.held(which)
        world = line.worlds[held.table.version]
        name = world.numbers[column % len(world.numbers)].name
        if not self.can_be_read(held):
            # pylance's own dataset may still have all it needs; but never other rows.
            try:
                self.look(held)
            except GONE:
                self.done["read of a version that is gone"] += 1
            return
        self.look(held)
        wanted = [values for values in world.rows.values() if world.named(values)[name] == number]
        found = held.table.to_arrow(filter=f"{name} = {number}")
        assert_rows(found, world.with_rows(dict(enumerate(wanted))))
        assert held.table.count_rows(f"{name} = {number}") == len(wanted)
        self.done["read"] += 1

    @deed(which=WHICH, first=SMALL, last=SMALL)
    def changes(self, which: int, first: int, last: int) -> None:
        held, line = self.held(which)
        known = [version for version in sorted(line.worlds) if version <= held.table.version]
        begin, end = sorted((_picked(known, first), _picked(known, last)))
        if not line.gone.isdisjoint(range(begin, end + 1)):
            with pytest.raises(GONE):
                held.table.changes(begin, end, old_values=True).read_all()
            self.done["changes refused"] += 1
            return
        seen = held.table.changes(begin, end, old_values=True).read_all()
        _check_changes(seen.to_pylist(), line, begin, end, stable=self.kind.stable)
        self.done["changes"] += 1


def _check_changes(seen: list[dict[str, Any]], line: Line, begin: int, end: int, *, stable: bool) -> None:
    """Applied to the older version, the changes give the newer one; with other columns at least as many rows."""
    kinds = Counter(row["_change"] for row in seen)
    assert kinds["insert"] - kinds["delete"] == len(line.worlds[end].rows) - len(line.worlds[begin].rows)
    assert stable or not kinds["update"]
    assert [row["_version"] for row in seen] == sorted(row["_version"] for row in seen)
    worlds = [line.worlds[version] for version in range(begin, end + 1)]
    if len({world.shape for world in worlds}) > 1:
        return
    names = worlds[0].names
    rows = Counter(worlds[0].plain_rows)
    for row in seen:
        after, before = tuple(row[name] for name in names), row["_old"] and tuple(row["_old"][name] for name in names)
        if row["_change"] != "insert":
            gone = before if row["_change"] == "update" else after
            assert rows[gone] > 0, f"{row['_change']} of a row that is not there: {gone}"
            rows[gone] -= 1
        if row["_change"] != "delete":
            rows[after] += 1
    assert +rows == Counter(worlds[-1].plain_rows)


class RefDeeds(HandleDeeds):
    """Versions with names, and lines of history."""

    def _given_up(self, branch: str | None, version: int, tag: str = "") -> bool:
        """Whether a version may go at any time, so that nothing can be made that refers to it."""
        others = [*(at for name, at in self.tags.items() if name != tag), *self.origins.values()]
        return version < self.lines[branch].floor and (branch, version) not in others

    @deed(which=WHICH, place=SMALL, by_tag=st.booleans())
    def restore(self, which: int, place: int, by_tag: bool) -> None:
        held, line = self.held(which)
        version: int | str = _picked(line.retained, place)
        world = line.worlds[_picked(line.retained, place)]
        here = [name for name, (branch, _) in sorted(self.tags.items()) if branch == held.branch]
        if by_tag and here:
            version = here[place % len(here)]
            world = line.worlds[self.tags[version][1]]
        self.act(which, "restore", "Restore", lambda table: table.restore(version), lambda base, head: world)

    @deed(tag=st.sampled_from(TAGS), branch=SMALL, place=SMALL)
    def tag(self, tag: str, branch: int, place: int) -> None:
        name = self._branch(branch)
        version = _picked(self.lines[name].retained, place)
        tags = self.open().tags
        if self._given_up(name, version, tag):
            with pytest.raises(ty.NotFound):
                (tags.update if tag in self.tags else tags.create)(tag, version, branch=name)
            self.done["refused to tag"] += 1
            return
        if tag in self.tags:
            with pytest.raises(ty.AlreadyExists):
                tags.create(tag, version, branch=name)
            tags.update(tag, version, branch=name)
        else:
            tags.create(tag, version, branch=name)
        self.tags[tag] = (name, version)
        self.done["tag"] += 1

    @deed(tag=SMALL)
    def untag(self, tag: int) -> None:
        tags, known = self.open().tags, sorted(set(self.tags) - {KEPT})
        if not known:
            with pytest.raises(ty.NotFound):
                tags.delete("t0")
            return
        name = known[tag % len(known)]
        tags.delete(name)
        del self.tags[name]
        self.done["untag"] += 1

    @deed(which=WHICH, source=SMALL, place=SMALL)
    def create_branch(self, which: int, source: int, place: int) -> None:
        free = [name for name in BRANCHES if name not in self.lines]
        if not free:
            return self.delete_branch(number=place)
        origin = self._branch(source)
        line = self.lines[origin]
        version = _picked(line.retained, place)
        if self._given_up(origin, version):
            with pytest.raises(ty.NotFound):
                self.open().branches.create(free[0], (origin, version))
            self.done["refused to create a branch"] += 1
            return None
        self.open().branches.create(free[0], (origin, version))
        self.lines[free[0]] = Line({version: line.worlds[version]}, version)
        self.origins[free[0]] = (origin, version)
        self._hold(which, self.open(free[0]), free[0], version)
        self.done["create a branch"] += 1
        return None

    @deed(number=SMALL)
    def delete_branch(self, number: int) -> None:
        names = sorted(name for name in self.lines if name)
        if not names:
            with pytest.raises(ty.NotFound):
                self.open().branches.delete("b0")
            return
        name = names[number % len(names)]
        based = [one for one, (origin, _) in self.origins.items() if origin == name]
        if based or any(branch == name for branch, _ in self.tags.values()):
            with pytest.raises(ty.InvalidInput):
                self.open().branches.delete(name)
            self.done["refused to delete a branch"] += 1
            return
        self.open().branches.delete(name)
        del self.lines[name], self.origins[name]
        for which, held in enumerate(self.handles):
            if held.branch == name:
                self._hold(which, self.open(), None, self.main.head)
        self.done["delete a branch"] += 1

    @deed(which=WHICH, shallow=st.booleans(), place=SMALL, seed=SMALL)
    def clone(self, which: int, shallow: bool, place: int, seed: int) -> None:
        """A clone is written to as any table. What a shallow one refers to must be kept, which a tag does."""
        held, line = self.held(which)
        if len(self.clones) >= 2 or (shallow and KEPT in self.tags):
            return self.look_again(which=which, column=place, number=seed)
        version = _picked(line.retained, place)
        shallow = shallow and not self._given_up(held.branch, version)
        if shallow:
            held.table.tags.create(KEPT, version, branch=held.branch)
            self.tags[KEPT] = (held.branch, version)
        path = self.access / f"clone{len(self.clones)}"
        assert held.table.clone(path, shallow, version).version == version
        clone = ty.Table.open(path, durability="os", allowed_bases=["*"])
        world = line.worlds[version]
        assert_rows(clone.to_arrow(), world)
        rows = self.new_rows(world, [seed, seed])
        clone.append(self.arrow(world, rows))
        world = Plan(inserted=numbered(world, rows)).carried(world, world)
        clone.delete(f"{world.key.name} % 2 = 0")
        kept = {number: values for number, values in world.rows.items() if values[0] % 2}  # type: ignore[operator]
        self.clones.append((path, world.with_rows(kept)))
        assert_rows(clone.to_arrow(), world.with_rows(kept))
        self.done["shallow clone" if shallow else "deep clone"] += 1
        return None


class CleanupDeeds(RefDeeds):
    """Old versions go."""

    def _referred(self, branch: str | None) -> set[int]:
        refs = [*self.tags.values(), *self.origins.values()]
        return {version for line, version in refs if line == branch}

    @deed(which=WHICH, keep=st.integers(1, 4), by_age=st.booleans(), at_once=st.booleans(), dry=st.booleans())
    def cleanup(self, which: int, keep: int, by_age: bool, at_once: bool, dry: bool) -> None:
        held, line = self.held(which)
        # Without an age, versions of the last hour would be left to the machine's stock writers.
        how: dict[str, Any] = {"older_than": timedelta(0)} | ({} if by_age else {"keep_versions": keep})
        if at_once:
            how["grace"] = timedelta(0)
        stay = {line.head, held.table.version, *self._referred(held.branch)}
        stay.update(version for version in line.retained[-1 if by_age else -keep :] if version >= line.floor)
        goes = set(line.retained) - stay
        report = held.table.cleanup(**how, dry_run=dry)
        assert set(report.versions) == goes
        if not dry:
            line.gone |= goes
            if goes:
                line.floor = max(line.floor, report.floor)
                line.refused = max(line.refused, report.floor) if at_once else line.refused
            assert self.open(held.branch).layout.versions() == line.retained
        assert held.table.layout.latest_version() == line.head
        self.done["cleanup dry" if dry else "cleanup"] += 1

    @deed(which=WHICH)
    def stock_cleanup(self, which: int) -> None:
        """pylance's own. It knows nothing of handles, so the ones of ours may find their version gone."""
        if len(self.lines) > 1:
            return self._refresh(which)
        open_stock(str(self.uri)).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
        left = self.open().layout.versions()
        assert set(left) <= set(self.main.retained)
        assert {self.main.head, *self._referred(None)} <= set(left)
        self.main.gone = set(self.main.worlds) - set(left)
        self.main.gapped = self.main.gapped or left != list(range(left[0], left[-1] + 1))
        self.done["pylance cleanup"] += 1
        return None
