"""Distributed verbs while others commit: between the version that was read and the commit, each time at the same step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.support.spark_tables import EVERYWHERE, content, rows, table
from tiltyard.spark import SparkTable


class Once:
    """Does something when a step is begun, so many times, and remembers all steps."""

    def __init__(self, step: str, act: Callable[[], object], times: int = 1) -> None:
        self.step, self.act, self.left = step, act, times
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if step == self.step and self.left:
            self.left -= 1
            self.act()


def beside(spark: SparkSession, made: ty.Table, step: str, act: Callable[[ty.Table], object], times: int = 1) -> tuple[SparkTable, Once]:
    """The table for Spark, with somebody else at work on it at that step."""
    once = Once(step, lambda: act(ty.Table.open(made.uri)), times)
    return SparkTable(spark, made, replace(EVERYWHERE, progress=once)), once


@pytest.mark.parametrize("condition", [None, "source.id = target.id"])
def test_rows_that_others_change_meanwhile_are_merged_anew(spark: SparkSession, tmp_path: Path, condition: str | None) -> None:
    made = table(tmp_path / "t")
    on, once = beside(spark, made, "committing", lambda other: other.update({"s": "'theirs'"}, "id = 100"))
    source = spark.createDataFrame(rows(90, 130, 7))
    done = on.merge(source).when_matched_update_all(condition).when_not_matched_insert_all().execute()
    assert (done.executions, made.history(2)[1].operation) == (2, "Update")
    wanted = {row["id"]: row["s"] for row in rows(90, 130, 7).to_pylist()}
    found = {row["id"]: row["s"] for row in made.to_arrow().to_pylist()}
    assert {number: found[number] for number in wanted} == wanted
    assert once.steps.count("writing rows") == (1 if condition is None else 2)  # an upsert's files serve again
    assert _leftovers(made) == set()


def test_keys_that_others_insert_meanwhile_are_updated_then(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    on, _ = beside(spark, made, "committing", lambda other: other.append(rows(140, 145, 1)))
    done = on.merge(spark.createDataFrame(rows(140, 150, 7))).when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.executions, dict(done.rows)) == (2, {"inserted": 5, "updated": 5, "deleted": 0})
    assert made.count_rows("id >= 140") == 10


def test_a_key_conflict_that_goes_on_is_told(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    numbers = iter(range(140, 150))
    on, _ = beside(spark, made, "committing", lambda other: other.append(rows(n := next(numbers), n + 1)), times=3)
    source = spark.createDataFrame(rows(140, 150, 7))
    with pytest.raises(ty.KeyConflict) as raised:
        on.merge(source).when_not_matched_insert_all().execute(commit=ty.CommitOptions(reexecutions=1))
    assert raised.value.executions == 2
    assert made.refresh().count_rows("id >= 140") == 2
    assert _leftovers(made) == set()


@pytest.mark.parametrize("verb", ["merge", "delete", "update"])
def test_a_compaction_beside_is_followed(spark: SparkSession, tmp_path: Path, verb: str) -> None:
    made = table(tmp_path / "t")
    on, _ = beside(spark, made, "committing", lambda other: other.compact(target_rows=1000))
    if verb == "merge":
        done = on.merge(spark.createDataFrame(rows(50, 130, 7))).when_matched_update_all().when_not_matched_insert_all().execute()
    else:
        done = on.delete("id < 50") if verb == "delete" else on.update({"s": "'x'"}, "id < 50")
    assert (done.executions, len(done.rebased_over) > 0) == (1, True)
    assert made.check().ok
    assert made.count_rows() == len({row["id"] for row in content(made)})


def test_a_delete_is_worked_out_again_where_rows_changed(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    on, _ = beside(spark, made, "committing", lambda other: other.update({"n": "1000"}, "id = 5"))
    done = on.delete("id < 10 AND (n IS NULL OR n < 1000)")
    assert done.executions == 2
    assert [row["id"] for row in made.to_arrow(filter="id < 10").to_pylist()] == [5]


def test_columns_are_fitted_to_rows_that_came_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    on, once = beside(spark, made, "committing", lambda other: other.append(rows(200, 203)))
    done = on.add_columns({"twice": "id * 2", "tag": "'a'"})
    assert (done.executions, once.steps.count("computing columns")) == (2, 2)
    assert all(row["twice"] == row["id"] * 2 and row["tag"] == "a" for row in made.to_arrow().to_pylist())
    assert made.count_rows() == 112
    assert _leftovers(made) == set()


def test_columns_from_a_query_by_row_address(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    totals = spark.range(40, 60).selectExpr("id as k", "id * 10 as total")
    on = SparkTable(spark, made, EVERYWHERE)
    on.add_columns(lambda df: df.join(totals, df.id == totals.k).selectExpr("_rowaddr", "total"))
    assert {row["id"]: row["total"] for row in made.to_arrow().to_pylist() if row["total"] is not None} == {
        n: n * 10 for n in range(40, 60) if n % 11 != 3
    }
    with pytest.raises(ty.InvalidInput, match="several values"):
        on.add_columns(lambda df: df.select("_rowaddr").unionAll(df.select("_rowaddr")).selectExpr("_rowaddr", "1 as one"))
    with pytest.raises(ty.InvalidInput, match="already"):
        on.add_columns({"s": "1"})
    assert made.refresh().version == 3


def test_upkeep_runs_beside_writers(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    on, _ = beside(spark, made, "committing", lambda other: other.append(rows(200, 220)), times=2)
    on.create_index("id", "BTREE")
    [index] = made.indices.list()
    assert (len(index.segments), index.rows) == (1, 109)
    before = len(made.refresh().layout.fragments)
    with pytest.raises(ty.KeyConflict):
        on.append(spark.createDataFrame(rows(210, 211)))
    on, _ = beside(spark, made, "committing", lambda other: other.delete("id IN (1, 201)"))
    done = on.compact(target_rows=1000)
    assert (done.executions, done.operation) == (1, "Rewrite")
    assert len(made.layout.fragments) < before
    assert made.count_rows() == 127
    assert made.to_arrow(filter="id = 100").num_rows == 1
    assert made.check().ok
    assert _leftovers(made) == set()


def test_inside_a_transaction_writes_are_carried_over_those_of_others(spark: SparkSession, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("a", rows(0, 50), primary_key=["id"])
    with lake.transaction() as tx:
        on = tx.spark(spark, work=ty.spark.Work(driver_bytes=0, driver_table_rows=0))
        on.merge(spark.createDataFrame(rows(45, 60)), "a").when_matched_update_all().when_not_matched_insert_all().execute()
        lake.table("a").append(rows(70, 80))
    assert tx.result is not None
    assert "a" in tx.result.rebased
    assert lake.table("a").count_rows() == 70

    def both(tx: ty.LakeTransaction) -> None:
        on = tx.spark(spark, work=ty.spark.Work(driver_bytes=0, driver_table_rows=0))
        on.merge(spark.createDataFrame(rows(100, 105)), "a").when_matched_update_all().when_not_matched_insert_all().execute()
        if next(tries) == 0:
            lake.table("a").append(rows(104, 106))  # one of the keys

    tries = iter(range(9))
    lake.run(both)
    assert next(tries) == 2
    assert lake.table("a").count_rows("id >= 100") == 6


def test_what_nobody_can_take_back_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    made = table(tmp_path / "t")

    def fail(_: str) -> None:
        raise ty.OutcomeUnknown("The answer was lost.", transaction_id="x", version=3, uri="")

    on = SparkTable(spark, made, replace(EVERYWHERE, progress=lambda step: fail(step) if step == "committing" else None))
    with pytest.raises(ty.OutcomeUnknown):
        on.append(spark.createDataFrame(rows(300, 310)))
    assert _leftovers(made)


def _leftovers(made: ty.Table) -> set[str]:
    """Data files that no version names."""
    made.refresh()
    named = {
        file.path
        for version in range(1, made.version + 1)
        for one in ty.Table.open(made.uri, version=version).layout.fragments
        for file in one.files
    }
    return {one.name for one in (Path(made.uri) / "data").iterdir()} - named


def test_pieces_for_other_columns_are_refused(tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    task = made.distributed.write_task()
    piece = task.write(rows(500, 505))
    made.drop_columns(["n"])

    def worker(pinned: ty.distributed.Pinned) -> ty.distributed.RowChange:
        assert pinned.version == 3
        return ty.distributed.RowChange(pieces=[piece], keys=pa.table({"id": list(range(500, 505))}))

    with pytest.raises(ty.InvalidInput, match="other columns"):
        made.distributed.change_rows(worker, ty.distributed.RowPlan(matched=True, inserting=True))


def test_rows_that_are_not_there_cannot_be_struck_out(tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    for addresses in ([3], [9 << 32], [200]):  # deleted before, in no fragment, past its end
        change = ty.distributed.RowChange(ty.distributed.pack_rows(addresses))
        with pytest.raises(ty.InvalidInput, match="not in version 2"):
            made.distributed.change_rows(lambda _, change=change: change, ty.distributed.RowPlan("delete"))  # type: ignore[misc]  # bound at once
    assert made.refresh().version == 2
