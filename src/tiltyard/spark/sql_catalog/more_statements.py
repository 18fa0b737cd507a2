"""Statements that are not in Spark's grammar, and the table function ``table_changes``.

``OPTIMIZE``, ``VACUUM``, ``RESTORE``, ``ANALYZE TABLE`` and ``DESCRIBE HISTORY`` are read here and become what Spark has: a
procedure, or a query of a metadata table. What other engines have and a lake has not is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.sql_catalog.catalog_tables import name_in
from tiltyard.spark.sql_catalog.open_transactions import tables_of
from tiltyard.spark.statements.sql_plans import as_list, kind_of
from tiltyard.spark.statements.statement_words import ADVICE, OptimizeClauses, Words, quoted_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS: Final = "tiltyard.LakeCatalog"


def parse(session: SparkSession, text: str) -> str | None:
    """The statement in Spark's grammar; None where it is not about a table of ours."""
    words = Words(text)
    explained = _explained(words)
    for verb, read in _VERBS.items():
        if words.take(*verb):
            found = _in_catalog(session, words.name() if verb != ("RESTORE",) else _after(words, "TABLE"))
            return None if found is None else explained + read(words, *found)
    return None


def _explained(words: Words) -> str:
    """EXPLAIN, if it comes first, with the mode that it names."""
    if not words.take("EXPLAIN"):
        return ""
    return next((f"EXPLAIN {mode} " for mode in ("EXTENDED", "CODEGEN", "COST", "FORMATTED") if words.take(mode)), "EXPLAIN ")


def _after(words: Words, word: str) -> tuple[str, ...] | None:
    words.take(word)
    return words.name()


def _in_catalog(session: SparkSession, name: tuple[str, ...] | None) -> tuple[str, tuple[str, ...]] | None:
    """The catalog of ours that a name is in, and the rest of the name."""
    if name is None:
        return None
    if len(name) > 1 and _is_ours(session, name[0]):
        return name[0], name[1:]
    manager = session._jsparkSession.sessionState().catalogManager()
    current = str(manager.currentCatalog().name())
    if not _is_ours(session, current):
        return None
    return current, (*(str(part) for part in manager.currentNamespace()), *name) if len(name) == 1 else name


def is_insert_into_ours(session: SparkSession, plan: Any) -> bool:
    """Whether a parsed INSERT, with or without WITH before it, is into a table of a catalog of ours."""
    insert = plan.child() if kind_of(plan) == "UnresolvedWith" else plan
    if kind_of(insert.table()) != "UnresolvedRelation":
        return False
    return _in_catalog(session, tuple(str(part) for part in as_list(insert.table().multipartIdentifier()))) is not None


def _is_ours(session: SparkSession, catalog: str) -> bool:
    return session.conf.get(f"spark.sql.catalog.{catalog}", None) == _OURS


def _call(catalog: str, procedure: str, **values: str) -> str:
    told = ", ".join(f"{name} => {value}" for name, value in values.items())
    return f"CALL {_quoted(catalog)}.system.{procedure}({told})"


