"""What callers pass along, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.transaction.backoff import RetryPolicy


def chosen_columns(columns: Sequence[str] | Mapping[str, str] | None) -> list[str] | dict[str, str] | None:
    """Names of columns, or names with SQL expressions; one name may stand alone."""
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
    return chosen


def sql_condition(filter: str | None) -> str | None:
    if filter is not None and not isinstance(filter, str | pc.Expression):
        raise InvalidInput(f"A filter is a SQL condition as text, not a {type(filter).__name__}.", argument="filter")
    return filter


def sql_where(where: object) -> str:
    """The condition of a verb that changes rows: never left out by accident."""
    if not isinstance(where, str) or not where.strip():
        raise InvalidInput("where is a SQL condition as text; 'true' stands for all rows.", argument="where")
    return where


def retry_policy(max_retries: int) -> RetryPolicy:
    if not isinstance(max_retries, int) or max_retries < 0:
        raise InvalidInput("max_retries is a number from 0 on.", argument="max_retries")
    return RetryPolicy(max_retries)
