"""Verbs on all shards of a table, inside one transaction: rows go where their hash says, the rest is done to each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.lakes.sharded.pruning import shards_of
from tiltyard.lakes.sharded.sharding import DEFINITION, MEMBERSHIP, Sharding
from tiltyard.options import Backfill, CommitOptions
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.verify import marks_in
from tiltyard.verbs.engine.row_input import Rows, as_rows, conformed
from tiltyard.verbs.merge import merge_rows
from tiltyard.verbs.merge_plan import MergePlan
from tiltyard.verbs.write import Writing

if TYPE_CHECKING:
    from tiltyard.lakes.sharded.sharded_tables import ShardedTransactionTable
    from tiltyard.verbs.engine.reexecution import ReexecutionPolicy

AT_ONCE: Final = 256 * 1024 * 1024
"""Bytes of a stream that are in memory at a time, before they are handed to the shards."""


@dataclass(frozen=True, slots=True)
class Describes:
    """What the commits of one verb say, and how they are retried."""

    message: str | None = None
    commit: CommitOptions | None = None

    def __post_init__(self) -> None:
        if self.commit is not None and marks_in(self.commit.properties or {}):
            raise InvalidInput(
                "An idempotency key of ty.distributed.once is kept in one table, not in several shards.",
                argument="commit",
                advice="Use lake.run(..., idempotency_key=...).",
            )


def summed(results: Iterable[CommitResult], operation: str, base: int, counts: Sequence[str] = ()) -> CommitResult:
    """What a verb on several shards came to, with these counts at least. Its version is a snapshot, which is known at the commit."""
    done = list(results)
    rows = dict.fromkeys(counts, 0)
    for result in done:
        for what, count in result.rows.items():
            rows[what] = rows.get(what, 0) + count
    attempts = max((result.attempts for result in done), default=0)
    return CommitResult(base, operation, "", base, attempts, rows=rows, executions=max((result.executions for result in done), default=1))


def tables_of(rows: Rows) -> Iterator[pa.Table]:
    """Rows in memory as they are, a stream in pieces that fit into memory."""
    if isinstance(rows, pa.Table):
        yield rows
        return
    held: list[pa.RecordBatch] = []
    for batch in rows:
        held.append(batch)
        if sum(part.nbytes for part in held) >= AT_ONCE:
            yield pa.Table.from_batches(held, rows.schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, rows.schema)


# ---- rows ----------------------------------------------------------------------------------------------------------------------------


def append(table: ShardedTransactionTable, rows: Rows, how: Writing, says: Describes) -> CommitResult:
    """Adds each row to its shard."""
    results = []
    for part in tables_of(rows):
        for number, mine in split(table, part).items():
            shard = table.physical(number)
            results.append(shard._append(mine, how, says.message, says.commit))
    return summed(results, "Append", table.base, ["inserted"])


def split(table: ShardedTransactionTable, rows: pa.Table) -> dict[int, pa.Table]:
    """The rows of each shard, by the shard columns as the table types them.

    Raises:
        InvalidInput: the rows do not fit the table, or lack a shard column.
    """
    _, file = table.anchor._blind()
    match = table.anchor._appends.at(file).match(rows.schema)
    return table.sharding.split(conformed(rows, match.schema, match.check_not_null))


def overwrite(table: ShardedTransactionTable, rows: Rows, primary_key: Sequence[str] | None, how: Writing, says: Describes) -> CommitResult:
    """Replaces all rows and columns: each shard is emptied under the new columns, then gets its rows."""
    kept = table.primary_key if primary_key is None else tuple(primary_key)
    Sharding.new(table.sharding.id, table.sharding.columns, table.sharding.shards, rows.schema, kept)
    expecting = says.commit is not None and says.commit.expected_version is not None
    for shard in (table.anchor, *table.every()):
        commit = replace(says.commit, expected_version=shard.version) if says.commit is not None and expecting else says.commit
        shard.overwrite(rows.schema, primary_key=primary_key, message=says.message, commit=commit)
    added = replace(says, commit=replace(says.commit, expected_version=None)) if says.commit is not None and expecting else says
    return replace(append(table, rows, how, added), operation="Overwrite")


def change(
    table: ShardedTransactionTable, where: str | None, work: Callable[[TransactionTable], CommitResult], operation: str
) -> CommitResult:
    """Does something to the shards whose rows a condition can be about."""
    numbers = shards_of(where, table.sharding, table.schema)
    return summed([work(table.physical(number)) for number in numbers], operation, table.base)


def refuse_shard_columns(sharding: Sharding, names: Iterable[str], what: str, argument: str) -> None:
    """Refuses to change columns that say which shard a row is in."""
    if mine := sorted(set(names).intersection(sharding.columns)):
        raise InvalidInput(
            f"{', '.join(mine)} says which shard a row is in and cannot be {what}.",
            argument=argument,
            advice="Delete the rows and append them with other values.",
        )


def merge(
    table: ShardedTransactionTable, source: Any, plan: MergePlan, described: Mapping[str, str], policy: ReexecutionPolicy
) -> CommitResult:
    """Merges the rows of each shard into it; clauses about rows that only the table has concern all shards."""
    check_merge(table.sharding, table.primary_key, plan)
    rows = as_rows(source)
    whole = rows if isinstance(rows, pa.Table) else rows.read_all()
    missing = [column for column in table.sharding.columns if column not in whole.column_names]
    if missing:
        raise InvalidInput(f"The source has no column {missing[0]!r}, which rows are matched by.", argument="source")
    parts = table.sharding.split(_typed(whole, table))
    numbers = range(table.sharding.shards) if plan.orphans else sorted(parts)
    results = []
    for number in numbers:
        shard, mine = table.physical(number), parts.get(number, whole.slice(0, 0))
        results.append(shard._commit(shard._data, merge_rows, mine, plan, shard._appends, described, policy))
    return summed(results, "Merge", table.base, ["inserted", "updated", "deleted"])


def check_merge(sharding: Sharding, primary_key: Sequence[str], plan: MergePlan) -> None:
    """Refuses a merge whose rows could match rows of other shards, or move there.

    Raises:
        InvalidInput: naming the columns that it has to be on.
    """
    on = primary_key if plan.on is None else plan.on
    if missing := [column for column in sharding.columns if column not in on]:
        raise InvalidInput(
            f"A merge of this sharded table must match on {', '.join(sharding.columns)}; {', '.join(missing)} is missing.",
            argument="on",
            advice="Merge on the primary key.",
        )
    if plan.generations:
        raise InvalidInput("A sharded table has no write-ahead log.", argument="generations")
    for clause in plan.clauses:
        if clause.action == "update" and clause.values:
            refuse_shard_columns(sharding, clause.values, "updated", "values")


def _typed(rows: pa.Table, table: ShardedTransactionTable) -> pa.Table:
    """The source with its shard columns as the table types them, so that their hash is the table's."""
    schema = table.schema
    for name in table.sharding.columns:
        kind, place = schema.field(name).type, rows.schema.get_field_index(name)
        if not rows.schema.field(place).type.equals(kind):
            try:
                rows = rows.set_column(place, pa.field(name, kind), rows.column(name).cast(kind))
            except (pa.ArrowException, OverflowError) as error:
                raise InvalidInput(f"Column {name} of the source does not fit the table: {error}", argument=name) from error
    return rows