def _quoted(*parts: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _text(parts: tuple[str, ...]) -> str:
    for part in parts:
        if "'" in part or "\\" in part:
            raise InvalidInput(f"Names of tables have no quotes: {part[:60]!r}.", argument="name")
    return f"'{'.'.join(parts)}'"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _refused(clause: str, advice: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"{clause} is not supported on tables of a lake.", feature=clause, writing=True, advice=advice)


def _optimize(words: Words, catalog: str, name: tuple[str, ...]) -> str:
    clauses = OptimizeClauses.read(words)
    given = {"table": _text(name)}
    if clauses.where is not None:
        given["where"] = _literal(clauses.where)
    if clauses.columns:
        given["cluster_by"] = _literal(quoted_list(clauses.columns))
    if clauses.full:
        given["full"] = "true"
    return _call(catalog, "compact", **given)


def _vacuum(words: Words, catalog: str, name: tuple[str, ...]) -> str:
    """A cleanup of the lake: snapshots are of all tables, so what one of them needs is not its own affair."""
    if words.take("LITE"):
        raise _refused("VACUUM ... LITE", "Leave LITE out.")
    words.take("FULL")
    given = {"table": _text(name)}
    if words.take("RETAIN"):
        told = words.kind("number")
        if told is None or not words.take("HOURS"):
            raise InvalidInput("RETAIN needs a whole number of HOURS.", argument="text", advice=ADVICE)
        given["retain_hours"] = told
    if words.take("DRY", "RUN"):
        given["dry_run"] = "true"
    words.end()
    return _call(catalog, "vacuum", **given)


def _restore(words: Words, catalog: str, name: tuple[str, ...]) -> str:
    if words.take("TO", "VERSION", "AS", "OF") and (version := words.kind("number")) is not None:
        words.end()
        return _call(catalog, "restore", table=_text(name), version=version)
    if words.take("TO", "TIMESTAMP", "AS", "OF") and (moment := words.kind("text")) is not None:
        words.end()
        return _call(catalog, "rollback", table=_text(name), timestamp=moment)
    raise InvalidInput(
        "RESTORE needs TO VERSION AS OF a number, or TO TIMESTAMP AS OF a text.", argument="text", advice="Give one of the two."
    )


def _history(words: Words, catalog: str, name: tuple[str, ...]) -> str:
    limit = ""
    if words.take("LIMIT") and (count := words.kind("number")) is not None:
        limit = f" LIMIT {count}"
    words.end()
    return f"SELECT * FROM {_quoted(catalog, *name, 'history')} ORDER BY version DESC{limit}"  # noqa: S608  # quoted, and Spark reads it


def _analyze(words: Words, catalog: str, name: tuple[str, ...]) -> str:
    """All columns without a list, as Spark counts rows without one: here that number is known."""
    if not words.take("COMPUTE", "STATISTICS"):
        if words.take("PARTITION"):
            raise _refused("ANALYZE TABLE ... PARTITION", "Leave PARTITION out: only data without statistics is read.")
        raise InvalidInput("ANALYZE TABLE needs COMPUTE STATISTICS.", argument="text", advice=ADVICE)
    given: dict[str, str] = {"table": _text(name)}
    if words.take("NOSCAN"):
        given["scan"] = "false"
    elif words.take("FOR", "COLUMNS"):
        given["columns"] = _text((", ".join(".".join(column) for column in words.names("FOR COLUMNS", "Or write FOR ALL COLUMNS.")),))
    else:
        words.take("FOR", "ALL", "COLUMNS")
    words.end()
    return _call(catalog, "analyze", **given)


_VERBS: Final[Mapping[tuple[str, ...], Any]] = {
    ("OPTIMIZE",): _optimize,
    ("VACUUM",): _vacuum,
    ("RESTORE",): _restore,
    ("ANALYZE", "TABLE"): _analyze,
    ("DESCRIBE", "HISTORY"): _history,
    ("DESC", "HISTORY"): _history,
}


def table_changes(session: SparkSession, values: list[str | None]) -> DataFrame:
    """The rows of ``table_changes('t', first, last)``: what versions from the first to the last one changed.

    Raises:
        InvalidInput: the arguments are not a table's name and one or two versions.
    """
    numbers = [None if value is None or not value.isdigit() else int(value) for value in values[1:]]
    if len(values) not in (2, 3) or values[0] is None or any(number is None or number < 1 for number in numbers):
        raise InvalidInput("table_changes takes a table's name, a first version, and a last one or none.", argument="table_changes")
    parser = session._jsparkSession.sessionState().sqlParser()
    found = _in_catalog(session, tuple(str(part) for part in as_list(parser.parseMultipartIdentifier(values[0]))))
    if found is None:
        raise InvalidInput(f"{values[0]!r} is in no catalog of a lake.", argument="table_changes", advice="Write catalog.table.")
    catalog, name = found
    there = session._jsparkSession.sessionState().catalogManager().catalog(catalog).options()
    where = tables_of({"catalog": catalog, "name": name, "options": {str(key): str(there.get(key)) for key in there.keySet()}})
    first = numbers[0] or 1
    last = numbers[1] if len(numbers) > 1 else None
    rows = where.spark(session).table(name_in(where, name)).changes(first - 1, last)
    return rows.withColumn("_version", rows["_version"].cast("bigint"))
