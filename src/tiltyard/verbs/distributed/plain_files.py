"""Plain columns written straight to data files, without a dataset: by names we choose, so that whatever goes wrong nothing is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import StorageError
from tiltyard.format.fields import leaf_ids
from tiltyard.format.statistics import FileStatistics
from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.options import FileLimits
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_input import Rows
from tiltyard.verbs.statistics.gather_statistics import RunningStatistics, counted_columns, file_statistics

if TYPE_CHECKING:
    from lance.file import LanceFileWriter


_ROWS_AT_ONCE: Final = 1 << 17
_BYTES_AT_ONCE: Final = 16 * 1024**2


@dataclass(slots=True)
class _File:
    name: str
    writer: LanceFileWriter
    statistics: RunningStatistics
    rows: int = 0
    bytes: int = 0


class _Files:
    """The files of one stream of rows, one after the other."""

    def __init__(self, access: TableAccess, schema: pa.Schema, fields: Sequence[Field], data_version: str, prefix: str) -> None:
        self._access = access
        self._schema = schema
        self._version = data_version
        self._prefix = prefix
        self._major, self._minor = (int(part) for part in data_version.split("."))
        self._ids = leaf_ids(fields, (self._major, self._minor))
        self._open: _File | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.names: list[str] = []
        self.fragments: list[DataFragment] = []
        self._columns = counted_columns(schema, fields, data_version)
        self.statistics: dict[str, FileStatistics] = {}

    def add(self, batch: pa.RecordBatch, limits: FileLimits) -> None:
        """Small batches wait for each other: to encode them one by one takes twice as long."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        enough = self._waiting_bytes >= min(_BYTES_AT_ONCE, limits.bytes)
        if enough or self._waiting_rows >= min(_ROWS_AT_ONCE, limits.rows):
            self._add_waiting(limits)

    def finish(self, limits: FileLimits) -> None:
        self._add_waiting(limits)
        self.end()

    def _add_waiting(self, limits: FileLimits) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        for batch in waiting:
            self._add(batch, limits)

    def _add(self, batch: pa.RecordBatch, limits: FileLimits) -> None:
        while batch.num_rows:
            file = self._open or self._begin()
            part = batch.slice(0, limits.rows - file.rows)
            with lance_errors(self._access, "write rows"):
                file.writer.write_batch(part)
            file.rows += part.num_rows
            file.bytes += part.nbytes
            file.statistics.add(part)
            batch = batch.slice(part.num_rows)
            # What the values take in memory stands for the size of the file, which is not known before it is closed.
            if file.rows >= limits.rows or file.bytes >= limits.bytes:
                self.end()

    def _begin(self) -> _File:
        from lance.file import LanceFileWriter

        name = f"{self._prefix}{self._access.runtime.random.uuid().replace('-', '')[:16]}.lance"
        self.names.append(name)
        path = f"{self._access.lance_uri}/data/{name}"
        with lance_errors(self._access, "write rows"):
            writer = LanceFileWriter(path, self._schema, version=self._version, storage_options=self._access.lance_options())
        self._open = _File(name, writer, RunningStatistics(self._columns))
        return self._open

    def end(self) -> None:
        file, self._open = self._open, None
        if file is None:
            return
        with lance_errors(self._access, "write rows"):
            file.writer.close()
        columns = tuple(range(len(self._ids)))
        data = DataFile(file.name, self._ids, columns, self._major, self._minor, file.writer.size_bytes or 0)
        fragment = DataFragment(id=0, files=(data,), physical_rows=file.rows)
        self.fragments.append(fragment)
        self.statistics.update(file_statistics(fragment, file.statistics))

    def remove(self) -> None:
        self._open = None
        for name in self.names:
            with suppress(StorageError):
                self._access.store.delete(f"data/{name}")


def write_plain(
    access: TableAccess, rows: Rows, fields: Sequence[Field], data_version: str, limits: FileLimits, token: str
) -> tuple[tuple[DataFragment, ...], Mapping[str, FileStatistics]]:
    """Rows as files, synced, and what is known of these; ``is_plain`` says of what columns.

    Args:
        access: the table.
        rows: columns as ``fields``, in that order.
        fields: the table's fields that the rows cover.
        data_version: the table's file format.
        limits: when to begin a new file.
        token: what the names of the files begin with, in hex.
    """
    files = _Files(access, rows.schema, fields, data_version, file_prefix(token))
    batches: Iterable[Any] = rows.to_batches() if isinstance(rows, pa.Table) else rows
    try:
        for batch in batches:
            files.add(batch, limits)
        files.finish(limits)
        # By whoever wrote them: he who commits may be on another machine, where there is nothing to be synced.
        access.store.sync([f"data/{name}" for name in files.names])
    except BaseException:
        files.remove()
        raise
    return tuple(files.fragments), files.statistics


def read_plain(access: TableAccess, name: str, schema: pa.Schema, there: Sequence[str]) -> pa.Table:
    """All rows of a file that ``write_plain`` wrote, under a schema; ``there`` are the columns that the file has."""
    from lance.file import LanceFileReader

    with lance_errors(access, "read rows"):
        columns = [item.name for item in schema if item.name in there] or [*there[:1]]  # one of them, for how many rows there are
        reader = LanceFileReader(f"{access.lance_uri}/data/{name}", access.lance_options(), columns=columns)
        found = reader.read_all().to_table()
    values = [found.column(item.name) if item.name in there else pa.nulls(found.num_rows, item.type) for item in schema]
    return pa.table([value.cast(item.type) for value, item in zip(values, schema, strict=True)], schema=schema)


def file_prefix(token: str) -> str:
    """What the names of a group's files begin with: the form is that of ``data_file_name``."""
    raw = bytes.fromhex(token)
    return f"{int.from_bytes(raw[:3], 'big'):024b}{raw[3:].hex()}"
