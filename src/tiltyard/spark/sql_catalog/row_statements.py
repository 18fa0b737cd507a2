"""DELETE, UPDATE and MERGE as Spark rewrote them: which rows of the table go, which get new values, which are new.

Spark joins, evaluates and checks: the plan that arrives gives for each row that changes what becomes of it, its address in the version
that was read, and its new values. The rows are written in executors and committed by the rules of the verb of the same name. After a
conflict the plan is executed again on the latest version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import Pinned, RowChange, RowPlan
from tiltyard.errors import InvalidInput
from tiltyard.spark.jobs import ADDRESS, ROW_ID
from tiltyard.spark.placement import Work
from tiltyard.spark.read.datasets import dataset
from tiltyard.spark.sharded_spark import refuse_shard_columns, shard_addresses
from tiltyard.spark.sql_catalog.catalog_tables import name_in
from tiltyard.spark.sql_catalog.open_transactions import Tables
from tiltyard.spark.sql_catalog.self_reads import SelfReads
from tiltyard.spark.statements.sql_plans import as_list, kind_of, option
from tiltyard.spark.target import Address
from tiltyard.spark.write.row_jobs import ACTION, VALUE, Action, changed
from tiltyard.spark.write.shard_rows import SHARD, ShardOf, by_shard
from tiltyard.spark.write.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELETE: Final = 1
_UPDATE: Final = 2
_INSERT: Final = 3
"""Numbers of Spark for what becomes of a row."""
_OPERATION: Final = "__row_operation"


def change_rows(session: SparkSession, request: Mapping[str, Any], plan: Any, where: Tables) -> None:
    """Runs the statement, on the latest version of the table."""
    from tiltyard.spark.sql_catalog.statements_run import frame_of, options_of  # it knows this module

    how = options_of(plan)
    name = name_in(where, request["name"])
    table, statement = where.table(name), RowStatement.of(plan, request["mark"])
    reads = SelfReads.of(request, name, plan.query()).and_fixed(plan.query(), lambda: table).beside(request["mark"])
    if isinstance(table, ty.ShardedTable | ty.ShardedTransactionTable):
        _change_shards(table, statement, reads, lambda: frame_of(session, plan.query()), how)
        return

    def worker(pinned: Pinned) -> RowChange:
        statement.check_columns(pinned.schema)
        task = pinned.scan_task()
        storage = tuple(sorted((task.storage_options or {}).items()))
        with reads.pinned([Address(task.uri, task.number, storage)]):
            frame = statement.described(frame_of(session, plan.query()), [ADDRESS, ROW_ID] if pinned.stable else [ADDRESS])
            change = changed(frame, pinned, statement.actions, work=Work())
        return change if table.primary_key or change.keys is None else _with_each_key_once(change)

    table.distributed.change_rows(worker, statement.rules(table), message=how.message, commit=how.commit())


def _change_shards(
    table: ty.ShardedTable | ty.ShardedTransactionTable,
    statement: RowStatement,
    reads: SelfReads,
    query: Callable[[], DataFrame],
    how: WriteOptions,
) -> None:
    """The same for a sharded table: the rows are worked out once over all shards, and those that get any are changed in one transaction.

    A row that changes stays in its shard; a new one goes where its key belongs.
    """
    refuse_shard_columns(table.shard_by, statement.updated)

    def work(inside: ty.ShardedTransactionTable) -> list[ty.CommitResult]:
        statement.check_columns(inside.schema)
        addresses = shard_addresses(inside)
        stable = any(dataset(address).has_stable_row_ids for address in addresses)
        with reads.pinned(addresses):
            rows = statement.described(query(), [ADDRESS, *([ROW_ID] if stable else []), SHARD])
            parts = by_shard(rows, statement.shard_of(inside), Work())
        done = []
        for number, part in parts:
            shard = inside.physical(number)
            if shard.schema.names != inside.schema.names:
                raise InvalidInput(
                    f"Shard {number} has other columns than the table.",
                    argument="table",
                    advice="Make them the same; lake.check() says more.",
                )
            worker = partial(changed, part, actions=statement.actions, work=Work())
            done.append(shard.distributed.change_rows(worker, statement.rules(shard), message=how.message))
        return done

    table.in_transaction(work, statement.command.capitalize(), message=how.message, commit=how.commit())


@dataclass(frozen=True)
class RowStatement:
    """What a plan does.

    Attributes:
        command: ``DELETE``, ``UPDATE`` or ``MERGE``.
        columns: all of the table, in order; none for a DELETE.
        updated: those that rows which stay may get another value in.
        inserting: whether rows may be inserted.
        on: columns that rows are matched by, where that is all that the condition says.
        only_inserts: whether the plan gives new rows alone, without saying what becomes of them.
    """

    command: str
    columns: tuple[str, ...]
    updated: frozenset[str] = frozenset()
    inserting: bool = False
    on: tuple[str, ...] = ()
    only_inserts: bool = False

    @classmethod
    def of(cls, plan: Any, mark: str) -> RowStatement:
        """Reads it from the plan alone; ``mark`` is that of the table it changes."""
        if kind_of(plan) == "InsertOnlyMerge":
            return _insert_only(plan, mark)
        command = str(plan.table().table().operation().command().toString())
        projected = option(plan.projections().rowProjection())
        columns = () if projected is None else tuple(str(name) for name in projected.schema().fieldNames())
        if _is_empty(plan.query()):
            return cls(command, columns)
        if command != "MERGE":
            values = _update_values(plan.query()) if command == "UPDATE" else []
            return cls(command, columns, _assigned(columns, values, _target_ids(plan, mark), {}))
        return _merge(plan, columns, mark)

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuses a version with other columns than the plan was made for."""
        if self.columns and list(schema.names) != list(self.columns):
            raise InvalidInput("The table's columns changed while the statement ran.", argument="table", advice="Run it again.")

    @property
    def actions(self) -> tuple[Action, ...]:
        """What the numbers in ``ACTION`` mean."""
        return (
            Action("delete"),
            Action("update", tuple(name for name in self.columns if name in self.updated)),
            Action("insert", self.columns if self.inserting else ()),
        )

    def rules(self, table: ty.TableReader) -> RowPlan:
        """What the change is going to do, for the rules about keys."""
        if self.command == "DELETE":
            return RowPlan("delete")
        if self.command == "UPDATE":
            return RowPlan(updated=self.updated)
        # With a primary key it is that one by which new rows are looked for, whatever they were matched by.
        of_key = set(self.on) == set(table.primary_key) if table.primary_key else _is_key(table.schema, self.on)
        return RowPlan(matched=True, on=self.on if of_key else (), inserting=self.inserting, updated=self.updated)

    @property
    def assigned(self) -> list[str]:
        """The columns that some rows get a value in, in their order."""
        return [name for name in self.columns if name in self.updated or self.inserting]

    def shard_of(self, table: ty.ShardedTransactionTable) -> ShardOf:
        """Which shard a described row is for."""
        columns = table.shard_by if self.inserting else ()
        return ShardOf.numbered(table.schema, columns, table.shards, [f"{VALUE}{self.assigned.index(name)}" for name in columns])

    def described(self, rows: DataFrame, row_ids: Sequence[str]) -> DataFrame:
        """The rows as the job that writes them takes them, with what tells a row of the table under the names given."""
        from pyspark.sql import functions as f

        names = {name: f"_ty_c_{place}" for place, name in enumerate(self.columns)}
        if self.only_inserts:
            none = [f.lit(None).cast("long").alias(name) for name in row_ids]
            rows = rows.toDF(*names.values()).select(f.lit(_INSERT).alias(_OPERATION), *names.values(), *none)
        numbered = rows.toDF(_OPERATION, *names.values(), *row_ids)
        values = [f.col(names[name]).alias(f"{VALUE}{place}") for place, name in enumerate(self.assigned)]
        return numbered.select((f.col(_OPERATION) - 1).cast("int").alias(ACTION), *row_ids, *values)


