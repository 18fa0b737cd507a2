"""Whatever holds rows, as Arrow: a table where they are in memory, a stream where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.verbs.casts import cast

Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""Rows in memory, or a stream of them that can be read once."""


def as_rows(data: Any) -> Rows:
    """Reads Arrow tables, batches, readers and datasets, pandas and polars frames, and plain Python columns or rows.

    Raises:
        InvalidInput: it holds no rows we know how to read.
    """
    if isinstance(data, pa.RecordBatchReader | pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Schema):
        return pa.Table.from_batches([], data)  # empty arrays of some types cannot be made, empty tables can
    try:
        return _foreign(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"The data cannot be read as Arrow: {error}", argument="data") from error


def _foreign(data: Any) -> Rows:
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "to_batches") and hasattr(data, "schema"):
        return pa.RecordBatchReader.from_batches(data.schema, data.to_batches())
    if isinstance(data, Mapping):
        return pa.table(dict(data))
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _from_items(iter(data))
    raise InvalidInput(
        f"A {type(data).__name__} holds no rows.", argument="data", advice="Give an Arrow table or reader, a data frame, or rows as dicts."
    )


def _from_items(items: Iterator[Any]) -> Rows:
    first = next(items, None)
    if first is None:
        raise InvalidInput("There are no rows, so the columns are not known.", argument="data", advice="Give a schema or an empty table.")
    if isinstance(first, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(first.schema, chain([first], items))
    rows = [first, *items]
    if not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInput("Rows must be dicts.", argument="data", advice="Give an Arrow table or reader, a data frame, or rows as dicts.")
    return pa.Table.from_pylist(rows)


def conformed(rows: Rows, schema: pa.Schema, not_null: Iterable[str] = ()) -> Rows:
    """The same rows under another schema of the same columns; nulls where there must be none are refused.

    Raises:
        InvalidInput: naming the column and the first row that is null; for a stream, while it is read.
    """
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    paths = tuple(not_null)
    if isinstance(rows, pa.Table):
        return pa.Table.from_batches(list(_conform(rows.to_batches(), schema, paths)), schema)
    return pa.RecordBatchReader.from_batches(schema, _conform(rows, schema, paths))


def _conform(batches: Iterable[pa.RecordBatch], schema: pa.Schema, not_null: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        for path in not_null:
            column = _leaf(batch, path)
            if column is not None and column.null_count:
                row = seen + column.is_null().index(True).as_py()
                raise InvalidInput(
                    f"Column {path} is null in row {row}, but must not be.",
                    argument=path,
                    advice="Nothing was written; fill or drop the nulls.",
                )
        seen += batch.num_rows
        try:
            columns = [cast(have, want.type) for have, want in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InvalidInput(f"The rows do not fit the table: {error}", argument="data") from error


def _leaf(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """A column, or a member of a struct by its dotted path."""
    name, *members = path.split(".")
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    for member in members:
        if not pa.types.is_struct(column.type):
            return None
        column = pa.compute.struct_field(column, member)
    return column
