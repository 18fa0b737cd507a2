"""Several statements as one transaction, and statements that add columns for themselves: all of it is committed, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark.sql_catalog import row_statements
from tiltyard.spark.sql_catalog.open_transactions import EVOLUTIONS, _open
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.write import row_jobs

ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]})
EVOLVING = """MERGE WITH SCHEMA EVOLUTION INTO lake.a USING (SELECT 1L AS id, 5L AS v, 'new' AS extra) q ON a.id = q.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    ty.spark.enable(spark)
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    with made.transaction() as tx:
        tx.create_table("a", ROWS, primary_key=["id"])
        tx.create_table("b", ROWS)
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def values(lake: ty.Lake, name: str = "a") -> dict[int, Any]:
    return {row["id"]: row["v"] for row in lake.table(name).to_arrow().to_pylist()}


def test_all_statements_of_a_block_are_one_transaction(spark: SparkSession, lake: ty.Lake) -> None:
    with ty.spark.transaction(spark, message="moved"):
        spark.sql("INSERT INTO lake.a SELECT id + 10, v FROM lake.b WHERE id > 1")
        spark.sql("DELETE FROM lake.b WHERE id > 1")
        spark.sql("UPDATE lake.a SET v = v + 1 WHERE id > 10")
        spark.sql("MERGE INTO lake.a USING lake.b ON a.id = b.id WHEN MATCHED THEN UPDATE SET v = -b.v")
        spark.sql("CREATE TABLE lake.ns.c AS SELECT id FROM lake.a")
        spark.sql("ALTER TABLE lake.b ADD COLUMN w INT")
        spark.sql("INSERT INTO lake.b VALUES (9, 90, 9)")
        spark.range(1).selectExpr("7L AS id", "70L AS v").writeTo("lake.a").append()
        assert spark.table("lake.a").count() == 6, "it sees what it wrote"
        assert [row.tableName for row in spark.sql("SHOW TABLES IN lake.ns").collect()] == ["c"]
        assert values(lake) == {1: 10, 2: 20, 3: 30}, "nobody else does"
        assert lake.snapshot().id == 1
    assert lake.snapshot().id == 2
    assert lake.history()[0].message == "moved"
    assert values(lake) == {1: -10, 2: 20, 3: 30, 12: 21, 13: 31, 7: 70}
    assert values(lake, "b") == {1: 10, 9: 90}
    assert lake.table("ns.c").count_rows() == 5
    spark.sql("DELETE FROM lake.a")  # after the block a statement is a transaction of its own
    assert lake.snapshot().id == 3
    assert not _open


class Left(Exception):
    pass


def run_and_leave(spark: SparkSession, text: str) -> None:
    with ty.spark.transaction(spark):
        spark.sql(text)
        raise Left


def test_an_exception_rolls_everything_back(spark: SparkSession, lake: ty.Lake) -> None:
    with pytest.raises(Left):
        run_and_leave(spark, "DELETE FROM lake.a")
    assert (lake.snapshot().id, values(lake)) == (1, {1: 10, 2: 20, 3: 30})
    assert spark.table("lake.a").count() == 3


def test_a_statement_that_fails_takes_the_transaction_with_it(spark: SparkSession, lake: ty.Lake) -> None:
    """REPLACE WHERE deletes before it inserts: were the error caught and the rest committed, rows would be lost."""

    def block() -> None:
        with ty.spark.transaction(spark):
            spark.sql("DELETE FROM lake.b")
            with pytest.raises(Exception, match="KEY_CONFLICT"):
                spark.sql("INSERT INTO lake.a REPLACE WHERE id = 1 SELECT 2L, 5L")
            with pytest.raises(Exception, match="was rolled back when"):
                spark.sql("INSERT INTO lake.b VALUES (4, 4)")

    with pytest.raises(ty.InvalidInput, match="Nothing was committed"):
        block()
    assert (lake.snapshot().id, values(lake), len(values(lake, "b"))) == (1, {1: 10, 2: 20, 3: 30}, 3)


def test_a_conflict_is_told_at_the_end_and_nothing_is_written(spark: SparkSession, lake: ty.Lake) -> None:
    def block() -> None:
        with ty.spark.transaction(spark):
            spark.sql("UPDATE lake.a SET v = 0 WHERE id = 1")
            spark.sql("DELETE FROM lake.b")
            lake.table("a").update({"v": "1000"}, where="id = 1")

    with pytest.raises(ty.ConflictError):
        block()
    assert (values(lake)[1], len(values(lake, "b"))) == (1000, 3)


def test_what_cannot_be_part_of_one_says_so(spark: SparkSession, lake: ty.Lake) -> None:
    with ty.spark.transaction(spark):
        for text in ("CALL lake.system.compact('a')", "CREATE NAMESPACE lake.fresh"):
            with pytest.raises(Exception, match="cannot be part of a transaction"):
                spark.sql(text)
        with pytest.raises(ty.InvalidInput, match="cannot be part"), ty.spark.transaction(spark):
            pass
        spark.sql("DELETE FROM lake.a WHERE id = 1")
    assert values(lake) == {2: 20, 3: 30}
    with pytest.raises(ty.InvalidInput, match="no catalog 'nope'"), ty.spark.transaction(spark, catalog="nope"):
        pass


# ---- columns that a statement adds for itself --------------------------------------------------------------------------------


def test_columns_and_rows_are_one_commit(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql(EVOLVING)
    assert lake.snapshot().id == 2
    assert lake.table("a").to_arrow().sort_by("id").to_pylist()[0] == {"id": 1, "v": 5, "extra": "new"}
    spark.sql("INSERT WITH SCHEMA EVOLUTION INTO lake.b BY NAME SELECT 9L AS id, 1 AS more")
    assert lake.snapshot().id == 3
    assert lake.table("b").schema.names == ["id", "v", "more"]
    assert not EVOLUTIONS._by_query


def test_a_statement_that_fails_adds_no_column(spark: SparkSession, lake: ty.Lake) -> None:
    with pytest.raises(Exception, match="KEY_CONFLICT"):
        spark.sql("INSERT WITH SCHEMA EVOLUTION INTO lake.a BY NAME SELECT 1L AS id, 1 AS more")
    spark.sql(f"EXPLAIN {EVOLVING}").collect()
    assert (lake.snapshot().id, lake.table("a").schema.names) == (1, ["id", "v"])


def test_columns_are_added_to_what_a_conflicting_writer_left(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, meddled = row_jobs.changed, [0]

    def late(*given: Any, **named: Any) -> Any:
        found = changed(*given, **named)
        meddled[0] += 1
        if meddled[0] == 1:
            lake.table("a").update({"v": "1000"}, where="id = 1")
        return found

    monkeypatch.setattr(row_statements, "changed", late)
    spark.sql(EVOLVING.replace("UPDATE SET *", "UPDATE SET v = a.v + 1, extra = q.extra"))
    assert meddled == [2]
    assert lake.table("a").to_arrow().sort_by("id").to_pylist()[0] == {"id": 1, "v": 1001, "extra": "new"}


def test_columns_added_in_a_transaction_are_part_of_it(spark: SparkSession, lake: ty.Lake) -> None:
    with pytest.raises(Left):
        run_and_leave(spark, EVOLVING)
    assert lake.table("a").schema.names == ["id", "v"]
    with ty.spark.transaction(spark):
        spark.sql(EVOLVING)
        spark.sql("DELETE FROM lake.b")
    assert (lake.snapshot().id, lake.table("a").schema.names) == (2, ["id", "v", "extra"])
