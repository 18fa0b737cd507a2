"""Verbs that change columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.options import Backfill, CommitOptions
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.columns.add_columns import Adding, add_columns
from tiltyard.verbs.columns.alter_columns import alter_columns, alterations, drop_columns, dropped_paths
from tiltyard.verbs.columns.column_files import ColumnFiles
from tiltyard.verbs.columns.column_values import new_values
from tiltyard.verbs.engine.checkpoint import Checkpoint
from tiltyard.verbs.engine.reexecution import commit_terms


class ColumnVerbs(Handle):
    """What a handle does to columns."""

    def add_columns(
        self,
        columns: Any,
        *,
        on: str | None = None,
        read_columns: Sequence[str] | None = None,
        backfill: Backfill | None = None,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> CommitResult:
        """Adds columns to all rows.

        Args:
            columns: what they are:
                ``{"y": "x + 1", "z": 0}``, SQL expressions, numbers or Arrow scalars;
                an Arrow field or schema, for columns, or members of structs, that are null throughout;
                rows with ``on``, a column by which their values are found;
                a function from ``RecordBatch`` to ``RecordBatch``.
            on: the column that the rows and the table share; where the rows have no such value, the new columns are null.
            read_columns: what the function is given; shorthand for ``Backfill(read_columns=...)``.
            backfill: how a function is called, progress, and a checkpoint to resume from.
            message: a sentence for the history.
            commit: properties, retries and deadline. After a conflict only fragments that changed are computed again.

        Raises:
            InvalidInput: a column exists already, or its values cannot be computed.
            RetryableConflict: others changed rows or columns, again and again.
            IncompatibleConflict: the table was replaced or restored, or columns were dropped or renamed meanwhile.
        """
        return self._add_columns(columns, on, backfill_of(backfill, read_columns), message, commit)

    def _add_columns(self, columns: Any, on: str | None, how: Backfill, message: str | None, commit: CommitOptions | None) -> CommitResult:
        values = new_values(columns, on=on, read_columns=how.read_columns, schema=how.schema, batch_size=how.batch_size)
        place, _ = self._data()
        found = None if how.checkpoint is None else Checkpoint(how.checkpoint, f"{place.uri} {values.work}")
        adding, files = Adding(values, how.progress), ColumnFiles(place, found)
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, add_columns, adding, files, described, policy)

    def drop_columns(self, columns: Sequence[str], *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Drops columns. Older versions keep them, and the files their values.

        Args:
            columns: their paths; ``"s.x"`` is a member of a struct.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: a column does not exist or is part of the primary key, or none would be left.
        """
        paths = dropped_paths(columns)
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, drop_columns, paths, described, policy)

    def alter_columns(self, *changes: Mapping[str, Any], message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Renames or casts columns, or changes whether they take nulls.

        Args:
            changes: mappings with ``path`` and any of ``name``, ``nullable`` and ``data_type`` (an Arrow type).
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: a column does not exist, a name is taken, a value does not fit the new type, there are nulls, or the column is
                part of the primary key, which can be renamed only.
        """
        wanted = alterations(changes)
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, alter_columns, wanted, described, policy)


def backfill_of(backfill: Backfill | None, read_columns: Sequence[str] | None) -> Backfill:
    """The value, or what the shorthand beside it says.

    Raises:
        InvalidInput: both were given.
    """
    if backfill is None:
        return Backfill(read_columns)
    if not isinstance(backfill, Backfill):
        raise InvalidInput(f"backfill is a ty.Backfill, not a {type(backfill).__name__}.", argument="backfill")
    if read_columns is None:
        return backfill
    if backfill.read_columns is not None:
        raise InvalidInput("read_columns is given twice: by itself and in backfill.", argument="read_columns")
    return Backfill(read_columns, backfill.schema, backfill.batch_size, backfill.progress, backfill.checkpoint)
