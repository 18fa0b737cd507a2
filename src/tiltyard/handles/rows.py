"""Verbs that change rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.format.manifest_file import ManifestFile
from tiltyard.handles.base import Handle
from tiltyard.transaction.commit import CommitResult
from tiltyard.verbs.delete import delete_rows
from tiltyard.verbs.engine.arguments import retry_policy, sql_where
from tiltyard.verbs.engine.data_files import FileLimits, properties_with_message
from tiltyard.verbs.engine.reexecution import RerunPolicy
from tiltyard.verbs.merge import merge_rows
from tiltyard.verbs.merge_plan import MergeBuilder, MergePlan, merge_on
from tiltyard.verbs.update import Assignment, Mode, update_rows
from tiltyard.verbs.write import Appending, OnDuplicate, Writing, append_rows, overwrite_rows


class RowVerbs(Handle):
    """What a handle does to rows."""

    def append(
        self,
        data: Any,
        *,
        on_duplicate: OnDuplicate = "error",
        base: str | int | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> CommitResult:
        """Adds rows. Columns are matched by name; nullable ones may be missing.

        Args:
            data: rows: Arrow, a data frame, dicts, a stream.
            on_duplicate: what to do, on a table with a primary key, about keys that are there already or come twice; ``"allow"``
                looks for none.
            base: the base that data files go to, by its name, id or path (see ``add_bases``); the table's directory without one.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            InvalidInput: the rows do not fit the table; nothing was written.
            KeyConflict: a key comes twice, or is there, be it since a moment ago; nothing was written, or nothing is left of it.
            RetryableConflict: the columns changed meanwhile, again and again.
            IncompatibleConflict: the table was replaced or set back meanwhile.
            ContentionError, HistoryUnavailable, OutcomeUnknown: see ``tiltyard.errors``.
        """
        how = Writing(FileLimits(max_rows_per_file, max_bytes_per_file), on_duplicate, base)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        place, read = self._blind()
        return self._commit(lambda: append_rows(place, read, self._scheme, data, self._appender, described, how, policy))

    def overwrite(
        self,
        data: Any,
        *,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        base: str | int | None = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> CommitResult:
        """Replaces all rows, and the schema by that of the new rows. Older versions stay readable.

        Args:
            data: rows, or a schema for an empty table.
            primary_key: another key than before; ``[]`` for none.
            on_duplicate: what to do, with a primary key, about keys that come twice; ``"allow"`` looks for none.
            base: the base that data files go to, by its name, id or path (see ``add_bases``); the table's directory without one.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often the rows of somebody else who replaced the table meanwhile are replaced in turn; 0 to be told instead.
            deadline: seconds after which neither is begun again.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Raises:
            KeyConflict: a key comes twice; nothing was changed.
            RetryableConflict: somebody else replaced the table meanwhile, again and again.
        """
        how = Writing(FileLimits(max_rows_per_file, max_bytes_per_file), on_duplicate, base)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: overwrite_rows(*self._blind(), self._scheme, data, primary_key, described, how, policy))

    def delete(
        self,
        where: str,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
    ) -> CommitResult:
        """Deletes the rows that a condition holds for.

        Args:
            where: a SQL condition; ``"true"`` for all rows.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.

        Returns:
            What became of it; ``rows["deleted"]`` says how many. If there were none, nothing is committed and ``version`` stays.

        Raises:
            RetryableConflict: others changed the same rows, again and again.
            IncompatibleConflict: the table was replaced or set back meanwhile.
        """
        condition = sql_where(where)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: delete_rows(*self._data(), self._scheme, condition, described, policy))

    def update(
        self,
        values: Mapping[str, str],
        where: str | None = None,
        mode: Mode = "auto",
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        max_retries: int = 20,
        retries: int = 10,
        deadline: float | None = None,
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> CommitResult:
        """Gives columns new values in the rows that a condition holds for.

        Args:
            values: SQL expressions by column, over the row as it was: ``{"price": "price * 2", "note": "'new'"}``.
            where: a SQL condition; all rows without one.
            mode: ``"rows"`` moves changed rows to new fragments, ``"columns"`` rewrites the columns where they are; ``"auto"`` takes
                the latter for few columns in many rows.
            message: a sentence for the history.
            properties: more for the history, as text.
            max_retries: how often a lost race for a version is run again.
            retries: how often all of it is done again on the newest version after a conflict that allows it.
            deadline: seconds after which neither is begun again.
            max_rows_per_file: begin a new data file after so many rows.
            max_bytes_per_file: or after so many bytes.

        Returns:
            What became of it; ``rows["updated"]`` says how many. If there were none, nothing is committed and ``version`` stays.

        Raises:
            InvalidInput: a column is not there, is part of the primary key, or a value does not fit it.
            RetryableConflict: others changed the same rows, again and again.
        """
        assignment = Assignment(values, "true" if where is None else sql_where(where), mode)
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        policy = RerunPolicy(retry_policy(max_retries), retries, deadline)
        described = properties_with_message(properties, message)
        return self._commit(lambda: update_rows(*self._data(), self._scheme, assignment, described, limits, policy))

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | None = None,
        *,
        allow_duplicates: bool = False,
        base: str | int | None = None,
    ) -> MergeBuilder:
        """Brings rows in by key: what is there is changed, what is not is added, as the clauses say.

        Nothing happens before ``execute``::

            t.merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()

        Args:
            source: rows: Arrow, a data frame, dicts, a stream; one row of each key.
            on: the columns that rows are matched by; the primary key if not given.
            allow_duplicates: on a table with a primary key, whether a merge on other columns may leave two rows of one key.
            base: the base that new and changed rows go to, by its name, id or path; the table's directory without one.
        """

        def run(plan: MergePlan, described: Mapping[str, str], policy: RerunPolicy) -> CommitResult:
            return self._commit(lambda: merge_rows(*self._data(), self._scheme, source, plan, described, policy))

        return MergeBuilder(run, merge_on(on, allow_duplicates, base))

    def _appender(self, read: ManifestFile) -> Appending:
        found, fields = self._appending, read.manifest.fields
        if found is None or found.fields != fields:
            found = self._appending = Appending(fields)
        return found
