"""Partial aggregates in workers: what one partition comes to, so that a few rows go to Spark instead of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tiltyard import ColumnSummary
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.read.datasets import dataset, reading
from tiltyard.spark.read.partitioning import Span
from tiltyard.spark.read.reading import Part, PlannedReader, Scan, raw_batches, scanners
from tiltyard.spark.worker_process import begin_work

AT_ONCE: Final = 1 << 19
"""Rows that are aggregated together; more cost memory, fewer cost time."""

MOST_GROUPS: Final = 1 << 17
"""Groups a worker keeps before it hands them over: beyond that, Spark is the better place to bring them together."""

_SAFE: Final = 1 << 62
"""Half of what a long holds."""

_NOT_OF_NONE: Final = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
"""The sum of no values is null, not zero."""


@dataclass(frozen=True, slots=True)
class Partial:
    """One column of partial results: ``rows``, ``count``, ``sum``, ``sum_double``, ``min`` or ``max`` of a column."""

    operation: str
    column: str | None


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Keys and partial results, in the order of the schema that Spark gets."""

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]
    schema: StructType
    ansi: bool


def aggregation(described: Mapping[str, Any], ansi: bool, stored: pa.Schema) -> Aggregation | None:
    """What workers have to do; None where they might come to something else than Spark."""
    schema = StructType.fromJson(described["schema"])
    partials = tuple(Partial(item["op"], item["column"]) for item in described["partials"])
    keys = tuple(described["keys"])
    if not all(_is_key(stored, name) for name in keys) or not all(_is_possible(partial, stored) for partial in partials):
        return None
    return Aggregation(keys, partials, schema, ansi)


def _is_key(stored: pa.Schema, name: str) -> bool:
    kind = stored.field(name).type if name in stored.names else pa.null()
    is_a = pa.types
    return bool(
        is_a.is_integer(kind)
        or is_a.is_string(kind)
        or is_a.is_boolean(kind)
        or is_a.is_date32(kind)
        or is_a.is_float32(kind)
        or is_a.is_float64(kind)
        or (is_a.is_timestamp(kind) and kind.unit == "us")
        or is_a.is_decimal128(kind)
    )


def _is_possible(partial: Partial, stored: pa.Schema) -> bool:
    if partial.operation == "rows":
        return True
    if partial.column not in stored.names:
        return False
    kind, is_a = stored.field(partial.column).type, pa.types
    if partial.operation == "count":
        return True
    if partial.operation in ("sum", "sum_double"):
        # Decimals grow as they are added, and pyarrow does not let them.
        return bool(is_a.is_signed_integer(kind) or is_a.is_float32(kind) or is_a.is_float64(kind))
    whole = is_a.is_signed_integer(kind) or is_a.is_date32(kind) or is_a.is_string(kind)
    return bool(whole or is_a.is_float32(kind) or is_a.is_float64(kind) or (is_a.is_timestamp(kind) and kind.unit == "us"))


def answered(work: Aggregation, known: Mapping[str, ColumnSummary], rows: int, stored: pa.Schema) -> bytes | None:
    """Partial results from statistics, as an Arrow stream of one row; None where columns have to be read."""
    if work.keys or any(partial.operation not in ("rows", "count", "min", "max") for partial in work.partials):
        return None
    columns: dict[str, pa.Array] = {}
    for name, partial in zip(work.schema.fieldNames(), work.partials, strict=True):
        if partial.operation == "rows":
            columns[name] = pa.array([rows], pa.int64())
            continue
        column = known.get(str(partial.column))
        if column is None or not column.exact or column.nulls is None:
            return None
        if partial.operation == "count":
            columns[name] = pa.array([rows - column.nulls], pa.int64())
        else:
            value = column.least if partial.operation == "min" else column.greatest
            columns[name] = pa.array([value], stored.field(str(partial.column)).type)
    found, target = pa.table(columns), to_arrow_schema(work.schema, timezone="UTC")
    convert, sink = batch_converter(found.schema, target), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, target) as writer:
        for batch in found.to_batches():
            writer.write_batch(convert(batch))
    return bytes(sink.getvalue())


class AggregatingReader(PlannedReader):
    """Reads partitions as their partial aggregates."""

    def __init__(self, work: Aggregation, planned: Sequence[Part]) -> None:
        super().__init__(planned)
        self._work = work

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return aggregated(partition, self._work) if isinstance(partition, Part) else iter(())


def aggregated(part: Part, work: Aggregation) -> Iterator[pa.RecordBatch]:
    """The partial results of one partition; of a group there may be several, which Spark brings together."""
    begin_work()
    target = to_arrow_schema(work.schema, timezone="UTC")
    if not work.keys and all(partial.operation == "rows" for partial in work.partials):
        yield _only_rows(part, work, target)
        return
    merged: pa.Table | None = None
    bound = 0
    for table in _tables(part.scan, part.spans):
        added = _largest_sum(table, work)
        if merged is not None and (bound + added >= _SAFE or merged.num_rows > MOST_GROUPS):
            yield from _handed_over(merged, work, target)
            merged, bound = None, 0
        if added >= _SAFE:
            # A sum of these might not fit into a long. Row by row it is Spark that adds, and Spark that complains.
            yield from _handed_over(_one_by_one(table, work), work, target)
            continue
        step, bound = _partial(table, work), bound + added
        merged = step if merged is None else _grouped(pa.concat_tables([merged, step]), work, again=True)
    if merged is not None:
        yield from _handed_over(merged, work, target)


