"""``enable``: everything a session can have of Tiltyard, and what it came to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import tiltyard as ty
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.placement import name_python, same_python
from tiltyard.spark.read.optimizer_rule import TESTED, install, remove
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.sql_catalog.catalog_jar import catalog_jar
from tiltyard.spark.sql_catalog.session_catalog import is_configured, serve, settings, use_lake
from tiltyard.spark.statements.views import lake_options, make_views
from tiltyard.spark.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST: Final = (4, 2)
"""The first release whose sources in Python read and write as this one needs it."""


@dataclass(frozen=True, slots=True)
class Enabled:
    """What was switched on in a session.

    Attributes:
        spark_version: of the session.
        connect: whether it is a Connect session.
        source: whether ``spark.read.format("tiltyard")`` is known.
        rule: whether the optimizer's rule is active: columns, filters, limits and aggregates go into the scan.
        views: the lake's tables that are views now.
        catalog: what the lake's catalog is called; None where there is none.
        notices: what is not available, and why.
    """

    spark_version: str
    connect: bool
    source: bool
    rule: bool
    views: tuple[str, ...] = ()
    catalog: str | None = None
    notices: tuple[str, ...] = ()
    _spark: Any = field(default=None, repr=False, compare=False)
    _lake: Target | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        kind = "Connect" if self.connect else "classic"
        parts = [f"Spark {self.spark_version} ({kind})", "source on", f"rule {'on' if self.rule else 'off'}"]
        if self.catalog is not None:
            parts.append(f"catalog {self.catalog}")
        if self._lake is not None:
            parts.append(f"{len(self.views)} views")
        return "; ".join([*parts, *self.notices])

    def refresh(self) -> Enabled:
        """Refreshes the views to the lake's tables as they are; without the rule also to latest versions."""
        if self._lake is None:
            return self
        return replace(self, views=make_views(self._spark, self._lake, self.views))


def enable(
    spark: SparkSession,
    lake: ty.Lake | str | os.PathLike[str] | None = None,
    rule: bool = True,
    *,
    catalog: str = "lake",
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> Enabled:
    """Makes a session know Tiltyard, and makes it the active one of this thread.

    Safe to call again, and to be called in each thread that writes by the data source.

    Args:
        spark: a classic or a Connect session.
        lake: a lake, open or by its URI. It becomes a catalog, so that ``spark.sql`` knows its tables as ``lake.orders``, and its
            tables views by their names.
        rule: whether to put the optimizer's rule in; what is read is the same without it, only slower.
        catalog: what the catalog is called.
        storage_options: for the object store of the lake; of an open lake they have to be given again.
        token: for a lake behind a server; of an open lake it has to be given again.

    Returns:
        what is on now, and what is not and why.

    Raises:
        UnsupportedFeature: this Spark is too old.
    """
    _refuse_old(spark.version)
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    notices: list[str] = []
    same_python(spark)
    if not connect:
        # Spark looks for a source to write to in the session of the thread, and a new thread has none.
        jvm: Any = spark.sparkContext._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.dataSource.register(TiltyardSource)
    if connect and rule:
        notices.append("no rule: a Connect client cannot reach the optimizer, so scans read all columns asked for and Spark filters")
    elif not connect and not rule:
        remove(spark)
    on = rule and not connect and _install(spark, notices)
    target = None
    views: tuple[str, ...] = ()
    named = None
    if not connect and (lake is not None or is_configured(spark)):
        named = _use_catalog(spark, catalog, None if lake is None else _lake_target(lake, storage_options, token), notices)
    elif connect and lake is not None:
        notices.append("no catalog: a Connect client cannot add one; use views, format('tiltyard') and SparkTable")
    if lake is not None:
        target = _lake_target(lake, storage_options, token)
        views = make_views(spark, target)
        if not on:
            notices.append("views stay at the version of their first use: call refresh() for newer ones")
    return Enabled(spark.version, connect, True, on, views, named, tuple(notices), spark, target)


def _refuse_old(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedFeature(
            f"This is Spark {version}; its data sources in Python lack what Tiltyard needs.",
            feature="an old Spark",
            advice=f"Use Spark {oldest} or later.",
        )


def configure(
    builder: SparkSession.Builder,
    lake: str | os.PathLike[str],
    *,
    catalog: str = "lake",
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> SparkSession.Builder:
    """Configures a session to be built with a lake as a catalog; ``enable`` then serves it.

    Without ``enable`` a Python process that the JVM starts does.

    Where ``python3`` on the path is another Python, a local session that no other names one for gets this one, by
    ``PYSPARK_DRIVER_PYTHON`` in the environment: then it knows ``format("tiltyard")``. That takes effect when the JVM is started; in a
    process that has one already, call ``enable`` when the session is there.

    The same settings do in ``spark-defaults.conf``: ``spark.jars`` with ``tiltyard.spark.catalog_jar()``, and
    ``spark.sql.catalog.lake``, ``spark.sql.catalog.lake.uri``.

    Args:
        builder: what ``SparkSession.builder`` is.
        lake: the lake's URI.
        catalog: what the catalog is called.
        storage_options: for the object store of the lake.
        token: for a lake behind a server.

    Returns:
        the builder.
    """
    for name, value in settings(catalog, _lake_target(lake, storage_options, token).to_options()).items():
        builder = builder.config(name, value)
    there: Mapping[str, Any] = getattr(builder, "_options", {})
    name_python(there)
    jars = [jar for jar in str(there.get("spark.jars", "")).split(",") if jar]
    jar = catalog_jar()
    return builder if jar in jars else builder.config("spark.jars", ",".join([*jars, jar]))


def _use_catalog(spark: SparkSession, name: str, lake: Target | None, notices: list[str]) -> str | None:
    """Makes the lake a catalog, or serves those that the session was configured with."""
    minor = ".".join(spark.version.split(".")[:2])
    if minor not in TESTED:
        notices.append(f"no catalog: it is made for Spark {', '.join(TESTED)}, not {minor}")
        return None
    try:
        if lake is None:
            serve(spark)
            return None
        use_lake(spark, name, lake.to_options())
    except UnsupportedFeature as error:
        notices.append(f"no catalog: {error}")
        return None
    return name


def _install(spark: SparkSession, notices: list[str]) -> bool:
    minor = ".".join(spark.version.split(".")[:2])
    if minor not in TESTED:
        notices.append(f"no rule: it is made for Spark {', '.join(TESTED)}, not {minor}; scans read all columns and Spark filters")
        return False
    from pyspark.errors import PySparkException

    # What the JVM throws arrives by one of Spark's classes or of py4j's; a class that is not there is a package, which cannot be called.
    refusals: tuple[type[Exception], ...] = (PySparkException, import_module("py4j.protocol").Py4JError, TypeError)
    try:
        if not install(spark).columnar:
            notices.append("no columns: workers return rows one by one, since the columnar reader does not fit this Spark")
    except refusals as error:
        reason = " ".join(str(error).split())[:160]
        notices.append(f"no rule: this Spark refused it ({reason}); scans read all columns and Spark filters")
        return False
    return True


def _lake_target(lake: ty.Lake | str | os.PathLike[str], storage_options: Mapping[str, Any] | None, token: str | None) -> Target:
    if not isinstance(lake, ty.Lake | str | os.PathLike):
        raise InvalidInput(f"lake is an open lake or its URI, not {type(lake).__name__}.", argument="lake")
    options = lake_options(lake if isinstance(lake, ty.Lake) else os.fspath(lake))
    options |= {f"storage.{name}": str(value) for name, value in (storage_options or {}).items()}
    return Target.from_options({**options, "table": "any", **({} if token is None else {"token": token})})
