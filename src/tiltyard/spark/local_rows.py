"""Rows that the driver has already, such as those of ``createDataFrame`` and ``VALUES``: fetched from the JVM without a job."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOCAL: Final = "org.apache.spark.sql.execution.LocalTableScanExec"
_BATCH_BYTES: Final = 16 << 20


def local_rows(df: DataFrame, most: int) -> pa.Table | None:
    """What ``toArrow`` has, if the rows are in the driver's memory and not more than so many; None otherwise.

    A job costs Spark some 40 ms however few rows there are: twenty times what it takes to commit them.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # a Connect session keeps its plans elsewhere
        return None
    plan = frame.queryExecution().executedPlan()
    if plan.getClass().getName() != _LOCAL or not 0 < plan.rows().size() <= most:
        return None
    from pyspark.errors import PySparkException

    try:
        rows = _fetched(df, frame, plan)
    except (PySparkException, import_module("py4j.protocol").Py4JError, pa.ArrowException, OSError):
        return None  # the JVM or its end of the socket failed: a job does the same, or says what is wrong
    return rows if rows.num_rows == plan.rows().size() else None  # a socket that was closed early looks like the end


def _fetched(df: DataFrame, frame: Any, plan: Any) -> pa.Table:
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import _load_from_socket

    jvm: Any = df.sparkSession.sparkContext._jvm
    conf = frame.sparkSession().sessionState().conf()
    converters = getattr(getattr(jvm.org.apache.spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")
    rows, large = conf.arrowMaxRecordsPerBatch(), conf.arrowUseLargeVarTypes()
    batches = converters.toBatchWithSchemaIterator(plan.rows().iterator(), frame.schema(), rows, _BATCH_BYTES, "UTC", True, large)
    # By a socket of their own: an answer of py4j that is longer than 8 kB waits 40 ms for the acknowledgement of its beginning.
    with _load_from_socket(jvm.PythonRDD.serveIterator(batches, "rows of the driver"), NoOpSerializer()) as parts:
        return pa.concat_tables([pa.ipc.open_stream(one).read_all() for one in parts])
