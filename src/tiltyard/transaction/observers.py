"""Who is notified of commits: the log, the counts, and callers' observers. The commit loop calls the functions below, and nothing else."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from tiltyard.errors import ConflictError, IncompatibleConflict, OutcomeUnknown, TiltyardError, Winner
from tiltyard.transaction.metrics import CommitEvent, CommitObserver, Metrics
from tiltyard.transaction.rules import OPERATIONS, UNKNOWN, Outcome
from tiltyard.transaction.transaction import Transaction

logger = logging.getLogger("tiltyard.commit")

COMMITTED: Final = "committed"

_NAMES: Final = frozenset(OPERATIONS.values())


class Log:
    """Writes each event to the logger ``tiltyard.commit``, the facts in the record's attribute ``tiltyard``."""

    def committed(self, event: CommitEvent, /) -> None:
        _write(logging.DEBUG, "committed", event)

    def rebased(self, event: CommitEvent, /) -> None:
        _write(logging.DEBUG, "rebased over another commit", event)

    def lost_race(self, event: CommitEvent, /) -> None:
        _write(logging.INFO, "lost a race", event)

    def conflict(self, event: CommitEvent, /) -> None:
        _write(logging.INFO, "conflict", event)

    def failed(self, event: CommitEvent, /) -> None:
        level = logging.WARNING if event.outcome == OutcomeUnknown.kind else logging.INFO
        _write(level, "not committed" if level == logging.INFO else "outcome unknown", event)

    def rerun(self, event: CommitEvent, /) -> None:
        _write(logging.INFO, "re-executing", event)


def _write(level: int, text: str, event: CommitEvent) -> None:
    if logger.isEnabledFor(level):
        logger.log(level, text, extra={"tiltyard": event.to_dict()})


METRICS: Final = Metrics()
"""The counts of this process."""

getattr(os, "register_at_fork", lambda **_: None)(after_in_child=METRICS.free_lock)  # not every system can fork

_observers: tuple[CommitObserver, ...] = (Log(), METRICS)
_changing = threading.Lock()


def observe(observer: CommitObserver) -> Callable[[], None]:
    """Notifies an observer of every commit of this process. Call what is returned to stop."""
    global _observers
    with _changing:
        _observers = (*_observers, observer)

    def stop() -> None:
        global _observers
        with _changing:
            _observers = tuple(commit_observer for commit_observer in _observers if commit_observer is not observer)

    return stop


# ---- called by the commit loop and by verbs ---------------------------------------------------------------------------------


def committed(mine: Transaction, *, attempts: int, version: int, seconds: float) -> None:
    """A version was made."""
    _tell("committed", _event(mine, attempts, version=version, seconds=seconds, outcome=COMMITTED))


def rebased(mine: Transaction, *, attempts: int, theirs: Winner, verdict: Outcome) -> None:
    """A commit in between was gone over: ``Outcome.COMPATIBLE`` or ``Outcome.REBASE``."""
    _tell("rebased", _event(mine, attempts, theirs, verdict=verdict.value))


def lost_race(mine: Transaction, *, attempts: int, version: int, theirs: Winner) -> None:
    """Somebody else took the version."""
    _tell("lost_race", _event(mine, attempts, theirs, version=version))


def failed(mine: Transaction, *, attempts: int, seconds: float, error: TiltyardError) -> None:
    """The commit ended in an error. If that is a conflict, who met whom is told first."""
    if isinstance(error, ConflictError):
        verdict = Outcome.INCOMPATIBLE if isinstance(error, IncompatibleConflict) else Outcome.RETRY
        theirs = error.winners[-1] if error.winners else None
        _tell("conflict", _event(mine, attempts, theirs, verdict=verdict.value, seconds=seconds))
    version = error.version if isinstance(error, OutcomeUnknown) else None
    _tell("failed", _event(mine, attempts, version=version, seconds=seconds, outcome=error.kind))


def rerun(error: ConflictError, *, executions: int, wait: float) -> None:
    """The verb will be run again because of this conflict."""
    _tell(
        "rerun",
        CommitEvent(_named(error.operation), read_version=error.read_version, outcome=error.kind, executions=executions, wait=wait),
    )


def _event(
    mine: Transaction,
    attempts: int,
    theirs: Winner | None = None,
    *,
    version: int | None = None,
    seconds: float | None = None,
    verdict: str = "",
    outcome: str = "",
) -> CommitEvent:
    return CommitEvent(
        operation=_named(mine.operation.name),
        transaction_id=mine.uuid,
        read_version=mine.read_version,
        attempts=attempts,
        version=version,
        seconds=seconds,
        theirs=_named(theirs.operation) if theirs else "",
        their_version=theirs.version if theirs else None,
        their_transaction_id=theirs.transaction_id if theirs else "",
        verdict=verdict,
        outcome=outcome,
    )


def _named(operation: str) -> str:
    """One name for all operations that have none here, so that what a stranger wrote cannot make ever new names."""
    return operation if operation in _NAMES else UNKNOWN


def _tell(what: str, event: CommitEvent) -> None:
    """Tells everybody. No failure of an onlooker, whatever it is, may make a commit look other than it is."""
    for observer in _observers:
        try:
            getattr(observer, what)(event)
        except Exception:
            logger.warning("an observer of commits failed", exc_info=True, extra={"tiltyard": {"observer": type(observer).__name__}})
