"""Many protobuf records read at once, member by member, each at its own pace.

A ``Walk`` holds one position for each record. A step asks which records stand at a certain tag, or reads a number of each of them. It
knows only the plainest spelling: tags of one byte, numbers without padding. A record that is anything else is ``odd`` from then on:
its numbers mean nothing, and somebody has to look at it in the usual way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

WIDEST: Final = 9
"""Bytes of the largest number whose value is told: 63 bits."""
WIDEST_OPAQUE: Final = 10
"""Bytes of the largest number there is; its value is not told."""
_WIDEST_LENGTH: Final = 4
_PADDING: Final = bytes(WIDEST_OPAQUE)
"""So that no number runs off the end."""


Places: TypeAlias = slice | npt.NDArray[np.intp]


def _places(rows: Rows) -> Places:
    """The records a step is about. Nearly always that is all of them, and a slice is had for nothing."""
    return slice(None) if rows.all() else np.flatnonzero(rows)


class Walk:
    """Positions in many records. ``rows`` is always a mask: which of the records a step is about."""

    def __init__(self, records: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        self.joined = b"".join([*records, _PADDING])
        self.bytes: Bytes = np.frombuffer(self.joined, np.uint8)
        self.end: Numbers = np.cumsum(lengths)
        """Where the message that is being read ends, in each record."""
        self.at: Numbers = self.end - lengths
        self.odd: Rows = np.zeros(len(records), dtype=bool)

    def tagged(self, tag: int, rows: Rows) -> Rows:
        """Those of the records that stand at this tag; they step over it."""
        found: Rows = self.bytes[self.at] == tag
        if found.any():  # most members that may be there are not
            found &= rows & ~self.odd & (self.at < self.end)
            self.at += found
        return found

    def number(self, rows: Rows, widest: int = WIDEST) -> Numbers:
        """The number that each of the records stands at; 0 for the others."""
        values = np.zeros(len(rows), np.int64)
        if not rows.any():
            return values
        which = _places(rows)
        at = self.at[which]
        byte = self.bytes[at]
        if byte.max() < 0x80:  # lengths and versions nearly always are
            values[which] = byte
            self._arrive(which, at + 1)
            return values
        at = at.copy()
        value = np.zeros(len(at), np.int64)
        more = np.ones(len(at), dtype=bool)
        odd = np.zeros(len(at), dtype=bool)
        for rank in range(widest):
            byte = self.bytes[at]
            value |= np.where(more, (byte & 0x7F).astype(np.int64) << 7 * rank, 0)
            if rank:  # an end of zero could be left out; and of the tenth byte only one bit fits
                odd |= more & ((byte == 0) | ((byte > 1) & (rank == WIDEST_OPAQUE - 1)))
            at += more
            more &= byte >= 0x80
            if not more.any():
                break
        values[which] = value
        self._arrive(which, at, odd | more)
        return values

    def length(self, rows: Rows) -> Numbers:
        """A length, which the rest of the message must have room for."""
        values = self.number(rows, _WIDEST_LENGTH)
        self.odd |= values > self.end - self.at
        values[self.odd] = 0
        return values

    def skip(self, rows: Rows, lengths: Numbers) -> None:
        which = _places(rows)
        self._arrive(which, self.at[which] + lengths[which])

    def enter(self, rows: Rows) -> Numbers:
        """Steps into the message each of the records stands at; returns the ends to ``leave`` for."""
        outer = self.end
        lengths = self.length(rows)
        self.end = np.where(rows, self.at + lengths, outer)
        return outer

    def leave(self, rows: Rows, outer: Numbers) -> None:
        """Back to the message around; whoever has not read all of the inner one is odd."""
        self.odd |= rows & (self.at != self.end)
        self.end = outer

    def windows(self, which: npt.NDArray[np.intp], starts: Numbers, length: int) -> Bytes:
        """So many bytes of each of the records ``which``, one row for each."""
        return np.lib.stride_tricks.sliding_window_view(self.bytes, length)[starts[which]]

    def _arrive(self, which: Places, at: Numbers, odd: Rows | None = None) -> None:
        end = self.end[which]
        beyond = at > end
        if odd is not None:
            beyond |= odd
        if beyond.any():
            self.odd[which] |= beyond
            at = np.minimum(at, end)
        self.at[which] = at
