"""Work that may be tried again by somebody who does not know that it was done: each piece is committed once.

Who sends the work numbers it, upwards. The number travels as a property of the transaction and is kept in the table's config by the very
commit that brings the rows, so that the two cannot come apart: whatever version somebody reads, carries on from, sets the table back to or
cleans up the history below, its config tells exactly which pieces its rows are made of. The commit loop looks at the version directly below
the one it creates, so of two that bring the same number at once the second finds the first, however the race goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tiltyard.errors import AlreadyCommitted, InvalidInput

PREFIX: Final = "tiltyard.once."
"""What the names of such properties and config keys begin with; the rest says who numbers the work."""
_DIGITS: Final = 19
_LONGEST_SOURCE: Final = 1000


def mark(source: str, number: int) -> dict[str, str]:
    """A property that has a commit fail with ``AlreadyCommitted`` if this number of the source's, or a higher one, is in the table."""
    if not isinstance(source, str) or not source.strip() or len(source) > _LONGEST_SOURCE or "\0" in source:
        raise InvalidInput(
            "Who numbers the work must have a name.", argument="source", advice=f"Use a text of 1 to {_LONGEST_SOURCE:,} characters."
        )
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidInput(f"Work is numbered from 0 on, not by {number!r}.", argument="number")
    return {PREFIX + source: str(number)}


def marks_in(properties: Mapping[str, str]) -> dict[str, str]:
    """Those among the properties of a transaction that its table is to remember."""
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}


def last_number(config: Mapping[str, str], source: str) -> int | None:
    """The highest number of a source's that a version has; None for none."""
    return _number(PREFIX + source, config[PREFIX + source]) if PREFIX + source in config else None


def check_not_done(properties: Mapping[str, str], config: Mapping[str, str]) -> None:
    """Refuses work that the version with this config has.

    Raises:
        AlreadyCommitted: naming it.
    """
    for name, value in marks_in(properties).items():
        source, number = name[len(PREFIX) :], _number(name, value)
        last = last_number(config, source)
        if last is not None and last >= number:
            raise AlreadyCommitted(
                f"Number {number} of {source[:80]!r} was committed before (the table is at {last}).",
                source=source,
                number=number,
                last=last,
            )


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > _DIGITS:
        raise InvalidInput(f"{name[:80]!r} is not a number: {value[:40]!r}.", argument=name, advice="Set it to the last number done.")
    return int(value)
