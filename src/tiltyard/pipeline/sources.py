"""A run's portion of a source as a Spark DataFrame."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import tiltyard as ty
from tiltyard.pipeline.headers import read_by_header
from tiltyard.pipeline.portions import FilePortion, Portion, TablePortion
from tiltyard.pipeline.remote_files import fetch
from tiltyard.pipeline.rescued import read_rescued
from tiltyard.pipeline.source_files import FoundFile
from tiltyard.pipeline.spec import FileSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

COPIED_AT_ONCE: Final = 8
"""Files of an object store that are copied at the same time."""
DRIVER_ROWS: Final = 100_000
"""Tables of at most so many rows, and as many changes, are read by the driver."""

DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"mode": "FAILFAST", "header": "true"},
    "json": {"mode": "FAILFAST"},
    "parquet": {"mergeSchema": "true"},
}
"""What cannot be read is an error rather than nulls; whoever wants nulls says so."""


def read_portion(spark: SparkSession, portion: Portion, sight: ty.LakeSnapshot) -> DataFrame:
    """The rows of a portion, as they are now: nothing that Spark keeps of an earlier look at the same files is used.

    Raises:
        InvalidInput: there are no files yet, and nobody says what columns they will have.
        HistoryUnavailable: a cleanup took versions that were not consumed yet.
    """
    return _files(spark, portion) if isinstance(portion, FilePortion) else _table(spark, portion, sight)


def check_local(spark: SparkSession, source: str) -> None:
    """Refuses copies on the driver where other machines would have to read them.

    Raises:
        InvalidInput: the session is one of a cluster.
    """
    master = str(spark.conf.get("spark.master", "local"))
    if not master.startswith("local[") and master != "local":
        raise ty.InvalidInput(
            f"sources.{source}: files of an object store are copied to the driver, which executors on {master} cannot see.",
            argument=f"sources.{source}.files", advice="Run it with master = 'local[*]', or mount the store as a file system.",
        )  # fmt: skip


def copies_of(source: FileSource, files: Sequence[FoundFile], directory: Path) -> tuple[FoundFile, ...]:
    """Files with copies of those that are in an object store, under their own names; each is copied once."""

    def copied(file: FoundFile) -> FoundFile:
        if not file.store:
            return file
        place = directory / hashlib.sha256(f"{file.item}\0{file.size}\0{file.mtime_ns}".encode()).hexdigest()[:24]
        target = place / PurePosixPath(file.item).name
        if not target.exists():
            place.mkdir(parents=True, exist_ok=True)
            part = place / f".{target.name}.part"
            fetch(source, file.store, file.item.removeprefix(f"{file.store}/"), part)
            part.rename(target)
        return replace(file, path=target)

    with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
        return tuple(pool.map(copied, files))


def _files(spark: SparkSession, portion: FilePortion) -> DataFrame:
    source = portion.source
    if not portion.files:
        return _empty(spark, portion)
    own = {"tiltyard.read": str(uuid.uuid4())}  # Spark takes equal plans for equal rows, whatever became of the files since
    options = _options(source)

    def reader() -> DataFrameReader:
        return spark.read.format(source.format).options(**{**options, **own})

    if source.rescued is not None:
        return read_rescued(spark, source, portion.files, reader, lambda frame: _with_file(frame, source))
    if source.format == "csv" and options["header"].lower() == "true":
        return read_by_header(source, portion.files, reader, lambda frame: _with_file(frame, source))
    ready = reader() if source.schema is None else reader().schema(source.schema)
    return _with_file(ready.load([found.address for found in portion.files]), source)


def _options(source: FileSource) -> dict[str, str]:
    """What the reader is told: the names of the source's own options in any case."""
    found = dict(DEFAULTS[source.format])
    spelled = {name.lower(): name for name in found}
    for name, value in source.options.items():
        found[spelled.get(name.lower(), name)] = value
    return found


def _with_file(frame: DataFrame, source: FileSource) -> DataFrame:
    from pyspark.sql import functions as sql

    if source.file_column is None:
        return frame
    return frame.select("*", sql.col("_metadata.file_name").alias(source.file_column))


def _empty(spark: SparkSession, portion: FilePortion) -> DataFrame:
    from pyspark.sql.types import StructType

    source = portion.source
    if source.schema is not None:
        more = [_null_text(name) for name in (source.file_column, source.rescued) if name is not None]
        return spark.createDataFrame([], source.schema).select("*", *more)
    if portion.schema is None:
        raise ty.InvalidInput(
            f"sources.{source.name} has no files yet, so its columns are not known.", argument=f"sources.{source.name}.schema",
            advice="Set schema = 'column TYPE, ...'.",
        )  # fmt: skip
    schema = StructType.fromJson(json.loads(portion.schema))
    return spark.createDataFrame([], schema)


def _null_text(name: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.lit(None).cast("string").alias(name)


def _table(spark: SparkSession, portion: TablePortion, sight: ty.LakeSnapshot) -> DataFrame:
    from pyspark.sql import functions as sql

    table = sight.table(portion.source.table)
    if portion.source.read == "snapshot":
        return _all_rows(spark, table)
    if portion.whole or portion.none:
        rows = _all_rows(spark, table) if portion.whole else frame_of(spark, table.to_arrow(limit=0))
        return rows.select("*", sql.lit("insert").alias("_change"), sql.lit(portion.last).cast("bigint").alias("_version"))
    try:
        return _changed_rows(spark, table, portion.first, portion.last)
    except ty.HistoryUnavailable as error:
        raise error.advised(
            f"sources.{portion.source.name} had not read these versions. Give the source another name to start again with all rows."
        ) from None


def _changed_rows(spark: SparkSession, table: ty.TableReader, first: int, last: int) -> DataFrame:
    """Few changes by the driver, many by executors."""
    feed, found, count = table.changes(first, last), [], 0
    for batch in feed:
        found.append(batch)
        count += batch.num_rows
        if count > DRIVER_ROWS:
            from tiltyard.spark import SparkReader

            return SparkReader(spark, table).changes(first, last)
    return frame_of(spark, pa.Table.from_batches(found, feed.schema))


def _all_rows(spark: SparkSession, table: ty.TableReader) -> DataFrame:
    """Few rows by the driver, many by executors."""
    if table.count_rows() <= DRIVER_ROWS:
        return frame_of(spark, table.to_arrow())
    from tiltyard.spark import SparkReader

    return SparkReader(spark, table).to_df()


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Arrow rows as a DataFrame; types that Spark does not have become the nearest it has."""
    fields = [pa.field(item.name, _spark_type(item.type), item.nullable) for item in rows.schema]
    return spark.createDataFrame(rows.cast(pa.schema(fields)))


_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, _spark_type(item.type), item.nullable) for item in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    return _WIDER.get(kind, kind)
