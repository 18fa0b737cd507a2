"""What Spark's parser makes of a statement, read from its plan: which tables it names, where they stand in the text, what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.spark.statements.plan_members import check_members

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_POSITION: Final = re.compile(r"\(line (\d+), pos (\d+)\)")
_KEYWORDS: Final = ("WHERE", "SET", "USING")
_CODE: Final = re.compile(r"^\s*\[([A-Z_.]+)\]\s*")


@dataclass(frozen=True)
class Relation:
    """A table that a statement names.

    Attributes:
        name: the parts of its name.
        start: where the name begins in the text.
        stop: where it ends, a clause that says when included; the last character.
        version: what ``VERSION AS OF`` says.
        timestamp: the expression of ``TIMESTAMP AS OF``.
        aliased: whether the statement gives it another name, or cannot.
        node: the part of the plan that names it.
    """

    name: tuple[str, ...]
    start: int
    stop: int
    version: str | None = None
    timestamp: Any = None
    aliased: bool = False
    node: Any = None


@dataclass(frozen=True)
class Statement:
    """A parsed statement: its plan, and the text it was parsed from."""

    spark: SparkSession
    text: str
    plan: Any

    @property
    def kind(self) -> str:
        """The name of its root, such as ``MergeIntoTable``."""
        return kind_of(self.plan)

    def relations(self, plan: Any = None) -> list[Relation]:
        """All tables that are read, in the order of the text; names of common table expressions are none."""
        known: set[str] = set()
        found = list(self._relations(self.plan if plan is None else plan, known, aliased=False))
        return sorted(
            (relation for relation in found if len(relation.name) > 1 or relation.name[0].lower() not in known),
            key=lambda entry: entry.start,
        )

    def _relations(self, node: Any, known: set[str], *, aliased: bool) -> Iterator[Relation]:
        kind = kind_of(node)
        if kind == "UnresolvedRelation":
            yield relation_of(node, aliased=aliased)
            return
        if kind == "RelationTimeTravel":
            yield _time_travel(node, aliased=aliased)
            return
        if kind == "UnresolvedWith":
            known.update(str(item._1()).lower() for item in as_list(node.cteRelations()))
        below = aliased_below(kind)
        for child in [*as_list(node.children()), *_inner(node)]:
            yield from self._relations(child, known, aliased=below)
        for child in as_list(node.subqueries()):
            yield from self._relations(child, known, aliased=False)

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm

    def frame(self, plan: Any) -> DataFrame:
        """The rows of a part of the plan."""
        from pyspark.sql import DataFrame

        session = self.spark._jsparkSession
        rows = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
        return DataFrame(rows, self.spark)

    def column(self, expression: Any) -> Column:
        """An expression of the plan, just as it was parsed."""
        from pyspark.sql.classic.column import Column

        made: Column = Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))
        return made

    def refuse(self, what: str, node: Any, advice: str = "") -> UnsupportedFeature:
        """The error for something that a statement on our tables cannot have, with its place in the text."""
        return UnsupportedFeature(f"{what} {access_of(node)}.", feature=what, writing=True, advice=advice)


def aliased_below(kind: str) -> bool:
    """Whether a relation right below such a node needs, or takes, no name."""
    return kind in ("SubqueryAlias", "Sample")


def parsed(spark: SparkSession, text: str) -> Statement:
    """Has Spark parse a statement.

    Raises:
        InvalidInput: it cannot be, with the line and the position.
    """
    from pyspark.errors import ParseException

    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("A statement is text.", argument="text")
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        # The parser replaces variables before it reads; positions in the plan are those in what it read.
        read = str(spark._jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(text))  # type: ignore[union-attr]
        return Statement(spark, read, parser.parsePlan(read))
    except ParseException as error:
        raise syntax_error(error) from error


def syntax_error(error: Exception) -> InvalidInput:
    """An error of Spark about a statement as ours, in one line."""
    told = str(error).strip()
    first = _CODE.sub("", told.splitlines()[0])
    at = _POSITION.search(told)
    where = f" Line {at[1]}, position {at[2]}." if at is not None else ""
    what = _POSITION.sub("", re.sub(r"\s*SQLSTATE: \w+", "", first)).strip().rstrip(".")
    return InvalidInput(f"The statement cannot be understood: {what[:180]}.{where}", argument="text")


# ---- parts of plans --------------------------------------------------------------------------------------------------------


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def as_list(scala: Any) -> list[Any]:
    return [scala.apply(place) for place in range(scala.size())]


def option(scala: Any) -> Any:
    return scala.get() if scala.isDefined() else None


def _inner(node: Any) -> list[Any]:
    """Plans that stand beside the children: common table expressions, and what an insert reads."""
    if kind_of(node) == "UnresolvedWith":
        return [item._2() for item in as_list(node.cteRelations())]
    return []


def relation_of(node: Any, *, aliased: bool) -> Relation:
    """The table that a node names. What else it says of it, ``check_members`` judges once it is known to be ours."""
    name = tuple(str(item) for item in as_list(node.multipartIdentifier()))
    return Relation(name, int(option(node.origin().startIndex())), int(option(node.origin().stopIndex())), aliased=aliased, node=node)


def _time_travel(node: Any, *, aliased: bool) -> Relation:
    inner = node.relation()
    if kind_of(inner) != "UnresolvedRelation":
        raise UnsupportedFeature(f"AS OF is supported for tables only {access_of(node)}.", feature="AS OF of a query")
    table = relation_of(inner, aliased=aliased)
    stop = max(int(option(node.origin().stopIndex())), table.stop)
    return Relation(table.name, table.start, stop, option(node.version()), option(node.timestamp()), aliased, inner)


def access_of(node: Any) -> str:
    """Where a part of a plan stands in the text, in words."""
    line, position = option(node.origin().line()), option(node.origin().startPosition())
    return f"(line {line}, position {position})" if line is not None else "(in this statement)"


@dataclass(frozen=True)
class TargetTable:
    """The table that a statement changes: its name, and what the statement calls it."""

    relation: Relation
    alias: str


def target_of(statement: Statement, plan: Any) -> TargetTable | None:
    """The table a statement changes; None where it is no table by name."""
    alias = None
    if kind_of(plan) == "SubqueryAlias":
        alias = str(plan.identifier().name())
        plan = plan.child()
    if kind_of(plan) == "RelationTimeTravel":
        raise statement.refuse("An earlier version cannot be changed", plan, "Leave out the AS OF clause.")
    if kind_of(plan) != "UnresolvedRelation":
        return None
    relation = relation_of(plan, aliased=alias is not None)
    if alias is not None and alias.upper() in _KEYWORDS:  # Spark takes a keyword for a name where something is missing after it
        raise InvalidInput(f"Something is missing after {alias} {access_of(plan)}.", argument="text")
    return TargetTable(relation, alias or relation.name[-1])


def source_alias(plan: Any) -> str:
    """What a statement calls the rows it merges."""
    if kind_of(plan) == "SubqueryAlias":
        return str(plan.identifier().name())
    if kind_of(plan) == "UnresolvedRelation":
        return str(as_list(plan.multipartIdentifier())[-1])
    return "_ty_source"


def equal_columns(condition: Any, target: str, source: str) -> tuple[list[str], bool]:
    """Columns of one name that a condition says are equal on both sides, and whether that is all it says."""
    kind = kind_of(condition)
    if kind == "And":
        left, whole = equal_columns(condition.left(), target, source)
        right, rest = equal_columns(condition.right(), target, source)
        return left + right, whole and rest
    if kind == "EqualTo":
        sides = [_attribute(item) for item in (condition.left(), condition.right())]
        for side, other in (sides, sides[::-1]):
            if len(side) == len(other) == 2 and side[0].lower() == target.lower() and other[0].lower() == source.lower():
                return ([side[1]], True) if side[1].lower() == other[1].lower() else ([], False)
    return [], False


def _attribute(expression: Any) -> Sequence[str]:
    return [str(item) for item in as_list(expression.nameParts())] if kind_of(expression) == "UnresolvedAttribute" else []


def assignments_of(statement: Statement, assignments: Any, target: str) -> dict[str, Any]:
    """New values by column."""
    from pyspark.sql import functions as f

    found: dict[str, Any] = {}
    for item in as_list(assignments):
        check_members(item)
        parts = _attribute(item.key())
        if len(parts) == 2 and parts[0].lower() == target.lower():
            parts = parts[1:]
        if len(parts) != 1:
            raise statement.refuse("Only whole columns are assigned, not members of them", item.key(), "Assign the whole struct.")
        if parts[0] in found:
            raise InvalidInput(f"Column {parts[0]!r} is assigned twice {access_of(item.key())}.", argument="text")
        default = [part.upper() for part in _attribute(item.value())] == ["DEFAULT"]
        found[parts[0]] = f.lit(None) if default else statement.column(item.value())
    return found


def bare_names(action: Any, columns: Sequence[str], alias: str) -> list[int]:
    """Where, in the expressions of a clause, columns of one side stand without saying whose they are.

    Rows that only one side has know its columns alone, so such a name is no riddle, even if the other side has it too.
    """
    known = {name.lower() for name in columns}
    given = [option(action.condition())]
    if kind_of(action) in ("UpdateAction", "InsertAction"):
        given += [item.value() for item in as_list(action.assignments())]
    found: list[int] = []
    pending = [item for item in given if item is not None]
    while pending:
        node = pending.pop()
        parts = _attribute(node)
        if parts and parts[0].lower() != alias.lower() and parts[0].lower() in known:
            found.append(int(option(node.origin().startIndex())))
        pending += as_list(node.children())
    return found
