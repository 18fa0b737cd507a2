"""Rows of every type that statistics are kept of, with the values that are easily got wrong, and conditions on them; all from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

Draw = Callable[[random.Random, int], Any]
"""A value, given the group that it is of: groups lie apart, so that bounds tell them apart."""

_EPOCH: Final = datetime(2020, 1, 1)
_UTC: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Kind:
    """A column: its type, how values come about, and how one is written in SQL; None for types without literals."""

    type: pa.DataType
    draw: Draw
    sql: Callable[[Any], str] | None


def _text(source: random.Random, group: int) -> str:
    begin = chr(ord("a") + 2 * group)
    return source.choice(
        [begin, begin * 3, f"{begin}'s", begin + "x" * 70 + str(source.randrange(3)), begin + "\U0010ffff" * 66, f"{begin}é"]
    )


def _float(source: random.Random, group: int) -> float:
    if group == 3 and source.random() < 0.1:
        return source.choice([float("nan"), float("inf"), float("-inf")])
    return source.choice([0.0, -0.0, 10.0 * group, -10.0 * group, 10 * group + 0.1])


def _moment(source: random.Random, group: int) -> datetime:
    return _EPOCH + timedelta(days=100 * group, seconds=source.randrange(50), microseconds=source.choice([0, 1, 500_000]))


def _timestamp(value: datetime) -> str:
    return f"timestamp '{value.isoformat(' ')}'"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _extreme(source: random.Random, group: int) -> int:
    return source.choice([group * 1000, group * 1000 + 7, *([-(2**63), 2**63 - 1] if group == 2 else [])])


def _flag(source: random.Random, group: int) -> bool:
    return group % 2 == 0 or (group == 3 and source.random() < 0.5)


def _price(source: random.Random, group: int) -> Decimal:
    return Decimal(group * 1000 + source.randrange(9)) / 4


def _wide(source: random.Random, group: int) -> Decimal:
    return Decimal(group - 2) * 10**30 + source.randrange(3)


KINDS: Final = {
    "i8": Kind(pa.int8(), lambda source, group: 20 * group - 40 + source.randrange(10), str),
    "i64": Kind(pa.int64(), _extreme, str),
    "u32": Kind(pa.uint32(), lambda source, group: group * 10**6 + source.randrange(5), str),
    "u64": Kind(pa.uint64(), lambda source, group: group * 10**6 + source.randrange(5), str),
    "flag": Kind(pa.bool_(), _flag, lambda value: str(value).lower()),
    "f32": Kind(pa.float32(), _float, repr),
    "f64": Kind(pa.float64(), _float, repr),
    "text": Kind(pa.string(), _text, _quoted),
    "long": Kind(pa.large_string(), _text, _quoted),
    "day": Kind(pa.date32(), lambda source, group: date(2000 + group, 1, 1 + source.randrange(20)), lambda value: f"date '{value}'"),
    "us": Kind(pa.timestamp("us"), _moment, _timestamp),
    "ms": Kind(pa.timestamp("ms"), lambda source, group: _moment(source, group).replace(microsecond=0), _timestamp),
    "utc": Kind(_UTC, _moment, _timestamp),
    "york": Kind(pa.timestamp("us", "America/New_York"), _moment, _timestamp),
    "price": Kind(pa.decimal128(20, 2), _price, lambda value: f"cast('{value}' as decimal(20,2))"),
    "wide": Kind(pa.decimal128(38, 4), _wide, lambda value: str(int(value) // 10**20)),
    "raw": Kind(pa.binary(), lambda source, group: bytes([group, source.randrange(4)]), None),
    "point": Kind(pa.struct([("x", pa.int64())]), lambda source, group: {"x": group}, None),
}
"""Columns by name. Some have no statistics, and must be read all the same."""


def rows(source: random.Random, first: int, count: int, names: list[str]) -> pa.Table:
    """Rows of one group, with nulls in some columns, and some columns of nulls alone."""
    group = source.randrange(5)
    columns: dict[str, pa.Array] = {"id": pa.array(range(first, first + count), pa.int64())}
    for name in names:
        kind, nulls = KINDS[name], source.choice([0.0, 0.0, 0.2, 1.0 if source.random() < 0.3 else 0.1])
        nulls = 0.0 if pa.types.is_struct(kind.type) else nulls  # the oldest files have no null structs
        values = [None if source.random() < nulls else kind.draw(source, group) for _ in range(count)]
        columns[name] = pa.array(values, kind.type)
    return pa.table(columns)


def condition(source: random.Random, schema: pa.Schema, depth: int = 0) -> str:
    """A condition on columns of a table, as users write them."""
    roll = source.random()
    if depth < 3 and roll < 0.35:
        joined = source.choice([" AND ", " or "])
        return joined.join(condition(source, schema, depth + 1) for _ in range(source.choice([2, 2, 3])))
    if depth < 3 and roll < 0.45:
        return f"NOT ({condition(source, schema, depth + 1)})"
    if depth < 3 and roll < 0.5:
        return f"({condition(source, schema, depth + 1)})"
    names = [field.name for field in schema if field.name in KINDS and KINDS[field.name].sql is not None]
    if not names:
        return f"id >= {source.randrange(500)}"
    name = source.choice(names)
    kind = KINDS[name]
    assert kind.sql is not None
    drawn = [kind.draw(source, source.randrange(5)) for _ in range(3)]
    literals = [kind.sql(value) for value in drawn if _can_be_written(value)] or [kind.sql(kind.draw(source, 0))]
    shown = source.choice([name, f"`{name}`"])
    forms = [
        f"{shown} {source.choice(['=', '<', '<=', '>', '>=', '!=', '<>'])} {literals[0]}",
        f"{literals[0]} {source.choice(['=', '<', '<=', '>', '>='])} {shown}",
        f"{shown} IN ({', '.join(literals)})",
        f"{shown} NOT IN ({literals[0]})",
        f"{shown} BETWEEN {literals[0]} AND {literals[-1]}",
        f"{shown} IS {source.choice(['', 'NOT '])}NULL",
        f"coalesce({shown}, {literals[0]}) = {literals[-1]}",
        f"({shown} = {literals[0]}) = (id < 100)",
    ]
    if name == "flag":
        forms += [name, f"NOT {name}"]
    return source.choice(forms)


def _can_be_written(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
