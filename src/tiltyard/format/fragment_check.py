"""Is every fragment of a manifest sound? Asked of each manifest that is read, so it has to be quick.

Most fragments of a table are written by one library in one way and differ only in id, file name, file size and row count. From one such
fragment a ``_Mould`` is made: which bytes are a number or a name, while all others, tags and lengths among them, must be the same. Records
of that length are then compared with it all at once. One that fits is framed exactly as the first one was, so it needs no decoding. All
others are decoded and looked at member by member.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.fragment_rules import check_fragment

Bytes = npt.NDArray[np.uint8]

_PLAIN_PATH: Final = re.compile(rb"[0-9A-Za-z_-]{1,100}\.lance")
_NAME_BYTES: Final = np.zeros(256, dtype=bool)
_NAME_BYTES[list(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-")] = True
_WIDEST: Final = 4
"""Bytes of a number in a mould: below 2**28 nothing needs a bound."""
_FEWEST: Final = 8
"""Records of one length that make a mould worth its while."""

_ID, _FILES, _PHYSICAL_ROWS = 0x08, 0x12, 0x20
_PATH, _FILE_SIZE = 0x0A, 0x30


@dataclass(frozen=True, slots=True)
class _Table:
    """What the manifest says beside its fragments."""

    source: str
    base_ids: frozenset[int]
    next_row_id: int | None


def check_fragments(
    records: Sequence[bytes],
    source: str,
    *,
    above: int = -1,
    highest: int | None,
    base_ids: frozenset[int],
    next_row_id: int | None = None,
) -> None:
    """Refuses what no sound manifest has: repeated or too high ids, absurd counts, paths that leave the table.

    Args:
        records: the fragments as they stand in the manifest, those checked before left out.
        source: the file, for messages.
        above: ids up to here are taken by fragments checked before.
        highest: the highest id ever given out, None where the table does not record it.
        base_ids: the bases a file may lie in.
        next_row_id: the first stable row id not yet given out; None where the table has no stable row ids.

    Raises:
        CorruptTable: naming the fragment and what is wrong with it.
    """
    records = list(records)
    table = _Table(source, base_ids, next_row_id)
    ids: list[npt.NDArray[np.int64]] = []
    start = 0
    for length, alike in groupby(map(len, records)):
        run = records[start : start + sum(1 for _ in alike)]
        start += len(run)
        found = _by_mould(run, length, table) if len(run) >= _FEWEST else None
        if found is None:
            found = np.array([check_fragment(record, base_ids, next_row_id, source) for record in run], dtype=np.int64)
        ids.append(found)
    if ids:
        _check_ids(np.concatenate(ids), above, highest, source)


def _check_ids(ids: npt.NDArray[np.int64], above: int, highest: int | None, source: str) -> None:
    ordered = np.sort(ids)
    doubled = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(doubled) or ordered[0] <= above:
        raise CorruptTable(source, f"fragment {doubled[0] if len(doubled) else ordered[0]} stands twice in the manifest")
    if highest is not None and ordered[-1] > highest:
        # Ids above the highest one given out would be given out again.
        raise CorruptTable(source, f"fragment {ordered[-1]} has an id above the highest one given out, {highest}")


# ---- many records at once --------------------------------------------------------------------------------------------------


def _by_mould(run: list[bytes], length: int, table: _Table) -> npt.NDArray[np.int64] | None:
    """The ids of records of one length, or None unless all of them fit the mould of the first."""
    check_fragment(run[0], table.base_ids, table.next_row_id, table.source)
    mould = _mould(run[0])
    if mould is None:
        return None
    bytes_of = np.frombuffer(b"".join(run), dtype=np.uint8).reshape(len(run), length)
    return mould.ids(bytes_of) if mould.fits(bytes_of) else None


@dataclass(slots=True)
class _Mould:
    """Where the bytes of a record may differ from those of the sound record it was made from."""

    record: bytes
    position: int = 0
    usable: bool = True
    id_bytes: range = range(0)
    names: list[int] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)
    """Bytes of numbers but the last: the top bit is set."""
    last: list[int] = field(default_factory=list)
    """Last bytes of numbers: the top bit is not set."""
    not_zero: list[int] = field(default_factory=list)
    """Such bytes that are not zero: of numbers with several, so that each has one spelling, and of the number of rows."""

    def tag(self, expected: int) -> None:
        self.literal(bytes([expected]))

    def literal(self, expected: bytes) -> None:
        self.usable &= self.record.startswith(expected, self.position)
        self.position += len(expected)

    def length(self) -> int:
        """A length, which every record must share."""
        width = self._width()
        value = _number(self.record[self.position : self.position + width])
        self.position += width
        return value

    def number(self) -> range:
        """A number as wide as here."""
        places = range(self.position, self.position + self._width())
        self.position = places.stop
        self.carried += places[:-1]
        self.last.append(places[-1])
        if len(places) > 1:
            self.not_zero.append(places[-1])
            self.usable &= self.record[places[-1] : places.stop] != b"\0"
        return places

    def name(self, length: int) -> None:
        """The name of a data file; what stands before its ending may differ."""
        self.usable &= _PLAIN_PATH.fullmatch(self.record, self.position, self.position + length) is not None
        if self.usable:  # else the length may be anything
            self.names += range(self.position, self.position + length - len(".lance"))
            self.position += length

    def _width(self) -> int:
        end = self.position
        while end < len(self.record) and self.record[end] >= 0x80:
            end += 1
        self.usable &= end < len(self.record) and end - self.position < _WIDEST
        return end + 1 - self.position

    def fits(self, table: Bytes) -> bool:
        same = np.ones(len(self.record), dtype=bool)
        same[[*self.names, *self.carried, *self.last]] = False
        original = np.frombuffer(self.record, dtype=np.uint8)
        return bool(
            (table[:, same] == original[same]).all()
            and _NAME_BYTES[table[:, self.names]].all()
            and (table[:, self.carried] >= 0x80).all()
            and (table[:, self.last] < 0x80).all()
            and table[:, self.not_zero].all()
        )

    def ids(self, table: Bytes) -> npt.NDArray[np.int64]:
        parts = [(table[:, place].astype(np.int64) & 0x7F) << 7 * rank for rank, place in enumerate(self.id_bytes)]
        total: npt.NDArray[np.int64] = np.sum(parts, axis=0, dtype=np.int64)
        return total


def _number(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * rank for rank, byte in enumerate(varint))


def _mould(record: bytes) -> _Mould | None:
    """The mould of a sound record with one data file and nothing else beside id and rows; None for any other."""
    fragment = pb.DataFragment.FromString(record)
    if len(fragment.files) != 1:
        return None
    file = fragment.files[0]
    columns = pb.DataFile(
        fields=file.fields,
        column_indices=file.column_indices,
        file_major_version=file.file_major_version,
        file_minor_version=file.file_minor_version,
    ).SerializeToString(deterministic=True)
    mould = _Mould(record)
    mould.tag(_ID)
    mould.id_bytes = mould.number()
    mould.tag(_FILES)
    length = mould.length()
    end_of_file = mould.position + length
    mould.tag(_PATH)
    mould.name(mould.length())
    mould.literal(columns)
    mould.tag(_FILE_SIZE)
    mould.number()
    mould.usable &= mould.position == end_of_file
    mould.tag(_PHYSICAL_ROWS)
    mould.not_zero.append(mould.number()[-1])
    return mould if mould.usable and mould.position == len(record) else None
