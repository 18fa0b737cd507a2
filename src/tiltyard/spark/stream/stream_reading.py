"""Streaming read: versions are offsets. First the table as it is, or nothing, then what each version brought.

Offsets are ``{"version": 7}``: all up to version 7 is read, and ``{"version": 7, "done": 3}`` while the table as it was at version 7 is
still being read: three of its fragments are. ``{"version": 0}`` is before anything, ``{"version": -1}`` before whatever comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

import tiltyard as ty
from tiltyard.errors import InvalidInput, RetryableConflict
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.read.datasets import dataset
from tiltyard.spark.read.partitioning import Fragment, Span, pack
from tiltyard.spark.read.reading import Scan, raw_batches
from tiltyard.spark.source_options import STREAM_READ, Options
from tiltyard.spark.stream.stream_plan import Steps, StreamSource, StreamStep, columns_at, fragments_of
from tiltyard.spark.target import Address, Target
from tiltyard.spark.worker_process import begin_work

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2 a source is not asked for more than there is
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
_ALL: Final = 1 << 62
_FEED: Final = "_change"
_IDLE_VERSIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch reads at most; but always one version, or one fragment of the table as it was."""

    versions: int = _ALL
    rows: int = _ALL
    bytes: int = _ALL

    @classmethod
    def of(cls, options: Options) -> Limits:
        return cls(
            options.integer("max_versions_per_trigger", least=1) or _ALL,
            options.integer("max_rows_per_trigger", least=1) or _ALL,
            options.size("max_bytes_per_trigger") or _ALL,
        )

    def take(self, costs: Sequence[tuple[int, int]]) -> int:
        """How many of these, of so many rows and bytes each, fit into one batch."""
        rows = size = 0
        for number, (more_rows, more_bytes) in enumerate(costs):
            rows, size = rows + more_rows, size + more_bytes
            if number and (number >= self.versions or rows > self.rows or size > self.bytes):
                return number
        return len(costs)


