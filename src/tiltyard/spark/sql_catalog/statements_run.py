"""Statements that write to a lake, from their plan to one commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

import tiltyard as ty
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.placement import Work
from tiltyard.spark.sharded_spark import is_sharded, parts_of, shard_addresses
from tiltyard.spark.source_options import Options
from tiltyard.spark.spark_expressions import ColumnFacts, checked_expression
from tiltyard.spark.spark_lake import TransactionSpark
from tiltyard.spark.sql_catalog.catalog_changes import TableToMake, refuse
from tiltyard.spark.sql_catalog.catalog_tables import dotted, name_in
from tiltyard.spark.sql_catalog.open_transactions import EVOLUTIONS, Tables, run_in
from tiltyard.spark.sql_catalog.replace_statements import replace_rows, replaced_by
from tiltyard.spark.sql_catalog.row_statements import change_rows
from tiltyard.spark.sql_catalog.self_reads import SelfReads
from tiltyard.spark.statements.plan_members import INTERNAL, check_used
from tiltyard.spark.statements.sql_plans import as_list, kind_of, option
from tiltyard.spark.write.row_layout import PARTITIONED_BY, columns_of
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
    "OverwritePartitionsDynamic": frozenset({"table", "query", "writeOptions", "isByName", "withSchemaEvolution", "write"}),
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

_REPLACES: Final = ("OverwriteByExpression", "OverwritePartitionsDynamic", "ReplaceTableAsSelect")
_MAKES: Final = ("CreateTableAsSelect", "ReplaceTableAsSelect", "ReplaceTable")
_OPTIONS: Final = ("message", "properties", "on_duplicate", "max_rows_per_file", "max_bytes_per_file", "retries")
_MOST_PARTITIONS: Final = 1000
_REPLACE_WHERE: Final = "replacewhere"
_OVERWRITE_SCHEMA: Final = "overwriteschema"
_MERGE_SCHEMA: Final = "mergeschema"
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    # Spark lets no row pass that has more columns than the table: what comes here fits, and there is nothing to merge.
    "AppendData": (_MERGE_SCHEMA,),
    "OverwriteByExpression": (_REPLACE_WHERE,),
    "CreateTableAsSelect": (_OVERWRITE_SCHEMA, _MERGE_SCHEMA),
    "ReplaceTableAsSelect": (_REPLACE_WHERE, _OVERWRITE_SCHEMA),
}
"""Options that users of Delta know, by the plans in which they say what happens here."""


def execute(session: SparkSession, request: Request, plan: Any, where: Tables) -> bool:
    """Runs a statement that the JVM planned; with columns that it adds for itself, in the same commit."""
    kind = kind_of(plan)
    verb = _VERBS.get(kind)
    if verb is None:
        raise UnsupportedFeature(f"{kind} is not supported on tables of a lake.", feature=kind, writing=True)
    check_used(plan, USED, CLAUSES)
    with EVOLUTIONS.taken(request["mark"]) as alter:
        reads = _replaced_reads(session, request, plan, where)
        if alter is None and not reads:
            verb(session, request, plan, where)
            return True
        name, how = name_in(where, request["name"]), options_of(plan)

        def work(tx: ty.LakeTransaction) -> None:
            if alter is not None:
                alter(tx.table(name))
            with reads.pinned(shard_addresses(tx.table(name))) if reads else nullcontext():
                verb(session, request, plan, tx)

        run_in(where, work, how.message, how.commit(), isolation="serializable" if reads else "snapshot")
    return True


def _replaced_reads(session: SparkSession, request: Request, plan: Any, where: Tables) -> SelfReads:
    """Where a statement reads the rows that it replaces; one that only adds rows takes none from anybody."""
    replacing = kind_of(plan) in _REPLACES or (kind_of(plan) == "AppendData" and replaced_by(plan) is not None)
    if not replacing or dotted(request["name"]).lower() not in (name.lower() for name in where.tables()):
        return SelfReads()
    name = name_in(where, request["name"])
    # As it will be executed: of a statement that makes a table Spark does not look for cached rows before.
    query: Any = frame_of(session, plan.query())._jdf.queryExecution().withCachedData()
    return SelfReads.of(request, name, query).and_fixed(query, lambda: where.table(name))


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """The rows of a part of a plan that Spark analyzed and optimized already."""
    from pyspark.sql import DataFrame

    plan.setAnalyzed()
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def given_options(plan: Any) -> Options:
    """Options of the write, which a statement gives by WITH (...) and a data frame by ``option``.

    Raises:
        InvalidInput: one is not known, or says nothing here.
    """
    kind = kind_of(plan)
    told = _mapping(plan.writeOptions()) if "writeOptions" in USED[kind] else {}
    if kind not in _MAKES:
        there = plan.table().options()
        told |= {str(name): str(there.get(name)) for name in there.keySet() if not str(name).startswith(INTERNAL)}
    given = Options(told)
    given.require_known((*_OPTIONS, *_ALSO.get(kind, ())), "write to a table by name", targets=False)
    return given


def options_of(plan: Any) -> WriteOptions:
    """How rows are written and committed."""
    return WriteOptions.of(given_options(plan))


def _mapping(scala: Any) -> dict[str, str]:
    found, pairs = {}, scala.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1())] = str(pair._2())
    return found


def _append(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    how = options_of(plan)
    table = where.spark(session, Work()).table(name_in(where, request["name"]))
    replaced = replaced_by(plan)
    if replaced is not None:  # as it was analyzed: what Spark keeps of the rows is found again only so
        rows = _named(session, plan, table.schema.names, option(plan.analyzedQuery()))
        replace_rows(where, name_in(where, request["name"]), rows, replaced, how)
        return
    rows = _named(session, plan, table.schema.names)
    table.append(rows, on_duplicate=how.on_duplicate, message=how.message, commit=how.commit(), files=how.files)


def _named(session: SparkSession, plan: Any, names: list[str], query: Any = None) -> DataFrame:
    """The rows that Spark lined up with the columns of the table, by the table's names: which must be what they were then."""
    if [str(item.name()) for item in as_list(plan.table().output())] != names:
        raise InvalidInput("The table's columns changed while the statement was planned.", argument="table", advice="Run it again.")
    return frame_of(session, plan.query() if query is None else query).toDF(*names)


