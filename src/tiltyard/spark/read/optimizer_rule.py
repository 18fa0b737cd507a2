"""The optimizer's rules: compiled when a session asks for them, by the compiler that is among Spark's own jars.

``NarrowScans`` has a plan read only what it needs. ``UnmeasuredWrites`` has Spark hand rows to our writers without measuring each.
``SelfOverwrites`` tells a writer which version its rows were read from, where they replace the table that they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import UnsupportedFeature
from tiltyard.spark.read.planner import Planner
from tiltyard.spark.sql_catalog.catalog_jar import loader_with_jar
from tiltyard.spark.write.arrow_batches import BatchRows, measured_again
from tiltyard.spark.write.replaced_reads import ReplacedVersions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTED: Final = ("4.2", "4.3")
"""Minor releases of Spark whose inside is known to be what the rule expects."""

_SCANS: Final = "NarrowScans"
_WRITES: Final = "UnmeasuredWrites"
_OVERWRITES: Final = "SelfOverwrites"
_COLUMNS: Final = "tiltyard.ColumnarRead"
_PROMPT: Final = "tiltyard.PromptCall"
_OURS: Final = tuple(f"tiltyard.{name}" for name in (_SCANS, _WRITES, _OVERWRITES))
_lock: Final = Lock()
_installed: Final[dict[str, OptimizerRule]] = {}
"""By the session's own id: Python may hold several objects for one session."""
_compiled: Final[dict[tuple[str, str], Any]] = {}
"""Classes of the JVM, by application and name."""


@dataclass(frozen=True, eq=False)
class OptimizerRule:
    """The rules in one session.

    Attributes:
        planner: what decides about scans; it counts what it answered and says why it declined.
        instance: the object in the JVM that does.
        columnar: whether batches are handed over as columns; as rows otherwise.
    """

    planner: Planner
    instance: Any
    columnar: bool

    @property
    def last_failure(self) -> str:
        """What went wrong when a plan was last left as it was; empty if nothing did."""
        return str(self.instance.lastFailure())


def install(spark: SparkSession, *, columnar: bool = True) -> OptimizerRule:
    """Puts the rule into a session, once.

    Args:
        spark: the session.
        columnar: whether batches may be handed over as columns; what is read is the same.

    Raises:
        PySparkException: or an error of py4j: this Spark is another inside; the session is as it was.
    """
    with _lock:
        key = _key(spark)
        if key not in _installed:
            _installed[key] = _install(spark, columnar)
        return _installed[key]


def remove(spark: SparkSession) -> None:
    """Takes the rule out of a session."""
    with _lock:
        if _installed.pop(_key(spark), None) is not None:
            _set_rules(spark, _others(spark))
            measured_again(spark)


def rule_of(spark: SparkSession) -> OptimizerRule | None:
    """The rule of a session, if it has one: what it answered, declined and failed at."""
    return _installed.get(_key(spark))


def _key(spark: SparkSession) -> str:
    return str(spark._jsparkSession.sessionUUID())


def _install(spark: SparkSession, columnar: bool) -> OptimizerRule:
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]  # Spark left it so
    planner = Planner(context.defaultParallelism)
    columns = _columnar(spark) if columnar else None
    scans = _made(spark, _SCANS, _prompt(spark, planner), columns)
    writes = _made(spark, _WRITES, spark._jsparkSession.sparkContext(), BatchRows())
    rules = _others(spark)
    rules.add(_made(spark, _OVERWRITES, ReplacedVersions()))  # first: a narrowed scan may not be one any more
    rules.add(scans)
    rules.add(writes)
    _set_rules(spark, rules)
    return OptimizerRule(planner, scans, columns is not None)


def _columnar(spark: SparkSession) -> Any:
    """What makes readers of columns in executors; None where rows have to do."""
    made = _of_jar(spark, _COLUMNS)
    return made if made is not None and made.isKnown() else None


def _prompt(spark: SparkSession, planner: Planner) -> Any:
    """The planner as the rule calls it: without py4j's wait for long requests, where our classes are at hand."""
    gateway: Any = spark.sparkContext._gateway
    return _of_jar(spark, _PROMPT, planner, gateway.java_gateway_server.getCallbackClient()) or planner


def _of_jar(spark: SparkSession, name: str, *arguments: Any) -> Any:
    """An object of a class that is compiled beforehand; None where it could not be."""
    jvm: Any = spark.sparkContext._jvm
    try:
        loader = loader_with_jar(spark)
    except UnsupportedFeature:
        return None
    given = jvm.java.util.ArrayList()
    for argument in arguments:
        given.add(argument)
    return jvm.java.lang.Class.forName(name, True, loader).getConstructors()[0].newInstance(given.toArray())


def _others(spark: SparkSession) -> Any:
    """The session's rules that are not ours, as a Java list."""
    jvm: Any = spark.sparkContext._jvm
    there, kept = spark._jsparkSession.experimental().extraOptimizations(), jvm.java.util.ArrayList()
    for index in range(there.size()):
        if there.apply(index).getClass().getName() not in _OURS:
            kept.add(there.apply(index))
    return kept


def _set_rules(spark: SparkSession, rules: Any) -> None:
    jvm: Any = spark.sparkContext._jvm
    # Scala's name for an assignment is none that Python can write down.
    assign = getattr(spark._jsparkSession.experimental(), "extraOptimizations_$eq")
    assign(jvm.scala.jdk.javaapi.CollectionConverters.asScala(rules).toSeq())


def _made(spark: SparkSession, name: str, *arguments: Any) -> Any:
    """An object of a class of ours in the JVM, compiled when an application first asks: about a second for the first.

    One class for all sessions: py4j remembers methods by the names of classes, and fails at an object of a second one of that name.
    """
    jvm: Any = spark.sparkContext._jvm
    key = (str(spark.sparkContext.applicationId), name)
    if key not in _compiled:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_source(name))
        for other in [known for known in _compiled if known[0] != key[0]]:
            del _compiled[other]  # of an application that has ended
        _compiled[key] = compiler.getClassLoader().loadClass(f"tiltyard.{name}")
    given = jvm.java.util.ArrayList()
    for argument in arguments:
        given.add(argument)
    return _compiled[key].getConstructors()[0].newInstance(given.toArray())


def _source(name: str) -> str:
    return (files("tiltyard.spark") / "java" / f"{name}.java").read_text()
