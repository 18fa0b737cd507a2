"""Bringing a branch of the lake home: everything that it and its ancestors changed since they left main, in one commit.

Compared is table by table, by id: where main stood when the line left it (the root), where the line is now, and where main is now. What
the line did not change stays as main has it; what it did change must not have changed on main. Names are moved as a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tiltyard.catalog.forwarding import Forward, forward
from tiltyard.catalog.lake_values import MAIN, Cut, TableHead
from tiltyard.catalog.line_identity import heads_of, new_line, owns, root_key, same_version
from tiltyard.catalog.publishing import StaleError
from tiltyard.errors import CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, InvalidInput
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFile, DeletionFile, IndexMetadata
from tiltyard.lakes.conflict_report import mismatch, moved_by
from tiltyard.lakes.finishing import finish_before
from tiltyard.lakes.table_names import shown
from tiltyard.storage.transfer import transfer
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Rewrite
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.staged_access import StagedAccess
from tiltyard.verbs.table_refs import Branches

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import LakeCommit
    from tiltyard.lake import Lake
    from tiltyard.lakes.branches.lake_refs import LakeBranch
    from tiltyard.lakes.lake_transaction import LakeTransaction

V = TypeVar("V")

_BASED: Final = (DataFile, DeletionFile, IndexMetadata)
"""What names a file, and the base it lies in."""

Heads = Mapping[str, TableHead]
"""Tables by id."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """What a line of history did since its root, by tables' ids."""

    written: Mapping[str, tuple[TableHead, TableHead]]
    """Where main stood, and where the line is."""
    renamed: Mapping[str, tuple[TableHead, TableHead]]
    made: Heads
    dropped: Heads

    def __bool__(self) -> bool:
        return bool(self.written or self.renamed or self.made or self.dropped)


def fast_forward(lake: Lake, branch: str) -> LakeCommit:
    """Brings main to where a branch is; the branch begins anew from there, as another line of history, in the same step.

    Raises:
        NotFound: there is no such branch.
        InvalidInput: a tag names a snapshot of the branch, which would be lost.
        ExpectedVersionMismatch: a table was changed on main, too, or the branch was written to meanwhile. Nothing was committed.
        HistoryUnavailable: versions that main needs were cleaned up.
    """
    there = lake.catalog.cut(branch)
    begun = lake.branches[branch]
    for head in there.tables.values():
        finish_before(lake, there, head, branch)  # what the step forgets must not be left for others to finish
    fresh = new_line(lake.catalog.runtime.random.uuid())
    plan = Forward(branch, there.line, there.snapshot, fresh, lake.author, partial(_refuse_tagged, lake, branch))
    plan.check()
    tx = lake.on_branch(MAIN).transaction(message=f"fast-forward to branch {branch}")
    done_before = lake.catalog.with_key(f"forward/{begun.id}/{there.snapshot}") is not None  # by an earlier release, in two steps
    change = _Difference({}, {}, {}, {}) if done_before else _difference(root_of(lake, begun), there, tx.cut)
    try:
        return _commit(lake, tx, there, change, plan) if change else _begin_anew(lake, tx, plan)
    except ExpectedVersionMismatch as error:
        if error.cause != "line":
            raise
        raise _written_to(branch, error) from None


def _commit(lake: Lake, tx: LakeTransaction, there: Cut, change: _Difference, plan: Forward) -> LakeCommit:
    tx.publish_through(partial(forward, lake.catalog, plan))
    with tx:
        _refuse_moved(lake, tx.cut, there, change)
        for before, head in change.written.values():
            _bring(lake, tx, there.branch, before, head)
        tx.rearrange(
            {table: head.name for table, (_, head) in change.renamed.items()},
            change.dropped,
            [_taken_in(head, there, tx.cut) for head in change.made.values()],
        )
    assert tx.result is not None
    return tx.result


def _begin_anew(lake: Lake, tx: LakeTransaction, plan: Forward) -> LakeCommit:
    """Main has all of it: the branch follows what was committed there since."""
    with tx:
        try:
            done = forward(lake.catalog, plan, None)
        except StaleError as stale:
            raise mismatch(lake.catalog, MAIN, tx.base, tx.id, stale.moved[0]) from None
    assert tx.result is not None
    return replace(tx.result, snapshot=done.snapshot)


def _written_to(branch: str, error: ExpectedVersionMismatch) -> ExpectedVersionMismatch:
    return ExpectedVersionMismatch(
        f"Branch {branch!r} was written to, deleted or fast-forwarded by others during the fast-forward.",
        table="",
        expected=error.expected or 0,
        actual=error.actual,
        cause="line",
        operation="fast-forward",
        advice="Nothing was committed. Fast-forward again.",
    )


