"""Processes die while a stream writes into a table by name. After a restart each row is there once, and nothing else is left.

The driver commits such a stream: a death there is the end of the JVM and of its Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.support.commits import files_below
from tests.support.proving import pick
from tests.support.spark_jobs import start, stream_by_name, use_named
from tests.support.spark_killed import IN_COMMIT, IN_DECISION, IN_TASKS, Death
from tiltyard.spark.source import TiltyardSource

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])
UPSERT = {"mode": "upsert"}
COMMITTED = ("after the decision", "commit done, not told")
POINTS = (*IN_TASKS, *IN_COMMIT, *IN_DECISION)
BOTH = [(point, upserts) for point in POINTS for upserts in (False, True)]
WORKERS = pick([("half of the rows", True), ("task done, not told", False)], [one for one in BOTH if one[0] in IN_TASKS])
DRIVERS = pick([("before the decision", True), ("after the decision", False)], BOTH)
"""Where they die, and whether the stream appends or upserts. Each death of a driver is a Spark of its own."""


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.dataSource.register(TiltyardSource)


def made(tmp_path: Path, upserts: bool) -> tuple[ty.Lake, dict[str, str]]:
    """A lake with an empty table, and what a stream of two micro-batches into it is told."""
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("t", ROWS, primary_key=["id"] if upserts else None)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        rows = [{"id": number * 10 + one, "s": str(one)} for one in range(10)]
        (source / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
    return lake, {"source": str(source), "log": str(tmp_path / "log")}


def ids(lake: ty.Lake) -> list[int]:
    return sorted(lake.table("t").to_arrow()["id"].to_pylist())


def judge(lake: ty.Lake) -> None:
    assert ids(lake) == [*range(20)]
    assert lake.check().ok
    lake.cleanup(grace=timedelta(0))
    table = lake.table("t")
    assert files_below(Path(table.uri), "data") == {file.path for one in table.layout.fragments for file in one.files}


@pytest.mark.parametrize(("point", "upserts"), WORKERS)
def test_a_worker_dies(session: SparkSession, tmp_path: Path, point: str, upserts: bool) -> None:
    lake, told = made(tmp_path, upserts)
    note, options = tmp_path / "note", UPSERT if upserts else {}
    use_named(session, str(tmp_path / "lake"), Death(point, str(note)))
    with pytest.raises(StreamingQueryException):
        stream_by_name(session, **told, options=options)
    assert note.read_text() == point
    assert ids(lake) == []
    use_named(session, str(tmp_path / "lake"))
    stream_by_name(session, **told, options=options)
    judge(lake)


@pytest.mark.parametrize(("point", "upserts"), DRIVERS)
def test_the_driver_dies(session: SparkSession, tmp_path: Path, point: str, upserts: bool) -> None:
    lake, told = made(tmp_path, upserts)
    note, options = tmp_path / "note", UPSERT if upserts else {}
    dying = {"do": "stream by name", "lake": str(tmp_path / "lake"), **told, "options": options, "kill_driver": True}
    child = start(tmp_path / "driver", {**dying, "kill_at": point, "kill_note": str(note)})
    assert child.wait(timeout=300) != 0
    assert note.read_text() == point
    assert len(ids(lake)) == (10 if point in COMMITTED else 0)  # one micro-batch, whichever file came first
    use_named(session, str(tmp_path / "lake"))
    stream_by_name(session, **told, options=options)
    judge(lake)
