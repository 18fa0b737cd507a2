"""Rows from a file, by the kind of file it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import typer

import tiltyard as ty

KINDS: Final[Mapping[str, str]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A file of rows: Parquet, CSV, TSV, Arrow or JSON.")]
Format = Annotated[
    str | None, typer.Option("--format", metavar="KIND", help="parquet, csv, tsv, arrow or json; derived from the file's name by default.")
]


def rows_from(source: str, kind: str | None, schema: pa.Schema) -> pa.RecordBatchReader:
    """The rows of a file as a stream.

    Args:
        source: its path.
        kind: what it is, where its name does not tell.
        schema: the table's columns: what is mere text in a file is read as they are typed.

    Raises:
        InvalidInput: the file cannot be read; for what is found wrong later, while the stream is read.
    """
    path = Path(source)
    chosen = kind.lower() if kind else KINDS.get(path.suffix.lower(), "")
    if chosen not in _READERS:
        known = ", ".join(_READERS)
        raise ty.InvalidInput(f"{source!r} has an unknown file type.", argument="source", advice=f"Use --format with one of {known}.")
    if not path.is_file():
        raise ty.NotFound(f"There is no file {source!r}.", name=source)
    with _reading(source):
        found, batches = _READERS[chosen](path, schema)
    return pa.RecordBatchReader.from_batches(found, _guarded(batches, source))


Batches = tuple[pa.Schema, Iterable[pa.RecordBatch]]


def _parquet(path: Path, schema: pa.Schema) -> Batches:
    file = pa.parquet.ParquetFile(path, memory_map=True)
    return file.schema_arrow, file.iter_batches()


def _arrow(path: Path, schema: pa.Schema) -> Batches:
    source = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:  # the form for streams has no footer
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, stream
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))


def _csv(path: Path, schema: pa.Schema, delimiter: str = ",") -> Batches:
    types = {field.name: field.type for field in _scalars(schema)}
    reader = pa.csv.open_csv(
        path,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )
    return reader.schema, reader


def _tsv(path: Path, schema: pa.Schema) -> Batches:
    return _csv(path, schema, "\t")


def _json(path: Path, schema: pa.Schema) -> Batches:
    """One object a line, or one array of objects."""

    def content() -> pa.NativeFile:
        with path.open("rb") as file:
            is_array = file.read(4096).lstrip()[:1] == b"["
        if not is_array:
            return pa.memory_map(str(path))
        return pa.BufferReader("\n".join(map(json.dumps, json.loads(path.read_bytes()))).encode())

    # Looked at twice: a column must be typed as in the table, but one the file lacks must not appear as nulls.
    present = pa.json.open_json(content()).schema.names
    known = pa.schema([field for field in _scalars(schema) if field.name in present])
    reader = pa.json.open_json(content(), parse_options=pa.json.ParseOptions(explicit_schema=known))
    typed = pa.schema([pa.field(item.name, _type_in(schema, item)) for item in reader.schema])
    return typed, (_cast(batch, typed) for batch in reader)


def _type_in(schema: pa.Schema, found: pa.Field) -> pa.DataType:
    return schema.field(found.name).type if found.name in schema.names else found.type


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """What a text has as a list may be a vector in the table."""
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_READERS: Final[Mapping[str, Callable[[Path, pa.Schema], Batches]]] = {
    "parquet": _parquet,
    "csv": _csv,
    "tsv": _tsv,
    "arrow": _arrow,
    "json": _json,
}


def _scalars(schema: pa.Schema) -> Iterator[pa.Field]:
    """Columns whose type a text can be read as; lists and structs are inferred and cast later."""
    for field in schema:
        if not pa.types.is_nested(field.type) and not isinstance(field.type, pa.BaseExtensionType):
            yield pa.field(field.name, field.type)


def _guarded(batches: Iterable[pa.RecordBatch], source: str) -> Iterator[pa.RecordBatch]:
    with _reading(source):
        yield from batches


@contextmanager
def _reading(source: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, ty.TiltyardError):
            raise
        reason = str(error).rstrip(". ")
        raise ty.InvalidInput(f"{source!r} cannot be read: {reason}.", argument="source", advice="Nothing was committed.") from error
