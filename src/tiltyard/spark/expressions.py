"""Expressions of Spark as callers give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column


class Told:
    """An expression that was read from a statement; as text, the whole statement: all columns it may be about are named there."""

    def __init__(self, column: Column, text: str) -> None:
        self.column = column
        self.text = text.replace("``", "`")

    def __str__(self) -> str:
        return self.text


def as_column(given: Any) -> Column:
    """An expression: SQL as text, a ``Column``, or one that was read from a statement."""
    from pyspark.sql import functions as f

    if isinstance(given, str):
        return f.expr(given)
    found: Column = given.column if isinstance(given, Told) else given
    return found


def is_expression(given: object) -> bool:
    """Whether it is one of these. A Connect session has a class of columns of its own."""
    if isinstance(given, str):
        return bool(given.strip())
    return isinstance(given, Told) or type(given).__name__ == "Column"


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
