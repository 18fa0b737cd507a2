"""The Spark session of a run: the caller's, or one that is started when the first step needs it, and not before."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tiltyard.errors import UnsupportedFeature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
}
LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Where all of Spark is one process nobody else has to reach it."""


class Spark:
    """Gives the session to whoever asks, and starts it the first time. A run that has nothing to do never asks."""

    def __init__(self, given: SparkSession | None, name: str, settings: Mapping[str, str]) -> None:
        self._given = given
        self._name = name
        self._settings = settings
        self._started: SparkSession | None = None

    def session(self) -> SparkSession:
        """A session whose views are those of this pipeline alone."""
        if self._given is None and self._started is None:
            self._given = running()
        if self._given is None and self._started is None:
            self._started = start(self._name, self._settings)
        whole = self._given if self._given is not None else self._started
        assert whole is not None
        return apart(whole)

    def stop(self) -> None:
        """Stops what was started here; a session of the caller goes on."""
        if self._started is not None:
            self._started.stop()
            self._started = None


def apart(session: SparkSession) -> SparkSession:
    """The same Spark with views of its own; over Connect, where there is no such thing, the session itself."""
    from pyspark.sql.utils import is_remote

    return session if is_remote() else session.newSession()


def running() -> SparkSession | None:
    """A session that this process has already; it is used, and left running.

    Raises:
        UnsupportedFeature: PySpark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UnsupportedFeature(
            "A pipeline with steps needs PySpark, which is not installed.", feature="spark", advice="pip install 'tiltyard[spark]'"
        ) from None
    return SparkSession.getActiveSession()


def start(name: str, settings: Mapping[str, str]) -> SparkSession:
    """Starts Spark."""
    from pyspark.sql import SparkSession

    master = settings.get("master", "local[*]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    all_of_it = {**SETTINGS, **(LOCAL if master.startswith("local") else {}), **settings}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    all_of_it.pop("master", None)
    builder = SparkSession.builder.master(master).appName(f"tiltyard {name}")
    for key, value in all_of_it.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Spark's own process is forked and replaced at once: nothing of pylance runs in it.
        warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel(all_of_it["spark.log.level"])
    return session
