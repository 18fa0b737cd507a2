"""CREATE, DROP, RENAME, TRUNCATE and ALTER TABLE, as Spark hands them to a catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

import tiltyard as ty
from tiltyard.errors import InvalidInput, NotFound, UnsupportedFeature
from tiltyard.spark.source_options import Options
from tiltyard.spark.spark_types import DIMENSION, arrow_schema, arrow_type
from tiltyard.spark.sql_catalog.catalog_tables import COMMENT, PRIMARY_KEY, described, dotted, name_in
from tiltyard.spark.sql_catalog.open_transactions import EVOLUTIONS, Alter, Tables
from tiltyard.spark.write.row_layout import CLUSTER_BY, PARTITIONED_BY, columns_of
from tiltyard.spark.write.write_options import WriteOptions

Request = Mapping[str, Any]

_MADE: Final = (PRIMARY_KEY, "stable_row_ids", "data_format", "vectors")
"""Properties that decide what a new table is; the others become its config."""
_SPARKS: Final = ("owner", "is_managed_location")
"""What Spark adds to the properties of any table."""
_PROVIDERS: Final = ("tiltyard", "lance")


def refuse(clause: str, advice: str) -> UnsupportedFeature:
    """The error for a clause that tables of a lake do not have."""
    return UnsupportedFeature(f"{clause} is not supported on tables of a lake.", feature=clause, writing=True, advice=advice)


def _layout(partitions: list[Mapping[str, Any]]) -> dict[str, str]:
    """The settings that PARTITIONED BY and CLUSTER BY become."""
    found: dict[str, list[str]] = {}
    for item in partitions:
        setting = {"identity": PARTITIONED_BY, "cluster_by": CLUSTER_BY}.get(item["name"])
        if setting is None:
            raise refuse(f"PARTITIONED BY ({item['text']})", "Name plain columns, or add a column with that value.")
        found.setdefault(setting, []).extend(map(_plain, item["columns"]))
    return {setting: ", ".join(names) for setting, names in found.items()}


def _plain(path: list[str]) -> str:
    if len(path) > 1 or "," in path[0]:
        raise refuse(f"A layout by {'.'.join(path)!r}", "Name columns of the table itself, without commas in their names.")
    return path[0]


class TableToMake:
    """What a statement says of a table that it makes or replaces.

    Attributes:
        decided: properties that are decided when a table is made.
        options: the same, read: key, format and vectors.
        config: all other properties.
    """

    def __init__(self, properties: Mapping[str, str], partitions: list[Mapping[str, Any]]) -> None:
        given = {**properties, **_layout(partitions)}
        provider = given.pop("provider", "tiltyard")
        if provider.lower() not in _PROVIDERS:
            raise refuse(f"USING {provider}", "Write USING tiltyard, or leave it out; source='tiltyard' in spark.catalog.createTable.")
        for name in ("location", "external", "collation"):
            if given.pop(name, None) not in (None, "false"):
                raise refuse(
                    name.upper(), "The lake decides where its tables are; lake.register_table registers a table that is elsewhere."
                )
        for name in ("shard_by", "shards"):
            if name in given:
                raise refuse(f"Property {name}", "Make a sharded table with lake.create_table(name, rows, shard_by=..., shards=...).")
        self.decided: dict[str, str] = {name: given.pop(name) for name in _MADE if name in given}
        self.options = WriteOptions.of(Options(self.decided))
        for name in given:
            if name.startswith("option."):
                raise refuse(f"OPTIONS ({name.removeprefix('option.')})", "Use TBLPROPERTIES.")
        self.config = {name: value for name, value in given.items() if name not in _SPARKS}

    def schema(self, given: st.StructType) -> pa.Schema:
        """The columns, with vectors where the properties say so."""
        vectors = self.options.vectors
        arrays = {field.name for field in given.fields if isinstance(field.dataType, st.ArrayType)}
        for name in vectors:
            if name not in arrays:
                raise InvalidInput(f"Property vectors names {name!r}, which is not an array column.", argument="vectors")
        for field in given.fields:
            if field.name in vectors:
                field.metadata = {**(field.metadata or {}), DIMENSION: vectors[field.name]}
        return _commented(arrow_schema(given), given)

    @property
    def table_options(self) -> ty.TableOptions:
        """What is decided when the table is made."""
        return ty.TableOptions(config=self.config or None, data_format=self.options.data_format)


def _commented(schema: pa.Schema, given: st.StructType) -> pa.Schema:
    """With the comments of columns, which are in Spark's metadata."""
    fields = []
    for field, told in zip(schema, given.fields, strict=True):
        text = (told.metadata or {}).get(COMMENT)
        fields.append(field if text is None else field.with_metadata({COMMENT: text}))
    return pa.schema(fields)


def create(request: Request, where: Tables) -> dict[str, Any]:
    """Makes an empty table."""
    name = dotted(request["name"])
    new = TableToMake(request["properties"], request["partitions"])
    schema = new.schema(st.StructType.fromJson(json.loads(request["schema"])))
    how = new.options
    where.create_table(name, schema, primary_key=how.primary_key, stable_row_ids=how.stable_row_ids, options=new.table_options)
    return described(request, name, where.table(name), latest=True)


def drop(request: Request, where: Tables) -> bool:
    """Drops a table; whether there was one."""
    try:
        where.drop_table(name_in(where, request["name"]))
    except NotFound:
        return False
    return True


