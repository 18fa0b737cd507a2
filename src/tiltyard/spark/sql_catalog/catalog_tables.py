"""Names in a lake as Spark asks for them: tables, namespaces, and how a table is read."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.types import StructType

import tiltyard as ty
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.spark.read.datasets import dataset, fragments_at, statistics_at
from tiltyard.spark.read.passing_rows import as_number
from tiltyard.spark.read.planner import write_plan
from tiltyard.spark.read.read_pins import address_of, addresses_of
from tiltyard.spark.read.reading import READ, Part, PlannedReader, Scan, check, own_filter, parts, rows_at_once
from tiltyard.spark.sharded_spark import is_sharded, shard_addresses
from tiltyard.spark.source_options import STORAGE, STREAM_READ, TARGET, Options
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.sql_catalog.metadata_tables import METADATA, metadata_rows
from tiltyard.spark.target import Target
from tiltyard.spark.write.row_layout import PARTITIONED_BY, columns_of

Request = Mapping[str, Any]

LAKE: Final = "lake"
_KNOWN: Final = ("uri", "branch", "durability", "token")
"""Options of a catalog, beside those of the object store."""
TRANSACTION: Final = "transaction"
"""Which transaction a session's statements are part of, as long as one is open."""
COMMENT: Final = "comment"
PRIMARY_KEY: Final = "primary_key"
_SHARD: Final = "_shard"
_OURS: Final = "tiltyard."
"""Before the names of settings that tables keep for the engine."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def target_of(request: Request) -> Target:
    """The lake that a catalog's options name, and the table that the request is about.

    Raises:
        InvalidInput: there is an option that a catalog does not have, or no lake.
    """
    options, told = dict(request["options"]), {"table": dotted(request["name"]) or "any"}
    options.pop(TRANSACTION, None)
    for name in options:
        if name not in _KNOWN and not name.startswith(STORAGE):
            near = get_close_matches(name, _KNOWN, n=1)
            advice = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_KNOWN)}, {STORAGE}*"
            raise InvalidInput(f"A catalog has no option {name[:60]!r}.", argument=name[:60], advice=advice)
    if not options.get("uri"):
        key = f"spark.sql.catalog.{request['catalog']}.uri"
        raise InvalidInput(f"The catalog {request['catalog']!r} does not say where its lake is.", argument="uri", advice=f"Set {key}.")
    told[LAKE] = options.pop("uri")
    return Target.from_options(told | options)


def dotted(parts: Sequence[str]) -> str:
    """A name of Spark as the lake's, which has dots between namespaces.

    Raises:
        InvalidInput: a part has a dot in it.
    """
    for part in parts:
        if "." in part:
            raise InvalidInput(f"Names in a lake have no dots: {part[:60]!r}.", argument="name", advice="Write namespace.table.")
    return ".".join(parts)


def open_lake(request: Request) -> ty.Lake:
    """The lake of a catalog.

    Raises:
        InvalidInput: there is none, which is not to be taken for a table that is missing.
    """
    try:
        return target_of(request).open_lake()
    except NotFound as error:
        raise InvalidInput(f"The catalog {request['catalog']!r} has no lake. {error}", argument="uri") from error


def name_in(lake: ty.Lake | ty.LakeTransaction, parts: Sequence[str]) -> str:
    """The name that the lake has for a table; Spark does not care about case.

    Raises:
        NotFound: there is no such table.
    """
    known, wanted = lake.tables(), dotted(parts)
    if wanted in known:
        return wanted
    same = [name for name in known if name.lower() == wanted.lower()]
    if len(same) != 1:
        raise NotFound(f"There is no table {wanted!r} in the lake.", name=wanted)
    return same[0]


# ---- tables ------------------------------------------------------------------------------------------------------------------


def list_tables(request: Request, where: ty.Lake | ty.LakeTransaction) -> list[str]:
    """The tables right in a namespace."""
    start = "".join(f"{part}." for part in request["name"])
    inside = [name[len(start) :] for name in where.tables() if name.startswith(start)]
    if not inside and start:
        _require_namespace(open_lake(request), request["name"])
    return [name for name in inside if "." not in name]


def load(request: Request, where: ty.Lake | ty.LakeTransaction, snapshot: Callable[[Request, ty.Lake], ty.LakeSnapshot]) -> dict[str, Any]:
    """A table at its latest version, or at the one that the statement names; or a table that tells about one."""
    name = request["name"]
    try:
        found = name_in(where, name)
    except NotFound:
        if len(name) < 2 or name[-1].lower() not in METADATA:
            raise
        lake = open_lake(request)
        return metadata_rows(lake, name_in(lake, name[:-1]), name[-1].lower())
    version, moment = request.get("version"), request.get("timestamp")
    if version is not None or moment is not None:
        return described(request, found, _at(open_lake(request), found, version, moment), latest=False)
    if isinstance(where, ty.LakeTransaction):
        return described(request, found, where.table(found), latest=True)
    where.table(found)  # takes in what a foreign writer committed
    return described(request, found, snapshot(request, where).table(found), latest=True)


def _at(lake: ty.Lake, name: str, version: str | None, moment: int | None) -> ty.TableReader:
    """The table as a statement says when. That it is not there then is no reason to say that there is no such table."""
    try:
        if version is not None:
            return _at_version(lake, name, version)
        return lake.snapshot(_EPOCH + timedelta(microseconds=moment or 0)).table(name)
    except NotFound as error:
        which = f"version {version}" if version is not None else "time"
        raise InvalidInput(f"There is no table {name!r} of that {which}. {error}", argument="version") from error


def _at_version(lake: ty.Lake, name: str, version: str) -> ty.TableReader:
    """A version of the table by its number, or what a tag of the lake shows."""
    if not version.isdigit():
        return lake.snapshot(version).table(name)
    table = lake.table(name)
    if is_sharded(table):
        raise InvalidInput(
            f"{name!r} is sharded, and its versions are snapshots of the lake.",
            argument="version",
            advice="Use TIMESTAMP AS OF, or VERSION AS OF with the name of a tag.",
        )
    options = dict(table.lance.latest_storage_options() or {}) or None
    return ty.Table.open(table.uri, version=int(version), branch=table.branch, storage_options=options)


def described(request: Request, name: str, table: ty.TableReader, *, latest: bool) -> dict[str, Any]:
    """What the JVM has to know of a table."""
    target = replace(target_of(request), table=name)
    sharded, storage, options = is_sharded(table), dict(target.storage) or None, target.to_options()
    addresses = shard_addresses(table, storage)
    fragments = [fragment for address in addresses for fragment in fragments_at(address)]
    found = [address.to_json() for address in addresses]
    facts = {"id": uuid4().hex, "options": options, "address": "\n".join(found), "latest": latest}
    return {
        "schema": with_comments(table.schema).json(),
        "version": table.version,
        "latest": latest,
        "stable": any(dataset(address).has_stable_row_ids for address in addresses),
        "shard": shard_column(table.schema) if sharded else None,
        "properties": properties_of(table),
        "partitioned": list(columns_of(table, PARTITIONED_BY)),
        "readable": [*_READABLE],
        "streamable": [*_STREAMABLE],
        "facts": facts | {"shards": found, "shard": shard_column(table.schema)} if sharded else facts,
        "target": options,
        "count": sum(fragment.rows for fragment in fragments),
        "bytes": sum(fragment.bytes for fragment in fragments),
    }


def shard_column(schema: pa.Schema) -> str:
    """What the column is called that tells the shard of each row: no column of the table is."""
    name, taken = _SHARD, {name.lower() for name in schema.names}
    while name in taken:
        name = f"_{name}"
    return name


def properties_of(table: ty.TableReader) -> dict[str, str]:
    """What SHOW TBLPROPERTIES shows: the table's config, and what Spark has names for."""
    shown = {name: value for name, value in table.config.items() if not name.startswith(_OURS)}
    key = {PRIMARY_KEY: ", ".join(table.primary_key)} if table.primary_key else {}
    if is_sharded(table):
        handle: Any = table
        key |= {"shard_by": ", ".join(handle.shard_by), "shards": str(handle.shards)}
    return {**shown, **key, "provider": "tiltyard", "location": table.uri, "is_managed_location": "true"}


