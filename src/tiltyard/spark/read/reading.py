"""Batch read: what a DataFrame of ours reads, cut into partitions that each know their version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from tiltyard.distributed import whole_condition
from tiltyard.errors import InvalidInput
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.read.datasets import dataset, fragments_at, reading, statistics_at
from tiltyard.spark.read.join_keys import KeysAmong, key_test
from tiltyard.spark.read.partitioning import SMALLEST_ROWS, Fragment, Span, addresses, pack
from tiltyard.spark.source import plainly
from tiltyard.spark.source_options import STREAM_READ, Options
from tiltyard.spark.spark_types import BLOB, DIMENSION, spark_schema
from tiltyard.spark.target import Address, Target
from tiltyard.spark.worker_process import begin_work

if TYPE_CHECKING:
    from lance import LanceDataset

READ: Final = (
    "columns", "filter", "partitions", "batch_rows", "with_row_id", "with_row_address", "with_row_versions", "follow",
)  # fmt: skip
"""Options of a batch read beside those that say which table is meant."""

ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"
ROW_VERSIONS: Final = ("_row_created_at_version", "_row_last_updated_at_version")
HIDDEN: Final = {name: pa.field(name, pa.uint64()) for name in (ROW_ID, ROW_ADDRESS, *ROW_VERSIONS)}
"""Columns every table has and nobody wrote."""

LONG_ROWS: Final = 2_000_000
"""Rows of a partition above which a core gets two."""

SAMPLED_FROM: Final = 100_000
SAMPLE: Final = 4096
"""Rows of a task from which a sample of so many tells how often its condition holds."""
MANY_PASS: Final = 0.1
"""The share of rows that pass above which columns are read at once; measured, with 2 and 16 columns beside the condition's."""

BATCH_ROWS: Final = 16 * 1024
BATCH_BYTES: Final = 16 << 20
"""Most rows handed to Spark at a time, and most bytes of vectors among them."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What is read of a table; the same in all partitions.

    Attributes:
        address: the table, at one version.
        schema: the columns in the order Spark wants them, with the types Spark wants.
        filter: a SQL condition, as pylance takes it.
        limit: rows after which a partition stops.
        batch_rows: rows handed over at a time.
        keys: what columns may be; workers leave the other rows out.
        shard: the column of the schema that tells the shard, and which one this is; None where none is asked for.
    """

    address: Address
    schema: StructType
    filter: str | None = None
    limit: int | None = None
    batch_rows: int = BATCH_ROWS
    keys: tuple[KeysAmong, ...] = ()
    shard: tuple[str, int] | None = None

    @property
    def stored(self) -> Scan:
        """What is read of the files."""
        if self.shard is None:
            return self
        return replace(self, schema=StructType([field for field in self.schema.fields if field.name != self.shard[0]]), shard=None)


