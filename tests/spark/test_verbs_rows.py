"""Append, overwrite, delete and update in executors: against the table's own verbs, and against Spark on plain data frames."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tiltyard as ty
from tests.support.spark_tables import EVERYWHERE, content, plain, rows, table
from tiltyard.spark import SparkReader, SparkTable, Work


def test_rows_are_appended_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    here, there = table(tmp_path / "here"), table(tmp_path / "there")
    source = spark.createDataFrame(rows(200, 230)).repartition(3)
    on = SparkTable(spark, there, EVERYWHERE)
    here.append(rows(200, 230))
    assert on.append(source, message="more", files=ty.FileLimits(rows=7)).rows == {"inserted": 30}
    assert content(there) == content(here)
    assert (there.history(1)[0].message, there.history(1)[0].operation) == ("more", "Append")
    with pytest.raises(ty.KeyConflict, match="already"):
        on.append(source)
    replacing = source.selectExpr("id", "cast(n as string) as n").where("id < 210")
    assert on.overwrite(replacing).rows == {"inserted": 10}
    assert there.refresh().schema.names == ["id", "n"]
    assert there.primary_key == ("id",)
    assert {one.name for one in (tmp_path / "there" / "data").iterdir()} >= {
        file.path for one in there.layout.fragments for file in one.files
    }


def test_nothing_is_left_of_an_append_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    before = {one.name for one in (tmp_path / "t" / "data").iterdir()}
    double = spark.createDataFrame(rows(200, 210)).unionAll(spark.createDataFrame(rows(205, 206)))
    with pytest.raises(ty.KeyConflict, match="id 205"):
        SparkTable(spark, made, EVERYWHERE).append(double)
    with pytest.raises(ty.InvalidInput, match="nope"):
        SparkTable(spark, made, EVERYWHERE).append(spark.range(3).selectExpr("id", "1 as nope"))
    assert {one.name for one in (tmp_path / "t" / "data").iterdir()} == before
    assert made.refresh().version == 2


@pytest.mark.parametrize("stable", [False, True])
def test_delete_and_update_are_what_the_table_does_itself(spark: SparkSession, tmp_path: Path, stable: bool) -> None:
    here, there = table(tmp_path / "here", stable=stable), table(tmp_path / "there", stable=stable)
    on = SparkTable(spark, there, EVERYWHERE)
    assert on.delete("n > 30 AND s IS NOT NULL", message="gone").rows == here.delete("n > 30 AND s IS NOT NULL").rows
    assert (
        on.update({"n": "id * 2", "s": "'new'"}, "id % 5 = 0").rows == here.update({"n": "id * 2", "s": "'new'"}, "id % 5 = 0", "rows").rows
    )
    assert content(there) == content(here)
    ids = [plain(one.to_arrow(columns=["id"], options={"with_row_id": True})) for one in (there, here)]
    assert ids[0] == ids[1] or not stable
    assert [one.operation for one in there.history(2)] == ["Update", "Delete"]
    assert there.check().ok


def test_conditions_and_values_are_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    before = spark.createDataFrame(made.to_arrow())
    on = SparkTable(spark, made, EVERYWHERE)
    hit = "x <=> double('NaN') OR soundex(s) = 'A000'"  # neither means the same, or anything, in another dialect
    on.update({"s": f.concat_ws("-", "s", f.lit("ß")), "n": "try_add(n, 1)"}, hit)
    expected = before.selectExpr("id", "x", f"if({hit}, concat_ws('-', s, 'ß'), s) as s", f"if({hit}, try_add(n, 1), n) as n")
    assert content(made) == plain(expected.toArrow())
    left = made.count_rows()
    assert on.delete(f.col("s").contains("ß")).rows["deleted"] == left - made.count_rows()
    assert made.count_rows("s LIKE '%ß%'") == 0


def test_where_nothing_matches_nothing_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    on = SparkTable(spark, made, EVERYWHERE)
    assert on.delete("id > 10000").rows == {"deleted": 0}
    assert on.update({"s": "'x'"}, "id > 10000").rows == {"updated": 0}
    assert made.refresh().version == 2
    assert on.delete("true").rows["deleted"] > 100
    assert made.count_rows() == 0


def test_what_a_table_refuses_it_refuses_here_too(spark: SparkSession, tmp_path: Path) -> None:
    on = SparkTable(spark, table(tmp_path / "t"), EVERYWHERE)
    with pytest.raises(ty.InvalidInput, match="primary key"):
        on.update({"id": "id + 1"})
    with pytest.raises(ty.InvalidInput, match="no column 'nope'"):
        on.update({"nope": "1"})
    with pytest.raises(ty.InvalidInput, match="where is an expression"):
        on.delete("")
    with pytest.raises(ty.InvalidInput, match="at least 0"):
        Work(driver_rows=-1)


def test_a_transaction_is_all_or_nothing_over_several_tables(spark: SparkSession, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("a", rows(0, 50), primary_key=["id"])
    more = spark.createDataFrame(rows(40, 70))
    with lake.transaction(message="both") as tx:
        on = tx.spark(spark, work=ty.spark.Work(driver_bytes=0, driver_table_rows=0))
        on.merge(more, "a").when_matched_update_all().when_not_matched_insert_all().execute()
        on.write(more.select("id", "s"), "sub.b", create=True, primary_key=["id"])
        on.table("sub.b").delete("id % 2 = 0")
        assert on.table("a").to_df().count() == 70
        assert on.table("sub.b").to_df().selectExpr("sum(id)").collect()[0][0] == sum(range(41, 70, 2))
        assert lake.table("a").count_rows() == 50
        assert lake.tables() == ["a"]
    assert lake.table("a").count_rows() == 70
    assert lake.table("sub.b").count_rows() == 15
    assert lake.history()[0].message == "both"

    tx = lake.transaction()
    tx.spark(spark, work=ty.spark.Work(driver_bytes=0)).table("a").delete("id < 60")
    tx.spark(spark).write(more.select("id", "s").where("id = 40"), "sub.b")
    tx.rollback()
    assert (lake.table("a").count_rows(), lake.table("sub.b").count_rows()) == (70, 15)
    assert lake.check().ok


def test_tables_of_a_lake_by_name(spark: SparkSession, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    on = lake.spark(spark)
    with pytest.raises(ty.NotFound):
        on.write(spark.range(3), "a")
    assert on.write(spark.range(3), "a", create=True, primary_key=["id"]).rows == {"inserted": 3}
    assert on.write(spark.range(5), "a", mode="overwrite").rows == {"inserted": 5}
    assert on.merge(spark.range(4, 8), "a").when_not_matched_insert_all().execute().rows["inserted"] == 3
    assert sorted(row.id for row in on.table("a").to_df().collect()) == list(range(8))
    assert on.table("a").to_df(version=1).count() < 8
    assert on.sql("SELECT max(id) FROM a").collect()[0][0] == 7
    with pytest.raises(ty.InvalidInput, match="mode"):
        on.write(spark.range(5), "a", mode="ignore")  # type: ignore[arg-type]  # what is tried here


def test_a_long_feed_is_read_in_parts_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("t", pa.table({"id": [0], "n": [0]}), stable_row_ids=True)
    table = lake.table("t")
    for number in range(1, 8):
        table.append(pa.table({"id": [number], "n": [number]}))
        table.update({"n": "n + 10"}, where=f"id = {number - 1}")
    table.add_columns({"twice": "2 * n"})
    table.delete("id = 3")
    expected = [(row["id"], row["n"], row["twice"], row["_change"], row["_version"]) for row in table.changes(0).read_all().to_pylist()]
    for one in (table, lake.snapshot().table("t")):
        frame = SparkReader(spark, one).changes(0)
        assert frame.rdd.getNumPartitions() > 1
        assert [(row.id, row.n, row.twice, row["_change"], row["_version"]) for row in frame.collect()] == expected


def test_history_and_changes_are_data_frames(spark: SparkSession, tmp_path: Path) -> None:
    made = ty.Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2]}), durability="os", options=ty.TableOptions(message="first"))
    made.append(pa.table({"id": [3]}), message="second")
    made.delete("id = 1")
    on = SparkTable.for_path(spark, tmp_path / "t")
    assert [(row.version, row.message) for row in on.history().collect()] == [(3, ""), (2, "second"), (1, "first")]
    assert on.history(1).count() == 1
    changed = {(row.id, row["_change"], row["_version"]) for row in on.changes(1).collect()}
    assert changed == {(3, "insert", 2), (1, "delete", 3)}
    assert on.changes(1, 2).count() == 1
    assert on.changes(3).count() == 0
    assert [row.id for row in on.to_df(version=1).orderBy("id").collect()] == [1, 2]
