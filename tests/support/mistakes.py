"""Mistakes that callers make, and what their errors must be like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tiltyard.errors import TiltyardError

FOREIGN = (
    "LanceError", "External error", "Invalid user input", "Query Execution", "rust", ".rs:", "Traceback", "tiltyard.", "<class",
    "object at 0x", "pyarrow.lib", "sqlalchemy", "psycopg", "sqlite3.", "OperationalError", "SELECT ", "Generic ", "not supported between",
    "NoneType", "pylance could", "LanceDataset", "unexpected keyword", "KeyError", "fspath", "keyword argument", "_Mal",
)  # fmt: skip
"""Words of others' errors, and of our own inside."""

LONGEST = 299


@dataclass(frozen=True, slots=True)
class Mistake:
    """What somebody does, and what the error is.

    Attributes:
        name: of the case.
        do: does it; takes whatever the surface is.
        error: the class of the error.
        word: what the message must repeat of the caller's words.
    """

    name: str
    do: Callable[[Any], object]
    error: type[TiltyardError]
    word: str


def check_mistake(mistake: Mistake, surface: Any) -> None:
    """Makes the mistake; looks at the error."""
    with pytest.raises(TiltyardError) as caught:
        mistake.do(surface)
    error, message = caught.value, str(caught.value)
    assert isinstance(error, mistake.error), f"{type(error).__name__}: {message}"
    assert error.kind == mistake.error.kind or issubclass(type(error), mistake.error)
    check_message(message, mistake.word)


def check_message(message: str, word: str) -> None:
    """One or two sentences in the caller's words, and nothing of what lies below."""
    assert word in message, message
    assert len(message) <= LONGEST, message
    assert not [foreign for foreign in FOREIGN if foreign in message], message
    assert "\n" not in message, message
    assert message.rstrip().endswith((".", "?", ")", "`")), message