def with_comments(schema: pa.Schema) -> StructType:
    """The schema as Spark has it, with what was said about columns."""
    found = spark_schema(schema)
    for field, given in zip(schema, found.fields, strict=True):
        if text := (field.metadata or {}).get(COMMENT.encode()):
            given.metadata = {**(given.metadata or {}), COMMENT: text.decode()}
    return found


_READABLE: Final = (*READ, *TARGET, "versionasof", "timestampasof")
_STREAMABLE: Final = (*STREAM_READ, *READ, *TARGET)
"""Options that a read of a table by name may have; they are looked at once more when it is planned."""


def refuse_option(request: Request) -> None:
    """Refuses an option that such a read does not take, with the nearest one that it does."""
    known, doing = (STREAM_READ, "streaming read") if request["stream"] else (READ, "batch read")
    Options({request["name"]: "?"}).require_known(known, doing)


def plan_scan(request: Request) -> str:
    """How workers read some columns, as Spark's own planning process would tell the JVM."""
    facts, schema = json.loads(request["facts"]), StructType.fromJson(json.loads(request["schema"]))
    options = Options(facts["options"])
    options.require_known(READ, "batch read")
    made: list[Part] = []
    for number, address in enumerate(addresses_of(facts)):
        shard = (facts["shard"], number) if "shards" in facts else None
        scan = Scan(address, schema, own_filter(options, address), batch_rows=rows_at_once(options, schema), shard=shard)
        check(scan)
        made += parts(scan, options.integer("partitions", least=1))
    out = io.BytesIO()
    write_plan(out, PlannedReader(made), schema)
    return base64.b64encode(out.getvalue()).decode()


