"""Merges in executors: against the table's own verb on the same rows, and against Spark's joins of plain data frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tiltyard as ty
from tests.support.commits import files_below
from tests.support.proving import pick
from tests.support.spark_tables import EVERYWHERE, SEED, content, rows, table
from tiltyard.spark import SparkTable, Work, jobs
from tiltyard.spark.jobs import scan_frame

Step = Callable[[Any], Any]

PLANS: dict[str, Step] = {
    "upsert": lambda m: m.when_matched_update_all().when_not_matched_insert_all(),
    "update only": lambda m: m.when_matched_update_all(),
    "insert only": lambda m: m.when_not_matched_insert_all(),
    "delete": lambda m: m.when_matched_delete(),
    "mirror": lambda m: m.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete(),
    "delete what is gone": lambda m: m.when_not_matched_by_source_delete(),
    "some columns": lambda m: m.when_matched_update(["s", "n"]).when_not_matched_insert_all(),
    "values": lambda m: (
        m.when_matched_update({"n": "source.n + target.n"}, "source.n > 20")
        .when_not_matched_insert({"id": "source.id", "s": "source.s || '!'"}, "source.n > 20")
        .when_not_matched_insert({"id": "source.id", "n": "source.n"})
        .when_not_matched_by_source_update({"n": "0 - 1"})
    ),
    "two clauses": lambda m: m.when_matched_delete("source.n > 50").when_matched_update_all("target.n > 20").when_not_matched_insert_all(),
}
"""Merges whose words mean the same to the table's own verb and to Spark."""


def as_frame(spark: SparkSession, data: pa.Table, partitions: int = 2) -> DataFrame:
    return spark.createDataFrame(data).repartition(partitions, "id")


WITH_IDS = pick(["upsert", "two clauses", "mirror"], list(PLANS))


@pytest.mark.parametrize(("name", "stable"), [*((name, False) for name in PLANS), *((name, True) for name in WITH_IDS)])
def test_a_merge_in_executors_is_what_the_table_does_itself(spark: SparkSession, tmp_path: Path, name: str, stable: bool) -> None:
    print(f"seed {SEED}")
    source = rows(90, 150, SEED + 1)
    here, there = table(tmp_path / "here", stable=stable), table(tmp_path / "there", stable=stable)
    expected = PLANS[name](here.merge(source)).execute()
    done = PLANS[name](SparkTable(spark, there, EVERYWHERE).merge(as_frame(spark, source))).execute(message="spark")
    assert done.rows == expected.rows
    assert content(there) == content(here)
    assert there.check().ok
    assert there.history(1)[0].message == "spark"
    assert _untouched_ids(there, here) if stable else True


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_progress_of_a_write_ahead_log_is_part_of_the_merge(spark: SparkSession, tmp_path: Path, where: str) -> None:
    made = table(tmp_path / "t")
    made.indices.mem_wal.initialize(sharding=ty.WalSharding(unsharded=True))
    work = EVERYWHERE if where == "executors" else Work()
    shard, source = UUID(int=1), as_frame(spark, rows(90, 110, SEED))
    merge = SparkTable(spark, made, work).merge(source).when_matched_update_all().when_not_matched_insert_all()
    merge.mark_generations_merged({shard: 3}).execute()
    assert made.refresh().indices.mem_wal.generations == {str(shard): 3}
    with pytest.raises(ty.IncompatibleConflict):
        merge.mark_generations_merged({shard: 3}).execute()
    with pytest.raises(ty.InvalidInput, match="uuid"):
        merge.mark_generations_merged({"one": 1})


