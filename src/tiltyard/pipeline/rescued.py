"""The rescued column: what a file has and the schema has not, as JSON, instead of a run that fails or values that are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.headers import columns_of
from tiltyard.pipeline.source_files import FoundFile
from tiltyard.pipeline.spec import FileSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

RECORD: Final = "_record"
"""The member of a rescued value that has a line which could not be read at all."""
_CORRUPT: Final = "_tiltyard_corrupt"

Reader = Callable[[], "DataFrameReader"]
Finish = Callable[["DataFrame"], "DataFrame"]


def read_rescued(spark: SparkSession, source: FileSource, files: Sequence[FoundFile], reader: Reader, finish: Finish) -> DataFrame:
    """Rows in the columns of the schema, with one more column for the rest: null where there is none.

    Fields that the schema does not have are members of it by their names; a line that does not fit the schema is there as text.

    Raises:
        InvalidInput: the source has no schema.
    """
    from pyspark.sql.types import StructType

    assert source.schema is not None
    assert source.rescued is not None
    wanted = StructType.fromDDL(source.schema)
    assert isinstance(wanted, StructType)
    if source.rescued.lower() in (name.lower() for name in wanted.names):
        key = f"sources.{source.name}.rescued"
        raise InvalidInput(f"{key} is {source.rescued!r}, which the schema has, too.", argument=key)
    if source.format == "json":
        return _json(spark, source, files, wanted, finish)
    frames = [_own_columns(source, group, header, wanted, reader, finish) for header, group in columns_of(source, files, reader)]
    if not frames:
        from pyspark.sql import functions as sql

        return finish(spark.createDataFrame([], wanted)).withColumn(source.rescued, sql.lit(None).cast("string"))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _json(spark: SparkSession, source: FileSource, files: Sequence[FoundFile], wanted: StructType, finish: Finish) -> DataFrame:
    """Each line is parsed twice: as the schema has it, and as whatever it has."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType, StructField, StructType

    lines = finish(spark.read.text([found.address for found in files])).filter(sql.trim(sql.col("value")) != "")
    schema = StructType([*wanted.fields, StructField(_CORRUPT, StringType())])
    options = {**source.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = lines.select(
        "*",
        sql.from_json("value", schema, options).alias("_tiltyard_row"),
        sql.from_json("value", "map<string,string>").alias("_tiltyard_all"),
    )
    known = [name.lower() for name in wanted.names]
    extra = sql.map_filter("_tiltyard_all", lambda name, _: ~sql.lower(name).isin(known))
    broken = sql.col(f"_tiltyard_row.{_CORRUPT}").isNotNull() | sql.col("_tiltyard_row").isNull()
    record = sql.to_json(sql.create_map(sql.lit(RECORD), sql.col("value")))
    rescued = sql.when(broken, record).when(sql.size(extra) > 0, sql.to_json(extra))
    others = [name for name in lines.columns if name != "value"]
    return parsed.select(
        *(sql.col("_tiltyard_row").getField(name).alias(name) for name in wanted.names),
        *others,
        rescued.alias(str(source.rescued)),
    )


def _own_columns(
    source: FileSource, group: Sequence[FoundFile], header: tuple[str, ...], wanted: StructType, reader: Reader, finish: Finish
) -> DataFrame:
    """Files that have the same columns: those of the schema in its types, the others as text in one more."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType, StructField, StructType

    paths = [found.address for found in group]
    fields = {field.name.lower(): field for field in wanted}
    broken: Column = sql.lit(None).cast("string")
    if source.format == "csv":
        kinds = [fields[name.lower()].dataType if name.lower() in fields else StringType() for name in header]
        own = [StructField(name, kind) for name, kind in zip(header, kinds, strict=True)]
        options: dict[str, Any] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        ready = reader().options(**options).schema(StructType([*own, StructField(_CORRUPT, StringType())]))
        frame = finish(ready.load(paths))
        broken = sql.col(_CORRUPT)
    else:
        frame = finish(reader().load(paths))
    fitting = {
        name.lower(): name
        for name in header
        if name.lower() in fields and _fits(frame.schema[name].dataType, fields[name.lower()].dataType)
    }
    extra = [name for name in header if name not in fitting.values()]
    rest = sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in extra))) if extra else sql.lit(None).cast("string")
    record = sql.to_json(sql.create_map(sql.lit(RECORD), broken))
    rescued = sql.when(broken.isNotNull(), record).when(rest != "{}", rest)
    there = (fitting.get(field.name.lower()) for field in wanted)
    columns = [
        (sql.lit(None) if name is None else sql.col(f"`{name}`")).cast(field.dataType).alias(field.name)
        for field, name in zip(wanted, there, strict=True)
    ]
    others = [name for name in frame.columns if name not in header and name != _CORRUPT]
    return frame.select(*columns, *others, rescued.alias(str(source.rescued)))


def _fits(have: DataType, want: DataType) -> bool:
    """Whether values of one type are values of the other as they are; what would be rounded, cut or formatted is rescued instead."""
    wider = ["tinyint", "smallint", "int", "bigint"], ["float", "double"]
    one, other = have.simpleString(), want.simpleString()
    return one == other or any(one in order and other in order and order.index(one) <= order.index(other) for order in wider)
