"""The journal of names, read back: which tables a branch had right after some snapshot, and which tags and branches there were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.marks import Says
from tiltyard.catalog.protection import BranchProtection
from tiltyard.errors import InvalidInput
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.branches.lake_refs import LakeBranch, LakeTag
from tiltyard.lakes.recovery.journal import BRANCH_FILES, RULES, TAGS, entries, read_entry
from tiltyard.lakes.table_names import check_ref, full_name, shown


@dataclass(frozen=True, slots=True)
class NotedNames:
    """All tables of one branch of the lake right after a snapshot.

    Attributes:
        branch, branch_id: the branch; no id for main.
        snapshot, transaction: the commit that it was written for, which was committed for certain.
        as_of: the snapshot that the tables are of: that one, or a later one.
        at, author, says: when, who, and what he said of it.
        tables: by id.
    """

    branch: str
    branch_id: str
    snapshot: int
    transaction: str
    as_of: int
    at: datetime
    author: str
    says: Says
    tables: Mapping[str, TableHead]


@dataclass(frozen=True, slots=True)
class NotedRule:
    """The rule of a branch, or that it has none any more.

    Attributes:
        branch, branch_id: the branch; no id for main.
        since: when that was written down.
        rule: None where it was ended.
    """

    branch: str
    branch_id: str
    since: datetime
    rule: BranchProtection | None


@dataclass(frozen=True, slots=True)
class Noted:
    """All that the journal says.

    Attributes:
        names: of each branch, the lowest snapshot first.
        tags, branches: those that are there, and names of those that were deleted.
        rules: of protected branches, and of those that were protected.
        ended: names and ids of lines of history that were deleted or began anew, with the versions that whoever ended them knew.
        unreadable: files that are no longer what they were.
    """

    names: Mapping[str, tuple[NotedNames, ...]]
    tags: Mapping[str, LakeTag | None]
    branches: Mapping[str, LakeBranch | None]
    rules: tuple[NotedRule, ...] = ()
    ended: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def read_journal(root: ObjectStore, lake: str) -> Noted:
    """What the journal below a root says of one lake; what it says of others is passed over."""
    names: dict[str, list[NotedNames]] = {}
    unreadable: list[str] = []
    for entry in entries(root):
        body = read_entry(root, entry.path)
        found = None if body is None or body.get("lake") != lake else _names(body)
        if found is not None:
            names.setdefault(found.branch, []).append(found)
        elif body is None or body.get("lake") == lake:
            unreadable.append(entry.path)
    tags = {name: _tag(body) for name, body in _refs(root, TAGS, lake, unreadable)}
    noted = dict(_refs(root, BRANCH_FILES, lake, unreadable))
    branches = {name: _branch(body) for name, body in noted.items()}
    ended = {(name, str(line)): _known(body, str(line)) for name, body in noted.items() for line in _list(body.get("ended"))}
    ordered = {branch: tuple(sorted(found, key=lambda one: (one.as_of, one.snapshot))) for branch, found in names.items()}
    rules = tuple(_rule(body) for _, body in _refs(root, RULES, lake, unreadable))
    return Noted(ordered, tags, branches, rules, ended, tuple(unreadable))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _known(body: Mapping[str, Any], line: str) -> dict[str, int]:
    """Up to which versions the tables' branches of an ended line were known; nothing where an earlier release ended it."""
    known = body.get("known")
    versions = known.get(line) if isinstance(known, Mapping) else None
    return {place: number for place, number in versions.items() if isinstance(number, int)} if isinstance(versions, Mapping) else {}


def _names(body: Mapping[str, Any]) -> NotedNames | None:
    try:
        heads = [
            TableHead(
                str(table["id"]),
                full_name(shown(str(name))),
                str(table["location"]),
                int(table["version"]),
                int(table["version"]),
                str(table["naming"]),
                None if table["branch"] is None else str(table["branch"]),
                str(table["home"]),
            )
            for name, table in body["tables"].items()
        ]
        return NotedNames(
            str(body["branch"]),
            str(body["branch_id"]),
            int(body["snapshot"]),
            str(body["transaction"]),
            int(body["as_of"]),
            datetime.fromisoformat(body["at"]),
            str(body["author"]),
            Says.from_text(str(body.get("says", ""))),
            {head.id: head for head in heads},
        )
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput):
        return None


def _refs(root: ObjectStore, prefix: str, lake: str, unreadable: list[str]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for info in root.list(prefix):
        body = read_entry(root, info.path)
        try:
            if body is None:
                raise ValueError("not a JSON object")
            if body.get("lake") == lake:
                name = check_ref(str(body["name"]), "tag")
                datetime.fromisoformat(body["created"])
                int(body["snapshot"])
                yield name, body
        except (KeyError, TypeError, ValueError, InvalidInput):
            unreadable.append(info.path)


def _tag(body: Mapping[str, Any]) -> LakeTag | None:
    if body.get("deleted"):
        return None
    return LakeTag(str(body["name"]), int(body["snapshot"]), str(body["branch"]), datetime.fromisoformat(body["created"]))


def _rule(body: Mapping[str, Any]) -> NotedRule:
    writers, checks = body.get("writers"), body.get("checks")
    rule = BranchProtection(
        tuple(map(str, writers)) if isinstance(writers, list) else None, tuple(map(str, checks)) if isinstance(checks, list) else ()
    )
    since = datetime.fromisoformat(body["created"])
    return NotedRule(str(body["name"]), str(body.get("id", "")), since, None if body.get("deleted") else rule)


def _branch(body: Mapping[str, Any]) -> LakeBranch | None:
    if body.get("deleted"):
        return None
    created = datetime.fromisoformat(body["created"])
    return LakeBranch(str(body["name"]), str(body["origin"]), int(body["snapshot"]), created, str(body["id"]))
