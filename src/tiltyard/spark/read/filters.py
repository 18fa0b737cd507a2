"""Spark's conditions as SQL of pylance, where both mean the same for every value; all others stay with Spark alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa

_COMPARISONS: Final = {"EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_FLIPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT: Final = {"StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "contains"}
_WHOLE: Final = ("byte", "short", "integer", "long")
_EPOCH: Final = date(1970, 1, 1)
_PLAIN_NAME: Final = re.compile(r"[^`.\"'\\\x00-\x1f]+")
MOST_VALUES: Final = 1000
"""Values in a list above which it stays with Spark, which has a hash table for it."""

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PushedCondition:
    """A condition in SQL.

    Attributes:
        sql: what pylance is asked.
        exact: whether it is true, false and null for the same rows as Spark's; if not, it is true at least where Spark's is.
    """

    sql: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Column:
    sql: str
    kind: pa.DataType
    nested: bool = False


def condition(node: Node, schema: pa.Schema) -> PushedCondition | None:
    """The condition in SQL; None where Spark and pylance might not agree.

    Args:
        node: Spark's expression: ``c`` its class, ``k`` its children, ``t`` its type, ``n`` a name, ``v`` a value, ``vs`` values.
        schema: of the table, as stored: that is what decides how values compare.
    """
    name, children = node["c"], node["k"]
    if name in ("And", "Or"):
        return _joined(name, condition(children[0], schema), condition(children[1], schema))
    if name == "Not":
        inner = condition(children[0], schema)
        # What is true for too many rows would be false for too few when it is turned around.
        return PushedCondition(f"(NOT {inner.sql})") if inner is not None and inner.exact else None
    if name == "Literal" and node["t"] == "boolean":
        return None if node["v"] is None else PushedCondition(node["v"].lower())
    if name in ("IsNull", "IsNotNull"):
        return _null_test(name, children[0], schema)
    if name in _COMPARISONS:
        return _comparison(_COMPARISONS[name], children[0], children[1], schema)
    if name == "EqualNullSafe":
        return _null_safe(children[0], children[1], schema)
    if name in ("In", "InSet"):
        return _membership(node, schema)
    if name in _TEXT:
        return _text_test(_TEXT[name], children, schema)
    if name == "Like":
        return _like(node, schema)
    if name == "IsNaN":
        column = _column(children[0], schema)
        if column is None or column.nested or not _is_float(column.kind):
            return None
        return PushedCondition(f"({column.sql} IS NOT NULL AND isnan({column.sql}))")
    return _flag(node, schema)


def _joined(name: str, left: PushedCondition | None, right: PushedCondition | None) -> PushedCondition | None:
    if left is not None and right is not None:
        return PushedCondition(f"({left.sql} {name.upper()} {right.sql})", left.exact and right.exact)
    if name == "Or":
        return None
    half = left or right
    return None if half is None else PushedCondition(half.sql, exact=False)


def _flag(node: Node, schema: pa.Schema) -> PushedCondition | None:
    """A column of booleans, which is a condition itself."""
    column = _column(node, schema)
    if column is None or not pa.types.is_boolean(column.kind):
        return None
    return PushedCondition(column.sql, not column.nested)


def _null_test(name: str, node: Node, schema: pa.Schema) -> PushedCondition | None:
    column = _column(node, schema)
    if column is None:
        return None
    if name == "IsNotNull":
        return PushedCondition(f"({column.sql} IS NOT NULL)", not column.nested)
    # A field of a struct that is null is null to Spark, whatever is stored there.
    return None if column.nested else PushedCondition(f"({column.sql} IS NULL)")


def _comparison(operator: str, left: Node, right: Node, schema: pa.Schema) -> PushedCondition | None:
    if left["c"] == "Literal":
        left, right, operator = right, left, _FLIPPED[operator]
    column = _column(left, schema)
    if column is None:
        return None
    if right["c"] != "Literal":
        return _of_two_columns(operator, column, _column(right, schema))
    value = literal(right["t"], right["v"], column.kind)
    if value is None:
        return None
    plain = f"({column.sql} {operator} {value})"
    if _is_float(column.kind) and operator in ("<", "<="):
        plain = f"({plain} AND NOT isnan({column.sql}))"  # Spark has NaN above everything, whatever its sign
    elif _is_float(column.kind) and operator in (">", ">="):
        plain = f"({plain} OR isnan({column.sql}))"
    return PushedCondition(plain, not column.nested)


def _of_two_columns(operator: str, left: _Column, right: _Column | None) -> PushedCondition | None:
    if right is None or left.kind != right.kind or left.nested or right.nested:
        return None
    same = pa.types.is_signed_integer(left.kind) or pa.types.is_date32(left.kind) or pa.types.is_string(left.kind)
    return PushedCondition(f"({left.sql} {operator} {right.sql})") if same else None


def _null_safe(left: Node, right: Node, schema: pa.Schema) -> PushedCondition | None:
    if left["c"] == "Literal":
        left, right = right, left
    column = _column(left, schema)
    if column is None or column.nested or right["c"] != "Literal":
        return None
    if right["v"] is None:
        return PushedCondition(f"({column.sql} IS NULL)")
    value = literal(right["t"], right["v"], column.kind)
    return None if value is None else PushedCondition(f"({column.sql} IS NOT NULL AND {column.sql} = {value})")


def _membership(node: Node, schema: pa.Schema) -> PushedCondition | None:
    column = _column(node["k"][0], schema)
    if column is None:
        return None
    if node["c"] == "InSet":
        given = [(node["k"][0]["t"], value) for value in node["vs"]]
    elif all(child["c"] == "Literal" for child in node["k"][1:]):
        given = [(child["t"], child["v"]) for child in node["k"][1:]]
    else:
        return None
    if not given or len(given) > MOST_VALUES:
        return None
    values = [literal(kind, value, column.kind) for kind, value in given]
    if any(value is None for value in values):
        return None
    return PushedCondition(f"({column.sql} IN ({', '.join(map(str, values))}))", not column.nested)


def _text_test(function: str, children: list[Node], schema: pa.Schema) -> PushedCondition | None:
    column, wanted = _column(children[0], schema), children[1]
    if column is None or not _is_text(column.kind) or wanted["c"] != "Literal":
        return None
    value = literal(wanted["t"], wanted["v"], column.kind)
    return None if value is None else PushedCondition(f"({function}({column.sql}, {value}))", not column.nested)


def _like(node: Node, schema: pa.Schema) -> PushedCondition | None:
    """A pattern of ``%`` alone: what stands for one character, and what is escaped, is left to Spark."""
    column, wanted = _column(node["k"][0], schema), node["k"][1]
    if column is None or not _is_text(column.kind) or wanted["c"] != "Literal" or node["v"] != "\\":
        return None
    value = literal(wanted["t"], wanted["v"], column.kind)
    if value is None or "_" in value or "\\" in value:
        return None
    return PushedCondition(f"({column.sql} LIKE {value})", not column.nested)


def _column(node: Node, schema: pa.Schema) -> _Column | None:
    """A column or a field inside one, by names that cannot be misread."""
    if node["c"] == "GetStructField":
        parent = _column(node["k"][0], schema)
        if parent is None or not pa.types.is_struct(parent.kind) or not _PLAIN_NAME.fullmatch(node["n"]):
            return None
        place = parent.kind.get_field_index(node["n"])
        return None if place < 0 else _Column(f"{parent.sql}.`{node['n']}`", parent.kind.field(place).type, nested=True)
    name = node.get("n") if node["c"] == "AttributeReference" else None
    if name is None or not _PLAIN_NAME.fullmatch(name) or name not in schema.names:
        return None
    return _Column(f"`{name}`", schema.field(name).type)


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def literal(kind: Any, value: str | None, stored: pa.DataType) -> str | None:
    """A value in SQL, to be compared with a column stored as that type; None where the two might compare otherwise than in Spark.

    Args:
        kind: Spark's name of the type.
        value: as the JVM prints it: days for dates, microseconds for timestamps.
        stored: the type of the column.
    """
    if value is None or not isinstance(kind, str):
        return None
    if kind in _WHOLE and pa.types.is_integer(stored) and stored != pa.uint64():
        return value
    if kind == "string" and _is_text(stored) and "\0" not in value:
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if kind == "boolean" and pa.types.is_boolean(stored):
        return value.lower()
    if (kind == "double" and pa.types.is_float64(stored)) or (kind == "float" and pa.types.is_float32(stored)):
        return _float(value, kind)
    if kind == "date" and pa.types.is_date32(stored):
        return _date(int(value))
    if pa.types.is_timestamp(stored) and stored.unit == "us":
        return _moment(kind, value, stored)
    if kind.startswith("decimal(") and pa.types.is_decimal128(stored):
        return _decimal(value, stored)
    return None


def _float(value: str, kind: str) -> str | None:
    number = float(value)
    if not math.isfinite(number):
        return None
    # A float's shortest text is not its value as a double, and doubles are what is compared.
    return repr(float(np.float32(value))) if kind == "float" else repr(number)


def _date(days: int) -> str | None:
    try:
        return f"date '{(_EPOCH + timedelta(days=days)).isoformat()}'"
    except OverflowError:
        return None


def _moment(kind: str, value: str, stored: pa.DataType) -> str | None:
    if kind == "timestamp_ntz" and stored.tz is None:
        return f"arrow_cast({int(value)}, 'Timestamp(Microsecond, None)')"
    if kind == "timestamp" and stored.tz is not None and re.fullmatch(r"[A-Za-z0-9_/+:-]+", stored.tz):
        return f"arrow_cast({int(value)}, 'Timestamp(Microsecond, Some(\"{stored.tz}\"))')"
    return None


def _decimal(value: str, stored: pa.DataType) -> str | None:
    try:
        number = Decimal(value)
        fits = number == number.quantize(Decimal(1).scaleb(-stored.scale)) and number.adjusted() < stored.precision - stored.scale
    except InvalidOperation:
        return None
    return f"cast('{number:f}' as decimal({stored.precision},{stored.scale}))" if fits else None
