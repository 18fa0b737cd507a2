"""Statistics of rows on their way into data files: what a writer has in its hands is looked at once.

Least and greatest values and nulls cost a small part of what encoding does. Which values are distinct costs more, and is looked at by
``analyze`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import leaf_ids
from tiltyard.format.logical_types import logical_type
from tiltyard.format.schema import fields_from_arrow
from tiltyard.format.statistics import ColumnStatistics, FileStatistics, Value, cut, is_counted
from tiltyard.format.values import DataFragment, Field
from tiltyard.verbs.engine.row_input import Rows
from tiltyard.verbs.statistics.distinct import Sketch

FROM_ROWS = 1 << 16
"""Rows of a data file from which its writer looks at them. A smaller one is read faster than anything about it is looked up, and a small
append stays as short as it was."""

MOST_COLUMNS: Final = 64
"""Columns of a table, from the first, that writers look at; ``analyze`` looks at whichever it is asked for."""

_AT_ONCE: Final = 1 << 16
_BYTES_AT_ONCE: Final = 8 * 1024**2
"""Rows, and bytes of them, that wait for each other: a call for each small batch costs more than the values do."""


def is_long(rows: int) -> bool:
    """Whether a file of so many rows is worth looking at."""
    return rows >= FROM_ROWS


@dataclass(frozen=True, slots=True)
class Counted:
    """A column that is looked at: its place among those of the file, its name and its logical type."""

    at: int
    name: str
    type: str


def counted_columns(schema: pa.Schema, fields: Sequence[Field] | None, data_version: str, most: int = MOST_COLUMNS) -> list[Counted]:
    """The columns of rows that statistics are kept of: top-level ones of plain types. Nested members are left out by this.

    Args:
        schema: of the rows.
        fields: of the table, in the rows' order; None where the rows make it.
        data_version: of the files, which decides about what columns they have.
        most: how many.
    """
    try:
        major, minor = (int(part) for part in data_version.split("."))
        known = fields_from_arrow(schema, file_version=(major, minor))[0] if fields is None else fields
    except (ValueError, InvalidInput):
        return []
    of_rows = set(names := schema.names)  # asked for once: a list of all of them each time
    if major != 2 or len(of_rows) < len(names):
        return []
    places = {number: place for place, number in enumerate(leaf_ids(known, (major, minor)))}
    found: list[Counted] = []
    for field in known:
        if len(found) == most:
            break
        if field.parent_id < 0 and field.name in of_rows and field.id in places and not field.extension_name:
            kind = schema.field(field.name).type
            if is_counted(field.logical_type) and _is_as_stored(kind, field.logical_type):
                found.append(Counted(places[field.id], field.name, field.logical_type))
    return found


def _is_as_stored(kind: pa.DataType, logical: str) -> bool:
    """Whether values have in memory the very type that they are stored as, and one that Arrow finds bounds of."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        return False
    return logical_type(kind) == logical


