"""The conflict table, as data: what a committing operation does when it meets one that was committed after its read version.

Read a row as: "when this operation (first key) finds that one (second key), the first of these conditions that holds decides". A pair
that is not listed, or of which no condition holds, is compatible. Every operation that is committing has a row here, or it cannot be
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tiltyard.errors import UnsupportedFeature
from tiltyard.transaction.operations import Append, Merge, Operation, Overwrite, Project, UpdateConfig, UpdateMap


class Outcome(Enum):
    """What becomes of the committing operation."""

    COMPATIBLE = "compatible"
    REBASE = "rebase"
    RETRY = "retry"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Rule:
    """One cell of the table: if the condition holds, then the outcome, else compatible."""

    when: str
    then: Outcome
    why: str
    deviation: str = ""
    """Where we decide otherwise than the specification: the reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one pair, with the reason in a sentence."""

    outcome: Outcome
    reason: str
    overlap: tuple[str, ...] = ()
    """What both sides touched: keys, fields, fragments."""


COMPATIBLE: Final = Verdict(Outcome.COMPATIBLE, "nothing both sides touch")

_REPLACED = (Rule("always", Outcome.INCOMPATIBLE, "the table these rows were meant for was replaced"),)
_WENT_BACK = (Rule("always", Outcome.INCOMPATIBLE, "the table was set back to an older version"),)
_MEM_WAL = (Rule("always", Outcome.INCOMPATIBLE, "the state of the write-ahead log changed under it"),)
_MEM_WAL_REPLACED = (
    Rule(
        "always",
        Outcome.INCOMPATIBLE,
        "the state of the write-ahead log changed under it",
        deviation="the specification calls this retryable, stock writers do not: rows were compacted into the table meanwhile",
    ),
)
_NULLS = (
    Rule(
        "nullability may have changed",
        Outcome.RETRY,
        "the new schema does not promise that it still takes the nulls that were written",
        deviation="the specification calls this compatible; rows written under the old schema could then break the new one",
    ),
)
_LEFT_BEHIND = Rule(
    "it moved a written column to another field",
    Outcome.RETRY,
    "a cast gave a column a new field, in which the written values would read as null",
    deviation="the specification calls this compatible; the values of the written rows would be lost",
)
_SAME_KEY = Rule(
    "same config key",
    Outcome.INCOMPATIBLE,
    "both change the same config key",
    deviation="the specification calls this retryable, stock writers do not: running again would undo what the other one set",
)
_UNKNOWN = (Rule("always", Outcome.INCOMPATIBLE, "its operation is unknown to this release, so nobody can say what it changed"),)

RULES: Final[Mapping[str, Mapping[str, tuple[Rule, ...]]]] = {
    "Append": {
        "Overwrite": _REPLACED,
        "Restore": _WENT_BACK,
        "UpdateMemWalState": _MEM_WAL,
        "Merge": (*_NULLS, _LEFT_BEHIND),
        "Project": _NULLS,
        "Unknown": _UNKNOWN,
    },
    "Overwrite": {
        "Overwrite": (_SAME_KEY, Rule("always", Outcome.RETRY, "both replace the whole table")),
        "UpdateConfig": (_SAME_KEY,),
        "UpdateMemWalState": _MEM_WAL_REPLACED,
        "Unknown": _UNKNOWN,
    },
}

Condition = Callable[[Operation, Operation], tuple[str, ...] | None]
"""Gives what overlaps (perhaps nothing that has a name) where the condition holds, None where it does not."""


def _always(_mine: Operation, _theirs: Operation) -> tuple[str, ...]:
    return ()


def _nullability(_mine: Operation, theirs: Operation) -> tuple[str, ...] | None:
    kept = isinstance(theirs, Merge | Project) and theirs.preserves_nullability
    return None if kept else ()


def _left_behind(mine: Operation, theirs: Operation) -> tuple[str, ...] | None:
    """Fields our files hold that a schema no longer has. Where columns are dropped on purpose that is a Project."""
    if not isinstance(mine, Append) or not isinstance(theirs, Merge):
        return None
    written = {number for fragment in mine.fragments for file in fragment.files for number in file.fields if number >= 0}
    gone = sorted(written - {field.id for field in theirs.schema})
    return tuple(f"field {number}" for number in gone) or None


def _same_config_key(mine: Operation, theirs: Operation) -> tuple[str, ...] | None:
    shared = sorted(config_keys(mine) & config_keys(theirs))
    return tuple(shared) or None


def config_keys(operation: Operation) -> frozenset[str]:
    """The table config keys an operation sets or removes."""
    if isinstance(operation, Overwrite):
        return frozenset(operation.config_upsert_values)
    if isinstance(operation, UpdateConfig):
        updates = operation.config_updates or UpdateMap()
        return frozenset(key for key, _ in updates.entries)
    return frozenset()


CONDITIONS: Final[Mapping[str, Condition]] = {
    "always": _always,
    "nullability may have changed": _nullability,
    "it moved a written column to another field": _left_behind,
    "same config key": _same_config_key,
}


def decide(mine: Operation, theirs: Operation) -> Verdict:
    """The verdict on committing ``mine`` over ``theirs``. No I/O; the table above is all there is to it.

    Raises:
        UnsupportedFeature: for an operation this release cannot commit.
    """
    if mine.name not in RULES:
        raise UnsupportedFeature(f"This release cannot commit {mine.name}.", feature=mine.name, writing=True)
    committed = theirs.name if theirs.name in _KNOWN else "Unknown"
    for rule in RULES[mine.name].get(committed, ()):
        overlap = CONDITIONS[rule.when](mine, theirs)
        if overlap is not None:
            return Verdict(rule.then, rule.why, overlap)
    return COMPATIBLE


_KNOWN: Final = frozenset(
    {
        "Append",
        "Clone",
        "CreateIndex",
        "DataReplacement",
        "Delete",
        "Merge",
        "Overwrite",
        "Project",
        "ReserveFragments",
        "Restore",
        "Rewrite",
        "Update",
        "UpdateBases",
        "UpdateConfig",
        "UpdateMemWalState",
    }
)
