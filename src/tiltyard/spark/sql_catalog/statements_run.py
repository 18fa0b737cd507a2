"""Statements that write to a lake, from their plan to one commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

import tiltyard as ty
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.placement import Work
from tiltyard.spark.source_options import Options
from tiltyard.spark.spark_expressions import ColumnFacts
from tiltyard.spark.spark_lake import LakeSpark, TransactionSpark
from tiltyard.spark.sql_catalog.catalog_changes import TableToMake
from tiltyard.spark.sql_catalog.catalog_tables import dotted, name_in, open_lake
from tiltyard.spark.sql_catalog.row_statements import change_rows
from tiltyard.spark.statements.plan_members import INTERNAL, check_used
from tiltyard.spark.statements.sql_plans import as_list, kind_of, option
from tiltyard.spark.write.row_verbs import delete_rows
from tiltyard.spark.write.schema_fit import new_columns
from tiltyard.spark.write.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Request = Mapping[str, Any]

USED: Final[Mapping[str, frozenset[str]]] = {
    # The plan that was analyzed is kept for Spark's own cache, and the write is what our table class answered.
    # Columns that WITH SCHEMA EVOLUTION adds, the catalog added before.
    "AppendData": frozenset({"table", "query", "writeOptions", "isByName", "withSchemaEvolution", "write", "analyzedQuery"}),
    "OverwriteByExpression": frozenset(
        {"table", "deleteExpr", "query", "writeOptions", "isByName", "withSchemaEvolution", "write", "analyzedQuery"}
    ),
    "InsertOnlyMerge": frozenset({"table", "query", "write", "analyzedQuery"}),
    "WriteDelta": frozenset({"table", "condition", "query", "originalTable", "projections", "groupFilterCondition", "write"}),
    "CreateTableAsSelect": frozenset({"name", "partitioning", "query", "tableSpec", "writeOptions", "ignoreIfExists", "isAnalyzed"}),
    "ReplaceTableAsSelect": frozenset({"name", "partitioning", "query", "tableSpec", "writeOptions", "orCreate", "isAnalyzed"}),
    "ReplaceTable": frozenset({"name", "columns", "partitioning", "tableSpec", "orCreate"}),
    "TableSpec": frozenset({"properties", "provider", "options", "location", "comment", "external"}),
}
"""What is read of each plan; what else one says is refused by name."""

CLAUSES: Final = {
    "collation": "DEFAULT COLLATION",
    "serde": "ROW FORMAT or STORED AS",
    "constraints": "CONSTRAINT",
}
"""How the members that are refused are written in a statement."""

_MAKES: Final = ("CreateTableAsSelect", "ReplaceTableAsSelect", "ReplaceTable")
_OPTIONS: Final = ("message", "properties", "on_duplicate", "max_rows_per_file", "max_bytes_per_file", "retries")


def execute(session: SparkSession, request: Request, plan: Any) -> bool:
    """Runs a statement that the JVM planned."""
    kind = kind_of(plan)
    verb = _VERBS.get(kind)
    if verb is None:
        raise UnsupportedFeature(f"{kind} is not supported on tables of a lake.", feature=kind, writing=True)
    check_used(plan, USED, CLAUSES)
    verb(session, request, plan)
    return True


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """The rows of a part of a plan that Spark analyzed and optimized already."""
    from pyspark.sql import DataFrame

    plan.setAnalyzed()
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def _tables(session: SparkSession, request: Request) -> tuple[LakeSpark, str]:
    lake = open_lake(request)
    return LakeSpark(lake, session, Work()), name_in(lake, request["name"])


def options_of(plan: Any) -> WriteOptions:
    """Options of the write, which a statement gives by WITH (...) and a data frame by ``option``."""
    told = _mapping(plan.writeOptions()) if "writeOptions" in USED[kind_of(plan)] else {}
    if kind_of(plan) not in _MAKES:
        there = plan.table().options()
        told |= {str(name): str(there.get(name)) for name in there.keySet() if not str(name).startswith(INTERNAL)}
    given = Options(told)
    given.require_known(_OPTIONS, "write to a table by name", targets=False)
    return WriteOptions.of(given)


def _mapping(scala: Any) -> dict[str, str]:
    found, pairs = {}, scala.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1())] = str(pair._2())
    return found


def _append(session: SparkSession, request: Request, plan: Any) -> None:
    tables, name = _tables(session, request)
    how = options_of(plan)
    table = tables.table(name)
    rows = _named(session, plan, table.schema.names)
    table.append(rows, on_duplicate=how.on_duplicate, message=how.message, commit=how.commit(), files=how.files)


def _named(session: SparkSession, plan: Any, names: list[str]) -> DataFrame:
    """The rows that Spark lined up with the columns of the table, by the table's names: which must be what they were then."""
    if [str(item.name()) for item in as_list(plan.table().output())] != names:
        raise InvalidInput("The table's columns changed while the statement was planned.", argument="table", advice="Run it again.")
    return frame_of(session, plan.query()).toDF(*names)


def _overwrite(session: SparkSession, request: Request, plan: Any) -> None:
    tables, name = _tables(session, request)
    how, doomed = options_of(plan), plan.deleteExpr()
    table = tables.table(name)
    rows = _named(session, plan, table.schema.names)
    told: dict[str, Any] = {"message": how.message, "commit": how.commit()}
    if str(doomed.toString()) == "true":
        table.replace_rows(rows, on_duplicate=how.on_duplicate, files=how.files, **told)
        return
    condition = ColumnFacts(_column(session, doomed), " ".join(table.schema.names))
    with tables.lake.transaction(message=how.message) as tx:
        staged = tx.spark(session).table(name)
        delete_rows(session, staged.table, condition, told, staged.work)
        staged.append(rows, on_duplicate=how.on_duplicate, files=how.files, **told)


