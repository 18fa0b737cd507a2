"""Statements that are not in Spark's grammar, read word by word: names, conditions, clauses of OPTIMIZE."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiltyard.errors import InvalidInput

_TOKEN: Final = re.compile(
    r"""(?P<gap>\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)
    |(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SUFFIXES: Final = ("L", "S", "Y", "D", "F", "BD")
"""What Spark writes after a number to say its type."""
ADVICE: Final = "See the page of SQL forms."


class _Token(NamedTuple):
    kind: str
    text: str
    spaced: bool
    """Whether a space comes before it."""

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.upper() == word


class Words:
    """The words of a statement, read from the front."""

    def __init__(self, text: str) -> None:
        self._left: list[_Token] = []
        spaced = False
        for match in _TOKEN.finditer(text):
            if match.lastgroup is not None and match.lastgroup != "gap":
                self._left.append(_Token(match.lastgroup, match[0], spaced))
            spaced = match.lastgroup == "gap"
        while self._left and self._left[-1].is_sign(";"):
            self._left.pop()

    def take(self, *words: str) -> bool:
        """Reads these words, if they come next."""
        if not self._comes(0, words):
            return False
        del self._left[: len(words)]
        return True

    def _comes(self, at: int, words: tuple[str, ...]) -> bool:
        found = self._left[at : at + len(words)]
        return len(found) == len(words) and all(token.is_word(word) for token, word in zip(found, words, strict=True))

    def kind(self, kind: str) -> str | None:
        """Reads a token of a kind, if one comes next."""
        return self._left.pop(0).text if self._left and self._left[0].kind == kind else None

    def sign(self, sign: str) -> bool:
        """Reads a sign, if it comes next."""
        if not self._left or not self._left[0].is_sign(sign):
            return False
        del self._left[0]
        return True

    def name(self) -> tuple[str, ...] | None:
        """Reads a name of several parts; None where there is none."""
        parts = []
        while True:
            quoted = self.kind("quoted")
            part = quoted[1:-1].replace("``", "`") if quoted is not None else self.kind("word")
            if part is None:
                return None
            parts.append(part)
            if not self.sign("."):
                return tuple(parts)

    def names(self, clause: str, advice: str = ADVICE) -> list[tuple[str, ...]]:
        """Reads names with commas between them.

        Raises:
            InvalidInput: there is none; ``clause`` says where.
        """
        found = []
        while True:
            name = self.name()
            if name is None:
                raise InvalidInput(f"{clause} needs names of columns.", argument="text", advice=advice)
            found.append(name)
            if not self.sign(","):
                return found

    def condition(self, *before: str) -> str:
        """Reads all up to these words, or to the end, as a condition in the SQL of tables: texts and numbers as that writes them.

        Raises:
            InvalidInput: there is nothing.
        """
        end = next((at for at in range(len(self._left)) if self._comes(at, before)), len(self._left))
        taken, self._left = self._left[:end], self._left[end:]
        if not taken:
            raise InvalidInput("WHERE needs a condition.", argument="text", advice=ADVICE)
        made, after_number = "", False
        for token in taken:
            if after_number and not token.spaced and token.kind == "word" and token.text.upper() in _SUFFIXES:
                after_number = False
                continue
            after_number = token.kind == "number"
            made += (" " if token.spaced else "") + (_plain_text(token.text) if token.kind == "text" else token.text)
        return made.strip()

    def end(self) -> None:
        """Refuses whatever is left: nothing of a statement may be passed over."""
        if self._left:
            left = " ".join(token.text for token in self._left)[:60]
            raise InvalidInput(f"The statement cannot be parsed at {left!r}.", argument="text", advice=ADVICE)


def _plain_text(literal: str) -> str:
    """A text as Spark writes it, in single quotes that are doubled inside."""
    return "'" + _ESCAPED.sub(r"\1", literal[1:-1]).replace("'", "''") + "'"


@dataclass(frozen=True)
class OptimizeClauses:
    """What OPTIMIZE says after the table's name.

    Attributes:
        where: the condition of WHERE.
        columns: those of ZORDER BY.
        full: whether it says FULL.
    """

    where: str | None = None
    columns: tuple[str, ...] = ()
    full: bool = False

    @classmethod
    def read(cls, words: Words) -> OptimizeClauses:
        """Reads the rest of the statement.

        Raises:
            InvalidInput: something of it cannot be understood.
        """
        full = words.take("FULL")
        where = words.condition("ZORDER", "BY") if words.take("WHERE") else None
        columns: list[tuple[str, ...]] = []
        if words.take("ZORDER", "BY"):
            bracket = words.sign("(")
            columns = words.names("ZORDER BY")
            if bracket and not words.sign(")"):
                raise InvalidInput("ZORDER BY ( has no end.", argument="text", advice=ADVICE)
        words.end()
        if full and columns:
            raise InvalidInput(
                "FULL sorts by the columns of CLUSTER BY, and ZORDER BY names others.", argument="text", advice="Write one of the two."
            )
        return cls(where, tuple(".".join(parts) for parts in columns), full)


def column_list(text: str) -> tuple[str, ...]:
    """Names of columns with commas between them, in backquotes where they need them."""
    words = Words(text)
    found = tuple(".".join(parts) for parts in words.names("A list of columns"))
    words.end()
    return found


def quoted_list(names: tuple[str, ...]) -> str:
    """What ``column_list`` reads."""
    return ", ".join("`" + name.replace("`", "``") + "`" for name in names)
