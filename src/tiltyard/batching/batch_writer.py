"""``BatchWriter``: the thread that commits what waits, and what callers see of it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Collection
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tiltyard.batching.batch_commit import PATIENCE, BatchCommit, BatchTarget
from tiltyard.batching.write_buffer import BatchLimits, Entry, WriteBuffer
from tiltyard.errors import InvalidInput, WriterTimeout
from tiltyard.interfaces import OwnsWaits
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.engine.row_input import as_rows


class Receipt(Future[CommitResult]):
    """What became of one append of a batching writer: done when its rows are committed.

    It is a ``concurrent.futures.Future``. ``result()`` waits, and returns the commit that has the rows, or raises the error that kept them
    out; ``rows`` of the result counts those of this append. It cannot be cancelled. With asyncio: ``await asyncio.wrap_future(receipt)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        """Whether its caller has looked at how it ended."""
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> CommitResult:
        """The commit that has the rows, once it is done.

        Raises:
            TimeoutError: it is not done after so many seconds; committing continues.
            TiltyardError: the rows are not in the table; for ``OutcomeUnknown`` it is not known.
        """
        self.asked |= self.done()
        try:
            return super().result(timeout)
        finally:
            self.asked |= self.done()

    @property
    def failed(self) -> bool:
        """Whether it is done, and its rows are not known to be in the table."""
        return self.done() and super().exception() is not None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that ``result`` would raise; None for none."""
        try:
            return super().exception(timeout)
        finally:
            self.asked |= self.done()


class BatchWriter:
    """Commits appends of many threads together. ``t.writer`` makes it; use it with ``with``.

    Each append gets a ``Receipt``, which is acknowledged when its rows are committed. A batch is committed when its oldest rows have waited
    for ``max_delay`` seconds, or when there are ``max_rows`` rows or ``max_bytes`` bytes of them.

    Rows wait in memory: a crash loses those, and only those, whose receipt was not acknowledged.
    """

    def __init__(self, target: BatchTarget, limits: BatchLimits, patience: float | None = None) -> None:
        self._target = target
        self._clock = target.runtime.clock
        self._buffer = WriteBuffer(limits)
        self._commits = BatchCommit(target, PATIENCE if patience is None else patience)
        self._changed = threading.Condition()
        self._closing = False
        self._unasked: list[Receipt] = []
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="tiltyard-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"{len(self._buffer.unsettled)} appends waiting"
        return f"BatchWriter({state}, {self._buffer.held:,} bytes)"

    @property
    def buffered_bytes(self) -> int:
        """Bytes of rows that are not acknowledged yet."""
        return self._buffer.held

    def append(self, data: Any, *, timeout: float | None = None) -> Receipt:
        """Adds rows to the next batch. They are checked and copied now, and committed later.

        Args:
            data: rows: Arrow, a data frame, dicts, a stream, which is read now.
            timeout: seconds to wait for room in the buffer; as long as it takes by default.

        Returns:
            A receipt: ``receipt.result()`` waits until the rows are committed.

        Raises:
            InvalidInput: the rows do not fit the table, or the writer is closed; nothing was buffered.
            KeyConflict: the rows have a duplicate key among themselves; nothing was buffered.
            WriterTimeout: the buffer was full for so long; nothing was buffered.
        """
        self._check_open()
        rows = as_rows(data)
        whole = rows if isinstance(rows, pa.Table) else rows.read_all()
        copied, size = _copied(self._target.fit(whole))
        receipt = Receipt()
        with self._changed:
            ticket = self._buffer.stand_in_line()
            try:
                self._wait_for_room(ticket, size, timeout)
                now = self._clock.monotonic()
                self._buffer.add(Entry(copied, size, now + self._buffer.limits.max_delay, receipt))
            finally:
                self._buffer.leave_line(ticket)
                self._changed.notify_all()
        return receipt

    def _wait_for_room(self, ticket: object, size: int, timeout: float | None) -> None:
        until = None if timeout is None else self._clock.monotonic() + timeout
        while not self._buffer.admits(ticket, size):
            self._check_open()
            self._changed.notify_all()  # a caller in line makes the next batch due
            if threading.current_thread() is self._thread or not self._wait(until):
                raise self._late(
                    "There was no room in the writer's buffer", timeout or 0.0, "The rows were not buffered: append them again later."
                )
        self._check_open()

    def flush(self, timeout: float | None = None) -> None:
        """Commits all rows that were appended before, and waits until each has its answer, at its receipt.

        Raises:
            WriterTimeout: not all have one after so many seconds; committing continues.
        """
        self._check_caller()
        with self._changed:
            self._buffer.want_all()
            self._changed.notify_all()
            self._wait_for(list(self._buffer.unsettled), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Commits what waits, and ends the writer. A second call does nothing.

        Raises:
            WriterTimeout: not all is committed after so many seconds; committing continues, and ``close`` can be called again.
            TiltyardError: an append failed, and its caller never asked its receipt. The first of them, if there are several.
        """
        if self._process != os.getpid():
            return
        self._check_caller()
        with self._changed:
            self._closing = True
            self._buffer.want_all()
            self._changed.notify_all()
            self._wait_for(list(self._buffer.unsettled), timeout)
        self._thread.join()
        atexit.unregister(self.close)
        failed, self._unasked = [receipt for receipt in self._unasked if not receipt.asked], []
        errors = [error for receipt in failed if (error := receipt.exception()) is not None]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors) - 1} more appends failed, and their receipts were not asked for.")
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Closing the writer failed as well: {failure}")

    # ---- waiting ---------------------------------------------------------------------------------------------------------------

    def _wait(self, until: float | None) -> bool:
        """Waits until something changes; False if it is so late already. With the lock."""
        left = None if until is None else until - self._clock.monotonic()
        if left is not None and left <= 0:
            return False
        if isinstance(self._clock, OwnsWaits):
            self._clock.wait(self._changed, until)
        else:
            self._changed.wait(left)
        return True

    def _wait_for(self, entries: Collection[Entry], timeout: float | None) -> None:
        until = None if timeout is None else self._clock.monotonic() + timeout
        while any(entry in self._buffer.unsettled for entry in entries):
            if not self._wait(until):
                raise self._late(
                    "Not all appends were committed", timeout or 0.0, "They are still being committed: wait on their receipts."
                )

    def _late(self, what: str, seconds: float, advice: str) -> WriterTimeout:
        waiting, held = len(self._buffer.unsettled), self._buffer.held
        return WriterTimeout(f"{what} within {seconds:g} seconds.", seconds=seconds, appends=waiting, bytes=held, advice=advice)

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise InvalidInput("The writer was made in another process.", argument="writer", advice="Make one after the fork.")
        if self._closing:
            raise InvalidInput("The writer is closed.", argument="writer", advice="Make another with t.writer().")

    def _check_caller(self) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidInput("A callback of a receipt cannot wait for the writer that calls it.", argument="writer")
        if self._process != os.getpid():
            raise InvalidInput("The writer was made in another process.", argument="writer", advice="Make one after the fork.")

    # ---- the thread ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                settled = self._commits.commit(batch) if batch else []
                settled += self._commits.ask()
                with self._changed:
                    self._unasked = [receipt for receipt in self._unasked if not receipt.asked]
                    self._unasked += [entry.receipt for entry in settled if entry.receipt.failed]
                    self._buffer.settle(settled)
                    self._changed.notify_all()
        except BaseException as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Tells all who wait that nothing more is committed: an error that no commit ends in came up."""
        with self._changed:
            self._closing = True
            left = list(self._buffer.unsettled)
            for entry in left:
                if not entry.receipt.done():
                    entry.receipt.set_exception(error)
            self._unasked += [entry.receipt for entry in left if entry.receipt.failed]
            self._buffer.settle(left)
            self._changed.notify_all()

    def _next(self) -> list[Entry] | None:
        """The batch that is due, once one is; an empty one where only a question is due; None at the end."""
        with self._changed:
            while True:
                due, ask, now = self._buffer.due_at(), self._commits.ask_at(), self._clock.monotonic()
                if due is not None and due <= now:
                    return self._buffer.take()
                if ask is not None and ask <= now:
                    return []
                if self._closing and not self._buffer.unsettled:
                    return None
                self._wait(min((moment for moment in (due, ask) if moment is not None), default=None))


def _copied(rows: pa.Table) -> tuple[pa.Table, int]:
    """The rows in memory of their own, and how much that is: the caller's may change, or belong to something larger."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    buffer = sink.getvalue()
    return pa.ipc.open_stream(buffer).read_all(), buffer.size