# ---- columns and settings ------------------------------------------------------------------------------------------------------------


def each(table: ShardedTransactionTable, work: Callable[[TransactionTable], CommitResult], operation: str = "") -> CommitResult:
    """Does the same to every shard."""
    results = [work(shard) for shard in table.every()]
    return summed(results, operation or results[0].operation, table.base)


def change_columns(table: ShardedTransactionTable, work: Callable[[TransactionTable], CommitResult], says: Describes) -> CommitResult:
    """Changes the columns of every shard, and then those of the anchor to what they are there."""
    done = each(table, work)
    table.anchor.overwrite(table.physical(0).schema, message=says.message, commit=says.commit)
    return done


def for_all_shards(columns: Any, backfill: Backfill) -> Any:
    """New columns in a form that can be read for each shard.

    Raises:
        InvalidInput: there is a checkpoint, which one file cannot be for several tables.
    """
    if backfill.checkpoint is not None:
        raise InvalidInput("A sharded table does not support a checkpoint for new columns.", argument="backfill")
    if callable(columns) or isinstance(columns, Mapping | pa.Schema | pa.Field | pa.Table):
        return columns
    rows = as_rows(columns)
    return rows if isinstance(rows, pa.Table) else rows.read_all()


def refuse_own_keys(values: Mapping[str, Any]) -> None:
    """Refuses to set what makes a table a shard, or a sharded one."""
    if mine := [key for key in (DEFINITION, MEMBERSHIP) if key in values]:
        raise InvalidInput(f"The setting {mine[0]} is reserved for Tiltyard.", argument="values", advice="Use t.reshard(shards=...).")
