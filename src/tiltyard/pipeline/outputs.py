"""Rows of a step into a table of the lake, inside the transaction of the run. Few rows are written by the driver, many by executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import tiltyard as ty
from tiltyard.pipeline.row_history import FROM, with_times, write_history
from tiltyard.pipeline.spec import Output
from tiltyard.pipeline.steps import spark_errors
from tiltyard.spark.spark_expressions import whole_expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.spark import SparkTable

_COUNTED: Final = ("inserted", "updated", "deleted")


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    """What was written to a table.

    Attributes:
        table, mode: where and how.
        rows: how many were inserted, updated and deleted.
        made: whether the run made the table.
    """

    table: str
    mode: str
    rows: Mapping[str, int] = field(default_factory=dict)
    made: bool = False


def write_output(tx: ty.LakeTransaction, spark: SparkSession, frame: DataFrame, output: Output, *, refresh: bool = False) -> WrittenOutput:
    """Writes rows; with ``refresh`` in place of all that are there.

    Raises:
        InvalidInput: they do not fit the table, or what is overwritten.
        KeyConflict: a key comes twice.
    """
    with spark_errors(f"outputs.{output.table}"):
        made = output.table not in tx.tables()
        if made:
            _make(tx, with_times(frame, output) if output.mode == "scd2" else frame, output)
        table = tx.spark(spark).table(output.table)
        before = table.table.count_rows()
        if refresh and not made and output.mode == "scd2":
            table.delete("true")
        elif refresh and not made:
            output = replace(output, mode="overwrite", on=(), update=(), where=None)
        done = _written(table, frame, output, made=made)
        if "inserted" not in done and output.mode in ("append", "overwrite where"):
            done["inserted"] = table.table.count_rows() - before + done.get("deleted", 0)
        elif output.mode == "overwrite" and not made:
            done = {"deleted": before, "inserted": table.table.count_rows()}
    return WrittenOutput(output.table, output.mode, {how: done[how] for how in _COUNTED if done.get(how)}, made)


def append_rows(tx: ty.LakeTransaction, spark: SparkSession, frame: DataFrame, table: str) -> WrittenOutput:
    """Adds rows to a table, which is made if it is not there."""
    return write_output(tx, spark, frame, Output(table, "rows"))


def _written(table: SparkTable, frame: DataFrame, output: Output, *, made: bool) -> dict[str, int]:
    if output.mode == "scd2":
        return write_history(table, frame, output)
    if output.mode == "merge" and not made:
        return _merge(table, frame, output)
    if output.mode == "overwrite" and not made:
        return dict(table.overwrite(frame).rows)
    gone: dict[str, int] = {}
    if output.where is not None:
        _check_where(frame, output)
        gone = {"deleted": table.delete(output.where).rows.get("deleted", 0)}
    return {**gone, **table.append(frame).rows}


def _merge(table: SparkTable, frame: DataFrame, output: Output) -> dict[str, int]:
    if output.update and output.not_matched == "ignore":
        frame = frame.select(*dict.fromkeys((*output.on, *output.update)))  # all it has is then all that is to be updated
    merge = table.merge(frame, on=output.on)
    if output.matched == "update":
        some = output.update and output.not_matched == "insert"
        merge = merge.when_matched_update(output.update) if some else merge.when_matched_update_all()
    if output.not_matched == "insert":
        merge = merge.when_not_matched_insert_all()
    return dict(merge.execute().rows)


def _make(tx: ty.LakeTransaction, frame: DataFrame, output: Output) -> None:
    """An empty table with the columns of the rows. All of them may be null: that none of these rows is says nothing of later ones."""
    if output.mode == "merge" and output.not_matched == "ignore":
        raise ty.NotFound(
            f"outputs.{output.table}: there is no such table, and a merge that inserts nothing does not make one.", name=output.table
        )
    schema = pa.schema([pa.field(item.name, item.type) for item in frame.limit(0).toArrow().schema])
    key = (*output.on, FROM) if output.mode == "scd2" else output.primary_key or output.on
    tx.create_table(output.table, schema, primary_key=list(key) or None, stable_row_ids=output.stable_row_ids)


def _check_where(frame: DataFrame, output: Output) -> None:
    """Rows that are not among those overwritten would be added once more by each run."""
    from pyspark.sql import functions as sql

    strays = frame.filter(~sql.coalesce(whole_expression(str(output.where)), sql.lit(False))).count()
    if strays:
        raise ty.InvalidInput(
            f"outputs.{output.table}: {strays:,} new rows are not among those that {output.where!r} overwrites.",
            argument=f"outputs.{output.table}.where",
        )
