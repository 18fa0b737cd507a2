"""The way from a lake, or from a transaction of one, to Spark. What Spark needs is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltyard.spark.placement import Work
    from tiltyard.spark.spark_lake import LakeSpark, TransactionSpark


class LakeDoor:
    """For a lake."""

    def spark(self, session: Any, work: Work | None = None) -> LakeSpark:
        """The lake's tables in a Spark session: each verb on them is one commit.

        Args:
            session: a ``SparkSession``.
            work: from which size on work is done in executors.
        """
        made: LakeSpark = import_module("tiltyard.spark.spark_lake").LakeSpark(self, session, work)
        return made


class TransactionDoor:
    """For a transaction."""

    def spark(self, session: Any, work: Work | None = None) -> TransactionSpark:
        """The tables of this transaction in a Spark session; writes are committed with the transaction.

        Args:
            session: a ``SparkSession``.
            work: from which size on work is done in executors.
        """
        made: TransactionSpark = import_module("tiltyard.spark.spark_lake").TransactionSpark(self, session, work)
        return made