def _with_each_key_once(change: RowChange) -> RowChange:
    """New rows may share a key that is not the primary one: which ones come is all that others have to know."""
    keys = change.keys
    assert keys is not None
    return replace(change, keys=keys.group_by(keys.column_names, use_threads=False).aggregate([]), distinct=True)


def _is_key(schema: pa.Schema, names: tuple[str, ...]) -> bool:
    """Whether values of these columns can be compared as keys are."""
    is_a = pa.types
    kinds = [schema.field(name).type for name in names]
    return all(is_a.is_integer(kind) or is_a.is_string(kind) or is_a.is_boolean(kind) or is_a.is_date32(kind) for kind in kinds)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in as_list(plan.children()):
        yield from _nodes(child)


def _number(expression: Any) -> int | None:
    return int(str(expression.value())) if kind_of(expression) == "Literal" else None


def _target_ids(plan: Any, mark: str) -> dict[str, str]:
    """The columns of the table by what a plan calls them."""
    found: dict[str, str] = {}
    for node in _nodes(plan.query()):
        if kind_of(node) == "DataSourceV2ScanRelation" and _is_of(node.scan(), mark):
            found |= {str(item.exprId().toString()): str(item.name()) for item in as_list(node.output())}
    if (
        not found and kind_of(plan) == "WriteDelta"
    ):  # Spark saw that no row can match, and left the scan out: the columns are still called what they were
        found = {str(item.exprId().toString()): str(item.name()) for item in as_list(plan.originalTable().output())}
    return found


