"""One batch of a writer, committed: each append in it ends in a result or an error of its own.

batch -> append --+-- committed: all acknowledged
                  +-- a duplicate key: those that have it fail, the others are committed without them
                  +-- rows that do not fit: halves, until the culprit is alone
                  +-- outcome unknown: set aside and asked for; never sent again before it is known that it was not committed
                  +-- anything else: it concerns all of them, and all of them fail
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa

from tiltyard.batching.write_buffer import Entry
from tiltyard.errors import (
    HistoryUnavailable,
    IncompatibleConflict,
    InvalidInput,
    KeyConflict,
    OutcomeUnknown,
    RetryableConflict,
    TiltyardError,
)
from tiltyard.interfaces import Runtime
from tiltyard.transaction.backoff import wait_before
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome

PATIENCE: Final = 60.0
"""Seconds for which an unknown outcome is asked for, where no deadline says otherwise."""
ASK_AGAIN: Final = 0.1
"""Seconds that the wait between two such questions grows from."""
MOST_RUNS: Final = 3
"""How often a batch is appended to the latest version after errors that ask for just that."""


class BatchTarget(Protocol):
    """The table that batches go to, as far as a writer knows it."""

    @property
    def runtime(self) -> Runtime: ...

    def fit(self, rows: pa.Table) -> pa.Table:
        """The rows as the table types them; raises ``InvalidInput`` or ``KeyConflict`` for those that it would refuse by themselves."""

    def append(self, rows: pa.Table) -> CommitResult: ...

    def catch_up(self) -> bool:
        """Moves to the latest version; whether that is one of the same table, as far as can be told."""

    def culprits(self, parts: Sequence[pa.Table]) -> dict[int, KeyConflict | None]:
        """Which of these cannot be committed together with the others, by their places.

        With the error where a row of the table has a key of theirs, with None where only an earlier part has it."""

    def outcome(self, error: OutcomeUnknown) -> Outcome: ...


@dataclass(slots=True)
class InDoubt:
    """A batch whose commit ended without an answer.

    Attributes:
        entries: what it holds.
        error: that ended it.
        ask_at: when to ask next what became of it.
        until: when to give up asking.
        asked: how often it was asked.
    """

    entries: Sequence[Entry]
    error: OutcomeUnknown
    ask_at: float
    until: float
    asked: int = 0


@dataclass(slots=True)
class BatchCommit:
    """Commits the batches of one writer, one after the other.

    Attributes:
        target: the table.
        patience: seconds for which an unknown outcome is asked for.
        in_doubt: batches that have no answer yet.
    """

    target: BatchTarget
    patience: float = PATIENCE
    in_doubt: list[InDoubt] = field(default_factory=list)

    def commit(self, batch: Sequence[Entry]) -> list[Entry]:
        """Commits a batch and answers its receipts; returns those entries that have their answer."""
        settled: list[Entry] = []
        parts = [list(batch)]
        while parts:
            part = parts.pop(0)
            try:
                rest, answered = self._attempt(part)
            except OutcomeUnknown as error:
                now = self._now()
                self.in_doubt.append(InDoubt(part, error, now, now + self.patience))
            except Exception as error:  # noqa: BLE001  (it is raised at the receipts)
                settled += _fail(part, error)
            else:
                parts[:0] = rest
                settled += answered
        return settled

    def _attempt(self, part: list[Entry]) -> tuple[list[list[Entry]], list[Entry]]:
        """What is left to commit of a part, in parts of their own, and the entries that have their answer."""
        try:
            return [], _acknowledge(part, self._append(part))
        except (InvalidInput, KeyConflict) as error:
            if len(part) == 1:
                return [], _fail(part, error)
            return self._split(part, error)

    def _append(self, part: Sequence[Entry]) -> CommitResult:
        """One commit of all rows, on the latest version if the handle's is too old to build on."""
        rows = pa.concat_tables([entry.rows for entry in part]).combine_chunks()  # or each would be a batch of its own for the file
        for _ in range(MOST_RUNS - 1):
            try:
                return self.target.append(rows)
            except KeyConflict:
                raise
            except (HistoryUnavailable, RetryableConflict):  # nothing was committed, for certain
                if not self.target.catch_up():
                    raise
            except IncompatibleConflict:  # the table was replaced: these rows were not meant for it, later ones are
                self.target.catch_up()
                raise
        return self.target.append(rows)

    def _split(self, part: list[Entry], error: InvalidInput | KeyConflict) -> tuple[list[list[Entry]], list[Entry]]:
        """Parts to commit instead of one that was refused because of its rows, and the entries that failed."""
        self.target.catch_up()
        if isinstance(error, KeyConflict):
            found = self.target.culprits([entry.rows for entry in part])
            failed = [entry for place, entry in enumerate(part) if (conflict := found.get(place)) and _fail([entry], conflict)]
            later = [entry for place, entry in enumerate(part) if place in found and found[place] is None]
            rest = [entry for place, entry in enumerate(part) if place not in found]
            if failed or later:
                return [some for some in (rest, later) if some], failed
        else:
            try:
                self.target.fit(part[0].rows.slice(0, 0))
            except InvalidInput as misfit:  # all parts have the same columns
                return [], _fail(part, misfit)
        middle = len(part) // 2
        return [part[:middle], part[middle:]], []

    # ---- unknown outcomes ------------------------------------------------------------------------------------------------------

    def ask_at(self) -> float | None:
        """When the next question is due."""
        return min((doubt.ask_at for doubt in self.in_doubt), default=None)

    def ask(self) -> list[Entry]:
        """Asks what became of batches in doubt, and answers their receipts; returns those entries that have their answer.

        One that was not committed is committed now. While it is not known, the next batch goes ahead: any commit settles it.
        """
        settled: list[Entry] = []
        waiting, self.in_doubt = self.in_doubt, []
        for doubt in waiting:
            found = self.target.outcome(doubt.error)
            if isinstance(found, Committed):
                settled += _acknowledge(doubt.entries, _result(doubt, found))
            elif isinstance(found, NotCommitted):
                settled += self.commit(doubt.entries)
            elif self._now() >= doubt.until:
                settled += _fail(doubt.entries, doubt.error)
            else:
                doubt.ask_at = self._now() + wait_before(doubt.asked, ASK_AGAIN, self.target.runtime)
                doubt.asked += 1
                self.in_doubt.append(doubt)
        return settled

    def _now(self) -> float:
        return self.target.runtime.clock.monotonic()


def _result(doubt: InDoubt, found: Committed) -> CommitResult:
    error = doubt.error
    return CommitResult(found.version, error.operation, error.transaction_id, error.read_version or 0, attempts=1)


def _acknowledge(entries: Iterable[Entry], result: CommitResult) -> list[Entry]:
    answered = list(entries)
    for entry in answered:
        entry.receipt.set_result(replace(result, rows={"inserted": entry.rows.num_rows}))
    return answered


def _fail(entries: Iterable[Entry], error: Exception) -> list[Entry]:
    """Each gets an error object of its own: they are raised in threads of their own."""
    answered = list(entries)
    for entry in answered:
        own = error
        if isinstance(error, TiltyardError):
            own = copy(error).with_traceback(error.__traceback__)
            own.__cause__ = error.__cause__
        entry.receipt.set_exception(own)
    return answered
