"""What a commit finds in its way: each commit since its read version, and the schema as it is now. Pure; a conflict is raised."""

from __future__ import annotations

from collections.abc import Sequence

from tiltyard.errors import IncompatibleConflict, InvalidInput, RetryableConflict, Winner
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import Field
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.rules import Outcome, decide
from tiltyard.transaction.transaction import Transaction


def meet(mine: Transaction, theirs: Committed) -> None:
    """Raises the conflict between our operation and one that was committed, if the table of rules has one."""
    verdict = decide(mine.operation, theirs.transaction.operation)
    if verdict.outcome is Outcome.COMPATIBLE:
        return
    winner = theirs.as_winner()
    kind = RetryableConflict if verdict.outcome is Outcome.RETRY else IncompatibleConflict
    shared = f" ({', '.join(verdict.overlap[:3])})" if verdict.overlap else ""
    raise kind(
        f"{mine.operation.name} read version {mine.read_version}, then came {winner}: {verdict.reason}{shared}.",
        operation=mine.operation.name,
        read_version=mine.read_version,
        winners=[winner],
        sample=verdict.overlap,
    )


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
    if names:
        winner = theirs.as_winner()
        raise RetryableConflict(
            f"Append read version {mine.read_version}, then came {winner}: {', '.join(names[:3])} took the id of a dropped column of ours.",
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
