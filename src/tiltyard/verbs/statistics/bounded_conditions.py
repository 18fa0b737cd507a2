"""SQL conditions as far as bounds can answer them: comparisons of a column with a literal, joined by AND, OR and NOT.

Every other part of a condition is ``AnyAnswer``: it may hold for any row. What cannot even be delimited for certain - CASE, a BETWEEN
that is more than two literals - makes all of the condition one. The evaluation stays pylance's: this is only about what need not be read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from tiltyard.errors import InvalidInput
from tiltyard.verbs.engine.sql_expressions import Token, expression_tokens

_FLIPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_OPERATORS: Final = {"=": "=", "==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "!=": "!=", "<>": "!="}
_TYPED: Final = ("date", "timestamp")
_RESERVED: Final = frozenset(
    {
        "and", "or", "not", "is", "in", "between", "case", "when", "then", "else", "end", "cast", "try_cast", "null", "true", "false",
        "like", "ilike", "similar", "exists", "any", "all", "interval", "xor", "current_date", "current_time", "current_timestamp",
        "localtime", "localtimestamp", "user", "current_user", "session_user",
    }
)  # fmt: skip
"""Words that are no names of columns where they stand bare."""
_UNBOUNDED: Final = frozenset({"between", "case", "xor", "when", "end", "select"})
"""Words after which an AND or OR may belong to something else than the condition."""
_CAST: Final = re.compile(r"Timestamp\((Second|Millisecond|Microsecond|Nanosecond), (None|Some\(\"([^\"]+)\"\))\)")
_MOST_DEPTH: Final = 60
"""Brackets in brackets beyond which nothing is understood."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal as it was written.

    Attributes:
        kind: ``number``, ``string``, ``boolean``, ``date``, ``timestamp``, ``decimal``, or ``ticks`` of a timestamp.
        text: what was written, without quotes.
        detail: of ticks the unit and zone, of a decimal precision and scale.
    """

    kind: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    column: str
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class Among:
    column: str
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class NullTest:
    column: str


@dataclass(frozen=True, slots=True)
class NanTest:
    column: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class Both:
    """AND of all parts, or OR."""

    operator: str
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyAnswer:
    """May be true and may be false."""


Condition: TypeAlias = Comparison | Among | NullTest | NanTest | Not | Both | AnyAnswer


@lru_cache(maxsize=256)
def understood(text: str, names: tuple[str, ...]) -> Condition:
    """A condition as far as it is understood.

    Args:
        text: SQL, as pylance is given it.
        names: of the table's columns. One that differs from another only by case is not told apart for certain.
    """
    alike: dict[str, int] = {}
    for name in names:
        alike[name.lower()] = alike.get(name.lower(), 0) + 1
    try:
        tokens = expression_tokens(text, "filter")
        parser = _Parser(tokens, frozenset(name for name in names if alike[name.lower()] == 1))
        found = parser.disjunction(0)
        return found if parser.at == len(tokens) else AnyAnswer()
    except (InvalidInput, _NotDelimited):
        return AnyAnswer()


def columns_of(condition: Condition) -> frozenset[str]:
    """The columns that a condition compares."""
    if isinstance(condition, Not):
        return columns_of(condition.part)
    if isinstance(condition, Both):
        return frozenset().union(*(columns_of(part) for part in condition.parts))
    return frozenset() if isinstance(condition, AnyAnswer) else frozenset({condition.column})


class _NotDelimited(Exception):
    """Where a part ends is not certain; never leaves this module."""


class _Parser:
    def __init__(self, tokens: Sequence[Token], names: Collection[str]) -> None:
        self._tokens = tokens
        self._names = names
        self.at = 0

    def disjunction(self, depth: int) -> Condition:
        return self._joined("or", depth)

    def _joined(self, word: str, depth: int) -> Condition:
        parts = [self._part(word, depth)]
        while self._word() == word:
            self.at += 1
            parts.append(self._part(word, depth))
        return parts[0] if len(parts) == 1 else Both(word, tuple(parts))

    def _part(self, word: str, depth: int) -> Condition:
        return self._joined("and", depth) if word == "or" else self._negation(depth)

    def _negation(self, depth: int) -> Condition:
        count = 0
        while self._word() == "not":
            self.at += 1
            count += 1
        found = self._predicate(depth)
        return Not(found) if count % 2 else found

    def _predicate(self, depth: int) -> Condition:
        begin = self.at
        if depth > _MOST_DEPTH:
            raise _NotDelimited
        if self._text() == "(":
            self.at += 1
            inner = self.disjunction(depth + 1)
            if self._text() == ")":
                self.at += 1
                if self._ends():
                    return inner
        else:
            found = self._plain()
            if found is not None and self._ends():
                return found
        self.at = begin
        return self._skipped()

    def _skipped(self) -> Condition:
        """Passes over a part that is not understood, to the AND or OR that it ends at."""
        depth = 0
        while self.at < len(self._tokens):
            token = self._tokens[self.at]
            if not depth and (token.kind == "close" or self._word() in ("and", "or")):
                break
            if not depth and token.kind == "word" and token.text.lower() in _UNBOUNDED:
                raise _NotDelimited
            depth += (token.kind == "open") - (token.kind == "close")
            self.at += 1
        return AnyAnswer()

    def _plain(self) -> Condition | None:
        """A comparison, a test for null or NaN, or a column that is a condition by itself."""
        if self._word() == "isnan" and self._text(1) == "(":
            self.at += 2
            column = self._column()
            if column is None or self._text() != ")":
                return None
            self.at += 1
            return NanTest(column)
        column = self._column()
        if column is None:
            literal = self._literal()
            operator = _OPERATORS.get(self._text())
            if literal is None or operator is None:
                return None
            self.at += 1
            column = self._column()
            return None if column is None else Comparison(column, _FLIPPED[operator], literal)
        if self._ends():
            return Comparison(column, "=", Literal("boolean", "true"))
        return self._of_column(column)

    def _of_column(self, column: str) -> Condition | None:
        word = self._word()
        if word == "is":
            negated = self._word(1) == "not"
            if self._word(1 + negated) != "null":
                return None
            self.at += 2 + negated
            return Not(NullTest(column)) if negated else NullTest(column)
        if word == "in" and self._text(1) == "(":
            self.at += 2
            return self._list(column)
        if word == "between":
            return self._range(column)
        operator = _OPERATORS.get(self._text())
        if operator is None:
            return None
        self.at += 1
        literal = self._literal()
        return None if literal is None else Comparison(column, operator, literal)

    def _list(self, column: str) -> Condition | None:
        literals = []
        while True:
            literal = self._literal()
            if literal is None:
                return None
            literals.append(literal)
            closed = self._text() == ")"
            if not closed and self._text() != ",":
                return None
            self.at += 1
            if closed:
                return Among(column, tuple(literals))

    def _range(self, column: str) -> Condition | None:
        self.at += 1
        low = self._literal()
        if low is None or self._word() != "and":
            raise _NotDelimited
        self.at += 1
        high = self._literal()
        if high is None or not self._ends():
            raise _NotDelimited
        return Both("and", (Comparison(column, ">=", low), Comparison(column, "<=", high)))

    # ---- tokens --------------------------------------------------------------------------------------------------------------

    def _column(self) -> str | None:
        """A column at the top level, and past it; what follows a name with a dot, a bracket or a string is something else."""
        if self.at >= len(self._tokens):
            return None
        token, name = self._tokens[self.at], ""
        if token.kind == "word" and token.text.lower() not in _RESERVED:
            name = token.text
        elif token.kind == "string" and token.text[0] == "`" and "``" not in token.text[1:-1]:
            name = token.text[1:-1]
        following = self._tokens[self.at + 1] if self.at + 1 < len(self._tokens) else None
        if name not in self._names or (following is not None and (following.kind in ("open", "string") or following.text in (".", "::"))):
            return None
        self.at += 1
        return name

    def _literal(self) -> Literal | None:
        token = self._tokens[self.at] if self.at < len(self._tokens) else None
        if token is None:
            return None
        word = self._word()
        if token.kind == "number" or (token.text in "-+" and self._kind(1) == "number"):
            signed = token.kind != "number"
            text = ("-" if token.text == "-" else "") + self._tokens[self.at + signed].text
            self.at += 1 + signed
            return Literal("number", text)
        if word in ("true", "false"):
            self.at += 1
            return Literal("boolean", word)
        if token.kind == "string":
            return self._string("string")
        if word in _TYPED and self._kind(1) == "string":
            self.at += 1
            return self._string(word)
        return self._cast(word)

    def _string(self, kind: str) -> Literal | None:
        text = self._tokens[self.at].text
        if text[0] != "'" or "\\" in text:
            return None
        self.at += 1
        return Literal(kind, text[1:-1].replace("''", "'"))

    def _cast(self, word: str) -> Literal | None:
        """``arrow_cast(ticks, 'Timestamp(...)')`` and ``cast('1.5' as decimal(p,s))``, as filters of Spark's are written."""
        texts = [token.text for token in self._tokens[self.at : self.at + 11]]
        if word == "arrow_cast" and len(texts) > 1 and texts[1] == "(":
            self.at += 2
            number = self._literal()
            kind = _CAST.fullmatch(self._text(1)[1:-1]) if self._text() == "," else None
            if number is None or number.kind != "number" or kind is None or self._text(2) != ")":
                return None
            self.at += 3
            return Literal("ticks", number.text, f"{kind[1]} {kind[3] or ''}")
        if (
            word == "cast"
            and [text.lower() for text in texts[3:6]] == ["as", "decimal", "("]
            and texts[7:8] == [","]
            and texts[9:] == [")"] * 2
        ):
            found = Literal("decimal", texts[2][1:-1], f"{texts[6]},{texts[8]}")
            self.at += 11
            return found
        return None

    def _ends(self) -> bool:
        """Whether a part is over here: what may follow it binds less than what it is."""
        return self.at >= len(self._tokens) or self._tokens[self.at].kind == "close" or self._word() in ("and", "or")

    def _text(self, ahead: int = 0) -> str:
        return self._tokens[self.at + ahead].text if self.at + ahead < len(self._tokens) else ""

    def _kind(self, ahead: int) -> str:
        return self._tokens[self.at + ahead].kind if self.at + ahead < len(self._tokens) else ""

    def _word(self, ahead: int = 0) -> str:
        return self._text(ahead).lower() if self._kind(ahead) == "word" else ""
