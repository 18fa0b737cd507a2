"""Which fragments a condition can hold for any row of, by bounds of their columns.

A fragment is left out only where it is certain that the condition is true for none of its rows, in SQL's logic of three values: null is
neither true nor false. Doubt of any kind - a type, a literal, a statistic that is missing - keeps it in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

import numpy as np

from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.statistics import ColumnStatistics, Value
from tiltyard.verbs.statistics.bounded_conditions import (
    Among,
    AnyAnswer,
    Both,
    Condition,
    Literal,
    NanTest,
    Not,
    NullTest,
    columns_of,
    understood,
)
from tiltyard.verbs.statistics.lookup import FragmentStatistics, fragment_statistics

if TYPE_CHECKING:
    from tiltyard.verbs.engine.access import TableAccess

FROM_ROWS = 1 << 16
"""Rows of a version from which statistics are looked for: fewer are read sooner."""

_INVERSE: Final = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_WHOLE: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_ARROW_UNITS: Final = {"Second": "s", "Millisecond": "ms", "Microsecond": "us", "Nanosecond": "ns"}
_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_MOMENT: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?(Z|\+00:00)?", re.ASCII)
_EPOCH: Final = date(1970, 1, 1)
_UTC: Final = ("UTC", "+00:00", "Z", "Etc/UTC")
_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)


def kept_fragments(access: TableAccess, manifest: Manifest, sql: str | None) -> list[int] | None:
    """Ids of the fragments that a condition can hold for any row of, in order; None where all have to be read.

    At least one is kept, so that a scan has something to begin with. Where an index knows a column of the condition, that is better.
    """
    if sql is None or not isinstance(sql, str) or len(manifest.fragments) < 2 or manifest.fragments.live_rows() < FROM_ROWS:
        return None
    condition = understood(sql, tuple(field.name for field in manifest.fields if field.parent_id < 0))
    names = columns_of(condition)
    if not names or _is_indexed(manifest, names):
        return None
    known = fragment_statistics(access, manifest, names)
    kept = [fragment.id for fragment in known if may_hold(condition, fragment)]
    if len(kept) == len(known):
        return None
    return kept or [min(known, key=lambda fragment: fragment.rows).id]


def fragments_that_may_hold(access: TableAccess, manifest: Manifest, sql: str) -> set[int]:
    """Ids of the fragments that a condition may hold for any row of; of what nothing is known it may."""
    condition = understood(sql, tuple(field.name for field in manifest.fields if field.parent_id < 0))
    known = fragment_statistics(access, manifest, columns_of(condition))
    return {fragment.id for fragment in known if may_hold(condition, fragment)}


def _is_indexed(manifest: Manifest, names: Collection[str]) -> bool:
    ids = {field.id for field in manifest.fields if field.name in names}
    return any(ids.intersection(index.fields) for index in decode_indices(manifest, f"version {manifest.version}"))


def may_hold(condition: Condition, fragment: FragmentStatistics, wanted: bool = True) -> bool:
    """Whether a condition may be true (or false, if that is wanted) for any row of a fragment."""
    if isinstance(condition, Not):
        return may_hold(condition.part, fragment, not wanted)
    if isinstance(condition, Both):
        every = (condition.operator == "and") == wanted
        parts = (may_hold(part, fragment, wanted) for part in condition.parts)
        return all(parts) if every else any(parts)
    if isinstance(condition, AnyAnswer):
        return True
    column = fragment.columns.get(condition.column)
    if column is None:
        return True
    if isinstance(condition, NullTest):
        return column.nulls > 0 if wanted else column.nulls < fragment.rows
    if column.nulls == fragment.rows:
        return False  # null compared with anything is neither
    if column.low is None or column.high is None:
        return True
    if isinstance(condition, NanTest):
        return not wanted  # what has bounds has no NaN
    if isinstance(condition, Among):
        return not wanted or any(_may_compare("=", column, literal) for literal in condition.literals)
    return _may_compare(condition.operator if wanted else _INVERSE[condition.operator], column, condition.literal)


@dataclass(frozen=True, slots=True)
class Between:
    """Where a literal lies in a column's order: between these two, and exactly there if they are equal and it is sure."""

    low: Value
    high: Value
    sure: bool = True


def _may_compare(operator: str, column: ColumnStatistics, literal: Literal) -> bool:
    value = position(literal, column)
    low, high = column.low, column.high
    if value is None or low is None or high is None:
        return True
    below, above = _less(high, value.low), _less(value.high, low)
    if operator == "=":
        return not below and not above
    if operator == "!=":
        return not (value.sure and column.exact and low == high == value.low)
    strict = value.sure and operator in ("<", ">")
    if operator in ("<", "<="):
        return not above and not (strict and low == value.low)
    return not below and not (strict and high == value.low)


