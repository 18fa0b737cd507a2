"""Statements that are not in Spark's grammar, and the table function ``table_changes``.

``OPTIMIZE``, ``VACUUM``, ``RESTORE``, ``ANALYZE TABLE`` and ``DESCRIBE HISTORY`` are read here and become what Spark has: a
procedure, or a query of a metadata table. What other engines have and a lake has not is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.sql_catalog.catalog_tables import name_in
from tiltyard.spark.sql_catalog.open_transactions import tables_of
from tiltyard.spark.statements.sql_plans import as_list, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOKEN: Final = re.compile(
    r"""\s+|--[^\n]*(?:\n|$)|/\*.*?\*/
    |(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_OURS: Final = "tiltyard.LakeCatalog"
_WEEK: Final = "168"
"""Hours that VACUUM keeps elsewhere if nobody says how many."""


class _Words:
    """The words of a statement, read from the front."""

    def __init__(self, text: str) -> None:
        self._left = [(kind, match[0]) for match in _TOKEN.finditer(text) if (kind := match.lastgroup) is not None]
        while self._left and self._left[-1] == ("sign", ";"):
            self._left.pop()

    def take(self, *words: str) -> bool:
        """Reads these words, if they come next."""
        told = [text.upper() for kind, text in self._left[: len(words)] if kind == "word"]
        if told != list(words):
            return False
        del self._left[: len(words)]
        return True

    def kind(self, kind: str) -> str | None:
        """Reads a token of a kind, if one comes next."""
        return self._left.pop(0)[1] if self._left and self._left[0][0] == kind else None

    def sign(self, sign: str) -> bool:
        """Reads a sign, if it comes next."""
        if self._left[:1] != [("sign", sign)]:
            return False
        del self._left[0]
        return True

    def name(self) -> tuple[str, ...] | None:
        """Reads a table's name; None where there is none."""
        parts = []
        while True:
            quoted = self.kind("quoted")
            part = quoted[1:-1].replace("``", "`") if quoted is not None else self.kind("word")
            if part is None:
                return None
            parts.append(part)
            if not self._left or self._left[0] != ("sign", "."):
                return tuple(parts)
            self._left.pop(0)

    def end(self) -> None:
        """Refuses whatever is left: nothing of a statement may be passed over."""
        if self._left:
            left = " ".join(text for _, text in self._left)[:60]
            raise InvalidInput(f"The statement cannot be understood from {left!r} on.", argument="text", advice=_ADVICE)


_ADVICE: Final = "See the page of SQL forms."


def parse(session: SparkSession, text: str) -> str | None:
    """The statement in Spark's grammar; None where it is not about a table of ours."""
    words = _Words(text)
    explained = _explained(words)
    for verb, read in _VERBS.items():
        if words.take(*verb):
            found = _in_catalog(session, words.name() if verb != ("RESTORE",) else _after(words, "TABLE"))
            return None if found is None else explained + read(words, *found)
    return None


def _explained(words: _Words) -> str:
    """EXPLAIN, if it comes first, with the mode that it names."""
    if not words.take("EXPLAIN"):
        return ""
    return next((f"EXPLAIN {mode} " for mode in ("EXTENDED", "CODEGEN", "COST", "FORMATTED") if words.take(mode)), "EXPLAIN ")


def _after(words: _Words, word: str) -> tuple[str, ...] | None:
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


def _refused(clause: str, advice: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"{clause} is not supported on tables of a lake.", feature=clause, writing=True, advice=advice)


def _optimize(words: _Words, catalog: str, name: tuple[str, ...]) -> str:
    if words.take("WHERE"):
        raise _refused("OPTIMIZE ... WHERE", "Leave WHERE out: only fragments that are small or have deleted rows are rewritten.")
    if words.take("ZORDER"):
        advice = (
            f"ALTER TABLE ... CLUSTER BY (columns), then INSERT OVERWRITE the table with its rows; or CALL {catalog}.system.create_index."
        )
        raise _refused("OPTIMIZE ... ZORDER BY", advice)
    if words.take("FULL"):
        raise _refused("OPTIMIZE ... FULL", "Leave FULL out, or INSERT OVERWRITE the table with its rows, which sorts them.")
    words.end()
    return _call(catalog, "compact", table=_text(name))


def _vacuum(words: _Words, catalog: str, name: tuple[str, ...]) -> str:
    """Refused with the call that does it: snapshots are of all tables, so what one of them needs is not its own affair."""
    words.take("FULL") or words.take("LITE")
    hours = _WEEK
    if words.take("RETAIN"):
        told = words.kind("number")
        if told is None or not words.take("HOURS"):
            raise InvalidInput("RETAIN needs a whole number of HOURS.", argument="text", advice=_ADVICE)
        hours = told
    dry = ", dry_run => true" if words.take("DRY", "RUN") else ""
    words.end()
    advice = f"A lake is cleaned up as a whole: CALL {catalog}.system.cleanup(older_than_hours => {hours}{dry})."
    raise _refused("VACUUM of one table", advice)


def _restore(words: _Words, catalog: str, name: tuple[str, ...]) -> str:
    if words.take("TO", "VERSION", "AS", "OF") and (version := words.kind("number")) is not None:
        words.end()
        return _call(catalog, "restore", table=_text(name), version=version)
    if words.take("TO", "TIMESTAMP", "AS", "OF") and (moment := words.kind("text")) is not None:
        words.end()
        return _call(catalog, "rollback", table=_text(name), timestamp=moment)
    raise InvalidInput(
        "RESTORE needs TO VERSION AS OF a number, or TO TIMESTAMP AS OF a text.", argument="text", advice="Give one of the two."
    )


def _history(words: _Words, catalog: str, name: tuple[str, ...]) -> str:
    limit = ""
    if words.take("LIMIT") and (count := words.kind("number")) is not None:
        limit = f" LIMIT {count}"
    words.end()
    return f"SELECT * FROM {_quoted(catalog, *name, 'history')} ORDER BY version DESC{limit}"  # noqa: S608  # quoted, and Spark reads it


def _analyze(words: _Words, catalog: str, name: tuple[str, ...]) -> str:
    """All columns without a list, as Spark counts rows without one: here that number is known."""
    if not words.take("COMPUTE", "STATISTICS"):
        if words.take("PARTITION"):
            raise _refused("ANALYZE TABLE ... PARTITION", "Leave PARTITION out: only what was not looked at yet is read.")
        raise InvalidInput("ANALYZE TABLE needs COMPUTE STATISTICS.", argument="text", advice=_ADVICE)
    given: dict[str, str] = {"table": _text(name)}
    if words.take("NOSCAN"):
        given["scan"] = "false"
    elif words.take("FOR", "COLUMNS"):
        given["columns"] = _text((", ".join(".".join(column) for column in _listed(words)),))
    else:
        words.take("FOR", "ALL", "COLUMNS")
    words.end()
    return _call(catalog, "analyze", **given)


def _listed(words: _Words) -> list[tuple[str, ...]]:
    """Names with commas between them."""
    found = []
    while True:
        name = words.name()
        if name is None:
            raise InvalidInput("FOR COLUMNS needs names of columns.", argument="text", advice="Or write FOR ALL COLUMNS.")
        found.append(name)
        if not words.sign(","):
            return found


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
