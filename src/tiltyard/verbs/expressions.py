"""SQL conditions and expressions that callers give: taken whole or refused, by the parser and planner that evaluate them.

A text is first looked at token by token (``sql_text.py``), then put in brackets, so that nothing can follow the expression unseen, and
planned on an empty table in memory that has the columns of the real one. Whatever fails there is the caller's mistake: no file is involved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.format.text import check_text
from tiltyard.verbs.lance_text import is_interrupt, is_panic, reason_of
from tiltyard.verbs.sql_text import Token, expression_tokens, refusal, shown

if TYPE_CHECKING:
    from lance import LanceDataset

_FORMAT: Final = "2.2"
"""Of the empty tables: the first version of the data format that takes every type."""
_UNPARSED: Final = ("Invalid user input: Error parsing statement: ", "Invalid user input: Error tokenizing statement: ")
"""How a refusal of the parser begins; what follows repeats the text."""
_UNKNOWN: Final = re.compile(r"Invalid user input: Schema error: No field named (.+?)\.(?: |,|$)", re.DOTALL)
_NO_MEMBER: Final = re.compile(r"Invalid user input: Error during planning: Field (.+?) not found in struct(?:,|$)", re.DOTALL)
_MOST_PREFIXES: Final = 100
"""Beginnings of a text that are tried to find out how far it can be understood."""
_REASON: Final = 110


def bracketed(text: str, argument: str) -> str:
    """The text as one bracketed expression, checked without a table: whatever parses it parses all of it.

    Raises:
        InvalidInput: it is not one expression, with the character where that shows.
    """
    expression_tokens(text, argument)
    return f"({text}\n)"  # a comment at the end must not swallow the bracket


def condition(text: str, schema: pa.Schema, argument: str = "where") -> str:
    """The condition as pylance is to be given it.

    Args:
        text: as the caller wrote it.
        schema: of the rows it is about.
        argument: what the caller calls it.

    Raises:
        InvalidInput: it is not one expression, names a column that is not there, or is not true or false.
    """
    checked(text, schema, argument)
    return bracketed(text, argument)


def checked(text: str, schema: pa.Schema, argument: str = "where") -> None:
    """Refuses what is no condition over these columns; raises what ``condition`` raises."""
    _try(text, _bytes(schema), argument, True)


def expressions(columns: Mapping[str, str], schema: pa.Schema, argument: str = "columns") -> dict[str, str]:
    """Expressions by name, as pylance is to be given them. Raises what ``condition`` raises."""
    encoded = _bytes(schema)
    for name, text in columns.items():
        check_text(name, "The name of a column", argument)
        _try(text, encoded, argument, False)
    return {name: bracketed(text, argument) for name, text in columns.items()}


def _bytes(schema: pa.Schema) -> bytes:
    """The schema as a key that tells metadata apart, too: extension types are told by it."""
    encoded: bytes = schema.serialize().to_pybytes()
    return encoded


@lru_cache(maxsize=32)
def _empty(schema: bytes) -> LanceDataset | None:
    """A table without rows, in memory; None where pylance cannot make one of these types."""
    import lance

    try:
        rows = pa.ipc.read_schema(pa.py_buffer(schema)).empty_table()
        return lance.write_dataset(rows, "memory://", data_storage_version=_FORMAT)
    except (ValueError, OSError, RuntimeError, pa.ArrowException) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        return None  # then the text is only looked at, and in brackets


@lru_cache(maxsize=512)
def _try(text: str, schema: bytes, argument: str, is_condition: bool) -> None:
    """Plans an expression; the answer for the same text and columns is remembered."""
    tokens = expression_tokens(text, argument)
    dataset = _empty(schema)
    if dataset is not None and (problem := _planned(dataset, f"({text}\n)", is_condition)) is not None:
        raise _refused(dataset, text, tokens, argument, is_condition, problem)


def _planned(dataset: LanceDataset, sql: str, is_condition: bool) -> BaseException | None:
    """What pylance has against an expression."""
    try:
        if is_condition:
            dataset.scanner(columns=[], filter=sql, with_row_address=True).to_table()
        else:
            dataset.scanner(columns={"value": sql}, with_row_address=True).to_table()
    except (TiltyardError, MemoryError):
        raise
    except (ValueError, TypeError, OSError, RuntimeError, LookupError, pa.ArrowException) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        return error
    except BaseException as error:
        if not is_panic(error):
            raise
        return error
    return None


def _refused(
    dataset: LanceDataset, text: str, tokens: Sequence[Token], argument: str, is_condition: bool, problem: BaseException
) -> InvalidInput:
    said = str(problem)
    if said.startswith(_UNPARSED):
        at = _understood(dataset, text, tokens, is_condition)
        if at is None:
            return refusal(text, argument, tokens[-1].start, f"something is missing after {tokens[-1].text[:40]!r}")
        return refusal(text, argument, at, f"it cannot be understood from {shown(text[at : at + 40])} on")
    if unknown := _UNKNOWN.match(said):
        name = unknown[1].replace('"', "")[:80]
        known = ", ".join(dataset.schema.names)
        what = f"{argument}: there is no column {name!r}, which {shown(text)} names."
        return InvalidInput(what, argument=argument, advice=f"Columns are {known if len(known) <= 100 else known[:97] + '...'}.")
    if member := _NO_MEMBER.match(said):
        return InvalidInput(f"{argument}: there is no column {member[1][:80]!r} in {shown(text)}.", argument=argument)
    if is_panic(problem):
        return InvalidInput(f"{argument}: {shown(text)} uses SQL that pylance does not support.", argument=argument)
    reason = reason_of(problem, f"({text}\n)")
    return InvalidInput(f"{argument}: {shown(text)} cannot be evaluated: {reason[:_REASON].rstrip('. ')}.", argument=argument)


def _understood(dataset: LanceDataset, text: str, tokens: Sequence[Token], is_condition: bool) -> int | None:
    """Where that begins which cannot be understood: after the longest beginning that is an expression by itself.

    None where the whole text only lacks something at its end.
    """
    for count in range(min(len(tokens) - 1, _MOST_PREFIXES), 0, -1):
        beginning = text[: tokens[count - 1].end]
        try:
            expression_tokens(beginning, "")
        except InvalidInput:
            continue  # a bracket is open
        problem = _planned(dataset, f"({beginning}\n)", is_condition)
        if problem is None or not str(problem).startswith(_UNPARSED):
            return None if count == len(tokens) - 1 and _is_operator(tokens[-1]) else tokens[count].start
    return tokens[0].start


def _is_operator(token: Token) -> bool:
    return token.kind == "operator" or (token.kind == "word" and token.text.lower() in ("and", "or", "not", "in", "is", "like", "between"))
