"""Types of a table in Spark: each there and, where it can be, back; the rest refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import blob_array, blob_field
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

import tiltyard as ty
from tiltyard.spark.convert import batch_converter, converter
from tiltyard.spark.read.reading import Scan, batches, parts, table_schema
from tiltyard.spark.source_options import Options
from tiltyard.spark.spark_types import arrow_schema, arrow_type, spark_schema, spark_type
from tiltyard.spark.target import Target

UTC = dt.UTC
EVERY: dict[str, tuple[pa.DataType, list[Any], list[Any] | None]] = {
    "bool": (pa.bool_(), [True, None, False], None),
    "int8": (pa.int8(), [-128, None, 127], None),
    "int16": (pa.int16(), [-(2**15), None, 2**15 - 1], None),
    "int32": (pa.int32(), [-(2**31), None, 2**31 - 1], None),
    "int64": (pa.int64(), [-(2**63), None, 2**63 - 1], None),
    "uint8": (pa.uint8(), [0, None, 255], None),
    "uint16": (pa.uint16(), [0, None, 2**16 - 1], None),
    "uint32": (pa.uint32(), [0, None, 2**32 - 1], None),
    "uint64": (pa.uint64(), [0, None, 2**64 - 1], [Decimal(0), None, Decimal(2**64 - 1)]),
    "float16": (pa.float16(), [1.5, None, -2.0], None),
    "float32": (pa.float32(), [1.5, None, float("inf")], None),
    "float64": (pa.float64(), [1.1, None, -0.0], None),
    "text": (pa.string(), ["é", None, ""], None),
    "large_text": (pa.large_string(), ["日本", None, "a"], None),
    "bytes": (pa.binary(), [b"\0a", None, b""], None),
    "large_bytes": (pa.large_binary(), [b"a", None, b"b"], None),
    "fixed_bytes": (pa.binary(2), [b"ab", None, b"cd"], None),
    "date": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)], None),
    "date64": (pa.date64(), [dt.date(1969, 1, 1), None, dt.date(2020, 2, 29)], None),
    "moment": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, 31, 23, tzinfo=UTC), None, dt.datetime(2020, 1, 1, tzinfo=UTC)], None),
    "berlin": (pa.timestamp("ms", "Europe/Berlin"), [dt.datetime(2020, 7, 1, tzinfo=UTC), None, dt.datetime(1960, 1, 1, tzinfo=UTC)], None),
    "local": (pa.timestamp("us"), [dt.datetime(2020, 3, 29, 2, 30), None, dt.datetime(1960, 1, 1)], None),
    "seconds": (pa.timestamp("s"), [dt.datetime(2020, 1, 1), None, dt.datetime(1960, 1, 1)], None),
    "nanos": (
        pa.timestamp("ns"),
        [1_001, None, -1],
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)],
    ),
    "span": (pa.duration("us"), [dt.timedelta(seconds=1, microseconds=5), None, dt.timedelta(days=-3)], None),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4), None, dt.time(0, 0)], None),
    "decimal": (pa.decimal128(38, 10), [Decimal("1.0000000001"), None, Decimal(-5)], None),
    "vector": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], None, [4.0, 5.0, 6.0]], None),
    "half_vector": (pa.list_(pa.float16(), 2), [[1.0, 2.0], [0.5, 0.25], None], None),
    "list": (pa.list_(pa.int32()), [[1, None], None, []], None),
    "large_list": (pa.large_list(pa.large_string()), [["a", None], None, []], None),
    "struct": (
        pa.struct([("a", pa.int32()), ("v", pa.list_(pa.float32(), 2))]),
        [{"a": 1, "v": [1.0, 2.0]}, None, {"a": None, "v": None}],
        None,
    ),
    "structs": (
        pa.list_(pa.struct([("x", pa.timestamp("ns"))])),
        [[{"x": 2_000}], None, []],
        [[{"x": dt.datetime(1970, 1, 1, 0, 0, 0, 2)}], None, []],
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"], None),
}


def _table(names: list[str]) -> pa.Table:
    return pa.table({name: pa.array(EVERY[name][1], EVERY[name][0]) for name in names})


def _seen(value: Any) -> Any:
    if isinstance(value, st.Row):
        return {key: _seen(item) for key, item in value.asDict().items()}
    if isinstance(value, list):
        return [_seen(item) for item in value]
    return bytes(value) if isinstance(value, bytearray) else value


def test_every_type_arrives_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    names = [name for name in EVERY if name != "map"]
    ty.Table.create(tmp_path / "all", _table(names))
    frame = spark.read.format("tiltyard").load(str(tmp_path / "all"))
    rows = frame.collect()
    for name in names:
        wanted = EVERY[name][2] or EVERY[name][1]
        if name in ("moment", "berlin"):  # collected as local time of this process
            wanted = [None if one is None else one.astimezone().replace(tzinfo=None) for one in wanted]
        assert [_seen(row[name]) for row in rows] == wanted, name
    assert frame.schema["vector"].metadata["tiltyard.dimension"] == 3
    assert frame.schema["uint64"].dataType == st.DecimalType(20, 0)
    assert frame.schema["local"].dataType == st.TimestampNTZType()
    assert frame.schema["berlin"].dataType == st.TimestampType()


def test_maps(spark: SparkSession, tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.float32(), 2))
    rows = pa.table({"m": pa.array([[("a", [1.0, 2.0]), ("b", None)], None, []], kind)})
    ty.Table.create(tmp_path / "maps", rows)
    found = spark.read.format("tiltyard").load(str(tmp_path / "maps")).collect()
    assert [row.m for row in found] == [{"a": [1.0, 2.0], "b": None}, None, {}]


def test_vectors_survive_spark(spark: SparkSession, tmp_path: Path) -> None:
    schema = spark_schema(pa.schema([("v", pa.list_(pa.float32(), 128)), ("h", pa.list_(pa.float16(), 8)), ("n", pa.list_(pa.float32()))]))
    again = spark.createDataFrame([], schema).schema
    back = arrow_schema(again)
    assert back.field("v").type == pa.list_(pa.float32(), 128)
    assert back.field("h").type == pa.list_(pa.float16(), 8)
    assert back.field("n").type == pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pa.decimal256(50, 2), "decimal256"),
        (pa.decimal128(10, -2), "decimal128"),
        (pa.month_day_nano_interval(), "interval"),
        (pa.struct([("deep", pa.list_(pa.month_day_nano_interval()))]), "col.deep.element"),
    ],
)
def test_what_spark_does_not_have_is_refused_by_name(kind: pa.DataType, says: str) -> None:
    with pytest.raises(ty.UnsupportedFeature) as refused:
        spark_schema(pa.schema([("col", kind)]))
    assert "column col" in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize("kind", [st.NullType(), st.YearMonthIntervalType(), st.VariantType(), st.CalendarIntervalType()])
def test_what_a_table_does_not_have_is_refused_by_name(kind: st.DataType) -> None:
    with pytest.raises(ty.UnsupportedFeature, match=r"column a\.b") as refused:
        arrow_schema(st.StructType([st.StructField("a", st.StructType([st.StructField("b", kind)]))]))
    assert refused.value.writing


@pytest.mark.parametrize(
    "text", ["boolean", "tinyint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz"]
)
def test_spark_types_there_and_back(text: str) -> None:
    kind = st._parse_datatype_json_string(f'"{ {"tinyint": "byte", "int": "integer", "bigint": "long"}.get(text, text) }"')
    for one in (kind, st.ArrayType(kind), st.MapType(st.StringType(), kind), st.StructType([st.StructField("x", kind, False)])):
        assert spark_type(arrow_type(one)) == one


def test_batches_that_are_slices_or_empty() -> None:
    rows = _table(list(EVERY)).combine_chunks()
    target = to_arrow_schema(spark_schema(rows.schema), timezone="UTC")
    whole = batch_converter(rows.schema, target)(rows.to_batches()[0])
    whole.validate(full=True)
    for start, count in ((1, 2), (0, 0), (2, 1), (1, 1)):
        part = batch_converter(rows.schema, target)(rows.to_batches()[0].slice(start, count))
        part.validate(full=True)
        assert part.schema == target
        assert part.to_pylist() == whole.slice(start, count).to_pylist()


def test_lists_become_vectors_only_where_they_fit() -> None:
    back = pa.schema([("v", pa.list_(pa.float32(), 2))])
    lists = pa.table({"v": pa.array([[1.0, 2.0], None, [3.0, 4.0], None], pa.list_(pa.float64()))}).to_batches()[0]
    made = batch_converter(lists.schema, back)(lists)
    made.validate(full=True)
    assert made.to_pylist() == lists.to_pylist()
    only = pa.table({"v": pa.array([None, None], pa.list_(pa.float64()))}).to_batches()[0]
    assert batch_converter(only.schema, back)(only).to_pylist() == only.to_pylist()
    wrong = pa.table({"v": pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float64()))}).to_batches()[0]
    with pytest.raises(ty.InvalidInput, match=r"vectors of 2 values, but one has 1"):
        batch_converter(wrong.schema, back)(wrong)


def test_a_value_that_does_not_fit_names_its_column() -> None:
    rows = pa.table({"far": pa.array([2**62], pa.timestamp("s"))}).to_batches()[0]
    target = to_arrow_schema(spark_schema(rows.schema), timezone="UTC")
    with pytest.raises(ty.InvalidInput, match="Column far"):
        batch_converter(rows.schema, target)(rows)


def test_blobs_and_json_are_bytes_and_text(tmp_path: Path) -> None:
    """Read as a worker would, without Spark."""
    rows = {"v2": blob_array([b"abc", None]), "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None]))}
    lance.write_dataset(
        pa.table(rows, schema=pa.schema([blob_field("v2"), pa.field("json", pa.json_())])), tmp_path / "t", data_storage_version="2.2"
    )
    address = Target.from_options({"path": str(tmp_path / "t")}).locate()
    schema = table_schema(address, Options({}))
    assert schema.simpleString() == "struct<v2:binary,json:string>"
    scan = Scan(address, schema)
    found = [row for part in parts(scan) for batch in batches(part) for row in batch.to_pylist()]
    assert found == [{"v2": b"abc", "json": '{"a":1}'}, {"v2": None, "json": None}]


def test_vectors_are_handed_over_as_the_one_buffer_that_they_are() -> None:
    flat = pa.array([float(number) for number in range(40)], pa.float32())
    vectors, lists = pa.FixedSizeListArray.from_arrays(flat, 4), to_arrow_schema(st.StructType().add("v", st.ArrayType(st.FloatType())))
    gaps = pa.FixedSizeListArray.from_arrays(flat, 4, mask=pa.array([number == 2 for number in range(10)]))
    there, back = converter(vectors.type, lists.field("v").type, "v"), converter(lists.field("v").type, vectors.type, "v")
    assert there is not None
    assert back is not None
    place = flat.buffers()[1].address
    for array in (vectors, gaps, vectors.slice(3, 5), gaps.slice(1, 7)):
        given = there(array)
        assert given.to_pylist() == array.to_pylist()
        assert given.values.buffers()[-1].address == place
        again = back(given)
        assert again.equals(array)
        # A null row takes part in the one form and not in the other, so only vectors without any come back as they went.
        assert array.null_count or again.values.buffers()[-1].address == place
