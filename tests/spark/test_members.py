"""Every member of a plan node is used or refused by name, in the Spark that runs: a new release's new clause fails here, not in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark import Work, sql
from tiltyard.spark.statements.plan_members import CLAUSES, USED

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
CLASSES = {name: (ANALYSIS if name in ("UnresolvedRelation", "RelationTimeTravel") else LOGICAL) + name for name in USED}

UNWRITTEN = {("UpdateAction", "fromStar"), ("InsertAction", "fromStar")}
"""Members that no statement sets: Spark's analyzer does, after the plan left the parser."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={b"unit": b"none"}),
        pa.field("v", pa.int32(), metadata={b"unit": b"mm"}),
        pa.field("s", pa.string()),
    ]
)
ROWS = pa.table({"id": [1, 2, 3], "v": pa.array([10, 20, 30], pa.int32()), "s": ["a", "b", "c"]}, schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> ty.Lake:
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("t", ROWS, primary_key=["id"])
    return made


def rows(lake: ty.Lake) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.table("t").to_arrow().to_pylist())


def members(spark: SparkSession, name: str) -> list[str]:
    """What a case class of Scala is made of: the parameters of its longest constructor."""
    jvm: Any = spark._jvm
    made = max(jvm.java.lang.Class.forName(name).getConstructors(), key=lambda one: int(one.getParameterCount()))
    return [str(one.getName()) for one in made.getParameters()]


def test_each_member_is_used_or_has_a_clause_to_refuse(spark: SparkSession) -> None:
    for kind, name in CLASSES.items():
        found = set(members(spark, name))
        assert USED[kind] <= found, f"{kind} has no {USED[kind] - found} in this Spark"
        left = {one for one in found - USED[kind] - set(CLAUSES) if (kind, one) not in UNWRITTEN}
        assert not left, f"{kind} has {left}, which nobody looks at: use them, or refuse them by name"


REFUSED = {
    "INSERT INTO t REPLACE WHERE id < 2 SELECT 9L, 9, 'z'": "REPLACE",
    "INSERT INTO t REPLACE USING (id) SELECT 1L, 5, 'r'": "REPLACE",
    "INSERT INTO t AS q REPLACE ON q.id = u.id (SELECT 1L id, 5 v, 'r' s) AS u": "REPLACE",
    "INSERT INTO t PARTITION (s = 'x') SELECT 9L, 9": "PARTITION",
    "INSERT OVERWRITE t PARTITION (s = 'x') IF NOT EXISTS SELECT 9L, 9": "PARTITION|IF NOT EXISTS",
    "INSERT WITH SCHEMA EVOLUTION INTO t SELECT 9L, 9, 'z'": "SCHEMA EVOLUTION",
    """MERGE WITH SCHEMA EVOLUTION INTO t USING (SELECT 1L id, 5 v, 'n' s, 'new' extra) u ON t.id = u.id
       WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""": "SCHEMA EVOLUTION",
    "SELECT * FROM t WITH (version = 1)": r"WITH \(options\)",
    "INSERT INTO t WITH (retries = 0) SELECT 9L, 9, 'z'": r"WITH \(options\)",
    "INSERT INTO t SELECT id + 5, v, s FROM t WITH (tag = 'x')": r"WITH \(options\)",
    "SELECT * FROM STREAM t": "STREAM",
}


@pytest.mark.parametrize("text", REFUSED)
def test_clauses_that_are_refused_by_name(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    with pytest.raises(ty.UnsupportedFeature, match=REFUSED[text]):
        sql(spark, text, lake)
    assert (lake.table("t").version, rows(lake)) == (1, [(1, 10, "a"), (2, 20, "b"), (3, 30, "c")])


OVERWRITES: dict[str, list[tuple[Any, ...]]] = {
    "INSERT OVERWRITE t VALUES (9, 9, 'z')": [(9, 9, "z")],
    "INSERT OVERWRITE t (s, id) VALUES ('z', 9L)": [(9, None, "z")],
    "INSERT OVERWRITE t BY NAME SELECT 'z' s, 9L id": [(9, None, "z")],
    "INSERT OVERWRITE t SELECT id + 1, v, s FROM t WHERE id > 1": [(3, 20, "b"), (4, 30, "c")],
}


@pytest.mark.parametrize(("text", "driver_bytes"), [*((text, 8 << 20) for text in OVERWRITES), (list(OVERWRITES)[-1], 0)])
def test_insert_overwrite_keeps_what_the_table_is(spark: SparkSession, lake: ty.Lake, text: str, driver_bytes: int) -> None:
    sql(spark, text, lake, Work(driver_bytes=driver_bytes))
    table = lake.table("t")
    assert rows(lake) == OVERWRITES[text]
    assert table.schema.equals(ROWS.schema), "columns, types and what may be null"
    assert [field.metadata[b"unit"] for field in list(table.schema)[:2]] == [b"none", b"mm"]
    assert list(table.primary_key) == ["id"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("INSERT OVERWRITE t (v, s) VALUES (9, 'z')", "'id'"),
        ("INSERT OVERWRITE t BY NAME SELECT 9L id, 1 nobody", "nobody"),
        ("INSERT OVERWRITE t VALUES (1, 1, 'a'), (1, 2, 'b')", "1"),
    ],
    ids=["not-null column missing", "unknown column", "a key twice"],
)
def test_an_overwrite_that_does_not_fit_changes_nothing(spark: SparkSession, lake: ty.Lake, text: str, what: str) -> None:
    with pytest.raises((ty.InvalidInput, ty.KeyConflict), match=what):
        sql(spark, text, lake)
    assert (lake.table("t").version, len(rows(lake))) == (1, 3)


def test_variables_are_replaced_before_places_in_the_text_count(spark: SparkSession, lake: ty.Lake) -> None:
    spark.conf.set("tiltyard.test.lowest", "2")
    try:
        query = "SELECT count(*), '${tiltyard.test.lowest}' FROM t JOIN t u ON t.id = u.id AND '${spark.master}' <> ''"
        query += " WHERE t.id >= ${tiltyard.test.lowest}"
        assert tuple(sql(spark, query, lake).collect()[0]) == (2, "2")
        sql(spark, "DELETE FROM t WHERE '${spark.master}' <> '' AND id >= ${tiltyard.test.lowest}", lake)
    finally:
        spark.conf.unset("tiltyard.test.lowest")
    assert rows(lake) == [(1, 10, "a")]