def _only_rows(part: Part, work: Aggregation, target: pa.Schema) -> pa.RecordBatch:
    scan = part.scan
    if scan.filter is None:
        rows = sum(span.rows for span in part.spans)
    else:
        with reading(scan.address):
            rows = sum(scan_of_span.count_rows() for scan_of_span in scanners(scan, dataset(scan.address), part.spans))
    return pa.RecordBatch.from_arrays([pa.array([rows], pa.int64()) for _ in work.partials], schema=target)


def _tables(scan: Scan, spans: tuple[Span, ...]) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in raw_batches(scan, dataset(scan.address), spans):
        kept.append(batch)
        rows += batch.num_rows
        if rows >= AT_ONCE:
            yield pa.Table.from_batches(kept)
            kept, rows = [], 0
    if rows:
        yield pa.Table.from_batches(kept)


def _largest_sum(table: pa.Table, work: Aggregation) -> int:
    """Above what any sum over these rows can come to; 0 where it may wrap around."""
    largest = 0
    for partial in work.partials:
        if work.ansi and partial.operation == "sum" and pa.types.is_int64(table.column(partial.column).type):
            bounds = pc.min_max(table.column(partial.column))
            largest = max(largest, abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
    return int(largest * table.num_rows)


def _inputs(table: pa.Table, work: Aggregation) -> dict[str, Any]:
    """The columns by short names: keys, then what partial results are made of."""
    columns: dict[str, Any] = {f"k{index}": table.column(name) for index, name in enumerate(work.keys)}
    for index, partial in enumerate(work.partials):
        if partial.operation == "rows":
            continue
        column = table.column(partial.column)
        if partial.operation == "count":
            column = pc.is_valid(column).cast(pa.int64())  # of any type, also of those that cannot be grouped
        elif partial.operation == "sum" and pa.types.is_integer(column.type):
            column = column.cast(pa.int64())
        elif partial.operation in ("sum", "sum_double"):
            column = column.cast(pa.float64(), safe=False)  # long integers are rounded, as Spark does
        elif _has_nan(partial, column.type):
            nan = pc.is_nan(column)
            columns[f"n{index}"] = nan.cast(pa.int64())
            column = pc.if_else(nan, pa.scalar(None, column.type), column)
        columns[f"p{index}"] = column
    return columns


def _has_nan(one: Partial, kind: pa.DataType) -> bool:
    """Whether NaN has to be counted apart: pyarrow leaves it out, to Spark it is the largest number."""
    return one.operation in ("min", "max") and bool(pa.types.is_floating(kind))


def _partial(table: pa.Table, work: Aggregation) -> pa.Table:
    columns = _inputs(table, work)
    return _grouped(pa.table(columns) if columns else table, work, again=False)


def _one_by_one(table: pa.Table, work: Aggregation) -> pa.Table:
    """Every row as a group of its own."""
    columns = _inputs(table, work)
    for index, partial in enumerate(work.partials):
        if partial.operation == "rows":
            columns[f"p{index}"] = pa.array([1] * table.num_rows, pa.int64())
    return pa.table(columns)


def _grouped(table: pa.Table, work: Aggregation, *, again: bool) -> pa.Table:
    """Rows to partial results, or partial results to fewer."""
    keys = [f"k{index}" for index in range(len(work.keys))]
    steps: list[tuple[Any, str, Any]] = []
    made: list[str] = []
    for index, partial in enumerate(work.partials):
        if partial.operation == "rows" and not again:
            steps.append(([], "count_all", None))
        else:
            steps.append((f"p{index}", partial.operation if partial.operation in ("min", "max") else "sum", _NOT_OF_NONE))
        made.append(f"p{index}")
        if f"n{index}" in table.schema.names:
            steps.append((f"n{index}", "sum", _NOT_OF_NONE))
            made.append(f"n{index}")
    found = table.group_by(keys, use_threads=False).aggregate(steps)
    places = [index for index, name in enumerate(found.schema.names) if name not in keys]
    columns = [found.column(found.schema.names.index(name)) for name in keys] + [found.column(place) for place in places]
    return pa.table(dict(zip([*keys, *made], columns, strict=True)))


def _handed_over(table: pa.Table, work: Aggregation, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    columns = [table.column(f"k{index}") for index in range(len(work.keys))]
    for index, partial in enumerate(work.partials):
        column = table.column(f"p{index}")
        if f"n{index}" in table.schema.names:
            nan = pc.greater(pc.fill_null(table.column(f"n{index}"), 0), 0)
            instead = nan if partial.operation == "max" else pc.and_(nan, pc.is_null(column))
            column = pc.if_else(instead, pa.scalar(float("nan"), column.type), column)
        columns.append(column)
    named = pa.table(dict(zip(target.names, columns, strict=True)))
    convert = batch_converter(named.schema, target)
    for batch in named.combine_chunks().to_batches(max_chunksize=MOST_GROUPS):
        yield convert(batch)
