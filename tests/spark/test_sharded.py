"""Sharded tables in Spark: read and written through executors, in one lake transaction, with the rows where our hash puts them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.spark import Work
from tiltyard.spark.sharded_spark import SparkShardedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXECUTORS = Work(driver_rows=0, driver_bytes=0)
"""Nothing is small enough for the driver."""


@pytest.fixture
def lake(tmp_path: Path) -> ty.Lake:
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    rows = pa.table({"id": pa.array(range(20), pa.int32()), "v": [float(number) for number in range(20)]})
    made.create_table("t", rows, primary_key=["id"], shard_by="id", shards=2)
    return made


def ids(lake: ty.Lake) -> list[int]:
    return sorted(lake.table("t").to_arrow(["id"])["id"].to_pylist())


def frame(spark: SparkSession, *numbers: int) -> Any:
    return spark.createDataFrame([(number, float(number)) for number in numbers], "id long, v double")


@pytest.mark.parametrize("work", [None, EXECUTORS], ids=["driver", "executors"])
def test_read_append_merge_delete_update(spark: SparkSession, lake: ty.Lake, work: Work | None) -> None:
    table = lake.spark(spark, work).table("t")
    assert isinstance(table, SparkShardedTable)
    assert sorted(row.id for row in table.to_df().where("v >= 15").collect()) == [15, 16, 17, 18, 19]
    assert table.to_df().where("id = 3").count() == 1
    done = table.append(frame(spark, *range(100, 130)), message="from Spark")
    assert (done.rows, done.version) == ({"inserted": 30}, 2)
    assert ids(lake) == [*range(20), *range(100, 130)]
    assert lake.table("t").check().ok, "executors and the driver agree on the hash"
    assert lake.history()[0].message == "from Spark"
    with pytest.raises(ty.KeyConflict):
        table.append(frame(spark, 7, 500))
    merge = table.merge(frame(spark, 1, 2, 500)).when_matched_update({"v": "source.v * 100"}).when_not_matched_insert_all().execute()
    assert {what: merge.rows[what] for what in ("inserted", "updated")} == {"inserted": 1, "updated": 2}
    assert lake.table("t").to_arrow(["v"], "id in (1, 2)")["v"].to_pylist() in ([100.0, 200.0], [200.0, 100.0])
    assert table.delete("id >= 100").rows["deleted"] == 31
    assert table.update({"v": "0.0"}, where="id < 10").rows["updated"] == 10
    assert ids(lake) == list(range(20))
    assert lake.snapshot().id == 5, "each verb is one transaction"
    assert lake.table("t").check().ok
    assert lake.snapshot(1).table("t").count_rows() == table.to_df(version=1).count() == 20


def test_in_a_transaction(spark: SparkSession, lake: ty.Lake) -> None:
    with lake.transaction() as tx:
        inside = tx.spark(spark, EXECUTORS)
        inside.write(frame(spark, *range(100, 110)), "t")
        inside.merge(frame(spark, 1), "t").when_not_matched_by_source_delete().execute()
        assert [row.id for row in inside.table("t").to_df().collect()] == [1]
        assert ids(lake) == list(range(20))
    assert ids(lake) == [1]


def test_overwrite(spark: SparkSession, lake: ty.Lake) -> None:
    table = lake.spark(spark, EXECUTORS).table("t")
    table.overwrite(spark.createDataFrame([(1, "a"), (2, "b")], "id long, s string"))
    assert sorted(map(tuple, table.to_df().collect())) == [(1, "a"), (2, "b")]
    assert lake.table("t").check().ok


@pytest.mark.parametrize("work", [None, EXECUTORS], ids=["driver", "executors"])
def test_replace_rows_keeps_the_columns(spark: SparkSession, lake: ty.Lake, work: Work | None) -> None:
    before = lake.table("t").schema
    lake.spark(spark, work).table("t").replace_rows(spark.createDataFrame([(0.5, 7), (1.5, 8)], "v double, ID int"))
    assert sorted(lake.table("t").to_arrow().to_pylist(), key=str) == [{"id": 7, "v": 0.5}, {"id": 8, "v": 1.5}]
    assert lake.table("t").schema == before
    assert lake.table("t").check().ok
    with pytest.raises(ty.InvalidInput, match="do not fit the table"):
        lake.spark(spark, work).table("t").replace_rows(spark.createDataFrame([("x", 1)], "v string, id int"))
    assert ids(lake) == [7, 8]


@pytest.mark.parametrize("verb", ["overwrite", "replace_rows", "merge", "append"])
def test_there_is_no_one_version_to_expect(spark: SparkSession, lake: ty.Lake, verb: str) -> None:
    table, commit = lake.spark(spark, EXECUTORS).table("t"), ty.CommitOptions(expected_version=1)

    def run() -> None:
        if verb == "merge":
            table.merge(frame(spark, 1)).when_matched_update_all().execute(commit=commit)
        else:
            getattr(table, verb)(frame(spark, 100).selectExpr("int(id) id", "v"), commit=commit)

    with pytest.raises(ty.InvalidInput, match="expected_version is not supported on a sharded table"):
        run()
    assert ids(lake) == list(range(20))


def test_a_table_of_this_very_transaction_is_overwritten_by_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    made = ty.Lake.open(tmp_path / "new", durability="os")
    with made.transaction() as tx:
        tx.create_table("t", pa.table({"id": [1, 2], "v": [1, 2]}), primary_key=["id"], shard_by="id", shards=2)
        table = tx.spark(spark).table("t")
        for verb in (table.overwrite, table.replace_rows):
            verb(table.to_df().selectExpr("id", "v + 1 AS v"))
    assert sorted(made.table("t").to_arrow()["v"].to_pylist()) == [3, 4]


def test_what_is_refused_says_what_to_do_instead(spark: SparkSession, lake: ty.Lake, tmp_path: Path) -> None:
    table: Any = lake.spark(spark).table("t")
    with pytest.raises(ty.InvalidInput, match="must match on id"):
        table.merge(frame(spark, 1), on="v").when_matched_delete().execute()
    with pytest.raises(ty.InvalidInput, match="which shard"):
        table.update({"ID": "1"})
    for member, given in (("history", ()), ("changes", (0,)), ("add_columns", ({"x": "1"},))):
        with pytest.raises(ty.UnsupportedFeature, match=member) as caught:
            getattr(table, member)(*given)
        assert caught.value.advice
    ty.spark.enable(spark)
    with pytest.raises(Exception, match=r"lake\.spark\(session\)\.table"):
        spark.read.format("tiltyard").option("lake", str(tmp_path / "lake")).option("table", "t").load().collect()
    rows = frame(spark, 900).selectExpr("int(id) id", "v")
    with pytest.raises(Exception, match="sharded table"):
        rows.write.format("tiltyard").option("lake", str(tmp_path / "lake")).option("table", "t").mode("append").save()
    assert ids(lake) == list(range(20))


def test_sql_reads_and_refuses_to_change(spark: SparkSession, lake: ty.Lake) -> None:
    tables = lake.spark(spark)
    assert tables.sql("SELECT count(*) n FROM t WHERE v > 9.5").collect()[0].n == 10
    for statement in ("DELETE FROM t WHERE id >= 10", "UPDATE t SET v = 7.0 WHERE id = 3"):
        with pytest.raises(ty.UnsupportedFeature, match=r"lake\.spark\(session\)\.table"):
            tables.sql(statement)
    assert ids(lake) == list(range(20))
    assert lake.snapshot().id == 1


@pytest.mark.parametrize("verb", ["merge", "overwrite"])
def test_rows_that_were_read_before_others_committed_replace_nothing(spark: SparkSession, lake: ty.Lake, verb: str) -> None:
    table = lake.spark(spark).table("t")

    def run(df: DataFrame) -> None:
        if verb == "merge":
            table.merge(df).when_matched_update_all().when_not_matched_insert_all().execute()
        else:
            table.overwrite(df)

    stale = table.to_df()
    lake.table("t").delete("id = 1")
    before = ids(lake)
    with pytest.raises(ty.ExpectedVersionMismatch, match="Read the table again"):
        run(stale)
    assert ids(lake) == before
    run(table.to_df())
    assert ids(lake) == before
