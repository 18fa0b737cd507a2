"""A sharded table of a lake in a Spark session: executors assign rows to shards, and one lake transaction commits all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import ExpectedVersionMismatch, InvalidInput, UnsupportedFeature
from tiltyard.spark.placement import Work, small_rows
from tiltyard.spark.spark_table import SparkTable, WriteTerms
from tiltyard.spark.target import Address
from tiltyard.spark.write.merging import SparkMergePlan
from tiltyard.spark.write.replaced_reads import versions_replaced
from tiltyard.spark.write.schema_fit import table_columns
from tiltyard.spark.write.shard_rows import ShardOf, marked, shards_in
from tiltyard.spark.write.upserting import merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Sharded = ty.ShardedTable | ty.ShardedTransactionTable


def spark_table(session: SparkSession, table: ty.TableWriter, work: Work | None, lake: ty.Lake | None = None) -> SparkTable:
    """A table of a lake in a session, be it sharded or not."""
    if isinstance(table, ty.ShardedTable | ty.ShardedTransactionTable):
        return SparkShardedTable(session, table, work, lake)
    return SparkTable(session, table, work)


def is_sharded(table: ty.TableReader) -> bool:
    """Whether a handle, of whichever kind, is of a sharded table."""
    return hasattr(type(table), "shard_by")


def shard_readers(table: Any) -> list[ty.TableReader]:
    """The shards of a sharded table, as its handle shows them."""
    one = table.physical if isinstance(table, ty.ShardedTransactionTable) else table.shard
    return [one(number) for number in range(table.shards)]


def shard_addresses(table: ty.TableReader, storage: Mapping[str, Any] | None = None) -> list[Address]:
    """Where the rows of a table are: one address, or those of all its shards in their order."""
    parts = shard_readers(table) if is_sharded(table) else [table]
    return [Address.of(part, storage, whole_of(table)) for part in parts]


def whole_of(table: Any) -> str:
    """Which sharded table a handle is of, whatever shards that has by now; nothing for any other table."""
    return str(table._identity) if is_sharded(table) else ""


def parts_of(table: SparkTable) -> list[SparkTable]:
    """The tables that have the rows of one: itself, or in a transaction the shards of a sharded one."""
    if isinstance(table.table, ty.ShardedTransactionTable):
        return [SparkTable(table.session, table.table.physical(number), table.work) for number in range(table.table.shards)]
    return [table]


def refuse_shard_columns(shard_by: Collection[str], names: Iterable[str]) -> None:
    """Refuses new values of columns that say which shard a row is in."""
    if mine := sorted({name.lower() for name in names} & {name.lower() for name in shard_by}):
        raise InvalidInput(
            f"{', '.join(mine)} says which shard a row is in and cannot be updated.",
            argument="values",
            advice="Delete the rows, and insert them with other values.",
        )


class SparkShardedTable(SparkTable):
    """A sharded table in a Spark session.

    It is read, and rows are appended, merged, overwritten, deleted and updated, over all shards. Each verb is one lake transaction. What it
    does not have is refused by name.
    """

    table: Sharded

    def __init__(self, session: SparkSession, table: Sharded, work: Work | None = None, lake: ty.Lake | None = None) -> None:
        super().__init__(session, table, work)
        self._lake = lake

    def to_df(
        self,
        version: int | str | None = None,
        *,
        timestamp: datetime | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of all shards as a data frame, pinned at one snapshot: the latest one now, or another.

        Args:
            version: a snapshot of the lake, or a lake-wide tag.
            timestamp: the state at that time.
            options: further options of the data source, such as ``columns``.
        """
        from pyspark.sql import DataFrame

        from tiltyard.spark.read.reading_tables import data_frame

        whole = whole_of(self.table)
        frames = [data_frame(self.session, shard, options=options, whole=whole) for shard in self._shards(version, timestamp)]
        return reduce(DataFrame.unionByName, frames)

    def _shards(self, version: int | str | None, timestamp: datetime | str | None) -> Iterable[ty.TableReader]:
        table = self.table.refresh()
        at = version if version is not None else timestamp
        if isinstance(table, ty.ShardedTransactionTable):
            if at is not None:
                raise UnsupportedFeature("Inside a transaction a table has one version.", feature="versions in a transaction")
            return shard_readers(table)
        shown: Any = table
        if at is not None:
            if self._lake is None:
                raise InvalidInput("Open the table with lake.spark(session).table(name) to read an earlier state.", argument="version")
            shown = self._lake.snapshot(at).table(table.name)
        return shard_readers(shown)

    # ---- rows that come ------------------------------------------------------------------------------------------------------------

    # The signatures are those of ``SparkTable``: what a verb is given comes here as values.

    def _append(self, df: DataFrame, how: WriteTerms) -> ty.CommitResult:
        """Adds the rows of a data frame, each to its shard."""
        told: dict[str, Any] = {"on_duplicate": how.on_duplicate, "message": how.message, "files": how.files}
        table = self.table.refresh()
        rows = small_rows(df, self.work, table.schema)
        if rows is not None:
            return table.append(rows, commit=how.commit, **told)
        parts = self._assigned(df)

        def work(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
            return [shard.append(part, **told) for _, shard, part in parts(inside)]

        return table.in_transaction(work, "Append", message=how.message, commit=how.commit)

    def _overwrite(self, df: DataFrame, wanted: pa.Schema, how: WriteTerms, *, as_is: bool = False) -> ty.CommitResult:
        """Replaces all rows and columns."""
        told: dict[str, Any] = {"on_duplicate": how.on_duplicate, "message": how.message, "files": how.files}
        parts = self._assigned(df, wanted)

        def work(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
            # An overwrite goes over what others add before the commit, unless it expects the version that its rows were made of.
            reads = bool(_versions_read(df, inside)) and inside.version > 0  # else the lake was empty when the transaction began
            expected = ty.CommitOptions(expected_version=inside.version) if reads else None
            inside.overwrite(wanted, primary_key=how.primary_key, message=how.message, commit=expected)
            return [shard.append(part, **told) for _, shard, part in parts(inside)]

        return self.table.in_transaction(work, "Overwrite", message=how.message, commit=how.commit)

    def _replace_rows(self, df: DataFrame, how: WriteTerms) -> ty.CommitResult:
        """Replaces all rows, keeps the columns."""
        told: dict[str, Any] = {"on_duplicate": how.on_duplicate, "message": how.message, "files": how.files}
        table_columns(df.schema, self.table.refresh().schema)
        parts, none = self._assigned(df), self.session.createDataFrame([], df.schema)

        def work(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
            read = _versions_read(df, inside)
            found = {number: part for number, _, part in parts(inside)}
            return [
                shard.replace_rows(found.get(number, none), **_expecting(told, read.get(shard.table.uri)))
                for number, shard in enumerate(parts_of(SparkShardedTable(self.session, inside, self.work)))
            ]

        return self.table.in_transaction(work, "Overwrite", message=how.message, commit=how.commit)

    def _assigned(
        self, df: DataFrame, schema: pa.Schema | None = None
    ) -> Callable[[ty.ShardedTransactionTable], Iterator[tuple[int, SparkTable, DataFrame]]]:
        """The rows by shard.

        They are assigned again only if the table has other shards by the time they are written."""
        known: dict[tuple[tuple[str, ...], int], DataFrame] = {}

        def parts(inside: ty.ShardedTransactionTable) -> Iterator[tuple[int, SparkTable, DataFrame]]:
            definition = (inside.shard_by, inside.shards)
            if definition not in known:
                known[definition] = marked(df, ShardOf.of(schema or inside.schema, *definition, df.columns))
            for number, part in shards_in(known[definition]):
                yield number, SparkTable(self.session, inside.physical(number), self.work), part

        return parts

    # ---- rows that are there -------------------------------------------------------------------------------------------------------

    def _merge(self, df: DataFrame, plan: SparkMergePlan, how: Mapping[str, Any]) -> ty.CommitResult:
        table = self.table.refresh()
        on = table.primary_key if plan.on is None else plan.on
        if plan.condition is not None or not set(table.shard_by) <= set(on):
            raise InvalidInput(
                f"A merge of this sharded table must match on {', '.join(table.shard_by)}, given by name.",
                argument="on",
                advice="Merge on the primary key.",
            )
        refuse_shard_columns(
            self.table.shard_by, [name for clause in plan.clauses if clause.kind == "update" for name in clause.values or ()]
        )
        parts = self._assigned(df)

        def work(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
            read = _versions_read(df, inside)
            found = {shard.table.uri: (shard, part) for _, shard, part in parts(inside)}
            if plan.target_only:
                for number in range(inside.shards):
                    empty = SparkTable(self.session, inside.physical(number), self.work)
                    found.setdefault(empty.table.uri, (empty, df.limit(0)))
            return [
                merge(self.session, shard.table, part, plan, _expecting(how, read.get(uri)), self.work)
                for uri, (shard, part) in found.items()
            ]

        return table.in_transaction(work, "Merge", message=how["message"], commit=how["commit"])

    def _delete(self, where: str | Column, message: str | None, commit: ty.CommitOptions | None) -> ty.CommitResult:
        return self._each(lambda shard: shard.delete(where, message=message), "Delete", message, commit)

    def _update(
        self, values: Mapping[str, str | Column], where: str | Column | None, message: str | None, commit: ty.CommitOptions | None
    ) -> ty.CommitResult:
        """Gives columns new values, but for the shard columns."""
        refuse_shard_columns(self.table.shard_by, values)
        return self._each(lambda shard: shard.update(values, where, message=message), "Update", message, commit)

    def _each(
        self, work: Callable[[SparkTable], ty.CommitResult], operation: str, message: str | None, commit: ty.CommitOptions | None
    ) -> ty.CommitResult:
        def all_shards(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
            return [work(shard) for shard in parts_of(SparkShardedTable(self.session, inside, self.work))]

        return self.table.in_transaction(all_shards, operation, message=message, commit=commit)

    # ---- shape ---------------------------------------------------------------------------------------------------------------------

    def _create_index(self, column: str, spec: ty.IndexSpec, how: Mapping[str, Any]) -> ty.CommitResult:
        """Builds an index of each shard."""

        def work(shard: SparkTable) -> ty.CommitResult:
            return shard.create_index(column, spec, how["name"], replace=how["replace"], message=how["message"])

        return self._each(work, "CreateIndex", how["message"], how["commit"])

    def _compact(self, how: Mapping[str, Any]) -> ty.CommitResult:
        """Rewrites small fragments of each shard, by the driver."""
        return self.table.compact(**how)

    def _optimize(self, how: Mapping[str, Any]) -> ty.CommitResult:
        """Sorts or compacts each shard, by the driver."""
        return self.table.maintenance.optimize(**how)

    def add_columns(self, columns: Any, *, message: str | None = None, commit: ty.CommitOptions | None = None) -> NoReturn:
        """Refused: use ``lake.table(name).add_columns``."""
        raise _refused("add_columns", "Use lake.table(name).add_columns, without Spark.")

    def history(self, limit: int | None = None) -> NoReturn:
        """Refused: its versions are the lake's snapshots."""
        raise _refused("history", "See lake.history().")

    def changes(self, since: int, until: int | None = None, *, old_values: bool = False) -> NoReturn:
        """Refused: a change feed is each shard's own."""
        raise _refused("changes", "Read the changes of each shard: lake.table(name).shard(number).changes(...).")


def _versions_read(df: DataFrame, inside: ty.ShardedTransactionTable) -> dict[str, int]:
    """The versions of shards that a data frame reads, by where they are.

    Raises:
        ExpectedVersionMismatch: others committed to one of them since: rows that are made of the old ones must not take their place.
    """
    found: dict[str, int] = {}
    shards = [inside.physical(number) for number in range(inside.shards)]
    for shard, read in zip(shards, versions_replaced(df, shards, whole_of(inside)), strict=True):
        if read is None:
            continue
        if read != shard.version:
            raise ExpectedVersionMismatch(
                f"The rows were read from version {read} of a shard, and version {shard.version} is the latest.",
                table=inside.name,
                expected=read,
                actual=shard.version,
                operation="Overwrite",
                advice="Nothing was changed. Read the table again, and write again.",
            )
        found[shard.uri] = read
    return found


def _expecting(how: Mapping[str, Any], version: int | None) -> Mapping[str, Any]:
    if version is None:
        return how
    return {**how, "commit": replace(how.get("commit") or ty.CommitOptions(), expected_version=version)}


def _refused(what: str, advice: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"A sharded table has no {what} in Spark.", feature=f"{what} of sharded tables", advice=advice)
