"""What each fragment of a sound manifest is like, member by member."""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.message import DecodeError

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import MAX_FRAGMENT_ID, MAX_FRAGMENT_ROWS, fragment_to_pb, parse_sound
from tiltyard.format.row_ids import decode_row_ids, decode_row_versions
from tiltyard.format.safe_text import check_relative
from tiltyard.format.values import NO_COLUMN, DataFragment

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


def check_new_fragment(fragment: DataFragment, source: str) -> None:
    """Refuses a fragment that no manifest may hold, before it has an id, row ids and bases to be checked against.

    Raises:
        CorruptTable: naming what is wrong with it; numbers that do not fit the wire are reported so too.
    """
    try:
        record = fragment_to_pb(fragment).SerializeToString(deterministic=True)
    except (ValueError, TypeError, DecodeError) as error:
        raise CorruptTable(source, f"fragment {fragment.id} cannot be written ({str(error)[:80]})") from error
    check_fragment(record, None, None, source)


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
    return f"holds row id {highest}, which was not given out yet" if highest >= next_row_id else None


def _row_versions(fragment: pb.DataFragment, version: int | None, source: str) -> str | None:
    """Row versions repeat the number of rows too, and none can come from the future."""
    for member in _ROW_VERSIONS:
        if not fragment.HasField(member):
            continue
        runs = decode_row_versions(getattr(fragment, member), physical_rows=fragment.physical_rows, source=source).runs
        newest = max((of_run for _, of_run in runs), default=0)
        if version is not None and newest > version:
            return f"has a row from version {newest}, which is yet to come"
    return None
