"""A shallow clone of a whole lake: a new lake, all of whose tables name the files of a snapshot of this one, made in one commit.

The order: the snapshot is tagged here, so that no cleanup of this lake takes files that the clone names; the directories of the new tables
are made, each with its owner file and a first version; then one step of the new catalog shows all of them. A process that dies before
that leaves an empty lake and a tag: the same call goes on from there, and a cleanup of the clone removes what nobody finished.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import MAIN, Change, Publication, TableHead, VersionStep
from tiltyard.catalog.marks import write_owner
from tiltyard.catalog.publishing import StaleError
from tiltyard.errors import AlreadyExists, InvalidInput
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.lakes.finishing import finish_before, load_head
from tiltyard.lakes.recovery.journal import note_names
from tiltyard.lakes.table_names import directory_of, is_within, resolved, shown
from tiltyard.transaction.operations import Clone
from tiltyard.verbs.clone import Cloning, clone_table
from tiltyard.verbs.engine.access import open_access

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_snapshot import LakeSnapshot

BASES: Final = "bases"
"""In what a lake says of itself: places outside of it that its tables may name files in."""


@dataclass(frozen=True, slots=True)
class LakeClone:
    """A clone of a lake.

    Attributes:
        uri: where it is.
        lake: its id.
        source_snapshot: the snapshot of the other lake that it was made of.
        tag: the tag there that keeps the files; delete it when the clone is gone.
        snapshot: the first snapshot of the clone.
        tables: their names.
    """

    uri: str
    lake: str
    source_snapshot: int
    tag: str
    snapshot: int
    tables: tuple[str, ...]


def clone_lake(source: Lake, target: Lake, shot: LakeSnapshot, uri: str | os.PathLike[str], message: str | None) -> LakeClone:
    """See ``Lake.clone``. The target is open and empty."""
    if resolved(source.root_uri) == resolved(target.root_uri) or is_within(resolved(target.root_uri), resolved(source.root_uri)):
        raise InvalidInput("A clone cannot be inside the lake that it is made from.", argument="uri")
    cut = target.catalog.cut(MAIN)
    if cut.snapshot or cut.tables:
        raise AlreadyExists(f"There is a lake with tables at {target.url} already.", name=target.url)
    tag = _kept(source, target, shot)
    for head in shot.cut.tables.values():
        finish_before(source, shot.cut, head, shot.branch)
    _trust(source, target, shot)
    transaction = target.catalog.runtime.random.uuid()
    changes = [_cloned(source, target, shot, head, transaction) for head in shot.cut.tables.values()]
    publication = Publication(
        transaction, tuple(changes), MAIN, author=target.author, message=message or f"clone of snapshot {shot.id} of {source.url}",
        properties={"cloned-from": f"{shot.branch}@{shot.id} {source.id}"}, base=0, line=cut.line, blind=True,
    )  # fmt: skip
    try:
        done = target.catalog.publish(publication)
    except StaleError:
        raise AlreadyExists(f"Another process made tables in the lake at {target.url} meanwhile.", name=target.url) from None
    note_names(target, MAIN, done.snapshot, transaction)
    names = tuple(sorted(shown(head.name) for head in shot.cut.tables.values()))
    return LakeClone(os.fspath(uri), target.id, shot.id, tag, done.snapshot, names)


def _kept(source: Lake, target: Lake, shot: LakeSnapshot) -> str:
    """Tags the snapshot, once for each clone; an attempt that died may have done so for another snapshot."""
    name = f"clone-{target.id[:8]}"
    known = source.tags.find(name)
    if known is not None and (known.branch, known.snapshot, known.line) != (shot.branch, shot.id, shot.cut.line):
        source.tags.delete(name)
        known = None
    if known is None:
        source.on_branch(shot.branch).tags.create(name, shot.id)
    return name


def _trust(source: Lake, target: Lake, shot: LakeSnapshot) -> None:
    """Lets the new lake read where the files are: below the other one's root, at tables outside of it, and where that one may read."""
    outside = [source.uri_of(head.location) for head in shot.cut.tables.values()]
    wanted: Sequence[str] = [source.root_uri, *outside, *map(str, source.where.storage.allowed_bases)]
    roots = [resolved(place) for place in wanted]
    bases = [place for number, place in enumerate(roots) if not any(is_within(place, other) for other in roots[:number])]
    target.catalog.amend({BASES: bases})
    target.where = replace(target.where, storage=replace(target.where.storage, allowed_bases=tuple(bases)))


def _cloned(source: Lake, target: Lake, shot: LakeSnapshot, head: TableHead, transaction: str) -> Change:
    access = source.access_of(head, shot.branch)
    file, _ = load_head(access, head)
    table = target.catalog.runtime.random.uuid()
    made = TableHead(table, head.name, directory_of(head.name, table), 0, 0)
    marks = target.marks_of(made, MAIN, 0, transaction)
    there = open_access(target.uri_of(made.location), target.where.storage, runtime=target.catalog.runtime)
    write_owner(there, marks, target.catalog.cut(MAIN).line)
    how = Cloning(shallow=True, config=marks.config())
    done = clone_table(
        replace(access, store=source.plain_access_of(head).on_branch(head.branch).store), file, there, how, marks.properties()
    )
    path = manifest_path(done.version, Scheme.V2)
    step = VersionStep(done.version, path, None, done.transaction_id, Clone.name)
    return Change(table, "create", head.name, 0, 0, (step,), made.location, Scheme.V2.value)
