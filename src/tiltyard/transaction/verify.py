"""Work that may be tried again by somebody who does not know that it was done: each piece is committed once.

Who sends the work numbers it, upwards. The number travels as a property of the transaction and is kept in the table's config by the very
commit that brings the rows, so that the two cannot come apart: whatever version somebody reads, carries on from, sets the table back to or
cleans up the history below, its config tells exactly which pieces its rows are made of. The commit loop looks at the version directly below
the one it creates, so of two that bring the same number at once the second finds the first, however the race goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tiltyard.errors import AlreadyCommitted, InvalidInput, RetryableConflict, Winner
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import Field
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction

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


def meet_schema(mine: Transaction, before: tuple[Field, ...], theirs: Committed, dropped: frozenset[int]) -> frozenset[int]:
    """Raises where a field id of ours came to mean another column; returns the ids that were dropped so far.

    A column that is dropped together with all its files sets its id free, and the next new column may get it. Rows that were written
    for the old column would then be read as the new one.
    """
    after = theirs.manifest.fields
    if before == after or not isinstance(mine.operation, Append):
        return dropped
    now = {one.id for one in after}
    dropped |= {one.id for one in before} - now
    written = {number for fragment in mine.operation.fragments for file in fragment.files for number in file.fields}
    names = [one.name for one in after if one.id in dropped & written]
    problem = f"{', '.join(names[:3])} took the id of a dropped column of ours" if names else None
    if written and not written & now:
        problem = "all columns of our rows were dropped"
    if problem:
        winner = theirs.as_winner()
        raise RetryableConflict(
            f"Append read version {mine.read_version}, then came {winner}: {problem}.",
            operation=mine.operation.name,
            read_version=mine.read_version,
            winners=[winner],
            sample=names,
        )
    return dropped


def check_field_ids(mine: Transaction, base: Manifest, rebased_over: Sequence[Winner]) -> None:
    """On tables that never reuse a field id, refuses an overwrite whose ids were given out meanwhile."""
    operation, highest = mine.operation, base.max_allocated_field_id
    if highest is None or not isinstance(operation, Overwrite) or all(one.id > highest for one in operation.schema):
        return
    what = f"This table never reuses a field id, and ids up to {highest} have been given out."
    if not rebased_over:
        raise InvalidInput(what, argument="schema", advice="Number the new fields from there on.")
    raise RetryableConflict(what, operation=operation.name, read_version=mine.read_version, winners=rebased_over)
