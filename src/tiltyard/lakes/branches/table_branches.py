"""Branches of a lake, table by table: a table gets a branch of its own when it is first opened there to write."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.line_identity import owns, table_branch
from tiltyard.errors import AlreadyExists, NotFound, StorageError
from tiltyard.format.names import Scheme
from tiltyard.lakes.finishing import load_head
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import Branches, make_branch

if TYPE_CHECKING:
    from tiltyard.lake import Lake

_TRIES: Final = 16
"""How often a fork may turn out to be unmade by whoever was making it."""


def forked(lake: Lake, head: TableHead, branch: str, line: str, *, unused: bool = False) -> TableHead:
    """The table as a writer on a line of the lake has to open it that does not own its branch: on one of its own, made now or found.

    Args:
        lake: the lake.
        head: the table as the line has it.
        branch, line: the branch of the lake, and which line of that name, as they were read together with the head. Another line may have
            the name by now; what is forked here then serves nobody, and goes with the next cleanup.
        unused: whether one that has later versions will not do, for a table that the line wrote to before, and dropped since.
    """
    main = lake.plain_access_of(head)
    load_head(lake.access_of(head, branch), head)  # finished, if it was not yet
    number, unmade = 1, 0
    while unmade < _TRIES:
        name = table_branch(branch, line, number)
        try:
            if _fork(main, head, name, unused=unused):
                return replace(head, branch=name, owner=line)
            number += 1  # made for a table that was here before, and that this line has dropped since
        except NotFound:
            unmade += 1  # whoever was making it took it back
    raise StorageError(
        f"Other processes create and delete the branch of {head.name} for {branch} repeatedly.", name=head.name, transient=True
    )


def is_written(lake: Lake, head: TableHead, branch: str, line: str) -> bool:
    """Whether there are versions above a head where a line of the lake would write to it."""
    main = lake.plain_access_of(head)
    if owns(head, branch, line):
        return _is_above(main.on_branch(head.branch), head)
    forks = Branches(main)
    for number in count(1):
        try:
            known = forks[name := table_branch(branch, line, number)]
        except NotFound:
            break
        if (known.parent_branch, known.parent_version) == (head.branch, head.version) and _is_above(main.on_branch(name), head):
            return True
    return False


def _is_above(access: TableAccess, head: TableHead) -> bool:
    latest = access.log.head()
    return latest is not None and latest[0] > head.version


def _fork(main: TableAccess, head: TableHead, name: str, *, unused: bool) -> bool:
    """Makes a branch of a table at the version of a head, or finds it; False where it was made of another version, or was used."""
    source, scheme = main.on_branch(head.branch), Scheme(head.naming)
    branches = Branches(main)
    try:
        branches.create(name, (head.branch, head.version), kept=True)
    except AlreadyExists:
        known = branches[name]
        if (known.parent_branch, known.parent_version) != (head.branch, head.version):
            return False
        if unused and _is_above(main.on_branch(name), head):
            return False
        if main.on_branch(name).log.head() is None:  # somebody is making it, or died over it
            try:
                make_branch(main, name, source, source.load(head.version, scheme), scheme)
            except AlreadyExists:
                pass
    return True
