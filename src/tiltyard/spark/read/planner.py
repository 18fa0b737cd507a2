"""The other half of the optimizer's rule: what may be pushed into a scan, decided on the driver for each plan."""

from __future__ import annotations

import inspect
import io
import json
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType
from pyspark.sql.worker import plan_data_source_read

from tiltyard.errors import TiltyardError, UnsupportedFeature
from tiltyard.spark.read.aggregates import AggregatingReader, aggregation, answered
from tiltyard.spark.read.datasets import dataset, fragments_at, reading, statistics_at
from tiltyard.spark.read.filters import condition
from tiltyard.spark.read.join_keys import among
from tiltyard.spark.read.partitioning import Fragment
from tiltyard.spark.read.passing_rows import share_of_rows
from tiltyard.spark.read.read_pins import address_of
from tiltyard.spark.read.reading import READ, Part, PlannedReader, Scan, check, own_filter, parts, remaining, rows_at_once
from tiltyard.spark.read.small_tables import SmallTables
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.spark_types import spark_schema, spark_type
from tiltyard.spark.target import Address, Target

if TYPE_CHECKING:
    from lance import LanceDataset

DECLINED: Final = struct.pack(">i", 0)
_KEPT: Final = 512
AGGREGATED_ROWS: Final = 1 << 16
"""Rows that workers get at a time where they do not hand them on."""

ALWAYS_SMALL: Final = 1 << 20
"""Bytes up to which Spark broadcasts a table anyway: how much of it passes a condition makes no difference."""

_WIDTH: Final = 24
"""Bytes that a value without a fixed width is taken for."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A scan as it was planned, in case that more is known when it is executed."""

    scan: Scan
    options: Options
    filters: list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """What a plan shows of a scan, what it is compared by, and the number that it is asked for again by; 0 is none."""

    shown: str
    identity: str
    number: int


