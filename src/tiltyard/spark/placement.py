"""Where work is done: on the driver while it is small, in executors from some size on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark

from tiltyard.errors import InvalidInput
from tiltyard.spark.convert import batch_converter
from tiltyard.spark.write.arrow_batches import local_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNKNOWN: Final = 1 << 60
"""Bytes from which on a size is no estimate, but what Spark says when it has none."""


@dataclass(frozen=True, slots=True)
class Work:
    """What decides how work is spread.

    Attributes:
        driver_bytes: data frames that Spark takes to be at most so large are fetched, and written by the driver; 0 for none.
        driver_rows: and have at most so many rows.
        driver_table_rows: tables with at most so many rows are searched for keys by the driver.
        partitions: the most tasks that a table is read in; twice the session's cores if not given.
        progress: called with each step when it begins.
    """

    driver_bytes: int = 8 << 20
    driver_rows: int = 100_000
    driver_table_rows: int = 20_000_000
    partitions: int | None = None
    progress: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        for name in ("driver_bytes", "driver_rows", "driver_table_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInput(f"{name} must be a number of at least 0.", argument=name)
        if self.partitions is not None and (not isinstance(self.partitions, int) or self.partitions < 1):
            raise InvalidInput("partitions must be a number of at least 1.", argument="partitions")

    def begin(self, step: str) -> None:
        """Reports that a step begins."""
        if self.progress is not None:
            self.progress(step)

    def tasks(self, spark: SparkSession) -> int:
        """In how many tasks a table is read."""
        if self.partitions is not None:
            return self.partitions
        return 2 * int(spark.sparkContext.defaultParallelism) if not is_connect(spark) else 16


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark that runs elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def same_python(spark: SparkSession) -> None:
    """On one machine, workers run the Python that runs this, unless somebody chose another: Spark's own choice is any ``python3``."""
    if is_connect(spark):
        return
    context = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def name_python(options: Mapping[str, Any]) -> None:
    """Names the Python of a session to be built in the environment, if nobody did.

    A JVM looks for sources with that one, else with any ``python3``. Not on a cluster: workers would be started by the same path, which
    they need not have.
    """
    if os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON"):
        return
    chosen = options.get("spark.pyspark.driver.python") or options.get("spark.pyspark.python")
    found = shutil.which("python3")
    if not chosen and found is not None and Path(found).parent == Path(sys.executable).parent:
        return
    if _master(options).startswith("local"):
        os.environ["PYSPARK_DRIVER_PYTHON"] = str(chosen or sys.executable)


def _master(options: Mapping[str, Any]) -> str:
    """Where a session that is to be built will work, as Spark finds out: options, arguments, the file of defaults, the environment."""
    named = options.get("spark.master")
    if named:
        return str(named)
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "").replace("=", " ").split()
    if "--master" in arguments:
        return " ".join(arguments[arguments.index("--master") + 1 :][:1])
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    lines = defaults.read_text(errors="replace").splitlines() if defaults.is_file() else []
    stated = [words[1] for line in lines if len(words := line.replace("=", " ").split()) > 1 and words[0] == "spark.master"]
    return stated[-1] if stated else os.environ.get("MASTER", "local")


def estimated_bytes(df: DataFrame) -> int:
    """What Spark takes a data frame's size to be, before it is worked out; a very large number where it does not know."""
    plan: Any = getattr(df, "_jdf", None)
    if plan is None:  # a Connect session keeps its plans elsewhere
        return UNKNOWN
    return int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes()))


def small_rows(df: DataFrame, work: Work, wanted: pa.Schema | None) -> pa.Table | None:
    """All rows, if they are few enough for the driver; None otherwise.

    Spark's estimate alone does not do: rows that come of others, as by ``explode``, are not in it.
    """
    if not work.driver_bytes or estimated_bytes(df) > work.driver_bytes:
        return None
    rows = local_rows(df, work.driver_rows)
    if rows is None:
        rows = df.limit(work.driver_rows + 1).toArrow()
    return as_wanted(rows, wanted) if rows.num_rows <= work.driver_rows else None


def as_wanted(rows: pa.Table, wanted: pa.Schema | None) -> pa.Table:
    """The rows under the types that a table has for their columns; columns it does not have stay as they are."""
    if wanted is None:
        return rows
    schema = wanted_schema(rows.schema, wanted)
    convert = batch_converter(rows.schema, schema)
    return pa.Table.from_batches([convert(batch) for batch in rows.to_batches()], schema)


def under(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows under a schema of the same columns and types: what may be null and all notes as it says.

    Raises:
        InvalidInput: a value is null that may not be.
    """
    for field, column in zip(schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidInput(f"Column {field.name} has null values, but must not.", argument=field.name, advice="Nothing was written.")
    return pa.Table.from_arrays(rows.columns, schema=schema)


def wanted_schema(given: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The given columns, each as the table types it if it has it. What may be null the rows say: the table's verbs look at that."""
    fields = []
    for item in given:
        there = wanted.get_field_index(item.name)
        fields.append(item if there < 0 else pa.field(item.name, wanted.field(there).type, item.nullable))
    return pa.schema(fields)
