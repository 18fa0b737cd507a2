"""The story of one transaction: what it was rebased over, or why it failed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiltyard.errors import InvalidInput
from tiltyard.verbs.attempts import FailedAttempt, read_attempt
from tiltyard.verbs.history import HistoryEntry, describe
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, outcome_of
from tiltyard.verbs.place import Place


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a transaction, and why. ``str()`` gives it in words.

    Attributes:
        transaction_id: whose story it is.
        outcome: ``Committed(version)``, ``NotCommitted(reason)`` or ``Unknown(reason)``.
        entry: of a committed one, the entry of its version in the history; None if that was cleaned up.
        rebased_over: of a committed one, the versions that came between the one it was built on and its own, oldest first.
        missing: numbers of such versions that were cleaned up since.
        attempt: of one that failed because of others, the record its writer left; None where there is none.
    """

    transaction_id: str
    outcome: Outcome
    entry: HistoryEntry | None = None
    rebased_over: tuple[HistoryEntry, ...] = ()
    missing: tuple[int, ...] = ()
    attempt: FailedAttempt | None = None

    def __str__(self) -> str:
        if self.attempt is not None:
            return self.attempt.sentence
        if not isinstance(self.outcome, Committed):
            return f"{type(self.outcome).__name__}: {self.outcome.reason}."
        what = f"{self.entry.operation} committed" if self.entry is not None else "Committed"
        over = [f"version {one.version} ({one.operation or 'not recorded'})" for one in self.rebased_over]
        over += [f"version {number} (cleaned up)" for number in self.missing]
        return f"{what} as version {self.outcome.version}{', carried over ' + ', '.join(over) if over else ''}."

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "transaction_id": self.transaction_id,
            "outcome": {"kind": type(self.outcome).__name__, **asdict(self.outcome)},
            "entry": None if self.entry is None else _plain(self.entry),
            "rebased_over": [_plain(one) for one in self.rebased_over],
            "missing": list(self.missing),
            "attempt": None if self.attempt is None else self.attempt.to_dict(),
        }


def _plain(entry: HistoryEntry) -> dict[str, Any]:
    return {**asdict(entry), "timestamp": entry.timestamp.isoformat()}


def explain_transaction(place: Place, transaction_id: str, tried: int | None) -> Explanation:
    """Looks a transaction up in the history, and among the records of those that failed."""
    if not isinstance(transaction_id, str) or not transaction_id:
        raise InvalidInput("A transaction is named by its id, as text.", argument="transaction_id")
    outcome = outcome_of(place, transaction_id, tried)
    if not isinstance(outcome, Committed):
        attempt = read_attempt(place, transaction_id)
        # Records are written when a failure is certain, which later, of a history that is cleaned up in part, cannot be seen any more.
        certain = outcome if attempt is None or isinstance(outcome, NotCommitted) else NotCommitted(f"its writer ended in {attempt.kind}")
        return Explanation(transaction_id, certain, attempt=attempt)
    there = {name.version: name for name in place.log.versions()}
    if outcome.version not in there:
        return Explanation(transaction_id, outcome)
    entry = describe(place.log, outcome.version, there[outcome.version].scheme)
    between = range(entry.read_version + 1, entry.version) if entry.read_version else range(0)
    met = tuple(describe(place.log, version, there[version].scheme) for version in between if version in there)
    return Explanation(transaction_id, outcome, entry, met, tuple(version for version in between if version not in there))
