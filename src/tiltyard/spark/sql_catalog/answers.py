"""What the JVM side of the catalog asks of the driver, and how it is answered."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import tiltyard as ty
from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.spark.sql_catalog import catalog_changes, catalog_tables, more_statements, procedures, statements_run
from tiltyard.spark.sql_catalog.open_transactions import EVOLUTIONS, Tables, require_none, tables_of, whole
from tiltyard.spark.sql_catalog.replace_statements import as_insert
from tiltyard.spark.stream import stream_commits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Request = Mapping[str, Any]
_KEPT: Final = 256

_VERBS: Final[Mapping[str, Callable[[Request], Any]]] = {
    "list_namespaces": catalog_tables.list_namespaces,
    "load_namespace": catalog_tables.load_namespace,
    "plan_scan": catalog_tables.plan_scan,
    "column_statistics": catalog_tables.column_statistics,
    "refuse_option": catalog_tables.refuse_option,
    "load_procedure": procedures.describe,
    "list_procedures": procedures.names,
    "plan_stream": stream_commits.plan_stream,
    "commit_stream": stream_commits.commit_stream,
}
_CHANGES: Final[Mapping[str, Callable[[Request, Tables], Any]]] = {
    "create": catalog_changes.create,
    "alter": catalog_changes.alter,
    "drop": catalog_changes.drop,
    "rename": catalog_changes.rename,
    "truncate": catalog_changes.truncate,
}
"""What can be part of a transaction."""
_APART: Final[Mapping[str, Callable[[Request], Any]]] = {
    "create_namespace": catalog_tables.create_namespace,
    "drop_namespace": catalog_tables.drop_namespace,
}
"""What cannot."""


@dataclass(eq=False)
class _QueryLake:
    """The lake that the latest query asked for, and the snapshot at which it reads all tables once the first was found."""

    key: str
    lake: ty.Lake
    snapshot: ty.LakeSnapshot | None = None


class CatalogAnswers:
    """Answers the JVM. One a process; called from whatever thread of the JVM analyzes or executes a statement."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._snapshots: OrderedDict[str, int] = OrderedDict()
        self._latest: _QueryLake | None = None
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
            return self._load(request)
        if verb == "list_tables":
            return catalog_tables.list_tables(request, tables_of(request))
        if verb == "call":
            require_none(request, f"CALL {'.'.join(request['name'])}")
            return procedures.call(self._spark, request)
        if verb == "execute":
            with whole(request) as where:
                return statements_run.execute(session_of(self._spark, subject[1]), request, subject[0], where)
        if verb == "parse":
            return more_statements.parse(session_of(self._spark, subject[1]), request["text"])
        if verb == "replace_rows":
            return self._as_insert(subject)
        if verb == "table_changes":
            rows = more_statements.table_changes(session_of(self._spark, subject[1]), request["values"])
            subject[0] = rows._jdf.queryExecution().analyzed()
            return True
        if verb in _CHANGES:
            with whole(request) as where:
                return _CHANGES[verb](request, where)
        if verb in _APART:
            require_none(request, verb.replace("_", " ").upper())
            return _APART[verb](request)
        if verb not in _VERBS:
            what = f"The classes in the JVM are of another release of Tiltyard: they ask for {verb!r}."
            raise InvalidInput(what, argument="do", advice="Restart the Spark session after an upgrade.")
        return _VERBS[verb](request)

    def _as_insert(self, subject: Any) -> bool:
        """An INSERT that replaces rows, parsed: one that Spark can analyze takes its place, if the table is in a catalog of ours."""
        session = session_of(self._spark, subject[1])
        if not more_statements.is_insert_into_ours(session, subject[0]):
            return False
        subject[0] = as_insert(session, subject[0])
        return True

    def _load(self, request: Request) -> Any:
        """A table; one that the statement adds columns to, with those."""
        where = self._tables(request)
        found = catalog_tables.load(request, where, self._snapshot)
        if isinstance(where, ty.Lake) and found.get("latest"):
            name = found["facts"]["options"]["table"]
            evolved = EVOLUTIONS.table(request, where, name)
            if evolved is not None:
                found = catalog_tables.described(request, name, evolved, latest=True)
                EVOLUTIONS.note(request, where, name, found["facts"]["id"])
        return found

    def _tables(self, request: Request) -> Tables:
        """The lake, opened once for all tables of one query: opening it is most of what finding a table costs."""
        if request["options"].get(catalog_tables.TRANSACTION) is not None:
            return tables_of(request)
        key = json.dumps([request["query"], request["catalog"], request["options"]], sort_keys=True)
        latest = self._latest
        if latest is None or latest.key != key:
            latest = self._latest = _QueryLake(key, catalog_tables.open_lake(request))
        return latest.lake

    def _snapshot(self, request: Request, lake: ty.Lake) -> ty.LakeSnapshot:
        """The snapshot that all tables of one query are read at."""
        key = f"{request['query']} {lake.url} {lake.branch}"
        latest = self._latest
        if latest is not None and latest.lake is lake and latest.snapshot is not None:
            return latest.snapshot
        with self._lock:
            known = self._snapshots.get(key)
            found = lake.snapshot(known)
            self._snapshots[key] = found.id
            while len(self._snapshots) > _KEPT:
                self._snapshots.popitem(last=False)
        if latest is not None and latest.lake is lake:
            latest.snapshot = found
        return found

    class Java:
        """What py4j has to know to hand this to the JVM."""

        implements: Final = ["java.util.function.BiFunction"]


def session_of(known: SparkSession, session: Any) -> SparkSession:
    """Python's object for a session of the JVM: a statement may come from another one than made the catalog known."""
    from pyspark.sql import SparkSession

    if str(known._jsparkSession.sessionUUID()) == str(session.sessionUUID()):
        return known
    return SparkSession(known.sparkContext, session)
