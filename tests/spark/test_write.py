"""Batch write: append and overwrite, to a path or a table of a lake, in one commit, and nothing left of what failed."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

import tiltyard as ty
from tests.support.commits import files_below
from tiltyard.errors import AlreadyExists, InvalidInput, KeyConflict, OutcomeUnknown
from tiltyard.spark import enable
from tiltyard.spark.idempotency import committing
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.write import writing
from tiltyard.spark.write.writing import TiltyardWriter, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("s", st.StringType())])


def _writer(path: object, *, overwrite: bool = False, schema: st.StructType = SCHEMA, **options: Any) -> TiltyardWriter:
    given = Options({"path": str(path), **{name: str(value) for name, value in options.items()}})
    # As Spark does it: what was made in one process is used in others.
    made: TiltyardWriter = pickle.loads(pickle.dumps(TiltyardWriter(given, schema, overwrite)))
    return made


def _batch(*ids: int, schema: st.StructType = SCHEMA) -> Any:
    told = to_arrow_schema(schema, timezone="UTC")
    return iter([pa.RecordBatch.from_pylist([{"id": one, "s": str(one)} for one in ids], schema=told)])


def _ids(path: object) -> list[int]:
    return sorted(ty.Table.open(str(path)).to_arrow()["id"].to_pylist())


# ---- through Spark -----------------------------------------------------------------------------------------------------------


def test_append_and_overwrite_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TiltyardSource)
    path = str(tmp_path / "t")
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "cast(id as string) s", "array(cast(id as float), 1f) v")
    how = {"primary_key": "id", "vectors": "v:2", "message": "first", "properties": '{"job": "7"}', "max_rows_per_file": "30"}
    rows.write.format("tiltyard").mode("append").options(**how).save(path)
    table = ty.Table.open(path)
    assert (table.version, table.primary_key, str(table.schema.field("v").type)) == (1, ("id",), "fixed_size_list<item: float>[2]")
    assert sorted(one.physical_rows for one in table.layout.fragments) == [20, 20, 30, 30]
    entry = table.transactions.describe()
    assert (entry.message, entry.properties["job"]) == ("first", "7")
    rows.selectExpr("id + 100 as ID", "s", "v").write.format("tiltyard").mode("append").save(path)
    assert _ids(path) == list(range(200))
    with pytest.raises(PySparkException, match="KeyConflict"):
        rows.write.format("tiltyard").mode("append").save(path)
    # In one task: Spark does not wait for others before it aborts, and what those write afterwards is left to cleanup.
    failing = rows.coalesce(1).selectExpr("id + 500 as id", "if(id = 99, raise_error('no'), s) as s", "v")
    with pytest.raises(PySparkException, match="USER_RAISED_EXCEPTION"):
        failing.write.format("tiltyard").mode("append").save(path)
    table.refresh()
    assert files_below(tmp_path / "t", "data") == {file.path for one in table.layout.fragments for file in one.files}
    rows.limit(5).write.format("tiltyard").mode("overwrite").save(path)
    assert (_ids(path), ty.Table.open(path).primary_key) == ([0, 1, 2, 3, 4], ("id",))
    assert str(ty.Table.open(path).schema.field("v").type) == "fixed_size_list<item: float>[2]"
    assert ty.Table.open(path).check().ok


def test_to_a_table_of_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TiltyardSource)
    where = {"lake": str(tmp_path / "lake"), "table": "sales.orders"}
    lake = ty.Lake.open(tmp_path / "lake")
    rows = spark.range(0, 10, 1, 2).selectExpr("id", "cast(id as string) s")
    rows.write.format("tiltyard").mode("append").options(**where).save()
    rows.selectExpr("id + 10 as id", "s").write.format("tiltyard").mode("append").options(**where).save()
    assert sorted(lake.table("sales.orders").to_arrow()["id"].to_pylist()) == list(range(20))
    assert (len(lake.history()), lake.check().ok) == (2, True)


def test_save_modes_that_spark_does_not_pass_on(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TiltyardSource)
    rows = spark.range(3).selectExpr("id", "cast(id as string) s")
    with pytest.raises(PySparkException, match="Append"):
        rows.write.format("tiltyard").save(str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


# ---- what the driver decides before a task runs ------------------------------------------------------------------------------


def test_rows_that_do_not_fit_are_refused_at_once(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": [1], "s": ["a"], "Case": [1], "case": [2]}))
    other = st.StructType([st.StructField("id", st.StringType()), st.StructField("x", st.LongType())])
    with pytest.raises(InvalidInput, match=r"id is string but int64 in the table; column x is not in the table"):
        _writer(tmp_path / "t", schema=other)
    with pytest.raises(InvalidInput, match="CASE is not in the table"):  # which of the two is meant?
        _writer(tmp_path / "t", schema=st.StructType([st.StructField("CASE", st.LongType())]))
    with pytest.raises(InvalidInput, match="but for their case"):
        _writer(tmp_path / "t", schema=st.StructType([st.StructField("S", st.StringType()), st.StructField("s", st.StringType())]))
    with pytest.raises(InvalidInput, match="primary key"):
        _writer(tmp_path / "t", primary_key="id")
    assert len(files_below(tmp_path / "t", "data")) == 1


@pytest.mark.parametrize(
    "options",
    [{"mesage": "x"}, {"version": 3}, {"tag": "x"}, {"vectors": "s"}, {"vectors": "s:0"}, {"vectors": "id:3"}, {"properties": "x"},
     {"properties": "[1]"}, {"query_id": "q"}, {"epoch": "1"}, {"max_rows_per_file": 0}, {"on_duplicate": "maybe"}, {"branch": "b"}],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, ty.NotFound)):
        _writer(tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


def test_what_is_there_already(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": [1], "s": ["a"]}))
    with pytest.raises(AlreadyExists):
        _writer(tmp_path / "t", if_exists="error")
    ignoring = _writer(tmp_path / "t", if_exists="ignore")
    ignoring.commit([ignoring.write(_batch(5))])
    assert _ids(tmp_path / "t") == [1]
    making = _writer(tmp_path / "new", if_exists="error")
    making.commit([making.write(_batch(5))])
    assert _ids(tmp_path / "new") == [5]


HELD = pa.schema(
    [
        ("u8", pa.uint8()),
        ("u64", pa.uint64()),
        ("h", pa.list_(pa.float16(), 2)),
        ("ls", pa.large_string()),
        ("ns", pa.timestamp("us")),
        ("tz", pa.timestamp("ms", "Europe/Berlin")),
        ("d", pa.decimal128(10, 2)),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("st", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("wide", pa.int64()),
        ("b", pa.large_binary()),
    ]
)
GIVEN = {
    "u8": st.ShortType(),
    "u64": st.DecimalType(20, 0),
    "h": st.ArrayType(st.FloatType()),
    "ls": st.StringType(),
    "ns": st.TimestampNTZType(),
    "tz": st.TimestampType(),
    "d": st.DecimalType(10, 2),
    "m": st.MapType(st.StringType(), st.IntegerType()),
    "st": st.StructType([st.StructField("b", st.ArrayType(st.StringType())), st.StructField("a", st.LongType())]),
    "wide": st.IntegerType(),
    "b": st.BinaryType(),
}
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROW = {
    "u8": 200,
    "u64": Decimal(2**63),
    "h": [0.5, 1.5],
    "ls": "x",
    "ns": WHEN.replace(tzinfo=None),
    "tz": WHEN,
    "d": Decimal("1.25"),
    "m": [("k", 1)],
    "st": {"a": 1, "b": ["y"]},
    "wide": 7,
    "b": b"z",
}


def test_all_kinds_of_columns_become_what_the_table_has(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", HELD)
    schema = st.StructType([st.StructField(name, kind) for name, kind in GIVEN.items()])
    writer = _writer(tmp_path / "t", schema=schema)
    told = to_arrow_schema(schema, timezone="UTC")
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist([ROW, dict.fromkeys(ROW)], schema=told)]))])
    rows = table.refresh().to_arrow()
    back, nothing = rows.to_pylist()
    assert rows.schema.types == HELD.types
    assert {**back, "tz": back["tz"].astimezone(UTC)} == ROW
    assert all(value is None for value in nothing.values())
    short = pa.RecordBatch.from_pylist([{**ROW, "h": [1.0]}], schema=told)
    with pytest.raises(InvalidInput, match="vectors of 2 values"):
        writer.write(iter([short]))


# ---- attempts ----------------------------------------------------------------------------------------------------------------


def test_attempts_that_lose_are_not_committed_and_their_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": [0], "s": ["0"]}))
    writer = _writer(tmp_path / "t")
    first = writer.write(_batch(1, 2))
    monkeypatch.setattr(writing, "part_of_task", lambda: "0")
    twice = [writer.write(_batch(3)), writer.write(_batch(3))]  # a speculative attempt that came to its end as well
    lost = writer.write(_batch(1, 2))  # one whose message the driver never got
    assert lost.piece is not None
    writer.commit([first, *twice])
    assert _ids(tmp_path / "t") == [0, 1, 2, 3]
    assert len(files_below(tmp_path / "t", "data")) == 3
    assert ty.Table.open(tmp_path / "t").check().ok


def test_an_abort_removes_all_that_was_written(tmp_path: Path) -> None:
    for there in (False, True):
        if there:
            ty.Table.create(tmp_path / "t", pa.table({"id": [0], "s": ["0"]}))
        before = files_below(tmp_path / "t", "data")
        writer = _writer(tmp_path / "t")
        known = writer.write(_batch(1))
        writer.write(_batch(2))
        writer.abort([known, None])
        assert files_below(tmp_path / "t", "data") == before


def test_an_abort_after_a_commit_that_nobody_saw_end_removes_nothing(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": [0], "s": ["0"]}))
    writer = _writer(tmp_path / "t")
    message = writer.write(_batch(1))
    doubt = OutcomeUnknown("who knows", transaction_id="x", version=2, uri="t")
    with pytest.raises(OutcomeUnknown), committing(writer.task.token):
        raise doubt
    writer.abort([message])
    assert len(files_below(tmp_path / "t", "data")) == 2
    with pytest.raises(KeyConflict), committing(writer.task.token):
        raise KeyConflict("certain")
    writer.abort([message])
    assert len(files_below(tmp_path / "t", "data")) == 1


def test_an_abort_after_a_commit_that_spark_never_heard_of_removes_nothing(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "t")
    message = writer.write(_batch(1))
    lost = writer.write(_batch(1))
    writer.commit([message])
    writer.abort([message, lost])
    assert (_ids(tmp_path / "t"), ty.Table.open(tmp_path / "t").check().ok) == ([1], True)
    ty.Table.open(tmp_path / "t").delete("true")  # the version from before still has them
    writer.abort([message])
    assert ty.Table.open(tmp_path / "t", version=1).to_arrow()["id"].to_pylist() == [1]


def test_a_numbered_batch_is_committed_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    makers = [_writer(path, query_id="nightly", epoch=3), _writer(path, query_id="nightly", epoch=3)]
    messages = [one.write(_batch(1)) for one in makers]
    for writer, message in zip(makers, messages, strict=True):
        writer.commit([message])  # the second finds the table made, with its rows in it
    assert _ids(path) == [1]
    again = _writer(path, query_id="nightly", epoch=3)
    assert (again.idle, again.write(_batch(1)).piece) == (True, None)
    again.commit([Written(None)])
    after = _writer(path, query_id="nightly", epoch=4)
    after.commit([after.write(_batch(2))])
    assert (_ids(path), len(files_below(path, "data"))) == ([1, 2], 2)
    assert ty.distributed.last_done(ty.Table.open(path), "nightly") == 4


def test_two_that_make_the_table_at_once_both_have_their_rows_in_it(tmp_path: Path) -> None:
    one, other = _writer(tmp_path / "t"), _writer(tmp_path / "t")
    replacing = _writer(tmp_path / "t", overwrite=True)
    strange = _writer(tmp_path / "t", schema=st.StructType([st.StructField("id", st.LongType()), st.StructField("name", st.StringType())]))
    for writer, number in ((one, 1), (other, 2)):
        writer.commit([writer.write(_batch(number))])
    assert _ids(tmp_path / "t") == [1, 2]
    message = strange.write(iter([pa.record_batch({"id": [3], "name": ["x"]})]))
    with pytest.raises(AlreadyExists, match="meanwhile"):
        strange.commit([message])
    strange.abort([message])
    replacing.commit([replacing.write(_batch(9))])
    assert (_ids(tmp_path / "t"), ty.Table.open(tmp_path / "t").check().ok) == ([9], True)


def test_an_empty_data_frame(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "t")
    writer.commit([writer.write(iter([]))])
    table = ty.Table.open(tmp_path / "t")
    assert (table.count_rows(), table.schema.names) == (0, ["id", "s"])
    replacing = _writer(tmp_path / "t", overwrite=True)
    replacing.commit([])
    assert table.refresh().version == 2


def test_threads_write_after_they_enabled_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """Spark finds a source to write to by the session of the thread; a thread of Python's begins without one."""
    frame = spark.range(10)

    def write(number: int) -> None:
        enable(spark, rule=False)
        frame.write.format("tiltyard").mode("append").save(str(tmp_path / "t"))

    ty.Table.create(tmp_path / "t", pa.schema([pa.field("id", pa.int64())]))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert ty.Table.open(tmp_path / "t").count_rows() == 30


def test_small_appends_of_the_driver_are_committed_together(spark: SparkSession, tmp_path: Path) -> None:
    table = ty.spark.SparkTable(spark, ty.Table.create(tmp_path / "t", pa.table({"id": [0]})))
    with table.writer(max_delay=1e6) as writer:
        receipts = [writer.append({"id": [number]}) for number in range(1, 5)]
    assert {receipt.result(0).version for receipt in receipts} == {2}
    assert sorted(row.id for row in table.to_df().collect()) == [0, 1, 2, 3, 4]
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("t", pa.table({"id": [0]}))
    with lake.transaction() as tx, pytest.raises(ty.InvalidInput, match="in a transaction has no writer"):
        tx.spark(spark).table("t").writer()
