"""Branches of a lake, table by table: a table gets a branch of its own when it is first opened there to write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.line_identity import table_branch
from tiltyard.errors import AlreadyExists, NotFound, StorageError
from tiltyard.format.names import Scheme
from tiltyard.lakes.finishing import load_head
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import Branches, make_branch

if TYPE_CHECKING:
    from tiltyard.lake import Lake

_TRIES: Final = 16
"""How often a fork may turn out to be another one, or to be unmade by whoever was making it."""


def forked(lake: Lake, head: TableHead, branch: str, line: str) -> TableHead:
    """The table as a writer on a line of the lake has to open it that does not own its branch: on one of its own, made now or found.

    Args:
        lake: the lake.
        head: the table as the line has it.
        branch, line: the branch of the lake, and which line of that name, as they were read together with the head. Another line may have
            the name by now; what is forked here then serves nobody, and goes with the next cleanup.
    """
    main = lake.plain_access_of(head)
    load_head(lake.access_of(head, branch), head)  # finished, if it was not yet
    number = 1
    for _ in range(_TRIES):
        name = table_branch(branch, line, number)
        try:
            if _fork(main, head, name):
                return replace(head, branch=name, owner=line)
        except NotFound:
            continue  # whoever was making it took it back
        number += 1  # made for a table that was here before, and that this line has dropped since
    raise StorageError(
        f"Other processes create and delete the branch of {head.name} for {branch} again and again.", name=head.name, transient=True
    )


def _fork(main: TableAccess, head: TableHead, name: str) -> bool:
    """Makes a branch of a table at the version of a head, or finds it; False where it was made of another version."""
    source, scheme = main.on_branch(head.branch), Scheme(head.naming)
    branches = Branches(main)
    try:
        branches.create(name, (head.branch, head.version), kept=True)
    except AlreadyExists:
        known = branches[name]
        if (known.parent_branch, known.parent_version) != (head.branch, head.version):
            return False
        if main.on_branch(name).log.head() is None:  # somebody is making it, or died over it
            try:
                make_branch(main, name, source, source.load(head.version, scheme), scheme)
            except AlreadyExists:
                pass
    return True
