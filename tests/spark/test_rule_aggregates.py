"""Partial aggregates of a worker, in small bites: put together they are what the rows come to."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

import tiltyard as ty
from tests.support.spark_queries import awkward_rows
from tiltyard.spark.read import aggregates
from tiltyard.spark.read.aggregates import Aggregation, Partial, aggregated
from tiltyard.spark.read.reading import Scan, parts
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.target import Target

SEED = 11
ROWS = 300
WANTED = (
    ("rows", None),
    ("count", "d"),
    ("sum", "n"),
    ("sum", "k"),
    ("sum_double", "n"),
    ("min", "d"),
    ("max", "d"),
    ("min", "s"),
    ("max", "at"),
    ("count", "tags"),
    ("count", "map"),
    ("count", "st"),
)


def _work(keys: tuple[str, ...], place: Path, ansi: bool = True) -> tuple[Aggregation, Scan]:
    address = Target.from_options({"path": str(place)}).locate()
    schema = spark_schema(ty.Table.open(place).schema)
    kinds: dict[str, Any] = {"rows": LongType(), "count": LongType(), "sum": LongType(), "sum_double": DoubleType()}
    fields = [schema[key] for key in keys]
    fields += [StructField(f"p{index}", kinds.get(op) or schema[str(column)].dataType) for index, (op, column) in enumerate(WANTED)]
    used = {*keys, *(column for _, column in WANTED)}
    scan = Scan(address, StructType([field for field in schema.fields if field.name in used]), batch_rows=16)
    return Aggregation(keys, tuple(Partial(op, column) for op, column in WANTED), StructType(fields), ansi), scan


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0  # both zeros are one group
    return value


def _in_order(values: list[Any]) -> list[Any]:
    """As Spark has them: NaN above everything."""
    return sorted(values, key=lambda value: (isinstance(value, float) and math.isnan(value), value if value == value else 0))


def _of(operation: str, values: list[Any], rows: int) -> Any:
    there = [value for value in values if value is not None]
    if operation == "rows":
        return rows
    if operation == "count":
        return len(there)
    if not there:
        return None
    if operation == "sum":
        return sum(there)
    if operation == "sum_double":
        return math.fsum(map(float, there))
    return _in_order(there)[0 if operation == "min" else -1]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-9) or left == right
    return bool(left == right)


@pytest.mark.parametrize("keys", [(), ("k",), ("d",), ("s", "b")], ids=str)
@pytest.mark.parametrize(("at_once", "most"), [(1 << 19, 1 << 17), (32, 1 << 17), (32, 5)])
def test_partials_come_to_the_whole(
    keys: tuple[str, ...], at_once: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregates, "AT_ONCE", at_once)
    monkeypatch.setattr(aggregates, "MOST_GROUPS", most)
    rows = awkward_rows(ROWS, SEED)
    ty.Table.create(tmp_path / "t", rows, options=ty.TableOptions(files=ty.FileLimits(rows=110)))
    work, scan = _work(keys, tmp_path / "t")
    found: dict[tuple[Any, ...], list[list[Any]]] = defaultdict(list)
    for part in parts(scan, 2):
        for batch in aggregated(part, work):
            for row in map(list, map(dict.values, batch.to_pylist())):
                found[tuple(map(_key, row[: len(keys)]))].append(row[len(keys) :])
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for one in rows.to_pylist():
        groups[tuple(_key(one[key]) for key in keys)].append(one)
    assert set(found) == set(groups)
    for group, members in groups.items():
        for index, (operation, column) in enumerate(WANTED):
            wanted = _of(operation, [one[column] for one in members] if column else [], len(members))
            again = "sum" if operation in ("rows", "count") else operation
            got = _of(again, [part[index] for part in found[group]], 0)
            assert _same(got, wanted), (group, operation, column)


def test_sums_near_the_limit_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "AT_ONCE", 32)
    rows = awkward_rows(64, SEED)
    large = [2**62 if number % 2 else None for number in range(64)]
    rows = rows.set_column(rows.schema.get_field_index("n"), "n", [large])
    ty.Table.create(tmp_path / "t", rows)
    strict, scan = _work(("b",), tmp_path / "t")
    (part,) = parts(scan, 1)
    one_by_one = [row for batch in aggregated(part, strict) for row in batch.to_pylist()]
    assert len(one_by_one) == 64
    assert sum(row["p0"] for row in one_by_one) == 64
    assert sum(row["p2"] or 0 for row in one_by_one) == 32 * 2**62
    relaxed, _ = _work(("b",), tmp_path / "t", ansi=False)
    assert len([row for batch in aggregated(part, relaxed) for row in batch.to_pylist()]) == 3, "sums may go round without ANSI"
