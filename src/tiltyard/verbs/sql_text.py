"""Tokens of the SQL that callers give as text, as pylance's lexer sees them: enough to tell that it is one expression.

pylance puts a condition behind ``SELECT 1 FROM t WHERE`` and ignores whatever follows the first expression. In brackets nothing can follow:
``(text)`` is understood as a whole or not at all, provided that no bracket, quote or comment of the text closes or swallows ours. That is
what is checked here. Whether it is an expression at all is for the parser that evaluates it to say (``expressions.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tiltyard.errors import InvalidInput

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
            raise refusal(text, argument, token.start, "it is too deep", "Split it, or use IN (...) for many values.")
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
        raise refusal(text, argument, error.start, "half of a surrogate pair is no character") from error


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
        return f"{found!r} cannot stand here" if found.isprintable() else f"the character U+{ord(found):04X} cannot stand here"
    return ""
