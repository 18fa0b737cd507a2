"""What happens to a commit, as a value, and the interface of those who want to be told.

No row, key, message of a user or address of a table is part of it: what is counted and logged may end in places that anybody reads.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """Something that happened to a commit. What does not belong to the occasion keeps its default.

    Attributes:
        operation: what is to be committed, for example ``Append``.
        transaction_id: its uuid.
        read_version: the version it was built on.
        attempts: how many times the creation of a version was tried so far.
        version: the version it made or raced for.
        seconds: from the start of the commit loop.
        theirs: the operation of the other side.
        their_version: the version that other commit made.
        their_transaction_id: its uuid.
        verdict: ``compatible``, ``rebase``, ``retry`` or ``incompatible``.
        outcome: ``committed``, or the ``kind`` of the error it ended in.
        executions: how many times the verb was run so far.
        wait: seconds until it is run again.
    """

    operation: str
    transaction_id: str = ""
    read_version: int | None = None
    attempts: int = 0
    version: int | None = None
    seconds: float | None = None
    theirs: str = ""
    their_version: int | None = None
    their_transaction_id: str = ""
    verdict: str = ""
    outcome: str = ""
    executions: int = 0
    wait: float | None = None

    def to_dict(self) -> dict[str, object]:
        """What is known, as plain JSON values."""
        known = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in known if value is not None and value != "" and (value != 0 or name not in _COUNTS)}


_COUNTS: Final = frozenset({"attempts", "executions"})


class CommitObserver(Protocol):
    """Is told of commits while they happen, from the thread that commits: be quick. What it raises is logged and otherwise ignored."""

    def committed(self, event: CommitEvent, /) -> None:
        """A version was made."""

    def rebased(self, event: CommitEvent, /) -> None:
        """A commit in between was gone over; the verdict says whether ours had to change for it."""

    def lost_race(self, event: CommitEvent, /) -> None:
        """Somebody else took the version; the race is run again."""

    def conflict(self, event: CommitEvent, /) -> None:
        """A commit in between does not go together with ours. ``failed`` follows."""

    def failed(self, event: CommitEvent, /) -> None:
        """The commit ended in an error, which ``outcome`` names; ``outcome-unknown`` if nobody can say how it ended."""

    def rerun(self, event: CommitEvent, /) -> None:
        """The verb will be run again on the newest version, after a conflict."""
