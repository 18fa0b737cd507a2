"""Verbs that change columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.columns.add_columns import Adding, add_columns
from tiltyard.verbs.columns.alter_columns import alter_columns, alterations, drop_columns, dropped_paths
from tiltyard.verbs.columns.column_files import ColumnFiles, Progress
from tiltyard.verbs.columns.column_values import new_values
from tiltyard.verbs.columns.replace_data import new_data, replace_data
from tiltyard.verbs.engine.arguments import retry_policy
from tiltyard.verbs.engine.checkpoint import Checkpoint
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy


class ColumnVerbs(Handle):
    """What a handle does to columns."""

    def add_columns(
        self,
        columns: Any,
        *,
        on: str | None = None,
        read_columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Adds columns to all rows.

        Args:
            columns: what they are:
                ``{"y": "x + 1", "z": 0}``, SQL expressions, numbers or Arrow scalars;
                an Arrow field or schema, for columns, or members of structs, that are null throughout;
                rows with ``on``, a column by which their values are found;
                a function from ``RecordBatch`` to ``RecordBatch``.
            on: the column that the rows and the table share; where the rows have no such value, the new columns are null.
            read_columns: what the function is given; all columns by default.
            schema: what the function makes; by default that of the first batch it returns.
            batch_size: how many rows it is given at once.
            progress: called with the number of finished fragments, and of all.
            checkpoint: a file, not there yet, that remembers finished fragments: the same call goes on where a crash ended it.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the columns are fitted to the newest version after a conflict; only fragments that changed are redone.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: a column is there already, or its values cannot be made.
            RetryableConflict: others changed rows or columns, again and again.
            IncompatibleConflict: the table was replaced or set back, or columns were dropped or renamed meanwhile.
        """
        values = new_values(columns, on=on, read_columns=read_columns, schema=schema, batch_size=batch_size)
        place, _ = self._data()
        found = None if checkpoint is None else Checkpoint(checkpoint, f"{place.uri} {values.work}")
        adding, files = Adding(values, progress), ColumnFiles(place, found)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: add_columns(*self._data(), self._scheme, adding, files, described, policy))

    def drop_columns(
        self,
        columns: Sequence[str],
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Drops columns. Older versions keep them, and the files their values.

        Args:
            columns: their paths; ``"s.x"`` is a member of a struct.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: a column is not there or part of the primary key, or none would be left.
        """
        paths = dropped_paths(columns)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: drop_columns(*self._data(), self._scheme, paths, described, policy))

    def alter_columns(
        self,
        *changes: Mapping[str, Any],
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Renames or casts columns, or changes whether they take nulls.

        Args:
            changes: mappings with ``path`` and any of ``name``, ``nullable`` and ``data_type`` (an Arrow type).
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: a column is not there, a name is taken, a value does not fit the new type, there are nulls, or the column is
                part of the primary key, which can be renamed only.
        """
        wanted = alterations(changes)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: alter_columns(*self._data(), self._scheme, wanted, described, policy))

    def replace_data(
        self,
        values: Any,
        columns: Sequence[str] | None = None,
        *,
        read_columns: Sequence[str] | None = None,
        fragments: Sequence[int] | None = None,
        progress: Progress | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Gives whole columns of fragments new values, without touching the other columns.

        Args:
            values: tables by fragment id with a row for each row of the fragment, in order; or a function from ``RecordBatch`` to
                ``RecordBatch``.
            columns: which ones; with tables, those they have.
            read_columns: what the function is given; ``columns`` by default.
            fragments: for which ids the function is run; all by default.
            progress: called with the number of finished fragments, and of all.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often a function is run again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Raises:
            InvalidInput: a column or fragment is not there, the column is part of the primary key, or the values do not fit.
            RetryableConflict: others changed these rows or columns.
        """
        new = new_data(values, columns, read_columns, fragments, progress)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: replace_data(*self._data(), self._scheme, new, described, policy))
