"""What a process leaves behind that died, and that neither a version nor a transaction tells of: only its age says that nobody works on it.

These are files under temporary names, a branch's name without a branch, and a branch's files without its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tiltyard.errors import NotFound
from tiltyard.format.refs import branch_path, branch_root, parse_ref_file_name
from tiltyard.interfaces import KeepsTemporaries, ObjectInfo
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import BRANCHES, Branches, Tags

OWN: Final = ("data/", "_deletions/", "_indices/", "_transactions/", "_versions/", "_refs/", "_tiltyard/")
"""Directories of a table. Whatever lies elsewhere belongs to somebody else, whatever it is called."""
TREE: Final = "tree/"
_IN_BRANCH: Final = re.compile(rf"({TREE}.+?)/(?:{'|'.join(literal.rstrip('/') for literal in OWN)})/.+")

UNFINISHED: Final = "a file that was being written, untouched for longer than the time of grace"
BEING_WRITTEN: Final = "a file that is being written, or was a short while ago"
UNMADE: Final = "the name of a branch that was never made"
NAMELESS: Final = "of a branch that was removed or never made"
YOUNG_BRANCH: Final = "of a branch that is being made or removed, or was a short while ago"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file, of which kind, and why it goes or stays for now."""

    kind: str
    path: str
    size: int
    goes: bool
    reason: str


def leftovers(access: TableAccess, main: TableAccess, now: datetime, grace: timedelta) -> Iterator[Leftover]:
    """Leftovers of a line of history; with those of the main line come those of branches that are none.

    Args:
        access: the line.
        main: the main line.
        now: the time.
        grace: how long a file must have been left alone.
    """
    for info in _temporary(access, OWN):
        goes = now - info.modified >= grace
        yield Leftover("temporary", info.path, info.size, goes, UNFINISHED if goes else BEING_WRITTEN)
    if access.branch is None and _all_names_known(main):
        used = _used(main)
        names = list(_unmade(main, used, now, grace))
        yield from names
        yield from _nameless(main, used, {name.path for name in names if name.goes}, now, grace)


def _temporary(access: TableAccess, directories: Iterable[str]) -> Iterator[ObjectInfo]:
    if isinstance(access.store, KeepsTemporaries):
        for directory in directories:
            yield from access.store.temporary(directory)


def _all_names_known(main: TableAccess) -> bool:
    """Whether every file that may name a branch is one we can read: else we would miss its branch."""
    return all(parse_ref_file_name(name) is not None for name in main.store.names(BRANCHES))


def _used(main: TableAccess) -> set[str | None]:
    """Branches that a tag or another branch is based on."""
    tags, branches = Tags(main), Branches(main)
    used: set[str | None] = set()
    for name in tags:
        with suppress(NotFound):  # dropped while we looked
            used.add(tags[name].branch)
    for name in branches:
        with suppress(NotFound):
            used.add(branches[name].parent_branch)
    return used


def _unmade(main: TableAccess, used: set[str | None], now: datetime, grace: timedelta) -> Iterator[Leftover]:
    """Names come first when a branch is made, and its version last."""
    for name in Branches(main):
        if name in used or main.on_branch(name).log.versions():
            continue
        with suppress(NotFound):
            info = main.store.head(branch_path(name))
            goes = now - info.modified >= grace
            yield Leftover("branches", info.path, info.size, goes, UNMADE if goes else YOUNG_BRANCH)


def _nameless(main: TableAccess, used: set[str | None], going: set[str], now: datetime, grace: timedelta) -> Iterator[Leftover]:
    """Names go first when a branch is removed; and stock writers write them last when they make one."""
    found: dict[str, list[ObjectInfo]] = {}
    for info in (*main.store.list(TREE), *_temporary(main, (TREE,))):
        match = _IN_BRANCH.fullmatch(info.path)
        if match is not None:
            found.setdefault(match[1], []).append(info)
    # Names are asked for after the files: a branch that was made meanwhile has its name by now.
    for name in (*(Branch for Branch in Branches(main) if branch_path(Branch) not in going), *used):
        found.pop(branch_root(name), None)
    for infos in found.values():
        goes = now - max(info.modified for info in infos) >= grace
        for info in sorted(infos, key=lambda info: (not info.path.endswith(".manifest"), info.path)):
            yield Leftover("branches", info.path, info.size, goes, NAMELESS if goes else YOUNG_BRANCH)
