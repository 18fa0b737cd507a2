"""SQL conditions and expressions that callers give: taken whole or refused, by the parser and planner that evaluate them.

A text is first looked at token by token (``sql_text.py``), then put in brackets, so that nothing can follow the expression unseen, and
planned on an empty table in memory that has the columns of the real one. Whatever fails there is the caller's mistake: no file is involved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.format.safe_text import check_text
from tiltyard.verbs.engine.pylance_errors import is_interrupt, is_panic, reason_of

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
_WIDE: Final = 100
"""Columns that an expression is planned over without asking which it mentions."""


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
        InvalidInput: it is not one expression, names a column that does not exist, or is not true or false.
    """
    checked(text, schema, argument)
    return bracketed(text, argument)


def checked(text: str, schema: pa.Schema, argument: str = "where") -> None:
    """Refuses what is no condition over these columns; raises what ``condition`` raises."""
    _tried(text, schema, argument, is_condition=True)


def expressions(columns: Mapping[str, str], schema: pa.Schema, argument: str = "columns") -> dict[str, str]:
    """Expressions by name, as pylance is to be given them. Raises what ``condition`` raises."""
    for name, text in columns.items():
        check_text(name, "The name of a column", argument)
        _tried(text, schema, argument, is_condition=False)
    return {name: bracketed(text, argument) for name, text in columns.items()}


def _tried(text: str, schema: pa.Schema, argument: str, *, is_condition: bool) -> None:
    """Refuses an expression. Of very many columns only those that it may mention are tried first: to plan over all takes long."""
    if len(schema) > _WIDE:
        mentioned = pa.schema([field for field in schema if field.name.lower() in text.lower()] or [schema.field(0)])
        with suppress(InvalidInput):
            return _try(text, _bytes(mentioned), argument, is_condition)
    return _try(text, _bytes(schema), argument, is_condition)


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
        return refusal(text, argument, at, f"it cannot be parsed at {shown(text[at : at + 40])}")
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


_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<open_comment>/\*)
    | (?P<prefixed>(?:[nbrueq]|nq|br|rb|u&)(?=['"]))
    | (?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    | (?P<open_string>['"`])
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<comma>,)
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator>::|==|!=|<>|<=|>=|<=>|\|\||[-+*/%=<>.!~&|^@]|->>?)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_QUOTED_SHOWN: Final = 60

TOKEN_DEPTH: Final = 20
"""What each token of a chain (``a + b + c``) adds to the depth of the parsed tree, in links of AND and OR."""
DEEPEST: Final = 12_000
"""Beyond about twice this depth pylance's planner overflows its stack, which ends the process."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token that is neither space nor comment."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True)
class _Level:
    """What is open: a bracket, and how deep the tree inside it may be."""

    opened: Token | None = None
    chain: int = 0
    """Depth of the chain at hand: since the last AND, OR or comma."""
    deepest: int = 0
    links: int = 0
    """ANDs and ORs since the last comma."""
    inner: int = field(default=0)
    """The deepest bracket inside the chain at hand."""

    def end_chain(self) -> None:
        self.deepest = max(self.deepest, self.chain + self.inner)
        self.chain = self.inner = 0

    def depth(self) -> int:
        return self.links + max(self.deepest, self.chain + self.inner)


def shown(text: str) -> str:
    """The text as a message repeats it."""
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= _QUOTED_SHOWN else plain[: _QUOTED_SHOWN - 3] + "...")


def expression_tokens(text: str, argument: str) -> list[Token]:
    """The tokens of a text that is one expression or none, and certainly not more.

    Raises:
        InvalidInput: naming the character where something begins that is not part of one expression.
    """
    refuse_surrogates(text, argument)
    tokens: list[Token] = []
    levels = [_Level()]
    for token in _lexed(text, argument):
        tokens.append(token)
        if token.kind == "open":
            levels[-1].chain += TOKEN_DEPTH
            levels.append(_Level(token))
        elif token.kind == "close":
            _close(text, argument, levels, token)
        elif token.kind == "comma":
            if len(levels) == 1:
                raise refusal(text, argument, token.start, "a comma begins a second expression")
            levels[-1].end_chain()
            levels[-1].links = 0
        elif token.kind == "word" and token.text.lower() in ("and", "or"):
            levels[-1].end_chain()
            levels[-1].links += 1
        else:
            levels[-1].chain += TOKEN_DEPTH
        if sum(level.depth() for level in levels) > DEEPEST:
            raise refusal(text, argument, token.start, "it is nested too deeply", "Split it, or use IN (...) for many values.")
    if len(levels) > 1 and (opened := levels[-1].opened) is not None:
        raise refusal(text, argument, opened.start, f"{opened.text!r} is not closed")
    if not tokens:
        raise InvalidInput(f"{argument} is a SQL expression as text, not {shown(text)}.", argument=argument)
    return tokens


def refuse_surrogates(text: str, argument: str) -> None:
    """Refuses half of a character, which no file and no library of the format can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(text, argument, error.start, "half of a surrogate pair is not a character") from error


def refusal(text: str, argument: str, at: int, why: str, advice: str | None = None) -> InvalidInput:
    """The error for a text that is not one expression."""
    what = f"{argument}: {shown(text)} is not one SQL expression: {why}, at character {at + 1}."
    return InvalidInput(what, argument=argument, advice=advice)


def _close(text: str, argument: str, levels: list[_Level], token: Token) -> None:
    opened = levels[-1].opened
    if opened is None:
        raise refusal(text, argument, token.start, f"{token.text!r} closes nothing")
    if _CLOSING[opened.text] != token.text:
        raise refusal(text, argument, token.start, f"{token.text!r} does not close {opened.text!r}")
    inside = levels.pop()
    inside.end_chain()
    levels[-1].inner = max(levels[-1].inner, inside.depth())


def _lexed(text: str, argument: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the last alternative takes any character
        kind, found = str(match.lastgroup), match[0]
        problem = _problem(kind, found)
        if problem:
            raise refusal(text, argument, at, problem)
        if kind not in ("space", "comment"):
            yield Token(kind, found, at, match.end())
        at = match.end()


def _problem(kind: str, found: str) -> str:
    """Why a token cannot be part of an expression."""
    if kind == "open_comment" or (kind == "comment" and "/*" in found[2:] and found.startswith("/*")):
        return "the comment is not closed" if kind == "open_comment" else "a comment inside a comment"
    if kind == "open_string":
        return f"the quote {found} is not closed"
    if kind == "prefixed":
        return f"strings with the prefix {found} are not supported"
    if kind == "other":
        if found == ";":
            return "';' begins a second statement"
        return f"{found!r} is not allowed here" if found.isprintable() else f"the character U+{ord(found):04X} is not allowed here"
    return ""
