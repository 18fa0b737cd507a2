"""A lake's tables in a Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tiltyard.spark.named import NamedTables
from tiltyard.spark.table import SparkTable
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LakeSpark(NamedTables):
    """What Spark does with a lake. Each verb is a commit of its own; for several in one use ``lake.transaction()``.

    Example:
        >>> lake.spark(spark).write(df, "orders")  # doctest: +SKIP
        >>> lake.spark(spark).merge(df, "orders", on="id").when_matched_update_all().when_not_matched_insert_all().execute()
        ... # doctest: +SKIP
    """

    def __init__(self, lake: ty.Lake, session: SparkSession, **options: Any) -> None:
        super().__init__(session, Work(**options))
        self.lake = lake

    def __repr__(self) -> str:
        return f"LakeSpark({self.lake!r})"

    def table(self, name: str) -> SparkTable:
        """A table at its newest version.

        Raises:
            NotFound: there is none of that name.
        """
        return SparkTable(self.session, self.lake.table(name), self.work)

    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, **how: Any) -> ty.CommitResult:
        with self.lake.transaction(message=how.get("message")) as tx:
            return tx.spark(self.session, **self.options()).write(df, name, create=True, primary_key=primary_key, **how)
