"""SQL statements that change our tables or look at their past, which Spark's own parser reads and Spark itself cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import tiltyard as ty
from tiltyard.errors import InvalidInput, NotFound, UnsupportedFeature
from tiltyard.spark.placement import Work, is_connect
from tiltyard.spark.read.reading_tables import data_frame
from tiltyard.spark.spark_expressions import ColumnFacts
from tiltyard.spark.spark_lake import LakeSpark, NamedTables, TransactionSpark
from tiltyard.spark.spark_table import SparkTable
from tiltyard.spark.statements.optimizing import optimized
from tiltyard.spark.statements.plan_members import check_members
from tiltyard.spark.statements.sql_plans import (
    Relation,
    Statement,
    TargetTable,
    as_list,
    assignments_of,
    bare_names,
    equal_columns,
    kind_of,
    option,
    parsed,
    source_alias,
    syntax_error,
    target_of,
)
from tiltyard.spark.statements.statement_words import ADVICE, OptimizeClauses, Words
from tiltyard.spark.write.merging import SparkClause, SparkMergePlan
from tiltyard.spark.write.row_verbs import delete_rows, update_rows
from tiltyard.spark.write.upserting import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATHS: Final = "tiltyard"
"""Before a path: ``tiltyard.`s3://bucket/table```."""
_OURS: Final = re.compile(r"\s*(MERGE|UPDATE|DELETE|OPTIMIZE)\b|\bAS\s+OF\b", re.IGNORECASE)
_KEEPS_TEXT: Final = ("CreateView", "CreateTempView", "CreateViewCommand", "CacheTableAsSelect", "AlterViewAs", "ExplainCommand")
"""Statements that keep a text for later: names in it must stay as they are."""
_numbers = count(1)


def sql(session: SparkSession, text: str, lake: ty.Lake | ty.LakeTransaction | str | None = None, work: Work | None = None) -> DataFrame:
    """Runs a SQL statement on tables of a lake; what is not for them is passed on to Spark.

    ``MERGE INTO``, ``UPDATE``, ``DELETE FROM``, ``INSERT`` and ``OPTIMIZE`` change tables of a lake, each in one commit; ``VERSION AS OF``
    and ``TIMESTAMP AS OF`` read earlier versions.

    Tables are named as in the lake, or by their path: ``tiltyard.`/data/readings```. Spark's own parser reads the statement, and Spark
    evaluates what is in it.

    Args:
        session: a classic ``SparkSession``; a Connect client has no parser.
        text: one statement.
        lake: whose tables are meant: a lake, where one is, or a transaction, of which all changes are then part.
        work: from which size on work is done in executors.

    Returns:
        The rows of a query; of a change how many rows it affected, and the version it made.

    Raises:
        InvalidInput: the statement cannot be parsed; the message has the position.
        UnsupportedFeature: the statement is valid, but not supported on these tables.
    """
    return run(session, text, _tables(session, lake, work or Work()))


def _tables(session: SparkSession, lake: ty.Lake | ty.LakeTransaction | str | None, work: Work) -> NamedTables | Work:
    if lake is None:
        return work
    if isinstance(lake, ty.LakeTransaction):
        return TransactionSpark(lake, session, work)
    return LakeSpark(lake if isinstance(lake, ty.Lake) else ty.Lake.open(lake, create=False), session, work)


def run(session: SparkSession, text: str, tables: NamedTables | Work) -> DataFrame:
    """Runs a statement on these tables."""
    names = _Names(session, tables)
    if is_connect(session):
        if isinstance(text, str) and _OURS.search(text):
            raise UnsupportedFeature(
                "A Connect session has no parser, which this statement needs.",
                feature="statements in Connect",
                writing=True,
                advice="Use SparkTable's verbs, or a classic session.",
            )
        return session.sql(text)
    if isinstance(text, str) and Words(text).take("OPTIMIZE"):
        return _optimize(names, text)
    statement = parsed(session, text)
    with _explained():
        doing = _Doing(names, statement)
        changed = doing.change()
        return changed if changed is not None else doing.query()


@contextmanager
def _explained() -> Iterator[None]:
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        raise syntax_error(error) from error


# ---- tables by name --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Names:
    """Which names are tables of ours."""

    session: SparkSession
    tables: NamedTables | Work

    @property
    def work(self) -> Work:
        return self.tables if isinstance(self.tables, Work) else self.tables.work

    def find(self, name: tuple[str, ...]) -> str | None:
        """The name in the lake, or the path after a sign that it is one; None for what is Spark's."""
        if len(name) == 2 and name[0].lower() == PATHS:
            return f"{_PATH}{name[1]}"
        if isinstance(self.tables, Work):
            return None
        known = self.tables.transaction.tables() if isinstance(self.tables, TransactionSpark) else self._lake.tables()
        wanted = ".".join(name)
        if wanted in known:
            return wanted
        same = [name for name in known if name.lower() == wanted.lower()]
        return same[0] if len(same) == 1 else None

    @property
    def _lake(self) -> ty.Lake:
        assert isinstance(self.tables, LakeSpark)
        return self.tables.lake

    def open(self, found: str) -> SparkTable:
        if found.startswith(_PATH):
            return SparkTable.for_path(self.session, found.removeprefix(_PATH), work=self.work)
        assert not isinstance(self.tables, Work)
        return self.tables.table(found)

    def rows(self, found: str, relation: Relation, moment: Any) -> DataFrame:
        """The rows of a table, now or when the statement says."""
        if relation.version is None and moment is None:
            return self.open(found).to_df()
        at: Any = moment
        if relation.version is not None:
            at = int(relation.version) if relation.version.isdigit() else relation.version
        if found.startswith(_PATH):
            table = self.open(found)
            return table.to_df(at) if isinstance(at, int | str) else table.to_df(timestamp=at)
        if isinstance(self.tables, TransactionSpark):
            raise UnsupportedFeature(
                "A transaction reads only its own state: AS OF is not supported in it.",
                feature="AS OF in a transaction",
                advice="Read it outside the transaction.",
            )
        if isinstance(at, int):
            return self.open(found).to_df(at)
        return data_frame(self.session, self._lake.snapshot(at).table(found), chosen=True)