def _less(left: Value, right: Value) -> bool:
    """Both are of one kind: ``position`` sees to that."""
    return left < right  # type: ignore[operator]


# ---- literals --------------------------------------------------------------------------------------------------------------


def position(literal: Literal, column: ColumnStatistics) -> Between | None:
    """Where a literal lies among the values of a column; None where that depends on how it is converted."""
    kind = column.type
    if kind in ("string", "large_string"):
        return Between(literal.text, literal.text) if literal.kind == "string" else None
    if kind == "bool":
        number = int(literal.text == "true")
        return Between(number, number) if literal.kind == "boolean" else None
    if kind in _WHOLE:
        return _whole(literal, 1)
    if kind in ("float", "double"):
        return _float(literal, kind)
    if kind == "date32:day":
        return _day(literal, column)
    if kind.startswith("decimal:"):
        return _decimal(literal, int(kind.rpartition(":")[2]))
    return _moment(literal, kind) if kind.startswith("timestamp:") else None


def _whole(literal: Literal, factor: int) -> Between | None:
    if literal.kind != "number" or not _NUMBER.fullmatch(literal.text) or len(literal.text) > 18:
        return None
    number = int(literal.text) * factor
    return Between(number, number)


def _float(literal: Literal, kind: str) -> Between | None:
    """Never sure: zeros of either sign are one number to Python, and floats may be compared as floats or as doubles."""
    if literal.kind != "number":
        return None
    number = float(literal.text)
    other = float(np.float32(number)) if kind == "float" and abs(number) < 3e38 else number
    if not np.isfinite(number) or (kind == "float" and abs(number) >= 3e38):
        return None
    return Between(min(number, other), max(number, other), sure=False)


def _decimal(literal: Literal, scale: int) -> Between | None:
    if scale < 0:
        return None
    if literal.kind == "number":
        return _whole(literal, 10**scale)
    if literal.kind != "decimal":
        return None
    try:
        sign, digits, exponent = Decimal(literal.text).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int) or not 0 <= exponent + scale <= 80:
        return None
    number = int("".join(map(str, digits))) * 10 ** (exponent + scale) * (-1 if sign else 1)
    return Between(number, number)


def _day(literal: Literal, column: ColumnStatistics) -> Between | None:
    """A date, or text that reads as one: as text, too, dates of four digits are in their order."""
    found = _DATE.fullmatch(literal.text) if literal.kind in ("date", "string") else None
    if found is None:
        return None
    try:
        number = (date(*map(int, found.groups())) - _EPOCH).days
    except ValueError:
        return None
    inside = all(isinstance(bound, int) and -719_162 <= bound <= 2_932_896 for bound in (column.low, column.high))
    return Between(number, number) if inside else None


def _moment(literal: Literal, kind: str) -> Between | None:
    """A moment in ticks of the column; not sure, since it may be compared in ticks of another length. Zones other than UTC are left out."""
    unit, _, zone = kind.removeprefix("timestamp:").partition(":")
    if literal.kind == "ticks":
        of, _, said = literal.detail.partition(" ")
        if _ARROW_UNITS[of] != unit or said != ("" if zone == "-" else zone) or not _NUMBER.fullmatch(literal.text):
            return None
        return Between(int(literal.text), int(literal.text))
    found = _MOMENT.fullmatch(literal.text) if literal.kind in ("timestamp", "string") else None
    if found is None or (zone != "-" and zone not in _UTC) or (found[6] and zone == "-"):
        return None
    try:
        day = date.fromisoformat(found[1])
        clock = datetime(day.year, day.month, day.day, int(found[2] or 0), int(found[3] or 0), int(found[4] or 0), tzinfo=UTC)
    except ValueError:
        return None
    seconds = (clock.date() - _EPOCH).days * 86_400 + clock.hour * 3600 + clock.minute * 60 + clock.second
    ticks = (seconds * 10**9 + int((found[5] or "").ljust(9, "0") or 0)) // _UNITS[unit]
    return Between(ticks - 1, ticks + 1, sure=False)


def pruned(statistics: Sequence[FragmentStatistics], sql: str, names: Sequence[str]) -> set[int]:
    """Ids of the fragments that a condition certainly holds for no row of."""
    condition = understood(sql, tuple(names))
    return {fragment.id for fragment in statistics if not may_hold(condition, fragment)}
