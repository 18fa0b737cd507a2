"""How rows get from Spark to our code: unmeasured where they are small, as somebody chose where somebody did, and without a job if the
driver has them."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import tiltyard as ty
from tiltyard.spark import SparkTable, enable
from tiltyard.spark.jobs import results
from tiltyard.spark.write.arrow_batches import FIXED_ROWS, VARYING_ROWS, local_rows, rows_of_batches

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture
def ruled(spark: SparkSession) -> Iterator[SparkSession]:
    assert enable(spark).rule
    yield spark
    enable(spark, rule=False)


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("a int, b double, c decimal(20,3), d date, e timestamp, f boolean, g interval day to second, h timestamp_ntz", FIXED_ROWS),
        ("a int, s string", VARYING_ROWS),
        ("v array<float>", VARYING_ROWS),
        ("m map<string, array<int>>", VARYING_ROWS),
        ("s struct<a: int, b: double>", FIXED_ROWS),
        ("s struct<a: int, b: struct<c: string>>", VARYING_ROWS),
        ("a int, b binary", None),
        ("m map<string, binary>", None),
        ("a array<struct<b: binary>>", None),
        ("a int, v variant", None),
    ],
)
def test_how_many_rows_need_no_measuring(spark: SparkSession, columns: str, rows: int | None) -> None:
    assert rows_of_batches(cast(StructType, StructType.fromDDL(columns))) == rows


def _largest(frame: DataFrame) -> int:
    found: list[int] = results(frame, lambda batches: max(batch.num_rows for batch in batches))
    return max(found)


def test_jobs_of_ours_get_batches_of_that_size(spark: SparkSession) -> None:
    numbers = spark.range(0, 25_000, 1, 1)
    assert _largest(numbers) == FIXED_ROWS
    assert _largest(numbers.selectExpr("cast(id as string) s")) == VARYING_ROWS
    assert _largest(numbers.selectExpr("cast(cast(id as string) as binary) b")) == 10_000, "as Spark does it"
    assert spark.sparkContext.getLocalProperty(ROWS) is None
    assert spark.sparkContext.getLocalProperty(BYTES) is None


def test_large_values_are_still_measured(spark: SparkSession) -> None:
    """Ten rows of this kind would be a batch of 320 MB."""
    large = spark.range(0, 10, 1, 1).selectExpr("cast(repeat('x', 32 * 1024 * 1024) as binary) b")
    assert _largest(large) <= 3


@pytest.mark.parametrize(("key", "value"), [(ROWS, "777"), (BYTES, "70000")])
def test_what_somebody_chose_holds(ruled: SparkSession, tmp_path: Path, key: str, value: str) -> None:
    ruled.conf.set(key, value)
    try:
        assert _largest(ruled.range(0, 25_000, 1, 1).selectExpr("cast(id as string) s")) not in (VARYING_ROWS, FIXED_ROWS)
        ruled.range(10).write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
        assert _properties(ruled) == (None, None)
    finally:
        ruled.conf.unset(key)


def _properties(spark: SparkSession) -> tuple[str | None, str | None]:
    context = spark.sparkContext
    return context.getLocalProperty(ROWS), context.getLocalProperty(BYTES)


def test_a_write_by_the_source_is_unmeasured_and_what_comes_after_is_not(ruled: SparkSession, tmp_path: Path) -> None:
    ruled.range(10).selectExpr("id", "cast(id as string) s").write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
    assert _properties(ruled) == (str(VARYING_ROWS), str(2**31 - 1))
    ruled.range(3).collect()
    assert _properties(ruled) == (None, None)
    ruled.range(10).selectExpr("id", "cast('x' as binary) b").write.format("tiltyard").mode("append").save(str(tmp_path / "b"))
    assert _properties(ruled) == (None, None)
    ruled.range(10).write.mode("append").parquet(str(tmp_path / "p"))
    assert _properties(ruled) == (None, None)
    assert ty.Table.open(tmp_path / "t").count_rows() == 10


def test_other_threads_know_nothing_of_it(ruled: SparkSession, tmp_path: Path) -> None:
    seen: list[Any] = []
    ruled.range(3).collect()

    def write() -> None:
        enable(ruled)
        ruled.range(10).write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
        seen.append(_properties(ruled))

    thread = Thread(target=write)
    thread.start()
    thread.join()
    assert seen == [(str(FIXED_ROWS), str(2**31 - 1))]
    assert _properties(ruled) == (None, None)


def test_what_a_write_left_is_not_kept_by_a_job_after_it(ruled: SparkSession, tmp_path: Path) -> None:
    numbers = ruled.range(0, 25_000, 1, 1).selectExpr("cast(id as string) s")
    numbers.write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
    assert _largest(numbers) == VARYING_ROWS
    assert _properties(ruled) == (None, None)
    numbers.write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
    enable(ruled, rule=False)
    assert _properties(ruled) == (None, None)


def test_rows_that_other_functions_make_are_measured(ruled: SparkSession, tmp_path: Path) -> None:
    """What comes out is narrow, what goes in may be large."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    images = ruled.range(0, 25_000, 1, 1).selectExpr("cast(cast(id as string) as binary) image")
    made = images.mapInArrow(embed, "n long")
    sizes = results(made, lambda batches: [one for batch in batches for one in batch.column("n").to_pylist()])
    assert sizes == [[10_000, 10_000, 5_000]]
    made.write.format("tiltyard").mode("append").save(str(tmp_path / "t"))
    assert _properties(ruled) == (None, None)


