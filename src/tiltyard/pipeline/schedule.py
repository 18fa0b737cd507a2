"""Runs one after the other, with a pause between them, until somebody says stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

import tiltyard as ty
from tiltyard.pipeline.run_report import RunReport


class Schedule:
    """When to run. ``stop`` may be called from anywhere; a run that has begun is finished first."""

    def __init__(self, every: timedelta | None) -> None:
        self.every = every
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends it after the run that is under way."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped.is_set()

    def turns(self) -> Iterator[int]:
        """A number for each run that is to be begun: one, or one after each pause."""
        turn = 0
        while not self.stopped:
            turn += 1
            yield turn
            if self.every is None:
                return
            self._stopped.wait(self.every.total_seconds())


def repeat(
    run: Callable[[], RunReport],
    schedule: Schedule,
    report: Callable[[RunReport], None],
    trouble: Callable[[ty.TiltyardError], None],
) -> None:
    """Runs on a schedule. Temporary failures, such as conflicts, are reported; the next run retries.

    Raises:
        TiltyardError: a failure that is not temporary, or any failure if there is no next run.
    """
    for _ in schedule.turns():
        try:
            report(run())
        except ty.TiltyardError as error:
            if schedule.every is None or not passes(error):
                raise
            trouble(error)


def passes(error: ty.TiltyardError) -> bool:
    """Whether waiting may help. History that was cleaned up does not come back."""
    if isinstance(error, ty.HistoryUnavailable):
        return False
    return error.retryable or isinstance(error, ty.OutcomeUnknown) or (isinstance(error, ty.StorageError) and error.transient)


@contextmanager
def stopped_by_signals(schedule: Schedule) -> Iterator[None]:
    """Stops the schedule after the current run on SIGTERM or the first SIGINT; in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        schedule.stop()
        signal.signal(signal.SIGINT, before[signal.SIGINT])  # a second one ends the run itself

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
