"""Statistics of columns of data files, as values and as bytes of a record.

A data file never changes, so what is said of its columns holds for as long as it is there: deleted rows are among its values, and bounds
stay bounds. Columns are known by their place in the file, which no later version gives another number. A record begins with a digest of
the rest; one that is damaged, cut short or of a later kind says nothing, and a file of which nothing is said is read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import xxhash

Value: TypeAlias = int | float | str
"""A value in a form that Python compares as the format does: days, ticks and unscaled decimals are whole numbers."""

MOST_BYTES: Final = 64 * 1024**2
"""A record that is larger, packed, is not read."""
_MOST_UNPACKED: Final = 512 * 1024**2
_KIND: Final = b"tiltyard statistics 1 "
_PREFIX: Final = 64
"""Characters of text that are kept; more would make records long, and prune little."""
_LAST: Final = "\U0010ffff"
_WHOLE: Final = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "date32:day"})
_FLOATS: Final = frozenset({"float", "double"})
_TEXT: Final = frozenset({"string", "large_string"})


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What one column of one data file holds, deleted rows included.

    Attributes:
        type: the logical type that the values were written as.
        nulls: how many are null.
        low: no value is below it; None where there are no values, or none that can be compared (NaN).
        high: no value is above it.
        exact: whether low and high are values of the file, not only bounds.
        distinct: a sketch of which values there are, where somebody looked at each (``verbs.statistics.distinct``).
    """

    type: str
    nulls: int
    low: Value | None = None
    high: Value | None = None
    exact: bool = True
    distinct: str | None = None


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """What is known of one data file: its size and rows, by which it is told from another, and its columns by their place in it."""

    size: int
    rows: int
    columns: Mapping[int, ColumnStatistics]


def is_counted(logical: str) -> bool:
    """Whether statistics are kept of a column of this type: those whose order is the same for everybody who reads them."""
    return logical in _WHOLE or logical in _FLOATS or logical in _TEXT or logical.startswith(("timestamp:", "decimal:128:"))


def cut(low: str, high: str) -> tuple[str, str | None, bool]:
    """Bounds of text by its beginning: the lower one is cut, the upper one is the next text after all that begin like it.

    Returns:
        Both bounds, the upper one None where there is no next text; and whether they are still the values themselves.
    """
    above: str | None = high
    if len(high) > _PREFIX:
        kept = high[:_PREFIX].rstrip(_LAST)
        above = kept[:-1] + _next(kept[-1]) if kept else None
    return low[:_PREFIX], above, len(low) <= _PREFIX and len(high) <= _PREFIX


def _next(character: str) -> str:
    """The next one that text can hold: halves of surrogate pairs are no characters."""
    return "\ue000" if character == "\ud7ff" else chr(ord(character) + 1)


# ---- records ---------------------------------------------------------------------------------------------------------------


def encode_statistics(files: Mapping[str, FileStatistics]) -> bytes:
    """A record of statistics, by names of data files."""
    told = {name: [file.size, file.rows, {str(at): _told(column) for at, column in file.columns.items()}] for name, file in files.items()}
    body = zlib.compress(json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"), 1)
    return _KIND + xxhash.xxh3_64(body).hexdigest().encode() + b"\n" + body


def decode_statistics(data: bytes) -> dict[str, FileStatistics] | None:
    """What ``encode_statistics`` wrote; None where it is damaged or of another kind: then nothing is known of any file."""
    head, _, body = data[:64].partition(b"\n")
    body = data[len(head) + 1 :]
    if not head.startswith(_KIND) or head[len(_KIND) :] != xxhash.xxh3_64(body).hexdigest().encode():
        return None
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(body, _MOST_UNPACKED)
        if unpacking.unconsumed_tail:
            return None
        told = json.loads(text)
        return {str(name): _file(file) for name, file in told.items()}
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None


def _told(column: ColumnStatistics) -> list[Any]:
    bounds = [bound.hex() if isinstance(bound, float) else bound for bound in (column.low, column.high)]
    return [column.type, column.nulls, *bounds, int(column.exact), *([column.distinct] if column.distinct is not None else [])]


def _file(told: Any) -> FileStatistics:
    size, rows, columns = told
    return FileStatistics(_count(size), _count(rows), {int(at): _column(column) for at, column in columns.items()})


def _column(told: Any) -> ColumnStatistics:
    logical, nulls, low, high, exact, *rest = told
    if not isinstance(logical, str) or not is_counted(logical) or exact not in (0, 1) or len(rest) > 1:
        raise ValueError(logical)
    distinct = rest[0] if rest else None
    if distinct is not None and not isinstance(distinct, str):
        raise ValueError(distinct)
    return ColumnStatistics(logical, _count(nulls), _value(low, logical), _value(high, logical), bool(exact), distinct)


def _value(told: Any, logical: str) -> Value | None:
    if told is None:
        return None
    if logical in _FLOATS:
        number = float.fromhex(told)
        if number != number:
            raise ValueError(told)
        return number
    wanted = str if logical in _TEXT else int
    if not isinstance(told, wanted) or isinstance(told, bool):
        raise ValueError(told)
    return told


def _count(told: Any) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or told < 0:
        raise ValueError(told)
    return told
