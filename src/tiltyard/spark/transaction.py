"""The tables of a lake as a transaction sees them, in a Spark session: all that is written there is published in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tiltyard as ty
from tiltyard.spark.named import NamedTables
from tiltyard.spark.table import SparkTable
from tiltyard.spark.types import arrow_schema
from tiltyard.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TransactionSpark(NamedTables):
    """What Spark does inside a transaction. Executors write while it is open; nobody sees any of it before the commit.

    Example:
        >>> with lake.transaction() as tx:  # doctest: +SKIP
        ...     tx.spark(spark).write(readings, "readings")
        ...     tx.spark(spark).merge(stations, "stations", on="id").when_matched_update_all().execute()
    """

    def __init__(self, transaction: ty.LakeTransaction, session: SparkSession, **options: Any) -> None:
        super().__init__(session, Work(**options))
        self.transaction = transaction

    def __repr__(self) -> str:
        return f"TransactionSpark({self.transaction!r})"

    def table(self, name: str) -> SparkTable:
        """A table as the transaction sees it.

        Raises:
            NotFound: there is none of that name.
        """
        return SparkTable(self.session, self.transaction.table(name), self.work)

    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, **how: Any) -> ty.CommitResult:
        self.transaction.create_table(name, arrow_schema(df.schema), primary_key=primary_key)
        return self.write(df, name, **how)