@pytest.mark.parametrize("name", ["upsert", "two clauses"])
def test_all_rows_of_one_key_are_changed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Without a primary key a table may have several rows of one key; none of them is lost."""
    given, source = rows(0, 40, SEED), rows(30, 50, SEED + 1)
    tables = []
    for place in ("here", "there"):
        tables.append(ty.Table.create(tmp_path / place, given))
        tables[-1].append(given.slice(25, 10))
    expected = PLANS[name](tables[0].merge(source, "id")).execute()
    done = PLANS[name](SparkTable(spark, tables[1], EVERYWHERE).merge(as_frame(spark, source), on="id")).execute()
    assert done.rows == expected.rows
    assert _sorted(tables[1]) == _sorted(tables[0])
    assert files_below(tmp_path / "there", "data") == {file.path for version in (1, 2, 3) for file in _files(tmp_path / "there", version)}


def _sorted(one: ty.Table) -> list[str]:
    return sorted(map(repr, one.to_arrow().to_pylist()))


def _files(place: Path, version: int) -> list[Any]:
    return [file for fragment in ty.Table.open(place, version=version).layout.fragments for file in fragment.files]


def _untouched_ids(there: ty.Table, here: ty.Table) -> bool:
    """Rows keep their ids wherever they were merged; those of new rows are given out in any order."""
    sides = [one.to_arrow(options={"with_row_id": True}).to_pylist() for one in (there, here)]
    ids = [{row["id"]: row["_rowid"] for row in side if row["id"] < 120 and row["id"] % 11 != 3} for side in sides]
    return ids[0] == ids[1]


def test_values_and_conditions_are_evaluated_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    before = spark.createDataFrame(made.to_arrow())
    source = spark.range(100, 140).selectExpr("id", "cast(id * 2 as int) as m", "concat('ß', id) as w")
    SparkTable(spark, made, EVERYWHERE).merge(source, "id").when_matched_update(
        {"n": "coalesce(target.n, 0) + source.m", "s": f.upper(f.col("source.w"))}, "source.id % 3 = 0 OR target.x <=> double('NaN')"
    ).when_not_matched_insert({"id": "source.id", "s": "reverse(source.w)"}, "source.m % 4 = 0").execute()

    joined = before.alias("t").join(source.alias("s"), f.expr("t.id = s.id"), "full")
    hit = "t.id is not null and s.id is not null and (s.id % 3 = 0 OR t.x <=> double('NaN'))"
    expected = joined.where("t.id is not null or s.m % 4 = 0").selectExpr(
        "coalesce(t.id, s.id) as id",
        "t.x as x",
        f"case when t.id is null then reverse(s.w) when {hit} then upper(s.w) else t.s end as s",
        f"cast(case when t.id is null then null when {hit} then coalesce(t.n, 0) + s.m else t.n end as int) as n",
    )
    made.refresh()
    found = [{**row, "id": int(row["id"])} for row in content(made)]
    wanted = [{name: repr(value) for name, value in row.asDict().items()} for row in expected.orderBy("id").collect()]
    assert found == [{**row, "id": int(row["id"])} for row in wanted]


@pytest.mark.parametrize("step", [PLANS["upsert"], PLANS["some columns"]])
def test_two_rows_of_one_key_in_the_source_are_refused_by_name(spark: SparkSession, tmp_path: Path, step: Step) -> None:
    made = table(tmp_path / "t")
    source = as_frame(spark, rows(100, 125)).unionAll(as_frame(spark, rows(110, 112)))
    before, files = content(made), _data_files(made)
    with pytest.raises(ty.KeyConflict) as raised:
        step(SparkTable(spark, made, EVERYWHERE).merge(source)).execute()
    assert sorted(raised.value.sample) == ["id 110", "id 111"]
    assert content(made) == before
    assert _data_files(made) == files


def test_nulls_in_the_key_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t", key=False)
    source = spark.createDataFrame([(None, "a"), (5, "b")], "id long, s string")
    with pytest.raises(ty.InvalidInput, match="nulls in id"):
        SparkTable(spark, made, EVERYWHERE).merge(source, "id").when_matched_update(["s"]).execute()


def test_a_source_row_may_match_several_rows_where_the_key_is_not_unique(spark: SparkSession, tmp_path: Path) -> None:
    made = ty.Table.create(str(tmp_path / "t"), pa.table({"k": [1, 1, 2, 3], "v": [10, 11, 12, 13]}), durability="os")
    source = spark.createDataFrame([(1, 5), (3, 6), (4, 7)], "k long, v long")
    done = SparkTable(spark, made, EVERYWHERE).merge(source, "k").when_matched_update({"v": "target.v + source.v"}).execute()
    assert done.rows["updated"] == 3
    assert sorted(made.to_arrow().to_pylist(), key=str) == [{"k": 1, "v": 15}, {"k": 1, "v": 16}, {"k": 2, "v": 12}, {"k": 3, "v": 19}]


def test_what_must_not_match_ends_the_merge(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    merge = SparkTable(spark, made, EVERYWHERE).merge(as_frame(spark, rows(118, 125)))
    with pytest.raises(ty.KeyConflict, match="id 11"):
        merge.when_matched_fail().when_not_matched_insert_all().execute()
    assert made.refresh().version == 2


def test_a_merge_past_the_primary_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    merge = SparkTable(spark, made, EVERYWHERE).merge(as_frame(spark, rows(118, 125)), "s")
    with pytest.raises(ty.InvalidInput, match="two rows of one primary key"):
        merge.when_not_matched_insert_all().execute()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda m: m, "no clause"),
        (lambda m: m.when_matched_delete().when_matched_update_all(), "No row is left"),
        (lambda m: m.when_matched_update({"nope": "1"}), "no column 'nope'"),
        (lambda m: m.when_matched_update({"n": 1}), "text of Spark SQL, or a Column"),
    ],
)
def test_merges_that_cannot_be(spark: SparkSession, tmp_path: Path, step: Step, words: str) -> None:
    merge = SparkTable(spark, table(tmp_path / "t"), EVERYWHERE).merge(spark.range(1).selectExpr("id"))
    with pytest.raises(ty.InvalidInput, match=words):
        step(merge).execute()


def test_what_is_small_is_merged_without_spark_jobs(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    made = table(tmp_path / "t")
    small = spark.createDataFrame(rows(100, 130))
    work = Work(progress=told.append)
    PLANS["upsert"](SparkTable(spark, made, work).merge(small)).execute()
    assert told == ["merging on the driver"]
    grown = spark.range(200_000).selectExpr("id", "explode(array(1)) as n")
    assert SparkTable(spark, made, work).merge(grown).when_matched_update(["n"]).execute().rows["updated"] > 0
    assert told[-1] == "committing"


@pytest.mark.parametrize("bound", [1 << 24, 2])
def test_spark_knows_how_large_a_table_is_that_it_joins(
    spark: SparkSession, tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends what it takes for small to every executor, and a table of millions of rows does not fit there."""
    monkeypatch.setattr(jobs, "_MOST_NUMBERS", bound)
    made = ty.Table.create(tmp_path / "t", pa.table({"id": range(7)}), durability="os")
    for first in (7, 500, 900):
        made.append(pa.table({"id": range(first, min(first + 493, 1000))}))
    rows = made.count_rows()
    for parts in (1, 3, 4, 100):
        frame = scan_frame(spark, made.distributed.scan_task(), made.schema, ["id"], Work(partitions=parts))
        assert Counter(row.id for row in frame.collect()) == Counter(made.to_arrow()["id"].to_pylist())
        joined = spark.range(10).join(frame, "id", "left")
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", 7 * rows)
        try:
            broadcast = "BroadcastHashJoin" in str(joined._jdf.queryExecution().sparkPlan())
        finally:
            spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
        assert broadcast is (bound == 2), "with a low bound it has to guess again"


def test_rows_keep_vectors_and_types_that_spark_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    vectors = pa.array([[float(n), float(-n)] for n in range(10)], pa.list_(pa.float16(), 2))
    columns = {"id": pa.array(range(10)), "v": vectors, "u": pa.array(range(10), pa.uint8()), "n": pa.array(range(10))}
    made = ty.Table.create(str(tmp_path / "t"), pa.table(columns), primary_key=["id"], durability="os")
    source = spark.range(5, 8).selectExpr("id", "id * 10 as m")
    SparkTable(spark, made, EVERYWHERE).merge(source).when_matched_update({"n": "source.m", "u": "target.u + 1"}).execute()
    found = {row["id"]: row for row in made.to_arrow().to_pylist()}
    assert [found[n] for n in (4, 6)] == [
        {"id": 4, "v": [4.0, -4.0], "u": 4, "n": 4},
        {"id": 6, "v": [6.0, -6.0], "u": 7, "n": 60},
    ]
    assert made.schema.field("v").type == vectors.type


def _data_files(made: ty.Table) -> set[str]:
    return {one.name for one in (Path(made.uri) / "data").iterdir()}