def _refuse_tagged(lake: Lake, branch: str) -> None:
    tags = [tag.name for tag in lake.tags.list() if tag.branch == branch]
    if tags:
        raise InvalidInput(
            f"A fast-forward restarts branch {branch!r}, but tag {tags[0]!r} names a snapshot of it.",
            argument="name",
            advice="Delete the tag first, or make a branch from it.",
        )


def root_of(lake: Lake, branch: LakeBranch) -> Heads:
    """Main's tables as they were when a branch, or the first of its ancestors, left main."""
    known = lake.catalog.records.get([root_key(branch.name)]).get(root_key(branch.name))
    if known is not None and known["line"] == branch.id:  # an earlier release leaves it to the next branch of that name
        return heads_of(known)
    if branch.origin != MAIN:  # an earlier release made it
        return root_of(lake, lake.branches[branch.origin])
    return {head.id: head for head in lake.catalog.cut_at(branch.snapshot, MAIN).tables.values()}


def _taken_in(head: TableHead, there: Cut, main: Cut) -> TableHead:
    """A table made on the branch as main has it: main's own if it was the branch's own, else still that of the line that made it."""
    return replace(head, owner=main.line if owns(head, there.branch, there.line) else head.owner or there.line)


def _difference(root: Heads, there: Cut, main: Cut) -> _Difference:
    now = {head.id: head for head in sorted(there.tables.values(), key=lambda head: head.name)}
    have = {head.id: head for head in main.tables.values()}
    both = {table: (root[table], head) for table, head in now.items() if table in root}
    return _Difference(
        written={table: pair for table, pair in both.items() if not same_version(*pair)},
        renamed={table: pair for table, pair in both.items() if pair[1].name not in (pair[0].name, _name(have.get(table)))},
        made={table: head for table, head in now.items() if table not in root and not _has(have.get(table), head)},
        dropped={table: head for table, head in root.items() if table not in now and table in have},
    )


def _name(head: TableHead | None) -> str:
    return "" if head is None else head.name


def _has(have: TableHead | None, head: TableHead) -> bool:
    """Whether main has a table already that was made on a branch: a branch of that one, or its parent, came home before."""
    return have is not None and have.name == head.name and same_version(have, head)


# ---- whether main is where it was ------------------------------------------------------------------------------------------------


def _refuse_moved(lake: Lake, main: Cut, there: Cut, change: _Difference) -> None:
    """Raises for the first table that both sides changed, or name that both sides use.

    Raises:
        ExpectedVersionMismatch: with the table, both versions and who changed it on main.
    """
    have = {head.id: head for head in main.tables.values()}
    for before, _ in (*change.written.values(), *((head, head) for head in change.dropped.values())):
        now = have.get(before.id)
        if now is None or not same_version(now, before):
            raise _moved(lake, there, before, now)
    for before, head in change.renamed.values():
        now = have.get(before.id)
        if now is None or now.name not in (before.name, head.name):
            raise _moved(lake, there, before, now)
    for head in change.made.values():
        if head.id in have:
            raise _moved(lake, there, replace(head, version=0), have[head.id])
    leaving = {*change.renamed, *change.dropped}
    taken = {head.name: head for head in main.tables.values() if head.id not in leaving}
    for head in (*(head for _, head in change.renamed.values()), *change.made.values()):
        if head.name in taken:
            raise _moved(lake, there, replace(head, version=0), taken[head.name])


def _moved(lake: Lake, there: Cut, before: TableHead, now: TableHead | None) -> ExpectedVersionMismatch:
    name = shown(before.name)
    by = moved_by(lake.catalog, MAIN, 0, before.id if now is None else now.id)
    last = f", last by {by[-1]['operation']} of {by[-1]['author'] or 'an unknown author'}" if by else ""
    renamed = f" as {shown(now.name)}" if now is not None and now.name != before.name else ""
    where = "gone" if now is None else f"at version {now.version}{renamed}"
    since = f"was at {before.version} when branch {there.branch!r} began" if before.version else f"is new on branch {there.branch!r}"
    return ExpectedVersionMismatch(
        f"{name} was changed on main{last}: there it is {where}; it {since}.",
        table=name,
        expected=before.version,
        actual=None if now is None else now.version,
        by=by,
        operation="fast-forward",
        retryable=False,
        advice="Begin a new branch from main and run the work there again.",
    )


# ---- the versions of one table ---------------------------------------------------------------------------------------------------


