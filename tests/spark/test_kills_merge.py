"""Merges that are killed: drivers at named points, and workers in the middle of their rows."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.spark.spark_merge_killed import FIRST, LAST, POINTS, merge, run_child
from tests.support.proving import pick
from tests.support.spark_tables import EVERYWHERE, content, rows, table
from tiltyard.spark import SparkTable

FEW = [POINTS[place] for place in (0, 5, 6, 7, 9, 11, 12)]
"""While rows are written and around the version, of both ways to merge; a driver that looks for keys dies below."""


def expected(where: Path) -> list[dict[str, Any]]:
    made = table(where)
    made.merge(rows(FIRST, LAST, 99)).when_matched_update_all().when_not_matched_insert_all().execute()
    return content(made)


def look_at(path: Path) -> list[dict[str, Any]]:
    """All rows, each there once, in a table that is sound."""
    made = ty.Table.open(str(path))
    found = content(made)
    assert set(Counter(row["id"] for row in found).values()) == {1}
    assert made.check().ok
    return found


@pytest.mark.parametrize(("how", "point"), pick(FEW, POINTS))
def test_a_driver_that_dies(spark: SparkSession, tmp_path: Path, how: str, point: str) -> None:
    path = tmp_path / "t"
    before = content(table(path))
    after = expected(tmp_path / "expected")
    assert run_child(spark, {"path": str(path), "how": how, "point": point}) == -signal.SIGKILL
    committed = point in ("put_if_absent _versions: after", "acknowledged")
    assert look_at(path) == (after if committed else before)
    merge(spark, str(path), how, EVERYWHERE)
    assert look_at(path) == after


def dying(note: Path) -> Any:
    """A function for a worker that dies in it, the first time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not note.exists():
                note.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)

    return run


@pytest.mark.parametrize("how", ["upsert", "joined"])
def test_a_worker_that_dies_after_it_has_given_rows(spark: SparkSession, tmp_path: Path, how: str) -> None:
    path = tmp_path / "t"
    made = table(path)
    before = content(made)
    frame = spark.createDataFrame(rows(FIRST, LAST, 99)).repartition(2, "id")
    source = frame.mapInArrow(dying(tmp_path / "note"), frame.schema)
    merging = SparkTable(spark, made, EVERYWHERE).merge(source)
    condition = None if how == "upsert" else "source.id = target.id"
    merging = merging.when_matched_update_all(condition).when_not_matched_insert_all()
    if _attempts(spark) > 1:
        merging.execute()
    else:  # a session of the simplest kind runs a task once, and the job fails with it
        with pytest.raises(Exception, match=r"worker|crashed|SIGKILL"):
            merging.execute()
        assert content(made) == before
        merging.execute()
    assert look_at(path) == expected(tmp_path / "expected")
    assert (tmp_path / "note").exists()


def _attempts(spark: SparkSession) -> int:
    master = str(spark.sparkContext.master)
    return int(master.rstrip("]").split(",")[1]) if "," in master else 1


def test_what_dead_drivers_leave_is_swept(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made = table(path)
    run_child(spark, {"path": str(path), "how": "upsert", "point": "looking for keys"})
    left = {one.name for one in (path / "data").iterdir()} - {file.path for one in made.layout.fragments for file in one.files}
    assert left
    made.cleanup(grace=timedelta(0))
    assert not left & {one.name for one in (path / "data").iterdir()}
    assert look_at(path)
