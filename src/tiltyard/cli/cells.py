"""Arrow values as JSON, and any text made safe for a terminal."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def plain(value: pa.Scalar) -> Any:
    """One value as JSON can hold it: moments as ISO 8601, bytes as base64, decimals and what is no number as text."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        return plain(value.value)
    if isinstance(value, pa.StructScalar):
        return {value.type.field(number).name: plain(value[number]) for number in range(value.type.num_fields)}
    if isinstance(value, pa.MapScalar):
        return [[plain(entry[0]), plain(entry[1])] for entry in value.values]  # by place: what they are called varies
    if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [plain(item) for item in value.values]
    if isinstance(value, pa.TimestampScalar):
        return _moment(value.value, value.type)
    return _simple(value)


def _simple(value: pa.Scalar) -> Any:
    if isinstance(value, pa.DurationScalar | pa.Time64Scalar):
        return _since_midnight(value) if isinstance(value, pa.Time64Scalar) else f"{value.value} {value.type.unit}"
    try:
        found = value.as_py()
    except (OverflowError, ValueError):  # a day beyond Python's calendar, bytes that are no text
        return _raw(value)
    if found is None or isinstance(found, bool | int | str):
        return found
    if isinstance(found, float):
        return found if math.isfinite(found) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(found, "NaN")
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    return found.isoformat() if hasattr(found, "isoformat") else str(found)


def _raw(value: pa.Scalar) -> str:
    """A value that Python has no room for, as it is stored."""
    if isinstance(value, pa.Date32Scalar | pa.Date64Scalar):
        return f"{value.value} {'d' if isinstance(value, pa.Date32Scalar) else 'ms'}"
    if isinstance(value, pa.StringScalar | pa.LargeStringScalar | pa.StringViewScalar):
        return bytes(value.as_buffer()).decode("utf-8", "backslashreplace")
    return f"unreadable {value.type}"


def _moment(count: int, kind: pa.TimestampType) -> str:
    """All digits of the unit, nanoseconds too, which Python's own type cannot hold."""
    seconds, rest = divmod(count, _PER_SECOND[kind.unit])
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{count} {kind.unit}"
    digits = _DIGITS[kind.unit]
    fraction = f".{rest:0{digits}}" if digits else ""
    return f"{text}{fraction}{'+00:00' if kind.tz else ''}"


def _since_midnight(value: pa.Time64Scalar) -> str:
    seconds, rest = divmod(value.value, _PER_SECOND[value.type.unit])
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:0{_DIGITS[value.type.unit]}}"


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, each a JSON object."""
    columns = [[plain(value) for value in column] for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def cell(value: Any, limit: int) -> str:
    """A value that ``plain`` gave, on one line of at most ``limit`` characters."""
    if value is None:
        return "null"
    if isinstance(value, list) and len(value) > 8:
        return _fit(safe(", ".join(_inner(item) for item in value[:3])), limit - 20, before="[", after=f", ... {len(value):,} values]")
    return _fit(safe(value if isinstance(value, str) else _inner(value)), limit)


def _inner(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _fit(text: str, limit: int, before: str = "", after: str = "") -> str:
    return f"{before}{text if len(text) <= limit else text[: max(limit - 3, 0)] + '...'}{after}"


def safe(text: str) -> str:
    """Text of unknown origin without anything a terminal would obey: control characters are spelled out."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
