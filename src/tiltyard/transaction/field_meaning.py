"""What a commit's field ids mean by now: columns come and go, and an id may come to stand for another one. Pure; a conflict is raised."""

from __future__ import annotations

from collections.abc import Sequence

from tiltyard.errors import InvalidInput, RetryableConflict, Winner
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import Field
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction


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