_PATH: Final = "path:"


# ---- statements ------------------------------------------------------------------------------------------------------------


@dataclass
class _Doing:
    """One statement."""

    names: _Names
    statement: Statement

    def change(self) -> DataFrame | None:
        """Runs a statement that changes a table of ours; None if it is none."""
        plan, kind = self.statement.plan, self.statement.kind
        if kind == "OverwriteByExpression":  # so Spark 4.2 reads INSERT INTO ... REPLACE WHERE
            target = target_of(self.statement, plan.table())
            if target is not None and self.names.find(target.relation.name) is not None:
                raise self.statement.refuse("REPLACE WHERE is not supported", plan, "Name the table by the catalog of its lake.")
            return None
        if kind == "UnresolvedWith" or kind not in ("MergeIntoTable", "UpdateTable", "DeleteFromTable", "InsertIntoStatement"):
            return None
        target = target_of(self.statement, plan.targetTable() if kind == "MergeIntoTable" else plan.table())
        found = None if target is None else self.names.find(target.relation.name)
        if target is None or found is None:
            if target is not None and kind != "InsertIntoStatement":
                self._refuse_view(target.relation.name)
            return None
        check_members(plan)
        check_members(target.relation.node)
        table = self.names.open(found)
        with self._with_views(skip=target.relation.start) as statement:
            if kind == "DeleteFromTable":
                return self._delete(statement, table, target)
            if kind == "UpdateTable":
                return self._update(statement, table, target)
            if kind == "MergeIntoTable":
                return self._merge(statement, table, target)
            return self._insert(statement, table)

    def _refuse_view(self, name: tuple[str, ...]) -> None:
        """Spark would end in an internal error."""
        state = self.names.session._jsparkSession.sessionState()
        if len(name) == 1 and state.catalog().getTempView(name[0]).isDefined():
            raise UnsupportedFeature(
                f"{name[0]!r} is a view of this session, which cannot be changed.",
                feature="changing a view",
                writing=True,
                advice="Pass lake= if you mean the table of a lake.",
            )

    def query(self) -> DataFrame:
        """Runs anything else, with our tables in it."""
        if self.statement.kind in _KEEPS_TEXT:
            return self.names.session.sql(self.statement.text)
        with self._with_views() as statement:
            return self.names.session.sql(statement.text)

    @contextmanager
    def _with_views(self, skip: int = -1) -> Iterator[Statement]:
        """The statement with our tables in it replaced by views, which are there for as long as it is analyzed."""
        text, views = self.statement.text, []
        try:
            for relation in reversed(self._all_relations()):
                found = self.names.find(relation.name) if relation.start != skip else None
                if found is None:
                    continue
                check_members(relation.node)
                view = f"_ty_view_{next(_numbers)}"
                self.names.rows(found, relation, self._moment(relation)).createOrReplaceTempView(view)
                views.append(view)
                named = "" if relation.aliased else f" AS `{_last(relation.name).replace('`', '``')}`"
                text = f"{text[: relation.start]}{view}{named}{text[relation.stop + 1 :]}"
            yield self.statement if not views else parsed(self.names.session, text)
        finally:
            for view in views:
                self.names.session.catalog.dropTempView(view)

    def _all_relations(self) -> list[Relation]:
        plan = self.statement.plan
        if self.statement.kind == "InsertIntoStatement":  # the table it fills is no child of it
            return self.statement.relations(plan.query())
        return self.statement.relations()

    def _moment(self, relation: Relation) -> Any:
        if relation.timestamp is None:
            return None
        column = self.statement.column(relation.timestamp).cast("timestamp")
        [row] = self.names.session.range(1).select(column.alias("at")).collect()
        if row["at"] is None:
            raise InvalidInput("TIMESTAMP AS OF needs a timestamp that is not null.", argument="text")
        return row["at"].astimezone() if row["at"].tzinfo is None else row["at"]

    # ---- one for each kind ---------------------------------------------------------------------------------------------------------

    def _delete(self, statement: Statement, table: SparkTable, target: TargetTable) -> DataFrame:
        condition = ColumnFacts(statement.column(statement.plan.condition()), statement.text)
        done = delete_rows(self.names.session, table.table.refresh(), condition, {}, self.names.work, target.alias)
        return self._affected(done)

    def _update(self, statement: Statement, table: SparkTable, target: TargetTable) -> DataFrame:
        values = assignments_of(statement, statement.plan.assignments(), target.alias)
        values = _known_columns(values, table)
        given = option(statement.plan.condition())
        where = None if given is None else ColumnFacts(statement.column(given), statement.text)
        told: dict[str, Any] = {name: ColumnFacts(value, statement.text) for name, value in values.items()}
        done = update_rows(self.names.session, table.table.refresh(), told, where, {}, self.names.work, target.alias)
        return self._affected(done)

    def _insert(self, statement: Statement, table: SparkTable) -> DataFrame:
        plan = statement.plan
        rows = statement.frame(plan.query())
        listed = [str(name) for name in as_list(plan.userSpecifiedCols())]
        if plan.byName():
            if listed:
                raise statement.refuse("A list of columns beside BY NAME", plan)
            rows = rows.toDF(*_known_columns(dict.fromkeys(rows.columns), table))
        else:
            names = listed or table.schema.names
            if len(names) != len(rows.columns):
                raise InvalidInput(f"The statement gives {len(rows.columns)} values for {len(names)} columns.", argument="text")
            if len(set(names)) < len(names):
                raise InvalidInput("The statement names a column twice.", argument="text")
            rows = rows.toDF(*_known_columns(dict.fromkeys(names), table))
        return self._affected(table.replace_rows(rows) if plan.overwrite() else table.append(rows))

    def _merge(self, statement: Statement, table: SparkTable, target: TargetTable) -> DataFrame:
        source = statement.frame(statement.plan.sourceTable())
        statement = _with_owners(statement, table, target.alias, source.columns)
        described = _merge_plan(statement, table, target, source.columns)
        if described.is_plain():  # then nothing looks at further columns of the source
            source = source.select([column for column in source.columns if column in table.schema.names])
        done = merge(self.names.session, table.table.refresh(), source, described, {}, self.names.work)
        return self._affected(done)

    def _affected(self, done: ty.CommitResult) -> DataFrame:
        counts = [done.rows.get(name, 0) for name in ("updated", "deleted", "inserted")]
        columns = "num_affected_rows bigint, num_updated_rows bigint, num_deleted_rows bigint, num_inserted_rows bigint, version bigint"
        return self.names.session.createDataFrame([(sum(counts), *counts, done.version)], columns)


