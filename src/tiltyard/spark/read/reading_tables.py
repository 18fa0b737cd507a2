"""What a table shows in a Spark session: its rows, its history, its changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

import tiltyard as ty
from tiltyard.errors import UnsupportedFeature
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.jobs import Batches, expected_batches, group_numbers, per_group
from tiltyard.spark.source import NAME, TiltyardSource
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.target import Address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def data_frame(
    spark: SparkSession,
    table: ty.TableReader,
    *,
    version: int | str | None = None,
    timestamp: datetime | str | None = None,
    options: Mapping[str, Any] | None = None,
    chosen: bool = False,
    whole: str = "",
) -> DataFrame:
    """The rows of a table through the data source, pinned at a version: the handle's, which may be one that was ``chosen``, or another.

    Of a shard, ``whole`` says which table it is a part of."""
    if version is not None or timestamp is not None:
        table, chosen = _at(table, version, timestamp), True
    spark.dataSource.register(TiltyardSource)
    address = Address.of(table, whole=whole)
    reader = spark.read.format(NAME).option("address", address.to_json())
    if chosen:  # rows of a version that somebody asked for may replace later ones
        reader = reader.option("version", address.version)
    return reader.options(**{name: str(value) for name, value in (options or {}).items()}).load()


def _at(table: ty.TableReader, version: int | str | None, timestamp: datetime | str | None) -> ty.Table:
    if isinstance(table, ty.TransactionTable):
        raise UnsupportedFeature(
            "Inside a transaction a table has one version.", feature="versions in a transaction", advice="Read it outside the transaction."
        )
    branch = None if isinstance(version, str) else table.branch  # a tag names its branch itself
    return ty.Table.open(table.uri, version, branch=branch, timestamp=timestamp, storage_options=_options(table))


def _options(table: ty.TableReader) -> dict[str, str] | None:
    return dict(table.lance.latest_storage_options() or {}) or None


def history_frame(spark: SparkSession, table: ty.TableReader, limit: int | None) -> DataFrame:
    """The history, latest first."""
    columns = "version bigint, timestamp timestamp, operation string, message string, writer string, transaction_id string, rows bigint"
    rows = [
        (entry.version, entry.timestamp, entry.operation, entry.message, entry.writer, entry.transaction_id, entry.rows)
        for entry in table.history(limit)
    ]
    return spark.createDataFrame(rows, columns)


def changes_frame(
    spark: SparkSession, table: ty.TableReader, since: int, until: int | None, tasks: int, *, old_values: bool = False
) -> DataFrame:
    """The change feed of some versions, in order; executors read some versions each, when it is asked for."""
    last = table.version if until is None else until
    feed = table.changes(since, last, old_values=old_values)
    told = spark_schema(feed.schema)
    if isinstance(table, ty.TransactionTable):  # nobody else can see these versions
        convert = batch_converter(feed.schema, expected_batches(told))
        return spark.createDataFrame(pa.Table.from_batches([convert(item) for item in feed], expected_batches(told)), told)
    uri, branch, options = table.uri, table.branch, _options(table)
    parts = _parted(since, last, tasks)
    return per_group(spark, parts).mapInArrow(_feed(uri, branch, options, parts, last, told, old_values=old_values), told)


def _parted(since: int, last: int, most: int) -> list[tuple[int, int]]:
    """The versions after one up to another, in so many ranges at most, about equally long."""
    count = max(min(most, last - since), 1)
    ends = [since + (last - since) * number // count for number in range(count + 1)]
    return list(pairwise(ends))


def _feed(
    uri: str, branch: str | None, options: dict[str, str] | None, parts: list[tuple[int, int]], last: int, told: StructType, *,
    old_values: bool,
) -> Any:  # fmt: skip
    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        wanted = expected_batches(told)
        for number in group_numbers(iter(batches)):
            table = ty.Table.open(uri, branch=branch, version=last, storage_options=options)
            feed = table.changes(*parts[number], old_values=old_values, columns_of=last)
            convert = batch_converter(feed.schema, wanted)
            for batch in feed:
                yield convert(batch)

    return run
