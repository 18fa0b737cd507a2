"""Lake-wide tags and branches: names for snapshots, and lines of history over all tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.forwarding import branch_prefixes, line_records
from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.line_identity import bodies_of, ended_body, is_line, new_line, root_body, root_key
from tiltyard.catalog.protection import checks_key, protection_in
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.snapshot_index import check_not_forgotten, floor_key
from tiltyard.catalog.value_codec import (
    BRANCHES,
    TABLE_COUNT,
    TAGS,
    ended_key,
    head_to_body,
    idempotency_key,
    pin_key,
    snapshots_prefix,
    table_key,
    tip_key,
    transaction_key,
)
from tiltyard.errors import (
    AlreadyExists,
    ContentionError,
    ExpectedVersionMismatch,
    InvalidInput,
    NotFound,
    ProtectedBranch,
    TiltyardError,
)
from tiltyard.lakes.branches.branch_rules import ProtectionVerbs
from tiltyard.lakes.branches.fast_forward import fast_forward, root_of
from tiltyard.lakes.branches.ref_sizes import RefSize, ref_sizes
from tiltyard.lakes.cleanup.pins import check_pinned, make_pin, old_pin, pinned, release_pin
from tiltyard.lakes.merging.merge_verbs import MergeVerbs
from tiltyard.lakes.recovery.journal import note_branch, note_names, note_rule, note_tag
from tiltyard.lakes.table_names import check_ref

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import LakeCommit
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_snapshot import LakeSnapshot

_log = logging.getLogger("tiltyard.lake")
_TRIES: Final = 16
"""How often others may write to a branch while it is being deleted."""


@dataclass(frozen=True, slots=True)
class LakeTag:
    """A name for one snapshot of the lake.

    Attributes:
        name: what it is called.
        snapshot: which one.
        branch: the branch it is on.
        created: when it was named.
        line: the id of the line of history it is on; empty where an earlier release named it.
    """

    name: str
    snapshot: int
    branch: str
    created: datetime
    line: str = ""


@dataclass(frozen=True, slots=True)
class LakeBranch:
    """A line of history over all tables: where it began.

    Attributes:
        name: what it is called.
        origin: the branch it was made from.
        snapshot: of that branch, where it left it.
        created: when it was made.
        id: identifies the line of history: another one for an earlier branch of this name, and before a fast-forward.
        origin_line: the id of the line it was made from, which may be gone; empty where an earlier release made it.
    """

    name: str
    origin: str
    snapshot: int
    created: datetime
    id: str = ""
    origin_line: str = ""


class LakeTags:
    """The tags of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._records = lake.catalog.records

    def __iter__(self) -> Iterator[str]:
        return (tag.name for tag in self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __getitem__(self, name: str) -> LakeTag:
        found = self.find(name)
        if found is None:
            raise NotFound(f"There is no tag {name!r} in the lake.", name=name, advice="See lake.tags.list().")
        return found

    def list(self) -> list[LakeTag]:
        """All tags, by name."""
        return [_tag(key.removeprefix(TAGS), body) for key, body in self._records.scan([TAGS])]

    def sizes(self) -> Sequence[RefSize]:
        """How many bytes each tag holds, in all and alone. Reads manifests, and no rows."""
        return [size for size in ref_sizes(self._lake) if size.kind == "tag"]

    def find(self, name: str) -> LakeTag | None:
        """The tag of that name; None where there is none."""
        body = self._records.get([TAGS + name]).get(TAGS + name)
        return None if body is None else _tag(name, body)

    def create(self, name: str, at: int | str | datetime | None = None) -> LakeTag:
        """Names a snapshot, the latest by default; cleanup then keeps all it needs.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: there is no such snapshot.
        """
        key = TAGS + check_ref(name, "tag")
        if name in self:
            raise AlreadyExists(f"There is a tag {name!r} in the lake already.", name=name)
        shot = self._lake.snapshot(at)
        pin = self._lake.catalog.runtime.random.uuid()[:8]
        now = self._lake.catalog.runtime.clock.now().isoformat()
        body = {"snapshot": shot.id, "branch": shot.branch, "created": now, "line": shot.cut.line, "pin": pin}

        def decide(found: Found) -> Writes[LakeTag]:
            if key in found:
                raise AlreadyExists(f"There is a tag {name!r} in the lake already.", name=name)
            check_pinned(found, pin)
            return Writes(_tag(name, body), {key: body, **_counted_up(found, shot)})

        shared = [tip_key(shot.branch), floor_key(shot.branch), pin_key(pin)]
        with pinned(self._lake, "tag", name, pin, shot.cut):
            made = self._records.transact([key, *_counted(shot.branch)], shared, decide)
        note_tag(self._lake, made)
        return made

    def delete(self, name: str) -> None:
        """Deletes a tag. The snapshot stays until the lake is cleaned up.

        Raises:
            NotFound: there is no such tag.
        """
        key = TAGS + name

        def decide(found: Found) -> Writes[Body]:
            if key not in found:
                raise NotFound(f"There is no tag {name!r} in the lake.", name=name, advice="See lake.tags.list().")
            return Writes(found[key], delete=[key])

        gone = self._records.transact([key], [], decide)
        note_tag(self._lake, _tag(name, gone), deleted=True)
        release_pin(self._lake, str(gone.get("pin") or old_pin(key, gone)))


def _tag(name: str, body: Body) -> LakeTag:
    created = datetime.fromisoformat(body["created"])
    return LakeTag(name, int(body["snapshot"]), str(body["branch"]), created, str(body.get("line", "")))


def _counted(branch: str) -> list[str]:
    """The record in which it is counted how often a snapshot of a branch was named; main needs none, as it never goes."""
    return [] if branch == MAIN else [BRANCHES + branch]


def _counted_up(found: Found, shot: LakeSnapshot) -> dict[str, Body]:
    """What naming a snapshot writes into the record of its branch: nobody ends or replaces the branch without having seen the name.

    Raises:
        NotFound: the branch is gone or another one, or the snapshot was cleaned up.
    """
    if not is_line(found, shot.branch, shot.cut.line):
        raise NotFound(f"Branch {shot.branch!r} was deleted or fast-forwarded meanwhile.", name=shot.branch)
    check_not_forgotten(found, shot.branch, shot.id)
    return {key: {**found[key], "refs": int(found[key].get("refs", 0)) + 1} for key in _counted(shot.branch) if key in found}


class LakeBranches(MergeVerbs, ProtectionVerbs):
    """The branches of a lake."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        self._records = lake.catalog.records

    def __iter__(self) -> Iterator[str]:
        return (branch.name for branch in self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name == MAIN or BRANCHES + name in self._records.get([BRANCHES + name]))

    def __getitem__(self, name: str) -> LakeBranch:
        body = self._records.get([BRANCHES + name]).get(BRANCHES + name)
        if body is None:
            raise NotFound(f"There is no branch {name!r} in the lake.", name=name, advice="See lake.branches.list().")
        return _branch(name, body)

    def list(self) -> list[LakeBranch]:
        """All branches except main, by name."""
        return [_branch(key.removeprefix(BRANCHES), body) for key, body in self._records.scan([BRANCHES])]

    def sizes(self) -> Sequence[RefSize]:
        """How many bytes main and each branch hold, in all and alone. Reads manifests, and no rows."""
        return [size for size in ref_sizes(self._lake) if size.kind == "branch"]

    def create(self, name: str, at: int | str | datetime | None = None) -> LakeBranch:
        """Creates a branch at a snapshot, the latest by default. No data is copied.

        A table is branched when it is first written to there.

        Raises:
            AlreadyExists: the name is taken.
            InvalidInput: the name is not valid.
            NotFound: there is no such snapshot.
        """
        check_ref(name, "branch")
        if name == MAIN:
            raise InvalidInput("The branch main exists from the beginning.", argument="name")
        shot = self._lake.snapshot(at)
        now = self._lake.catalog.runtime.clock.now().isoformat()
        key, tip = BRANCHES + name, tip_key(name)
        line = new_line(self._lake.catalog.runtime.random.uuid())
        body = {"origin": shot.branch, "origin_line": shot.cut.line, "snapshot": shot.id, "created": now, "id": line}
        heads = left_main = bodies_of(shot.cut)
        if shot.branch != MAIN:
            left_main = [head_to_body(head) for head in root_of(self._lake, self[shot.branch]).values()]
        put: dict[str, Body] = {
            key: body,
            tip: {"snapshot": shot.id, "at": now, "line": line, TABLE_COUNT: len(heads)},
            root_key(name): root_body(line, left_main),
            **line_records(name, shot.id, heads),
        }

        def decide(found: Found) -> Writes[LakeBranch]:
            if key in found or tip in found:
                raise AlreadyExists(f"There is a branch {name!r} in the lake already.", name=name)
            check_pinned(found, line)
            return Writes(_branch(name, body), {**put, **_counted_up(found, shot)})

        shared = [tip_key(shot.branch), floor_key(shot.branch), pin_key(line)]
        with pinned(self._lake, "branch", name, line, shot.cut):
            made = self._records.transact([key, tip, *_counted(shot.branch)], shared, decide)
        note_branch(self._lake, made)
        return made

    def delete(self, name: str, *, at: int | None = None) -> None:
        """Deletes a branch. Its files are removed when the lake is cleaned up.

        Main and other branches stay as they are.

        Idempotency keys of what was committed there, and never merged into main, can be used again.

        Args:
            name: the branch.
            at: the snapshot it is expected to be at; it is not deleted if it has a later one.

        Raises:
            NotFound: there is no such branch.
            InvalidInput: a tag or another branch is based on it.
            ProtectedBranch: it is protected.
            ExpectedVersionMismatch: it is not at that snapshot.
            ContentionError: others keep writing to it.
        """
        if name == MAIN:
            raise InvalidInput("The branch main cannot be deleted.", argument="name")
        for _ in range(_TRIES):
            gone = self[name]
            if self._delete(name, gone, at):
                note_branch(self._lake, gone, ended=gone.id, deleted=True)
                release_pin(self._lake, gone.id)
                return
        raise ContentionError(f"Branch {name!r} is written to faster than it can be deleted.", attempts=_TRIES)

    def _delete(self, name: str, gone: LakeBranch, at: int | None) -> bool:
        begun, tip = BRANCHES + name, tip_key(name)
        seen = self._records.get([begun, tip])
        self._refuse_used(name)
        if at is not None and (there := int(seen.get(tip, {}).get("snapshot", -1))) != at:
            raise ExpectedVersionMismatch(
                f"Branch {name!r} is at snapshot {there}, not at {at}.", table="", expected=at, actual=there, cause="line",
                operation="delete branch", advice="Nothing was deleted. Look at what came since.",
            )  # fmt: skip
        if (rule := protection_in(seen.get(tip))) is not None:
            raise ProtectedBranch(
                f"Branch {name!r} is protected.", branch=name, author=self._lake.author, writers=rule.writers or (), checks=rule.checks,
                advice="Nothing was deleted. End its rule first: lake.branches.unprotect.",
            )  # fmt: skip
        records = dict(self._records.scan(branch_prefixes(name)))
        waiting = [pending.key for pending in self._lake.catalog.pending() if pending.lake_branch == name]
        made = [
            transaction_key(str(each["transaction"]))
            for key, body in records.items()
            if key.startswith(snapshots_prefix(name))
            for each in (body, *body.get("members", ()))
        ]
        used = [idempotency_key(str(body["key"])) for body in self._records.get(made).values() if "key" in body] if made else []
        keys = [begun, tip, root_key(name), checks_key(gone.id), *records, *waiting, *used]

        def decide(found: Found) -> Writes[bool]:
            if begun not in found:
                raise NotFound(f"There is no branch {name!r} in the lake.", name=name, advice="See lake.branches.list().")
            if any(found.get(key) != seen.get(key) for key in (begun, tip)) or str(found[begun]["id"]) != gone.id:
                return Writes(False)  # somebody committed to it, named a snapshot of it or made it anew since we looked
            return Writes(True, ended_lines(self._lake, gone, found), delete=keys)

        return self._records.transact(keys, [], decide)

    def _refuse_used(self, name: str) -> None:
        line = self[name].id
        used = [f"tag {tag.name!r}" for tag in self._lake.tags.list() if tag.branch == name]
        used += [f"branch {other.name!r}" for other in self.list() if other.origin == name and other.origin_line in ("", line)]
        if used:
            raise InvalidInput(
                f"Branch {name!r} is what {', '.join(used)[:120]} is based on.", argument="name", advice="Delete that first."
            )

    def fast_forward(self, name: str) -> LakeCommit:
        """Moves main to the head of a branch, in one commit; the branch restarts from there.

        The restarted branch is a new line of history.

        A transaction that is open on the branch is refused when it commits, and may be run again. Tables that the branch did not change
        stay as main has them. What a branch of a branch inherited is moved to main, too.

        Raises:
            NotFound: there is no such branch.
            InvalidInput: a tag names a snapshot of the branch.
            ExpectedVersionMismatch: a table that was changed on the branch was changed on main as well, or the branch was written to
                meanwhile. Nothing was committed.
            HistoryUnavailable: versions that main needs were cleaned up.
        """
        before = self[name]
        done = fast_forward(self._lake, name)
        self._note_forward(before, done)
        return done

    def _note_forward(self, before: LakeBranch, done: LakeCommit) -> None:
        """Keeps the journal and the pins in step with a branch that began anew. Where that fails the next cleanup does it."""
        now = self[before.name]
        try:
            make_pin(self._lake, "branch", now.name, now.id, self._lake.catalog.cut_at(now.snapshot, now.origin))
        except TiltyardError as error:
            _log.warning("the beginning of branch %s is not pinned: %s", now.name, error)
        note_branch(self._lake, now, ended=before.id)
        if self.protection(now.name) is not None:
            note_rule(self._lake, now.name)
        note_names(self._lake, MAIN, done.snapshot, done.transaction_id)
        release_pin(self._lake, before.id)


def ended_lines(lake: Lake, gone: LakeBranch, records: Mapping[str, Body]) -> dict[str, Body]:
    """The record that a line of history has ended: the proof without which no cleanup removes the tables' own branches of it."""
    heads = [body for key, body in records.items() if key.startswith(table_key(gone.name, ""))]
    return {ended_key(gone.name, gone.id): ended_body(lake.catalog.runtime.clock.now().isoformat(), gone.id, heads)}


def _branch(name: str, body: Body) -> LakeBranch:
    created = datetime.fromisoformat(body["created"])
    return LakeBranch(name, str(body["origin"]), int(body["snapshot"]), created, str(body["id"]), str(body.get("origin_line", "")))
