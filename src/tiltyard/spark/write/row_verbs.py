"""Updates and deletes rows: Spark finds and computes them in executors, which write the changed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import tiltyard as ty
from tiltyard.distributed import Piece, Pinned, RowChange, RowPlan
from tiltyard.errors import InvalidInput
from tiltyard.spark.jobs import ADDRESS, ROW_ID, scan_frame
from tiltyard.spark.placement import Work
from tiltyard.spark.spark_expressions import ColumnFacts, checked_expression, mentioned
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.write.row_jobs import ACTION, VALUE, Action, changed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def update_rows(
    spark: SparkSession,
    table: ty.TableWriter,
    values: Mapping[str, Any],
    where: str | Column | ColumnFacts | None,
    how: Mapping[str, Any],
    work: Work,
    alias: str | None = None,
) -> ty.CommitResult:
    """Updates rows. Where the condition holds for none, nothing is committed."""
    if not isinstance(values, Mapping) or not values or not all(isinstance(name, str) for name in values):
        raise InvalidInput("Values are expressions of Spark by column, at least one.", argument="values")
    condition = checked_expression("true" if where is None else where)

    def worker(pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        work.begin("finding rows")
        names = [name for name in pinned.schema.names if name in values]
        types = spark_schema(pa.schema([pinned.schema.field(name) for name in names]))
        given = [
            checked_expression(values[name], "values").cast(types[name].dataType).alias(f"{VALUE}{place}")
            for place, name in enumerate(names)
        ]
        places = [f.col(ADDRESS), *([f.col(ROW_ID)] if pinned.stable else [])]
        frame = mentioned_rows(spark, pinned, ["" if where is None else where, *values.values()], work, alias).where(condition)
        rows = frame.select(f.lit(0).alias(ACTION), *places, *given)
        change = changed(rows, pinned, [Action("update", tuple(names))], work=_small(pinned, work))
        work.begin("committing")
        return RowChange(change.taken, change.pieces, change.moved, counts={"updated": change.counts["updated"]})

    return table.distributed.change_rows(worker, RowPlan("update", updated=frozenset(values)), **how)


def delete_rows(
    spark: SparkSession,
    table: ty.TableWriter,
    where: str | Column | ColumnFacts,
    how: Mapping[str, Any],
    work: Work,
    alias: str | None = None,
) -> ty.CommitResult:
    """Deletes the rows that a condition holds for. Where there are none, nothing is committed."""
    condition = checked_expression(where)

    def worker(pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        work.begin("finding rows")
        frame = mentioned_rows(spark, pinned, [where], work, alias).where(condition)
        change = changed(frame.select(f.lit(0).alias(ACTION), f.col(ADDRESS)), pinned, [Action("delete")], work=_small(pinned, work))
        work.begin("committing")
        return RowChange(change.taken, counts={"deleted": change.counts["deleted"]})

    return table.distributed.change_rows(worker, RowPlan("delete", predicate=str(where)), **how)


@dataclass(frozen=True)
class Matching:
    """Rows of a table that match one of others, or several.

    Attributes:
        source: the others.
        condition: over both.
        alias: what it calls the table.
    """

    source: DataFrame
    condition: ColumnFacts
    alias: str


def delete_matching(spark: SparkSession, table: ty.TableWriter, matching: Matching, how: Mapping[str, Any], work: Work) -> ty.CommitResult:
    """Deletes the rows that match. Where there are none, nothing is committed."""

    def worker(pinned: Pinned) -> RowChange:
        from pyspark.sql import functions as f

        work.begin("finding rows")
        frame = mentioned_rows(spark, pinned, [matching.condition], work, matching.alias)
        found = frame.join(matching.source, matching.condition.column, "leftsemi").select(f.lit(0).alias(ACTION), f.col(ADDRESS))
        change = changed(found, pinned, [Action("delete")], work=_small(pinned, work))
        work.begin("committing")
        return RowChange(change.taken, counts={"deleted": change.counts["deleted"]})

    return table.distributed.change_rows(worker, RowPlan("delete", predicate=str(matching.condition)), **how)


def _small(pinned: Pinned, work: Work) -> Work | None:
    """Says that the driver writes, if the table has no more rows than that. Spark cannot guess how many a scan of ours has."""
    return work if pinned.rows <= work.driver_rows else None


def mentioned_rows(spark: SparkSession, pinned: Pinned, expressions: list[Any], work: Work, alias: str | None = None) -> DataFrame:
    """All rows of a version with those columns that expressions may be about, and where each is."""
    frame = scan_frame(spark, pinned.scan_task(), pinned.schema, mentioned(pinned.schema.names, expressions), work)
    return frame if alias is None else frame.alias(alias)


def fit(pinned: Pinned, pieces: Sequence[Piece]) -> bool:
    """Whether files can take the place of a version's rows as they are: they have all its columns, and no row has to keep its id."""
    task = pinned.write_task()
    wanted = {field.id: field for field in task.fields}
    return not pinned.stable and all(
        piece.data_format == task.data_format and {field.id: field for field in piece.fields} == wanted for piece in pieces
    )


def replacing(keys: pa.Table, pieces: Sequence[Piece], rows: Any, taken: Mapping[int, bytes], count: int) -> RowChange | None:
    """The change; None where several rows of the table have one key: each of them would have to be there again, under its new values.

    Args:
        keys: of the rows that come, each once.
        pieces: the files of these rows.
        rows: which of the keys the table has, by their places.
        taken: where it has them, packed.
        count: in how many rows.
    """
    new = np.ones(keys.num_rows, np.bool_)
    new[rows] = False
    inserted = int(new.sum())
    if count != keys.num_rows - inserted:
        return None
    counts = {"inserted": inserted, "updated": count, "deleted": 0}
    return RowChange(taken, pieces, (), keys.filter(pa.array(new)), counts, distinct=True)
