"""PARTITIONED BY and CLUSTER BY as a layout: rows lie sorted by these columns, and parts can be overwritten by their values."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark import Work
from tiltyard.spark.sql_catalog import procedures
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


@pytest.mark.parametrize("stable", [False, True])
def test_executors_write_sorted_rows(spark: SparkSession, lake: ty.Lake, stable: bool) -> None:
    rows = pa.table({"id": range(600), "x": [number * 7 % 60 for number in range(600)], "s": [str(number) for number in range(600)]})
    lake.create_table("t", rows, stable_row_ids=stable, options=ty.TableOptions(files=ty.FileLimits(rows=50)))
    lake.table("t").delete("id % 10 = 3")
    before = sorted(lake.table("t").to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    work = Work(driver_bytes=0)
    lake.spark(spark, work).table("t").optimize("id >= 0", cluster_by=["x", "s"], target_rows=90)
    assert [fragment.physical_rows for fragment in lake.table("t").layout.fragments] == [90] * 6
    assert sorted(lake.table("t").to_arrow().to_pylist(), key=lambda row: int(row["id"])) == before
    lake.spark(spark, work).table("t").compact(target_rows=1000)
    assert len(lake.table("t").layout.fragments) == 1, "and a plain compaction is written by executors, too"
    assert sorted(lake.table("t").to_arrow().to_pylist(), key=lambda row: int(row["id"])) == before
    assert lake.check().problems == ()


def test_optimize_full_sorts_by_the_layout(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("CREATE TABLE lake.t (k INT, v INT) CLUSTER BY (k)")
    for first in (20, 0, 10):
        lake.table("t").append(pa.table({"k": pa.array(range(first, first + 10), pa.int32()), "v": pa.array([first] * 10, pa.int32())}))
    spark.sql("OPTIMIZE lake.t FULL")
    assert lake.table("t").to_arrow(["k"])["k"].to_pylist() == list(range(30))
    assert len(lake.table("t").layout.fragments) == 1


def test_vacuum_cleans_up_the_lake(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t", "u"):
        lake.create_table(name, pa.table({"id": [1, 2]}))
        lake.table(name).delete("id = 1")
        lake.table(name).compact()
    lake.tags.create("kept", 1)
    assert spark.sql("VACUUM lake.t").collect()[0][:3] == ("t", 0, 0), "nothing is a week old"
    before = lake.snapshot().id
    monkeypatch.setattr(procedures, "LEAST_HOURS", 0)
    would = spark.sql("VACUUM lake.t RETAIN 0 HOURS DRY RUN").collect()
    assert [row.table for row in would] == ["t", "u"]
    assert lake.snapshot(before - 1).table("t").count_rows() == 1, "nothing went"
    listed = [file["path"] for row in would for file in json.loads(row.report)]
    assert listed
    done = spark.sql("VACUUM lake.t RETAIN 0 HOURS").collect()
    assert [row.versions for row in done] == [row.versions for row in would]
    assert sum(row.versions for row in done) > 0
    with pytest.raises(ty.TiltyardError):
        lake.snapshot(2)
    assert lake.snapshot("kept").table("t").count_rows() == 2
    assert rows(lake) == rows(lake, "u") == [(2,)]
    assert lake.check().problems == ()
