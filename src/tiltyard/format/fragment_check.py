"""Is every fragment of a manifest sound? Asked of each manifest that is read, so it has to be quick.

Nearly all fragments are written in one way: members in the order of their numbers, row ids and row versions in one run. Such records are
read all at once (``Walk``) and their numbers compared in bulk. Any other, and any that something seems wrong with, is decoded and
looked at member by member: ``check_fragment`` alone refuses, the quick way only spares it the records that it would have accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import MAX_FRAGMENT_ID, MAX_FRAGMENT_ROWS, length_delimited
from tiltyard.format.fragments import check_fragment

_FEWEST: Final = 48
"""Records that make reading them all at once worth its while."""
_AT_ONCE: Final = 8192
"""Records that are read together: as many as the processor's caches hold."""
_MOST_FILES: Final = 8
"""Data files of a fragment that is read the quick way."""
_MOST_SCHEMAS: Final = 8
"""Ways to say which field lies in which column, among the records read together."""
_SPACE: Final = 2**62
"""Bounds are cut to this, so that sums stay within 63 bits."""

_NAME_BYTES: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
_IN_NAMES: Final = np.isin(np.arange(256), list(_NAME_BYTES))
_ENDING: Final = np.frombuffer(b".lance", np.uint8)
_LONGEST_NAME: Final = 106

# Tags, each the number of a member and its wire type in one byte.
_ID, _FILES, _DELETION, _PHYSICAL_ROWS, _ROW_IDS, _UPDATED_AT, _CREATED_AT = 0x08, 0x12, 0x1A, 0x20, 0x2A, 0x3A, 0x4A
_PATH, _FIELDS, _COLUMNS, _MAJOR, _MINOR, _SIZE, _BASE = 0x0A, 0x12, 0x1A, 0x20, 0x28, 0x30, 0x38
_KIND, _READ_VERSION, _DELETION_ID, _DELETED = 0x08, 0x10, 0x18, 0x20
_FIRST_MESSAGE, _START, _END, _RUN_VERSION = 0x0A, 0x08, 0x10, 0x10


@dataclass(frozen=True, slots=True)
class _Table:
    """What the manifest says beside its fragments."""

    source: str
    base_ids: frozenset[int]
    next_row_id: int | None
    version: int | None


def check_fragments(
    records: Sequence[bytes],
    source: str,
    *,
    above: int = -1,
    highest: int | None,
    base_ids: frozenset[int],
    next_row_id: int | None = None,
    version: int | None = None,
    counted: bool = True,
) -> None:
    """Refuses what no sound manifest has: repeated or too high ids, absurd counts, paths that leave the table.

    Args:
        records: the fragments as they stand in the manifest, those checked before left out.
        source: the file, for messages.
        above: ids up to here are taken by fragments checked before.
        highest: the highest id ever given out, None where the table does not record it.
        base_ids: the bases a file may lie in.
        next_row_id: the first stable row id not yet given out; None where the table has no stable row ids.
        version: the manifest's version, which no row can be newer than; None where row versions are not numbers of versions in order.
        counted: whether its writer is one that counted rows.

    Raises:
        CorruptTable: naming the fragment and what is wrong with it.
    """
    if not records:
        return
    table = _Table(source, base_ids, next_row_id, version)
    ids = np.full(len(records), -1)
    if len(records) >= _FEWEST:
        ids = np.concatenate([_plain_ids(records[start : start + _AT_ONCE], table) for start in range(0, len(records), _AT_ONCE)])
    for access in np.flatnonzero(ids < 0).tolist():
        ids[access] = check_fragment(records[access], base_ids, next_row_id, source, version=version, counted=counted)
    _check_ids(ids, above, highest, source)


def _check_ids(ids: Numbers, above: int, highest: int | None, source: str) -> None:
    ordered = np.sort(ids)
    doubled = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(doubled) or ordered[0] <= above:
        raise CorruptTable(source, f"fragment {doubled[0] if len(doubled) else ordered[0]} is listed twice in the manifest")
    if highest is not None and ordered[-1] > highest:
        # Ids above the highest one given out would be given out again.
        raise CorruptTable(source, f"fragment {ordered[-1]} has an id above the highest assigned one, {highest}")


# ---- many records at once --------------------------------------------------------------------------------------------------


def _plain_ids(records: Sequence[bytes], table: _Table) -> Numbers:
    """The id of each record that is sound and plain; -1 for those that need a closer look."""
    walk = Walk(records)
    everyone = np.ones(len(records), dtype=bool)
    ids = walk.number(walk.tagged(_ID, everyone))
    schemas = _files(walk, everyone, table)
    deleted = _deletions(walk, everyone, table)
    rows = walk.number(walk.tagged(_PHYSICAL_ROWS, everyone))
    walk.odd |= (ids > MAX_FRAGMENT_ID) | (rows < 1) | (rows > MAX_FRAGMENT_ROWS) | (deleted > rows)
    if table.next_row_id is not None:
        with_ids = walk.tagged(_ROW_IDS, everyone)
        walk.odd |= ~with_ids
        _row_ids(walk, with_ids, rows, table.next_row_id)
    for member in (_UPDATED_AT, _CREATED_AT):
        _row_versions(walk, walk.tagged(member, everyone), rows, table.version)
    walk.odd |= walk.at != walk.end
    _check_schemas(walk, schemas, table)
    return np.where(walk.odd, -1, ids)


