"""Expressions of Spark as callers give them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tiltyard.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column


class ColumnFacts:
    """An expression that was read from a statement; as text, the whole statement: all columns it may be about are named there."""

    def __init__(self, column: Column, text: str) -> None:
        self.column = column
        self.text = text.replace("``", "`")

    def __str__(self) -> str:
        return self.text


def whole_expression(text: str) -> Column:
    """SQL of Spark as one expression: what Spark would take for an alias (``n = 1 andd``) it refuses in brackets.

    Spark reads it only when the plan is made, so that no bracket of the text may close ours.

    Raises:
        InvalidInput: one does, with the character.
    """
    from pyspark.sql import functions as f

    depth = 0
    for found in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth < 0:
            raise InvalidInput(f"{text[:80]!r} is not one expression: ')' closes nothing, at character {found.start() + 1}.")
    return f.expr(f"({text}\n)")


_TOKEN: Final = re.compile(
    r"""r'[^']*'|r"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`|--(?:\\\n|[^\r\n])*|/\*.*?\*/|\w+|.""",
    re.DOTALL | re.IGNORECASE,
)
"""Strings, names, comments and words of Spark's SQL, each as a whole; anything else is a character."""


def as_column(given: Any) -> Column:
    """An expression: SQL as text, a ``Column``, or one that was read from a statement."""

    if isinstance(given, str):
        return whole_expression(given)
    found: Column = given.column if isinstance(given, ColumnFacts) else given
    return found


def is_expression(given: object) -> bool:
    """Whether it is one of these. A Connect session has a class of columns of its own."""
    if isinstance(given, str):
        return bool(given.strip())
    return isinstance(given, ColumnFacts) or type(given).__name__ == "Column"


def checked_expression(given: Any, argument: str = "where") -> Column:
    """An expression, never left out by accident."""
    if is_expression(given):
        return as_column(given)
    raise InvalidInput(f"{argument} is an expression of Spark: SQL as text, or a Column; 'true' holds for all rows.", argument=argument)


def mentioned(names: list[str], expressions: list[Any]) -> list[str]:
    """Columns that expressions may be about. A name that stands in a text need not be the column's, but a column that is meant has its
    name there."""
    told = " ".join(map(str, expressions)).lower()
    return [name for name in names if name.lower() in told]
