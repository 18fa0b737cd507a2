"""Whatever holds rows, as Arrow: a table where they are in memory, a stream where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import BLOB_V2

Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""Rows in memory, or a stream of them that can be read once."""


def as_rows(data: Any) -> Rows:
    """Reads Arrow tables, batches, readers and datasets, pandas and polars frames, and plain Python columns or rows.

    Raises:
        InvalidInput: it holds no rows we know how to read; for a stream, while it is read, that a batch is not what the stream said.
    """
    rows = _known(data)
    return rows if isinstance(rows, pa.Table) else pa.RecordBatchReader.from_batches(rows.schema, _as_announced(rows))


def _known(data: Any) -> Rows:
    if isinstance(data, pa.RecordBatchReader | pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Schema):
        return pa.Table.from_batches([], data)  # empty arrays of some types cannot be made, empty tables can
    if type(data).__module__.partition(".")[0] == "pandas":
        with _reading():
            return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        with _reading():
            return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "to_batches") and hasattr(data, "schema"):
        with _reading():
            return pa.RecordBatchReader.from_batches(data.schema, data.to_batches())
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _from_items(iter(data))
    raise InvalidInput(
        f"A {type(data).__name__} holds no rows.", argument="data", advice="Give an Arrow table or reader, a data frame, or rows as dicts."
    )


@contextmanager
def _reading() -> Iterator[None]:
    """Around what Arrow makes of a value, never around code of the caller's: his errors are his."""
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"The data cannot be read as Arrow: {error}", argument="data") from error


def _from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInput(f"Columns are called by text, not {name!r}.", argument="data")
    with _reading():
        return pa.table(dict(columns))


def _from_items(items: Iterator[Any]) -> Rows:
    first = next(items, None)
    if first is None:
        raise InvalidInput("There are no rows, so the columns are not known.", argument="data", advice="Give a schema or an empty table.")
    if isinstance(first, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(first.schema, chain([first], items))
    rows = [first, *items]
    if not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInput("Rows must be dicts.", argument="data", advice="Give an Arrow table or reader, a data frame, or rows as dicts.")
    # Arrow itself would take the columns from the first row and drop what only later ones have.
    names = dict.fromkeys(name for row in rows for name in row)
    return _from_columns({name: [row.get(name) for row in rows] for name in names})


def _as_announced(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a stream, each in the order of its schema. Nobody else compares the two, and the bytes of one type would be read
    as another."""
    schema = reader.schema
    for batch in reader:
        yield batch if batch.schema.equals(schema) else _rearranged(batch, schema)


def _rearranged(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if sorted(batch.schema.names) != sorted(schema.names) or len(set(schema.names)) < len(schema.names):
        found = f"columns {', '.join(batch.schema.names)} instead of {', '.join(schema.names)}"
        raise InvalidInput(f"A batch of the stream has {found}.", argument="data", advice="Nothing was committed.")
    for field in schema:
        kind = batch.schema.field(field.name).type
        if not kind.equals(field.type):
            raise InvalidInput(
                f"A batch of the stream has {kind} in column {field.name}, which the stream says is {field.type}.",
                argument=field.name,
                advice="Nothing was committed; cast the batch.",
            )
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


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
            fitting = pa.RecordBatch.from_arrays(columns, schema=schema)
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidInput(f"The rows do not fit the table: {error}", argument="data") from error
        yield fitting


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


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as another type; by way of the plain type, since Arrow does not go from one extension type to another."""
    if column.type.equals(kind):
        return column
    if _is_blob(kind) and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return _as_blobs(column, kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type) and any(_is_blob(member.type) for member in kind):
        members = [cast(pc.struct_field(column, member.name), member.type) for member in kind]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    plain = _plain(column.type)
    return (column if plain.equals(column.type) else column.cast(plain)).cast(kind)


def _is_blob(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == BLOB_V2


def _as_blobs(column: pa.Array, kind: pa.BaseExtensionType) -> pa.Array:
    """Blobs in their second form, of the bytes themselves. pylance converts them too, but numbers the columns wrongly in an overwrite."""
    storage = kind.storage_type
    members = {"data": column.cast(pa.large_binary())}
    arrays = [members.get(member.name, pa.nulls(len(column), member.type)) for member in storage]
    return pa.ExtensionArray.from_storage(kind, pa.StructArray.from_arrays(arrays, fields=list(storage), mask=column.is_null()))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with all extension types in it replaced by what they are stored as."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(member) for member in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return kind


def _plain_field(member: pa.Field) -> pa.Field:
    return member.with_type(_plain(member.type))
