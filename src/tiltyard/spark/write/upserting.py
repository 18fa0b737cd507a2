"""How a merge is done: by the driver, as a plain upsert, or by a join in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import MatchTask, Piece, Pinned, RowChange, RowPlan, WriteTask, join_rows, pack_rows
from tiltyard.errors import InvalidInput
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.jobs import ADDRESS, ROW_ID, Batches, group_numbers, per_group, results, scan_frame
from tiltyard.spark.placement import Work, is_connect, small_rows, wanted_schema
from tiltyard.spark.spark_expressions import as_column, mentioned
from tiltyard.spark.spark_types import arrow_schema, spark_schema
from tiltyard.spark.write.merging import SparkClause, SparkMergePlan
from tiltyard.spark.write.replaced_reads import frame_replacing
from tiltyard.spark.write.row_jobs import ACTION, KEY, SOURCE_ROW, VALUE, Action, changed
from tiltyard.spark.write.row_verbs import fit, replacing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COPIES: Final = 1 << 20
"""Bytes of keys that travel with each task; more are broadcast."""


def merge(
    spark: SparkSession, table: ty.TableWriter, source: DataFrame, plan: SparkMergePlan, how: Mapping[str, Any], work: Work
) -> ty.CommitResult:
    """Merges a data frame into a table, in the cheapest way that does it right."""
    given = arrow_schema(source.schema)
    _check(plan, table.schema, given)
    source, how = _standing_on_what_it_reads(source, table, how)
    # The table's own verb reads its latest version, whatever the source was made of.
    commit = how.get("commit")
    if commit is None or commit.expected_version is None:
        done = _small_merge(table, source, plan, how, work)
        if done is not None:
            return done
    assigned = _assigned(plan, given.names) - (plan.same if plan.condition is not None else frozenset())
    rules = RowPlan(
        matched=True,
        on=() if plan.condition is not None else plan.on,
        inserting=bool(plan.source_only),
        updated=frozenset(assigned),
        allow_duplicates=plan.allow_duplicates,
        generations=plan.generations,
    )
    upsert = _Upsert(spark, source, given, plan, work)
    joined = _Joined(spark, source, given, plan, work)
    return table.distributed.change_rows(lambda pinned: (upsert(pinned) if upsert.does(pinned) else None) or joined(pinned), rules, **how)


def _standing_on_what_it_reads(source: DataFrame, table: ty.TableWriter, how: Mapping[str, Any]) -> tuple[DataFrame, Mapping[str, Any]]:
    """A source that reads the very table is merged into the version that it reads: what others committed since must not be undone."""
    commit = how.get("commit")
    told = commit is not None and commit.expected_version is not None
    source, expected = frame_replacing(source, table, told=told)
    if expected is None or told:
        return source, how
    return source, {**how, "commit": replace(commit or ty.CommitOptions(), expected_version=expected)}


def _small_merge(
    table: ty.TableWriter, source: DataFrame, plan: SparkMergePlan, how: Mapping[str, Any], work: Work
) -> ty.CommitResult | None:
    """A merge by the driver; None where that is not for it."""
    if not plan.is_plain() or table.count_rows() > work.driver_table_rows:
        return None
    rows = small_rows(source, work, table.schema)
    if rows is None:
        return None
    work.begin("merging on the driver")
    return _locally(table, rows, plan, how)


def _assigned(plan: SparkMergePlan, given: list[str]) -> set[str]:
    return {name for clause in plan.clauses if clause.kind == "update" for name in (given if clause.values is None else clause.values)}


def _check(plan: SparkMergePlan, table: pa.Schema, given: pa.Schema) -> None:
    for clause in plan.clauses:
        for name in clause.values or ():
            if name not in table.names:
                there = ", ".join(table.names)[:120]
                raise InvalidInput(f"There is no column {name!r}.", argument="values", advice=f"Columns are {there}.")
        if clause.values is None and clause.kind in ("update", "insert"):
            for name in given.names:
                if name not in table.names:
                    raise InvalidInput(
                        f"The source has a column {name!r}, which the table has not.", argument=name, advice="Drop it, or name the columns."
                    )


def _locally(table: ty.TableWriter, rows: pa.Table, plan: SparkMergePlan, how: Mapping[str, Any]) -> ty.CommitResult:
    """The same by the table's own verb: no expression of Spark is in it."""
    builder = table.merge(rows, plan.on, allow_duplicates=plan.allow_duplicates)
    for clause in plan.matched:
        if clause.kind == "update":
            builder = builder.when_matched_update_all()
        elif clause.kind == "delete":
            builder = builder.when_matched_delete()
        else:
            builder = builder.when_matched_fail()
    if plan.source_only:
        builder = builder.when_not_matched_insert_all()
    if plan.target_only:
        builder = builder.when_not_matched_by_source_delete()
    for merged in plan.generations:
        builder = builder.mark_generations_merged({merged.shard_id: merged.generation})
    return builder.execute(**how)


