"""Rows that wait to be committed: what goes into one batch, when it is due, and who may add more.

Nothing here waits or reads a clock: the writer passes the time in, so that each decision can be tested by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput

if TYPE_CHECKING:
    from tiltyard.batching.batch_writer import Receipt

BUFFERED_BATCHES: Final = 4
"""How many batches of ``max_bytes`` are held where the caller sets no bound."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When rows are committed, and how many may wait.

    Attributes:
        max_delay: seconds from an append to the start of its commit.
        max_rows: rows after which a batch is committed at once.
        max_bytes: or bytes.
        buffer_bytes: bytes of rows that are not committed yet, above which an append waits; None for four batches.
    """

    max_delay: float = 1.0
    max_rows: int = 1024 * 1024
    max_bytes: int = 64 * 1024 * 1024
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_delay, bool) or not isinstance(self.max_delay, int | float) or not 0 <= self.max_delay < float("inf"):
            raise InvalidInput(f"max_delay must be a number of seconds, 0 or more, not {self.max_delay!r}.", argument="max_delay")
        for name in ("max_rows", "max_bytes", "buffer_bytes"):
            value = getattr(self, name)
            if name == "buffer_bytes" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} must be a whole number, 1 or more, not {value!r}.", argument=name)

    @property
    def capacity(self) -> int:
        """Bytes that may be held."""
        return BUFFERED_BATCHES * self.max_bytes if self.buffer_bytes is None else self.buffer_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The rows of one append, copied: the caller may do with theirs what it likes.

    Attributes:
        rows: as the table types them.
        size: their bytes.
        due: when their commit has to begin.
        receipt: what the caller holds.
    """

    rows: pa.Table
    size: int
    due: float
    receipt: Receipt


@dataclass(slots=True)
class WriteBuffer:
    """Entries in the order they came, those of them that are being committed, and those who wait to add theirs.

    Attributes:
        limits: of the writer.
        unsettled: entries that have no answer yet, waiting or being committed.
        held: their bytes.
    """

    limits: BatchLimits
    unsettled: dict[Entry, None] = field(default_factory=dict)
    held: int = 0
    _waiting: deque[Entry] = field(default_factory=deque)
    _rows: int = 0
    _bytes: int = 0
    _line: deque[object] = field(default_factory=deque)
    _wanted: int = 0

    # ---- adding ----------------------------------------------------------------------------------------------------------------

    def stand_in_line(self) -> object:
        """A ticket of a caller that wants to add. They come in in the order of their tickets, so that none starves."""
        ticket = object()
        self._line.append(ticket)
        return ticket

    def admits(self, ticket: object, size: int) -> bool:
        """Whether it is this one's turn and there is room. More than the whole buffer comes in when that is empty."""
        return self._line[0] is ticket and (not self.held or self.held + size <= self.limits.capacity)

    def leave_line(self, ticket: object) -> None:
        self._line.remove(ticket)

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._rows += entry.rows.num_rows
        self._bytes += entry.size
        self.held += entry.size
        self.unsettled[entry] = None

    # ---- what is due -----------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many entries are not being committed yet."""
        return len(self._waiting)

    def want_all(self) -> None:
        """A flush: all that waits is due now."""
        self._wanted = len(self._waiting)

    def due_at(self) -> float | None:
        """When the next batch is due: on the clock, at once (minus infinity), or not at all while nothing waits."""
        if not self._waiting:
            return None
        full = self._rows >= self.limits.max_rows or self._bytes >= self.limits.max_bytes
        # A caller in line waits for room, and only a commit makes some.
        return float("-inf") if full or self._wanted or self._line else self._waiting[0].due

    def take(self) -> list[Entry]:
        """The next batch: what came first, with the same columns, up to the limits; at least one entry."""
        first = self._waiting[0]
        rows, size, count = first.rows.num_rows, first.size, 1
        for entry in islice(self._waiting, 1, None):
            rows, size = rows + entry.rows.num_rows, size + entry.size
            if rows > self.limits.max_rows or size > self.limits.max_bytes:
                break
            if not entry.rows.schema.equals(first.rows.schema, check_metadata=True):
                break
            count += 1
        batch = [self._waiting.popleft() for _ in range(count)]
        self._rows -= sum(entry.rows.num_rows for entry in batch)
        self._bytes -= sum(entry.size for entry in batch)
        self._wanted = max(self._wanted - count, 0)
        return batch

    def settle(self, batch: Sequence[Entry]) -> None:
        """These have their answer; their room is free."""
        for entry in batch:
            del self.unsettled[entry]
            self.held -= entry.size
