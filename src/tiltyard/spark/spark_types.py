"""Types of a table as Spark knows them, and back."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

from tiltyard.errors import UnsupportedFeature

DIMENSION: Final = "tiltyard.dimension"
"""In a field's metadata: the length of the fixed-size list its array was made from, so that writing it gives one again."""

ELEMENT: Final = "tiltyard.element"
"""In a field's metadata: what the vector's elements were, where Spark only has something wider."""

_PLAIN: Final[dict[pa.DataType, st.DataType]] = {
    pa.null(): st.NullType(),
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
}

_BACK: Final[dict[type[st.DataType], pa.DataType]] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.CharType: pa.string(),
    st.VarcharType: pa.string(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
}

_ELEMENTS: Final = {"halffloat": pa.float16(), "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32()}
"""What vectors are made of that Spark has no type for."""

BLOB: Final = "lance.blob.v2"
"""Bytes that lie beside the table's files."""

_OPAQUE: Final = ("lance.bfloat16",)
"""Types whose stored bytes would be read as something else."""

MAX_DECIMAL: Final = 38
"""Digits of Spark's longest decimal."""


def spark_schema(schema: pa.Schema) -> st.StructType:
    """A table's schema as Spark's.

    Raises:
        UnsupportedFeature: Spark has nothing for a column's type.
    """
    return st.StructType([_spark_field(field, field.name) for field in schema])


def _spark_field(field: pa.Field, path: str) -> st.StructField:
    return st.StructField(field.name, spark_type(field.type, path), field.nullable, _remembered(field.type))


def _remembered(kind: pa.DataType) -> dict[str, Any]:
    """What the Spark type alone would forget."""
    if not pa.types.is_fixed_size_list(kind):
        return {}
    element = str(kind.value_type)
    return {DIMENSION: kind.list_size} | ({ELEMENT: element} if element in _ELEMENTS else {})


def spark_type(kind: pa.DataType, path: str = "") -> st.DataType:
    """One Arrow type as Spark's; ``path`` names the column in errors."""
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(kind, path)
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    is_a = pa.types
    if is_a.is_decimal(kind):
        if kind.precision > MAX_DECIMAL or kind.scale < 0 or kind.scale > kind.precision:
            raise _refused(path, kind, "Spark's decimals have at most 38 digits and no negative scale.")
        return st.DecimalType(kind.precision, kind.scale)
    if is_a.is_fixed_size_binary(kind):
        return st.BinaryType()
    if is_a.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    if is_a.is_duration(kind):
        return st.DayTimeIntervalType()
    if is_a.is_time(kind) and hasattr(st, "TimeType"):
        return st.TimeType()
    if is_a.is_dictionary(kind):
        return spark_type(kind.value_type, path)
    if is_a.is_map(kind):
        value = spark_type(kind.item_type, f"{path}.value")
        return st.MapType(spark_type(kind.key_type, f"{path}.key"), value, kind.item_field.nullable)
    if is_list(kind):
        return st.ArrayType(spark_type(kind.value_type, f"{path}.element"), kind.value_field.nullable)
    if is_a.is_struct(kind):
        return st.StructType([_spark_field(child, f"{path}.{child.name}") for child in kind])
    raise _refused(path, kind, "Leave the column out with option columns.")


def _extension(kind: pa.BaseExtensionType, path: str) -> st.DataType:
    """What Spark sees of a type that says more than how it is stored."""
    if kind.extension_name == BLOB:
        return st.BinaryType()
    if kind.extension_name in _OPAQUE:
        raise _refused(path, kind.extension_name, "Leave the column out with option columns.")
    return spark_type(kind.storage_type, path)


def is_list(kind: pa.DataType) -> bool:
    """Whether it is a list of any layout."""
    is_a = pa.types
    return bool(
        is_a.is_list(kind)
        or is_a.is_large_list(kind)
        or is_a.is_fixed_size_list(kind)
        or is_a.is_list_view(kind)
        or is_a.is_large_list_view(kind)
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Spark's schema as that of a table. Arrays that remember a dimension become fixed-size lists.

    Raises:
        UnsupportedFeature: a table cannot hold a column's type.
    """
    return pa.schema([_arrow_field(field, field.name) for field in schema.fields])


def _arrow_field(field: st.StructField, path: str) -> pa.Field:
    kind, dimension = field.dataType, (field.metadata or {}).get(DIMENSION)
    if isinstance(kind, st.ArrayType) and isinstance(dimension, int) and dimension > 0:
        element = _ELEMENTS.get(field.metadata.get(ELEMENT, ""), None) or arrow_type(kind.elementType, f"{path}.element")
        return pa.field(field.name, pa.list_(pa.field("item", element, kind.containsNull), dimension), field.nullable)
    return pa.field(field.name, arrow_type(kind, path), field.nullable)


def arrow_type(kind: st.DataType, path: str = "") -> pa.DataType:
    """One Spark type as Arrow's; ``path`` names the column in errors."""
    if type(kind) in _BACK:
        return _BACK[type(kind)]
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return pa.list_(pa.field("item", arrow_type(kind.elementType, f"{path}.element"), kind.containsNull))
    if isinstance(kind, st.MapType):
        value = pa.field("value", arrow_type(kind.valueType, f"{path}.value"), kind.valueContainsNull)
        return pa.map_(arrow_type(kind.keyType, f"{path}.key"), value)
    if isinstance(kind, st.StructType):
        return pa.struct([_arrow_field(child, f"{path}.{child.name}") for child in kind.fields])
    if isinstance(kind, st.UserDefinedType):
        return arrow_type(kind.sqlType(), path)
    if hasattr(st, "TimeType") and isinstance(kind, st.TimeType):
        return pa.time64("ns")
    raise _refused(path, kind.simpleString(), "Cast the column first.", writing=True)


def _refused(path: str, kind: object, advice: str, *, writing: bool = False) -> UnsupportedFeature:
    """The one way to say that a type is not there on the other side."""
    side = "A table has" if writing else "Spark has"
    return UnsupportedFeature(f"{side} no type for column {path}, which is {kind}.", feature=f"type {kind}", writing=writing, advice=advice)
