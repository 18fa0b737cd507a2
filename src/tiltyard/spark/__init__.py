"""Tiltyard on Spark: the data source, distributed verbs and SQL, without JARs.

Uses only the public names of Tiltyard. Executors read and write files by the tasks of ``tiltyard.distributed``; the driver commits.

    ``source``              ``TiltyardSource``: ``format("tiltyard")``, from which Spark gets readers, writers and streams
    ``source_options``      its options; ``target`` the table they name
    ``enabling``            ``enable``: the source, the optimizer rule, the catalog and views for a session; ``configure`` for one to be
    ``spark_reader``        ``SparkReader``: one table to be read; ``spark_table`` ``SparkTable``: its verbs
    ``spark_lake``          ``LakeSpark``, ``TransactionSpark``: tables by name
    ``sharded_spark``       ``SparkShardedTable``: a sharded table of a lake; rows are assigned to shards by executors
    ``jobs``                runs a function in each worker; ``placement`` decides between driver and executors
    ``convert``             batches of one Arrow schema as another; ``spark_types`` types of Arrow and Spark
    ``spark_expressions``   expressions that callers give
    ``idempotency``         batches that Spark may send again
    ``worker_process``      the processes that Spark starts, made fit for short work

Folders: ``read/``, ``write/``, ``stream/``, ``statements/`` (SQL), ``sql_catalog/`` (the lake as a catalog).

Fails as the verbs of a table do, on the driver; ``UnsupportedFeature`` where a session or a statement cannot be served.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tiltyard.spark.enabling import Enabled, configure, enable
    from tiltyard.spark.placement import Work
    from tiltyard.spark.source import TiltyardSource
    from tiltyard.spark.spark_lake import LakeSpark, TransactionSpark
    from tiltyard.spark.spark_reader import SparkReader
    from tiltyard.spark.spark_table import SparkTable
    from tiltyard.spark.sql_catalog.catalog_jar import catalog_jar
    from tiltyard.spark.sql_catalog.open_transactions import transaction
    from tiltyard.spark.statements.run_sql import sql
    from tiltyard.spark.target import Target
    from tiltyard.spark.write.merging import SparkMerge

_PUBLIC: Final = {
    "Enabled": "tiltyard.spark.enabling",
    "LakeSpark": "tiltyard.spark.spark_lake",
    "SparkMerge": "tiltyard.spark.write.merging",
    "SparkReader": "tiltyard.spark.spark_reader",
    "SparkTable": "tiltyard.spark.spark_table",
    "Target": "tiltyard.spark.target",
    "TiltyardSource": "tiltyard.spark.source",
    "TransactionSpark": "tiltyard.spark.spark_lake",
    "Work": "tiltyard.spark.placement",
    "catalog_jar": "tiltyard.spark.sql_catalog.catalog_jar",
    "configure": "tiltyard.spark.enabling",
    "enable": "tiltyard.spark.enabling",
    "sql": "tiltyard.spark.statements.run_sql",
    "transaction": "tiltyard.spark.sql_catalog.open_transactions",
}
"""Where each name is. Loaded when asked for: Spark's own processes import this package only for the source."""

__all__ = [
    "Enabled",
    "LakeSpark",
    "SparkMerge",
    "SparkReader",
    "SparkTable",
    "Target",
    "TiltyardSource",
    "TransactionSpark",
    "Work",
    "catalog_jar",
    "configure",
    "enable",
    "sql",
    "transaction",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        if find_spec("pyspark") is None:
            raise ModuleNotFoundError(
                f"tiltyard.spark.{name} needs pyspark, which is not installed. Run: pip install 'tiltyard[spark]'", name="pyspark"
            )
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'tiltyard.spark' has no attribute {name!r}")
