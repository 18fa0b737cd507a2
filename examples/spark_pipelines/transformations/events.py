"""A stream of files into a table, and a view over what has come. Spark imports this, in the directory of the project."""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
landing = str(Path("landing").resolve())


@pipelines.table
def events() -> DataFrame:
    return spark.readStream.schema("id BIGINT, customer BIGINT, kind STRING").json(landing)


@pipelines.materialized_view
def kinds() -> DataFrame:
    return spark.read.table("events").groupBy("kind").count()
