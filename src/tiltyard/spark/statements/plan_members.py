"""Every member of a plan node is used, or refused by name: what nobody looked at would be dropped without a word.

Spark's nodes get new members with new releases, each a clause of the grammar. Those below are understood. Any other one that says
something (that is not empty, false or absent) makes the statement one that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tiltyard.errors import UnsupportedFeature

USED: Final[Mapping[str, frozenset[str]]] = {
    "InsertIntoStatement": frozenset({"table", "userSpecifiedCols", "query", "overwrite", "byName"}),
    "UpdateTable": frozenset({"table", "assignments", "condition"}),
    "DeleteFromTable": frozenset({"table", "condition"}),
    "MergeIntoTable": frozenset(
        {"targetTable", "sourceTable", "mergeCondition", "matchedActions", "notMatchedActions", "notMatchedBySourceActions"}
    ),
    "UpdateAction": frozenset({"condition", "assignments"}),
    "InsertAction": frozenset({"condition", "assignments"}),
    "DeleteAction": frozenset({"condition"}),
    "UpdateStarAction": frozenset({"condition"}),
    "InsertStarAction": frozenset({"condition"}),
    "Assignment": frozenset({"key", "value"}),
    "UnresolvedRelation": frozenset({"multipartIdentifier"}),
    "RelationTimeTravel": frozenset({"relation", "timestamp", "version"}),
}
"""What is read of each node on the way of a statement that changes or reads our tables."""

CLAUSES: Final[Mapping[str, str]] = {
    "partitionSpec": "PARTITION",
    "ifPartitionNotExists": "IF NOT EXISTS",
    "replaceCriteriaOpt": "REPLACE WHERE, USING or ON",
    "withSchemaEvolution": "WITH SCHEMA EVOLUTION",
    "isStreaming": "STREAM",
    "options": "WITH (options)",
}
"""How the members that are refused are written in a statement."""

INTERNAL: Final = "__"
"""Options that begin so are notes of the parser to itself."""


def check_members(node: Any) -> None:
    """Refuses a node of which a member says something that is not read.

    Raises:
        UnsupportedFeature: naming the clause, or the member where it is of a release to come.
    """
    check_used(node, USED, CLAUSES)


def check_used(node: Any, uses: Mapping[str, frozenset[str]], clauses: Mapping[str, str]) -> None:
    """The same for nodes that others read.

    Args:
        node: of a plan.
        uses: what is read of each kind of node.
        clauses: how the other members are written in a statement.
    """
    kind = str(node.getClass().getSimpleName())
    used = uses.get(kind)
    if used is None:
        raise UnsupportedFeature(f"{kind} is not supported.", feature=kind, writing=True)
    for name, value in members_of(node):
        if name not in used and _says_something(name, value):
            clause = clauses.get(name, name)
            raise UnsupportedFeature(
                f"{clause} is not supported on these tables; nothing was changed.",
                feature=clause,
                writing=True,
                advice="Leave the clause out, or use the verbs of SparkTable.",
            )


def members_of(node: Any) -> Iterator[tuple[str, Any]]:
    """The members of a case class of Scala, by name."""
    names = node.productElementNames()
    place = 0
    while names.hasNext():
        yield str(names.next()), node.productElement(place)
        place += 1


def _says_something(name: str, value: Any) -> bool:
    if value is None or value is False:
        return False
    if name == "options":
        return any(not str(key).startswith(INTERNAL) for key in value.keySet())
    if isinstance(value, bool | int | float | str):
        return bool(value)
    for empty in ("isEmpty", "isDefined"):
        if hasattr(value, empty):
            return bool(value.isDefined()) if empty == "isDefined" else not value.isEmpty()
    return True
