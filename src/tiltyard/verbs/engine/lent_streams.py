"""Streams that pylance pulls from threads of its own: what fails in them, and what becomes of them when the caller is interrupted."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

_PATIENCE: Final = 1.0
"""Seconds that the end of the process waits for pylance to let go of a stream."""

_MOMENT: Final = 0.01


class _Source:
    """An iterator that can be stopped from outside."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._stopped = False
        self.ended = False
        self.failed: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._stopped:
            self.ended = True
            raise RuntimeError("The reader of these rows has stopped.")
        try:
            return next(self._batches)
        except StopIteration:
            self.ended = True
            raise
        except BaseException as error:
            self.ended, self.failed = True, error
            raise

    def stop(self) -> None:
        """Nothing more is pulled from what is behind it: the next time pylance asks, it is refused."""
        self._stopped = True
        if not self.ended:
            _left.add(self)


_left: weakref.WeakSet[_Source] = weakref.WeakSet()
"""Streams that pylance may still pull, though nobody waits for what it makes of them."""


@contextmanager
def lent(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatchReader]:
    """A stream for pylance, for as long as the block lasts.

    What fails in the stream leaves the block as it is: pylance would pass on its text alone.
    """
    source = _Source(batches)
    try:
        yield pa.RecordBatchReader.from_batches(schema, source)
    except BaseException:
        source.stop()
        if source.failed is not None:
            raise source.failed from None
        raise


@atexit.register
def _wait_for_pylance() -> None:
    """A thread of pylance that asks for rows while the interpreter is taken down would abort the process."""
    deadline = time.monotonic() + _PATIENCE
    waited = bool(_left)
    while any(not source.ended for source in _left) and time.monotonic() < deadline:
        time.sleep(_MOMENT)
    if waited:
        time.sleep(_MOMENT)  # the thread that was refused still holds what it was refused with
