"""What the JVM side of the catalog asks of the driver, and how it is answered."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import tiltyard as ty
from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.spark.sql_catalog import catalog_changes, catalog_tables, procedures, statements_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Request = Mapping[str, Any]
_KEPT: Final = 256

_VERBS: Final[Mapping[str, Callable[[Request], Any]]] = {
    "list_tables": catalog_tables.list_tables,
    "list_namespaces": catalog_tables.list_namespaces,
    "load_namespace": catalog_tables.load_namespace,
    "create_namespace": catalog_tables.create_namespace,
    "drop_namespace": catalog_tables.drop_namespace,
    "plan_scan": catalog_tables.plan_scan,
    "create": catalog_changes.create,
    "alter": catalog_changes.alter,
    "drop": catalog_changes.drop,
    "rename": catalog_changes.rename,
    "truncate": catalog_changes.truncate,
    "load_procedure": procedures.describe,
    "list_procedures": procedures.names,
}


class CatalogAnswers:
    """Answers the JVM. One a process; called from whatever thread of the JVM analyzes or executes a statement."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._snapshots: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def apply(self, text: str, subject: Any) -> str:
        """What Java calls: a request as JSON, for some with the objects of the JVM that it is about; the answer as JSON."""
        from pyspark.errors import PySparkException

        try:
            return json.dumps({"ok": self._answer(json.loads(text), subject)})
        except TiltyardError as error:
            kind = error.kind.upper().replace("-", "_")
            return json.dumps({"error": kind, "message": f"[TILTYARD.{kind}] {error}"})
        except PySparkException as error:
            return json.dumps({"error": "SPARK", "message": str(error)})
        except import_module("py4j.protocol").Py4JJavaError as error:
            return json.dumps({"error": "SPARK", "message": str(error.java_exception.getMessage())})

    def _answer(self, request: Request, subject: Any) -> Any:
        verb = request["do"]
        if verb == "load":
            return catalog_tables.load(request, self._snapshot)
        if verb == "call":
            return procedures.call(self._spark, request)
        if verb == "execute":
            return statements_run.execute(session_of(self._spark, subject[1]), request, subject[0])
        if verb not in _VERBS:
            raise InvalidInput(f"The classes in the JVM are of another release: they ask for {verb!r}.", argument="do")
        answer = _VERBS[verb](request)
        if verb == "alter":  # the statement may be one that adds columns for itself: what it reads next has them
            with self._lock:
                self._snapshots.clear()
        return answer

    def _snapshot(self, request: Request, lake: ty.Lake) -> int:
        """The snapshot that all tables of one query are read at."""
        key = f"{request['query']} {lake.url} {lake.branch}"
        with self._lock:
            known = self._snapshots.get(key)
            if known is None:
                known = self._snapshots[key] = lake.snapshot().id
                while len(self._snapshots) > _KEPT:
                    self._snapshots.popitem(last=False)
            return known

    class Java:
        """What py4j has to know to hand this to the JVM."""

        implements: Final = ["java.util.function.BiFunction"]


def session_of(known: SparkSession, session: Any) -> SparkSession:
    """Python's object for a session of the JVM: a statement may come from another one than made the catalog known."""
    from pyspark.sql import SparkSession

    if str(known._jsparkSession.sessionUUID()) == str(session.sessionUUID()):
        return known
    return SparkSession(known.sparkContext, session)
