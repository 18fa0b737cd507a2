"""How rows get from Spark to our code: in batches of so many rows, which Spark need not measure.

Spark ends a batch by its bytes or its rows, whichever limit is met first, and to know its bytes it measures the whole batch after each
row. That takes twice as long as all else it does on the way. So where rows are known not to be large, batches are given fewer rows and no
limit of bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIXED_ROWS: Final = 10_000
"""Rows of a batch if all columns have a width: what Spark has too."""
VARYING_ROWS: Final = 2_000
"""Rows of a batch with text or lists. Spark's limit of 64 MB would be met from 32 kB a row on; a column holds 2 GB, so 1 MB a row."""

_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_OURS: Final = "tiltyard.unmeasured"
_UNMEASURED: Final = str(2**31 - 1)
_PYTHON: Final = re.compile(r"\b\w*(?:InArrow|InPandas|EvalPython)\w*\b(?! read_our_table\()")
"""Nodes of a plan that hand rows to Python."""
_FIXED: Final = (BooleanType, DateType, DayTimeIntervalType, NullType, NumericType, TimestampNTZType, TimestampType, YearMonthIntervalType)
_TEXT: Final = (StringType, CharType, VarcharType)


def rows_of_batches(schema: StructType) -> int | None:
    """How many rows a batch may have without being measured; None where a value may well be large, such as an image."""
    widths = [_rows(field.dataType) for field in schema.fields]
    return None if None in widths else min((width for width in widths if width is not None), default=FIXED_ROWS)


def _rows(kind: DataType) -> int | None:
    if isinstance(kind, _FIXED):
        return FIXED_ROWS
    if isinstance(kind, _TEXT):
        return VARYING_ROWS
    if isinstance(kind, StructType):
        return rows_of_batches(kind)
    if isinstance(kind, ArrayType):
        return None if _rows(kind.elementType) is None else VARYING_ROWS
    if isinstance(kind, MapType):
        return None if None in (_rows(kind.keyType), _rows(kind.valueType)) else VARYING_ROWS
    return None


@contextmanager
def unmeasured(df: DataFrame) -> Iterator[None]:
    """Jobs of this thread, meanwhile, hand the rows of a data frame over unmeasured.

    Unless somebody set the size of batches, or other functions in Python take part in making the rows: what goes into those is not known.
    """
    rows = rows_of_batches(df.schema)
    plan: Any = getattr(df, "_jdf", None)
    if rows is None or plan is None or _chosen(df.sparkSession) or _python_inside(plan):
        yield
        return
    measured_again(df.sparkSession)
    context: Any = df.sparkSession.sparkContext
    before = {key: context.getLocalProperty(key) for key in (_ROWS, _BYTES)}
    try:
        context.setLocalProperty(_ROWS, str(rows))
        context.setLocalProperty(_BYTES, _UNMEASURED)
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)


def _chosen(spark: SparkSession) -> bool:
    conf = spark._jsparkSession.sessionState().conf()
    return any(conf.contains(key) for key in (_ROWS, _BYTES))


def _python_inside(frame: Any) -> bool:
    """Whether functions in Python make the rows, other than those of ours that read a table."""
    return _PYTHON.search(frame.queryExecution().optimizedPlan().toString()) is not None


def measured_again(spark: SparkSession) -> None:
    """Takes back what the rule left in this thread after a write."""
    context: Any = spark.sparkContext
    if context.getLocalProperty(_OURS) is not None:
        for key in (_ROWS, _BYTES, _OURS):
            context.setLocalProperty(key, None)


class BatchRows:
    """Answers the rule about writes: columns as JSON, to how many rows a batch has; empty where that is left to Spark."""

    def apply(self, text: str) -> str:
        rows = rows_of_batches(StructType.fromJson(json.loads(text)))
        return "" if rows is None else str(rows)

    class Java:
        """What py4j has to know to hand this to the JVM."""

        implements: Final = ["java.util.function.Function"]


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
        return pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
