"""The process that serves the catalog where no Python driver does: ``python -m tiltyard.spark.sql_catalog.catalog_process``.

The JVM starts it when a catalog of ours is first asked for something, and tells by the environment where its gateway is, as
``spark-submit`` tells a Python application. It ends when its input does, which is when the JVM is gone.
"""

from __future__ import annotations

import sys
from typing import Any

import tiltyard as ty


def main() -> None:
    """Attaches to the JVM, answers it, and waits for its end."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # Spark left it so
    jvm = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(conf=SparkConf(_jconf=java.getConf()), gateway=gateway, jsc=java)
    _end_in_silence(context._accumulatorServer)
    ty.spark.enable(SparkSession(context, jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()))
    print("ready", flush=True)
    sys.stdin.read()


def _end_in_silence(server: Any) -> None:
    """Keeps a server of PySpark's, which reads from the JVM until that is gone, from printing a traceback about it."""
    told = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            told(request, address)

    server.handle_error = handle_error


if __name__ == "__main__":
    main()