class Planner:
    """Answers the rule. One a session; called from whatever thread of the JVM plans a query."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._pinned: OrderedDict[str, Address] = OrderedDict()
        self.snapshots: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()
        self._planned: OrderedDict[int, Planned] = OrderedDict()
        self._numbered = 0
        self.small = SmallTables()
        self.answered = 0
        self.refined = 0
        self.declined: OrderedDict[str, int] = OrderedDict()

    def apply(self, text: str) -> bytes:
        """What Java calls: a plan as JSON, to bytes that say how to read it, or that it stays as it is."""
        try:
            request = json.loads(text)
            answer = self._answered(request)
        except TiltyardError as error:
            # The scan that stays will meet the same thing, where somebody hears of it.
            answer = None
            self._note(f"{type(error).__name__}: {error}")
        if answer is None:
            return DECLINED
        self.answered += 1
        return answer

    def _answered(self, request: Mapping[str, Any]) -> bytes | None:
        if "again" in request:
            return self._narrowed_again(request)
        if "shards" in json.loads(request["facts"]):
            return None  # the catalog plans such a scan, over all shards
        if "count" in request:
            return self._counted(request)
        return self._aggregated(request) if "aggregate" in request else self._narrowed(request)

    def _note(self, why: str) -> None:
        with self._lock:
            self.declined[why] = self.declined.get(why, 0) + 1
            while len(self.declined) > _KEPT:
                self.declined.popitem(last=False)

    def _counted(self, request: Mapping[str, Any]) -> bytes | None:
        facts = json.loads(request["facts"])
        if Options(facts["options"]).text("filter") is not None:
            return None
        rows = sum(fragment.rows for fragment in fragments_at(self._address(facts, request["query"])))
        return struct.pack(">iq", 1, rows)

    def _narrowed(self, request: Mapping[str, Any]) -> bytes:
        facts = json.loads(request["facts"])
        options, address = Options(facts["options"]), self._address(facts, request["query"])
        options.require_known(READ, "batch read")
        given = StructType.fromJson(request["schema"])
        wanted, exact, left = _conditions(request["filters"], dataset(address).schema)
        needed = set(given.fieldNames() if request["needed"] is None else request["needed"]) | left
        schema = StructType([field for field in given.fields if field.name in needed])
        limit = request["limit"] if len(exact) == len(request["filters"]) else None
        scan = _scan(address, schema, options, wanted, limit)
        check(scan)
        here = None if options.text("partitions") else self.small.rows_of(scan)
        made = [] if here is not None else self._parts(scan, options, request["filters"])
        shown = f"{options.text('table') or address.uri} version {address.version}" + (f" where {scan.filter}" if scan.filter else "")
        size = _size(scan, schema, request["filters"])
        number = 0 if here is not None else self._kept(Planned(scan, options, request["filters"]))
        told = Told(shown, _identity(scan), number)
        out = _packed(exact, schema.fieldNames(), size, told)
        _with_rows(out, here) if here is not None else _with_plan(out, PlannedReader(made), schema)
        return out.getvalue()

    def _kept(self, planned: Planned) -> int:
        """The number by which a scan is asked for again once more is known."""
        with self._lock:
            self._numbered += 1
            self._planned[self._numbered] = planned
            while len(self._planned) > _KEPT:
                self._planned.popitem(last=False)
            return self._numbered

    def _narrowed_again(self, request: Mapping[str, Any]) -> bytes | None:
        """The same scan, of rows with keys among those that the other side of a join has; None leaves it as it was planned."""
        with self._lock:
            known = self._planned.get(request["again"])
        if known is None:
            return None
        scan, nodes = among(known.scan, request["among"], dataset(known.scan.address).schema)
        if scan is known.scan:
            return None
        out = io.BytesIO()
        out.write(struct.pack(">i", 1))
        write_plan(out, PlannedReader(self._parts(scan, known.options, [*known.filters, *nodes])), scan.schema)
        self.refined += 1
        return out.getvalue()

    def _aggregated(self, request: Mapping[str, Any]) -> bytes | None:
        facts, described = json.loads(request["facts"]), request["aggregate"]
        options, address = Options(facts["options"]), self._address(facts, request["query"])
        stored = dataset(address).schema
        wanted, exact, _ = _conditions(request["filters"], stored)
        if len(exact) != len(request["filters"]) or not _as_stored(request["schema"], stored):
            return None
        work = aggregation(described, request["ansi"], stored)
        if work is None:
            return None
        given = StructType.fromJson(request["schema"])
        used = {*work.keys, *(partial.column for partial in work.partials)}
        schema = StructType([field for field in given.fields if field.name in used])
        scan = replace(_scan(address, schema, options, wanted, None), batch_rows=AGGREGATED_ROWS)
        if not options.text("partitions") and self.small.is_small(scan):
            return None  # Spark has the rows at hand, and is done sooner than a worker could begin
        check(scan)
        shown = f"{options.text('table') or address.uri} version {address.version}, aggregated by {', '.join(work.keys) or 'nothing'}"
        if scan.filter is None and not work.keys:
            count = sum(fragment.rows for fragment in fragments_at(address))
            here = answered(work, statistics_at(address).columns(), count, stored)
            if here is not None:
                out = _packed(exact, work.schema.fieldNames(), (1, 64), Told(shown, "", 0))
                _with_rows(out, here)
                return out.getvalue()
        made = self._parts(scan, options, request["filters"])
        rows, size = _size(scan, work.schema, request["filters"])
        few = (len(made), 64 * len(made)) if not work.keys else (rows, size)
        same = f"{_identity(scan)} {work.keys} {work.partials} {work.ansi}"
        out = _packed(exact, work.schema.fieldNames(), few, Told(shown, same, 0))
        _with_plan(out, AggregatingReader(work, made), work.schema)
        return out.getvalue()

    def _parts(self, scan: Scan, options: Options, filters: list[Mapping[str, Any]]) -> list[Part]:
        wanted = options.integer("partitions", least=1)
        only = None
        if wanted is None:
            with reading(scan.address):
                only = fragments_with(dataset(scan.address), filters, scan.filter)
        return parts(scan, wanted, cores=self._cores, only=only)

    def _address(self, facts: Mapping[str, Any], query: int) -> Address:
        """The version a DataFrame was made at; one that follows its table has the newest, the same everywhere in one query."""
        if facts["address"] is not None:
            return address_of(facts)
        options = Options(facts["options"])
        target = Target.from_options(options)
        key = f"{query} {facts['options']}" if options.boolean("follow") else str(facts["id"])
        with self._lock:
            found = self._pinned.get(key)
            if found is None:
                found = self._pinned[key] = self._newest(target, query).locate()
                while len(self._pinned) > _KEPT:
                    self._pinned.popitem(last=False)
            return found

    def _newest(self, target: Target, query: int) -> Target:
        """All tables of a lake at one snapshot, as long as it is one query that asks."""
        if target.lake is None or target.moment is not None:
            return target
        key = f"{query} {target.lake} {target.branch}"
        known = self.snapshots.get(key)
        if known is None:
            known = self.snapshots[key] = target.open_lake().snapshot().id
            while len(self.snapshots) > _KEPT:
                self.snapshots.popitem(last=False)
        return replace(target, snapshot=known)

    class Java:
        """What py4j has to know to hand this to the JVM."""

        implements: Final = ["java.util.function.Function"]


def _conditions(filters: list[Mapping[str, Any]], schema: pa.Schema) -> tuple[list[str], list[int], set[str]]:
    """What pylance filters by, the filters Spark need not repeat, and the columns that the others need."""
    wanted: list[str] = []
    exact: list[int] = []
    left: set[str] = set()
    for index, entry in enumerate(filters):
        found = condition(entry["is"], schema)
        if found is not None:
            wanted.append(found.sql)
        if found is not None and found.exact:
            exact.append(index)
        else:
            left |= set(entry["uses"])
    return wanted, exact, left


def _scan(address: Address, schema: StructType, options: Options, wanted: list[str], limit: int | None) -> Scan:
    own = own_filter(options, address)
    every = ([own] if own else []) + wanted
    return Scan(address, schema, " AND ".join(every) or None, limit, rows_at_once(options, schema))


def _as_stored(schema: Mapping[str, Any], stored: pa.Schema) -> bool:
    """Whether columns have the types the table has for Spark; a schema of the user's own may ask for others."""
    given = StructType.fromJson(dict(schema))
    return all(field.name not in stored.names or spark_type(stored.field(field.name).type) == field.dataType for field in given.fields)


