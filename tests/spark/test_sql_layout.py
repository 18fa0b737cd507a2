"""PARTITIONED BY and CLUSTER BY as a layout: rows lie sorted by these columns, and parts can be overwritten by their values."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark import Work
from tiltyard.spark.sql_catalog.session_catalog import use_lake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    ty.spark.enable(spark)
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def rows(lake: ty.Lake, name: str = "t") -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in lake.table(name).to_arrow().to_pylist()), key=str)


def test_parts_are_overwritten_by_their_values(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("CREATE TABLE lake.t (day STRING, hour INT, v INT) PARTITIONED BY (day, hour)")
    spark.sql("INSERT INTO lake.t VALUES ('b', 1, 1), ('a', 2, 2), ('a', 1, 3), (NULL, 1, 4)")
    assert spark.sql("SHOW TBLPROPERTIES lake.t ('partitioned_by')").first().value == "day, hour"  # type: ignore[union-attr]
    before = lake.snapshot().id
    spark.sql("SELECT 'a' AS day, 1 AS hour, 9 AS v UNION ALL SELECT NULL, 1, 8").writeTo("lake.t").overwritePartitions()
    assert rows(lake) == sorted([("b", 1, 1), ("a", 2, 2), ("a", 1, 9), (None, 1, 8)], key=str)
    assert lake.snapshot().id == before + 1, "deleted and added in one commit"
    spark.sql("INSERT OVERWRITE lake.t PARTITION (day = 'a', hour) SELECT 7, 70")
    assert rows(lake) == sorted([("b", 1, 1), ("a", 7, 70), (None, 1, 8)], key=str)
    spark.table("lake.t").filter("v > 1000").writeTo("lake.t").overwritePartitions()
    assert len(rows(lake)) == 3, "no rows replace nothing"


def test_rows_lie_sorted_by_the_columns(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("CREATE TABLE lake.t (k INT, v INT) CLUSTER BY (k)")
    spark.range(40).selectExpr("CAST((id * 7) % 40 AS INT) AS k", "CAST(id AS INT) AS v").writeTo("lake.t").append()
    assert lake.table("t").to_arrow(["k"])["k"].to_pylist() == list(range(40)), "by the driver"
    table = lake.spark(spark, Work(driver_bytes=0)).table("t")
    table.replace_rows(spark.range(60).selectExpr("CAST((id * 7) % 60 AS INT) AS k", "CAST(id AS INT) AS v").repartition(3))
    for fragment in lake.table("t").lance.get_fragments():
        found = fragment.to_table(columns=["k"])["k"].to_pylist()
        assert found == list(range(min(found), max(found) + 1)), "each task has a range of values, in order"


def test_a_layout_follows_its_columns(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("CREATE TABLE lake.t PARTITIONED BY (k) AS SELECT 2 AS k, 1 AS v")
    spark.sql("ALTER TABLE lake.t RENAME COLUMN k TO key")
    spark.sql("INSERT OVERWRITE lake.t PARTITION (key = 2) SELECT 5")
    assert rows(lake) == [(2, 5)]
    spark.sql("ALTER TABLE lake.t CLUSTER BY (v)")
    assert lake.table("t").config["cluster_by"] == "v"
    spark.sql("ALTER TABLE lake.t DROP COLUMN v")
    spark.sql("INSERT INTO lake.t VALUES (1)")
    assert rows(lake) == [(1,), (2,)]
