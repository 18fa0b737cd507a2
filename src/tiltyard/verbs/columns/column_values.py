"""Where the values of new columns come from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import ROOT
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFragment
from tiltyard.verbs.columns.column_files import Batches, FilesAt, check_new_names, fitting, fitting_batch, scanned
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_input import as_rows
from tiltyard.verbs.engine.sql_expressions import expressions

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class NewValues(Protocol):
    """Values of columns that are not there yet."""

    @property
    def what(self) -> str:
        """Tells these values from others within one call."""

    @property
    def work(self) -> str:
        """Tells these values from those of other calls, which may go on at one checkpoint."""

    def schema(self, at: FilesAt) -> pa.Schema: ...

    def batches(self, at: FilesAt, fragment: DataFragment) -> Batches:
        """The values for the live rows of a fragment, in order."""


@dataclass(frozen=True, slots=True)
class AllNull:
    """Columns without a value: nothing is written."""

    columns: pa.Schema
    what: str = "nulls"
    work: str = "nulls"

    def schema(self, at: FilesAt) -> pa.Schema:
        return self.columns

    def batches(self, at: FilesAt, fragment: DataFragment) -> Batches:
        return iter(())


@dataclass(frozen=True, slots=True)
class Expressions:
    """SQL over the row, and constants. Always nullable: who appends rows need not know the column."""

    sql: Mapping[str, str]
    constants: Mapping[str, pa.Scalar]
    names: tuple[str, ...]

    @property
    def what(self) -> str:
        constants = {name: [str(value.type), repr(value.as_py())] for name, value in self.constants.items()}
        return json.dumps([self.names, dict(self.sql), constants])

    @property
    def work(self) -> str:
        return self.what

    def schema(self, at: FilesAt) -> pa.Schema:
        check_new_names(at.manifest, self.names)
        types = {name: value.type for name, value in self.constants.items()}
        if self.sql:
            sql = expressions(self.sql, at.dataset.schema)
            with lance_errors(at.kept.access, "compute new columns", at.dataset.version):
                found = at.dataset.scanner(columns=sql, with_row_address=True).to_reader().schema
            types |= {name: found.field(name).type for name in self.sql}
        return pa.schema([pa.field(name, types[name]) for name in self.names])

    def batches(self, at: FilesAt, fragment: DataFragment) -> Batches:
        schema = self.schema(at)
        for batch in scanned(at.kept.access, at.dataset, fragment.id, expressions(self.sql, at.dataset.schema)):
            columns = [
                pa.repeat(self.constants[name], batch.num_rows) if name in self.constants else batch.column(name) for name in self.names
            ]
            yield pa.RecordBatch.from_arrays(
                [fitting(column, schema.field(n), "columns") for n, column in enumerate(columns)], schema=schema
            )


@dataclass(frozen=True, slots=True)
class Lookup:
    """Columns of a table, found by the value of a column both have; null where it has no such row."""

    table: pa.Table
    on: str

    @property
    def what(self) -> str:
        return json.dumps(["lookup", self.on, str(self.table.schema), self.table.num_rows])

    @property
    def work(self) -> str:
        """The values themselves tell one table from another of the same columns and as many rows."""
        digest = hashlib.sha256()
        whole = self.table.combine_chunks()
        with pa.ipc.new_stream(pa.PythonFile(_Hashing(digest), "w"), whole.schema) as out:
            out.write_table(whole)
        return f"{self.what} {digest.hexdigest()}"

    def schema(self, at: FilesAt) -> pa.Schema:
        self._key_field(at.manifest)
        return pa.schema([item for item in self.table.schema if item.name != self.on])

    def _key_field(self, manifest: Manifest) -> pa.Field:
        schema = arrow_from_fields(manifest.fields, {})
        if self.on not in schema.names:
            raise InvalidInput(f"The table has no column {self.on!r} to find rows by.", argument="on")
        return schema.field(self.on)

    def batches(self, at: FilesAt, fragment: DataFragment) -> Batches:
        wanted = self._key_field(at.manifest)
        keys = self._keys(wanted)
        schema = self.schema(at)
        rows = self.table.select(schema.names).combine_chunks()
        for batch in scanned(at.kept.access, at.dataset, fragment.id, [self.on]):
            with _looking_up(self.on):
                places = pc.index_in(batch.column(0), value_set=keys)
            taken = rows.take(places)
            columns = [_whole(taken.column(n)) for n in range(len(schema))]
            yield pa.RecordBatch.from_arrays(
                [fitting(column, schema.field(n), "columns") for n, column in enumerate(columns)], schema=schema
            )

    def _keys(self, wanted: pa.Field) -> pa.Array:
        given = _whole(self.table.column(self.on))
        keys = fitting(given, wanted.with_nullable(True), "on")
        if keys.null_count:
            raise InvalidInput(f"{self.on!r} is null in a row of the new columns.", argument="columns")
        with _looking_up(self.on):
            counts = pc.value_counts(keys)
        double = counts.filter(pc.greater(counts.field("counts"), 1))
        if len(double):
            sample = ", ".join(repr(item["values"]) for item in double[:3].to_pylist())
            raise InvalidInput(f"The new columns have several rows for {self.on} = {sample[:80]}.", argument="columns")
        return keys


class _Hashing(io.RawIOBase):
    """A file that keeps only the digest of what is written to it."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)