def _size(scan: Scan, schema: StructType, filters: list[Mapping[str, Any]]) -> tuple[int, int]:
    """Rows, and about how many bytes they are in files: what Spark goes by when it decides whether to broadcast, as for Parquet."""
    address, limit = scan.address, scan.limit
    fragments: list[Fragment] = remaining(scan)
    rows = sum(fragment.rows for fragment in fragments)
    stored, width = sum(fragment.bytes for fragment in fragments), _width_of(schema)
    share = width / max(_width_of(spark_schema(_known(dataset(address).schema))), width)
    size = stored * share if stored else rows * width  # a writer need not say how long its files are
    taken = rows if limit is None else min(rows, limit)
    if filters and size > ALWAYS_SMALL:
        known, every = statistics_at(address), sum(fragment.rows for fragment in fragments_at(address))
        taken = min(taken, int(every * share_of_rows(filters, known.bounds)))
    return taken, max(int(size * taken / max(rows, 1)), 1)


def _known(schema: pa.Schema) -> pa.Schema:
    """The columns that Spark has types for."""
    known = []
    for field in schema:
        try:
            spark_type(field.type)
        except UnsupportedFeature:
            continue
        known.append(field)
    return pa.schema(known)


def _width_of(schema: StructType) -> int:
    """About how many bytes a row is in memory."""
    return 8 + sum(_width(field.dataType.typeName(), (field.metadata or {}).get("tiltyard.dimension")) for field in schema.fields)


