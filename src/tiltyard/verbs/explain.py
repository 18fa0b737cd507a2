"""Records of failed commits, for later questions: what they conflict with, what overlapped, what the error said.

A record is written when the outcome is certain and only if the store takes it; nothing depends on it. It is small whatever happened, holds
no credential, and a cleanup removes it when it is old. Stock writers neither look at that directory nor clean it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from tiltyard.errors import ConflictError, ContentionError, HistoryUnavailable, InvalidInput, NotFound, TiltyardError, Winner
from tiltyard.redact import redact, secret_values
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, outcome_of
from tiltyard.verbs.table_history import HistoryEntry, describe

ATTEMPTS: Final = "_tiltyard/attempts/"
SWITCH: Final = "tiltyard.failed_attempts"
"""Config key; ``off`` keeps no records."""

_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json", re.ASCII)
_MOST_WINNERS: Final = 20
_MOST_OF_A_SAMPLE: Final = 20
_LONGEST_TEXT: Final = 300
MOST_BYTES: Final = 64 * 1024
"""No record of ours is as large; one that is was written by somebody else."""

logger = logging.getLogger("tiltyard.commit")

Lost: TypeAlias = ConflictError | ContentionError | HistoryUnavailable
LOST: Final = (ConflictError, ContentionError, HistoryUnavailable)
"""What ends a commit because of others, for certain."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A commit that failed because of others, as its writer saw it.

    Attributes:
        transaction_id: what it tried to commit.
        time: when it failed.
        operation: what that was, for example ``Delete``.
        read_version: the version it was built on.
        kind: the code of the error, for example ``retryable-conflict``.
        sentence: what the error said.
        retryable: whether re-executing it on the latest version is safe.
        attempts: how many times the creation of a version was tried.
        executions: how often it was executed, each time on a later version.
        winners: the commits it conflicts with, oldest first; of many, the last ones.
        fragments: ids of fragments both sides changed (a sample).
        sample: rows, keys or names both sides changed (a sample).
        missing: versions in between that could not be read.
    """

    transaction_id: str
    time: datetime
    operation: str
    read_version: int | None
    kind: str
    sentence: str
    retryable: bool
    attempts: int = 0
    executions: int = 1
    winners: tuple[Winner, ...] = ()
    fragments: tuple[int, ...] = ()
    sample: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return {**plain, **lists, "time": self.time.isoformat(), "winners": [asdict(winner) for winner in self.winners]}


# ---- written ---------------------------------------------------------------------------------------------------------------


def keep_attempt(access: TableAccess, config: Mapping[str, str], error: Lost) -> None:
    """Writes a record, if the table wants one. What fails here is no concern of the caller, who has an error to pass on already."""
    if not error.transaction_id or config.get(SWITCH, "").strip().lower() == "off":
        return
    try:
        if isinstance(error, HistoryUnavailable) and access.log.head() is None:
            return  # the table was dropped: nothing of it shall come back
        access.store.put(f"{ATTEMPTS}{error.transaction_id}.json", _encoded(access, error))
    except TiltyardError:
        logger.debug("no record of a failed attempt could be kept", exc_info=True)


def _encoded(access: TableAccess, error: Lost) -> bytes:
    secrets = secret_values(access.storage_options)

    def text(value: object) -> str:
        return redact(str(value), secrets)[:_LONGEST_TEXT]

    attempt = FailedAttempt(
        transaction_id=error.transaction_id,
        time=access.runtime.clock.now(),
        operation=text(error.operation),
        read_version=error.read_version,
        kind=error.kind,
        sentence=text(error),
        retryable=error.retryable,
        attempts=error.attempts,
        executions=error.executions if isinstance(error, ConflictError) else 1,
        winners=tuple(
            Winner(winner.version, text(winner.transaction_id), text(winner.operation), text(winner.writer), text(winner.message))
            for winner in error.winners[-_MOST_WINNERS:]
        ),
        fragments=error.fragments[:_MOST_OF_A_SAMPLE],
        sample=tuple(map(text, error.sample[:_MOST_OF_A_SAMPLE])),
        missing=error.missing[:_MOST_OF_A_SAMPLE] if isinstance(error, HistoryUnavailable) else (),
    )
    return json.dumps(attempt.to_dict(), separators=(",", ":")).encode()


# ---- read ------------------------------------------------------------------------------------------------------------------


def read_attempt(access: TableAccess, transaction_id: str) -> FailedAttempt | None:
    """The record of a transaction; None where there is none that can be read."""
    name = f"{transaction_id}.json"
    if _NAME.fullmatch(name) is None:
        return None
    try:
        data = access.store.get_range(ATTEMPTS + name, 0, MOST_BYTES)
    except NotFound:
        return None
    found = _decoded(data)
    return found if found is not None and found.transaction_id == transaction_id else None


def attempts_of(access: TableAccess, begins: str = "") -> Iterator[FailedAttempt]:
    """All records of transactions whose id begins so."""
    for name in sorted(access.store.names(ATTEMPTS)):
        match = _NAME.fullmatch(name)
        if match is not None and name.startswith(begins) and (found := read_attempt(access, match[1])) is not None:
            yield found


def _decoded(data: bytes) -> FailedAttempt | None:
    """What a record says; None for anything but a record."""
    try:
        told = json.loads(data)
        time = datetime.fromisoformat(told["time"])
        return FailedAttempt(
            transaction_id=str(told["transaction_id"]),
            time=time if time.tzinfo is not None else time.replace(tzinfo=UTC),
            operation=str(told["operation"]),
            read_version=None if told["read_version"] is None else int(told["read_version"]),
            kind=str(told["kind"]),
            sentence=str(told["sentence"]),
            retryable=bool(told["retryable"]),
            attempts=int(told["attempts"]),
            executions=int(told["executions"]),
            winners=tuple(_winner(item) for item in told["winners"]),
            fragments=tuple(map(int, told["fragments"])),
            sample=tuple(map(str, told["sample"])),
            missing=tuple(map(int, told["missing"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _winner(told: Any) -> Winner:
    texts = (str(told[name]) for name in ("transaction_id", "operation", "writer", "message"))
    return Winner(int(told["version"]), *texts)


# ---- removed ---------------------------------------------------------------------------------------------------------------


OLD_RECORD: Final = "the record of a failed attempt, older than the cleanup asks for"


def old_attempts(access: TableAccess, now: datetime, age: timedelta) -> Iterator[tuple[str, int]]:
    """Records that are old enough to go: path and size of each."""
    for info in access.store.list(ATTEMPTS):
        if _NAME.fullmatch(info.path.removeprefix(ATTEMPTS)) is not None and now - info.modified >= age:
            yield info.path, info.size


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a transaction, and why. ``str()`` gives it in words.

    Attributes:
        transaction_id: the transaction.
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
        over = [f"version {winner.version} ({winner.operation or 'not recorded'})" for winner in self.rebased_over]
        over += [f"version {number} (cleaned up)" for number in self.missing]
        return f"{what} as version {self.outcome.version}{', rebased over ' + ', '.join(over) if over else ''}."

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "transaction_id": self.transaction_id,
            "outcome": {"kind": type(self.outcome).__name__, **asdict(self.outcome)},
            "entry": None if self.entry is None else _plain(self.entry),
            "rebased_over": [_plain(entry) for entry in self.rebased_over],
            "missing": list(self.missing),
            "attempt": None if self.attempt is None else self.attempt.to_dict(),
        }


def _plain(entry: HistoryEntry) -> dict[str, Any]:
    return {**asdict(entry), "timestamp": entry.timestamp.isoformat()}


def explain_transaction(access: TableAccess, transaction_id: str, tried: int | None) -> Explanation:
    """Looks a transaction up in the history, and among the records of those that failed."""
    if not isinstance(transaction_id, str) or not transaction_id:
        raise InvalidInput("A transaction is named by its id, as text.", argument="transaction_id")
    outcome = outcome_of(access, transaction_id, tried)
    if not isinstance(outcome, Committed):
        attempt = read_attempt(access, transaction_id)
        # Records are written when a failure is certain, which later, of a history that is cleaned up in part, cannot be seen any more.
        certain = outcome if attempt is None or isinstance(outcome, NotCommitted) else NotCommitted(f"its writer ended in {attempt.kind}")
        return Explanation(transaction_id, certain, attempt=attempt)
    there = {name.version: name for name in access.log.versions()}
    if outcome.version not in there:
        return Explanation(transaction_id, outcome)
    entry = describe(access.log, outcome.version, there[outcome.version].scheme).of(transaction_id)
    between = range(entry.read_version + 1, entry.version) if entry.read_version else range(0)
    met = tuple(describe(access.log, version, there[version].scheme) for version in between if version in there)
    return Explanation(transaction_id, outcome, entry, met, tuple(version for version in between if version not in there))
