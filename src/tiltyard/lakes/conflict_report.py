"""The error that says which table others moved, who they were and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Moved, Snapshot, SnapshotMember
from tiltyard.errors import ConflictError, ExpectedVersionMismatch, HistoryUnavailable, OutcomeUnknown, TiltyardError, fit
from tiltyard.lakes.table_names import shown

_LOOKED_AT: Final = 64
"""How many of the newest snapshots are searched for who it was."""


def mismatch(catalog: Catalog, branch: str, base: int, transaction: str, moved: Moved) -> ExpectedVersionMismatch:
    """A table is not where a transaction expects it.

    Args:
        catalog: of the lake.
        branch: the line of history.
        base: the snapshot the transaction sees.
        transaction: its id.
        moved: which table, and where it is.
    """
    if moved.kind == "line":
        return _another_line(transaction, moved)
    by = moved_by(catalog, branch, base, moved.table)
    name = shown(moved.name)
    last = f", last by {by[-1]['operation']} of {by[-1]['author'] or 'an unknown author'}" if by else ""
    return ExpectedVersionMismatch(
        f"{_what(moved, transaction)}{last}.",
        table=name,
        expected=moved.expected,
        actual=moved.actual,
        cause=moved.kind,
        by=by,
        operation="transaction",
        read_version=moved.expected,
        retryable=moved.kind != "incompatible",
        advice="Begin a new transaction, or use lake.run(fn), which does.",
    )


def _what(moved: Moved, transaction: str) -> str:
    name = shown(moved.name)
    if moved.kind == "freed":
        return f"The name {name} was in use by another table since transaction {transaction} began at snapshot {moved.expected}"
    if moved.kind == "incompatible" and not moved.expected:
        return f"There is another table {name} now; transaction {transaction} gives that name to a table of its own"
    if moved.kind != "name":
        where = "was dropped" if moved.actual is None else f"is at version {moved.actual}"
        where = f"has another version {moved.actual}" if moved.kind == "replaced" else where
        return f"{name} {where}; transaction {transaction} was built on version {moved.expected}"
    if not name:
        return f"Tables were made, dropped or renamed since transaction {transaction} listed them"
    if moved.head is not None:
        return f"{name} was renamed to {shown(moved.head.name)}; transaction {transaction} used it as {name}"
    return f"A table {name} was created; transaction {transaction} found none"


def moved_by(catalog: Catalog, branch: str, base: int, table: str) -> list[dict[str, Any]]:
    """Who changed a table after a snapshot, or any name where no table is given, the oldest first."""
    later = [snapshot for snapshot in catalog.history(branch, limit=_LOOKED_AT) if snapshot.id > base]
    return [
        {"transaction": maker.transaction, "author": maker.author, "operation": ", ".join(done), "message": maker.message}
        for snapshot in reversed(later)
        if (done := _done_to(snapshot, table))
        for maker in _makers(snapshot, table)
    ]


def _makers(snapshot: Snapshot, table: str) -> Sequence[Snapshot | SnapshotMember]:
    """Whose work on a table a snapshot is: of a batch, those of its members that wrote to it."""
    return [member for member in snapshot.members if table in member.tables] or [snapshot]


def steps_of(catalog: Catalog, branch: str, base: int, table: str) -> list[tuple[Snapshot, list[str]]]:
    """The latest snapshots of a branch after a base that changed a table, and what they did to it."""
    later = [snapshot for snapshot in catalog.history(branch, limit=_LOOKED_AT) if snapshot.id > base]
    return [(snapshot, done) for snapshot in later if (done := _done_to(snapshot, table))]


def _another_line(transaction: str, moved: Moved) -> ExpectedVersionMismatch:
    return ExpectedVersionMismatch(
        f"Branch {moved.name!r} was fast-forwarded, or deleted and made again, since transaction {transaction} began on it.",
        table="",
        expected=moved.expected,
        actual=moved.actual,
        cause="line",
        operation="transaction",
        retryable=True,
        advice="Nothing was committed. Begin a new transaction, or use lake.run(fn), which does.",
    )


def name_table(error: ConflictError, catalog: Catalog, branch: str, base: int, moved: Moved) -> ConflictError:
    """Tells a conflict that the rules for one table found which table it was, where that stands, and who moved it.

    Winners get author and message of the lake's snapshots, which know more than the table's own transactions do.
    """
    by = moved_by(catalog, branch, base, moved.table)
    error.table, error.expected, error.actual, error.by = shown(moved.name), moved.expected, moved.actual, tuple(by)
    steps = {
        step.transaction: snapshot
        for snapshot in catalog.history(branch, limit=_LOOKED_AT)
        if snapshot.id > base
        for change in snapshot.changes
        if change.table == moved.table
        for step in change.steps
    }
    error.winners = tuple(
        replace(winner, author=found.author, message=found.message or winner.message)
        if (found := steps.get(winner.transaction_id)) is not None
        else winner
        for winner in error.winners
    )
    last = f" by {by[-1]['author'] or 'an unknown author'}" if by else ""
    before = str(error).removesuffix(error.advice).rstrip()
    where = f"{error.table} is at version {moved.actual}{last}, the transaction was built on version {moved.expected}"
    error.args = (fit(f"{where}: {before}", error.advice),)
    return error


def _done_to(snapshot: Snapshot, table: str) -> list[str]:
    changes = [change for change in snapshot.changes if (change.table == table if table else change.changes_names)]
    return [operation for change in changes for operation in ((change.kind,) if change.changes_names else change.operations)]


def expired(transaction: str, base: int, url: str, *, doubted: bool) -> TiltyardError:
    """For one begun before transactions whose records have expired: its own record may have been among them.

    Args:
        transaction: its id.
        base: the snapshot that it was begun at.
        url: of the lake.
        doubted: whether it may have been committed.
    """
    what = f"Transaction {transaction} was begun at snapshot {base}, and outcomes of that time have expired"
    if doubted:
        return OutcomeUnknown(
            f"{what}: whether it was committed is not known.", transaction_id=transaction, version=0, uri=url,
            advice="Look at the tables. Nothing was deleted.",
        )  # fmt: skip
    return HistoryUnavailable(f"{what}.", read_version=base, advice="Run it again from the beginning.")
