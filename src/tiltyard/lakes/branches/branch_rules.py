"""The verbs of ``lake.branches`` about protected branches, and about checks of what is to be merged into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiltyard.catalog.protection import (
    BranchCheck,
    BranchProtection,
    checks_in,
    checks_key,
    guard_author,
    protected_tip,
    protection_in,
    with_check,
)
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import tip_key
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.safe_text import check_text
from tiltyard.lakes.recovery.journal import note_rule
from tiltyard.lakes.table_names import check_ref

if TYPE_CHECKING:
    from tiltyard.lake import Lake


class ProtectionVerbs:
    """Rules of branches, and results of checks."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def protect(self, name: str, *, writers: Sequence[str] | None = None, checks: Sequence[str] = ()) -> BranchProtection:
        """Protects a branch, or changes its rule. All later commits through the lake must follow it.

        Commits of foreign writers cannot be prevented: they are adopted, and the history shows their writers.

        Args:
            name: the branch; main, too.
            writers: authors (principals, behind a server) who may commit to it and change the rule; None for all.
            checks: names of checks that a branch must have passed, as it is, before it is merged. With any, rows, columns and names of
                tables change by ``merge`` and ``fast_forward`` alone; compactions and indices stay possible.

        Raises:
            NotFound: there is no such branch.
            ProtectedBranch: it has a rule, and the author is not among its writers.
            InvalidInput: there is nothing in the rule.
        """
        if isinstance(writers, str) or isinstance(checks, str):
            raise InvalidInput("writers and checks are lists of names.", argument="writers")
        if (writers is not None and not writers) or (writers is None and not checks):
            raise InvalidInput("A rule names writers, checks, or both.", argument="writers", advice="lake.branches.unprotect ends it.")
        allowed = None if writers is None else tuple(dict.fromkeys(check_text(writer, "A writer", "writers") for writer in writers))
        rule = BranchProtection(allowed, tuple(dict.fromkeys(check_ref(check, "check") for check in checks)))
        self._change_rule(name, rule)
        return rule

    def unprotect(self, name: str) -> None:
        """Removes the protection of a branch. One that has none stays as it is.

        Raises:
            NotFound: there is no such branch.
            ProtectedBranch: the author is not among its writers.
        """
        self._change_rule(name, None)

    def protection(self, name: str) -> BranchProtection | None:
        """The rule of a branch; None where it has none.

        Raises:
            NotFound: there is no such branch.
        """
        return protection_in(self._tip(name))

    def _change_rule(self, name: str, rule: BranchProtection | None) -> None:
        self._tip(name)
        key = tip_key(name)

        def decide(found: Found) -> Writes[None]:
            if key not in found:
                raise _no_branch(name)
            known = protection_in(found[key])
            if known is not None:
                guard_author(name, known, self._lake.author)
            return Writes(None, {} if known == rule else {key: protected_tip(found[key], rule)})

        self._lake.catalog.records.transact([key], [], decide)
        note_rule(self._lake, name)

    # ---- checks ----------------------------------------------------------------------------------------------------------------

    def report_check(self, name: str, check: str, passed: bool, *, snapshot: int | None = None, detail: str = "") -> BranchCheck:
        """Records the result of a check of a branch, for one snapshot.

        After one more commit the branch is unchecked.

        Args:
            name: the branch that was checked.
            check: what the check is called, in the rule of the branch that it is to be merged into.
            passed: whether it may be merged.
            snapshot: which snapshot of the branch was checked; the latest by default.
            detail: a sentence about the result.

        Raises:
            NotFound: there is no such branch or snapshot.
        """
        check_ref(check, "check")
        tip = self._tip(name)
        line = self._lake.catalog.cut(name).line
        number = int(tip["snapshot"]) if snapshot is None else snapshot
        now = self._lake.catalog.runtime.clock.now()
        said = check_text(detail, "The detail", "detail") if detail else ""
        result = BranchCheck(check, name, number, bool(passed), said, self._lake.author, now)
        key, tip_of = checks_key(line), tip_key(name)

        def decide(found: Found) -> Writes[None]:
            now = found.get(tip_of)
            if now is None or str(now.get("line") or line) != line:
                raise _no_branch(name)
            if not 0 <= number <= int(now["snapshot"]):
                raise NotFound(f"There is no snapshot {number} on branch {name!r}.", name=str(number), advice="See lake.history().")
            return Writes(None, {key: with_check(found.get(key), result)})

        self._lake.catalog.records.transact([key], [tip_of], decide)
        return result

    def checks(self, name: str) -> list[BranchCheck]:
        """The latest result of each check of a branch, by name.

        Raises:
            NotFound: there is no such branch.
        """
        self._tip(name)
        key = checks_key(self._lake.catalog.cut(name).line)
        return checks_in(self._lake.catalog.records.get([key]).get(key), name)

    def _tip(self, name: str) -> Body:
        tip = self._lake.catalog.records.get([tip_key(name)]).get(tip_key(name)) if isinstance(name, str) and name else None
        if tip is None:
            raise _no_branch(name)
        return tip


def _no_branch(name: str) -> NotFound:
    return NotFound(f"There is no branch {name!r} in the lake.", name=str(name), advice="See lake.branches.list().")