# ---- a plain upsert --------------------------------------------------------------------------------------------------------


class _Upsert:
    """Every row of the source becomes a row of the table, as it is. So it is written at once, and only its keys are looked for.

    After a conflict the files serve again: which rows they replace is all that has to be found out anew.
    """

    def __init__(self, spark: SparkSession, source: DataFrame, given: pa.Schema, plan: SparkMergePlan, work: Work) -> None:
        self.spark, self.source, self.given, self.plan, self.work = spark, source, given, plan, work
        self.written: tuple[WriteTask, list[Piece], pa.Table] | None = None
        self.in_vain = False

    def does(self, pinned: Pinned) -> bool:
        whole = set(self.given.names) == set(pinned.schema.names)
        return self.plan.is_upsert() and whole and not pinned.stable and not self.in_vain

    def __call__(self, pinned: Pinned) -> RowChange | None:
        """The change; None where it has to be worked out by a join."""
        task, pieces, keys = self._pieces(pinned)
        self.work.begin("looking for keys")
        change = replacing(keys, pieces, *_found(self.spark, pinned.match_task(keys), self.work))
        if change is None:
            self.in_vain = True
            task.discard(pieces, all_of_token=True)
        else:
            self.work.begin("committing")
        return change

    def _pieces(self, pinned: Pinned) -> tuple[WriteTask, list[Piece], pa.Table]:
        task = pinned.write_task()
        if self.written is not None and fit(pinned, self.written[1]):
            return self.written
        self.work.begin("writing rows")
        key = pinned.key_reader
        assert key is not None
        wanted = wanted_schema(self.given, pinned.schema)

        def run(batches: Batches) -> tuple[Piece, pa.Table]:
            parts: list[pa.Table] = []

            def noted() -> Batches:
                convert = None
                for batch in batches:
                    convert = convert or batch_converter(batch.schema, wanted)
                    made = convert(batch)
                    parts.append(key.of(made.take(pa.array(np.arange(made.num_rows)))))
                    yield made

            piece = task.write(noted())
            return piece, pa.concat_tables(parts) if parts else key.of(pa.Table.from_batches([], wanted))

        try:
            made = results(self.source, run)
            keys = pinned.checked_keys(pa.concat_tables([item for _, item in made]))
        except BaseException:
            task.discard((), all_of_token=True)
            raise
        self.written = task, [piece for piece, _ in made if piece.rows], keys
        return self.written


def _found(spark: SparkSession, match: MatchTask, work: Work) -> tuple[Any, dict[int, bytes], int]:
    """Which keys the table has, where, and in how many rows: looked for by the driver if the table is not large."""
    if match.scan.rows <= work.driver_table_rows:
        found = match.find()
        return found.rows, pack_rows(found.addresses), len(found.addresses)
    assert match.keys is not None
    groups = match.scan.groups(work.tasks(spark))
    keys = _sent(spark, match.keys)
    bare = match.without_keys()

    def run(batches: Batches) -> tuple[Any, dict[int, bytes]]:
        parts = [bare.find(groups[number], keys()) for number in group_numbers(batches)]
        rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
        return rows, join_rows(pack_rows(part.addresses) for part in parts)

    told = results(per_group(spark, groups), run) if groups else []
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in told)])
    return rows, join_rows(taken for _, taken in told), len(rows)


