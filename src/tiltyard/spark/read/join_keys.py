"""Keys that the other side of a join has, known when a query is executed: rows without any of them are not handed over.

Spark offers them where it has broadcast that side anyway. They only leave out what the join would: a scan that uses none of them is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.spark.read.filters import MOST_VALUES, condition

if TYPE_CHECKING:
    from tiltyard.spark.read.reading import Scan

MOST_KEYS: Final = 200_000
"""Keys above which all rows are handed over: they travel with every task."""

_WIDEST: Final = 1 << 24
"""The range of whole numbers up to which they are looked up in an array of flags."""

_SIMPLE: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""What Spark calls types in JSON, and elsewhere."""
_SIGNED: Final = {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long"}


@dataclass(frozen=True, slots=True)
class KeysAmong:
    """Values that a column may have; rows with others, and with none, are not handed over."""

    column: str
    values: pa.Array


def among(scan: Scan, given: Sequence[Mapping[str, Any]], stored: pa.Schema) -> tuple[Scan, list[dict[str, Any]]]:
    """The scan with keys, and the conditions among them in the form that the rule tells Spark's in.

    Args:
        scan: as it was planned; a scan with a limit stays as it is, and so does what has keys of a type that compares in several ways.
        given: columns, each with the values that it may have.
        stored: the table's schema.
    """
    if scan.limit is not None:
        return scan, []
    nodes: list[dict[str, Any]] = []
    for entry in given:
        name = entry["column"]
        if name not in stored.names or len(entry["values"]) > MOST_KEYS:
            continue
        kind = stored.field(name).type
        spark_kind = _spark_kind(kind)
        if spark_kind is None or _read_as(scan, name) != _SIMPLE.get(spark_kind, spark_kind):
            continue
        values = [value for value in entry["values"] if value is not None]
        node = {"c": "InSet", "t": "boolean", "vs": values, "k": [{"c": "AttributeReference", "t": spark_kind, "n": name, "k": []}]}
        pushed = condition(node, stored) if 0 < len(values) <= MOST_VALUES else None
        if pushed is not None:
            scan = replace(scan, filter=f"({scan.filter}) AND {pushed.sql}" if scan.filter else pushed.sql)
            nodes.append({"uses": [name], "is": node})
        else:
            scan = replace(scan, keys=(*scan.keys, KeysAmong(name, _array(values, kind))))
    return scan, nodes


def _spark_kind(kind: pa.DataType) -> str | None:
    """Spark's name of a type whose values are equal to Spark just where they are to Arrow; None for all others."""
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    return "date" if pa.types.is_date32(kind) else None


def _read_as(scan: Scan, name: str) -> str | None:
    """The type that Spark reads the column in, if it does: a schema of the user's own may say another than the stored one."""
    return next((field.dataType.simpleString() for field in scan.schema.fields if field.name == name), None)


def _array(values: Sequence[str], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array(values, kind)
    return pa.array([int(value) for value in values], pa.int64())


def key_test(keys: Sequence[KeysAmong]) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """What leaves rows without any of the keys out of a batch; None where there are no keys."""
    if not keys:
        return None
    tests = [(known.column, _test(known.values)) for known in keys]

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, test in tests:
            batch = batch.filter(test(batch.column(column)))
        return batch

    return run


@dataclass(frozen=True, slots=True)
class _Flags:
    """Whole numbers of a narrow range, as flags."""

    least: int
    flags: Any

    def __call__(self, column: pa.Array) -> pa.Array:
        numbers = column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(column.type) else column.cast(pa.int64())
        places = numbers.fill_null(self.least - 1).to_numpy(zero_copy_only=False) - self.least
        inside = (places >= 0) & (places < len(self.flags))
        return pa.array(inside & self.flags[np.where(inside, places, 0)])


def _test(values: pa.Array) -> Callable[[pa.Array], pa.Array]:
    if len(values) and pa.types.is_int64(values.type):
        least, most = pc.min(values).as_py(), pc.max(values).as_py()
        if most - least < _WIDEST and least > np.iinfo(np.int64).min:
            flags = np.zeros(most - least + 1, np.bool_)
            flags[values.to_numpy() - least] = True
            return _Flags(least, flags)
    return lambda column: pc.is_in(_comparable(column, values.type), value_set=values)


def _comparable(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.cast(kind)
