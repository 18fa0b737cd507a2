"""Batch reads: which rows, at which version, in which partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from tiltyard.spark import enable


@pytest.fixture(params=[False, True], ids=["wide", "rule"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with and without the rule: what is read must be the same."""
    assert enable(spark, rule=request.param).rule is request.param
    yield spark
    enable(spark, rule=False)


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("tiltyard").options(**options).load(str(path))


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("id").collect())


def test_a_frame_stays_at_its_version(session: SparkSession, tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1, 2]}))
    frame = _read(session, tmp_path / "t")
    table.append(pa.table({"id": [3]}))
    assert _ids(frame) == [1, 2]
    table.overwrite(pa.table({"other": ["x"]}))
    assert _ids(frame) == [1, 2]
    assert frame.count() == 2
    assert _read(session, tmp_path / "t").collect()[0].other == "x"
    assert _ids(_read(session, tmp_path / "t", version="2")) == [1, 2, 3]


def test_a_frame_used_twice(session: SparkSession, tmp_path: Path) -> None:
    """The trap of Spark's own filter push-down: what one use pushed must not be there in the next."""
    ty.Table.create(tmp_path / "t", pa.table({"id": range(100), "g": [number % 2 for number in range(100)]}))
    frame = _read(session, tmp_path / "t")
    first, second = frame.filter("id < 10"), frame.filter("id >= 95")
    assert (first.count(), frame.count(), second.count()) == (10, 100, 5)
    assert first.union(second).count() == 15
    assert _ids(first.union(second)) == [*range(10), *range(95, 100)]
    assert frame.alias("a").join(frame.filter("g = 1").alias("b"), "id").count() == 50
    kept = frame.filter("g = 0").cache()
    try:
        assert (kept.count(), kept.filter("id < 4").count(), frame.count()) == (50, 2, 100)
    finally:
        kept.unpersist()
    frame.createOrReplaceTempView("twice")
    assert session.sql("select count(*) from twice a join twice b on a.id = b.id where a.g = 1 and b.id < 50").collect()[0][0] == 25
    session.catalog.dropTempView("twice")


def test_deleted_rows_hidden_columns_and_many_partitions(session: SparkSession, tmp_path: Path) -> None:
    table = ty.Table.create(
        tmp_path / "t", pa.table({"id": range(60)}), stable_row_ids=True, options=ty.TableOptions(files=ty.FileLimits(rows=25))
    )
    table.delete("id % 3 = 0")
    table.update({"id": "id + 1000"}, where="id = 1")
    frame = _read(session, tmp_path / "t", with_row_id="true", with_row_address="true", with_row_versions="true", partitions="5")
    assert frame.columns == ["id", "_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]
    names = ["_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]
    stock = table.lance.scanner(columns=["id", *names]).to_table().to_pylist()
    assert sorted(tuple(row) for row in frame.collect()) == sorted(tuple(row.values()) for row in stock)
    assert frame.select("_rowid").count() == 40
    assert sorted(row[0] for row in frame.filter("_row_last_updated_at_version > 1").select("id").collect()) == [1001]
    whole = _read(session, tmp_path / "t", partitions="5")
    assert whole.rdd.getNumPartitions() == 5
    assert _ids(whole) == sorted(row["id"] for row in stock)


def test_narrowed_by_hand(session: SparkSession, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": range(10), "Name": list("abcdefghij"), "x": [1.5] * 10}))
    frame = _read(session, tmp_path / "t", columns="name, id", filter="id > 6 and x = 1.5")
    assert (frame.columns, frame.count()) == (["Name", "id"], 3)
    assert _ids(frame.filter("Name <> 'h'")) == [8, 9]
    given = session.read.format("tiltyard").schema("x float, id int").load(str(tmp_path / "t"))
    assert [tuple(row) for row in given.filter("id = 4").collect()] == [(1.5, 4)]
    assert given.agg({"id": "sum"}).collect()[0][0] == 45


def test_slips_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A few of them: each costs Spark a process. The others are in the tests of options."""
    ty.Table.create(tmp_path / "t", pa.table({"id": [1]}))
    for options, says in (
        ({"colums": "id"}, "Did you mean columns"),
        ({"columns": "nope"}, "no column 'nope'"),
        ({"version": "7"}, "NotFound"),
    ):
        with pytest.raises(AnalysisException) as refused:
            _read(spark, tmp_path / "t", **options)
        assert says in str(refused.value), options
    with pytest.raises((AnalysisException, PythonException), match="nope"):
        _read(spark, tmp_path / "t", filter="nope > 1").collect()


def test_empty_tables(session: SparkSession, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 4))]))
    frame = _read(session, tmp_path / "t")
    assert (frame.count(), frame.collect(), frame.groupBy("id").count().collect()) == (0, [], [])
    assert frame.agg({"id": "sum", "v": "count"}).collect()[0].asDict() == {"sum(id)": None, "count(v)": 0}


def test_a_table_plain_pylance_wrote_and_indexed(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"id": range(300), "s": [f"name {number % 50}" for number in range(300)]}), path, max_rows_per_file=100)
    stock = lance.dataset(path)
    stock.create_scalar_index("id", "BTREE")
    stock.create_scalar_index("s", "BITMAP")
    lance.write_dataset(pa.table({"id": [300, 7], "s": ["name 7", None]}), path, mode="append")  # what no index covers
    frame = _read(session, path)
    assert _ids(frame.filter("id = 7")) == [7, 7]
    assert _ids(frame.filter("id in (5, 300, 999)")) == [5, 300]
    assert _ids(frame.filter("s = 'name 7' and id > 200")) == [207, 257, 300]
    assert _ids(frame.filter("id = 1000")) == []
    assert frame.filter("id = 7").count() == 2
    assert frame.filter("id = 7").agg({"id": "sum"}).collect()[0][0] == 14


def test_beside_a_writer(session: SparkSession, tmp_path: Path) -> None:
    """Partitions of one query are planned at one version, whatever is committed while they run."""
    table = ty.Table.create(tmp_path / "t", pa.table({"id": range(90)}), options=ty.TableOptions(files=ty.FileLimits(rows=30)))
    frame = _read(session, tmp_path / "t", partitions="3")
    path = str(tmp_path / "t")

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import tiltyard as there

        for batch in batches:
            there.Table.open(path).append(pa.table({"id": [1000 + batch.column("id")[0].as_py()]}))
            yield batch

    assert sorted(row.id for row in frame.mapInArrow(slow, "id long").collect()) == list(range(90))
    assert frame.count() == 90
    assert table.refresh().count_rows() == 93  # in how many versions is up to the writers: who leads commits for who waits


def test_found_without_being_enabled(spark: SparkSession, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": [5]}))
    other = spark.newSession()
    assert _ids(_read(other, tmp_path / "t")) == [5]
