"""One table in a Spark session: its verbs do their work in executors and end in one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import Piece, WriteTask
from tiltyard.errors import InvalidInput, OutcomeUnknown, RetryableConflict
from tiltyard.options import OnDuplicate
from tiltyard.spark.jobs import written
from tiltyard.spark.placement import Work, small_rows, under, wanted_schema
from tiltyard.spark.spark_reader import SparkReader
from tiltyard.spark.spark_types import arrow_schema, spark_type
from tiltyard.spark.write.merging import SparkMerge, SparkMergePlan, merge_plan
from tiltyard.spark.write.replaced_reads import frame_replacing
from tiltyard.spark.write.row_layout import layout_of, sorted_frame, sorted_rows
from tiltyard.spark.write.row_verbs import delete_rows, update_rows
from tiltyard.spark.write.schema_fit import table_columns
from tiltyard.spark.write.table_verbs import add_columns, compact, create_index, optimize
from tiltyard.spark.write.upserting import merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class SparkTable(SparkReader):
    """A table in a Spark session with its verbs.

    They start from its latest version; inside a transaction, from what the transaction sees.

    Data is read, matched and written by executors; what is small is done by the driver, without Spark. Either way a verb is one commit,
    by the rules of the verb of the same name of ``Table``, and is re-executed after a retryable conflict.

    Examples:
        >>> t = ty.spark.SparkTable.for_path(spark, "s3://bucket/readings")  # doctest: +SKIP
        >>> t.merge(df, on="id").when_matched_update_all().when_not_matched_insert_all().execute()  # doctest: +SKIP
    """

    table: ty.TableWriter

    def __init__(self, session: SparkSession, table: ty.TableWriter, work: Work | None = None) -> None:
        super().__init__(session, table, work)

    @classmethod
    def for_path(
        cls,
        session: SparkSession,
        uri: str | os.PathLike[str],
        *,
        branch: str | None = None,
        storage: ty.Storage | None = None,
        storage_options: Mapping[str, Any] | None = None,
        work: Work | None = None,
    ) -> SparkTable:
        """A table by where it is.

        Args:
            session: a ``SparkSession``.
            uri: a directory, ``s3://``, ``gs://`` or ``az://``.
            branch: a branch of the table.
            storage: how the store is reached, as for ``Table.open``.
            storage_options: shorthand for ``Storage(options=...)``.
            work: from which size on work is done in executors.

        Raises:
            NotFound: there is no table.
        """
        return cls(session, ty.Table.open(uri, branch=branch, storage=storage, storage_options=storage_options), work)

    # ---- rows that come ------------------------------------------------------------------------------------------------------------

    def append(
        self,
        df: DataFrame,
        *,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
        files: ty.FileLimits | None = None,
    ) -> ty.CommitResult:
        """Adds the rows of a data frame.

        Args:
            df: the rows; columns are matched by name.
            on_duplicate: what to do, on a table with a primary key, about duplicate keys, in the rows or in the table.
            message: a sentence for the history.
            commit: properties, retries and deadline.
            files: how each task splits its rows into files.

        Raises:
            InvalidInput: the rows do not fit the table.
            KeyConflict: a duplicate key.
        """
        return self._append(df, WriteTerms(None, on_duplicate, message, commit, files))

    def _append(self, df: DataFrame, how: WriteTerms) -> ty.CommitResult:
        _, on_duplicate, message, commit, files = how
        self.table.refresh()
        layout = layout_of(self.table)
        rows = small_rows(df, self.work, self.table.schema)
        if rows is not None:
            self.work.begin("writing on the driver")
            rows = sorted_rows(rows, layout)
            return self.table.append(rows, on_duplicate=on_duplicate, message=message, commit=commit, files=files)
        left = (commit or ty.CommitOptions()).reexecutions
        df = sorted_frame(df, layout)
        while True:
            task = self.table.distributed.write_task(on_duplicate=on_duplicate, files=files)
            try:
                return self._append_written(df, task, how)
            except RetryableConflict as conflict:
                if isinstance(conflict, ty.KeyConflict) or not left:  # a key that is there stays there
                    raise
                left -= 1
                self.table.refresh()

    def _append_written(self, df: DataFrame, task: WriteTask, how: WriteTerms) -> ty.CommitResult:
        wanted = wanted_schema(arrow_schema(df.schema), task.schema)
        task.check(wanted)
        with self._written(df, task, wanted) as pieces:
            told: dict[str, Any] = {"on_duplicate": how.on_duplicate, "message": how.message, "commit": how.commit}
            return self.table.distributed.append(pieces, leftovers=True, **told)

    def writer(
        self,
        *,
        max_delay: float = 1.0,
        max_rows: int = 1024 * 1024,
        max_bytes: int = 64 * 1024 * 1024,
        buffer_bytes: int | None = None,
        on_duplicate: OnDuplicate = "error",
        commit: ty.CommitOptions | None = None,
    ) -> ty.BatchWriter:
        """A writer that commits small appends of the driver's threads together.

        Arguments and use are those of ``Table.writer``. It takes rows that the driver has: Arrow, a pandas frame, dicts, no Spark data
        frames.

        Raises:
            InvalidInput: the table is in a transaction, which commits at its end, and nothing before.
        """
        table = self.table.refresh()
        if not isinstance(table, ty.Table | ty.LakeTable):
            raise InvalidInput("A table in a transaction has no writer.", argument="table", advice="Open it outside the transaction.")
        return table.writer(
            max_delay=max_delay,
            max_rows=max_rows,
            max_bytes=max_bytes,
            buffer_bytes=buffer_bytes,
            on_duplicate=on_duplicate,
            commit=commit,
        )

    def overwrite(
        self,
        df: DataFrame,
        *,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
        files: ty.FileLimits | None = None,
    ) -> ty.CommitResult:
        """Replaces all rows, and the columns by those of the data frame. Older versions stay readable.

        Args:
            df: the rows; it may read the very table, as it is now.
            primary_key: another key than before; ``[]`` for none.
            on_duplicate: what to do, with a primary key, about duplicate keys.
            message: a sentence for the history.
            commit: properties, retries and deadline.
            files: how each task splits its rows into files.

        Raises:
            ExpectedVersionMismatch: the data frame reads this table, and others committed to it since: read it again. Not for a version
                that was asked for, nor where Spark does not know what is read, as after a checkpoint.
            ConflictError: it reads this table, or may do so, and it is not known which version: in a Connect session, but for ``to_df``.
        """
        self.table.refresh()
        how = WriteTerms(primary_key, on_duplicate, message, commit, files)
        return self._overwrite(df, arrow_schema(df.schema), how)

    def overwrite_as(
        self,
        df: DataFrame,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        files: ty.FileLimits | None = None,
    ) -> ty.CommitResult:
        """``overwrite``, under a schema that says how the data frame's columns are stored.

        Other arguments are those of ``overwrite``.
        """
        self.table.refresh()
        return self._overwrite(df, schema, WriteTerms(primary_key, on_duplicate, None, None, files), as_is=True)

    def replace_rows(
        self,
        df: DataFrame,
        *,
        on_duplicate: OnDuplicate = "error",
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
        files: ty.FileLimits | None = None,
    ) -> ty.CommitResult:
        """Replaces all rows, keeps the columns, as ``INSERT OVERWRITE`` does; missing columns become null.

        Arguments are those of ``overwrite``.

        Raises:
            InvalidInput: a column is not in the table, is of a type that its own does not hold, or is missing and may not be null.
        """
        return self._replace_rows(df, WriteTerms(None, on_duplicate, message, commit, files))

    def _replace_rows(self, df: DataFrame, how: WriteTerms) -> ty.CommitResult:
        from pyspark.sql import functions as f

        wanted = self.table.refresh().schema
        _, names = table_columns(df.schema, wanted)
        if lacking := [field.name for field in wanted if field.name not in names and not field.nullable]:
            raise InvalidInput(f"The rows have no column {lacking[0]!r}, which may not be null.", argument="df")
        columns = [
            (df[f"`{names[field.name].replace('`', '``')}`"] if field.name in names else f.lit(None)).cast(spark_type(field.type))
            for field in wanted
        ]
        whole = df.select([column.alias(name) for column, name in zip(columns, wanted.names, strict=True)])
        return self._overwrite(whole, wanted, how, as_is=True)

    def _overwrite(self, df: DataFrame, wanted: pa.Schema, how: WriteTerms, *, as_is: bool = False) -> ty.CommitResult:
        """Writes rows that replace all others, under the schema of their own; with ``as_is`` under exactly the one that is wanted."""
        key, on_duplicate, message, commit, files = how
        df, expected = frame_replacing(df, self.table, told=commit is not None and commit.expected_version is not None)
        if expected is not None and (commit is None or commit.expected_version is None):
            commit = replace(commit or ty.CommitOptions(), expected_version=expected)
        told: dict[str, Any] = {"on_duplicate": on_duplicate, "message": message, "commit": commit}
        rows = small_rows(df, self.work, wanted)
        if rows is not None:
            rows = sorted_rows(under(rows, wanted) if as_is else rows, layout_of(self.table))
            self.work.begin("writing on the driver")
            return self.table.overwrite(rows, primary_key=key, files=files, **told)
        task = self.table.distributed.write_task(overwrite=True, schema=wanted, primary_key=key, on_duplicate=on_duplicate, files=files)
        with self._written(sorted_frame(df, layout_of(self.table)), task, wanted) as pieces:
            return self.table.distributed.overwrite(task, pieces, leftovers=True, **told)

    @contextmanager
    def _written(self, df: DataFrame, task: WriteTask, wanted: pa.Schema) -> Iterator[list[Piece]]:
        """What executors wrote, to be committed. All files of it go if that fails, unless the outcome is unknown."""
        self.work.begin("writing rows")
        try:
            pieces = written(df, task, wanted)
            self.work.begin("committing")
            yield pieces
        except OutcomeUnknown:
            raise
        except BaseException:
            task.discard((), all_of_token=True)
            raise

    # ---- rows that are there -------------------------------------------------------------------------------------------------------

    def delete(self, where: str | Column, *, message: str | None = None, commit: ty.CommitOptions | None = None) -> ty.CommitResult:
        """Deletes the rows that a condition of Spark holds for.

        Args:
            where: SQL as text, or a ``Column``; ``"true"`` for all rows.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        return self._delete(where, message, commit)

    def _delete(self, where: str | Column, message: str | None, commit: ty.CommitOptions | None) -> ty.CommitResult:
        return delete_rows(self.session, self.table.refresh(), where, {"message": message, "commit": commit}, self.work)

    def update(
        self,
        values: Mapping[str, str | Column],
        where: str | Column | None = None,
        *,
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
    ) -> ty.CommitResult:
        """Gives columns new values in the rows that a condition holds for.

        Args:
            values: expressions of Spark by column, over the row as it was.
            where: SQL as text, or a ``Column``; all rows without one.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        return self._update(values, where, message, commit)

    def _update(
        self, values: Mapping[str, str | Column], where: str | Column | None, message: str | None, commit: ty.CommitOptions | None
    ) -> ty.CommitResult:
        return update_rows(self.session, self.table.refresh(), values, where, {"message": message, "commit": commit}, self.work)

    def merge(self, df: DataFrame, on: str | Sequence[str] | None = None, *, allow_duplicates: bool = False) -> SparkMerge:
        """Merges rows by key: matched rows are updated, others inserted, as the clauses say.

        Nothing happens before ``execute``::

            t.merge(df, on="id").when_matched_update_all(where="source.at > target.at").when_not_matched_insert_all().execute()

        Args:
            df: the source; one row of each key.
            on: the columns that rows are matched by; the primary key if not given.
            allow_duplicates: on a table with a primary key, whether a merge on other columns may leave two rows of one key.
        """
        return SparkMerge(df, self._merge, merge_plan(on, allow_duplicates=allow_duplicates))

    def _merge(self, df: DataFrame, plan: SparkMergePlan, how: Mapping[str, Any]) -> ty.CommitResult:
        return merge(self.session, self.table.refresh(), df, plan, how, self.work)

    # ---- columns and shape ---------------------------------------------------------------------------------------------------------

    def add_columns(
        self,
        columns: Mapping[str, str | Column] | Callable[[DataFrame], DataFrame],
        *,
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
    ) -> ty.CommitResult:
        """Adds columns to all rows. Only they are written; what others append meanwhile has nulls in them.

        Args:
            columns: expressions of Spark by name, over the row; or a function that is given the rows, with their address in
                ``_rowaddr``, and returns that and the new columns. It may join and aggregate; rows it leaves out get nulls.
            message: a sentence for the history.
            commit: properties, retries and deadline.

        Raises:
            InvalidInput: a column exists already, or a row has several values.
        """
        return add_columns(self.session, self.table.refresh(), columns, {"message": message, "commit": commit}, self.work)

    def compact(
        self,
        *,
        target_rows: int = 1024 * 1024,
        max_bytes: int | None = None,
        deletions: float | None = 0.1,
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
    ) -> ty.CommitResult:
        """Rewrites small fragments, and those with many deletions, into fewer ones, while others write.

        Args:
            target_rows: rows that a fragment should have; smaller neighbours are joined.
            max_bytes: bytes after which a new data file is begun.
            deletions: the share of deleted rows from which a fragment is rewritten for that alone; None to leave them.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        how = {"target_rows": target_rows, "max_bytes": max_bytes, "deletions": deletions, "message": message, "commit": commit}
        return self._compact(how)

    def _compact(self, how: Mapping[str, Any]) -> ty.CommitResult:
        return compact(self.session, self.table.refresh(), how, self.work)

    def optimize(
        self,
        where: str | None = None,
        *,
        cluster_by: Sequence[str] = (),
        target_rows: int = 1024 * 1024,
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
    ) -> ty.CommitResult:
        """Sorts the rows of fragments by columns, or compacts these, in executors.

        Arguments are those of ``t.maintenance.optimize``; the condition is one of the table, not of Spark.
        """
        how = {"where": where, "cluster_by": cluster_by, "target_rows": target_rows, "message": message, "commit": commit}
        return self._optimize(how)

    def _optimize(self, how: Mapping[str, Any]) -> ty.CommitResult:
        return optimize(self.session, self.table.refresh(), how, self.work)

    def create_index(
        self,
        column: str,
        index_type: str | ty.IndexSpec,
        name: str | None = None,
        *,
        replace: bool = False,
        message: str | None = None,
        commit: ty.CommitOptions | None = None,
    ) -> ty.CommitResult:
        """Builds an index, in segments of some fragments each, while others write.

        Vector indices are built by the driver: their parts learn from all rows.

        Args:
            column: the column to index.
            index_type: such as ``"BTREE"``, ``"BITMAP"``, ``"INVERTED"`` or ``"IVF_PQ"``; a ``ty.IndexSpec`` adds options.
            name: what to call it; by default the column with ``_idx``.
            replace: whether it may replace an index of that name.
            message: a sentence for the history.
            commit: properties, retries and deadline.
        """
        spec = index_type if isinstance(index_type, ty.IndexSpec) else ty.IndexSpec(index_type)
        how = {"name": name, "replace": replace, "message": message, "commit": commit}
        return self._create_index(column, spec, how)

    def _create_index(self, column: str, spec: ty.IndexSpec, how: Mapping[str, Any]) -> ty.CommitResult:
        return create_index(self.session, self.table.refresh(), column, spec, how, self.work)


class WriteTerms(NamedTuple):
    """What a verb that writes rows was told."""

    primary_key: Sequence[str] | None
    on_duplicate: OnDuplicate
    message: str | None
    commit: ty.CommitOptions | None
    files: ty.FileLimits | None
