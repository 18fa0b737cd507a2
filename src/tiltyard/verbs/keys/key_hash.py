"""Hashes of many keys: equal keys have the same hash, different ones seldom.

If no two of some keys have one mark, they are different; and only one of them can be equal to a key from elsewhere, the one with its mark.
So two numbers are compared for most keys, and the keys themselves for those few that may be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]

_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_FOLD: Final = np.uint64(29)
_WORD: Final = 8
_LOOKS: Final = (1, 2, 4, 8)
"""How many words of a text are looked at: as few as tell our own keys apart."""


class KeyHashes:
    """Marks of our keys, which are given as columns of one form for equal values: numbers, moments, text or bytes of any kind.

    Attributes:
        distinct: whether no two of our keys have one mark. Where some do, the keys may be equal or not, and ``pairs`` is of no use.
    """

    __slots__ = ("_bits", "_in_order", "_looks", "_marks", "_search", "distinct")

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.distinct = False
        for self._looks in _LOOKS if any(map(_is_text, columns)) else (1,):
            marks = _mixed(columns, self._looks)
            self._in_order = np.sort(marks)
            self.distinct = not (self._in_order[1:] == self._in_order[:-1]).any()
            if self.distinct:
                break
        self._marks = marks
        self._bits = np.uint64(64 - min(max(len(marks).bit_length() + 3, 12), 24))
        self._search: tuple[_Places, npt.NDArray[np.bool_]] | None = None

    def pairs(self, columns: Sequence[pa.Array]) -> tuple[_Places, _Places]:
        """Places of keys, types as ours, that have the mark of one of ours; and the row of that one. They need not be equal."""
        if self._search is None:  # most keys are only told apart, and what a search needs takes longer than that
            order = np.argsort(self._marks) if self.distinct else _NONE
            # A lamp for each of so many beginnings of a mark, eight or more a key: most marks from elsewhere find theirs dark.
            lamps = np.zeros(1 << (64 - int(self._bits)), np.bool_)
            lamps[(self._marks >> self._bits).view(np.int64)] = True
            self._search = order, lamps
        rows, lit = self._search
        marks = _mixed(columns, self._looks)
        left = np.flatnonzero(lit[(marks >> self._bits).view(np.int64)])
        marks = marks[left]
        turn = np.argsort(marks)  # neighbours find theirs in memory that was just looked at
        marks = marks[turn]
        found = np.minimum(np.searchsorted(self._in_order, marks), max(len(self._in_order) - 1, 0))
        same = np.flatnonzero(self._in_order[found] == marks)
        same = same[np.argsort(turn[same])]
        return left[turn[same]], rows[found[same]]


_NONE: Final = np.empty(0, np.int64)


def _mixed(columns: Sequence[pa.Array], looks: int) -> _Words:
    mixed = _mixed_column(columns[0], looks)
    for column in columns[1:]:
        mixed ^= mixed >> _FOLD
        mixed += _mixed_column(column, looks)
        mixed *= _MIXER
    return mixed


def _is_text(column: pa.Array) -> bool:
    return not (pa.types.is_integer(column.type) or pa.types.is_temporal(column.type) or pa.types.is_floating(column.type))


def _mixed_column(column: pa.Array, looks: int) -> _Words:
    if _is_text(column):
        return _mixed_text(column, looks)
    if not pa.types.is_integer(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    if column.null_count:  # no key of ours is null, so it does not matter what they are taken for
        column = column.fill_null(0)
    numbers: _Words = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)
    return numbers * _MIXER


def _mixed_text(column: pa.Array, looks: int) -> _Words:
    """From words of eight bytes, counted from the end and from the beginning in turn, and from the length."""
    bounds, text = _laid_out(column)
    lengths = (bounds[1:] - bounds[:-1]).view(np.uint64)
    mixed = lengths * _MIXER
    if not len(lengths):
        return mixed
    short = lengths < _WORD if lengths.min() < _WORD else None
    if short is None:
        bounds -= _WORD
    else:  # room for the beginning of the first word
        text = np.concatenate([np.zeros(_WORD, np.uint8), text])
    words = np.ndarray((len(text) - _WORD + 1,), "<u8", text, strides=(1,))  # by where they end
    for look in range(looks):
        seen = words[_ends(bounds, look)]
        if short is not None:  # bytes before them are another's
            seen = np.where(short, _kept_bytes(seen, lengths), seen)
        if look:
            mixed ^= mixed >> _FOLD
        mixed += seen
        mixed *= _MIXER
    return mixed


def _ends(bounds: _Places, look: int) -> _Places:
    """Where the words end that one look is about; all of them begin with their text, or after."""
    starts, ends = bounds[:-1], bounds[1:]
    if not look:
        return ends
    first = np.minimum(starts + _WORD, ends)
    past = _WORD * (look // 2)
    return np.minimum(first + past, ends) if look % 2 else np.maximum(ends - past, first)


def _kept_bytes(words: _Words, lengths: _Words) -> _Words:
    """The last bytes of words, as many as a short text has."""
    gone = (np.uint64(_WORD) - np.minimum(lengths, np.uint64(_WORD))) << np.uint64(3)
    return np.where(lengths == 0, np.uint64(0), words >> np.minimum(gone, np.uint64(63)))


def _laid_out(column: pa.Array) -> tuple[_Places, npt.NDArray[np.uint8]]:
    """The bytes of texts, and where in them each begins, with the end of the last."""
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.view(pa.binary(kind.byte_width))
        kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        content = column.buffers()[1]
        bounds = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * kind.byte_width
    else:
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        _, places, content = column.buffers()
        bounds = np.zeros(1, np.int64)
        if len(column):
            every = np.frombuffer(places, np.int64 if wide else np.int32)
            bounds = every[column.offset : column.offset + len(column) + 1].astype(np.int64)
    end = int(bounds[-1])
    return bounds, np.frombuffer(content, np.uint8)[:end] if end else np.empty(0, np.uint8)