def _column(session: SparkSession, expression: Any) -> Any:
    """A resolved condition over a table as one by the names of its columns."""
    from pyspark.sql.classic.column import Column

    jvm: Any = session._jvm
    return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(_unresolved(jvm, expression)))


def _unresolved(jvm: Any, expression: Any) -> Any:
    if kind_of(expression) == "AttributeReference":
        name = jvm.java.util.ArrayList()
        name.add(str(expression.name()))
        return jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute(_seq(jvm, name))
    children = jvm.java.util.ArrayList()
    for child in as_list(expression.children()):
        children.add(_unresolved(jvm, child))
    return expression.withNewChildren(_seq(jvm, children)) if children.size() else expression


def _seq(jvm: Any, given: Any) -> Any:
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(given).toSeq()


# ---- tables that a statement makes -------------------------------------------------------------------------------------------


def _spec(plan: Any) -> TableToMake:
    """What the statement says of the table, beside its columns."""
    spec = plan.tableSpec()
    check_used(spec, USED, CLAUSES)
    given = _mapping(spec.properties())
    default = str(plan.conf().defaultDataSourceName())
    for name in ("provider", "location", "comment"):
        if (value := option(getattr(spec, name)())) is not None:
            given[name] = str(value)
    if given.get("provider") == default and not plan.name().origin().sqlText().isDefined():
        del given["provider"]  # ``saveAsTable`` names one, whether the caller did or not
    if spec.external():
        given["external"] = "true"
    if options := _mapping(spec.options()):
        raise InvalidInput(f"OPTIONS ({next(iter(options))}) says nothing to a lake.", argument="options", advice="Use TBLPROPERTIES.")
    cuts = [str(item.describe()) for item in as_list(plan.partitioning())]
    return TableToMake(given, cuts)


def _create_as(session: SparkSession, request: Request, plan: Any) -> None:
    lake, name = open_lake(request), dotted(request["name"])
    new, how = _spec(plan), options_of(plan)
    if name in lake.tables():
        if plan.ignoreIfExists():
            return
        raise ty.AlreadyExists(f"There is a table {name!r} already.", name=name)
    rows = frame_of(session, plan.query())
    with lake.transaction(message=how.message) as tx:
        _fill(tx.spark(session), name, rows, new, how)


def _fill(tables: TransactionSpark, name: str, rows: DataFrame, new: TableToMake, how: WriteOptions) -> None:
    """Makes the table in a transaction, with its rows."""
    schema = new_columns(rows.schema, new.options.vectors)
    _make(tables.transaction, name, schema, new)
    tables.table(name).append(rows, on_duplicate=how.on_duplicate, message=how.message, files=how.files)


def _make(tx: ty.LakeTransaction, name: str, schema: pa.Schema, new: TableToMake) -> None:
    how = new.options
    tx.create_table(name, schema, primary_key=how.primary_key, stable_row_ids=how.stable_row_ids, options=new.table_options)


def _replace_as(session: SparkSession, request: Request, plan: Any) -> None:
    lake, name = open_lake(request), dotted(request["name"])
    new, how = _spec(plan), options_of(plan)
    _require_there(lake, name, plan)
    rows = frame_of(session, plan.query())
    with lake.transaction(message=how.message) as tx:
        tables = tx.spark(session)
        if name not in tx.tables():
            _fill(tables, name, rows, new, how)
            return
        table = tables.table(name)
        schema = new_columns(rows.schema, new.options.vectors)
        table.overwrite_as(rows, schema, primary_key=new.options.primary_key or (), on_duplicate=how.on_duplicate, files=how.files)
        _keep_properties(table.table, new)


def _replace(session: SparkSession, request: Request, plan: Any) -> None:
    lake, name = open_lake(request), dotted(request["name"])
    new = _spec(plan)
    _require_there(lake, name, plan)
    schema = new.schema(StructType.fromJson(json.loads(str(plan.tableSchema().json()))))
    with lake.transaction() as tx:
        if name not in tx.tables():
            _make(tx, name, schema, new)
            return
        table = tx.table(name)
        table.overwrite(schema.empty_table(), primary_key=new.options.primary_key or ())
        _keep_properties(table, new)


def _keep_properties(table: ty.TableWriter, new: TableToMake) -> None:
    """A table that is replaced stays the same table, with its history: what is decided when one is made cannot be another."""
    for name in new.decided:
        if name in ("data_format", "stable_row_ids"):
            raise InvalidInput(f"Property {name!r} is decided when a table is made.", argument=name, advice="Drop the table first.")
    if new.config:
        table.update_config(new.config)


def _require_there(lake: ty.Lake, name: str, plan: Any) -> None:
    if not plan.orCreate() and name not in lake.tables():
        raise ty.NotFound(f"There is no table {name!r} to replace.", name=name, advice="Write CREATE OR REPLACE TABLE.")


_VERBS: Final[Mapping[str, Callable[[SparkSession, Request, Any], None]]] = {
    "AppendData": _append,
    "OverwriteByExpression": _overwrite,
    "WriteDelta": change_rows,
    "InsertOnlyMerge": change_rows,
    "CreateTableAsSelect": _create_as,
    "ReplaceTableAsSelect": _replace_as,
    "ReplaceTable": _replace,
}
