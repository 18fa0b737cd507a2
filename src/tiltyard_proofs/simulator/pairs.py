"""Every pair of operations that can meet, in a few variants each: two writers who both read the first version and want to commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Final

from tiltyard.storage.handlers import ConditionalPutHandler, RenameHandler
from tiltyard_proofs.simulator.index_intentions import ORDERED
from tiltyard_proofs.simulator.intentions import COLUMN_KINDS, Intention
from tiltyard_proofs.simulator.scenario import Part, Scenario
from tiltyard_proofs.simulator.template import FIRST_RESERVED, TAGGED, Kind

KINDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "Append": ("append",),
    "Delete": ("delete",),
    "Overwrite": ("overwrite",),
    "CreateIndex": ("index", "drop-index"),
    "Rewrite": ("compact",),
    "Merge": ("add-column",),
    "Project": ("drop-column",),
    "Restore": ("restore",),
    "ReserveFragments": ("reserve",),
    "Update": ("update", "update-columns", "merge", "flush"),
    "UpdateConfig": ("set-config",),
    "DataReplacement": ("replace",),
    "UpdateMemWalState": ("advance",),
    "UpdateBases": ("add-base",),
}
"""The intentions that lead to each operation. Clone makes a new table and meets nobody."""

LONG: Final = 1e6
"""Seconds: nobody cleans up, so a look stays good."""

OFFERING: Final = "rows offered"
_MEANS: Final = ("row addresses", "stable row ids", "renames, unordered listings", "relying on a look", "in one queue", OFFERING)

_OPERATION_OF: Final = {kind: operation for operation, kinds in KINDS_OF.items() for kind in kinds}
_WITH_ROWS: Final = frozenset({"delete", "update", "update-columns", "merge", "compact", "replace", "index"})
_GROUPED: Final = frozenset({"append", "delete"})
"""What one writer of a queue can commit for another."""
_NAMED: Final = frozenset({"set-config", "add-base", "index"})
_LOGGED: Final = frozenset({"advance", "flush"})

_PLACES: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "same rows": ((0,), (0,)),
    "other rows": ((0,), (1,)),
    "other fragments": ((0,), (6,)),
    "whole fragment and a row of it": ((0, 1, 2), (1,)),
    "a row and its whole fragment": ((1,), (0, 1, 2)),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two intentions on one table."""

    operations: tuple[str, str]
    words: str
    scenario: Scenario


def pairs() -> Iterator[Pair]:
    """All pairs of the fourteen operations. Both orders are among the interleavings of a pair, so each pair stands here once."""
    for first, second in combinations_with_replacement(_OPERATION_OF, 2):
        for number, (words, one, two) in enumerate(_variants(first, second)):
            grouped = first == second and first in _GROUPED
            for means in _MEANS if number == 0 else (*_MEANS[:2], *_MEANS[-2:]) if grouped else _MEANS[:2]:
                if means != OFFERING or "append" in (first, second):
                    yield _pair(first, second, words, one, two, means)


def _pair(first: str, second: str, words: str, one: Intention, two: Intention, means: str) -> Pair:
    kind = Kind(means == "stable row ids", "merge" in (first, second), True, bool({first, second} & _LOGGED))
    parts = (Part("A", "pinned", (one,)), Part("B", "pinned", (two,)))
    plain = means != "renames, unordered listings"
    scenario = Scenario(kind, parts, ConditionalPutHandler.name if plain else RenameHandler.name, ordered=plain, shared_time=False)
    if means in ("relying on a look", "in one queue"):
        scenario = replace(scenario, look_seconds=LONG)
    if means in ("in one queue", OFFERING):
        scenario = replace(scenario, queued=frozenset({0, 1}), offered=means == OFFERING)
    return Pair((_OPERATION_OF[first], _OPERATION_OF[second]), f"{first} and {second}: {words}; {means}", scenario)


def _variants(first: str, second: str) -> Iterator[tuple[str, Intention, Intention]]:
    both = {first, second}
    for words, (one, two) in _PLACES.items() if both <= _WITH_ROWS else list(_PLACES.items())[:1]:
        yield words, _intention(first, 0, one), _intention(second, 1, two)
    if both <= COLUMN_KINDS:
        yield "another column", _intention(first, 0, (0,)), _intention(second, 1, (0,), column="b")
    if first == second and first in _NAMED:
        yield "the same name", _intention(first, 0, (0,), name="same"), _intention(second, 1, (0,), name="same")
    if both <= _LOGGED:
        yield "a later generation", _intention(first, 0, (), number=2), _intention(second, 1, (), number=3)
    if first == second == "merge":
        yield "the same new key", Intention("merge", (0, 9)), Intention("merge", (6, 9))
    if both == {"merge", "append"}:
        yield "the same new key", _intention(first, 0, (9,)), _intention(second, 1, (9,))
    if "compact" in both:
        row = next((kind for kind in both if kind in ("delete", "update", "merge")), None)
        if row is not None:
            rewrite, change = Intention("compact", (0, 3), name=ORDERED, number=FIRST_RESERVED), _intention(row, 1, (1,))
            pair = (rewrite, change) if first == "compact" else (change, rewrite)
            yield "the order kept", *pair


def _intention(kind: str, who: int, keys: tuple[int, ...], *, column: str = "a", name: str = "", number: int = 0) -> Intention:
    if kind == "append":
        return Intention(kind, keys if keys == (9,) else (20 + who,))
    if kind in ("overwrite", "flush"):
        return Intention(kind, (30 + who,), number=number or 2)
    if kind == "merge":
        return Intention(kind, keys if keys == (9,) else (*keys, 40 + who), column)
    if kind == "compact":
        return Intention(kind, keys if 6 in keys else (0, 3), number=FIRST_RESERVED + who)
    if kind == "index":
        return Intention(kind, keys, column, name or f"new{who}", who)
    if kind == "drop-index":
        return Intention(kind, name="a_idx")
    if kind in ("set-config", "add-base"):
        return Intention(kind, name=name or f"name{who}")
    number = {"restore": TAGGED, "advance": number or 2, "reserve": 1}.get(kind, 0)
    return Intention(kind, keys, column, number=number)
