"""Stored procedures: ``CALL lake.system.compact(table => 'orders')``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as st

from tiltyard.errors import InvalidInput, NotFound, UnsupportedFeature
from tiltyard.spark.read.datasets import forget_statistics
from tiltyard.spark.sharded_spark import is_sharded
from tiltyard.spark.spark_lake import LakeSpark
from tiltyard.spark.sql_catalog.branch_procedures import BRANCH_PROCEDURES
from tiltyard.spark.sql_catalog.catalog_tables import name_in, open_lake
from tiltyard.spark.sql_catalog.metadata_tables import told
from tiltyard.spark.sql_catalog.procedure_types import Parameter, Procedure, Values
from tiltyard.spark.statements.optimizing import optimized
from tiltyard.spark.statements.statement_words import OptimizeClauses, column_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Request = Mapping[str, Any]
NAMESPACE: Final = "system"
LEAST_HOURS: Final = 168
"""What VACUUM keeps, here as elsewhere: longer than any query or write takes."""
_MOST_FILES: Final = 1000
"""Files of a table that VACUUM lists."""
_TYPES: Final[Mapping[str, st.DataType]] = {"string": st.StringType(), "bigint": st.LongType(), "boolean": st.BooleanType()}


def _table(tables: LakeSpark, values: Values) -> str:
    return name_in(tables.lake, str(values["table"]).split("."))


def _compact(tables: LakeSpark, values: Values) -> list[Any]:
    table = tables.table(_table(tables, values))
    columns = () if values["cluster_by"] is None else column_list(str(values["cluster_by"]))
    if values["full"] and columns:
        raise InvalidInput("full sorts by the columns of CLUSTER BY: pass either full or cluster_by.", argument="full")
    return list(optimized(table, OptimizeClauses(values["where"], columns, bool(values["full"])), values["target_rows"]))


def _analyze(tables: LakeSpark, values: Values) -> list[Any]:
    table = tables.table(_table(tables, values)).table.refresh()
    if is_sharded(table):
        raise UnsupportedFeature(
            "ANALYZE TABLE is not supported on sharded tables: statistics are of the files of each shard.",
            feature="ANALYZE TABLE of sharded tables",
            writing=True,
            advice="Nothing has to be done instead: filters and joins work without them.",
        )
    if values["scan"] is False:
        found = table.layout.statistics()
    else:
        alike = {name.lower(): name for name in table.schema.names}
        asked = None if values["columns"] is None else [name.strip() for name in str(values["columns"]).split(",")]
        found = table.maintenance.analyze(None if asked is None else [alike.get(name.lower(), name) for name in asked])
        forget_statistics()
    return [found.version, found.rows, found.fragments, found.analyzed, len(found.columns)]


def _cleanup(tables: LakeSpark, values: Values) -> list[Any]:
    days, hours = values["older_than_days"], values["older_than_hours"]
    if days is not None and hours is not None:
        raise InvalidInput("Pass either older_than_days or older_than_hours.", argument="older_than_hours")
    report = tables.lake.cleanup(
        older_than=None if days is None and hours is None else timedelta(days=days or 0, hours=hours or 0),
        keep_snapshots=values["keep_snapshots"],
        dry_run=bool(values["dry_run"]),
    )
    return [str(report)]


def _vacuum(tables: LakeSpark, values: Values) -> list[Any]:
    """Cleans up the lake; a row for each table that files go from, the one that was named first."""
    named = _table(tables, values)
    tables.lake.table(named)
    hours = LEAST_HOURS if values["retain_hours"] is None else int(values["retain_hours"])
    if hours < LEAST_HOURS:
        raise UnsupportedFeature(
            f"VACUUM keeps {LEAST_HOURS} hours at least, and RETAIN says {hours}.",
            feature="VACUUM ... RETAIN",
            writing=True,
            advice=f"CALL system.cleanup(older_than_hours => {hours}) does it, for all tables of the lake.",
        )
    report = tables.lake.cleanup(older_than=timedelta(hours=hours), dry_run=bool(values["dry_run"]))
    told = {name: found for name, found in report.tables.items() if found.removed or found.versions or name == named}
    rows = []
    for name in sorted(told, key=lambda name: (name != named, name)):
        found = told[name]
        files = [{"path": file.path, "kind": file.kind, "bytes": file.bytes} for file in found.removed[:_MOST_FILES]]
        rows.append([name, len(found.versions), len(found.removed), found.bytes, json.dumps(files)])
    return rows


def _create_index(tables: LakeSpark, values: Values) -> list[Any]:
    table = tables.table(_table(tables, values))
    done = table.create_index(values["column"], values["type"] or "BTREE", values["name"], replace=bool(values["replace"]))
    return [done.version]


def _restore(tables: LakeSpark, values: Values) -> list[Any]:
    if (values["version"] is None) == (values["tag"] is None):
        raise InvalidInput("Pass either version or tag, to say which state is restored.", argument="version")
    name = _table(tables, values)
    version = values["version"]
    if version is None:
        version = tables.lake.snapshot(str(values["tag"])).table(name).version
    return [tables.lake.table(name).restore(int(version)).version]


def _rollback(tables: LakeSpark, values: Values) -> list[Any]:
    name = _table(tables, values)
    table = tables.lake.table(name)
    moment = datetime.fromisoformat(str(values["timestamp"]))
    at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return [table.restore(tables.lake.snapshot(at).table(name).version).version]


def _tag(tables: LakeSpark, values: Values) -> list[Any]:
    made = tables.lake.tags.create(values["name"], values["snapshot"])
    return [made.name, made.snapshot]


def _branch(tables: LakeSpark, values: Values) -> list[Any]:
    made = tables.lake.branches.create(values["name"], values["snapshot"])
    return [made.name, made.snapshot]


def _fast_forward(tables: LakeSpark, values: Values) -> list[Any]:
    return [tables.lake.branches.fast_forward(values["branch"]).snapshot]


_OF_TABLE: Final = Parameter("table", required=True)
_REF: Final = "name string, snapshot bigint"
PROCEDURES: Final[Mapping[str, Procedure]] = {
    "compact": Procedure(
        "Rewrites small fragments into fewer ones, or sorts the rows.",
        (_OF_TABLE, Parameter("target_rows", "bigint"), Parameter("where"), Parameter("cluster_by"), Parameter("full", "boolean")),
        "fragments_before bigint, fragments_after bigint, version bigint",
        _compact,
    ),
    "analyze": Procedure(
        "Reads columns without statistics, and keeps these beside the data.",
        (_OF_TABLE, Parameter("columns"), Parameter("scan", "boolean")),
        "version bigint, rows bigint, fragments bigint, analyzed bigint, columns bigint",
        _analyze,
    ),
    "cleanup": Procedure(
        "Removes old snapshots of the lake and what only they need.",
        (
            Parameter("older_than_days", "bigint"),
            Parameter("keep_snapshots", "bigint"),
            Parameter("dry_run", "boolean"),
            Parameter("older_than_hours", "bigint"),
        ),
        "report string",
        _cleanup,
    ),
    "vacuum": Procedure(
        "Removes snapshots of the lake older than a week or more, and what only they need.",
        (_OF_TABLE, Parameter("retain_hours", "bigint"), Parameter("dry_run", "boolean")),
        "table string, versions bigint, files bigint, bytes bigint, report string",
        _vacuum,
        many=True,
    ),
    "create_index": Procedure(
        "Builds an index.",
        (_OF_TABLE, Parameter("column", required=True), Parameter("type"), Parameter("name"), Parameter("replace", "boolean")),
        "version bigint",
        _create_index,
    ),
    "restore": Procedure(
        "Restores an earlier version, or the one of a tag.",
        (_OF_TABLE, Parameter("version", "bigint"), Parameter("tag")),
        "version bigint",
        _restore,
    ),
    "rollback": Procedure(
        "Restores the version that the table had at a timestamp.",
        (_OF_TABLE, Parameter("timestamp", required=True)),
        "version bigint",
        _rollback,
    ),
    "tag": Procedure(
        "Names a snapshot of the lake.",
        (Parameter("name", required=True), Parameter("snapshot", "bigint")),
        _REF,
        _tag,
    ),
    "branch": Procedure(
        "Makes a branch of the lake.",
        (Parameter("name", required=True), Parameter("snapshot", "bigint")),
        _REF,
        _branch,
    ),
    "fast_forward": Procedure(
        "Moves main to the head of a branch.", (Parameter("branch", required=True),), "snapshot bigint", _fast_forward
    ),
    **BRANCH_PROCEDURES,
}


def names(request: Request) -> list[str]:
    """The procedures in a namespace."""
    return sorted(PROCEDURES) if list(request["name"]) == [NAMESPACE] else []


def _found(request: Request) -> Procedure:
    *namespace, name = request["name"]
    if [part.lower() for part in namespace] != [NAMESPACE] or name.lower() not in PROCEDURES:
        known = ", ".join(sorted(PROCEDURES))
        raise NotFound(f"There is no procedure {'.'.join(request['name'])!r}.", name=name, advice=f"In {NAMESPACE}: {known}.")
    return PROCEDURES[name.lower()]


def describe(request: Request) -> dict[str, Any]:
    """What Spark has to know to bind a call."""
    found = _found(request)
    parameters = [
        {"name": parameter.name, "type": _TYPES[parameter.type].json(), "required": parameter.required} for parameter in found.parameters
    ]
    return {"description": found.description, "parameters": parameters}


def call(session: SparkSession, request: Request) -> dict[str, Any]:
    """Runs a procedure."""
    found = _found(request)
    pairs = zip(found.parameters, request["values"], strict=True)
    values = {parameter.name: _read(parameter, value) for parameter, value in pairs}
    tables = LakeSpark(open_lake(request), session)
    given = found.run(tables, values)
    return told(found.columns, given if found.many else [given])


def _read(parameter: Parameter, value: str | None) -> Any:
    if value is None:
        if parameter.required:
            raise InvalidInput(f"{parameter.name} may not be null.", argument=parameter.name)
        return None
    if parameter.type == "bigint":
        return int(value)
    return value == "true" if parameter.type == "boolean" else value
