"""Small appends: rows that stay in memory until it is known who writes their file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tiltyard.format.fields import leaf_ids
from tiltyard.format.schema import SchemaMatch
from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.options import FileLimits
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import is_plain, write_small
from tiltyard.verbs.engine.row_input import Rows, conformed

MOST_BYTES: Final = 64 * 1024
"""Rows up to this size are handed to whoever leads; to write larger ones while others wait would hold them up."""
_MOST_ROWS: Final = 8 * 1024
"""and this number: values may take a bit each, or nothing, and one file has the rows of up to 65 writers."""
_NOT_WRITTEN: Final = "not-written.lance"
"""Stands for the name of a file that the rules look at before there is one. No file has it, so no version can be made with it."""
_DICTIONARY: Final = "dict:"
USUAL: Final = FileLimits()


@dataclass(frozen=True, slots=True)
class FilePlan:
    """How rows of some columns are written.

    Attributes:
        fields: those of the table that the columns are.
        data_version: the format of the file.
        file: what it would be called, but for its name and size.
        heading: what two files must have in common to be one: the format, the columns, and which field each of them is.
    """

    fields: tuple[Field, ...]
    data_version: str
    file: DataFile
    heading: bytes


def plan_for(schema: pa.Schema, fields: tuple[Field, ...], data_version: str) -> FilePlan | None:
    """How rows are written by whoever leads; None where each writer has to do that: dictionaries of two writers do not go together."""
    if not is_plain(fields, data_version) or any(field.logical_type.startswith(_DICTIONARY) for field in fields):
        return None
    major, minor = (int(part) for part in data_version.split("."))
    ids = leaf_ids(fields, (major, minor))
    file = DataFile(_NOT_WRITTEN, ids, tuple(range(len(ids))), major, minor, 0)
    columns: bytes = schema.serialize().to_pybytes()
    heading = f"{data_version} {' '.join(map(str, ids))} {len(columns)}\n".encode() + columns
    return FilePlan(fields, data_version, file, heading)


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """The rows of one append, for the commit loop to have written."""

    access: TableAccess
    rows: pa.Table
    plan: FilePlan

    @property
    def planned(self) -> DataFragment:
        """What would be written for these rows alone."""
        return DataFragment(id=0, files=(self.plan.file,), physical_rows=self.rows.num_rows)

    def offered(self) -> bytes:
        """The rows for another writer: what their file is to be like, then an Arrow message."""
        batches = self.rows.to_batches()
        batch = batches[0] if len(batches) == 1 else self.rows.combine_chunks().to_batches()[0]
        message: bytes = batch.serialize().to_pybytes()
        return self.plan.heading + message

    def read(self, offered: bytes) -> pa.RecordBatch | None:
        """Rows that another writer offers, if they go into one file with ours."""
        if not offered.startswith(self.plan.heading):
            return None
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(offered[len(self.plan.heading) :]), self.rows.schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError):
            return None  # its writer will commit it by itself
        return batch if batch.num_rows else None

    def write(self, others: Sequence[pa.RecordBatch]) -> tuple[DataFragment, ...]:
        """Writes a new file with these rows and those of others."""
        rows = pa.Table.from_batches([*self.rows.to_batches(), *others], self.rows.schema).combine_chunks() if others else self.rows
        return write_small(self.access, rows, self.plan.fields, self.plan.data_version)


@dataclass(slots=True)
class SmallAppends:
    """Small appends of one handle, one after the other: what depends on their columns alone is found out once."""

    _plan: tuple[SchemaMatch, FilePlan | None] | None = None

    def pending(self, access: TableAccess, rows: Rows, match: SchemaMatch, data_version: str, limits: FileLimits) -> RowsInMemory | None:
        """The rows of an append, if they may be left to whoever leads: they are few, and no file sizes are asked for.

        Who has met nobody of late is alone, and writes them before it asks for the lead.
        """
        queue = access.committer.queue
        if not getattr(queue, "takes_rows", False) or not getattr(queue, "company", 0) or limits != USUAL:
            return None
        if not isinstance(rows, pa.Table) or not 0 < rows.num_rows <= _MOST_ROWS or rows.nbytes > MOST_BYTES:
            return None
        found = self._plan  # read once: other threads may put theirs in its place at any time
        if found is None or found[0] is not match:
            found = self._plan = (match, plan_for(match.schema, match.fields, data_version))
        if found[1] is None:
            return None
        conforming = conformed(rows, match.schema, match.check_not_null)
        assert isinstance(conforming, pa.Table)
        if conforming is not rows and conforming.nbytes > MOST_BYTES:  # views of one text, written out
            return None
        return RowsInMemory(access, conforming, found[1])
