"""A real Spark for tests: one session a worker process, small, on loopback, started when the first test asks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.children import path_of_the_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Over so few rows, a second compiler and a collector with threads of its own take half of the processor time."""
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Spark's classes as a JVM has them in memory, made by ``tests.support.spark_classes``: they are mapped, not loaded and checked one by one.
A JVM that it does not fit goes on without it."""


def jvm_options() -> str:
    return f"{QUICK_JVM} -XX:SharedArchiveFile={CLASSES}" if CLASSES.is_file() else QUICK_JVM


# Read by every driver that a test starts, in whichever process, and by the program that starts it. A JVM keeps the environment that it was
# started in, and hands it to its Python workers; sessions that follow in this process get the same JVM, whoever had it started.
os.environ["PYTHONPATH"] = path_of_the_tree()
os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JVM)


def start_spark(scratch: Path, master: str = "local[2]", *, say_which_python: bool = True, **more: str) -> SparkSession:
    """A session whose every file is under ``scratch``; workers see what this process can import.

    ``say_which_python`` puts the interpreter into the environment, as most users of a virtual environment do not.
    """
    from pyspark.sql import SparkSession  # heavy, and most test processes never ask

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if say_which_python:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("tiltyard tests")
    scratch.mkdir(parents=True, exist_ok=True)
    places = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch / "local")}
    for key, value in {**SETTINGS, **places, **more}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Java's process is forked and replaced at once, whoever imported lance before.
        warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tiltyard.spark.read import small_tables

    # Tables of tests are small, and it is workers that are to be tested; tests/spark/test_small_tables.py is about these.
    small_tables.MOST_ROWS = 0
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
