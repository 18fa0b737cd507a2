"""What a lake and a transaction offer alike: tables by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import tiltyard as ty
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.spark.placement import Work
from tiltyard.spark.sharded_spark import spark_table
from tiltyard.spark.spark_table import SparkTable
from tiltyard.spark.spark_types import arrow_schema
from tiltyard.spark.write.merging import SparkMerge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mode = Literal["append", "overwrite"]


class NamedTables(ABC):
    """Tables by name, and the verbs on them that bring rows."""

    def __init__(self, session: SparkSession, work: Work | None = None) -> None:
        self.session = session
        self.work = work or Work()

    @abstractmethod
    def table(self, name: str) -> SparkTable:
        """A table by name."""

    @abstractmethod
    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, message: str | None) -> ty.CommitResult:
        """Makes a table of a data frame's columns, with its rows."""

    def write(
        self,
        df: DataFrame,
        name: str,
        mode: Mode = "append",
        *,
        create: bool = False,
        primary_key: Sequence[str] | None = None,
        message: str | None = None,
    ) -> ty.CommitResult:
        """Writes a data frame into a table; ``table(name).append`` and ``overwrite`` take more.

        Args:
            df: the rows.
            name: the table's name in the lake.
            mode: ``"append"``, or ``"overwrite"`` to replace rows and columns.
            create: make the table if there is none of that name.
            primary_key: of a table that is made here.
            message: a sentence for the history.

        Raises:
            NotFound: there is no such table, and none is to be made.
            InvalidInput: the rows do not fit the table.
            KeyConflict: a key is duplicate, or exists already.
        """
        if mode not in ("append", "overwrite"):
            raise InvalidInput(f"mode is 'append' or 'overwrite', not {mode!r}.", argument="mode")
        try:
            table = self.table(name)
        except NotFound:
            if not create:
                raise
            return self._create(df, name, primary_key, message)
        return table.append(df, message=message) if mode == "append" else table.overwrite(df, message=message)

    def merge(self, df: DataFrame, name: str, on: str | Sequence[str] | None = None, *, allow_duplicates: bool = False) -> SparkMerge:
        """A merge of a data frame into a table, to be described clause by clause; see ``SparkTable.merge``."""
        return self.table(name).merge(df, on, allow_duplicates=allow_duplicates)

    def sql(self, text: str) -> DataFrame:
        """Runs a statement on the tables; see ``tiltyard.spark.sql``."""
        from tiltyard.spark.statements.run_sql import run  # it knows this module

        return run(self.session, text, self)


class LakeSpark(NamedTables):
    """A lake in a Spark session. Each verb commits; ``lake.transaction()`` commits several together.

    Examples:
        >>> lake.spark(spark).write(df, "orders")  # doctest: +SKIP
        >>> lake.spark(spark).merge(df, "orders", on="id").when_matched_update_all().when_not_matched_insert_all().execute()
        ... # doctest: +SKIP
    """

    def __init__(self, lake: ty.Lake, session: SparkSession, work: Work | None = None) -> None:
        super().__init__(session, work)
        self.lake = lake

    def __repr__(self) -> str:
        return f"LakeSpark({self.lake!r})"

    def table(self, name: str) -> SparkTable:
        """A table at its latest version.

        Raises:
            NotFound: there is none of that name.
        """
        return spark_table(self.session, self.lake.table(name), self.work, self.lake)

    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, message: str | None) -> ty.CommitResult:
        with self.lake.transaction(message=message) as tx:
            return tx.spark(self.session, self.work).write(df, name, create=True, primary_key=primary_key, message=message)


class TransactionSpark(NamedTables):
    """A transaction in a Spark session: executors write while it is open; the commit makes it visible.

    Examples:
        >>> with lake.transaction() as tx:  # doctest: +SKIP
        ...     tx.spark(spark).write(readings, "readings")
        ...     tx.spark(spark).merge(stations, "stations", on="id").when_matched_update_all().execute()
    """

    def __init__(self, transaction: ty.LakeTransaction, session: SparkSession, work: Work | None = None) -> None:
        super().__init__(session, work)
        self.transaction = transaction

    def __repr__(self) -> str:
        return f"TransactionSpark({self.transaction!r})"

    def table(self, name: str) -> SparkTable:
        """A table as the transaction sees it.

        Raises:
            NotFound: there is none of that name.
        """
        return spark_table(self.session, self.transaction.table(name), self.work)

    def _create(self, df: DataFrame, name: str, primary_key: Sequence[str] | None, message: str | None) -> ty.CommitResult:
        self.transaction.create_table(name, arrow_schema(df.schema), primary_key=primary_key)
        return self.write(df, name, message=message)
