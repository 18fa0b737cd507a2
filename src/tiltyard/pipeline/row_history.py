"""Slowly changing dimensions, type 2: a table keeps every version of a row, with the time from which and up to which it held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tiltyard as ty
from tiltyard.pipeline.spec import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiltyard.spark import SparkTable

FROM, TO, CURRENT = "valid_from", "valid_to", "is_current"
ADDED: Final = (FROM, TO, CURRENT)
"""Columns that the table has beside those of the rows."""
_OLD, _THERE = "_tiltyard_old", "_tiltyard_there"


def with_times(frame: DataFrame, output: Output) -> DataFrame:
    """Rows with the columns that the table has, none of them filled in but when they begin.

    Raises:
        InvalidInput: they have no column that says when, or columns of our names; or it is null somewhere.
    """
    from pyspark.sql import functions as sql

    key, names = f"outputs.{output.table}", {name.lower() for name in frame.columns}
    if str(output.sequence).lower() not in names:
        raise ty.InvalidInput(f"{key}.sequence is {output.sequence!r}, which the rows do not have.", argument=f"{key}.sequence")
    if taken := [name for name in ADDED if name in names]:
        raise ty.InvalidInput(f"{key}: the rows have a column {taken[0]!r}, which this mode makes itself.", argument=key)
    begin = sql.col(f"`{output.sequence}`")
    kind = frame.select(begin).schema[0].dataType
    return frame.select("*", begin.alias(FROM), sql.lit(None).cast(kind).alias(TO), sql.lit(True).alias(CURRENT))


def write_history(table: SparkTable, frame: DataFrame, output: Output) -> dict[str, int]:
    """Writes new versions of rows into their places, and ends those that they follow.

    All versions of the keys that come are put in order again, so rows may come late and come twice. A row that is as the version before
    it is no new version.

    Raises:
        InvalidInput: as ``with_times``; or a key has two different rows of one time.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    incoming = with_times(frame, output).dropDuplicates()
    unknown = incoming.filter(sql.col(FROM).isNull()).count()
    if unknown:
        key = f"outputs.{output.table}.sequence"
        raise ty.InvalidInput(
            f"{key}: {unknown:,} rows have no value in {output.sequence!r}, which says when a row begins to hold.", argument=key
        )
    keys = [f"`{name}`" for name in output.on]
    known = table.to_df()
    there = known.join(incoming.select(*keys).distinct(), list(output.on), "left_semi")
    # Of a version that is there and comes again, what comes counts; it stays a version, even if it is as the one before it now.
    places = there.select(*keys, FROM, sql.lit(True).alias(_THERE))
    kept = there.join(incoming.select(*keys, FROM), [*output.on, FROM], "left_anti").withColumn(_THERE, sql.lit(True))
    came = incoming.join(places, [*output.on, FROM], "left").withColumn(_OLD, sql.lit(False))
    columns = [f"`{name}`" for name in incoming.columns]
    events = kept.withColumn(_OLD, sql.lit(True)).select(*columns, _OLD, _THERE).unionByName(came.select(*columns, _OLD, _THERE))
    order = Window.partitionBy(*keys).orderBy(FROM)
    values = sql.struct(*(f"`{name}`" for name in incoming.columns if name not in (*ADDED, *output.on, output.sequence)))
    told = events.withColumn("_tiltyard_values", values).withColumn("_tiltyard_before", sql.lag(values).over(order))
    differs = ~sql.col("_tiltyard_values").eqNullSafe(sql.col("_tiltyard_before"))
    news = told.filter(sql.col(_THERE).isNotNull() | differs)
    until = sql.lead(FROM).over(order)
    was = news.withColumns({f"_tiltyard_{name}": sql.col(name) for name in (TO, CURRENT)})
    ready = was.withColumn(TO, until).withColumn(CURRENT, until.isNull())
    # Versions that stay as they are need not be written again.
    same = [ready[name].eqNullSafe(ready[f"_tiltyard_{name}"]) for name in (TO, CURRENT)]
    changed = ready.filter(~(sql.col(_OLD) & same[0] & same[1])).select(*columns)
    merge = table.merge(changed, on=[*output.on, FROM])
    return dict(merge.when_matched_update_all().when_not_matched_insert_all().execute().rows)