def _identity(scan: Scan) -> str:
    """The same for scans of the same rows: version, condition and limit. Columns are compared beside it."""
    return f"{scan.address.uri} {scan.address.version} {scan.filter} {scan.limit}"


def _width(kind: str, dimension: int | None) -> int:
    if dimension is not None:
        return 4 * int(dimension)
    return {"boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4, "long": 8, "double": 8, "timestamp": 8}.get(
        kind, _WIDTH
    )


def _packed(exact: list[int], columns: list[str], size: tuple[int, int], told: Told) -> io.BytesIO:
    """The answer as the Java side reads it, up to where rows come from."""
    out = io.BytesIO()
    out.write(struct.pack(f">ii{len(exact)}i", 1, len(exact), *exact))
    out.write(struct.pack(">i", len(columns)))
    for text in columns:
        _text(out, text)
    out.write(struct.pack(">qq", *size))
    for text in (told.shown, told.identity):
        _text(out, text)
    out.write(struct.pack(">q", told.number))
    return out


def _with_rows(out: io.BytesIO, rows: bytes) -> None:
    out.write(struct.pack(">i", len(rows)) + rows)


def _with_plan(out: io.BytesIO, reader: DataSourceReader, schema: StructType) -> None:
    out.write(struct.pack(">i", -1))
    write_plan(out, reader, schema)


def _text(out: io.BytesIO, text: str) -> None:
    encoded = text.encode("utf-8", "replace")
    out.write(struct.pack(">i", len(encoded)) + encoded)


def write_plan(out: io.BytesIO, reader: DataSourceReader, schema: StructType) -> None:
    """Just what Spark's own planning process would write for this reader."""
    given: dict[str, Any] = {"reader": reader, "data_source": TiltyardSource({}), "schema": schema, "max_arrow_batch_size": 10_000}
    write = plan_data_source_read.write_read_func_and_partitions
    if "binary_as_bytes" in inspect.signature(write).parameters:
        given["binary_as_bytes"] = True
    write(out, **given)


MOST_ROWS: Final = 20_000
"""Rows above which it is no lookup, and all fragments are read at once."""

MOST_VALUES: Final = 200

_SCALAR: Final = ("BTree", "Bitmap")


def fragments_with(opened: LanceDataset, filters: Sequence[Mapping[str, Any]], sql: str | None) -> set[int] | None:
    """The fragments with rows that pass; None where no index makes it cheap to know.

    Args:
        opened: the table.
        filters: Spark's conditions, all of which have to hold.
        sql: the same for pylance, as far as it can be told.
    """
    if sql is None:
        return None
    wanted = {name for entry in filters if (name := _looked_up(entry["is"])) is not None}
    if not wanted or not wanted & _indexed(opened):
        return None
    found = opened.scanner(columns=[], with_row_address=True, filter=sql, limit=MOST_ROWS + 1).to_table()
    if found.num_rows > MOST_ROWS:
        return None
    return {int(item) for item in np.unique(found.column("_rowaddr").to_numpy() >> np.uint64(32))}


def _indexed(opened: LanceDataset) -> set[str]:
    if not opened.has_index:
        return set()
    return {str(index["fields"][0]) for index in opened.list_indices() if len(index["fields"]) == 1 and index["type"] in _SCALAR}


def _looked_up(node: Mapping[str, Any]) -> str | None:
    """The column of which a few values are asked for."""
    children = node["k"]
    if node["c"] == "EqualTo":
        columns = [child["n"] for child in children if child["c"] == "AttributeReference"]
        literals = [child for child in children if child["c"] == "Literal"]
        return columns[0] if len(columns) == len(literals) == 1 else None
    count = len(node["vs"]) if node["c"] == "InSet" else len(children) - 1
    if node["c"] in ("In", "InSet") and count <= MOST_VALUES and children[0]["c"] == "AttributeReference":
        return str(children[0]["n"])
    return None
