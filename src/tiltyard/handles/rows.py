"""Verbs that change rows, and the merge that is described clause by clause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from tiltyard.errors import InvalidInput
from tiltyard.handles.base import Handle
from tiltyard.options import CommitOptions, FileLimits, OnDuplicate
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.delete import delete_rows
from tiltyard.verbs.engine.arguments import sql_where
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy, commit_terms
from tiltyard.verbs.engine.write_bases import without_base
from tiltyard.verbs.indices.mem_wal import compacted
from tiltyard.verbs.merge import merge_rows
from tiltyard.verbs.merge_plan import Clause, Group, MergePlan, merge_on
from tiltyard.verbs.restore import restore_version, version_of
from tiltyard.verbs.update import Assignment, Mode, update_rows
from tiltyard.verbs.write import USUAL, Writing, append_rows, overwrite_rows


class RowVerbs(Handle):
    """What a handle does to rows."""

    def append(
        self,
        data: Any,
        *,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Adds rows. Columns are matched by name; nullable ones may be missing.

        Args:
            data: rows: Arrow, a data frame, dicts, a stream.
            on_duplicate: what to do, on a table with a primary key, about duplicate keys, in the rows or in the table; ``"allow"``
                looks for none.
            message: a sentence for the history.
            commit: properties, retries and deadline.
            files: how the rows are split into files, and to which base these are written.

        Raises:
            InvalidInput: the rows do not fit the table; nothing was written.
            KeyConflict: a duplicate key, also one that another writer inserted just now; nothing was written, or what was written is
                removed.
            RetryableConflict: the columns changed meanwhile, again and again.
            IncompatibleConflict: the table was replaced or restored meanwhile.
            ContentionError, HistoryUnavailable, OutcomeUnknown: see ``tiltyard.errors``.
        """
        how = USUAL if files is None and on_duplicate == "error" else Writing(files or FileLimits(), on_duplicate)
        return self._append(data, how, message, commit)

    def _append(self, data: Any, how: Writing, message: str | None, commit: CommitOptions | None) -> CommitResult:
        described, policy = commit_terms(commit, message)
        hand_out = self._to_append if how.limits.base is None else self._blind
        return self._commit(hand_out, append_rows, data, self._appends, described, how, policy)

    def overwrite(
        self,
        data: Any,
        *,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Replaces all rows, and the schema by that of the new rows. Older versions stay readable.

        Args:
            data: rows, or a schema for an empty table.
            primary_key: another key than before; ``[]`` for none.
            on_duplicate: what to do, with a primary key, about duplicate keys in the rows; ``"allow"`` looks for none.
            message: a sentence for the history.
            commit: properties, retries and deadline; ``expected_version`` for rows that were made from a version of the table. With
                ``reexecutions=0`` a table that another writer replaced meanwhile is a conflict, and is not replaced again.
            files: how the rows are split into files, and to which base these are written.

        Raises:
            KeyConflict: a duplicate key; nothing was changed.
            ExpectedVersionMismatch: others committed after the expected version.
            RetryableConflict: a foreign writer replaced the table meanwhile, again and again.
        """
        return self._overwrite(data, primary_key, Writing(files or FileLimits(), on_duplicate), message, commit)

    def _overwrite(
        self, data: Any, primary_key: Sequence[str] | None, how: Writing, message: str | None, commit: CommitOptions | None
    ) -> CommitResult:
        described, policy = commit_terms(commit, message, replaces=True)
        expected = None if commit is None else commit.expected_version
        hand_out = self._blind if expected is None else self._data
        return self._commit(hand_out, overwrite_rows, data, primary_key, described, how, policy, expected)

    def delete(self, where: str, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Deletes the rows that a condition holds for.

        Args:
            where: a SQL condition; ``"true"`` for all rows.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows["deleted"]`` says how many. If there were none, nothing is committed and ``version`` stays.

        Raises:
            RetryableConflict: others changed the same rows, again and again.
            IncompatibleConflict: the table was replaced or restored meanwhile.
        """
        return self._delete(sql_where(where), message, commit)

    def _delete(self, condition: str, message: str | None, commit: CommitOptions | None) -> CommitResult:
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, delete_rows, condition, described, policy)

    def update(
        self,
        values: Mapping[str, str],
        where: str | None = None,
        mode: Mode = "auto",
        *,
        message: str | None = None,
        commit: CommitOptions | None = None,
        files: FileLimits | None = None,
    ) -> CommitResult:
        """Gives columns new values in the rows that a condition holds for.

        Args:
            values: SQL expressions by column, over the row as it was: ``{"price": "price * 2", "note": "'new'"}``.
            where: a SQL condition; all rows without one.
            mode: ``"rows"`` moves changed rows to new fragments, ``"columns"`` rewrites the columns where they are; ``"auto"`` takes
                the latter for few columns in many rows.
            message: a sentence for the history.
            commit: properties, retries and deadline.
            files: how moved rows are split into files; these are written to the table's own directory.

        Returns:
            What became of it; ``rows["updated"]`` says how many. If there were none, nothing is committed and ``version`` stays.

        Raises:
            InvalidInput: a column does not exist, is part of the primary key, or a value does not fit it.
            RetryableConflict: others changed the same rows, again and again.
        """
        assignment = Assignment(values, "true" if where is None else sql_where(where), mode)
        return self._update(assignment, without_base(files), message, commit)

    def _update(self, assignment: Assignment, limits: FileLimits, message: str | None, commit: CommitOptions | None) -> CommitResult:
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, update_rows, assignment, described, limits, policy)

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | None = None,
        *,
        allow_duplicates: bool = False,
        files: FileLimits | None = None,
    ) -> MergeBuilder:
        """Merges rows by key: matched rows are updated, others inserted, as the clauses say.

        Nothing happens before ``execute``::

            t.merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()

        Args:
            source: rows: Arrow, a data frame, dicts, a stream; one row of each key.
            on: the columns that rows are matched by; the primary key if not given.
            allow_duplicates: on a table with a primary key, whether a merge on other columns may leave duplicate keys.
            files: how new and changed rows are split into files, and to which base these are written.
        """
        return MergeBuilder(partial(self._merge, source), merge_on(on, allow_duplicates, files))

    def _merge(self, source: Any, plan: MergePlan, described: Mapping[str, str], policy: ReexecutionPolicy) -> CommitResult:
        return self._commit(self._data, merge_rows, source, plan, self._appends, described, policy)

    def restore(self, version: int | str, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Makes a new version with the content of an older one. What came between stays in the history.

        Args:
            version: its number, or a tag.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            NotFound: there is no such version or tag.
        """
        number = version_of(self._access, self._main, version)
        described, policy = commit_terms(commit, message)
        return self._commit(self._data, restore_version, number, described, policy)


Run = Callable[[MergePlan, Mapping[str, str], ReexecutionPolicy], CommitResult]


@dataclass(frozen=True, slots=True)
class MergeBuilder:
    """A merge that is being described. Each clause returns a new one; ``execute`` runs it.

    Of several clauses for the same rows, the first whose condition holds decides. Conditions and values are SQL over both rows:
    ``"source.changed > target.changed"``. The source has columns of the table only.

    Examples:
        >>> import tempfile, tiltyard as ty
        >>> stock = ty.Table.create(tempfile.mkdtemp() + "/stock", {"item": ["a", "b"], "count": [5, 7]}, primary_key=["item"])
        >>> merge = stock.merge({"item": ["a", "c"], "count": [1, 2]}).when_matched_update({"count": "target.count + source.count"})
        >>> merge = merge.when_not_matched_insert({"count": "source.count * 10"})
        >>> _ = merge.when_not_matched_by_source_update({"count": "0"}).execute()
        >>> sorted(stock.to_arrow().to_pylist(), key=lambda row: row["item"])
        [{'item': 'a', 'count': 6}, {'item': 'b', 'count': 0}, {'item': 'c', 'count': 20}]
    """

    _run: Run
    _plan: MergePlan

    def when_matched_update_all(self, where: str | None = None) -> MergeBuilder:
        """Rows in both take all columns that the source has."""
        return self._with("matched", Clause("update", _given(where)))

    def when_matched_update(self, values: Mapping[str, str] | Sequence[str], where: str | None = None) -> MergeBuilder:
        """Rows in both take new values, by column; a list of names takes the source's values."""
        return self._with("matched", Clause("update", _given(where), *_assigned(values)))

    def when_matched_delete(self, where: str | None = None) -> MergeBuilder:
        """Rows in both are deleted."""
        return self._with("matched", Clause("delete", _given(where)))

    def when_matched_fail(self) -> MergeBuilder:
        """If a row is in both, nothing is done at all and a ``KeyConflict`` is raised."""
        return self._with("matched", Clause("fail"))

    def when_not_matched_insert_all(self, where: str | None = None) -> MergeBuilder:
        """Inserts rows that only the source has.

        Args:
            where: a condition over ``source.`` columns.
        """
        return self._with("inserts", Clause("insert", _given(where)))

    def when_not_matched_insert(self, values: Mapping[str, str] | Sequence[str], where: str | None = None) -> MergeBuilder:
        """Inserts rows that only the source has, with these values; other columns are null.

        Args:
            values: SQL over ``source.`` columns, by column; a list of names takes the source's values. The columns that rows are matched
                by are always the source's.
            where: a condition over ``source.`` columns.
        """
        return self._with("inserts", Clause("insert", _given(where), *_assigned(values)))

    def when_not_matched_by_source_delete(self, where: str | None = None) -> MergeBuilder:
        """Rows that only the table has are deleted. ``where`` is over the table's columns, by their names."""
        return self._with("orphans", Clause("delete", _given(where)))

    def when_not_matched_by_source_update(self, values: Mapping[str, str], where: str | None = None) -> MergeBuilder:
        """Rows that only the table has take new values, by column.

        Values and ``where`` are over the table's columns, by their names.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput(
                "values must map columns to expressions: these rows have no source row to take values from.", argument="values"
            )
        return self._with("orphans", Clause("update", _given(where), *_assigned(values)))

    def mark_generations_merged(self, generations: Mapping[str | UUID, int]) -> MergeBuilder:
        """Records in the same commit up to which generation shards of a write-ahead log are merged.

        So of two writers that merge the same generation only one succeeds, and after a crash it is known what is still to be merged. Where
        the source changes no row, the progress is committed by itself.

        Args:
            generations: a generation for each shard, by its uuid; higher than the one recorded, or ``execute`` raises an
                ``IncompatibleConflict``. ``t.indices.mem_wal.generations`` says what is recorded.
        """
        return replace(self, _plan=replace(self._plan, generations=(*self._plan.generations, *compacted(generations))))

    def execute(self, *, message: str | None = None, commit: CommitOptions | None = None) -> CommitResult:
        """Executes the merge, in one commit.

        Args:
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Returns:
            What became of it; ``rows`` counts ``inserted``, ``updated`` and ``deleted``. If nothing was to be done, nothing is committed.

        Raises:
            InvalidInput: the source does not fit the table, or a clause cannot be understood.
            KeyConflict: the source has two rows of one key; a row matched that must not; others inserted our keys, again and again.
            RetryableConflict: others changed the same rows, again and again.
            IncompatibleConflict: the table was replaced meanwhile, or a generation to be marked is merged already.
        """
        if not self._plan.clauses:
            raise InvalidInput("The merge has no clause.", argument="merge", advice="Add when_matched_... or when_not_matched_... first.")
        return self._run(self._plan, *commit_terms(commit, message))

    def _with(self, group: Group, clause: Clause) -> MergeBuilder:
        return replace(self, _plan=self._plan.with_clause(group, clause))


def _given(condition: str | None) -> str | None:
    return None if condition is None else sql_where(condition)


def _assigned(values: Mapping[str, str] | Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The columns that get a value, and the expressions for them."""
    names = (values,) if isinstance(values, str) else tuple(values)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidInput("Columns are named by text, at least one.", argument="values")
    if not isinstance(values, Mapping):
        return names, {}
    if not all(isinstance(value, str) for value in values.values()):
        raise InvalidInput('A value is a SQL expression as text, such as "source.x + 1".', argument="values")
    return names, dict(values)
