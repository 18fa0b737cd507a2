"""Rows for the shards of a table: which shard each is for is worked out once, then each shard is given its own.

A data frame is materialized for that by a local checkpoint: one that is evaluated again for each shard may give other rows each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tiltyard.distributed import shard_numbers
from tiltyard.errors import InvalidInput
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.placement import Work, small_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARD: Final = "__tiltyard_shard"
"""The column that says, while rows are written, which shard each is for."""


@dataclass(frozen=True, slots=True)
class ShardOf:
    """Says which shard each row is for: the one that ``SHARD`` names, or, where that is null or missing, the one that its key says.

    Attributes:
        keys: the shard columns as the table types them; none where no row is new.
        names: what the rows call these.
        shards: how many there are.
    """

    keys: pa.Schema
    names: tuple[str, ...]
    shards: int

    @classmethod
    def of(cls, table: pa.Schema, columns: Sequence[str], shards: int, given: Sequence[str]) -> ShardOf:
        """For rows with those columns.

        Raises:
            InvalidInput: a shard column is missing.
        """
        return cls(pa.schema([_nullable(table, column) for column in columns]), tuple(_found(column, given) for column in columns), shards)

    @classmethod
    def numbered(cls, table: pa.Schema, columns: Sequence[str], shards: int, names: Sequence[str]) -> ShardOf:
        """For rows that call the shard columns so."""
        return cls(pa.schema([_nullable(table, column) for column in columns]), tuple(names), shards)

    def __call__(self, rows: pa.RecordBatch) -> Any:
        """The number of each row's shard."""
        numbers = np.full(rows.num_rows, -1, np.int64)
        if SHARD in rows.schema.names:
            numbers = np.array(rows.column(SHARD).cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))
        new = np.flatnonzero(numbers < 0)
        if len(new):
            some = [rows.column(name).take(pa.array(new)) for name in self.names]
            keys = pa.RecordBatch.from_arrays(some, names=list(self.keys.names))
            numbers[new] = shard_numbers(batch_converter(keys.schema, self.keys)(keys), self.keys.names, self.shards)
        return numbers


def _nullable(table: pa.Schema, column: str) -> pa.Field:
    return pa.field(column, table.field(column).type)


def _found(column: str, names: Sequence[str]) -> str:
    """What rows call a column of the table: exactly that, or the same but for upper and lower case."""
    near = [column] if column in names else [name for name in names if name.lower() == column.lower()]
    if len(near) != 1:
        raise InvalidInput(f"The rows have no column {column!r}, which decides their shard.", argument="df")
    return near[0]


def marked(df: DataFrame, shard_of: ShardOf) -> DataFrame:
    """The rows with the number of their shard, evaluated once."""
    from pyspark.sql import types as st

    kept = [name for name in df.columns if name != SHARD]

    def mark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = pa.array(shard_of(batch), pa.int32())
            yield pa.RecordBatch.from_arrays([*(batch.column(name) for name in kept), numbers], names=[*kept, SHARD])

    schema = st.StructType([*(df.schema[name] for name in kept), st.StructField(SHARD, st.IntegerType())])
    return df.mapInArrow(mark, schema).localCheckpoint()


def shards_in(rows: DataFrame) -> Iterator[tuple[int, DataFrame]]:
    """The rows of each shard that gets some, of a data frame that is marked."""
    for number in sorted(row[0] for row in rows.select(SHARD).distinct().collect()):
        yield number, rows.where(rows[SHARD] == number).drop(SHARD)


def by_shard(df: DataFrame, shard_of: ShardOf, work: Work) -> list[tuple[int, DataFrame | pa.Table]]:
    """The rows of each shard that gets some, evaluated now; few of them are fetched."""
    few = small_rows(df, work, None)
    if few is None:
        return list(shards_in(marked(df, shard_of)))
    numbers = np.concatenate([np.empty(0, np.int64), *(shard_of(batch) for batch in few.to_batches())])
    rows = few.drop_columns([SHARD])
    return [(int(number), rows.take(pa.array(np.flatnonzero(numbers == number)))) for number in np.unique(numbers)]
