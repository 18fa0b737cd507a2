"""The Python step of ``correct.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tiltyard.pipeline import StepContext


def shifted(context: StepContext) -> DataFrame:
    """Readings with their shift taken off, and marked as corrected."""
    from pyspark.sql import functions as sql

    readings = context["readings"].select("reading", "temperature")
    joined = context["calibrations"].join(readings, "reading", "left")
    return joined.select("reading", (sql.col("temperature") - sql.col("shift")).alias("temperature"), sql.lit("corrected").alias("quality"))
