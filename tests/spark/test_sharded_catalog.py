"""Sharded tables by name in the catalog: statements work on the whole table, or are refused with what to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark.sql_catalog.session_catalog import use_lake

ROWS = pa.table({"id": [1, 2, 3, 4, 5, 6], "v": [10, 20, 30, 40, 50, 60]})


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    ty.spark.enable(spark)
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("sh", ROWS, primary_key=["id"], shard_by=["id"], shards=3)
    made.create_table("plain", ROWS)
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def held(lake: ty.Lake) -> dict[int, int]:
    return {row["id"]: row["v"] for row in lake.table("sh").to_arrow().to_pylist()}


BEFORE = {1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 6: 60}

QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT * FROM lake.sh ORDER BY id": sorted(BEFORE.items()),
    "SELECT count(*), sum(v), min(id) FROM lake.sh": [(6, 210, 1)],
    "SELECT v FROM lake.sh WHERE id > 4 ORDER BY v": [(50,), (60,)],
    "SELECT count(*) FROM lake.sh s JOIN lake.plain p ON s.id = p.id": [(6,)],
    "SELECT count(*) FROM lake.sh VERSION AS OF 'first'": [(6,)],
    "SELECT count(*) FROM lake.sh TIMESTAMP AS OF current_timestamp()": [(6,)],
    "SELECT id FROM lake.sh ORDER BY id LIMIT 1": [(1,)],
    "DESCRIBE lake.sh": [("id", "bigint", None), ("v", "bigint", None)],
    "SHOW TBLPROPERTIES lake.sh": [("primary_key", "id"), ("shard_by", "id"), ("shards", "3")],
}


@pytest.mark.parametrize("text", QUERIES)
def test_what_a_query_shows(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    lake.tags.create("first")
    assert [tuple(row) for row in spark.sql(text).collect()] == QUERIES[text]


CHANGES: dict[str, dict[int, int | None]] = {
    "INSERT INTO lake.sh VALUES (9, 90), (10, 100), (11, 110)": {**BEFORE, 9: 90, 10: 100, 11: 110},
    "INSERT INTO lake.sh SELECT id + 10, v FROM lake.sh WHERE id < 3": {**BEFORE, 11: 10, 12: 20},
    "INSERT INTO lake.sh (id) VALUES (9)": {**BEFORE, 9: None},
    "TRUNCATE TABLE lake.sh": {},
    "OPTIMIZE lake.sh": {**BEFORE},
    "OPTIMIZE lake.sh WHERE id > 2 ZORDER BY (v)": {**BEFORE},
    "CALL lake.system.create_index(table => 'sh', column => 'v')": {**BEFORE},
    "ALTER TABLE lake.sh ADD COLUMN w INT": {**BEFORE},
    "ALTER TABLE lake.sh DROP COLUMN IF EXISTS nope": {**BEFORE},
    "INSERT OVERWRITE lake.sh VALUES (9, 90)": {9: 90},
    "INSERT OVERWRITE lake.sh SELECT id, v FROM lake.plain WHERE id < 0": {},
    "UPDATE lake.sh SET v = 0": dict.fromkeys(BEFORE, 0),
    "DELETE FROM lake.sh WHERE id = 1": {number: value for number, value in BEFORE.items() if number > 1},
    "MERGE INTO lake.sh t USING lake.plain s ON t.id = s.id WHEN MATCHED THEN DELETE": {},
    "MERGE INTO lake.sh t USING lake.plain s ON t.id = s.id + 3 WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = -t.v":
        {**BEFORE, 1: -10, 2: -20, 3: -30},
    "CREATE OR REPLACE TABLE lake.sh AS SELECT 1L AS id, 2L AS v": {1: 2},
}  # fmt: skip


@pytest.mark.parametrize("text", CHANGES)
def test_what_a_statement_leaves(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    before = lake.snapshot().id
    spark.sql(text)
    assert held(lake) == CHANGES[text]
    assert isinstance(table := lake.table("sh"), ty.ShardedTable)
    assert table.shards == 3
    assert lake.snapshot().id <= before + 1, "one transaction"
    lake.check()


REFUSED = {
    "INSERT INTO lake.sh VALUES (1, 5)": "KEY_CONFLICT",
    "SELECT * FROM lake.sh VERSION AS OF 1": "snapshots of the lake.*TIMESTAMP AS OF",
    "RESTORE TABLE lake.sh TO VERSION AS OF 1": "sharded table has no restore",
    "ANALYZE TABLE lake.sh COMPUTE STATISTICS": "ANALYZE TABLE is not supported on sharded",
    "DESCRIBE HISTORY lake.sh": r"no history.*lake\.history",
    "SELECT * FROM lake.sh.fragments": "no layout.*shard",
    "SELECT * FROM table_changes('lake.sh', 1)": "no changes.*each shard",
    "CREATE TABLE lake.n (id BIGINT) TBLPROPERTIES ('shard_by' = 'id')": r"Property shard_by.*lake\.create_table",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_what_to_use(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    before = lake.snapshot().id
    with pytest.raises(Exception, match=REFUSED[text]):
        spark.sql(text).collect()
    assert (held(lake), lake.snapshot().id) == (BEFORE, before)


def test_statements_of_a_transaction_see_each_other(spark: SparkSession, lake: ty.Lake) -> None:
    with ty.spark.transaction(spark):
        spark.sql("INSERT INTO lake.sh VALUES (9, 90)")
        assert spark.sql("SELECT count(*) FROM lake.sh").collect()[0][0] == 7
        assert held(lake) == BEFORE
    assert held(lake) == {**BEFORE, 9: 90}


def test_statistics_are_those_of_shards(lake: ty.Lake) -> None:
    """The table that names the shards has no rows: statistics of it would be of nothing."""
    with pytest.raises(ty.UnsupportedFeature, match="each shard"):
        lake.table("sh").maintenance.analyze()
