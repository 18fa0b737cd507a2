"""Work on one table done in many processes: they write pieces, one process commits them.

    task = t.write_task()            # travels to the writers, by pickle
    piece = task.write(batches)      # in any process; travels back
    t.append_pieces([piece, ...])    # one commit, by the rules of append

See ``Table.write_task``, ``Table.append_pieces``, ``Table.overwrite_pieces``, ``Table.create_from_pieces``, and for lakes
``Lake.new_table_task`` and ``Lake.create_table_from_pieces``.

Verbs that depend on existing rows, such as a merge, are executed on a pinned version: ``Table.change_rows`` calls a function with that
version, which has others read (``ScanTask``), look up keys (``MatchTask``) and write (``WriteTask``), and commits what it returns.
"""

from __future__ import annotations

import os as _os
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from typing import Any as _Any

import pyarrow as _pa

from tiltyard.storage import Durability as _Durability
from tiltyard.table import Table as _Table
from tiltyard.transaction.verify import last_number as _last_number
from tiltyard.transaction.verify import mark as _mark
from tiltyard.verbs.distributed.column_tasks import ColumnTask
from tiltyard.verbs.distributed.compact_tasks import CompactTask
from tiltyard.verbs.distributed.key_tasks import Found, MatchTask
from tiltyard.verbs.distributed.row_tasks import Pinned, RowChange, RowPlan, join_rows, pack_rows
from tiltyard.verbs.distributed.scan_tasks import ScanTask, reading_errors
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask
from tiltyard.verbs.distributed.write_tasks import create_task as _create_task
from tiltyard.verbs.engine.access import open_place as _open_place
from tiltyard.verbs.engine.data_files import FileLimits as _FileLimits
from tiltyard.verbs.engine.sql_expressions import condition as _condition
from tiltyard.verbs.indices.build_index import IndexTask
from tiltyard.verbs.write import NewTable as _NewTable
from tiltyard.verbs.write import OnDuplicate as _OnDuplicate
from tiltyard.verbs.write import Writing as _Writing

__all__ = [
    "ColumnTask",
    "CompactTask",
    "Found",
    "IndexTask",
    "MatchTask",
    "Piece",
    "Pinned",
    "RowChange",
    "RowPlan",
    "ScanTask",
    "WriteTask",
    "join_rows",
    "last_done",
    "new_table",
    "once",
    "pack_rows",
    "reading_errors",
    "whole_condition",
]


def whole_condition(text: str, schema: _pa.Schema, argument: str = "filter") -> str:
    """A SQL condition as other processes may hand it to pylance: one expression over these columns, in brackets.

    Args:
        text: as the caller wrote it.
        schema: of the table.
        argument: what the caller calls it.

    Raises:
        InvalidInput: it is not one expression, names a column that is not there, or is not true or false.
    """
    return _condition(text, schema, argument)


def new_table(
    uri: str | _os.PathLike[str],
    schema: _pa.Schema,
    *,
    primary_key: _Sequence[str] | None = None,
    stable_row_ids: bool = False,
    data_format: str = "2.2",
    config: _Mapping[str, str] | None = None,
    storage_options: _Mapping[str, _Any] | None = None,
    durability: _Durability = "fsync",
    on_duplicate: _OnDuplicate = "error",
    max_rows_per_file: int = 1024 * 1024,
    max_bytes_per_file: int = 90 * 1024**3,
) -> WriteTask:
    """A task for a table that is not there yet; ``Table.create_from_pieces`` makes it. Arguments are those of ``Table.create``."""
    place = _open_place(uri, storage_options=storage_options, durability=durability)
    new = _NewTable(primary_key, stable_row_ids, data_format=data_format, config=dict(config or {}))
    how = _Writing(_FileLimits(max_rows_per_file, max_bytes_per_file), on_duplicate)
    return _create_task(place, schema, new, how.limits, with_keys=on_duplicate == "error")


def once(source: str, number: int) -> dict[str, str]:
    """Properties for a verb, whichever it is, that have it commit this piece of work once.

    ``t.append(rows, properties=ty.distributed.once("ingest", 7))`` commits, and when it is tried again, by anybody and at any time, raises
    ``AlreadyCommitted``; so does a lower number. The number is kept in the config of the version that has the rows: it goes where they go,
    and no cleanup takes it away.

    Args:
        source: who numbers the work: a query, a job.
        number: from 0 on, rising.
    """
    return _mark(source, number)


def last_done(table: _Table, source: str) -> int | None:
    """The highest number of a source's that the version a handle is at has; None for none. See ``once``."""
    return _last_number(table.config, source)
