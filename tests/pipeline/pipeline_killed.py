"""A runner of a pipeline that dies by SIGKILL at a chosen point: one of the run itself, or one of the commit inside it.

The process that dies has everything of ours in it: sources, steps, transaction, commit. Only Spark's Java is shared with the tests, so that
a death does not cost the start of another one; it keeps nothing of a run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.lake_killed import SteppingLake, SteppingRecords, Steps
from tests.support.pipelines import Bench
from tiltyard.lake import Lake
from tiltyard.pipeline import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def gateway_of(spark: SparkSession) -> tuple[int, str]:
    """How another process reaches the Java of a session."""
    parameters: Any = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]  # a classic session has one
    return parameters.port, parameters.auth_token


def session_through(gateway: tuple[int, str]) -> SparkSession:
    """A session of this process in the Java of another one."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(gateway[0]), gateway[1]
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    reached = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark's own
    jvm: Any = reached.jvm
    java_session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext(java_session.sparkContext())
    context = SparkContext(gateway=reached, jsc=java_context, conf=SparkConf(_jconf=java_context.sc().conf()))
    return SparkSession(context, java_session)


class DeadlySteps(Steps):
    """Dies the first time a step of a given name is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(None, Path(os.devnull))
        self._name = name

    def take(self, name: str) -> None:
        if name.startswith(self._name):
            os.kill(os.getpid(), signal.SIGKILL)


def dies_at(point: str, number: int) -> Callable[[Event], None]:
    seen = 0

    def observe(event: Event) -> None:
        nonlocal seen
        if event.point == point:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return observe


def run_child(directory: str, gateway: tuple[int, str], point: str, number: int, commit_step: str) -> None:
    bench = Bench(Path(directory))
    with bench.lake("the one who dies") as lake:
        if commit_step:
            _make_steps_deadly(lake, commit_step)
        bench.pipeline().run(session_through(gateway), lake=lake, observer=dies_at(point, number))


def _make_steps_deadly(lake: Lake, name: str) -> None:
    steps = DeadlySteps(name)
    lake.__class__ = SteppingLake
    lake.steps = steps  # type: ignore[attr-defined]  # as in lake_killed
    lake.catalog.records = SteppingRecords(lake.catalog.records, steps)


_context: ForkServerContext | None = None


def killed(*arguments: Any) -> int:
    """Runs a child to its end or its death; what it ended with."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload([__name__])
    process = _context.Process(target=run_child, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