def _bring(lake: Lake, tx: LakeTransaction, branch: str, before: TableHead, head: TableHead) -> None:
    """Commits the versions of a line once more, on main, lowest first, from each branch of the table that they were made on."""
    now = next(table for table in tx.cut.tables.values() if table.id == head.id)
    staged, main = tx.staged(shown(now.name)), lake.plain_access_of(head)
    segments = segments_of(main, before, head)
    homes = {main.on_branch(name).lance_uri.rstrip("/") for name, _, _ in segments}
    try:
        for name, first, last in segments:
            access = lake.access_of(replace(head, branch=name), branch)
            _repeat(staged, access, main.on_branch(name), homes, first, last, Scheme(head.naming))
    except LookupError as error:
        raise HistoryUnavailable(
            f"Versions of {shown(head.name)} on branch {branch!r} since {before.version} were cleaned up: main cannot be fast-forwarded.",
            read_version=before.version,
            head=head.version,
            advice="Read the rows of the branch, and write them to main as new rows.",
        ) from error


def segments_of(main: TableAccess, before: TableHead, head: TableHead) -> list[tuple[str, int, int]]:
    """The table's branches that a line went through since its root, each with the first and the last version made there."""
    branches, found = Branches(main), []
    name, last = head.branch, head.version
    while name != before.branch:
        if name is None:
            raise CorruptTable(shown(head.name), f"its branch {head.branch} did not begin where main was")
        begun = branches[name]
        if begun.parent_version < last:
            found.append((name, begun.parent_version + 1, last))
        name, last = begun.parent_branch, begun.parent_version
    if last != before.version:
        raise CorruptTable(shown(head.name), f"its branch {head.branch} began at version {last}, not at {before.version}")
    return found[::-1]


def _repeat(staged: StagedAccess, access: TableAccess, plain: TableAccess, homes: set[str], first: int, last: int, scheme: Scheme) -> None:
    """Commits the operations of some versions of a branch once more, after copying the files they brought."""
    log = VersionLog(access.store)
    below = staged.load(first - 1, scheme)
    theirs = access.load(first - 1, scheme)
    for version in range(first, last + 1):
        made = log.committed(version, scheme)
        for path in new_files(made.transaction.operation, theirs.manifest):
            for file in [path + name for name in plain.store.names(path)] if path.endswith("/") else [path]:
                transfer(plain.store, file, staged.store.inner, file)
        operation = homeward(made.transaction.operation, _bases(made.file, below, homes, staged.lance_uri))
        properties = {name: value for name, value in made.transaction.properties.items() if name != PARENT}
        again = Transaction(below.manifest.version, staged.runtime.random.uuid(), operation, properties)
        reuse = added_reuse(theirs, made.file) if isinstance(operation, Rewrite) else None
        _, below = staged.committer.commit(again, below, scheme, RetryPolicy(0), reuse=reuse)
        theirs = made.file


def added_reuse(before: ManifestFile, after: ManifestFile) -> IndexMetadata | None:
    """What a rewrite left for other indices to follow it by; that stands in the version, not in the transaction."""
    old, new = singleton(before.manifest, FRAGMENT_REUSE), singleton(after.manifest, FRAGMENT_REUSE)
    return new if old is None or new is None or old.uuid != new.uuid else None


def _bases(theirs: ManifestFile, target: ManifestFile, homes: set[str], home: str) -> dict[int | None, int | None]:
    """What the bases of a branch's version are called where its operation is committed once more.

    Files of the branches that are brought were copied, and what lies in the target's own root needs no base there.
    """
    known = {base.path.rstrip("/"): base.id for base in target.manifest.base_paths}
    near = {*homes, home.rstrip("/")}
    found: dict[int | None, int | None] = {}
    for base in theirs.manifest.base_paths:
        path = base.path.rstrip("/")
        found[base.id] = None if path in near else known.get(path, base.id)
    return found


def homeward(value: V, bases: Mapping[int | None, int | None]) -> V:
    """An operation of a branch as it would have been where it is brought, given what bases are called there."""
    if isinstance(value, tuple):
        return cast(V, tuple(homeward(item, bases) for item in value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {member.name: new for member, new in _members(value, bases)}
    if isinstance(value, _BASED) and value.base_id in bases:
        changed["base_id"] = bases[value.base_id]
    return replace(cast(Any, value), **changed) if changed else value


def _members(value: Any, bases: Mapping[int | None, int | None]) -> Iterator[tuple[Any, Any]]:
    for member in fields(value):
        if member.init:
            before = getattr(value, member.name)
            after = homeward(before, bases)
            if after is not before and after != before:
                yield member, after