class RunningStatistics:
    """The statistics of one data file, while its rows go by."""

    def __init__(self, columns: Sequence[Counted], *, distinct: bool = False) -> None:
        self._columns = columns
        self._found: dict[int, ColumnStatistics | None] = {column.at: ColumnStatistics(column.type, 0) for column in columns}
        self._boundless: set[int] = set()
        self._sketches = {column.at: Sketch() for column in columns} if distinct else {}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes in some rows. Small batches wait for each other."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _AT_ONCE or self._waiting_bytes >= _BYTES_AT_ONCE:
            self._fold()

    def columns(self) -> dict[int, ColumnStatistics]:
        """What was found, by places of columns."""
        self._fold()
        found = {at: column for at, column in self._found.items() if column is not None}
        found |= {at: replace(found[at], low=None, high=None) for at in self._boundless if at in found}
        return {at: replace(column, distinct=self._sketches[at].text()) if at in self._sketches else column for at, column in found.items()}

    def _fold(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        for column in self._columns:
            known = self._found[column.at]
            if known is None or not waiting:
                continue
            try:
                values = pa.chunked_array([batch.column(column.name) for batch in waiting])
                rows, nulls, low, high = _of(values, column.type)
                self._found[column.at] = _joined(known, nulls, low, high)
                if low is None and nulls < rows:
                    self._boundless.add(column.at)  # NaN: above all values to some readers, and beside them to others
                if column.at in self._sketches:
                    self._sketches[column.at].add(values)
            except (pa.ArrowException, UnicodeDecodeError):
                self._found[column.at] = None  # values that nobody can compare are nobody's to bound


def _of(values: pa.ChunkedArray, logical: str) -> tuple[int, int, Value | None, Value | None]:
    """Rows, nulls and bounds of some values."""
    rows, nulls = len(values), values.null_count
    if nulls == rows:
        return rows, nulls, None, None
    if logical in ("float", "double"):
        return rows, nulls, *_of_floats(values)
    bounds = pc.min_max(values)
    return rows, nulls, _plain(bounds["min"], logical), _plain(bounds["max"], logical)


def _of_floats(values: pa.ChunkedArray) -> tuple[float | None, float | None]:
    """By numpy, which is twenty times as fast as Arrow here; none where there is NaN, which numpy's least value then is."""
    plain = (values.drop_null() if values.null_count else values).to_numpy()
    low, high = float(plain.min()), float(plain.max())
    return (None, None) if low != low else (low, high)


def _plain(value: Any, logical: str) -> Value:
    """A scalar as a number or text that Python compares as the format does."""
    if logical in ("string", "large_string", "float", "double"):
        found: Value = value.as_py()
        return found
    if logical.startswith("decimal:"):
        return _unscaled(value.as_py(), int(logical.rpartition(":")[2]))
    if logical.startswith(("timestamp:", "date32:")):
        return int(value.value)
    return int(value.as_py())


def _unscaled(value: Decimal, scale: int) -> int:
    """A decimal as a whole number; not by arithmetic of decimals, which rounds."""
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + scale
    number = int("".join(map(str, digits)))
    whole = number * int(10**shift) if shift >= 0 else number // int(10**-shift)
    return -whole if sign else whole


def _joined(known: ColumnStatistics, nulls: int, low: Value | None, high: Value | None) -> ColumnStatistics:
    lows = [bound for bound in (known.low, low) if bound is not None]
    highs = [bound for bound in (known.high, high) if bound is not None]
    least, greatest = min(lows, default=None), max(highs, default=None)
    return replace(known, nulls=known.nulls + nulls, low=least, high=greatest)


def bounded(columns: Mapping[int, ColumnStatistics]) -> dict[int, ColumnStatistics]:
    """The same as they are kept: long texts are cut."""
    found = dict(columns)
    for at, column in columns.items():
        if isinstance(column.low, str) and isinstance(column.high, str):
            low, high, exact = cut(column.low, column.high)
            found[at] = replace(column, low=None if high is None else low, high=high, exact=exact)
        elif isinstance(column.low, float) and 0.0 in (column.low, column.high):
            found[at] = replace(column, exact=False)  # of which sign it is depends on the order of rows
    return found


class PassingStatistics:
    """The statistics of rows on their way to a writer that cuts them into files by itself, by how many rows each may have."""

    def __init__(self, columns: Sequence[Counted], rows_per_file: int) -> None:
        self._columns = columns
        self._most = rows_per_file
        self._files: list[RunningStatistics] = []

    def noting(self, rows: Rows) -> Rows:
        """The same rows, looked at as they pass."""
        if not self._columns:
            return rows
        if isinstance(rows, pa.Table):
            for batch in rows.to_batches():
                self._add(batch)
            return rows
        return pa.RecordBatchReader.from_batches(rows.schema, self._passing(rows))

    def _passing(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            self._add(batch)
            yield batch

    def _add(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            if not self._files or self._files[-1].rows >= self._most:
                self._files.append(RunningStatistics(self._columns))
            part = batch.slice(0, self._most - self._files[-1].rows)
            self._files[-1].add(part)
            batch = batch.slice(part.num_rows)

    def of(self, fragments: Sequence[DataFragment]) -> dict[str, FileStatistics]:
        """What is known of the files that the rows went to, as far as these were cut where we expected it."""
        found: dict[str, FileStatistics] = {}
        for fragment, running in zip(fragments, self._files, strict=False):
            if fragment.physical_rows != running.rows:
                break  # cut by bytes: from here on nobody knows which rows went where
            found.update(file_statistics(fragment, running))
        return found


def file_statistics(fragment: DataFragment, running: RunningStatistics) -> dict[str, FileStatistics]:
    """The statistics of a fragment's one file, by its name; none of a file that is too short to be worth it, or of unknown size."""
    if len(fragment.files) != 1 or not is_long(fragment.physical_rows) or fragment.physical_rows != running.rows:
        return {}
    file = fragment.files[0]
    if not file.size or file.column_indices != tuple(range(len(file.fields))):
        return {}
    return {file.path: FileStatistics(file.size, running.rows, bounded(running.columns()))}
