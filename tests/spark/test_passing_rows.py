"""About how many rows pass a condition: what Spark is told, and what it does with it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark.read.passing_rows import LEAST_SHARE, share_of_rows

BOUNDS: dict[str, Any] = {
    "n": (1, 100),
    "d": (date(1970, 1, 1), date(1970, 4, 10)),
    "at": (datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "s": ("a", "z"),
    "one": (7, 7),
}


def column(name: str, kind: str) -> dict[str, Any]:
    return {"c": "AttributeReference", "t": kind, "n": name, "k": []}


def value(text: str | None, kind: str) -> dict[str, Any]:
    return {"c": "Literal", "t": kind, "v": text, "k": []}


def compared(name: str, operator: str, text: str | None, kind: str = "long") -> dict[str, Any]:
    return {"c": operator, "t": "boolean", "k": [column(name, kind), value(text, kind)]}


def both(left: dict[str, Any], right: dict[str, Any], operator: str = "And") -> dict[str, Any]:
    return {"c": operator, "t": "boolean", "k": [left, right]}


def share(*nodes: dict[str, Any]) -> float:
    return share_of_rows([{"is": node} for node in nodes], BOUNDS.get)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((), 1.0),
        ((compared("n", "LessThanOrEqual", "50"),), 0.5),
        ((compared("n", "GreaterThan", "76"), compared("n", "LessThan", "1000")), 0.25),
        ((both(compared("n", "GreaterThanOrEqual", "21"), compared("n", "LessThanOrEqual", "60")),), 0.4),
        ((compared("d", "LessThan", "49", "date"),), 0.5),
        ((compared("at", "GreaterThan", "600000", "timestamp"),), 0.4),
        ((compared("n", "EqualTo", "3"),), LEAST_SHARE),
        ((compared("n", "LessThan", "-5"),), LEAST_SHARE),
        ((compared("one", "EqualTo", "7"),), 1.0),
        ((compared("n", "LessThanOrEqual", "50"), compared("d", "LessThan", "19", "date")), 0.2),
        (({"c": "In", "t": "boolean", "k": [column("n", "long"), *(value(str(number), "long") for number in range(40))]},), 0.4),
    ],
)  # fmt: skip
def test_by_the_column_that_narrows_most(nodes: tuple[dict[str, Any], ...], expected: float) -> None:
    assert share(*nodes) == pytest.approx(expected)


def test_the_sides_of_a_comparison_may_change_places() -> None:
    assert share({"c": "GreaterThanOrEqual", "t": "boolean", "k": [value("50", "long"), column("n", "long")]}) == pytest.approx(0.5)


def test_what_is_not_known_passes() -> None:
    """One of two conditions, text, other types, columns without bounds, nulls."""
    half = compared("n", "LessThanOrEqual", "50")
    assert share(both(half, half, "Or")) == 1.0
    assert share(compared("s", "LessThan", "b", "string")) == 1.0
    assert share(compared("nope", "LessThan", "5")) == 1.0
    assert share(compared("n", "LessThan", None)) == 1.0
    assert share({"c": "LessThan", "t": "boolean", "k": [column("n", "long"), column("one", "long")]}) == 1.0


def test_spark_broadcasts_what_a_condition_leaves_little_of(spark: SparkSession, tmp_path: Any) -> None:
    """Rows after the condition count, and those of a table that pruning shortened are not counted down twice."""
    lake = ty.Lake.open(tmp_path / "lake")
    rows = 200_000
    values = np.random.default_rng(19).random(rows)  # which no encoding makes shorter
    for name in ("facts", "others"):
        lake.create_table(name, pa.table({"id": range(rows), "day": np.arange(rows) * 7919 % rows, "v": values}))
    ty.spark.enable(spark, lake=lake)
    bytes_of = sum(file.size for fragment in lake.table("facts").layout.fragments for file in fragment.files)
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", str(bytes_of // 2))
    try:
        joined = "SELECT sum(f.v + o.v) FROM lake.others o JOIN lake.facts f ON f.id = o.id"
        plans = {text: _plan(spark, joined + text) for text in ("", f" WHERE f.day < {rows // 5}")}
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", str(before))
    assert "SortMergeJoin" in plans[""]
    assert "BroadcastHashJoin" in plans[f" WHERE f.day < {rows // 5}"]


def _plan(spark: SparkSession, text: str) -> str:
    return str(spark.sql(text)._jdf.queryExecution().sparkPlan().toString())
