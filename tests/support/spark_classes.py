"""Makes the archive of Spark's classes that JVMs of tests map into memory: each of some forty then starts with half the processor time.

``python -m tests.support.spark_classes`` runs what most tests of Spark run; the JVM writes down the classes that it took when it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tiltyard as ty
from tests.support.spark import CLASSES, QUICK_JVM, start_spark
from tiltyard.spark.sql_catalog.session_catalog import use_lake

STATEMENTS = (
    "CREATE TABLE lake.t (id BIGINT, v STRING)",
    "INSERT INTO lake.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "UPDATE lake.t SET v = upper(v) WHERE id = 1",
    "DELETE FROM lake.t WHERE id = 3",
    "MERGE INTO lake.t t USING (SELECT 2L id, 'm' v UNION ALL SELECT 4L, 'n') s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "SELECT a.v, count(*), max(b.id) FROM lake.t a JOIN lake.t b USING (id) GROUP BY a.v ORDER BY 1",
    "DESCRIBE EXTENDED lake.t",
)


def exercise(place: Path) -> None:
    """A catalog, statements, files, a stream, and frames to and from Arrow."""
    spark = start_spark(place / "spark")
    ty.spark.enable(spark)
    ty.Lake.open(place / "lake", durability="os").close()
    use_lake(spark, "lake", {"lake": str(place / "lake"), "durability": "os"})
    for statement in STATEMENTS:
        spark.sql(statement).collect()
    spark.range(10).write.mode("overwrite").json(str(place / "json"))
    spark.read.schema("id BIGINT").json(str(place / "json")).toArrow()
    frames = spark.readStream.schema("id BIGINT").json(str(place / "json")).writeStream.trigger(availableNow=True)
    frames.option("checkpointLocation", str(place / "checkpoint")).format("tiltyard").start(str(place / "streamed")).awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()  # the JVM ends with its standard input, and writes the archive then
    gateway.proc.stdin.close()
    gateway.proc.wait()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tiltyard-classes-") as scratch:
        written = Path(scratch) / "classes.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={written}"
        exercise(Path(scratch))
        if written.is_file():
            partial = CLASSES.with_suffix(".partial")
            shutil.copyfile(written, partial)
            partial.replace(CLASSES)  # whole or not at all: tests may start meanwhile


if __name__ == "__main__":
    main()
