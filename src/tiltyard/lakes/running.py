"""Running a function in a transaction until it is committed: after conflicts, and over a catalog that goes away for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tiltyard.errors import ConflictError, ContentionError, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.interfaces import Runtime
from tiltyard.lakes.finishing import is_certain
from tiltyard.lakes.table_names import check_idempotency_key
from tiltyard.options import CommitOptions
from tiltyard.transaction.backoff import wait_before
from tiltyard.verbs.engine.reexecution import commit_terms
from tiltyard.verbs.explain import LOST

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_transaction import LakeTransaction

T = TypeVar("T")

RUN_WAIT: Final = 0.025
"""Seconds; what the wait between two runs of a transaction grows from."""
OUTAGE_WAIT: Final = 0.1
"""The same while the catalog cannot be reached."""
LONGEST_OUTAGE: Final = 60.0
"""Seconds for which a catalog that cannot be reached is waited for, where no deadline says otherwise."""
LONGEST_BLOCK: Final = 30.0
"""Seconds for which a catalog is asked again whose locks somebody holds."""


@dataclass(slots=True)
class _Patience:
    """How long to go on.

    Attributes:
        retries: conflicts that are left.
        until: when nothing is begun any more; None for no such moment.
        since: when the catalog was first found unreachable, or blocked, without a success in between.
        tries: how often it was found so.
    """

    runtime: Runtime
    retries: int
    until: float | None
    since: float | None = None
    tries: int = field(default=0)

    def after(self, error: TiltyardError) -> None:
        """Waits before another try; raises the error where there is to be none."""
        outage = isinstance(error, StorageError | OutcomeUnknown)
        blocked = isinstance(error, ContentionError) and error.operation == "catalog"
        if not outage:
            self.retries -= 1
            if self.retries < 0:
                raise error
        if outage or blocked:
            pause = self._patient(error, LONGEST_OUTAGE if outage else LONGEST_BLOCK)
        else:
            pause = wait_before(self.tries, RUN_WAIT, self.runtime)
            self.since = None
        self.tries += 1
        if self.until is not None and self.runtime.clock.monotonic() + pause > self.until:
            raise error
        self.runtime.clock.sleep(pause)

    def _patient(self, error: TiltyardError, longest: float) -> float:
        now = self.runtime.clock.monotonic()
        if self.since is None:
            # A catalog that is blocked has been so for as long as we tried.
            self.since, self.tries = now - (error.seconds if isinstance(error, ContentionError) else 0.0), 0
        if self.until is None and now - self.since > longest:
            raise error
        return wait_before(self.tries, OUTAGE_WAIT, self.runtime)


@dataclass(slots=True)
class _Last:
    """The last transaction that was begun, and how many there were."""

    tx: LakeTransaction | None = None
    number: int = 0


def run(
    lake: Lake, work: Callable[[LakeTransaction], T], commit: CommitOptions, begin: Callable[[], LakeTransaction], key: str | None
) -> T | None:
    """See ``Lake.run``; ``begin`` makes a transaction, ``key`` is its idempotency key."""
    key = check_idempotency_key(key)
    commit_terms(commit, None)  # refuses what is not for a transaction
    clock = lake.catalog.runtime.clock
    until = None if commit.deadline is None else clock.monotonic() + commit.deadline
    patience = _Patience(lake.catalog.runtime, commit.reexecutions, until)
    last = _Last()
    try:
        return _run(lake, work, partial(_begun, begin, last), key, patience)
    except LOST as error:
        if last.tx is not None:
            last.tx._keep_refusal(error, last.number)
        raise
    finally:
        last.tx = None  # the error's traceback knows this frame


def _begun(begin: Callable[[], LakeTransaction], last: _Last) -> LakeTransaction:
    tx = last.tx = begin()
    tx.keeps_refusal = False  # one that is retried is none
    last.number += 1
    return tx


def _run(
    lake: Lake, work: Callable[[LakeTransaction], T], begin: Callable[[], LakeTransaction], key: str | None, patience: _Patience
) -> T | None:
    tx: LakeTransaction | None = None
    while True:
        try:
            if tx is None:
                if key is not None and _committed_before(lake, key):
                    return None
                tx = begin()
                with tx:
                    result = work(tx)
            else:
                tx.commit()  # in doubt: the answer of the first one was lost
            return result
        except (ConflictError, ContentionError) as error:
            if not error.retryable:
                raise
            tx = None
            patience.after(error)
        except OutcomeUnknown as error:
            if tx is None or not tx.in_doubt:
                raise  # of something else that the function did
            patience.after(error)
        except StorageError as error:
            if error.maybe_applied or not error.transient:
                raise
            tx = None
            patience.after(error)


def _committed_before(lake: Lake, key: str) -> bool:
    before = lake.catalog.with_key(key)
    return before is not None and is_certain(lake, str(before["transaction"]))
