"""Spark on a lake behind a server that asks for tokens: neither driver nor executors have the catalog's database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.support.served import served_here
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token

ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]})


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, str, ty.Lake]]:
    with ty.Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.create_table("a", ROWS, primary_key=["id"])
        lake.create_table("b", ROWS)
        token, _ = create_token(lake, "spark", [Grant.parse("maintainer")])
        with served_here(lake, required=True) as (url, _):
            yield url, token, lake


def values(lake: ty.Lake, name: str) -> dict[int, int]:
    return {row["id"]: row["v"] for row in lake.table(name).to_arrow().to_pylist()}


def test_the_data_source_reads_and_writes_by_the_servers_address(spark: SparkSession, address: tuple[str, str, ty.Lake]) -> None:
    url, token, lake = address
    ty.spark.enable(spark)
    options = {"lake": url, "token": token, "table": "a"}
    frame = spark.createDataFrame([(4, 40), (5, 50)], "id long, v long").repartition(2)
    frame.write.format("tiltyard").options(**options).mode("append").save()
    read = spark.read.format("tiltyard").options(**options).load()
    assert {row.id: row.v for row in read.repartition(2).collect()} == values(lake, "a") == {1: 10, 2: 20, 3: 30, 4: 40, 5: 50}
    assert lake.history()[0].author == "spark"
    frame.write.format("tiltyard").options(**{**options, "table": "made"}).mode("append").save()
    assert values(lake, "made") == {4: 40, 5: 50}
    for wrong in ({"lake": url, "table": "a"}, {**options, "token": "tyd_no"}):
        with pytest.raises(Exception, match="token"):
            spark.read.format("tiltyard").options(**wrong).load().collect()


def test_a_transaction_of_spark_over_two_tables(spark: SparkSession, address: tuple[str, str, ty.Lake]) -> None:
    url, token, here = address
    ty.spark.enable(spark)
    rows = spark.createDataFrame([(2, 7), (9, 90)], "id long, v long")
    with ty.Lake.open(url, storage=ty.Storage(token=token)) as lake:
        with lake.transaction(message="both") as tx:
            tables = tx.spark(spark)
            tables.table("a").merge(rows, on="id").when_matched_update_all().when_not_matched_insert_all().execute()
            tables.table("b").append(rows)
        assert set(lake.history()[0].tables) == {"a", "b"}
    assert values(here, "a") == {1: 10, 2: 7, 3: 30, 9: 90}
    assert sorted(row["v"] for row in here.table("b").to_arrow().to_pylist()) == [7, 10, 20, 30, 90]
    assert here.history()[0].author == "spark"
    assert here.check().ok


def test_the_catalog_of_spark_by_the_servers_address(spark: SparkSession, address: tuple[str, str, ty.Lake]) -> None:
    url, token, lake = address
    ty.spark.enable(spark, lake=url, token=token)
    spark.sql("INSERT INTO lake.a VALUES (6, 60)")
    spark.sql("UPDATE lake.a SET v = v + 1 WHERE id < 3")
    spark.sql("CREATE TABLE lake.c AS SELECT id, v FROM lake.a WHERE id > 2")
    assert values(lake, "a") == {1: 11, 2: 21, 3: 30, 6: 60}
    assert values(lake, "c") == {3: 30, 6: 60} == {row.id: row.v for row in spark.sql("SELECT * FROM lake.c").collect()}
    assert {entry.author for entry in lake.history()[:3]} == {"spark"}
    told = spark.sql("SELECT * FROM lake.a")._jdf.queryExecution().toString()
    assert token not in told
    assert lake.check().ok