def _sent(spark: SparkSession, keys: pa.Table) -> Any:
    """A function that gives the keys, in any worker."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    packed = sink.getvalue().to_pybytes()
    if len(packed) <= _COPIES or is_connect(spark):
        return lambda: pa.ipc.open_stream(packed).read_all()
    shared = spark.sparkContext.broadcast(packed)
    return lambda: pa.ipc.open_stream(shared.value).read_all()


# ---- any other merge -------------------------------------------------------------------------------------------------------


class _Joined:
    """Spark joins the source with those columns of the table that matter, and says what becomes of each row."""

    def __init__(self, spark: SparkSession, source: DataFrame, given: pa.Schema, plan: SparkMergePlan, work: Work) -> None:
        self.spark, self.source, self.given, self.plan, self.work = spark, source, given, plan, work

    def __call__(self, pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        plan = self.plan
        by_key = plan.condition is None
        self.work.begin("joining")
        actions: list[Action] = []
        number = self._numbers(pinned, actions)
        # Worked out once, in a step of its own: values then only ask for the number, and whatever a condition says it says once.
        joined = self._joined(pinned).withColumn(ACTION, number)
        columns = [f.col(ACTION), f.col(ADDRESS), f.col(SOURCE_ROW)]
        if pinned.stable:
            columns.append(f.col(ROW_ID))
        acting = f.col(ACTION) >= 0
        if by_key:  # then all rows of the source are told, to be looked at for two of one key
            columns += [self._of(plan.source, name).alias(f"{KEY}{place}") for place, name in enumerate(pinned.key)]
            acting = acting | f.col(SOURCE_ROW).isNotNull()
        chosen = joined.where(acting).select(*columns, *self._values(pinned, actions))
        self.work.begin("writing rows")
        change = changed(chosen, pinned, actions, source_keys=by_key)
        self.work.begin("committing")
        return change

    def _joined(self, pinned: Pinned) -> DataFrame:
        from pyspark.sql import functions as f

        plan = self.plan
        keys = [] if plan.condition is not None else [_top(name) for name in pinned.key]
        told = mentioned(pinned.schema.names, self._expressions())
        columns = [name for name in pinned.schema.names if name in told or name in keys]
        _refuse_lossy(pinned, columns)
        target = scan_frame(self.spark, pinned.scan_task(), pinned.schema, columns, self.work).alias(plan.target)
        source = self.source.withColumn(SOURCE_ROW, f.monotonically_increasing_id()).alias(plan.source)
        if plan.condition is not None:
            on = as_column(plan.condition)
        else:
            pairs = [self._of(plan.source, name) == self._of(plan.target, name) for name in pinned.key]
            on = pairs[0]
            for pair in pairs[1:]:
                on = on & pair
        return source.join(target, on, "full" if plan.target_only else "left")

    def _expressions(self) -> list[Any]:
        found = [self.plan.condition]
        for clause in self.plan.clauses:
            found += [clause.condition, *(clause.values or {}).values()]
        return [item for item in found if item is not None]

    def _of(self, side: str, path: str) -> Column:
        from pyspark.sql import functions as f

        return f.col(".".join([f"`{side}`", *(f"`{part}`" for part in path.split("."))]))

    def _numbers(self, pinned: Pinned, actions: list[Action]) -> Column:
        """For each row of the join which action it is for."""
        from pyspark.sql import functions as f

        both = f.col(ADDRESS).isNotNull() & f.col(SOURCE_ROW).isNotNull()
        groups = (
            (both, self.plan.matched),
            (f.col(ADDRESS).isNull(), self.plan.source_only),
            (f.col(SOURCE_ROW).isNull(), self.plan.target_only),
        )
        found = f.when(f.lit(False), f.lit(-1))
        for rows, clauses in groups:
            for clause in clauses:
                holds = rows if clause.condition is None else rows & as_column(clause.condition)
                found = found.when(holds, f.lit(len(actions)))
                actions.append(self._action(clause, pinned))
        return found.otherwise(f.lit(-1)).cast("int")

    def _action(self, clause: SparkClause, pinned: Pinned) -> Action:
        if clause.kind in ("delete", "fail"):
            return Action(clause.kind)
        names = self.given.names if clause.values is None else clause.values
        return Action(clause.kind, tuple(name for name in pinned.schema.names if name in names))

    def _values(self, pinned: Pinned, actions: list[Action]) -> list[Column]:
        """The new value of each column that gets one, in the type that Spark has for the column."""
        from pyspark.sql import functions as f

        found = []
        assigned = [name for name in pinned.schema.names if any(name in action.columns for action in actions)]
        types = spark_schema(pa.schema([pinned.schema.field(name) for name in assigned]))
        for place, name in enumerate(assigned):
            value = f.when(f.lit(False), f.lit(None))
            for action, clause in enumerate(self.plan.clauses):
                if name in actions[action].columns:
                    given = self._of(self.plan.source, name) if clause.values is None else as_column(clause.values[name])
                    value = value.when(f.col(ACTION) == action, given.cast(types[name].dataType))
            found.append(value.cast(types[name].dataType).alias(f"{VALUE}{place}"))
        return found


def _top(path: str) -> str:
    return path.split(".")[0]


def _refuse_lossy(pinned: Pinned, columns: list[str]) -> None:
    for name in columns:
        kind = pinned.schema.field(name).type
        if any(_top(each_name) == name for each_name in pinned.key) and pa.types.is_timestamp(kind) and kind.unit == "ns":
            raise ty.UnsupportedFeature(
                f"Spark knows no nanoseconds, so rows cannot be matched by {name!r} in it.", feature="keys of nanoseconds", writing=True
            )