def _files(walk: Walk, everyone: Rows, table: _Table) -> list[tuple[Numbers, Numbers]]:
    """Reads the data files. Returns, for the first file of each record, the second and so on, where its columns are described.

    A record with fewer files has an empty span there.
    """
    spans: list[tuple[Numbers, Numbers]] = []
    while len(spans) < _MOST_FILES and (found := walk.tagged(_FILES, everyone)).any():
        outer = walk.enter(found)
        _name(walk, found)
        start = walk.at.copy()
        for packed in (_FIELDS, _COLUMNS):
            those = walk.tagged(packed, found)
            walk.skip(those, walk.length(those))
        for part in (_MAJOR, _MINOR):
            walk.number(walk.tagged(part, found))
        spans.append((start, walk.at.copy()))
        walk.number(walk.tagged(_SIZE, found), WIDEST_OPAQUE)
        _base(walk, found, table)
        walk.leave(found, outer)
    return spans


def _name(walk: Walk, rows: Rows) -> None:
    """A path without any directory, of letters, digits, dashes and the usual ending."""
    named = walk.tagged(_PATH, rows)
    lengths = walk.length(named)
    walk.odd |= (rows & ~named) | (named & ((lengths <= len(_ENDING)) | (lengths > _LONGEST_NAME)))
    plain = named & ~walk.odd
    for length in np.unique(lengths[plain]).tolist():
        which = np.flatnonzero(plain & (lengths == length))
        names = walk.windows(which, walk.at, length)
        cut = length - len(_ENDING)
        stems, endings = names[:, :cut], names[:, cut:]
        if stems.tobytes().translate(None, _NAME_BYTES) or (endings != _ENDING).any():  # seldom: only then is it worth while to look whose
            walk.odd[which] |= ~_IN_NAMES[stems].all(axis=1) | (endings != _ENDING).any(axis=1)
    walk.skip(named, lengths)


def _base(walk: Walk, rows: Rows, table: _Table) -> None:
    based = walk.tagged(_BASE, rows)
    if based.any():
        walk.odd |= based & ~np.isin(walk.number(based), sorted(table.base_ids))


def _check_schemas(walk: Walk, spans: list[tuple[Numbers, Numbers]], table: _Table) -> None:
    """Which field lies in which column is said in a few ways only, however many fragments there are: each is looked at once."""
    left = np.flatnonzero(~walk.odd)
    for _ in range(_MOST_SCHEMAS):
        if not spans or not len(left):
            return
        files = tuple(walk.joined[start[left[0]] : end[left[0]]] for start, end in spans)
        alike = np.ones(len(left), dtype=bool)
        for (start, end), file in zip(spans, files, strict=True):
            alike &= end[left] - start[left] == len(file)
            if file and alike.any():
                found = walk.windows(left[alike], start, len(file))
                alike[alike] = (found == np.frombuffer(file, dtype=np.uint8)).all(axis=1)
        if not _schema_is_sound(files, table):
            walk.odd[left[alike]] = True
        left = left[~alike]
    walk.odd[left] = True


def _schema_is_sound(files: tuple[bytes, ...], table: _Table) -> bool:
    path = pb.DataFile(path="x.lance").SerializeToString()
    sample = pb.DataFragment(physical_rows=1).SerializeToString()
    record = b"".join([*(length_delimited(2, path + file) for file in files if file), sample])
    try:
        check_fragment(record, table.base_ids, None, table.source)
    except CorruptTable:
        return False  # those who say so are refused one by one, with their own names
    return True


def _deletions(walk: Walk, everyone: Rows, table: _Table) -> Numbers:
    """Reads the entries of deletion files; returns how many rows each hides."""
    found = walk.tagged(_DELETION, everyone)
    if not found.any():
        return np.zeros(len(everyone), np.int64)
    outer = walk.enter(found)
    walk.odd |= walk.number(walk.tagged(_KIND, found)) > pb.DeletionFile.BITMAP
    for member in (_READ_VERSION, _DELETION_ID):
        walk.number(walk.tagged(member, found), WIDEST_OPAQUE)
    deleted = walk.number(walk.tagged(_DELETED, found))
    _base(walk, found, table)
    walk.leave(found, outer)
    return deleted


def _row_ids(walk: Walk, rows: Rows, counts: Numbers, next_row_id: int) -> None:
    """One range of row ids."""
    ends = _range(walk, rows, 3, counts)
    walk.odd |= rows & (ends > min(next_row_id, _SPACE))


def _row_versions(walk: Walk, rows: Rows, counts: Numbers, version: int | None) -> None:
    """One run of one version."""
    if not rows.any():
        return
    outer = walk.enter(rows)
    walk.odd |= rows & ~walk.tagged(_FIRST_MESSAGE, rows)
    run = walk.enter(rows)
    walk.odd |= rows & ~walk.tagged(_FIRST_MESSAGE, rows)
    _range(walk, rows, 2, counts)
    versions = walk.number(walk.tagged(_RUN_VERSION, rows))
    if version is not None:
        walk.odd |= rows & (versions > min(version, _SPACE))
    walk.leave(rows, run)
    walk.leave(rows, outer)


def _range(walk: Walk, rows: Rows, depth: int, counts: Numbers) -> Numbers:
    """A range as long as ``counts``, so many messages deep; all but the first of their tags are still to come. Returns its ends."""
    outer = [walk.enter(rows)]
    for _ in range(depth - 1):
        walk.odd |= rows & ~walk.tagged(_FIRST_MESSAGE, rows)
        outer.append(walk.enter(rows))
    starts = walk.number(walk.tagged(_START, rows))
    ends = walk.number(walk.tagged(_END, rows))
    walk.odd |= rows & ((ends > _SPACE) | (starts > ends) | (ends - starts != counts))
    while outer:
        walk.leave(rows, outer.pop())
    return ends


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
