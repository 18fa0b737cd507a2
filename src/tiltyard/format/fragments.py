"""The fragments of a manifest, decoded only where somebody looks.

A manifest may name a hundred thousand fragments, and most commits touch none or one of them. A ``FragmentList`` keeps the wire bytes
of each and turns one into a value when asked; ``appended`` remembers that it only adds, so that a commit can splice bytes.
``check_fragment`` says what a sound one is like, member by member.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar, cast, overload

from google.protobuf.message import DecodeError, Message

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import (
    MAX_FRAGMENT_ID,
    MAX_FRAGMENT_ROWS,
    deletion_file_from_pb,
    fragment_from_pb,
    fragment_to_pb,
    parse_sound,
    varint,
)
from tiltyard.format.row_ids import decode_row_ids, decode_row_versions
from tiltyard.format.safe_text import check_relative
from tiltyard.format.values import NO_COLUMN, DataFragment

FRAGMENTS_TAG = 2

AnyMessage = TypeVar("AnyMessage", bound=Message)


class FragmentList(Sequence[DataFragment]):
    """An immutable sequence of fragments, in the order of the manifest."""

    __slots__ = ("_base", "_check", "_ids", "_items", "_message", "_source", "_wire")

    def __init__(
        self,
        values: Iterable[DataFragment | bytes] = (),
        *,
        source: str = "manifest",
        base: FragmentList | None = None,
        message: bytes = b"",
    ) -> None:
        self._source = source
        self._message = message
        self._base = base
        self._items: list[DataFragment | bytes] | None = None if message else list(values)
        self._ids: list[int] | None = None
        self._check: Callable[[], None] | None = None
        self._wire: bytes | None = None

    @classmethod
    def from_message(cls, message: bytes, source: str, records: Iterable[bytes] | None = None) -> FragmentList:
        """The fragments of a serialized manifest; nothing is decoded yet. ``records`` are those it has, if they are at hand."""
        made = cls(source=source, message=message)
        if records is not None:
            made._items = list(records)
        return made

    def check_later(self, check: Callable[[], None]) -> None:
        """Has the fragments checked before anybody sees the first of them; one that fails will be run again."""
        self._check = check

    @property
    def checked(self) -> bool:
        return self._check is None

    def settle(self) -> None:
        """Runs the check that was put off, if there is one.

        Raises:
            CorruptTable: what it found.
        """
        if self._check is not None:
            self._check()
            self._check = None

    def _records(self) -> list[DataFragment | bytes]:
        self.settle()
        if self._items is None:
            self._items = list(_parse(pb.ManifestHead, self._message, self._source).fragments)
        return self._items

    def __len__(self) -> int:
        return len(self._records()) + (len(self._base) if self._base is not None else 0)

    def __iter__(self) -> Iterator[DataFragment]:
        if self._base is not None:
            yield from self._base
        for position, item in enumerate(self._records()):
            yield self._own(position) if isinstance(item, bytes) else item

    def in_passing(self) -> Iterator[DataFragment]:
        """Each decoded and not kept: who looks at all of very many once leaves no values behind, and they stay the bytes that they were."""
        for item in self._flat():
            yield decode_fragment(item, self._source) if isinstance(item, bytes) else item

    def row_counts(self) -> list[tuple[int, int, int]]:
        """Id, rows and live rows of each; nothing else is decoded."""
        return [(found.id, found.physical_rows, found.physical_rows - found.deletion_file.num_deleted_rows) for found in self._summaries()]

    @overload
    def __getitem__(self, index: int) -> DataFragment: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[DataFragment, ...]: ...

    def __getitem__(self, index: int | slice) -> DataFragment | tuple[DataFragment, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        below = len(self._base) if self._base is not None else 0
        position = index + below + len(self._records()) if index < 0 else index
        if position < 0:
            raise IndexError(index)
        if self._base is not None and position < below:
            return self._base[position]
        return self._own(position - below)

    def _own(self, position: int) -> DataFragment:
        records = self._records()
        item = records[position]
        if isinstance(item, bytes):
            item = decode_fragment(item, self._source)
            records[position] = item
        return item

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FragmentList):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(fragment.id for fragment in self))

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def appended(self, added: Iterable[DataFragment]) -> FragmentList:
        """These fragments and then ``added``, remembered as an extension of this very list."""
        self.settle()
        return FragmentList(added, source=self._source, base=self)

    def extension_of(self, base: FragmentList) -> Sequence[DataFragment] | None:
        """What was added to ``base`` to make this list, or None if it came about otherwise."""
        if self._base is not base:
            return None
        return [self._own(position) for position in range(len(self._records()))]

    def changed(self, changes: Mapping[int, DataFragment | None], added: Iterable[DataFragment] = ()) -> FragmentList:
        """These fragments with some replaced (by id) or left out (None), then ``added``; untouched ones keep their bytes."""
        kept: list[DataFragment | bytes] = []
        ids: list[int] = []
        for item, fragment_id in zip(self._flat(), self.ids(), strict=True):
            replacement = changes.get(fragment_id, item)
            if replacement is not None:
                kept.append(replacement)
                ids.append(fragment_id if replacement is item else cast(DataFragment, replacement).id)
        new = list(added)
        result = FragmentList([*kept, *new], source=self._source)
        result._ids = [*ids, *(fragment.id for fragment in new)]
        return result

    def in_order(self) -> FragmentList:
        """The same fragments by ascending id; this very list where they are so already."""
        ids = self.ids()
        if all(number < two for number, two in pairwise(ids)):
            return self
        flat, order = self._flat(), sorted(range(len(ids)), key=ids.__getitem__)
        return FragmentList([flat[place] for place in order], source=self._source)

    def _flat(self) -> list[DataFragment | bytes]:
        below = self._base._flat() if self._base is not None else []
        return [*below, *self._records()]

    def ids(self) -> list[int]:
        if self._ids is None:
            if self._message:
                self._ids = [fragment.id for fragment in self._summaries()]
            else:
                own = [item.id if isinstance(item, DataFragment) else _summary(item, self._source).id for item in self._records()]
                self._ids = [*(self._base.ids() if self._base is not None else ()), *own]
        return list(self._ids)

    def physical_rows(self) -> int:
        return sum(fragment.physical_rows for fragment in self._summaries())

    def live_rows(self) -> int:
        return sum(live for _, _, live in self.row_counts())

    def with_deletions(self) -> list[DataFragment]:
        """Those that name a deletion file; only they are decoded."""
        return [self[position] for position, found in enumerate(self._summaries()) if found.HasField("deletion_file")]

    def has_deletions(self) -> bool:
        return any(fragment.HasField("deletion_file") for fragment in self._summaries())

    def _summaries(self) -> Sequence[pb.FragmentSummary]:
        self.settle()
        return _parse(pb.ManifestSummaries, self._message or self.wire(), self._source).fragments

    def records(self) -> list[bytes]:
        """Each fragment as its wire bytes: what two versions have alike need not be decoded twice."""
        return [item if isinstance(item, bytes) else fragment_to_pb(item).SerializeToString(deterministic=True) for item in self._flat()]

    def wire(self) -> bytes:
        """All fragments as they stand in a manifest message, and nothing else."""
        if self._wire is None:
            parts: list[bytes] = []
            for record in self.records():
                parts += (_HEADERS[len(record)] if len(record) < len(_HEADERS) else _header(len(record)), record)
            self._wire = b"".join(parts)
        return self._wire


def _header(length: int) -> bytes:
    """What stands before a fragment of so many bytes in a manifest message."""
    return varint(FRAGMENTS_TAG << 3 | 2) + varint(length)


_HEADERS: Final = tuple(map(_header, range(1024)))


def encode_fragment_record(item: DataFragment | bytes) -> bytes:
    """One fragment as a record of a manifest message."""
    record = item if isinstance(item, bytes) else fragment_to_pb(item).SerializeToString(deterministic=True)
    return (_HEADERS[len(record)] if len(record) < len(_HEADERS) else _header(len(record))) + record


def decode_fragment(data: bytes, source: str) -> DataFragment:
    return fragment_from_pb(_parse(pb.DataFragment, data, source), source)


def files_named(data: bytes, source: str) -> Iterator[tuple[str, int | None]]:
    """The files that a fragment names, by path below the root and base; of one that was checked, and quicker than decoding it."""
    fragment = _parse(pb.DataFragment, data, source)
    for file in fragment.files:
        yield f"data/{file.path}", file.base_id if file.HasField("base_id") else None
    if fragment.HasField("deletion_file"):
        deletion = deletion_file_from_pb(fragment.deletion_file, MAX_FRAGMENT_ROWS, source)
        yield deletion.path(fragment.id), deletion.base_id


def _summary(data: bytes, source: str) -> pb.FragmentSummary:
    return _parse(pb.FragmentSummary, data, source)


def _parse(kind: type[AnyMessage], data: bytes, source: str) -> AnyMessage:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise CorruptTable(source, f"the fragments cannot be decoded ({error})") from error


# ---- what a sound one is like ----------------------------------------------------------------------------------------------------

_PLAIN_PATH: Final = re.compile(r"[0-9A-Za-z_-]{1,100}\.lance", re.ASCII)
"""The names that data files usually have; any other is looked at more closely."""
_RETIRED: Final = ("external_row_ids", "external_last_updated_at_versions", "external_created_at_versions")
_ROW_VERSIONS: Final = ("inline_last_updated_at_versions", "inline_created_at_versions")


def check_fragment(
    record: bytes,
    base_ids: frozenset[int] | None,
    next_row_id: int | None,
    source: str,
    *,
    version: int | None = None,
    counted: bool = True,
) -> int:
    """Refuses a fragment that no writer makes; returns its id.

    Args:
        record: the serialized fragment.
        base_ids: the bases a file may lie in; None if any will do.
        next_row_id: the first stable row id not given out yet; None where rows have no such ids.
        source: the file it stands in, for messages.
        version: the version it stands in, which no row is newer than; None if unknown.
        counted: whether its writer counted rows; those of the first releases did not, or did so wrongly.

    Raises:
        CorruptTable: naming the fragment and what is wrong with it.
    """
    fragment = parse_sound(pb.DataFragment, record, "a fragment", source)
    sure = counted or not _is_legacy(fragment)
    problem = _numbers(fragment, sure) or _files(fragment, base_ids, source) or _deletions(fragment, base_ids, sure)
    if problem is None and next_row_id is not None:
        problem = _row_ids(fragment, next_row_id, source)
    problem = problem or _row_versions(fragment, version, source)
    if problem is not None:
        raise CorruptTable(source, f"fragment {fragment.id} {problem}")
    return int(fragment.id)


def check_new_fragment(fragment: DataFragment, base_ids: frozenset[int] | None, source: str) -> None:
    """Refuses a fragment that no manifest may hold, before it has an id and row ids; ``base_ids`` as for ``check_fragment``.

    Raises:
        CorruptTable: naming what is wrong with it; numbers that do not fit the wire are reported so too.
    """
    try:
        record = fragment_to_pb(fragment).SerializeToString(deterministic=True)
    except (ValueError, TypeError, DecodeError) as error:
        raise CorruptTable(source, f"fragment {fragment.id} cannot be written ({str(error)[:80]})") from error
    check_fragment(record, base_ids, None, source)


def _numbers(fragment: pb.DataFragment, sure: bool) -> str | None:
    rows = fragment.physical_rows
    if fragment.id > MAX_FRAGMENT_ID:
        return "has an id that does not fit 32 bits"
    if rows > MAX_FRAGMENT_ROWS:
        return f"claims {rows} rows"
    if not rows and fragment.files and sure:
        return "does not say how many rows it has"
    return next((f"uses the retired member {member}" for member in _RETIRED if fragment.HasField(member)), None)


def _is_legacy(fragment: pb.DataFragment) -> bool:
    """Whether it is of the first data format, the only one that those writers knew."""
    return bool(fragment.files) and all(file.file_major_version == 0 for file in fragment.files)


def _files(fragment: pb.DataFragment, base_ids: frozenset[int] | None, source: str) -> str | None:
    for file in fragment.files:
        if _PLAIN_PATH.fullmatch(file.path) is None:
            check_relative(file.path, source)
        if base_ids is not None and file.HasField("base_id") and file.base_id not in base_ids:
            return f"lies in base {file.base_id}, which the manifest does not list"
        columns = list(file.column_indices)
        if len(columns) != len(file.fields) and (columns or file.file_major_version >= 2):
            return f"has {len(file.fields)} fields but {len(columns)} columns in one file"
        if columns and (min(columns) < NO_COLUMN or _repeat(columns)):
            return "reads two fields from one column"
    fields = [field for file in fragment.files for field in file.fields]
    return "holds one field twice" if _repeat(fields) else None


def _repeat(numbers: list[int]) -> bool:
    """Whether a number stands there twice; negative ones have meanings of their own and may."""
    if len(set(numbers)) == len(numbers):
        return False
    own = [number for number in numbers if number >= 0]
    return len(set(own)) != len(own)


def _deletions(fragment: pb.DataFragment, base_ids: frozenset[int] | None, sure: bool) -> str | None:
    if not fragment.HasField("deletion_file"):
        return None
    deletion = fragment.deletion_file
    if deletion.file_type not in (pb.DeletionFile.ARROW_ARRAY, pb.DeletionFile.BITMAP):
        return f"has deletions in a file of the unknown type {deletion.file_type}"
    if deletion.num_deleted_rows > fragment.physical_rows and sure:
        return f"hides {deletion.num_deleted_rows} of {fragment.physical_rows} rows"
    if base_ids is not None and deletion.HasField("base_id") and deletion.base_id not in base_ids:
        return f"has deletions in base {deletion.base_id}, which the manifest does not list"
    return None


def _row_ids(fragment: pb.DataFragment, next_row_id: int, source: str) -> str | None:
    """Row ids repeat the number of rows, so that a wrong one shows; and an id beyond the next one would be given out twice."""
    if fragment.HasField("column_row_ids"):
        return None
    if not fragment.HasField("inline_row_ids"):
        return "has no row ids"
    highest = decode_row_ids(fragment.inline_row_ids, physical_rows=fragment.physical_rows, source=source).highest()
    return f"holds row id {highest}, which is not assigned yet" if highest >= next_row_id else None


def _row_versions(fragment: pb.DataFragment, version: int | None, source: str) -> str | None:
    """Row versions repeat the number of rows too, and none can come from the future."""
    for member in _ROW_VERSIONS:
        if not fragment.HasField(member):
            continue
        runs = decode_row_versions(getattr(fragment, member), physical_rows=fragment.physical_rows, source=source).runs
        newest = max((of_run for _, of_run in runs), default=0)
        if version is not None and newest > version:
            return f"has a row from version {newest}, which is later than this version"
    return None
