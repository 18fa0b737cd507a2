"""When an operation built on an older version may be refused, or rebased over later commits. After docs/concepts/conflicts.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_REPLACED: Final = frozenset({"Overwrite", "Restore"})
_LOG: Final = frozenset({"UpdateMemWalState"})
_NONE: Final[frozenset[str]] = frozenset()

INCOMPATIBLE: Final[Mapping[str, frozenset[str]]] = {
    "Append": _REPLACED | _LOG,
    "Delete": _REPLACED | _LOG,
    "Overwrite": _LOG,
    "CreateIndex": _REPLACED | _LOG,
    "Rewrite": _REPLACED,
    "Merge": _REPLACED | _LOG | {"Project"},
    "Project": _REPLACED | _LOG,
    "Restore": _LOG,
    "Update": _REPLACED,
    "UpdateConfig": frozenset({"Overwrite"}),
    "DataReplacement": _REPLACED | _LOG,
    "UpdateMemWalState": _REPLACED | {"Append", "Delete", "Merge", "Project", "DataReplacement"},
    "UpdateBases": _NONE,
}
"""Always refused after one of these."""

PERHAPS: Final[Mapping[str, frozenset[str]]] = {
    "CreateIndex": frozenset({"Project", "Rewrite"}),
    "Rewrite": frozenset({"CreateIndex"}),
    "UpdateConfig": frozenset({"UpdateConfig"}),
    "DataReplacement": frozenset({"Delete", "Project"}),
    "UpdateMemWalState": frozenset({"CreateIndex", "Update", "UpdateMemWalState"}),
    "UpdateBases": frozenset({"UpdateBases"}),
}
"""Refused after one of these, if both touch the same."""

WORKED_OUT_AGAIN: Final[Mapping[str, frozenset[str]]] = {
    "Delete": frozenset({"Merge"}),
    "Overwrite": frozenset({"Overwrite"}),
    "Rewrite": frozenset({"Merge"}),
    "Merge": frozenset({"Append", "Delete", "Rewrite", "Merge", "Update", "DataReplacement"}),
    "Project": frozenset({"Merge", "Project"}),
    "Update": frozenset({"Merge"}),
    "DataReplacement": frozenset({"Merge"}),
}
"""Never carried over one of these: only worked out again, or refused."""


def may_be_refused(operation: str, since: Iterable[str]) -> bool:
    """Whether there may be an ``IncompatibleConflict``."""
    return not (INCOMPATIBLE[operation] | PERHAPS.get(operation, _NONE)).isdisjoint(since)


def in_the_way(operation: str, since: Iterable[str]) -> list[str]:
    """What an operation must not have been carried over."""
    never = INCOMPATIBLE[operation] | WORKED_OUT_AGAIN.get(operation, _NONE)
    return [one for one in since if one in never]
