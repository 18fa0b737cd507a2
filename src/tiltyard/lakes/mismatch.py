"""The error that says which table others moved, who they were and what they did."""

from __future__ import annotations

from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.publishing import changes_names
from tiltyard.catalog.values import Moved, Snapshot
from tiltyard.errors import ExpectedVersionMismatch
from tiltyard.lakes.names import shown

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
    later = [one for one in catalog.history(branch, limit=_LOOKED_AT) if one.id > base]
    by = [
        {"transaction": one.transaction, "author": one.author, "operation": ", ".join(done), "message": one.message}
        for one in reversed(later)
        if (done := _done_to(one, moved))
    ]
    name = shown(moved.name)
    last = f", last by {by[-1]['operation']} of {by[-1]['author'] or 'somebody'}" if by else ""
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
    if moved.kind != "name":
        where = "is gone, or its name is taken" if moved.actual is None else f"is at version {moved.actual}"
        return f"{name} {where}; transaction {transaction} was built on {moved.expected}"
    if not name:
        return f"Tables were made, dropped or renamed since transaction {transaction} listed them"
    if moved.head is not None:
        return f"{name} is called {shown(moved.head.name)} by now; transaction {transaction} used it as {name}"
    return f"There is a table {name} by now; transaction {transaction} found none"


def _done_to(snapshot: Snapshot, moved: Moved) -> list[str]:
    changes = [change for change in snapshot.changes if (change.table == moved.table if moved.table else changes_names(change))]
    return [operation for change in changes for operation in (change.operations or (change.kind,))]
