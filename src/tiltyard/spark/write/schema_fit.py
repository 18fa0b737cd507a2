"""Rows as Spark has them under the columns of a table: decided once, on the driver, before a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st

from tiltyard.errors import InvalidInput
from tiltyard.spark.spark_types import DIMENSION, arrow_schema, is_list, spark_type

_WIDER: Final[dict[type[st.DataType], tuple[type[st.DataType], ...]]] = {
    st.ByteType: (st.ShortType, st.IntegerType, st.LongType, st.FloatType, st.DoubleType),
    st.ShortType: (st.IntegerType, st.LongType, st.FloatType, st.DoubleType),
    st.IntegerType: (st.LongType, st.DoubleType),
    st.FloatType: (st.DoubleType,),
}
"""Types whose every value another one has."""


def table_columns(schema: st.StructType, table: pa.Schema) -> tuple[pa.Schema, dict[str, str]]:
    """The columns of rows as an existing table types them, in the rows' order, and the names that the rows have for them.

    Names are found as Spark finds them: exactly, or else without regard to case.

    Raises:
        InvalidInput: naming all columns that the table does not have, or has with another type.
    """
    fields, names, problems = [], {}, []
    folded: dict[str, list[str]] = {}
    for name in table.names:
        folded.setdefault(name.lower(), []).append(name)
    for field in schema.fields:
        near = folded.get(field.name.lower(), [])
        name = field.name if field.name in table.names else near[0] if len(near) == 1 else None
        if name is None:
            problems.append(f"{field.name} is not in the table")
            continue
        kind = table.field(name).type
        if not _holds(kind, field.dataType):
            problems.append(f"{field.name} is {field.dataType.simpleString()} but {kind} in the table")
        names[name] = field.name
        fields.append(pa.field(name, kind))
    if problems:
        what = "; ".join(f"column {problem}" for problem in problems)
        raise InvalidInput(f"The rows do not fit the table: {what}.", argument="schema", advice="Cast, rename or drop columns first.")
    if len(names) < len(schema.fields):
        raise InvalidInput("Two columns of the rows are one of the table, but for their case.", argument="schema")
    return pa.schema(fields), names


def _holds(kind: pa.DataType, given: st.DataType) -> bool:
    """Whether all values of Spark's type are values of the table's."""
    if isinstance(given, st.NullType):
        return True
    if isinstance(given, st.ArrayType) and is_list(kind):
        return _holds(kind.value_type, given.elementType)
    if isinstance(given, st.MapType) and pa.types.is_map(kind):
        return _holds(kind.key_type, given.keyType) and _holds(kind.item_type, given.valueType)
    if isinstance(given, st.StructType) and pa.types.is_struct(kind):
        members = {item.name: item.type for item in kind}
        return set(members) == set(given.names) and all(_holds(members[field.name], field.dataType) for field in given.fields)
    wanted = spark_type(kind)
    if isinstance(given, st.StringType) and isinstance(wanted, st.StringType):
        return True  # whatever their collation
    return wanted == given or type(wanted) in _WIDER.get(type(given), ())


def new_columns(schema: st.StructType, vectors: Mapping[str, int], before: pa.Schema | None = None) -> pa.Schema:
    """The columns of rows for a table that is to be, or whose schema they replace.

    Args:
        schema: as Spark has it.
        vectors: columns that become vectors, and of how many values.
        before: the schema that is replaced; a column that means the same as before stays of the type it was.

    Raises:
        InvalidInput: a vector is not a column of arrays.
        UnsupportedFeature: a table cannot hold a column's type.
    """
    arrays = {field.name for field in schema.fields if isinstance(field.dataType, st.ArrayType)}
    for name in vectors:
        if name not in arrays:
            raise InvalidInput(f"Option vectors names {name!r}, which is not an array column.", argument="vectors")
    told = [
        st.StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), DIMENSION: vectors[field.name]})
        if field.name in vectors
        else field
        for field in schema.fields
    ]
    # What Spark takes to be never null depends on how the rows came about, which is no promise about those to come.
    fresh = pa.schema([_nullable(item) for item in arrow_schema(st.StructType(told))])
    if before is None:
        return fresh
    kept = []
    for field, given in zip(fresh, schema.fields, strict=True):
        place = before.get_field_index(field.name)
        old = before.field(place) if place >= 0 and field.name not in vectors else None
        stays = old is not None and not isinstance(old.type, pa.BaseExtensionType) and _same(old.type, given.dataType)
        kept.append(field.with_type(old.type) if stays and old is not None else field)
    return pa.schema(kept)


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(item) for item in kind])
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_nullable(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return pa.field(field.name, kind)


def _same(kind: pa.DataType, given: st.DataType) -> bool:
    """Whether a column can stay of the type it was, but for what may be null."""
    if isinstance(given, st.ArrayType) and is_list(kind):
        return _same(kind.value_type, given.elementType)
    if isinstance(given, st.StructType | st.MapType):
        return False  # members may be other ones, or in another order: what the rows have is what is meant
    return spark_type(kind) == given


def parse_vectors(text: str | None) -> dict[str, int]:
    """``"embedding:128, other:3"`` as lengths by column.

    Raises:
        InvalidInput: it is something else.
    """
    found = {}
    for part in filter(None, (name.strip() for name in (text or "").split(","))):
        name, _, length = part.rpartition(":")
        if not name or not length.strip().isdecimal() or not 0 < int(length) <= 1 << 20:
            raise InvalidInput(f"Option vectors has {part[:60]!r} in it.", argument="vectors", advice="Write it like embedding:128.")
        found[name.strip()] = int(length)
    return found
