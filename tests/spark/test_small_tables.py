"""Small tables are read by the driver while a query is planned: the same rows as workers read. How workers read many rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from tests.spark.test_hand_over_columns import JOINS, KEYS, SEED, all_kinds, star  # noqa: F401  # the fixture star
from tests.support.proving import sample
from tests.support.spark_queries import ZONES, Queries, awkward_rows, comparable
from tiltyard.spark import enable
from tiltyard.spark.read import reading
from tiltyard.spark.read.optimizer_rule import rule_of
from tiltyard.spark.read.planner import Planner
from tiltyard.spark.read.reading import Scan, batches, late_columns, parts
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.target import Address

NESTED = ("list", "struct")


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.fixture
def planner(spark: SparkSession) -> Iterator[Planner]:
    """The planner of a session with the rule, which has workers read everything unless a test says how many rows are few."""
    enable(spark, rule=False)
    assert enable(spark).rule
    rule = rule_of(spark)
    assert rule is not None
    assert rule.planner.small.most_rows == 0
    yield rule.planner
    assert rule.last_failure == ""
    enable(spark, rule=False)


@pytest.mark.parametrize("most", [0, 1000], ids=["workers", "driver"])
def test_a_table_made_again_in_the_same_place(spark: SparkSession, planner: Planner, tmp_path: Path, most: int) -> None:
    """Its first version has the number of the one that was read before; neither the driver nor a worker may take it for that."""
    planner.small.most_rows = most
    for value in ("first", "second"):
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        ty.Table.create(tmp_path / "t", pa.table({"id": [1], "value": [value]}))
        frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))
        assert ("LocalTableScan" in _plan(frame)) == bool(most)
        assert [row["value"] for row in frame.collect()] == [value]
        assert [row["value"] for row in frame.filter("id = 1").collect()] == [value]


def test_every_plain_type_arrives_as_workers_hand_it_over(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rows = all_kinds(300, Random(SEED)).drop_columns(list(NESTED))
    table = ty.Table.create(tmp_path / "t", rows.slice(0, 200))
    table.append(rows.slice(200))
    table.delete("id % 7 = 3")
    asked = ("true", "whole > 0 and text <> 'a'", "price is null or day < '1950-01-01'", "id = 5", "id < 0", "number = number + id * 0")
    by_workers: dict[str, list[list[str]]] = {}
    for most in (0, 1000):
        planner.small.most_rows = most
        for condition in asked:
            frame = spark.read.format("tiltyard").load(str(tmp_path / "t")).filter(condition)
            assert ("LocalTableScan" in _plan(frame)) == bool(most)
            found = [comparable(frame.collect()), comparable(frame.groupBy("flag").agg({"whole": "max", "day": "min"}).collect())]
            found.append(comparable(frame.orderBy("id").limit(7).select("text", "id").collect()))
            assert by_workers.setdefault(condition, found) == found, condition
    assert len(by_workers["true"][0]) == table.count_rows()


def test_generated_queries_are_answered_alike(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    table = ty.Table.create(tmp_path / "t", awkward_rows(200, SEED), options=ty.TableOptions(files=ty.FileLimits(rows=90)))
    table.delete("id % 11 = 2")
    small = pa.table({"k": pa.array([0, 1, 2, 3, None, 9], pa.int32()), "name": list("abcdef"), "rate": [0.5, 1.5, None, 4.0, 2.0, 1.0]})
    ty.Table.create(tmp_path / "u", small)
    for name in ("t", "u"):
        spark.read.format("tiltyard").load(str(tmp_path / name)).createOrReplaceTempView(f"s_{name}")
    chosen = list(enumerate(sample(list(Queries(SEED).all()), 16)))
    found: dict[str, list[str]] = {}
    for most in (0, 50, 1000):
        planner.small.most_rows = most
        for number, query in chosen:
            spark.conf.set("spark.sql.session.timeZone", ZONES[number % len(ZONES)])
            rows = comparable(spark.sql(query.format(t="s_t", u="s_u")).collect())
            assert found.setdefault(query, rows) == rows, query
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert not planner.declined
    assert sum(bool(rows) for rows in found.values()) > len(found) // 2
    for name in ("t", "u"):
        spark.catalog.dropTempView(f"s_{name}")


@pytest.mark.parametrize("most", [100, 10_000], ids=["dimensions here", "all here"])
def test_joins_with_rows_that_are_here_are_right(spark: SparkSession, planner: Planner, star: ty.Lake, most: int) -> None:  # noqa: F811
    queries = [join.format(f=fact, k=key, g=number % 8) for number, (fact, key) in enumerate(KEYS) for join in JOINS]
    for query in sample(queries, 8):
        planner.small.most_rows = 0
        expected = comparable(spark.sql(query).collect())
        planner.small.most_rows = most
        assert comparable(spark.sql(query).collect()) == expected, query


def test_rows_of_another_version_are_never_taken_for_these(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    planner.small.most_rows = 100
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    counts = []
    for number in range(4):
        frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))
        assert "LocalTableScan" in _plan(frame.filter("id > 0"))
        table.append(pa.table({"id": [10 + number]}))
        counts.append(len(frame.filter("id > 0").collect()))
    assert counts == [3, 4, 5, 6]
    assert len(spark.read.format("tiltyard").option("version", "1").load(str(tmp_path / "t")).filter("id > 0").collect()) == 3


def test_what_is_large_or_asks_for_partitions_is_left_to_workers(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    planner.small.most_rows = 100
    ty.Table.create(tmp_path / "many", pa.table({"id": range(101)}))
    ty.Table.create(tmp_path / "wide", pa.table({"id": range(40), "text": ["x" * 50_000] * 40}))
    ty.Table.create(tmp_path / "few", pa.table({"id": range(40)}))
    read = spark.read.format("tiltyard")
    assert "LocalTableScan" not in _plan(read.load(str(tmp_path / "many")).filter("id > 3"))
    assert "LocalTableScan" not in _plan(read.load(str(tmp_path / "wide")).filter("id > 3"))
    assert "LocalTableScan" in _plan(read.load(str(tmp_path / "wide")).filter("id > 3").select("id"))
    assert "LocalTableScan" not in _plan(read.option("partitions", "2").load(str(tmp_path / "few")).filter("id > 3"))


@pytest.mark.parametrize("condition", ["id < 100", "g < 9", "s = 'n5'", None])
def test_columns_read_at_once_are_those_that_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str | None) -> None:
    rows = 6000
    given = {"id": range(rows), "g": [number % 10 for number in range(rows)], "s": [f"n{number % 900}" for number in range(rows)]}
    table = ty.Table.create(tmp_path / "t", pa.table(given), options=ty.TableOptions(files=ty.FileLimits(rows=2500)))
    table.delete("id % 13 = 5")
    scan = Scan(Address.of(table), spark_schema(table.schema), condition)
    found = []
    for smallest in (10**9, 1):
        monkeypatch.setattr(reading, "SAMPLED_FROM", smallest)
        planned = parts(scan, 2)
        read = pa.Table.from_batches([batch for part in planned for batch in batches(part)]).sort_by("id")
        found.append((read, {late_columns(scan, table.lance, part.spans) for part in planned}))
    assert found[0][0].equals(found[1][0])
    assert found[0][0].num_rows == table.count_rows(condition)
    assert found[0][1] == {None}
    assert found[1][1] == ({False} if condition == "g < 9" else {None})