def rename(request: Request, where: Tables) -> bool:
    """Renames a table."""
    where.rename_table(name_in(where, request["name"]), dotted(request["to"]))
    return True


def truncate(request: Request, where: Tables) -> bool:
    """Deletes all rows, in one commit."""
    table = where.table(name_in(where, request["name"]))
    if table.count_rows():
        table.delete("true", message="TRUNCATE")
    return True


# ---- ALTER TABLE -------------------------------------------------------------------------------------------------------------


def alter(request: Request, where: Tables) -> dict[str, Any]:
    """Applies all changes of one statement, in one transaction.

    Where Spark adds columns for a statement that it analyzes (WITH SCHEMA EVOLUTION), they are only noted: the statement adds them.
    """
    name = name_in(where, request["name"])
    change = _altering(request["changes"])
    if request["evolving"] and isinstance(where, ty.Lake):
        EVOLUTIONS.add(request, where, name, change)
        table = EVOLUTIONS.table(request, where, name)
        assert table is not None
        return described(request, name, table, latest=True)
    if isinstance(where, ty.Lake):
        where.run(lambda tx: change(tx.table(name)))
    else:
        change(where.table(name))
    return described(request, name, where.table(name), latest=True)


def _altering(changes: list[Mapping[str, Any]]) -> Alter:
    def work(table: ty.TransactionTable) -> None:
        for change in changes:
            verb = _CHANGES.get(change["kind"])
            if verb is None:
                raise refuse(change["kind"], "See the page of SQL forms for what ALTER TABLE can do.")
            _refuse_rest(change, _USED[change["kind"]])
            verb(table, change)

    return work


_USED: Final[Mapping[str, frozenset[str]]] = {
    "SetProperty": frozenset({"property", "value"}),
    "RemoveProperty": frozenset({"property"}),
    "AddColumn": frozenset({"fieldNames", "dataType", "isNullable", "comment"}),
    "RenameColumn": frozenset({"fieldNames", "newName"}),
    "UpdateColumnType": frozenset({"fieldNames", "newDataType"}),
    "UpdateColumnNullability": frozenset({"fieldNames", "nullable"}),
    "UpdateColumnComment": frozenset({"fieldNames", "newComment"}),
    "DeleteColumn": frozenset({"fieldNames", "ifExists"}),
    "ClusterBy": frozenset({"clusteringColumns"}),
}
"""What is read of each change; what else one says is refused by name."""

_CLAUSES: Final = {"position": "FIRST or AFTER", "defaultValue": "DEFAULT"}


def _refuse_rest(change: Mapping[str, Any], used: frozenset[str]) -> None:
    for member, value in change.items():
        if member != "kind" and member not in used and value not in (None, False, "", []):
            raise refuse(_CLAUSES.get(member, member), "Leave the clause out.")


def _path(change: Mapping[str, Any]) -> str:
    return dotted(change["fieldNames"])


def _set_property(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    name = change["property"]
    if name in _MADE or name in ("provider", "location"):
        raise InvalidInput(f"Property {name!r} is decided when the table is made.", argument=name, advice="Make a new table with it.")
    table.update_config({name: change.get("value")})


def _add_column(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    if not change["isNullable"]:
        raise refuse("NOT NULL of a new column", "Add it without NOT NULL: existing rows have no value for it.")
    path = change["fieldNames"]
    kind = arrow_type(st._parse_datatype_json_string(change["dataType"]), ".".join(path))
    metadata = None if change["comment"] is None else {COMMENT: change["comment"]}
    field = pa.field(path[-1], kind, metadata=metadata)
    for parent in reversed(path[:-1]):
        field = pa.field(parent, pa.struct([field]))
    table.add_columns(field)


def _delete_column(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    path = _path(change)
    part = table.physical(0) if isinstance(table, ty.ShardedTransactionTable) else table
    if change["ifExists"] and path not in part.layout.field_ids:
        return
    table.drop_columns([path])


def _comment(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    table.update_field_metadata(_path(change), {COMMENT: change["newComment"] or None})


def _rename(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    old, new = _path(change), dotted([change["newName"]])
    layouts = {setting: columns_of(table, setting) for setting in (PARTITIONED_BY, CLUSTER_BY)}
    table.alter_columns({"path": old, "name": new})
    for setting, names in layouts.items():
        if old in names:
            table.update_config({setting: ", ".join(_plain([new]) if name == old else name for name in names)})


def _cluster_by(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    table.update_config({CLUSTER_BY: ", ".join(map(_plain, change["clusteringColumns"])) or None})


def _retype(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    kind = arrow_type(st._parse_datatype_json_string(change["newDataType"]), _path(change))
    table.alter_columns({"path": _path(change), "data_type": kind})


def _nullability(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    table.alter_columns({"path": _path(change), "nullable": bool(change["nullable"])})


_CHANGES: Final[Mapping[str, Callable[[ty.TransactionTable, Mapping[str, Any]], None]]] = {
    "SetProperty": _set_property,
    "RemoveProperty": _set_property,
    "AddColumn": _add_column,
    "RenameColumn": _rename,
    "UpdateColumnType": _retype,
    "UpdateColumnNullability": _nullability,
    "UpdateColumnComment": _comment,
    "DeleteColumn": _delete_column,
    "ClusterBy": _cluster_by,
}