class StreamPart(InputPartition):
    """The rows one task reads: some fragments of a version, or what a version changed."""

    def __init__(
        self,
        address: Address,
        schema: StructType,
        columns: dict[str, str | None],
        spans: tuple[Span, ...] = (),
        *,
        changes: tuple[StreamSource, int, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(None)
        self.address = address
        self.schema = schema
        self.columns = columns
        self.spans = spans
        self.changes = changes

    def __repr__(self) -> str:
        return f"StreamPart(version={self.address.version}, {'changes' if self.changes else f'{len(self.spans)} spans'})"


class TiltyardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader, on the driver for as long as the query runs. Tasks get partitions, which know all they need."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require_known([*STREAM_READ, "columns"], "streaming read")
        self._target = Target.from_options(options).require_newest("stream")
        self._feed = options.boolean("read_changes")
        self._ignoring = options.boolean("ignore_changes")
        if self._feed and self._ignoring:
            raise InvalidInput("Options read_changes and ignore_changes contradict each other.", argument="ignore_changes")
        self._limits = Limits.of(options)
        self._start = options.text("startingversion")
        self._moment = options.text("startingtimestamp")
        if self._start is not None and self._moment is not None:
            raise InvalidInput("Options startingVersion and startingTimestamp both say when to begin.", argument="startingTimestamp")
        if self._start not in (None, "latest"):
            options.integer("startingversion", least=1)
        self._partitions = options.integer("partitions", least=1) or 2
        self._schema = schema
        self._table = self._target.open()
        self._source = StreamSource(self._table.uri, self._table.branch, self._target.storage, self._target.allowed_bases)
        self._told, self._told_at = dict(self._table.layout.field_ids), self._table.version
        self._steps = Steps(self._source)
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # what travels to workers only reads partitions, which say all there is to know

    # ---- offsets ---------------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins. It says the same whenever it is asked: Spark does not keep it before the first batch is done."""
        if self._start == "latest":
            return {"version": -1}
        if self._start is not None:
            return {"version": int(self._start) - 1}
        if self._moment is not None:
            return {"version": self._first_since(_parsed(self._moment)) - 1}
        return {"version": 0}

    def _first_since(self, moment: datetime) -> int:
        versions = self._table.refresh().layout.versions()
        for version in versions:
            if self._table.transactions.describe(version).timestamp >= moment:
                return version
        return versions[-1] + 1

    def _head(self) -> int:
        if self._until is not None:
            return self._until
        # By the lake: what is committed there may not have its final name yet when nobody has looked.
        return self._target.open().version if self._target.lake is not None else self._table.layout.latest_version()

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing after what is there now is read by this run."""
        self._until = self._head()

    def getDefaultReadLimit(self) -> ReadLimit:
        """That there is a limit; what it is, options say."""
        return ReadAllAvailable() if self._limits == Limits() else ReadMaxFiles(min(self._limits.versions, 1 << 30))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next batch goes; the same as ``start`` if there is nothing to read."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        head, version = self._head(), start["version"]
        if version == -1:
            return {"version": head}
        if "done" in start or self._begins_with_all(version):
            return self._within(version if "done" in start else head, start.get("done", 0), limits)
        steps = [self._steps.of(number) for number in range(version + 1, head + 1)]
        data = [step for step in steps if step.kind != "nothing"]
        if not data:
            # A batch without rows, now and then, so that no cleanup comes between the stream and versions it need not read.
            return {"version": head} if len(steps) >= _IDLE_VERSIONS else start
        taken = limits.take([(step.rows, step.bytes) for step in data])
        return {"version": head if taken == len(data) else data[taken].version - 1}

    def _begins_with_all(self, version: int) -> bool:
        return version == 0 and self._start is None and self._moment is None

    def _within(self, version: int, done: int, limits: Limits) -> dict[str, int]:
        """Further into the table as it was at a version."""
        left = _in_order(self._source.at(version))[done:]
        by_fragment = Limits(_ALL, limits.rows, limits.bytes)
        taken = by_fragment.take([(fragment.rows, fragment.bytes) for fragment in left])
        return {"version": version} if taken == len(left) else {"version": version, "done": done + taken}

    def reportLatestOffset(self) -> dict[str, int]:
        """The newest version, for Spark's metrics."""
        return {"version": self._head()}

    # ---- partitions ------------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """What there is to read between two offsets."""
        if start["version"] == -1:
            return []
        parts: list[InputPartition] = []
        version = start["version"]
        if "done" in start or self._begins_with_all(version):
            # The table as it was: at the version that the end names, unless the end is beyond that.
            whole = version if "done" in start else end["version"]
            fragments = _in_order(self._source.at(whole))
            last = end["done"] if end["version"] == whole and "done" in end else len(fragments)
            parts += self._of_fragments(whole, fragments[start.get("done", 0) : last])
            version = whole
        for number in range(version + 1, end["version"] + 1):
            parts += self._of_step(self._steps.of(number))
        return parts

    def _of_step(self, step: StreamStep) -> list[InputPartition]:
        if step.kind == "nothing":
            return []
        if step.kind == "rows":
            return self._of_fragments(step.version, step.fragments)
        if not self._feed and not self._ignoring:
            raise RetryableConflict(
                f"Version {step.version} changed rows that were there ({step.operation}); this stream reads what is appended.",
                operation=step.operation,
                read_version=step.version,
                retryable=False,
                advice="Set read_changes to receive all changes, or ignore_changes to skip deletes.",
            )
        kinds = ("insert", "update", "delete") if self._feed else ("insert", "update")
        table = self._source.at(step.version)
        address = Address(self._source.uri, step.version, self._source.storage)
        columns = self._columns(table)
        return [StreamPart(address, self._schema, columns, changes=(self._source, step.version, kinds))]

    def _of_fragments(self, version: int, fragments: Sequence[Fragment]) -> list[InputPartition]:
        if not fragments:
            return []
        table = self._source.at(version)
        address = Address.of(table, dict(self._source.storage))
        columns = self._columns(table)
        return [StreamPart(address, self._schema, columns, spans) for spans in pack(fragments, self._partitions)]

    def _columns(self, table: ty.Table) -> dict[str, str | None]:
        names = [field.name for field in self._schema.fields if field.name not in (CHANGE_TYPE, COMMIT_VERSION)]
        return columns_at(table.version, table.layout.field_ids, names, self._told, self._told_at)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, in a worker."""
        begin_work()
        assert isinstance(partition, StreamPart)
        return _changed(partition) if partition.changes is not None else _scanned(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: versions stay until somebody cleans them up."""


def _in_order(table: ty.Table) -> list[Fragment]:
    return sorted(fragments_of(table), key=lambda fragment: fragment.id)


def _parsed(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"Option startingTimestamp must be an ISO 8601 timestamp, not {text[:60]!r}.", argument="startingTimestamp"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# ---- in workers ----------------------------------------------------------------------------------------------------------------


def _scanned(part: StreamPart) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.types import StructField, StructType

    stored = [StructField(name, part.schema[given].dataType) for given, name in part.columns.items() if name is not None]
    opened = dataset(part.address)
    shape = _Shape(part)
    for batch in raw_batches(Scan(part.address, StructType(stored)), opened, part.spans):
        yield shape.of(batch.select([field.name for field in stored]), batch.num_rows, "insert", part.address.version)


def _changed(part: StreamPart) -> Iterator[pa.RecordBatch]:
    assert part.changes is not None
    source, version, kinds = part.changes
    shape = _Shape(part)
    for batch in source.at(version).changes(version - 1, version):
        for kind in kinds:
            chosen = batch.filter(pa.compute.equal(batch.column(_FEED), kind))
            if chosen.num_rows:
                yield shape.of(chosen, chosen.num_rows, kind, version)


class _Shape:
    """Batches of a version as the stream shows them."""

    def __init__(self, part: StreamPart) -> None:
        self._columns = part.columns
        self._target = to_arrow_schema(part.schema, timezone="UTC")
        self._convert: Any = None

    def of(self, batch: pa.RecordBatch, count: int, change: str, version: int) -> pa.RecordBatch:
        arrays, fields = [], []
        for field in self._target:
            if field.name == CHANGE_TYPE:
                array = pa.array([change] * count, pa.string())
            elif field.name == COMMIT_VERSION:
                array = pa.array([version] * count, pa.int64())
            else:
                name = self._columns[field.name]
                array = pa.nulls(count, field.type) if name is None else batch.column(name)
            arrays.append(array)
            fields.append(pa.field(field.name, array.type))
        made = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        if self._convert is None:
            self._convert = batch_converter(made.schema, self._target)
        found: pa.RecordBatch = self._convert(made)
        return found
