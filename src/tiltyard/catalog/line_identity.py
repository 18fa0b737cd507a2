"""Identity of lines of history: a name of a branch can be used again, the id of a line cannot.

Main and every branch of the lake are lines. A branch that is made, or that begins anew after a fast-forward, is another line. Each branch
of a table (its main one included) that a head names has one owner, the only line that writes to it; all others fork it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tiltyard.catalog.lake_values import MAIN, Change, Cut, Moved, TableHead
from tiltyard.catalog.records import Body, Found, Records
from tiltyard.catalog.value_codec import BRANCHES, LAKE, head_from_body, head_to_body, tip_key

LINE_DIGITS: Final = 8
"""Hexadecimal digits of a line's id; it is part of the names of tables' branches."""


def new_line(uuid: str) -> str:
    """The id of a new line, from a random UUID."""
    return uuid.replace("-", "")[:LINE_DIGITS]


def root_key(branch: str) -> str:
    """The record of where the ancestors of a branch left main: main's heads as of then."""
    return f"root/{branch}"


def root_body(line: str, tables: list[Body]) -> Body:
    return {"line": line, "tables": tables}


def ended_body(at: str, line: str, heads: Iterable[Body]) -> Body:
    """The record that a line of history has ended: when, and up to which versions the catalog knew the tables' branches it wrote to."""
    own = [head for head in heads if str(head.get("branch") or "")[-LINE_DIGITS:] == line[-LINE_DIGITS:]]
    return {"at": at, "known": {place_of(str(head["location"]), str(head["branch"])): int(head["version"]) for head in own}}


def place_of(location: str, branch: str) -> str:
    """Where a table's branch lies, as the record of an ended line has it."""
    return f"{location}/tree/{branch}"


def line_in(tip: Body | None, records: Records, branch: str) -> str:
    """The id of a line of history, from its tip; in a lake of an earlier release from the record of the branch or of the lake."""
    if tip is not None and tip.get("line"):
        return str(tip["line"])
    key = LAKE if branch == MAIN else BRANCHES + branch
    body = records.get([key]).get(key)
    return "" if body is None else new_line(str(body["id"]))


def table_branch(branch: str, line: str, number: int = 1) -> str:
    """What a table's own branch is called that a line of the lake writes to. The number tells it from others of the same line."""
    return f"lake-{branch}-{line}" if number == 1 else f"lake-{branch}.{number}-{line}"


def owns(head: TableHead, branch: str, line: str) -> bool:
    """Whether a line of the lake may write to the branch of a table that a head names, or has to fork it first."""
    if head.owner:
        return head.owner == line
    if branch == MAIN or head.branch is None:
        return head.home == branch
    return head.branch == table_branch(branch, line)


def owned(head: TableHead, owner: str) -> TableHead:
    """The head with its owner noted, if an earlier release did not."""
    return head if head.owner else replace(head, owner=owner)


def own_head(head: TableHead, branch: str, line: str) -> TableHead | None:
    """The head as a writer on a line of the lake has to open it; None where it has to be forked first."""
    return owned(head, line) if owns(head, branch, line) else None


def is_line(found: Found, branch: str, line: str) -> bool:
    """Whether the branch whose tip was locked is still that line. A tip of an earlier release does not say."""
    tip = found.get(tip_key(branch))
    return tip is not None and (not line or str(tip.get("line") or line) == line)


def moved_line(branch: str, expected: int, tip: Body | None) -> Moved:
    """Says that a branch of the lake is another line than a publication was built on."""
    return Moved("", branch, "line", expected, None if tip is None else int(tip["snapshot"]))


def differs(change: Change, head: TableHead, branch: str, line: str) -> bool:
    """Whether a head with the right number is not what a change was built on, or belongs to another line that the change would write to."""
    if change.base_branch is not None and change.base_branch != (head.branch or ""):
        return True
    if change.base_transaction and head.transaction and change.base_transaction != head.transaction:
        return True
    in_place = bool(change.steps) and (change.branch or head.branch) == head.branch
    return in_place and bool(line) and not owns(head, branch, line)


def same_version(one: TableHead, other: TableHead) -> bool:
    """Whether two heads name the same version of the same branch of a table, by number and by the transaction that made it."""
    if (one.branch, one.version) != (other.branch, other.version):
        return False
    return not one.transaction or not other.transaction or one.transaction == other.transaction


def heads_of(body: Mapping[str, Any]) -> dict[str, TableHead]:
    """Tables by id, from a record that lists heads."""
    return {str(item["id"]): head_from_body(item) for item in body["tables"]}


def bodies_of(cut: Cut) -> list[Body]:
    """The heads of a cut as records, each with its owner."""
    return [head_to_body(owned(head, cut.line)) for head in cut.tables.values()]
