"""Makes a session know a lake as a catalog: one that exists, or one that is going to be built."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.spark.sql_catalog.answers import CatalogAnswers
from tiltyard.spark.sql_catalog.catalog_jar import loader_with_jar
from tiltyard.spark.sql_catalog.catalog_tables import LAKE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG: Final = "tiltyard.LakeCatalog"
"""The class that ``spark.sql.catalog.<name>`` names."""
_DRIVER: Final = "tiltyard.Driver"
_PROMPT: Final = "tiltyard.PromptCall"
_STRATEGY: Final = "tiltyard.LakeStrategy"
_IN_SESSIONS: Final = ("tiltyard.LakeParser", "tiltyard.LakeChanges")
"""What each session gets: further statements, and a table function."""
_lock: Final = Lock()


def settings(name: str, target: Mapping[str, str]) -> dict[str, str]:
    """What Spark has to be told for a catalog of that name to be the lake that options of the source describe.

    Raises:
        InvalidInput: the name is none of a catalog.
    """
    if not isinstance(name, str) or not name.isidentifier() or name == "spark_catalog":
        raise InvalidInput(f"A catalog's name is a plain word, not {str(name)[:60]!r}.", argument="catalog")
    key = f"spark.sql.catalog.{name}"
    told = {"uri" if option == LAKE else option: value for option, value in target.items() if option != "table"}
    return {key: CATALOG, **{f"{key}.{option}": value for option, value in told.items()}}


def is_configured(spark: SparkSession) -> bool:
    """Whether a catalog of ours is among the session's settings."""
    names = [name for name in _settings_of(spark) if name.startswith("spark.sql.catalog.") and name.count(".") == 3]
    return any(spark.conf.get(name, None) == CATALOG for name in names)


def serve(spark: SparkSession) -> Any:
    """Makes this process the one that answers, and has the session plan writes; returns the loader of our classes."""
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    with _lock:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # Spark left it so
        loader = loader_with_jar(spark)
        given = jvm.java.util.ArrayList()
        given.add(CatalogAnswers(spark))
        kinds = gateway.new_array(jvm.java.lang.Class, 1)
        kinds[0] = jvm.java.lang.Class.forName("java.util.function.BiFunction")
        jvm.java.lang.Class.forName(_DRIVER, True, loader).getMethod("set", kinds).invoke(None, given.toArray())
        _plan_writes(spark, loader)
        kinds[0] = jvm.java.lang.Class.forName("java.lang.Object")
        client = jvm.java.util.ArrayList()
        client.add(gateway.java_gateway_server.getCallbackClient())
        jvm.java.lang.Class.forName(_PROMPT, True, loader).getMethod("through", kinds).invoke(None, client.toArray())
        session = jvm.java.util.ArrayList()
        session.add(spark._jsparkSession)
        for name in _IN_SESSIONS:
            jvm.java.lang.Class.forName(name, True, loader).getMethod("install", kinds).invoke(None, session.toArray())
    return loader


def _plan_writes(spark: SparkSession, loader: Any) -> None:
    jvm: Any = spark.sparkContext._jvm
    experimental = spark._jsparkSession.experimental()
    there, kept = experimental.extraStrategies(), jvm.java.util.ArrayList()
    for index in range(there.size()):
        if there.apply(index).getClass().getName() != _STRATEGY:
            kept.add(there.apply(index))
    kept.add(jvm.java.lang.Class.forName(_STRATEGY, True, loader).getConstructors()[0].newInstance(jvm.java.util.ArrayList().toArray()))
    # Scala's name for an assignment is none that Python can write down.
    getattr(experimental, "extraStrategies_$eq")(jvm.scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq())


def use_lake(spark: SparkSession, name: str, target: Mapping[str, str]) -> None:
    """Makes a lake a catalog of a session that exists; a catalog of that name becomes this lake's.

    Raises:
        InvalidInput: the session has another catalog of that name.
    """
    wanted = settings(name, target)
    key = f"spark.sql.catalog.{name}"
    there = spark.conf.get(key, None)
    if there not in (None, CATALOG):
        raise InvalidInput(f"This session has another catalog {name!r}.", argument="catalog", advice="Pass catalog= with another name.")
    serve(spark)
    # Options of the lake before must not stay: a branch, say. They are settings too, and those go one by one.
    for old in [old for old in _settings_of(spark) if old.startswith(f"{key}.")]:
        spark.conf.unset(old)
    for setting, value in wanted.items():
        spark.conf.set(setting, value)
    loaded = spark._jsparkSession.sessionState().catalogManager().catalog(name)
    options = spark.sparkContext._jvm.java.util.HashMap()  # type: ignore[union-attr]  # there is one in a classic session
    for setting, value in wanted.items():
        if setting != key:
            options.put(setting.removeprefix(f"{key}."), value)
    loaded.pointAt(options)


def _settings_of(spark: SparkSession) -> list[str]:
    found = spark._jsparkSession.sessionState().conf().getAllConfs()
    keys = found.keysIterator()
    names = []
    while keys.hasNext():
        names.append(str(keys.next()))
    return names
