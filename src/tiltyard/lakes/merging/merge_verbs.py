"""The verbs of ``lake.branches`` that bring changes from one snapshot to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.lakes.merging.merge_branches import MergeRequest, merge
from tiltyard.lakes.merging.merge_values import MergeOptions, MergeResult, OnConflict, settlement_of

if TYPE_CHECKING:
    from tiltyard.lake import Lake


Picked = Literal["cherry-pick", "revert", "restore"]
_NAMED = 4
"""Transactions that a message names."""


class MergeVerbs:
    """Merge, rebase, cherry-pick, revert and restore, each one commit over all tables."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        on_conflict: OnConflict = "fail",
        message: str | None = None,
        dry_run: bool = False,
        options: MergeOptions | None = None,
    ) -> MergeResult:
        """Merges a branch into another, in one commit.

        The branch stays as it is, and can be merged again later.

        The common ancestor, the target and the branch are compared table by table. What only the branch changed is applied to the target as
        it is; where both changed a table, rows are identified by their files, primary keys or stable row ids. Files of the branch become
        part of the target's tables where they are.

        Args:
            source: the branch to be merged.
            into: the branch that changes.
            on_conflict: ``"fail"`` refuses the merge; ``"ours"`` and ``"theirs"`` resolve conflicts for the target or for the branch;
                or answers by table: one of the two, or ``ty.merges.Resolution`` values for some of its rows.
            message: for the history.
            dry_run: whether to report only what would be done, with all conflicts.
            options: the snapshots that are expected, and the isolation.

        Raises:
            MergeConflict: both changed the same things, or it is not known whether they did. Nothing was committed.
            ExpectedVersionMismatch: the branch or the target is not at that snapshot.
            ProtectedBranch: the rule of the target does not allow it.
            NotFound: there is no such branch.
            InvalidInput: the two have no common ancestor that still exists.
            ContentionError: others commit to the target too fast.
        """
        for name in (source, into):
            _check_branch(self._lake, name)
        return merge(self._lake, MergeRequest(source, into, settlement_of(on_conflict), message, dry_run, options or MergeOptions()))

    def rebase(
        self,
        branch: str,
        onto: str | None = None,
        *,
        on_conflict: OnConflict = "fail",
        message: str | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Brings a branch up to date with its target, in one commit.

        Its own changes and its history stay.

        The branch then has all that the target has, and what differs between the two is the branch's work alone: ``lake.diff(onto,
        branch)`` shows it, and a merge of the branch applies it. The target stays as it is.

        Args:
            branch: the branch that changes.
            onto: the branch whose changes it gets; the one it was made from by default.
            on_conflict: as for ``merge``: ``"ours"`` is what the branch has, ``"theirs"`` what ``onto`` has.
            message: for the history.
            dry_run: whether to report only what would be done, with all conflicts.

        Raises:
            MergeConflict: both changed the same things, or it is not known whether they did. Nothing was committed.
            NotFound: there is no such branch.
            InvalidInput: it is main or ``onto`` itself, or the two have no common ancestor that still exists.
        """
        _check_branch(self._lake, branch)
        if branch in (MAIN, onto):
            what = "onto itself" if branch == onto else "since it was made from no other"
            raise InvalidInput(
                f"{branch!r} cannot be rebased {what}.", argument="branch", advice="Use lake.branches.merge to merge branches into it."
            )
        target = self._lake.branches[branch].origin if onto is None else onto
        _check_branch(self._lake, target)
        return merge(self._lake, MergeRequest(target, branch, settlement_of(on_conflict), message, dry_run=dry_run, kind="rebase"))

    def cherry_pick(
        self,
        source: str,
        snapshot: int,
        into: str = MAIN,
        *,
        on_conflict: OnConflict = "fail",
        message: str | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Applies what one snapshot of a branch changed to another branch, in one commit.

        The rules are those of a merge.

        A later merge of the branch has these changes on both sides; by key or stable row id they are no conflict.

        Args:
            source, snapshot: the branch, and the number of its snapshot.
            into: the branch that changes.
            on_conflict, message, dry_run: as for ``merge``.

        Raises:
            MergeConflict: the target changed the same things since.
            NotFound: there is no such branch or snapshot.
        """
        return self._picked("cherry-pick", source, snapshot, into, on_conflict, message, dry_run)

    def revert(
        self,
        snapshot: int,
        branch: str = MAIN,
        *,
        on_conflict: OnConflict = "fail",
        message: str | None = None,
        dry_run: bool = False,
        all_writers: bool = False,
    ) -> MergeResult:
        """Reverts what one snapshot of a branch changed, in one commit; later changes stay.

        Commits that waited for the same table may be in one snapshot. It is reverted as a whole, and only if that is asked for.

        Args:
            snapshot: its number.
            branch: the branch.
            on_conflict, message, dry_run: as for ``merge``.
            all_writers: whether to revert a snapshot in which transactions of several writers were committed together.

        Raises:
            MergeConflict: later snapshots changed the same things.
            NotFound: there is no such branch or snapshot.
            InvalidInput: the snapshot has more than one transaction, and ``all_writers`` was not given.
        """
        self._check_snapshot(branch, snapshot)
        if not all_writers:
            self._check_alone(branch, snapshot)
        return self._picked("revert", branch, snapshot, branch, on_conflict, message, dry_run)

    def _check_alone(self, branch: str, snapshot: int) -> None:
        """Refuses a snapshot that has commits of several writers: whoever takes back one of them may not know of the others."""
        together = self._lake.catalog.snapshot(snapshot, branch).transactions
        if len(together) > 1:
            named = ", ".join(together[:_NAMED]) + (f" and {len(together) - _NAMED} more" if len(together) > _NAMED else "")
            raise InvalidInput(
                f"Snapshot {snapshot} has {len(together)} transactions, which were committed together: {named}.",
                argument="snapshot",
                advice="See lake.history() for who wrote them. all_writers=True (--all-writers) takes back all of them; "
                "to take back one, delete its rows.",
            )

    def restore(self, snapshot: int, branch: str = MAIN, *, message: str | None = None, dry_run: bool = False) -> MergeResult:
        """Restores the content that all tables of a branch had at a snapshot, in one commit.

        The history stays.

        Tables that were created since are dropped, and those that were dropped come back.

        Args:
            snapshot: its number.
            branch: the branch.
            message, dry_run: as for ``merge``.

        Raises:
            NotFound: there is no such branch or snapshot.
        """
        return self._picked("restore", branch, snapshot, branch, "fail", message, dry_run)

    def _picked(
        self, kind: Picked, source: str, snapshot: int, into: str, on_conflict: OnConflict, message: str | None, dry_run: bool
    ) -> MergeResult:
        _check_branch(self._lake, into)
        self._check_snapshot(source, snapshot)
        settle = settlement_of(on_conflict)
        return merge(self._lake, MergeRequest(source, into, settle, message, dry_run=dry_run, kind=kind, snapshot=snapshot))

    def _check_snapshot(self, branch: str, snapshot: int) -> None:
        _check_branch(self._lake, branch)
        if isinstance(snapshot, bool) or not isinstance(snapshot, int) or snapshot < 1:
            raise InvalidInput(f"A snapshot is a number of at least 1, not {snapshot!r}.", argument="snapshot")


def _check_branch(lake: Lake, name: str) -> None:
    if not isinstance(name, str) or name not in lake.branches:
        raise NotFound(f"There is no branch {name!r} in the lake.", name=str(name), advice="See lake.branches.list().")
