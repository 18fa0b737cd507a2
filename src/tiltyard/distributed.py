"""Work on one table done in many processes: they write pieces, one process commits them.

    task = t.distributed.write_task()       # travels to the writers, by pickle
    piece = task.write(batches)             # in any process; travels back
    t.distributed.append([piece, ...])      # one commit, by the rules of append

New tables: ``new_table`` and ``create_table`` here, and for lakes ``Lake.new_table_task`` and ``Lake.create_table_from_pieces``.

Verbs that depend on the rows of the table, such as a merge, are executed on a pinned version: ``t.distributed.change_rows`` calls a
function with that version, which has others read (``ScanTask``), look up keys (``MatchTask``) and write (``WriteTask``), and commits what
it returns.
"""

from __future__ import annotations

import os as _os
from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from typing import Any as _Any
from uuid import UUID as _UUID

import pyarrow as _pa

from tiltyard.catalog.commit_store import decided_outside as _decided_outside
from tiltyard.format.names import Scheme as _Scheme
from tiltyard.lakes.sharded.shard_hash import shard_numbers as _shard_numbers
from tiltyard.options import CommitOptions as _CommitOptions
from tiltyard.options import Durability as _Durability
from tiltyard.options import Storage as _Storage
from tiltyard.options import TableOptions as _TableOptions
from tiltyard.options import storage_of as _storage_of
from tiltyard.table import Table as _Table
from tiltyard.table import TableReader as _TableReader
from tiltyard.transaction.operations import CompactedSsTable as _CompactedSsTable
from tiltyard.transaction.verify import last_number as _last_number
from tiltyard.transaction.verify import mark as _mark
from tiltyard.verbs.distributed.cluster_tasks import ClusterTask
from tiltyard.verbs.distributed.column_tasks import ColumnTask
from tiltyard.verbs.distributed.commit_files import create_from_pieces as _create_from_pieces
from tiltyard.verbs.distributed.compact_tasks import CompactTask
from tiltyard.verbs.distributed.key_tasks import FoundKeys, MatchTask
from tiltyard.verbs.distributed.row_tasks import Pinned, RowChange, RowPlan, join_rows, pack_rows
from tiltyard.verbs.distributed.scan_tasks import ScanTask, reading_errors
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask
from tiltyard.verbs.distributed.write_tasks import new_task as _new_task
from tiltyard.verbs.engine.access import open_access as _open_access
from tiltyard.verbs.engine.reexecution import commit_terms as _commit_terms
from tiltyard.verbs.engine.sql_expressions import condition as _condition
from tiltyard.verbs.indices.build_index import IndexTask
from tiltyard.verbs.indices.mem_wal import compacted as _compacted
from tiltyard.verbs.statistics.version_statistics import VersionStatistics, version_statistics

__all__ = [
    "ClusterTask",
    "ColumnTask",
    "CompactTask",
    "FoundKeys",
    "IndexTask",
    "MatchTask",
    "Piece",
    "Pinned",
    "RowChange",
    "RowPlan",
    "ScanTask",
    "VersionStatistics",
    "WriteTask",
    "create_table",
    "join_rows",
    "last_done",
    "merged_generations",
    "new_table",
    "once",
    "pack_rows",
    "reading_errors",
    "shard_numbers",
    "version_statistics",
    "whole_condition",
]


def whole_condition(text: str, schema: _pa.Schema, argument: str = "filter") -> str:
    """A SQL condition that other processes may pass to pylance: one expression, checked and bracketed.

    Args:
        text: as the caller wrote it.
        schema: of the table.
        argument: what the caller calls it.

    Raises:
        InvalidInput: it is not one expression, names a column that does not exist, or is not true or false.
    """
    return _condition(text, schema, argument)


def merged_generations(generations: _Mapping[str | _UUID, int]) -> tuple[_CompactedSsTable, ...]:
    """Generations by shard of a write-ahead log, as ``RowPlan.generations`` has them.

    Raises:
        InvalidInput: a shard is not a uuid, or a generation is not a number of at least 0.
    """
    return _compacted(generations)


def new_table(
    uri: str | _os.PathLike[str],
    schema: _pa.Schema,
    *,
    primary_key: _Sequence[str] | None = None,
    stable_row_ids: bool = False,
    options: _TableOptions | None = None,
    storage: _Storage | None = None,
    storage_options: _Mapping[str, _Any] | None = None,
    durability: _Durability | None = None,
) -> WriteTask:
    """A task for a new table, which ``create_table`` makes; arguments are those of ``Table.create``."""
    access = _open_access(uri, _storage_of(storage, storage_options, durability))
    return _new_task(access, schema, primary_key, stable_row_ids, options)


def create_table(
    task: WriteTask,
    pieces: _Iterable[Piece | None],
    *,
    storage: _Storage | None = None,
    leftovers: bool = False,
    message: str | None = None,
    commit: _CommitOptions | None = None,
) -> _Table:
    """Makes a new table of pieces that other processes wrote. If it fails their files stay.

    Args:
        task: made by ``new_table``, which says where, and what the table is like.
        pieces: what ``task.write`` returned; none for an empty table.
        storage: how the store is reached, and who decides about versions; by default as the task reaches it.
        leftovers: as for ``t.distributed.append``.
        message: a sentence for the history.
        commit: properties for it; nothing else of it applies.

    Raises:
        AlreadyExists: there is a table.
        KeyConflict: a duplicate key, unless the task's options allow them; nothing was made.
    """
    there = _Storage(task.storage_options, task.durability) if storage is None else storage
    access = _decided_outside(_open_access(task.uri, there), there.commit_store)
    described, _ = _commit_terms(commit, message)
    _, file = _create_from_pieces(access, task, pieces, described, leftovers=leftovers)
    return _Table(access, file, task.new.scheme if task.new is not None else _Scheme.V2)


def once(source: str, number: int) -> dict[str, str]:
    """An idempotency key, as properties of a verb: the work with this number is committed once.

    ``t.append(rows, commit=ty.CommitOptions(ty.distributed.once("ingest", 7)))`` commits; when it is tried again, by any process and at
    any time, it raises ``AlreadyCommitted``; so does a lower number. The number is kept in the config of the version that has the rows: it
    stays with them, and no cleanup removes it.

    Args:
        source: the name of the query or job that numbers its work.
        number: at least 0, rising.
    """
    return _mark(source, number)


def shard_numbers(rows: _pa.Table | _pa.RecordBatch, columns: _Sequence[str], shards: int) -> _Any:
    """The shard of each row of a sharded table, as an array of numbers.

    The guide on sharded tables has the hash.

    Args:
        rows: at least the shard columns, with the types that the table has.
        columns: the table's ``shard_by``.
        shards: how many shards it has.
    """
    return _shard_numbers(rows, columns, shards)


def last_done(table: _TableReader, source: str) -> int | None:
    """The highest number of a source's that the version a handle is at has; None for none. See ``once``."""
    return _last_number(table.settings.config, source)
