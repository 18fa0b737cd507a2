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
from tiltyard.spark.sql_catalog.catalog_tables import COMMENT, PRIMARY_KEY, described, dotted, name_in, open_lake
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


class TableToMake:
    """What a statement says of a table that it makes or replaces.

    Attributes:
        decided: properties that are decided when a table is made.
        options: the same, read: key, format and vectors.
        config: all other properties.
    """

    def __init__(self, properties: Mapping[str, str], partitions: list[str]) -> None:
        if partitions:
            clause = "CLUSTER BY" if partitions[0].startswith("cluster_by") else "PARTITIONED BY"
            raise refuse(clause, "Leave it out, and create an index on the columns that queries filter by.")
        given = dict(properties)
        provider = given.pop("provider", "tiltyard")
        if provider.lower() not in _PROVIDERS:
            raise refuse(f"USING {provider}", "Write USING tiltyard, or leave it out.")
        for name in ("location", "external", "collation"):
            if given.pop(name, None) not in (None, "false"):
                raise refuse(name.upper(), "The lake decides where its tables are; lake.register_table takes in one that is elsewhere.")
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
                raise InvalidInput(f"Property vectors names {name!r}, which is no column of arrays.", argument="vectors")
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


def create(request: Request) -> dict[str, Any]:
    """Makes an empty table."""
    lake, name = open_lake(request), dotted(request["name"])
    new = TableToMake(request["properties"], request["partitions"])
    schema = new.schema(st.StructType.fromJson(json.loads(request["schema"])))
    how = new.options
    lake.create_table(name, schema, primary_key=how.primary_key, stable_row_ids=how.stable_row_ids, options=new.table_options)
    return described(request, name, lake.table(name), latest=True)


def drop(request: Request) -> bool:
    """Drops a table; whether there was one."""
    lake = open_lake(request)
    try:
        lake.drop_table(name_in(lake, request["name"]))
    except NotFound:
        return False
    return True


def rename(request: Request) -> bool:
    """Renames a table."""
    lake = open_lake(request)
    lake.rename_table(name_in(lake, request["name"]), dotted(request["to"]))
    return True


def truncate(request: Request) -> bool:
    """Deletes all rows, in one commit."""
    lake = open_lake(request)
    table = lake.table(name_in(lake, request["name"]))
    if table.count_rows():
        table.delete("true", message="TRUNCATE")
    return True


# ---- ALTER TABLE -------------------------------------------------------------------------------------------------------------


def alter(request: Request) -> dict[str, Any]:
    """Applies all changes of one statement, in one transaction."""
    lake = open_lake(request)
    name = name_in(lake, request["name"])

    def work(tx: ty.LakeTransaction) -> None:
        for change in request["changes"]:
            verb = _CHANGES.get(change["kind"])
            if verb is None:
                raise refuse(change["kind"], "See the page of SQL forms for what ALTER TABLE can do.")
            _refuse_rest(change, _USED[change["kind"]])
            verb(tx.table(name), change)

    lake.run(work)
    return described(request, name, lake.table(name), latest=True)


_USED: Final[Mapping[str, frozenset[str]]] = {
    "SetProperty": frozenset({"property", "value"}),
    "RemoveProperty": frozenset({"property"}),
    "AddColumn": frozenset({"fieldNames", "dataType", "isNullable", "comment"}),
    "RenameColumn": frozenset({"fieldNames", "newName"}),
    "UpdateColumnType": frozenset({"fieldNames", "newDataType"}),
    "UpdateColumnNullability": frozenset({"fieldNames", "nullable"}),
    "UpdateColumnComment": frozenset({"fieldNames", "newComment"}),
    "DeleteColumn": frozenset({"fieldNames", "ifExists"}),
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
        raise refuse("NOT NULL of a new column", "Add it without: rows that are there have no value for it.")
    path = change["fieldNames"]
    kind = arrow_type(st._parse_datatype_json_string(change["dataType"]), ".".join(path))
    metadata = None if change["comment"] is None else {COMMENT: change["comment"]}
    field = pa.field(path[-1], kind, metadata=metadata)
    for parent in reversed(path[:-1]):
        field = pa.field(parent, pa.struct([field]))
    table.add_columns(field)


def _delete_column(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    path = _path(change)
    if change["ifExists"] and path not in table.layout.field_ids:
        return
    table.drop_columns([path])


def _comment(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    table.update_field_metadata(_path(change), {COMMENT: change["newComment"] or None})


def _rename(table: ty.TransactionTable, change: Mapping[str, Any]) -> None:
    table.alter_columns({"path": _path(change), "name": dotted([change["newName"]])})


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
}