# ---- rows that the driver has ----------------------------------------------------------------------------------------------------


def _given(spark: SparkSession) -> DataFrame:
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int32()),
            "s": ["a", None],
            "v": pa.array([[1.0, 2.0], None], pa.list_(pa.float32())),
            "m": pa.array([[("k", b"x")], None], pa.map_(pa.string(), pa.binary())),
            "d": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "at": pa.array([datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), None], pa.timestamp("us", "UTC")),
            "on": pa.array([datetime.date(2026, 1, 2), None]),
            "t": pa.array([{"x": 1, "y": "z"}, None]),
        }
    )
    return spark.createDataFrame(table)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_of_the_driver_are_what_a_job_fetches(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", str(zone))
    try:
        for frame in (_given(spark), spark.sql("select * from values (1, 'a'), (2, 'b') as t(i, s)"), _given(spark).select("s", "i")):
            found = local_rows(frame, 10)
            assert found is not None
            assert found.equals(frame.toArrow())
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_other_rows_are_not_of_the_driver(spark: SparkSession) -> None:
    assert local_rows(spark.range(5), 10) is None, "worked out by tasks"
    assert local_rows(_given(spark), 1) is None, "too many"
    assert local_rows(_given(spark).where("i < 0"), 10) is None, "none at all"


@pytest.mark.parametrize("fault", ["early end", "broken batch", "closed"])
def test_where_fetching_fails_a_job_does_it(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A socket that is closed early looks like the end of the rows: none may be lost by that."""
    frame = _given(spark)

    def fetched(*_: Any) -> pa.Table:
        if fault == "early end":
            return frame.toArrow().slice(0, 1)
        raise pa.ArrowInvalid("cut off") if fault == "broken batch" else ConnectionResetError

    monkeypatch.setattr("tiltyard.spark.write.arrow_batches._fetched", fetched)
    assert local_rows(frame, 10) is None
    table = SparkTable(spark, ty.Table.create(tmp_path / "t", frame.toArrow().schema))
    assert table.append(frame).rows == {"inserted": 2}


def test_a_small_append_runs_no_job(spark: SparkSession, tmp_path: Path) -> None:
    frame = _given(spark)
    table = SparkTable(spark, ty.Table.create(tmp_path / "t", frame.toArrow().schema))
    context: Any = spark.sparkContext
    context.setJobGroup("small append", "an append of rows that the driver has")
    try:
        table.append(frame)
        assert list(context.statusTracker().getJobIdsForGroup("small append")) == []
        table.append(spark.range(5).selectExpr("cast(id as int) i"))
        assert list(context.statusTracker().getJobIdsForGroup("small append")) != [], "so that the first line says something"
    finally:
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(key, None)
    assert table.table.count_rows() == 7
    assert table.table.to_arrow().slice(0, 2).to_pylist() == frame.toArrow().to_pylist()
