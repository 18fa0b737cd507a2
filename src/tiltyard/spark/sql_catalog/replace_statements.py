"""INSERT INTO ... REPLACE USING and REPLACE ON: rows that match one of the new rows go, and all new rows come, in one commit.

Spark parses both and can analyze neither. The parsed statement becomes a plain INSERT of the same rows, which Spark lines up with the
table's columns, and says by an option which rows it replaces. Rows are compared as they are written (USING), or as the query gives them
(ON); for both uses they are computed once. A query without rows replaces nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.spark.sharded_spark import parts_of
from tiltyard.spark.spark_expressions import ColumnFacts
from tiltyard.spark.sql_catalog.open_transactions import Tables, run_in
from tiltyard.spark.statements.plan_members import INTERNAL, check_used, members_of
from tiltyard.spark.statements.sql_plans import as_list, kind_of, option
from tiltyard.spark.write.row_verbs import Matching, delete_matching
from tiltyard.spark.write.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USED: Final[Mapping[str, frozenset[str]]] = {
    "InsertReplaceUsing": frozenset({"cols"}),
    "InsertReplaceOn": frozenset({"cond", "tableAliasOpt"}),
}
"""What is read of each way to say which rows are replaced."""

OPTION: Final = f"{INTERNAL}tiltyard_replaces"
_KEPT: Final = 64
_TARGET: Final = "_ty_target"
_SOURCE: Final = "_ty_source"


@dataclass(frozen=True)
class Replaced:
    """Which rows a statement replaces.

    Attributes:
        source: the rows of its query, under their own names.
        columns: by equal values of which; none where a condition says it.
        condition: over the table and the query.
        text: the condition as it was written.
        alias: what the condition calls the table.
    """

    source: DataFrame
    columns: tuple[str, ...] = ()
    condition: Any = None
    text: str = ""
    alias: str = _TARGET


class _Statements:
    """What was parsed and is not executed yet. One that is only explained is forgotten when others come."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Replaced] = OrderedDict()
        self._lock = Lock()

    def keep(self, replaced: Replaced) -> str:
        key = uuid4().hex
        with self._lock:
            self._found[key] = replaced
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return key

    def get(self, key: str) -> Replaced:
        with self._lock:
            found = self._found.get(key)
        if found is None:
            raise InvalidInput("The statement was parsed too long ago.", argument="text", advice="Run it again.")
        return found


_STATEMENTS: Final = _Statements()


def as_insert(session: SparkSession, plan: Any) -> Any:
    """A parsed INSERT ... REPLACE USING or ON as one that Spark can analyze; it may have WITH before it."""
    from pyspark.sql import DataFrame

    insert = plan.child() if kind_of(plan) == "UnresolvedWith" else plan
    query = insert.query() if insert is plan else _with(plan, child=insert.query())
    jvm: Any = session._jvm
    source = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, query), session)
    key = _STATEMENTS.keep(_replaced(insert, source, option(insert.replaceCriteriaOpt())))
    relation = insert.table()
    options = jvm.java.util.HashMap(relation.options().asCaseSensitiveMap())
    options.put(OPTION, key)
    return _with(
        insert,
        table=_with(relation, options=jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)),
        query=source._jdf.queryExecution().analyzed(),
        overwrite=False,
        replaceCriteriaOpt=jvm.scala.Option.empty(),
    )


def _with(node: Any, **members: Any) -> Any:
    """The same node of a plan with some members replaced."""
    return node.copy(*(members.get(name, value) for name, value in members_of(node)))


def _replaced(insert: Any, source: DataFrame, criteria: Any) -> Replaced:
    from pyspark.sql.classic.column import Column

    check_used(criteria, USED, {})
    if kind_of(criteria) == "InsertReplaceUsing":
        return Replaced(source, tuple(str(name) for name in as_list(criteria.cols())))
    jvm: Any = source.sparkSession._jvm
    condition = Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(criteria.cond()))
    named = option(criteria.tableAliasOpt())
    alias = str(named if named is not None else as_list(insert.table().multipartIdentifier())[-1])
    return Replaced(source, (), condition, str(criteria.cond().sql()), alias)


def replaced_by(plan: Any) -> Replaced | None:
    """Which rows the INSERT that is executed replaces; None for a plain one."""
    key = plan.table().options().get(OPTION)
    return None if key is None else _STATEMENTS.get(str(key))


def replace_rows(where: Tables, name: str, rows: DataFrame, replaced: Replaced, how: WriteOptions) -> None:
    """Deletes what matches a row of the query and adds all rows, together.

    Args:
        where: the lake, or the transaction that is open.
        name: the table.
        rows: of the query, lined up with the table's columns.
        replaced: which rows go.
        how: of the write.
    """
    session = rows.sparkSession
    source = (rows if replaced.columns else replaced.source).persist()  # so that both looks at them see the same ones
    try:
        matching = _by_columns(where.table(name), source, replaced.columns) if replaced.columns else _by_condition(source, replaced)

        def work(tx: ty.LakeTransaction) -> None:
            staged = tx.spark(session).table(name)
            told: dict[str, Any] = {"message": how.message, "commit": how.commit()}
            for part in parts_of(staged):
                delete_matching(session, part.table, matching, told, part.work)
            staged.append(rows, on_duplicate=how.on_duplicate, files=how.files, **told)

        run_in(where, work, how.message, how.commit())
    finally:
        source.unpersist()


def _by_columns(table: ty.TableReader, source: DataFrame, columns: Sequence[str]) -> Matching:
    from pyspark.sql import functions as f

    known = {name.lower(): name for name in table.schema.names}
    for column in columns:
        if column.lower() not in known:
            raise InvalidInput(f"The table has no column {column[:60]!r}, which REPLACE USING names.", argument="text")
    names = [f"`{known[column.lower()].replace('`', '``')}`" for column in columns]
    condition = reduce(and_, (f.col(f"{_TARGET}.{name}") == f.col(f"{_SOURCE}.{name}") for name in names))
    return Matching(source.select(*names).alias(_SOURCE), ColumnFacts(condition, " ".join(names)), _TARGET)


def _by_condition(source: DataFrame, replaced: Replaced) -> Matching:
    return Matching(source, ColumnFacts(replaced.condition, replaced.text), replaced.alias)
