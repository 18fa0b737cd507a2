"""Lake-wide tags and branches: names for snapshots, and lines of history over all tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tiltyard.catalog.codec import (
    BRANCHES,
    BUCKET,
    TAGS,
    cut_key,
    cuts_prefix,
    head_to_body,
    name_key,
    snapshots_prefix,
    table_key,
    tip_key,
)
from tiltyard.catalog.cuts import check_not_forgotten, floor_key
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.values import MAIN, Cut
from tiltyard.errors import AlreadyExists, ExpectedVersionMismatch, InvalidInput, NotFound
from tiltyard.lakes.forks import fast_forward
from tiltyard.lakes.names import check_ref

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.transaction import LakeCommit


@dataclass(frozen=True, slots=True)
class LakeTag:
    """A name for one snapshot of the lake."""

    name: str
    snapshot: int
    branch: str
    created: datetime


@dataclass(frozen=True, slots=True)
class LakeBranch:
    """A line of history over all tables: where it began."""

    name: str
    origin: str
    snapshot: int
    created: datetime
    id: str = ""


class LakeTags:
    """The tags of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._records = lake.catalog.records

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __getitem__(self, name: str) -> LakeTag:
        found = self.find(name)
        if found is None:
            raise NotFound(f"There is no tag {name!r} in the lake.", name=name, advice="See lake.tags.list().")
        return found

    def list(self) -> list[LakeTag]:
        return [_tag(key.removeprefix(TAGS), body) for key, body in self._records.scan([TAGS])]

    def find(self, name: str) -> LakeTag | None:
        body = self._records.get([TAGS + name]).get(TAGS + name)
        return None if body is None else _tag(name, body)

    def create(self, name: str, at: int | str | datetime | None = None) -> LakeTag:
        """Names a snapshot, the newest one by default; cleanup then keeps all it needs.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: there is no such snapshot.
        """
        key = TAGS + check_ref(name, "tag")
        shot = self._lake.snapshot(at)
        body = {"snapshot": shot.id, "branch": shot.branch, "created": self._lake.catalog.runtime.clock.now().isoformat()}
        tip = tip_key(shot.branch)

        def decide(found: Found) -> Writes[LakeTag]:
            if key in found:
                raise AlreadyExists(f"There is a tag {name!r} in the lake already.", name=name)
            check_not_forgotten(found, shot.branch, shot.id)
            if tip not in found:
                raise NotFound(f"Branch {shot.branch!r} was deleted meanwhile.", name=shot.branch)
            return Writes(_tag(name, body), {key: body})

        return self._records.transact([key], [tip, floor_key(shot.branch)], decide)

    def delete(self, name: str) -> None:
        """Takes a name away; the snapshot stays until the lake is cleaned up.

        Raises:
            NotFound: there is no such tag.
        """
        key = TAGS + name

        def decide(found: Found) -> Writes[None]:
            if key not in found:
                raise NotFound(f"There is no tag {name!r} in the lake.", name=name, advice="See lake.tags.list().")
            return Writes(None, delete=[key])

        self._records.transact([key], [], decide)


def _tag(name: str, body: Body) -> LakeTag:
    return LakeTag(name, int(body["snapshot"]), str(body["branch"]), datetime.fromisoformat(body["created"]))