def _overwrite(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    how, doomed = options_of(plan), plan.deleteExpr()
    name = name_in(where, request["name"])
    table = where.spark(session, Work()).table(name)
    rows = _named(session, plan, table.schema.names)
    text = given_options(plan).text(_REPLACE_WHERE)
    if str(doomed.toString()) != "true":
        if text is not None:
            raise InvalidInput("Option replaceWhere cannot be combined with another condition.", argument=_REPLACE_WHERE)
        _replace_where(session, where, name, rows, ColumnFacts(_column(session, doomed), " ".join(table.schema.names)), how)
    elif text is not None:
        _replace_where(session, where, name, rows, _fitting(rows, text), how)
    else:
        table.replace_rows(rows, on_duplicate=how.on_duplicate, files=how.files, message=how.message, commit=how.commit())


def _fitting(rows: DataFrame, text: str) -> ColumnFacts:
    """The condition of option replaceWhere, which all new rows fulfil.

    Raises:
        InvalidInput: one does not, and so would not be replaced by the same write another time.
    """
    from pyspark.sql import functions as f

    condition = ColumnFacts(checked_expression(text, "replaceWhere"), text)
    if not rows.filter(~f.coalesce(condition.column, f.lit(False))).isEmpty():
        raise InvalidInput(
            f"A row does not fulfil replaceWhere {text[:80]!r}.",
            argument=_REPLACE_WHERE,
            advice="Filter the rows, or use overwrite(condition).",
        )
    return condition


def _replace_where(session: SparkSession, where: Tables, name: str, rows: DataFrame, condition: ColumnFacts, how: WriteOptions) -> None:
    """Deletes what a condition holds for and adds rows, together."""

    def work(tx: ty.LakeTransaction) -> None:
        staged = tx.spark(session).table(name)
        told: dict[str, Any] = {"message": how.message, "commit": how.commit()}
        for part in parts_of(staged):
            delete_rows(session, part.table, condition, told, part.work)
        staged.append(rows, on_duplicate=how.on_duplicate, files=how.files, **told)

    run_in(where, work, how.message, how.commit())


def _overwrite_partitions(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    """Replaces the rows that have, in the columns that the table is partitioned by, values that new rows have."""
    how, name = options_of(plan), name_in(where, request["name"])
    table = where.spark(session, Work()).table(name)
    columns = columns_of(table.table, PARTITIONED_BY)
    if not columns:
        raise refuse("Overwriting partitions of a table without PARTITIONED BY", "Use writeTo(table).overwrite(condition).")
    rows = _named(session, plan, table.schema.names).persist()  # so that both looks at them see the same ones
    try:
        found = rows.select([_by_name(column) for column in columns]).distinct().limit(_MOST_PARTITIONS + 1).collect()
        if len(found) > _MOST_PARTITIONS:
            raise refuse(f"Overwriting more than {_MOST_PARTITIONS} partitions at once", "Use writeTo(table).overwrite(condition).")
        if found:
            condition = ColumnFacts(_one_of(columns, found), " ".join(columns))
            _replace_where(session, where, name, rows, condition, how)
    finally:
        rows.unpersist()


def _by_name(column: str) -> Any:
    from pyspark.sql import functions as f

    return f.col(f"`{column.replace('`', '``')}`")


def _one_of(columns: tuple[str, ...], found: list[Any]) -> Any:
    """That the columns have one of these values; null is one."""
    if len(columns) == 1:
        values = [row[0] for row in found if row[0] is not None]
        there = _by_name(columns[0]).isin(values)
        return there if len(values) == len(found) else there | _by_name(columns[0]).isNull()
    tests = [reduce(and_, (_by_name(name).eqNullSafe(value) for name, value in zip(columns, row, strict=True))) for row in found]
    while len(tests) > 1:  # in pairs: a long chain would be as deep as it is long
        tests = [reduce(or_, tests[place : place + 2]) for place in range(0, len(tests), 2)]
    return tests[0]


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
        raise InvalidInput(f"OPTIONS ({next(iter(options))}) has no meaning for a lake.", argument="options", advice="Use TBLPROPERTIES.")
    return TableToMake(given, [_described(item) for item in as_list(plan.partitioning())])


def _described(transform: Any) -> dict[str, Any]:
    columns = [[str(part) for part in reference.fieldNames()] for reference in transform.references()]
    return {"name": str(transform.name()), "text": str(transform.toString()), "columns": columns}


def _create_as(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    name = dotted(request["name"])
    new, how = _spec(plan), options_of(plan)
    if name in where.tables():
        if plan.ignoreIfExists():
            return
        raise ty.AlreadyExists(f"There is a table {name!r} already.", name=name)
    rows = frame_of(session, plan.query())
    run_in(where, lambda tx: _fill(tx.spark(session), name, rows, new, how), how.message, how.commit())


def _fill(tables: TransactionSpark, name: str, rows: DataFrame, new: TableToMake, how: WriteOptions) -> None:
    """Makes the table in a transaction, with its rows."""
    schema = new_columns(rows.schema, new.options.vectors)
    _make(tables.transaction, name, schema, new)
    tables.table(name).append(rows, on_duplicate=how.on_duplicate, message=how.message, files=how.files)


def _make(tx: ty.LakeTransaction, name: str, schema: pa.Schema, new: TableToMake) -> None:
    how = new.options
    tx.create_table(name, schema, primary_key=how.primary_key, stable_row_ids=how.stable_row_ids, options=new.table_options)


def _replace_as(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    name = dotted(request["name"])
    new, how = _spec(plan), options_of(plan)
    _require_there(where, name, plan)
    rows = frame_of(session, plan.query())
    given = given_options(plan)
    if (text := given.text(_REPLACE_WHERE)) is not None and name in where.tables():
        _replace_where(session, where, name, rows, _fitting(rows, text), how)
        return
    if not given.boolean(_OVERWRITE_SCHEMA, True):
        raise InvalidInput(
            "This write replaces the columns too.", argument=_OVERWRITE_SCHEMA, advice="Use insertInto(table, overwrite=True)."
        )

    def work(tx: ty.LakeTransaction) -> None:
        tables = tx.spark(session)
        if name not in tx.tables():
            _fill(tables, name, rows, new, how)
            return
        table = tables.table(name)
        schema = new_columns(rows.schema, new.options.vectors)
        table.overwrite_as(rows, schema, primary_key=_key_of(table.table, new, schema), on_duplicate=how.on_duplicate, files=how.files)
        _keep_properties(table.table, new)

    run_in(where, work, how.message, how.commit())


def _replace(session: SparkSession, request: Request, plan: Any, where: Tables) -> None:
    name = dotted(request["name"])
    new = _spec(plan)
    _require_there(where, name, plan)
    schema = new.schema(StructType.fromJson(json.loads(str(plan.tableSchema().json()))))

    def work(tx: ty.LakeTransaction) -> None:
        if name not in tx.tables():
            _make(tx, name, schema, new)
            return
        table = tx.table(name)
        table.overwrite(schema.empty_table(), primary_key=_key_of(table, new, schema))
        _keep_properties(table, new)

    run_in(where, work)


def _key_of(table: ty.TableReader, new: TableToMake, schema: pa.Schema) -> Sequence[str]:
    """The key of a table once it is replaced. A sharded one keeps its own if none is given: by that, rows find their shards."""
    given = new.options.primary_key
    if not is_sharded(table):
        return given or ()
    kept, shard_by = table.primary_key if given is None else given, getattr(table, "shard_by", ())
    if missing := [name for name in (*shard_by, *kept) if name not in kept or name not in schema.names]:
        raise refuse(
            f"Replacing a table that is sharded by {', '.join(shard_by)} by one without {missing[0]} in its key",
            f"Select {', '.join(shard_by)} and set 'primary_key' to columns with it, or drop the table and make another.",
        )
    return kept


def _keep_properties(table: ty.TableWriter, new: TableToMake) -> None:
    """A table that is replaced stays the same table, with its history: what is decided when one is made cannot be another."""
    for name in new.decided:
        if name in ("data_format", "stable_row_ids"):
            raise InvalidInput(f"Property {name!r} is decided when a table is made.", argument=name, advice="Drop the table first.")
    if new.config:
        table.update_config(new.config)


def _require_there(where: Tables, name: str, plan: Any) -> None:
    if not plan.orCreate() and name not in where.tables():
        raise ty.NotFound(f"There is no table {name!r} to replace.", name=name, advice="Write CREATE OR REPLACE TABLE.")


_VERBS: Final[Mapping[str, Callable[[SparkSession, Request, Any, Tables], None]]] = {
    "AppendData": _append,
    "OverwriteByExpression": _overwrite,
    "OverwritePartitionsDynamic": _overwrite_partitions,
    "WriteDelta": change_rows,
    "InsertOnlyMerge": change_rows,
    "CreateTableAsSelect": _create_as,
    "ReplaceTableAsSelect": _replace_as,
    "ReplaceTable": _replace,
}