def _last(name: tuple[str, ...]) -> str:
    return name[-1]


def _known_columns(values: Mapping[str, Any], table: SparkTable) -> dict[str, Any]:
    """The same by the names that the table has; Spark does not care about case."""
    known = {name.lower(): name for name in reversed(table.schema.names)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        there = name if name in table.schema.names else known.get(name.lower())
        if there is None:
            raise InvalidInput(
                f"There is no column {name!r}.", argument="text", advice=f"Columns are {', '.join(table.schema.names)[:120]}."
            )
        found[there] = value
    return found


def _with_owners(statement: Statement, table: SparkTable, target: str, given: list[str]) -> Statement:
    """The statement with names qualified where only one side can be meant."""
    plan, source = statement.plan, source_alias(statement.plan.sourceTable())
    places = {place: source for item in as_list(plan.notMatchedActions()) for place in bare_names(item, given, source)}
    for item in as_list(plan.notMatchedBySourceActions()):
        places |= dict.fromkeys(bare_names(item, table.schema.names, target), target)
    text = statement.text
    for place in sorted(places, reverse=True):
        text = f"{text[:place]}`{places[place].replace('`', '``')}`.{text[place:]}"
    return statement if not places else parsed(statement.spark, text)


def _merge_plan(statement: Statement, table: SparkTable, target: TargetTable, given: list[str]) -> SparkMergePlan:
    plan = statement.plan
    source = source_alias(plan.sourceTable())
    same, whole = equal_columns(plan.mergeCondition(), target.alias, source)
    same = list(_known_columns(dict.fromkeys(same), table))
    known = set(given)
    on = tuple(same) if whole and same and all(name in known for name in same) else None
    condition = None if on is not None else ColumnFacts(statement.column(plan.mergeCondition()), statement.text)
    made = SparkMergePlan(on, condition, source=source, target=target.alias, same=frozenset(same))
    reader = _Clauses(statement, table, target.alias, given)
    made = replace(
        made,
        matched=reader.read_all(plan.matchedActions()),
        source_only=reader.read_all(plan.notMatchedActions()),
        target_only=reader.read_all(plan.notMatchedBySourceActions()),
    )
    return made if made.is_plain() else _with_all_columns(made, table)


def _with_all_columns(plan: SparkMergePlan, table: SparkTable) -> SparkMergePlan:
    """The plan with ``*`` spelled out: the source may have further columns, for conditions."""
    every = {name: f"`{plan.source}`.`{name.replace('`', '``')}`" for name in table.schema.names}

    def spelled(clauses: tuple[SparkClause, ...]) -> tuple[SparkClause, ...]:
        return tuple(replace(clause, values=every) if clause.values is None and clause.kind != "delete" else clause for clause in clauses)

    return replace(plan, matched=spelled(plan.matched), source_only=spelled(plan.source_only))


@dataclass(frozen=True)
class _Clauses:
    """Reads the clauses of a merge."""

    statement: Statement
    table: SparkTable
    target: str
    given: list[str]

    def read_all(self, actions: Any) -> tuple[SparkClause, ...]:
        return tuple(self._read(item) for item in as_list(actions))

    def _read(self, action: Any) -> SparkClause:
        kind, text = kind_of(action), self.statement.text
        check_members(action)
        held = option(action.condition())
        condition = None if held is None else ColumnFacts(self.statement.column(held), text)
        if kind == "DeleteAction":
            return SparkClause("delete", condition)
        if kind in ("UpdateStarAction", "InsertStarAction"):
            if missing := [name for name in self.table.schema.names if name not in self.given]:
                raise InvalidInput(f"The source has no column {missing[0]!r}, which * stands for.", argument="text")
            return SparkClause("update" if kind == "UpdateStarAction" else "insert", condition)
        if kind not in ("UpdateAction", "InsertAction"):
            raise self.statement.refuse(f"{kind} is not known", action)
        values = _known_columns(assignments_of(self.statement, action.assignments(), self.target), self.table)
        told = {name: ColumnFacts(value, text) for name, value in values.items()}
        return SparkClause("update" if kind == "UpdateAction" else "insert", condition, told)


def _optimize(names: _Names, text: str) -> DataFrame:
    """``OPTIMIZE`` is not in Spark's grammar: it is read word by word."""
    words = Words(text)
    words.take("OPTIMIZE")
    words.take("TABLE")
    parts = words.name()
    if parts is None:
        raise InvalidInput("OPTIMIZE needs a table's name.", argument="text", advice=ADVICE)
    clauses = OptimizeClauses.read(words)
    found = names.find(parts)
    if found is None:
        raise NotFound(f"There is no table {'.'.join(parts)!r} to optimize.", name=".".join(parts))
    columns = "fragments_before bigint, fragments_after bigint, version bigint"
    return names.session.createDataFrame([optimized(names.open(found), clauses)], columns)
