"""Streams into tables by name: tasks are planned again only where the table needs others, and the driver commits each micro-batch once."""

from __future__ import annotations

import base64
import pickle
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import types as st

import tiltyard as ty
from tests.support.commits import files_below
from tiltyard.errors import TiltyardError
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.stream import stream_commits
from tiltyard.spark.stream.stream_commits import commit_stream, plan_stream
from tiltyard.spark.stream.stream_writing import Sent, TiltyardStreamWriter

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("s", st.StringType())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": pa.array(map(str, ids), pa.string())})


@pytest.fixture
def lake(tmp_path: Path) -> ty.Lake:
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("t", rows())
    return made


def request(lake: ty.Lake, query: str = "q", **options: str) -> dict[str, Any]:
    given = {"lake": str(lake.url), "table": "t", "durability": "os", "query_id": "stream", **options}
    return {"query": query, "options": given, "schema": SCHEMA.json(), "overwrite": False}


class Task:
    """What a task of Spark's knows of itself."""

    def __init__(self, stage: int, part: int) -> None:
        self.stage, self.part = stage, part

    def stageId(self) -> int:
        return self.stage

    def partitionId(self) -> int:
        return self.part

    def getLocalProperty(self, key: str) -> str:
        return f"the same of all batches: {key}"


class Executors:
    """What Spark keeps: tasks by the name of their plan."""

    stages = count()

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.planned: dict[str, bytes] = {}

    def write(self, *parts: pa.Table) -> list[Sent]:
        name = plan_stream(self.told)
        if name not in self.planned:
            self.planned[name] = pickle.dumps(stream_commits._writer(self.told))
        tasks: TiltyardStreamWriter = pickle.loads(self.planned[name])
        stage, sent = next(self.stages), []
        for number, part in enumerate(parts):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("pyspark.TaskContext.get", staticmethod(partial(Task, stage, number)))
                sent.append(tasks.write(iter(part.to_batches())))
        return sent

    def commit(self, batch: int, sent: list[Sent]) -> None:
        messages = [base64.b64encode(pickle.dumps(message)).decode() for message in sent]
        commit_stream({**self.told, "batch": batch, "messages": messages})


def ids(lake: ty.Lake) -> list[int]:
    return sorted(lake.table("t").to_arrow()["id"].to_pylist())


def test_micro_batches_share_a_plan(lake: ty.Lake) -> None:
    executors = Executors(request(lake))
    for batch in range(5):
        executors.commit(batch, executors.write(rows(2 * batch), rows(2 * batch + 1)))
    assert len(executors.planned) == 1
    assert ids(lake) == [*range(10)]
    assert lake.check().ok


def test_a_micro_batch_is_committed_once_whoever_sends_it(lake: ty.Lake) -> None:
    executors = Executors(request(lake))
    sent = executors.write(rows(1))
    executors.commit(0, sent)
    executors.commit(0, executors.write(rows(1)))
    stream_commits._plans.clear()  # another driver
    executors.commit(0, executors.write(rows(1)))
    executors.commit(1, executors.write(rows(2)))
    assert ids(lake) == [1, 2]
    assert lake.check().ok


@pytest.mark.parametrize("change", ["column", "again", "key"])
def test_a_table_that_changes_has_its_tasks_planned_again(lake: ty.Lake, change: str) -> None:
    executors = Executors(request(lake))
    executors.commit(0, executors.write(rows(1)))
    if change == "column":
        lake.table("t").add_columns(pa.schema([pa.field("more", pa.int32())]))
    else:
        lake.drop_table("t")
        lake.create_table("t", rows(9), primary_key=["id"] if change == "key" else None)
    executors.commit(1, executors.write(rows(2)))
    assert len(executors.planned) == 2
    assert ids(lake) == ([1, 2] if change == "column" else [2, 9])
    assert lake.check().ok


def test_a_table_that_is_gone_is_made_again(lake: ty.Lake) -> None:
    """As by Spark's own planning of each micro-batch."""
    executors = Executors(request(lake))
    executors.commit(0, executors.write(rows(1)))
    lake.drop_table("t")
    executors.commit(1, executors.write(rows(2)))
    assert ids(lake) == [2]


def test_tasks_that_no_longer_fit_are_refused(lake: ty.Lake) -> None:
    executors = Executors(request(lake))
    sent = executors.write(rows(1))
    lake.drop_table("t")
    lake.create_table("t", pa.table({"id": pa.array([9], pa.int64())}))
    with pytest.raises(TiltyardError):
        executors.commit(0, sent)
    assert ids(lake) == [9]


def test_plans_are_those_of_a_query(lake: ty.Lake) -> None:
    one, other = plan_stream(request(lake, "one")), plan_stream(request(lake, "other"))
    assert one != other
    assert plan_stream(request(lake, "one")) == one
    assert plan_stream(request(lake, "one", max_rows_per_file="10")) != one


def test_tasks_do_not_stay_at_an_old_version_for_ever(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_commits, "_VERSIONS", 3)
    executors = Executors(request(lake))
    for batch in range(9):
        executors.commit(batch, executors.write(rows(batch)))
    assert 3 <= len(executors.planned) <= 4


@pytest.mark.parametrize("committed", [False, True])
def test_a_commit_that_fails_in_the_driver(
    spark: SparkSession, lake: ty.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Before anything is committed, or after all is: Spark aborts, and sends the micro-batch again when the query is started anew."""
    lake.create_table("from", rows(1, 2))
    ty.spark.enable(spark)
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    true = TiltyardStreamWriter.commit

    def failing(self: TiltyardStreamWriter, messages: Any, batch: int) -> None:
        monkeypatch.setattr(TiltyardStreamWriter, "commit", true)
        if committed:
            self.commit(messages, batch)
        raise RuntimeError("the driver fails here")

    def run() -> None:
        written = spark.readStream.table("lake.from").writeStream.option("checkpointLocation", str(tmp_path / "log"))
        assert written.trigger(availableNow=True).toTable("lake.t").awaitTermination(300)

    monkeypatch.setattr(TiltyardStreamWriter, "commit", failing)
    with pytest.raises(StreamingQueryException, match="the driver fails here"):
        run()
    assert ids(lake) == ([1, 2] if committed else [])
    lake.table("from").append(rows(3))
    for _ in range(2):
        run()
        assert ids(lake) == [1, 2, 3]
    table = lake.table("t")
    assert files_below(Path(table.uri), "data") == {file.path for fragment in table.layout.fragments for file in fragment.files}
    assert lake.check().ok
