"""Tables of a lake as temporary views of a session, so that plain SQL finds them by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tiltyard as ty
from tiltyard.errors import InvalidInput
from tiltyard.spark.source import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.spark.target import Target


def view_name(table: str) -> str:
    """A table's name as a view's, ready for SQL: a view has no namespace, so one with dots stands in backquotes."""
    return f"`{table}`" if not table.isidentifier() else table


def make_views(spark: SparkSession, target: Target, before: Sequence[str] = ()) -> tuple[str, ...]:
    """One view a table, at its newest version whenever it is used; views of tables that are gone go too.

    Args:
        spark: the session.
        target: the lake; the table in it does not matter.
        before: names that an earlier call made.
    """
    lake = target.open_lake()
    names = tuple(lake.tables())
    for name in names:
        lake_frame(spark, target, name).createOrReplaceTempView(view_name(name))
    for name in before:
        if name not in names:
            spark.catalog.dropTempView(view_name(name))
    return names


def lake_frame(spark: SparkSession, target: Target, name: str) -> DataFrame:
    """The rows of a table, whatever its newest version is when they are read."""
    from dataclasses import replace

    options = replace(target, table=name).to_options()
    return spark.read.format(NAME).options(**options, follow="true").load()


def lake_options(lake: ty.Lake | str) -> dict[str, str]:
    """What an open lake is, in options: its catalog and its branch. Credentials it was opened with are not among them.

    Raises:
        InvalidInput: other processes could not open it from what an open lake tells.
    """
    if isinstance(lake, str):
        return {"lake": lake}
    if lake.url.startswith(("postgres", "memory")):
        raise InvalidInput(
            "Spark cannot open this lake from an open handle, which does not give out its password.",
            argument="lake",
            advice="Pass the lake's URI as text.",
        )
    branch = {} if lake.branch == "main" else {"branch": lake.branch}
    return {"lake": lake.url, **branch}
