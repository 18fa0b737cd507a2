"""Processes of Spark's die while they write, at named points. After a restart each row is there once, and nothing else is left."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

import tiltyard as ty
from tests.support.commits import files_below
from tests.support.proving import PROVING, pick
from tests.support.spark_jobs import batch_write, start, stream_write
from tests.support.spark_killed import IN_TASKS, POINTS, KilledSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_DRIVER = pick(("after the version",), POINTS)
"""Where the driver of a stream dies. Each death is a Spark of its own; a batch write commits the same way and waits for the long form."""
ROWS = 40
STREAMED = pick(
    [
        ("half of the rows", False), ("task done, not told", True), ("after the transaction file", False),
        ("before the version", True), ("after the version", False), ("commit done, not told", True),
    ],
    [(point, upserts) for point in POINTS for upserts in (False, True)],
)  # fmt: skip
"""Where a stream's worker dies, and whether it appends or upserts: both everywhere; or in turn, on either side of each write."""
FAILED = (PySparkException, Py4JError)
"""What a job ends with when one of its processes is gone."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(KilledSource)
    return spark


def _judge(path: Path, ids: list[int]) -> None:
    table = ty.Table.open(path)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ids
    assert table.check().ok
    table.cleanup(grace=timedelta(0))
    assert files_below(path, "data") == {file.path for one in table.refresh().layout.fragments for file in one.files}


# ---- batch write -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_dies_during_a_batch_write(session: SparkSession, tmp_path: Path, point: str) -> None:
    """An executor's worker in the first points, the driver's in those of the commit. The job fails and is run again."""
    path, note = tmp_path / "t", tmp_path / "note"
    there = point in IN_TASKS  # once with a table that is there, once with one that is made
    if there:
        ty.Table.create(path, {"id": [1000], "s": ["x"]})
    before = files_below(path, "data")
    numbered = {"query_id": "nightly", "epoch": "1"}
    with pytest.raises(FAILED):
        batch_write(session, str(path), 0, ROWS, {**numbered, "kill_at": point, "kill_note": str(note)})
    assert note.read_text() == point
    if there:
        assert ty.Table.open(path).version == 1
        assert len(files_below(path, "data")) <= len(before) + 1  # what the dead one wrote; the others took theirs away
    batch_write(session, str(path), 0, ROWS, numbered)
    _judge(path, [*range(ROWS), *([1000] if there else [])])


@pytest.mark.skipif(not PROVING, reason="starts a Spark of its own at each point")
@pytest.mark.parametrize("point", POINTS)
def test_the_driver_dies_during_a_batch_write(session: SparkSession, tmp_path: Path, point: str) -> None:
    path, note = tmp_path / "t", tmp_path / "note"
    numbered = {"query_id": "nightly", "epoch": "1"}
    dying = {"do": "batch", "path": str(path), "first": 0, "count": ROWS, "kill_driver": True}
    child = start(tmp_path / "driver", {**dying, "options": {**numbered, "kill_at": point, "kill_note": str(note)}})
    assert child.wait(timeout=300) != 0
    assert note.read_text() == point
    batch_write(session, str(path), 0, ROWS, numbered)
    _judge(path, list(range(ROWS)))


@pytest.mark.skipif(not PROVING, reason="starts a Spark of its own")
def test_tasks_that_fail_are_run_again_and_nothing_is_doubled(tmp_path: Path) -> None:
    """Here tasks have four attempts: the first one at some point dies, the job comes to its end all the same."""
    for number, point in enumerate(IN_TASKS):
        path, note = tmp_path / f"t{number}", tmp_path / f"note{number}"
        job = {"do": "batch", "path": str(path), "first": 0, "count": ROWS, "master": "local[2,4]"}
        child = start(tmp_path / f"driver{number}", {**job, "options": {"kill_at": point, "kill_note": str(note)}})
        assert child.wait(timeout=300) == 0
        assert note.read_text() == point
        table = ty.Table.open(path)
        there = {name for name in files_below(path, "data") if name.endswith(".lance")}  # pylance's temporary ones are cleanup's
        assert there == {file.path for one in table.layout.fragments for file in one.files}
        _judge(path, list(range(ROWS)))


# ---- streaming write ---------------------------------------------------------------------------------------------------------


def _files(tmp_path: Path) -> tuple[Path, list[int]]:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        rows = [{"id": number * 10 + one, "s": str(one)} for one in range(10)]
        (source / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
    return source, list(range(20))


@pytest.mark.parametrize(("point", "upserts"), STREAMED)
def test_a_worker_dies_during_a_streaming_write(session: SparkSession, tmp_path: Path, point: str, upserts: bool) -> None:
    source, ids = _files(tmp_path)
    path, note, log = tmp_path / "t", tmp_path / "note", tmp_path / "log"
    upsert = {"mode": "upsert", "primary_key": "id"} if upserts else {}
    with pytest.raises(FAILED):
        stream_write(session, str(source), str(path), str(log), {**upsert, "kill_at": point, "kill_note": str(note)})
    assert note.read_text() == point
    stream_write(session, str(source), str(path), str(log), upsert)
    _judge(path, ids)


@pytest.mark.parametrize("point", WITH_DRIVER)
def test_the_driver_dies_during_a_streaming_write(session: SparkSession, tmp_path: Path, point: str) -> None:
    source, ids = _files(tmp_path)
    path, note, log = tmp_path / "t", tmp_path / "note", tmp_path / "log"
    dying = {"do": "stream", "source": str(source), "path": str(path), "log": str(log), "kill_driver": True}
    child = start(tmp_path / "driver", {**dying, "options": {"kill_at": point, "kill_note": str(note)}})
    assert child.wait(timeout=300) != 0
    assert note.read_text() == point
    ty.Table.open(path).cleanup(keep_versions=1, grace=timedelta(0))  # and the history is gone as well
    stream_write(session, str(source), str(path), str(log), {})
    _judge(path, ids)
