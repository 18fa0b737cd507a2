"""Spark with statistics of columns: the same answers, of fewer fragments; least and greatest values without a job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from tests.spark.test_hand_over_columns import SEED, all_kinds
from tests.support.spark_queries import comparable
from tiltyard.distributed import VersionStatistics
from tiltyard.spark import enable
from tiltyard.spark.read import datasets
from tiltyard.spark.read.optimizer_rule import rule_of
from tiltyard.spark.read.planner import Planner
from tiltyard.spark.read.reading import Scan, remaining
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.target import Address
from tiltyard.verbs.statistics import fragment_pruning, gather_statistics

NESTED = ("list", "struct")
CONDITIONS = (
    "id = 205 or price > 10.5",
    "whole > 0 and id >= 300",
    "day < '1950-01-01'",
    "not flag and id < 50",
    "at < '2000-01-01 00:00:00'",
)


@pytest.fixture(autouse=True)
def few_rows_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gather_statistics, "FROM_ROWS", 1)
    monkeypatch.setattr(fragment_pruning, "FROM_ROWS", 1)
    datasets.forget_statistics()
    yield
    datasets.forget_statistics()


@pytest.fixture
def planner(spark: SparkSession) -> Iterator[Planner]:
    enable(spark, rule=False)
    assert enable(spark).rule
    rule = rule_of(spark)
    assert rule is not None
    yield rule.planner
    assert rule.last_failure == ""
    enable(spark, rule=False)


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def _made(place: Path) -> ty.Table:
    rows = all_kinds(400, Random(SEED)).drop_columns(list(NESTED))
    table = ty.Table.create(place, rows.slice(0, 100), durability="os")
    for first in (100, 200, 300):
        table.append(rows.slice(first, 100))
    return table


def _asked(frame: DataFrame, names: list[str]) -> list[list[str]]:
    """What conditions find, in one job, and bounds of every column."""
    some = [frame.filter(text).selectExpr(f"{number} AS c", "id") for number, text in enumerate(CONDITIONS)]
    every = frame.selectExpr("count(1)", *(f"{of}({name})" for name in names for of in ("min", "max", "count")))
    return [comparable(reduce(DataFrame.unionAll, some).collect()), comparable(every.collect())]


@pytest.mark.parametrize("worn", [False, True], ids=["whole", "worn"])
def test_conditions_and_aggregates_come_to_the_same(spark: SparkSession, planner: Planner, tmp_path: Path, worn: bool) -> None:
    table = _made(tmp_path / "t")
    if worn:
        table.delete("id % 7 = 3 or id in (100, 199)")
        table.maintenance.analyze()
    names = [name for name in table.schema.names if not pa.types.is_binary(table.schema.field(name).type)]
    frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))
    found = _asked(frame, names)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets, "version_statistics", lambda *_: VersionStatistics())
        datasets.forget_statistics()
        assert _asked(frame, names) == found


def test_fragments_are_left_out_and_bounds_need_no_job(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    table = _made(tmp_path / "t")
    address = Address.of(table)
    scan = Scan(address, spark.range(1).schema, "(`id` = 205)")
    assert [fragment.id for fragment in remaining(scan)] == [2]
    frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))
    asked = frame.selectExpr("min(id)", "max(id)", "count(text)", "count(1)")
    assert "LocalTableScan" in _plan(asked)
    assert asked.collect()[0][:2] == (0, 399)
    table.delete("id = 399")
    asked = spark.read.format("tiltyard").load(str(tmp_path / "t")).selectExpr("max(id)")
    assert "LocalTableScan" not in _plan(asked)
    assert asked.collect()[0][0] == 398


def test_rows_that_spark_writes_are_found_by_their_cluster(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    use_lake(spark, "clustered", {"lake": str(tmp_path / "lake"), "durability": "os"})
    spark.sql("CREATE TABLE clustered.t (day INT, v BIGINT) CLUSTER BY (day)")
    for half in ("day < 10", "day >= 10"):
        spark.range(400).selectExpr("cast(id % 20 as int) AS day", "id AS v").filter(half).writeTo("clustered.t").append()
    scan = Scan(Address.of(lake.table("t")), spark.range(1).schema, "(`day` = 3)")
    assert len(remaining(scan)) == 1
    assert spark.sql("SELECT count(*), min(v) FROM clustered.t WHERE day = 3").collect()[0][:] == (20, 3)
    spark.sql("DELETE FROM clustered.t WHERE day = 3")
    spark.sql("ANALYZE TABLE clustered.t COMPUTE STATISTICS FOR ALL COLUMNS")
    assert spark.sql("SELECT count(*), min(v), max(day) FROM clustered.t").collect()[0][:] == (380, 0, 19)
    enable(spark, rule=False)  # the rule's own scan says how many rows it reads; join order is decided before it
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        few = spark.sql("SELECT * FROM clustered.t WHERE day < 5")._jdf.queryExecution().optimizedPlan().stats()
        assert 50 <= int(str(few.rowCount().get())) <= 150, "of 380, by bounds"
    finally:
        spark.conf.unset("spark.sql.cbo.enabled")
    assert lake.table("t").layout.statistics().columns["day"].distinct in range(18, 23)


def test_filters_on_each_column_of_zorder_read_fewer_fragments(spark: SparkSession, planner: Planner, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    use_lake(spark, "zordered", {"lake": str(tmp_path / "lake"), "durability": "os"})
    rows = {"x": [number * 37 % 101 for number in range(1600)], "y": [number * 53 % 97 for number in range(1600)]}
    lake.create_table("t", pa.table(rows), options=ty.TableOptions(files=ty.FileLimits(rows=100)))

    def read(condition: str) -> int:
        return len(remaining(Scan(Address.of(lake.table("t")), spark.range(1).schema, condition)))

    conditions = ("(`x` < 10)", "(`y` = 90)")
    assert [read(condition) for condition in conditions] == [16, 16]
    before = [spark.sql(f"SELECT count(*), sum(x * y) FROM zordered.t WHERE {text}").first() for text in conditions]  # noqa: S608
    told = spark.sql("CALL zordered.system.compact(table => 't', target_rows => 100, cluster_by => 'x, y')").first()
    assert told is not None
    assert (told.fragments_before, told.fragments_after) == (16, 16)
    assert all(read(condition) <= 6 for condition in conditions), [read(condition) for condition in conditions]
    assert [spark.sql(f"SELECT count(*), sum(x * y) FROM zordered.t WHERE {text}").first() for text in conditions] == before  # noqa: S608
    last = lake.table("t").layout.fragments[-1].id
    spark.sql("OPTIMIZE zordered.t WHERE x < 10")
    assert last in [fragment.id for fragment in lake.table("t").layout.fragments], "it holds no such row"
    assert len(lake.table("t").layout.fragments) < 16
