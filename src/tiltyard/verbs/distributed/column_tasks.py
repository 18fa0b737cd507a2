"""Columns whose values other processes compute: they write a file for each fragment, the commit adds all of them to the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import ROOT
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFile, Field
from tiltyard.options import Storage
from tiltyard.transaction.operations import Merge
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.add_columns import discarding, new_fields
from tiltyard.verbs.columns.column_files import Batches, ColumnFiles, FilesAt, fitting, refuse_blobs, written_columns
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import ADDRESS

_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """Writes new columns of fragments. It can be pickled.

    Attributes:
        scan: the version.
        schema: the new columns.
        file_schema: the same under names that are free in the table, which is what files call them.
        fragments: ids of those that have no file yet.
    """

    scan: ScanTask
    schema: pa.Schema
    file_schema: pa.Schema
    fragments: tuple[int, ...]

    def write(self, fragment: int, values: pa.Table) -> DataFile:
        """Writes the columns of one fragment.

        Args:
            fragment: its id.
            values: addresses of rows (``_rowaddr``) and their values, in any order; rows that are missing get nulls.

        Raises:
            InvalidInput: a row occurs twice, or a value does not fit.
        """
        access = open_access(self.scan.uri, Storage(self.scan.storage_options))
        return written_columns(access, self.scan.dataset(), fragment, self.file_schema, self._in_order(fragment, values))

    def _in_order(self, fragment: int, values: pa.Table) -> Batches:
        given = values.column(ADDRESS).to_numpy().astype(np.uint64)
        order = np.argsort(given, kind="stable")
        ordered = given[order]
        if (ordered[1:] == ordered[:-1]).any():
            raise InvalidInput(f"The new columns have several values for a row of fragment {fragment}.", argument="columns")
        columns = [values.column(item.name).combine_chunks() for item in self.schema]
        for batch in self.scan.scan([], [fragment], row_address=True, batch_size=_AT_ONCE):
            yield self._batch(batch.column(0).to_numpy().astype(np.uint64), ordered, order, columns)

    def _batch(
        self, rows: npt.NDArray[np.uint64], ordered: npt.NDArray[np.uint64], order: npt.NDArray[np.int64], columns: list[pa.Array]
    ) -> pa.RecordBatch:
        places = np.searchsorted(ordered, rows)
        there = places < len(ordered)
        there[there] = ordered[places[there]] == rows[there]
        taken = pa.array(order[np.where(there, places, 0)] if len(order) else np.zeros(len(rows), np.int64), mask=~there)
        arrays = [fitting(_whole(item.take(taken)), field, "columns") for item, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


ColumnWorker: TypeAlias = Callable[[ColumnTask], Mapping[int, DataFile]]
"""Has the columns of all fragments of a task written, and gives the file of each."""


def add_columns_of_parts(
    access: TableAccess, read: ManifestFile, scheme: Scheme, columns: pa.Schema, worker: ColumnWorker, properties: Mapping[str, str],
    policy: ReexecutionPolicy,
) -> Committed:  # fmt: skip
    """Adds columns. Files of fragments that did not change serve again after a conflict."""
    files = ColumnFiles(access)
    what = f"parts of {columns}"

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        at = files.at(manifest)
        fields = list(new_fields(manifest, columns))
        refuse_blobs(columns)
        schema = pa.schema([field.remove_metadata() for field in arrow_from_fields(fields)])
        pending = tuple(fragment.id for fragment in manifest.fragments if at.found(fragment, fields, what) is None)
        if pending:
            told = worker(ColumnTask(scan_task(access, manifest), schema, at.free_names(schema), pending))
            _keep(at, fields, what, told)
        fragments = []
        for fragment in manifest.fragments:
            file = at.found(fragment, fields, what)
            if file is None:
                raise InvalidInput(f"The worker returned no columns for fragment {fragment.id}.", argument="worker")
            fragments.append(replace(fragment, files=(*fragment.files, file)))
        preserves = all(field.nullable for field in fields if field.parent_id == ROOT)
        operation = Merge(tuple(fragments), (*manifest.fields, *fields), preserves_nullability=preserves)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
        done = access.committer.commit(transaction, run.read, run.scheme, run.policy)
        files.settle(operation.fragments)
        return done

    return discarding(files, lambda: run_verb(access, read, scheme, execute, policy))


def _keep(at: FilesAt, fields: Sequence[Field], what: str, told: Mapping[int, DataFile]) -> None:
    for fragment in at.manifest.fragments:
        if fragment.id in told:
            at.keep(fragment, list(fields), what, told[fragment.id])
