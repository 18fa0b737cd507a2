"""Branches of a lake, table by table: a table gets a branch of its own when somebody first opens it there to write, and what was written
there can be brought back to main in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tiltyard.catalog.codec import BRANCHES
from tiltyard.catalog.staging import StagedPlace
from tiltyard.catalog.values import MAIN, Cut, TableHead
from tiltyard.errors import AlreadyExists, CorruptTable, ExpectedVersionMismatch, NotFound
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFile, DeletionFile, IndexMetadata
from tiltyard.lakes.names import shown
from tiltyard.storage.transfer import transfer
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.files import new_files
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.operations import Rewrite
from tiltyard.transaction.singletons import singleton
from tiltyard.transaction.succession import PARENT
from tiltyard.transaction.touched import FRAGMENT_REUSE
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.branching import make_branch
from tiltyard.verbs.place import Place
from tiltyard.verbs.refs import Branches

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.transaction import LakeCommit, LakeTransaction

V = TypeVar("V")

_BASED: Final = (DataFile, DeletionFile, IndexMetadata)
"""What names a file, and the base it lies in."""


def line_of(lake: Lake, branch: str) -> str | None:
    """What the tables' own branches are called that a branch of the lake writes to; None for main.

    A name that is used again gets another one, so that nobody goes on where a branch ended that is gone.
    """
    if branch == MAIN:
        return None
    body = lake.catalog.records.get([BRANCHES + branch]).get(BRANCHES + branch)
    if body is None:
        raise NotFound(f"There is no branch {branch!r} in the lake.", name=branch, advice="See lake.branches.list().")
    return f"lake-{branch}-{body['id']}"


def forked(lake: Lake, head: TableHead, branch: str) -> TableHead:
    """The table as a writer on a branch of the lake has to open it: on a branch of its own, made now if there is none yet."""
    line = line_of(lake, branch)
    if line is None or head.branch == line or (head.branch is None and head.home == branch):
        return head
    main = lake.plain_place_of(head)
    source = main.on_branch(head.branch)
    lake.place_of(head, branch).load(head.version, Scheme(head.naming), lazily=True)  # finished, if it was not yet
    try:
        Branches(main).create(line, (head.branch, head.version), kept=True)
    except AlreadyExists:
        if main.on_branch(line).log.head() is None:  # somebody is making it, or died over it
            file = source.load(head.version, Scheme(head.naming))
            try:
                make_branch(main, line, source, file, Scheme(head.naming))
            except AlreadyExists:
                pass
    return replace(head, branch=line)


# ---- back to main ------------------------------------------------------------------------------------------------------------------


def fast_forward(lake: Lake, branch: str) -> LakeCommit:
    """Brings main to where a branch is, in one commit: every version of every table that was written there, in order.

    Raises:
        ExpectedVersionMismatch: a table was changed on main, too, since the branch began.
    """
    other = lake.on_branch(branch)
    begun = lake.branches[branch]
    there, fork = other.catalog.cut(branch), lake.catalog.cut_at(begun.snapshot, begun.origin)
    tx = lake.on_branch(MAIN).transaction(
        message=f"fast-forward to branch {branch}", idempotency_key=f"forward/{begun.id}/{there.snapshot}"
    )
    with tx:
        for head in there.tables.values():
            before = fork.by_id(head.id)
            if before is None:
                tx.take_in(head)
            else:
                _bring(lake, tx, branch, before, head)
        for before in fork.tables.values():
            if there.by_id(before.id) is None:
                _unmoved(tx.cut, before)
                tx.drop_table(shown(before.name))
    assert tx.result is not None
    lake.branches.restart(branch, there.snapshot)
    return tx.result


def _unmoved(main: Cut, before: TableHead) -> TableHead:
    now = main.by_id(before.id)
    if now is None or now.data_version != before.data_version or now.version != before.version:
        actual = None if now is None else now.version
        raise ExpectedVersionMismatch(
            f"{shown(before.name)} was changed on main since the branch began.",
            table=shown(before.name),
            expected=before.version,
            actual=actual,
            operation="fast-forward",
            retryable=False,
            advice="Begin a new branch from main and run the work there again.",
        )
    return now


def _bring(lake: Lake, tx: LakeTransaction, branch: str, before: TableHead, head: TableHead) -> None:
    if head.version == before.version and head.name == before.name:
        return
    _unmoved(tx.cut, before)
    name = shown(before.name)
    if head.version > before.version:
        staged = tx.staged(name)
        _repeat(staged, lake.place_of(head, branch), lake.plain_place_of(head), before.version, head)
    if head.name != before.name:
        tx.rename_table(name, shown(head.name))


def _repeat(staged: StagedPlace, branch: Place, main: Place, start: int, head: TableHead) -> None:
    """Commits the operations of a branch's versions once more, on main, after copying the files they brought."""
    scheme = Scheme(head.naming)
    log = VersionLog(branch.store)
    below = staged.load(start, scheme)
    theirs = branch.load(start, scheme)
    root = _root_id(theirs, main)
    source = main.on_branch(head.branch).store
    for version in range(start + 1, head.version + 1):
        made = log.committed(version, scheme)
        for path in new_files(made.transaction.operation, theirs.manifest):
            for file in [path + one for one in source.names(path)] if path.endswith("/") else [path]:
                transfer(source, file, main.store, file)
        operation = homeward(made.transaction.operation, root)
        plain = {name: value for name, value in made.transaction.properties.items() if name != PARENT}
        again = Transaction(below.manifest.version, staged.runtime.random.uuid(), operation, plain)
        reuse = _added_reuse(theirs, made.file) if isinstance(operation, Rewrite) else None
        _, below = staged.committer.commit(again, below, scheme, RetryPolicy(0), reuse=reuse)
        theirs = made.file


def _added_reuse(before: ManifestFile, after: ManifestFile) -> IndexMetadata | None:
    """What a rewrite left for other indices to follow it by; that stands in the version, not in the transaction."""
    old, new = singleton(before.manifest, FRAGMENT_REUSE), singleton(after.manifest, FRAGMENT_REUSE)
    return new if old is None or new is None or old.uuid != new.uuid else None


def _root_id(file: ManifestFile, main: Place) -> int:
    """The base under which a branch finds the files of the table's root."""
    for base in file.manifest.base_paths:
        if base.path.rstrip("/") == main.lance_uri.rstrip("/"):
            return base.id
    raise CorruptTable(f"version {file.manifest.version}", "the branch does not say where the files of main are")


def homeward(value: V, root: int) -> V:
    """An operation of a branch as it would have been on main: what lies in the table's root needs no base there."""
    if isinstance(value, tuple):
        return cast(V, tuple(homeward(one, root) for one in value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {one.name: new for one, new in _members(value, root)}
    if isinstance(value, _BASED) and value.base_id == root:
        changed["base_id"] = None
    return replace(cast(Any, value), **changed) if changed else value


def _members(value: Any, root: int) -> Iterator[tuple[Any, Any]]:
    for one in fields(value):
        if one.init:
            before = getattr(value, one.name)
            after = homeward(before, root)
            if after is not before and after != before:
                yield one, after