@contextmanager
def _looking_up(on: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise InvalidInput(f"Rows cannot be found by {on!r}: {str(error)[:100]}", argument="on") from error


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


@dataclass(slots=True)
class Made:
    """Columns that a function makes of batches of rows."""

    function: BatchFunction
    read_columns: Sequence[str] | None = None
    given: pa.Schema | None = None
    batch_size: int | None = None
    _begun: tuple[DataFragment, pa.RecordBatch, Iterator[pa.RecordBatch]] | None = field(default=None, repr=False)
    """The fragment, as it was then, whose first batch told what the columns are, that batch, and what comes after it."""

    @property
    def what(self) -> str:
        return json.dumps(["made", None if self.read_columns is None else list(self.read_columns)])

    @property
    def work(self) -> str:
        return self.what

    def schema(self, at: FilesAt) -> pa.Schema:
        checkpoint = at.kept.checkpoint
        if self.given is None and checkpoint is not None:
            self.given = checkpoint.schema
        if self.given is None:
            self.given = self._seen(at)
        return self.given

    def _seen(self, at: FilesAt) -> pa.Schema:
        for fragment in at.manifest.fragments:
            rest = self._read(at, fragment)
            for batch in rest:
                made = self.function(batch)
                if not isinstance(made, pa.RecordBatch):
                    raise InvalidInput(f"The function must return a RecordBatch, not {type(made).__name__}.", argument="columns")
                self._begun = fragment, fitting_batch(made, made.schema, batch.num_rows, "columns"), rest
                return made.schema
        raise InvalidInput(
            "There are no rows to call the function with, so its columns are not known.", argument="schema", advice="Give schema=."
        )

    def batches(self, at: FilesAt, fragment: DataFragment) -> Batches:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == fragment:
            return chain([begun[1]], self._made(begun[2], at))
        return self._made(self._read(at, fragment), at)

    def _made(self, batches: Iterator[pa.RecordBatch], at: FilesAt) -> Batches:
        schema = self.schema(at)
        for batch in batches:
            yield fitting_batch(self.function(batch), schema, batch.num_rows, "columns")

    def _read(self, at: FilesAt, fragment: DataFragment) -> Iterator[pa.RecordBatch]:
        known = [field.name for field in at.manifest.fields if field.parent_id == ROOT]
        columns = known if self.read_columns is None else list(self.read_columns)
        if unknown := [column for column in columns if column not in known]:
            raise InvalidInput(f"There is no column {unknown[0]!r} to read.", argument="read_columns")
        found = scanned(at.kept.access, at.dataset, fragment.id, columns, self.batch_size)
        return (batch.select(columns) for batch in found if batch.num_rows)


def new_values(
    columns: Any, *, on: str | None, read_columns: Sequence[str] | None, schema: pa.Schema | None, batch_size: int | None
) -> NewValues:
    """The values a caller means."""
    if callable(columns) and not isinstance(columns, type):
        if isinstance(read_columns, str):
            read_columns = [read_columns]
        if schema is not None and not isinstance(schema, pa.Schema):
            raise InvalidInput("schema is an Arrow schema.", argument="schema")
        return Made(columns, read_columns, schema, batch_size)
    if read_columns is not None or schema is not None or batch_size is not None:
        raise InvalidInput("read_columns, schema and batch_size are for a function only.", argument="columns")
    if on is not None:
        if not isinstance(on, str):
            raise InvalidInput("on is the name of one column.", argument="on")
        rows = as_rows(columns)
        if on not in rows.schema.names:
            raise InvalidInput(f"The rows have no column {on!r} to match by.", argument="on")
        return Lookup(rows if isinstance(rows, pa.Table) else rows.read_all(), on)
    if isinstance(columns, pa.Field | pa.Schema):
        return AllNull(pa.schema([columns]) if isinstance(columns, pa.Field) else columns)
    if isinstance(columns, Mapping) and columns:
        return _expressions(columns)
    raise InvalidInput(
        f"Columns cannot be made of a {type(columns).__name__}.",
        argument="columns",
        advice="Give SQL by name, an Arrow field or schema, a function, or rows with on=.",
    )


def _expressions(columns: Mapping[Any, Any]) -> Expressions:
    sql: dict[str, str] = {}
    constants: dict[str, pa.Scalar] = {}
    for name, value in columns.items():
        if not isinstance(name, str):
            raise InvalidInput(f"A column's name is text, not {name!r}.", argument="columns")
        if isinstance(value, str):
            sql[name] = value
        elif isinstance(value, pa.Scalar | bool | int | float):
            constants[name] = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        else:
            raise InvalidInput(f"{name!r} is a SQL expression, a number or an Arrow scalar.", argument="columns")
    return Expressions(sql, constants, tuple(columns))