class Part(InputPartition):
    """The rows one task reads. All it needs is in here: what the reader learns later is not passed on by Spark."""

    def __init__(self, scan: Scan, spans: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.scan = scan
        self.spans = spans

    def __repr__(self) -> str:
        return f"Part(version={self.scan.address.version}, spans={self.spans})"


def table_schema(address: Address, options: Options) -> StructType:
    """What a DataFrame has: the table's columns or those asked for, and the hidden ones asked for.

    Raises:
        InvalidInput: there is no such column.
        UnsupportedFeature: Spark has nothing for a column's type.
    """
    schema, chosen = dataset(address).schema, options.names("columns")
    fields = list(schema) if chosen is None else [_named(schema, name) for name in chosen]
    names = [field.name for field in fields]
    fields += [HIDDEN[name] for name in hidden_columns(options) if name not in names]
    found = spark_schema(pa.schema([field for field in fields if field.name not in HIDDEN]))
    by_name = {field.name: field for field in found.fields}
    return StructType([by_name.get(field.name) or _hidden_field(field.name) for field in fields])


def _named(schema: pa.Schema, name: str) -> pa.Field:
    if name in HIDDEN:
        return HIDDEN[name]
    if name in schema.names:
        return schema.field(name)
    alike = [item for item in schema.names if item.lower() == name.lower()]
    if len(alike) != 1:
        shown = ", ".join(schema.names)
        raise InvalidInput(f"The table has no column {name[:80]!r}.", argument="columns", advice=f"It has {shown}.")
    return schema.field(alike[0])


def _hidden_field(name: str) -> StructField:
    from pyspark.sql.types import LongType

    # Row ids and addresses are unsigned, but stay far below what a long holds.
    return StructField(name, LongType(), True)


def hidden_columns(options: Options) -> list[str]:
    """The hidden columns that options ask for."""
    asked = [ROW_ID] if options.boolean("with_row_id") else []
    asked += [ROW_ADDRESS] if options.boolean("with_row_address") else []
    return asked + (list(ROW_VERSIONS) if options.boolean("with_row_versions") else [])


class TiltyardReader(DataSourceReader):
    """Plans partitions on the driver and reads them in workers. Spark pickles it before it asks for the partitions."""

    def __init__(self, options: Options, address: Address, schema: StructType) -> None:
        options.require_known(READ, "batch read")
        self._options = options
        self._address = address
        self._schema = schema

    @plainly
    def partitions(self) -> list[InputPartition]:
        options = self._options
        rows = rows_at_once(options, self._schema)
        scan = Scan(self._address, self._schema, own_filter(options, self._address), batch_rows=rows)
        check(scan)
        return list(parts(scan, options.integer("partitions", least=1)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(partition) if isinstance(partition, Part) else iter(())


class PlannedReader(DataSourceReader):
    """Reads partitions that are planned already."""

    def __init__(self, planned: Sequence[Part]) -> None:
        self._planned = list(planned)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": []}  # partitions travel by themselves

    def partitions(self) -> list[InputPartition]:
        return list(self._planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(partition) if isinstance(partition, Part) else iter(())


def own_filter(options: Options, address: Address) -> str | None:
    """The condition that the option ``filter`` gives, checked and in brackets.

    Raises:
        InvalidInput: it is not one expression over the table's columns.
    """
    given = options.text("filter")
    return None if given is None else whole_condition(given, dataset(address).schema, "filter")


def rows_at_once(options: Options, schema: StructType) -> int:
    """Rows handed to Spark at a time: fewer of those that hold vectors, which may be kilobytes each."""
    widest = sum(4 * int((field.metadata or {}).get(DIMENSION, 0)) for field in schema.fields)
    fitting = min(BATCH_ROWS, max(64, BATCH_BYTES // max(widest, 1)))
    return options.integer("batch_rows", fitting, least=1) or fitting


def check(scan: Scan) -> None:
    """Refuses what workers would fail at, before there are any.

    Raises:
        InvalidInput: a column of the schema is not in the table, or the filter is none.
    """
    scan = scan.stored
    opened = dataset(scan.address)
    known = [*opened.schema.names, *HIDDEN]
    for field in scan.schema.fields:
        if field.name not in known:
            raise InvalidInput(
                f"The table has no column {field.name[:80]!r}.", argument="schema", advice=f"It has {', '.join(opened.schema.names)}."
            )
    with reading(scan.address):
        source = opened.scanner(columns=[], with_row_id=True, filter=scan.filter).projected_schema
        assert source is not None
    present = pa.schema([HIDDEN.get(field.name) or opened.schema.field(field.name) for field in scan.schema.fields])
    batch_converter(present, to_arrow_schema(scan.schema, timezone="UTC"))


def parts(scan: Scan, wanted: int | None = None, *, cores: int | None = None, only: set[int] | None = None) -> list[Part]:
    """The partitions of a scan: all of them together are every row, each once.

    Args:
        scan: what is read.
        wanted: how many partitions to make; by default one or two for each core, fewer of a small table.
        cores: of Spark, where they are known; those of this machine otherwise.
        only: the fragments that hold anything, where that is known; they are few rows, so they make one partition.
    """
    fragments = remaining(scan)
    if only is not None:
        fragments, wanted = [fragment for fragment in fragments if fragment.id in only], 1
    smallest = SMALLEST_ROWS if wanted is None else 1
    packed = pack(
        fragments,
        wanted or _spread(fragments, cores or os.cpu_count() or 1),
        may_split=scan.limit is None,
        smallest=smallest,
    )
    if scan.limit is not None and scan.filter is None:
        packed = _enough(packed, scan.limit)
    return [Part(scan, spans) for spans in packed]


def remaining(scan: Scan) -> list[Fragment]:
    """The fragments that can have a row which the scan's condition holds for."""
    every = fragments_at(scan.address)
    if scan.filter is None or len(every) < 2:
        return every
    without = statistics_at(scan.address).without_match(scan.filter)
    return [fragment for fragment in every if fragment.id not in without] if without else every


def _spread(fragments: Sequence[Fragment], cores: int) -> int:
    """One partition a core, or two where they are long enough that a slow one would keep the others waiting."""
    return cores if sum(fragment.rows for fragment in fragments) <= cores * LONG_ROWS else 2 * cores


def _enough(packed: list[tuple[Span, ...]], limit: int) -> list[tuple[Span, ...]]:
    """The first partitions that hold so many rows."""
    found, rows = [], 0
    for spans in packed:
        if rows >= limit:
            break
        found.append(spans)
        rows += sum(span.rows for span in spans)
    return found


def batches(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, as Spark wants them."""
    begin_work()
    scan, opened = part.scan, dataset(part.scan.address)
    target = to_arrow_schema(scan.schema, timezone="UTC")
    convert, wanted = None, key_test(scan.keys)
    for raw in raw_batches(scan.stored, opened, part.spans):
        if scan.shard is not None:
            name, number = scan.shard
            raw = raw.append_column(name, pa.repeat(pa.scalar(number, pa.int64()), raw.num_rows))
        if convert is None:
            convert = batch_converter(raw.schema, target)
        yield convert(raw if wanted is None else wanted(raw))


def raw_batches(scan: Scan, opened: LanceDataset, spans: tuple[Span, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of some spans, as they are stored."""
    with reading(scan.address):
        for opened_scanner in scanners(scan, opened, spans):
            yield from opened_scanner.to_batches()


def scanners(scan: Scan, opened: LanceDataset, spans: tuple[Span, ...]) -> Iterator[Any]:
    """Scanners of pylance that together read some spans."""
    whole, late = [span.fragment for span in spans if span.start is None], late_columns(scan, opened, spans)
    if whole:
        yield scanner(scan, opened, fragments=whole, late=late)
    for span in spans:
        if span.start is not None and scan.filter is None:
            yield scanner(replace(scan, limit=span.rows), opened, fragments=[span.fragment], offset=span.start)
        elif span.start is not None:
            yield scanner(_between(scan, span), opened, fragments=[span.fragment], late=late)


def late_columns(scan: Scan, opened: LanceDataset, spans: Sequence[Span]) -> bool | None:
    """False where so many rows pass the condition that all columns are best read at once; None leaves it to pylance.

    pylance looks up most columns by the rows that passed, which takes twice as long where most do. A few thousand rows from the middle of a
    fragment tell which it is. Only time depends on the answer. On an object store what is not read at all counts for more.
    """
    if scan.filter is None or scan.limit is not None or "://" in opened.uri or not spans:
        return None
    if sum(span.rows for span in spans) < SAMPLED_FROM:
        return None
    longest = max(spans, key=lambda span: span.rows)
    begin = (longest.start or 0) + max(longest.rows - SAMPLE, 0) // 2
    some = _between(scan, replace(longest, start=begin, rows=min(SAMPLE, longest.rows)))
    found = scanner(replace(some, schema=StructType()), opened, fragments=[longest.fragment]).to_table().num_rows
    return False if found > MANY_PASS * min(SAMPLE, longest.rows) else None


def _between(scan: Scan, span: Span) -> Scan:
    """The scan of a part of a fragment: by addresses, since limits count the rows that pass."""
    fragment = next(fragment for fragment in fragments_at(scan.address) if fragment.id == span.fragment)
    low, high = addresses(span, fragment)
    return replace(scan, filter=f"({scan.filter}) AND {ROW_ADDRESS} >= {low} AND {ROW_ADDRESS} < {high}")


def scanner(scan: Scan, opened: LanceDataset, *, fragments: list[int], offset: int | None = None, late: bool | None = None) -> Any:
    """pylance's scanner over some fragments."""
    names = [field.name for field in scan.schema.fields]
    return opened.scanner(
        # Names that SQL cannot quote can be read all the same, as long as all are.
        columns=None if names == opened.schema.names else names,
        filter=scan.filter,
        limit=scan.limit,
        offset=offset,
        fragments=[fragment for fragment in map(opened.get_fragment, fragments) if fragment is not None],
        batch_size=scan.batch_rows,
        with_row_id=not names,
        scan_in_order=False if offset is None and scan.limit is None else None,
        late_materialization=late,
        blob_handling="all_binary" if _has_blobs(opened, names) else None,
    )


def _has_blobs(opened: LanceDataset, names: list[str]) -> bool:
    fields = [opened.schema.field(name) for name in names if name not in HIDDEN]
    return any(
        (field.metadata or {}).get(b"lance-encoding:blob") == b"true" or getattr(field.type, "extension_name", "") == BLOB
        for field in fields
    )


def pin(options: Options) -> Address:
    """The table as it is now, or at the moment the options name. Options come first: one that nobody knows may be why there is no table.

    Raises:
        InvalidInput: there is an option that no read has.
    """
    options.require_known([*READ, *STREAM_READ], "read")
    return Target.from_options(options).locate()


def read_schema(options: Options, address: Address) -> StructType:
    """The columns that a DataFrame has."""
    found = table_schema(address, options)
    return found.add("_change_type", "string").add("_commit_version", "long") if options.boolean("read_changes") else found
