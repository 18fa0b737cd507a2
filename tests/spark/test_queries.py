"""Whatever is asked, a table of ours answers as Spark's own Parquet does: with the optimizer's rule and without."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.support.proving import sample
from tests.support.spark_queries import ZONES, Queries, awkward_rows, comparable
from tiltyard.spark import enable
from tiltyard.spark.read.optimizer_rule import rule_of

SEED = 20260615
ROWS = 400


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The same rows twice: Parquet as ``p_t`` and ``p_u``, ours as ``o_t`` and ``o_u``, in several fragments with deleted rows."""
    place = tmp_path_factory.mktemp("queries")
    rows = awkward_rows(ROWS, SEED)
    pq.write_table(rows, place / "t.parquet")
    small = pa.table(
        {"k": pa.array([0, 1, 2, 3, None, 9], pa.int32()), "name": list("abcdef"), "rate": [0.5, 1.5, None, float("nan"), 2.0, 1.0]}
    )
    pq.write_table(small, place / "u.parquet")
    more = pa.concat_tables([rows, rows.set_column(0, "id", pa.array(range(ROWS, 2 * ROWS), pa.int64()))])
    table = ty.Table.create(place / "t", more, options=ty.TableOptions(files=ty.FileLimits(rows=150)))
    table.delete(f"id >= {ROWS}")
    ty.Table.create(place / "u", small)
    for name in ("t", "u"):
        spark.read.parquet(str(place / f"{name}.parquet")).createOrReplaceTempView(f"p_{name}")
        spark.read.format("tiltyard").load(str(place / name)).createOrReplaceTempView(f"o_{name}")
    yield spark
    enable(spark, rule=False)
    for name in ("p_t", "p_u", "o_t", "o_u"):
        spark.catalog.dropTempView(name)


@pytest.fixture(scope="module")
def expected(both: SparkSession) -> list[tuple[str, str, list[str]]]:
    """Each query with its session time zone and what Parquet answers; every second one in the short form."""
    print(f"seed {SEED}")
    queries = list(enumerate(Queries(SEED).all()))
    assert len(queries) >= 60
    found = []
    for number, query in sample(queries, len(queries) // 2):
        zone = ZONES[number % len(ZONES)]
        found.append((query, zone, _answer(both, query, "p", zone)))
    assert sum(bool(rows) for _, _, rows in found) > 0.8 * len(found), "queries that find nothing prove little"
    return found


def _answer(spark: SparkSession, query: str, side: str, zone: str) -> list[str]:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        return comparable(spark.sql(query.format(t=f"{side}_t", u=f"{side}_u")).collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def _differences(spark: SparkSession, expected: list[tuple[str, str, list[str]]]) -> list[str]:
    wrong = []
    for query, zone, rows in expected:
        got = _answer(spark, query, "o", zone)
        if got != rows:
            only = [row for row in got if row not in rows][:2], [row for row in rows if row not in got][:2]
            wrong.append(f"{query}\n  in {zone}: {len(got)} rows instead of {len(rows)}; too many {only[0]}, missing {only[1]}")
    return wrong


def test_with_the_rule(both: SparkSession, expected: list[tuple[str, str, list[str]]]) -> None:
    assert enable(both).rule
    rule = rule_of(both)
    assert rule is not None
    before = rule.planner.answered
    wrong = _differences(both, expected)
    assert not wrong, "\n".join(wrong)
    assert rule.last_failure == ""
    assert not rule.planner.declined
    assert rule.planner.answered - before >= len(expected)


def test_without_the_rule(both: SparkSession, expected: list[tuple[str, str, list[str]]]) -> None:
    assert not enable(both, rule=False).rule
    assert rule_of(both) is None
    wrong = _differences(both, sample(expected, len(expected) // 3))
    assert not wrong, "\n".join(wrong)
