"""Branches of a lake from SQL: every procedure does what the verb of the same name does, and tells it in columns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import tiltyard as ty
from tiltyard.spark.sql_catalog.session_catalog import use_lake

ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]})


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    ty.spark.enable(spark)
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("a", ROWS, primary_key=["id"])
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def ids(lake: ty.Lake) -> list[int]:
    return sorted(lake.table("a").to_arrow()["id"].to_pylist())


def test_branches_from_sql(spark: SparkSession, lake: ty.Lake, tmp_path: Path) -> None:
    def call(text: str) -> Row:
        found = spark.sql(f"CALL lake.system.{text}").first()
        assert found is not None
        return found

    call("branch(name => 'side')")
    side = lake.on_branch("side")
    side.table("a").append(pa.table({"id": [4], "v": [40]}))
    found = call("diff(before => 'main', after => 'side')")
    assert (found.tables, found.added, found.removed, found.changed) == (1, 1, 0, 0)
    assert [(table["table"], table["change"], table["rows"]["added"]) for table in json.loads(found.report)] == [("a", "changed", 1)]
    trial = call("merge_branch(source => 'side', dry_run => true)")
    assert (trial.tables, trial.conflicts, trial.up_to_date, ids(lake)) == (1, 0, False, [1, 2, 3])
    done = call("merge_branch(source => 'side', message => 'from SQL')")
    assert (done.snapshot, ids(lake)) == (lake.snapshot().id, [1, 2, 3, 4])
    assert (lake.history()[0].message, json.loads(done.report)["source"]) == ("from SQL", "side")
    assert call("merge_branch('side')").up_to_date

    picked = side.table("a").append(pa.table({"id": [5], "v": [50]})) and side.snapshot().id
    side.table("a").append(pa.table({"id": [6], "v": [60]}))
    call(f"cherry_pick(source => 'side', snapshot => {picked})")
    assert ids(lake) == [1, 2, 3, 4, 5]
    lake.table("a").delete("id = 1")
    call("rebase_branch('side')")
    assert ids(side) == [2, 3, 4, 5, 6]
    call(f"revert(snapshot => {lake.snapshot().id})")
    assert ids(lake) == [1, 2, 3, 4, 5]
    call("restore_snapshot(1)")
    assert ids(lake) == [1, 2, 3]

    made = call(f"clone_lake(uri => '{tmp_path / 'clone'}', message => 'a trial')")
    assert made.tables == 1
    with ty.Lake.open(tmp_path / "clone", create=False) as clone:
        assert ids(clone) == [1, 2, 3]

    call("branch(name => 'next')")
    lake.on_branch("next").table("a").append(pa.table({"id": [9], "v": [90]}))
    assert call(f"protect_branch(branch => 'main', writers => 'bob, {lake.author}', checks => 'counted')").protected
    with pytest.raises(PySparkException, match="counted"):
        call("merge_branch('next')")
    assert call("report_check(branch => 'next', check => 'counted', passed => true)").passed
    call("merge_branch('next')")
    assert ids(lake) == [1, 2, 3, 9]
    assert not call("unprotect_branch('main')").protected
