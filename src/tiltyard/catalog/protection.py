"""Protected branches: who may write to a line of history, and which checks what is merged into it must have passed.

The rule is part of the tip's record, which every step on a branch locks and looks at anyway: so nothing gets past it that goes through
the catalog, and it costs no read. It ends with the branch; a branch made again under the name begins without.

Results of checks are one record for each line, ``checks/<line>``, the latest of each name with the snapshot that it was about.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.records import Body, Found
from tiltyard.catalog.value_codec import PROTECTED
from tiltyard.errors import ProtectedBranch


@dataclass(frozen=True, slots=True)
class BranchProtection:
    """The rule of a protected branch.

    Attributes:
        writers: authors who may commit to the branch, and change the rule; None for all.
        checks: what must have passed for a branch before it is merged; with any, rows and columns change by merges and fast-forwards
            alone.
    """

    writers: tuple[str, ...] | None = None
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchCheck:
    """The result of a check of a branch.

    Attributes:
        name: of the check.
        branch: the branch that was checked.
        snapshot: of that branch; a result is about this one alone.
        passed: whether it may be merged.
        detail: a sentence about the result.
        author, at: who reported it, and when.
    """

    name: str
    branch: str
    snapshot: int
    passed: bool
    detail: str
    author: str
    at: datetime


def checks_key(line: str) -> str:
    """The record of all checks of a line of history."""
    return f"checks/{line}"


def protection_in(tip: Body | None) -> BranchProtection | None:
    """The rule of a branch, from its tip."""
    body = (tip or {}).get(PROTECTED)
    if body is None:
        return None
    writers = body.get("writers")
    return BranchProtection(None if writers is None else tuple(map(str, writers)), tuple(map(str, body.get("checks", ()))))


def protected_tip(tip: Body, rule: BranchProtection | None) -> dict[str, Any]:
    """A tip with another rule, or with none."""
    left = {key: value for key, value in tip.items() if key != PROTECTED}
    return left if rule is None else {**left, PROTECTED: asdict(rule)}


def checks_in(body: Body | None, branch: str) -> list[BranchCheck]:
    """Reads the record of a line's checks."""
    return [
        BranchCheck(
            name, branch, int(result["snapshot"]), bool(result["passed"]), str(result["detail"]), str(result["author"]),
            datetime.fromisoformat(result["at"]),
        )
        for name, result in sorted((body or {}).items())
    ]  # fmt: skip


def with_check(body: Body | None, check: BranchCheck) -> dict[str, Any]:
    """The record with the result of one more check."""
    kept = {"snapshot": check.snapshot, "passed": check.passed, "detail": check.detail, "author": check.author, "at": check.at.isoformat()}
    return {**(body or {}), check.name: kept}


def passed_at(found: Found, line: str, snapshot: int) -> frozenset[str]:
    """Names of the checks that a snapshot of a line has passed. Results about earlier snapshots do not count."""
    return frozenset(check.name for check in checks_in(found.get(checks_key(line)), "") if check.passed and check.snapshot == snapshot)


def guard(publication: Publication, tip: Body, passed: Collection[str] = ()) -> None:
    """Lets a publication through, if the rule of its branch allows it.

    Args:
        publication: what is to be committed.
        tip: of its branch, as it was locked.
        passed: checks that what it brings has passed.

    Raises:
        ProtectedBranch: it does not.
    """
    rule = protection_in(tip)
    foreign = bool(publication.changes) and all(change.kind == "adopt" for change in publication.changes)
    if rule is None or publication.noted or foreign:
        return  # what has happened is noted: refusing it would not undo it
    guard_author(publication.branch, rule, publication.author)
    missing = tuple(name for name in rule.checks if name not in passed)
    if missing and any(change.changes_names or any(step.content for step in change.steps) for change in publication.changes):
        raise ProtectedBranch(
            f"Branch {publication.branch!r} is protected: what is merged into it must have passed {', '.join(missing)[:100]}.",
            branch=publication.branch, author=publication.author, writers=rule.writers or (), checks=missing,
            advice="Nothing was committed. Work on a branch, have it checked as it is, and merge it.",
        )  # fmt: skip


def guard_author(branch: str, rule: BranchProtection, author: str) -> None:
    """Refuses authors that a rule does not name.

    Raises:
        ProtectedBranch: it does not.
    """
    if rule.writers is not None and author not in rule.writers:
        raise ProtectedBranch(
            f"Branch {branch!r} is protected: {author[:60]!r} may not write to it.", branch=branch, author=author, writers=rule.writers,
            checks=rule.checks, advice="Nothing was committed. Work on a branch, and ask one of its writers to merge it.",
        )  # fmt: skip