def column_statistics(request: Request) -> dict[str, dict[str, int | float | None]]:
    """What is known of the columns that a scan reads, in the numbers that Spark estimates with: days, and microseconds."""
    facts = json.loads(request["facts"])
    known = {} if "shards" in facts else statistics_at(address_of(facts)).columns()
    return {
        name: {
            "nulls": column.nulls,
            "distinct": column.distinct,
            "least": as_number(column.least),
            "greatest": as_number(column.greatest),
        }
        for name, column in known.items()
        if column.nulls is not None
    }


# ---- namespaces --------------------------------------------------------------------------------------------------------------


def list_namespaces(request: Request) -> list[str]:
    """The namespaces right in another."""
    from lance_namespace import ListNamespacesRequest

    lake, parts = open_lake(request), list(request["name"])
    if parts:
        _require_namespace(lake, parts)
    return sorted(lake.namespace().list_namespaces(ListNamespacesRequest(id=parts)).namespaces)


def _require_namespace(lake: ty.Lake, parts: Sequence[str]) -> dict[str, str]:
    from lance_namespace import DescribeNamespaceRequest
    from lance_namespace.errors import NamespaceNotFoundError

    try:
        return dict(lake.namespace().describe_namespace(DescribeNamespaceRequest(id=list(parts))).properties or {})
    except NamespaceNotFoundError as error:
        raise NotFound(f"There is no namespace {'.'.join(parts)!r} in the lake.", name=".".join(parts)) from error


def load_namespace(request: Request) -> dict[str, str]:
    """The properties of a namespace."""
    parts = request["name"]
    return _require_namespace(open_lake(request), parts) if parts else {}


def create_namespace(request: Request) -> bool:
    """Makes an empty namespace."""
    from lance_namespace import CreateNamespaceRequest
    from lance_namespace.errors import NamespaceAlreadyExistsError

    parts = [dotted([part]) for part in request["name"]]
    given = {name: value for name, value in request["properties"].items() if name != "owner"}
    try:
        open_lake(request).namespace().create_namespace(CreateNamespaceRequest(id=parts, properties=given))
    except NamespaceAlreadyExistsError as error:
        raise ty.AlreadyExists(f"There is a namespace {'.'.join(parts)!r} already.", name=".".join(parts)) from error
    return True


def drop_namespace(request: Request) -> bool:
    """Drops a namespace; one with tables only if the statement says CASCADE."""
    from lance_namespace import DropNamespaceRequest
    from lance_namespace.errors import NamespaceNotEmptyError

    lake, parts = open_lake(request), list(request["name"])
    _require_namespace(lake, parts)
    behavior = "Cascade" if request["cascade"] else "Restrict"
    try:
        lake.namespace().drop_namespace(DropNamespaceRequest(id=parts, behavior=behavior))
    except NamespaceNotEmptyError as error:
        raise InvalidInput(
            f"Namespace {'.'.join(parts)!r} has tables in it.", argument="name", advice="Drop them, or write DROP NAMESPACE ... CASCADE."
        ) from error
    return True