class LakeBranches:
    """The branches of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._records = lake.catalog.records

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name == MAIN or BRANCHES + name in self._records.get([BRANCHES + name]))

    def __getitem__(self, name: str) -> LakeBranch:
        body = self._records.get([BRANCHES + name]).get(BRANCHES + name)
        if body is None:
            raise NotFound(f"There is no branch {name!r} in the lake.", name=name, advice="See lake.branches.list().")
        return _branch(name, body)

    def list(self) -> list[LakeBranch]:
        return [_branch(key.removeprefix(BRANCHES), body) for key, body in self._records.scan([BRANCHES])]

    def create(self, name: str, at: int | str | datetime | None = None) -> LakeBranch:
        """Begins a line of history at a snapshot, the newest one by default. No table is touched until somebody writes to it there.

        Raises:
            AlreadyExists: the name is taken.
        """
        check_ref(name, "branch")
        if name == MAIN:
            raise InvalidInput("main is the line of history that is there from the beginning.", argument="name")
        shot = self._lake.snapshot(at)
        now = self._lake.catalog.runtime.clock.now().isoformat()
        key, tip = BRANCHES + name, tip_key(name)
        body = {"origin": shot.branch, "snapshot": shot.id, "created": now, "id": self._fresh_id()}
        put: dict[str, Body] = {key: body, tip: {"snapshot": shot.id, "at": now}, **self._heads(name, shot._cut)}

        def decide(found: Found) -> Writes[LakeBranch]:
            if key in found or tip in found:
                raise AlreadyExists(f"There is a branch {name!r} in the lake already.", name=name)
            check_not_forgotten(found, shot.branch, shot.id)
            return Writes(_branch(name, body), put)

        return self._records.transact([key, tip], [floor_key(shot.branch)], decide)

    def _fresh_id(self) -> str:
        return self._lake.catalog.runtime.random.uuid()[:8]

    def delete(self, name: str) -> None:
        """Ends a line of history. Main and other branches stay as they are; its files go when the lake is cleaned up.

        Raises:
            NotFound: there is no such branch.
            InvalidInput: a tag or another branch is based on it.
        """
        if name == MAIN:
            raise InvalidInput("main is the line of history that is there from the beginning; it stays.", argument="name")
        self[name]
        used = [f"tag {one.name!r}" for one in self._lake.tags.list() if one.branch == name]
        used += [f"branch {one.name!r}" for one in self.list() if one.origin == name]
        if used:
            raise InvalidInput(
                f"Branch {name!r} is what {', '.join(used)[:120]} is based on.", argument="name", advice="Delete that first."
            )
        prefixes = [table_key(name, ""), name_key(name, ""), snapshots_prefix(name), cuts_prefix(name)]
        keys = [BRANCHES + name, tip_key(name), *(key for key, _ in self._records.scan(prefixes))]

        def decide(found: Found) -> Writes[None]:
            if BRANCHES + name not in found:
                raise NotFound(f"There is no branch {name!r} in the lake.", name=name)
            return Writes(None, delete=keys)

        self._records.transact(keys, [], decide)

    def fast_forward(self, name: str) -> LakeCommit:
        """Brings main to where a branch is, in one commit; the branch then begins anew from there.

        Raises:
            NotFound: there is no such branch.
            ExpectedVersionMismatch: a table that was written to on the branch was changed on main as well. Nothing was committed.
        """
        return fast_forward(self._lake, name)

    def restart(self, name: str, at: int) -> LakeBranch:
        """Lets a branch begin anew from main as it is, unless somebody has written to it since the snapshot ``at``."""
        before, cut = self[name], self._lake.catalog.cut(MAIN)
        key, tip = BRANCHES + name, tip_key(name)
        now = self._lake.catalog.runtime.clock.now().isoformat()
        body = {"origin": MAIN, "snapshot": cut.snapshot, "created": before.created.isoformat(), "id": self._fresh_id()}
        prefixes = [table_key(name, ""), name_key(name, ""), snapshots_prefix(name), cuts_prefix(name)]
        old = [one for one, _ in self._records.scan(prefixes)]
        put = self._heads(name, cut)

        def decide(found: Found) -> Writes[LakeBranch]:
            if key not in found or int(found[tip]["snapshot"]) != at:
                raise ExpectedVersionMismatch(
                    f"Branch {name!r} was written to meanwhile; main has what was there before.",
                    table=name,
                    expected=at,
                    actual=int(found[tip]["snapshot"]) if tip in found else None,
                )
            start = {key: body, tip: {"snapshot": cut.snapshot, "at": now}}
            return Writes(_branch(name, body), {**put, **start}, [one for one in old if one not in put])

        return self._records.transact([key, tip, *{*old, *put}], [], decide)

    def _heads(self, name: str, cut: Cut) -> dict[str, Body]:
        put: dict[str, Body] = {cut_key(name, cut.snapshot // BUCKET): {"tables": list(map(head_to_body, cut.tables.values()))}}
        for head in cut.tables.values():
            put[table_key(name, head.id)] = head_to_body(head)
            put[name_key(name, head.name)] = {"table": head.id, "location": head.location}
        return put


def _branch(name: str, body: Body) -> LakeBranch:
    return LakeBranch(name, str(body["origin"]), int(body["snapshot"]), datetime.fromisoformat(body["created"]), str(body["id"]))
