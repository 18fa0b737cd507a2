"""What callers pass along, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.format.text import check_text
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.verbs.expressions import condition, expressions


def chosen_columns(columns: Sequence[str] | Mapping[str, str] | None, schema: pa.Schema) -> list[str] | dict[str, str] | None:
    """Names of columns, or names with SQL expressions over a schema; one name may stand alone."""
    if columns is None:
        return None
    if isinstance(columns, str):
        return [columns]
    if not isinstance(columns, Iterable):
        raise InvalidInput(f"Columns are named by text, not by a {type(columns).__name__}.", argument="columns")
    chosen = dict(columns) if isinstance(columns, Mapping) else list(columns)
    for part in [*chosen, *chosen.values()] if isinstance(chosen, dict) else chosen:
        if not isinstance(part, str):
            raise InvalidInput(f"Columns are named by text, not {part!r}.", argument="columns")
    for name in chosen:
        check_text(name, "The name of a column", "columns")
    return expressions(chosen, schema) if isinstance(chosen, dict) else chosen


def sql_condition(filter: str | None, schema: pa.Schema) -> str | None:
    """The condition of a read, over a schema."""
    if filter is not None and not isinstance(filter, str | pc.Expression):
        raise InvalidInput(f"A filter is a SQL condition as text, not a {type(filter).__name__}.", argument="filter")
    return condition(filter, schema, "filter") if isinstance(filter, str) else filter


def sql_where(where: object) -> str:
    """The condition of a verb that changes rows: never left out by accident."""
    if not isinstance(where, str) or not where.strip():
        raise InvalidInput("where is a SQL condition as text; 'true' stands for all rows.", argument="where")
    return where


def retry_policy(max_retries: int) -> RetryPolicy:
    if not isinstance(max_retries, int) or max_retries < 0:
        raise InvalidInput("max_retries is a number from 0 on.", argument="max_retries")
    return RetryPolicy(max_retries)
