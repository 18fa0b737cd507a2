"""Outcomes of a transaction whose commit ended in ``OutcomeUnknown``; members of a group commit."""

from __future__ import annotations

import os as _os

from tiltyard.options import Storage as _Storage
from tiltyard.transaction.group import GroupMember
from tiltyard.verbs.engine.access import open_access as _open_access
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, Unknown
from tiltyard.verbs.outcome import outcome_of as _outcome_of

__all__ = ["Committed", "GroupMember", "NotCommitted", "Outcome", "Unknown", "outcome_at"]


def outcome_at(
    uri: str | _os.PathLike[str], transaction_id: str, *, version: int | None = None, storage: _Storage | None = None
) -> Outcome:
    """What became of a transaction where there may be no table: a ``create`` of unknown outcome.

    Where there is a table, ``t.transactions.outcome`` is the same.

    Args:
        uri: where the table is, or was to be.
        transaction_id: the id in the error.
        version: the version in the error.
        storage: how the store is reached.
    """
    return _outcome_of(_open_access(uri, storage), transaction_id, version)
