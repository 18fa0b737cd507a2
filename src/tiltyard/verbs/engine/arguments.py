"""What callers pass along, checked before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.errors import InvalidInput
from tiltyard.format.fields import parse_path
from tiltyard.format.manifest import DETACHED
from tiltyard.format.safe_text import check_text
from tiltyard.verbs.engine.sql_expressions import condition, expressions


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
        if isinstance(chosen, list):
            _check_column(name, schema)
    return expressions(chosen, schema) if isinstance(chosen, dict) else chosen


def _check_column(name: str, schema: pa.Schema) -> None:
    """Refuses a name that begins with no column. Hidden columns begin with an underscore; which there are depends on the scan."""
    known = [column.lower() for column in schema.names]
    if name.lower() not in known and not name.startswith("_") and parse_path(name)[0].lower() not in known:
        raise InvalidInput(f"There is no column {name[:80]!r}.", argument="columns", advice=f"Columns are {', '.join(schema.names)[:150]}.")


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


def version_number(version: object) -> int:
    """A version as callers name it.

    Raises:
        InvalidInput: it is not a whole number; text and truth values are none, though Python takes the latter for one.
    """
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < DETACHED:
        raise InvalidInput(f"{version!r} is not a version number: these are whole, and count from 1.", argument="version")
    return version


def scan_options(options: Mapping[str, object] | None, limit: int | None, offset: int | None) -> dict[str, Any]:
    """Options for pylance's scanner.

    Raises:
        InvalidInput: it does not have one of them, or a value cannot be.
    """
    from lance import LanceDataset

    if options is not None and not isinstance(options, Mapping):
        raise InvalidInput(f"options is a mapping, not a {type(options).__name__}.", argument="options")
    given: dict[str, Any] = dict(options or {})
    given |= {name: value for name, value in (("limit", limit), ("offset", offset)) if value is not None}

    known = inspect.signature(LanceDataset.scanner).parameters.keys() - {"self", "columns", "filter"}
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            advice = f"Did you mean {close[0]!r}?" if close else "Options are those of pylance's scanner."
            raise InvalidInput(f"There is no option {name!r} of a scan.", argument=name, advice=advice)
        if name in _COUNTS and value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidInput(f"{name} must be a number of at least 0, not {value!r}.", argument=name)
    return given


_COUNTS: Final = ("limit", "offset", "batch_size")