def _is_empty(query: Any) -> bool:
    """Whether Spark saw that no row changes at all: then nothing is left in the plan to read."""
    return kind_of(query) == "LocalRelation" and bool(query.data().isEmpty())


def _is_of(scan: Any, mark: str) -> bool:
    return str(scan.getClass().getName()).startswith("tiltyard.LakeScan") and json.loads(str(scan.facts()))["id"] == mark


def _update_values(query: Any) -> list[Any]:
    return as_list(query.projectList())[1:] if kind_of(query) == "Project" else []


def _merge(plan: Any, columns: tuple[str, ...], mark: str) -> RowStatement:
    """A merge, clause by clause."""
    rows = next(node for node in _nodes(plan.query()) if kind_of(node) == "MergeRows")
    target = _target_ids(plan, mark)
    equal, whole = _equal(plan.condition(), target)
    updated: frozenset[str] = frozenset()
    for clause in [*as_list(rows.matchedInstructions()), *as_list(rows.notMatchedBySourceInstructions())]:
        output = as_list(clause.output())
        if kind_of(clause) != "Keep" or _number(output[0]) not in (_DELETE, _UPDATE):
            raise InvalidInput(f"{kind_of(clause)} is not supported in MERGE.", argument="text")
        if _number(output[0]) == _UPDATE:
            updated |= _assigned(columns, output[1 : 1 + len(columns)], target, equal)
    inserts = [as_list(clause.output())[1 : 1 + len(columns)] for clause in as_list(rows.notMatchedInstructions())]
    keys = tuple(name for name in columns if name in equal)
    kept = whole and not updated & set(keys)
    kept = kept and all(_is_same(values[columns.index(name)], equal[name]) for values in inserts for name in keys)
    return RowStatement("MERGE", columns, updated, bool(inserts), keys if kept else ())


def _insert_only(plan: Any, mark: str) -> RowStatement:
    """A merge that only inserts: the rows of the source that match none of the table."""
    columns = tuple(str(item.name()) for item in as_list(plan.table().output()))
    query, target = plan.query(), _target_ids(plan, mark)
    joins = [node for node in _nodes(query) if kind_of(node) == "Join" and str(node.joinType().toString()) == "LeftAnti"]
    held = option(joins[0].condition()) if joins else None
    equal, whole = ({}, False) if held is None else _equal(held, target)
    values = as_list(query.projectList()) if kind_of(query) == "Project" else as_list(query.output())
    keys = tuple(name for name in columns if name in equal)
    kept = whole and all(_is_same(values[columns.index(name)], equal[name]) for name in keys)
    return RowStatement("MERGE", columns, inserting=True, on=keys if kept else (), only_inserts=True)


def _equal(condition: Any, target: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """What columns of the table are equal to in rows that match, and whether that is all that a condition says."""
    kind = kind_of(condition)
    if kind == "And":
        left, whole = _equal(condition.left(), target)
        right, rest = _equal(condition.right(), target)
        return {**left, **right}, whole and rest
    if kind == "EqualTo":
        for side, other in ((condition.left(), condition.right()), (condition.right(), condition.left())):
            name = target.get(str(side.exprId().toString())) if kind_of(side) == "AttributeReference" else None
            if name is not None and not any(str(item.exprId().toString()) in target for item in _references(other)):
                return {name: other}, True
    return {}, False


def _references(expression: Any) -> list[Any]:
    found, items = [], expression.references().iterator()
    while items.hasNext():
        found.append(items.next())
    return found


def _bare(value: Any) -> Any:
    """A value without its name, and without the check that it is not null."""
    while kind_of(value) in ("Alias", "AssertNotNull"):
        value = value.child()
    return value


def _is_same(value: Any, other: Any) -> bool:
    return bool(_bare(value).semanticEquals(other))


def _assigned(columns: tuple[str, ...], values: list[Any], target: Mapping[str, str], equal: Mapping[str, Any]) -> frozenset[str]:
    """The columns whose new value is not plainly the old one, or equal to it; all where it cannot be told."""
    if len(values) < len(columns):
        return frozenset(columns)
    pairs = zip(columns, values, strict=False)
    return frozenset(
        name for name, value in pairs if not _is_old(value, name, target) and not (name in equal and _is_same(value, equal[name]))
    )


def _is_old(value: Any, name: str, target: Mapping[str, str]) -> bool:
    value = _bare(value)
    return kind_of(value) == "AttributeReference" and target.get(str(value.exprId().toString())) == name
