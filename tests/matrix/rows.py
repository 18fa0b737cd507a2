"""Every row of the conflict matrix, and more, as deeds on real tables with what must come of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.matrix.beyond import ALSO, BEYOND
from tests.matrix.real_cases import REALS
from tests.matrix.sides import BESIDE_LOG, USUAL, Real, real
from tests.support import real_ops as do
from tests.transaction import matrix_cases as matrix
from tests.transaction.matrix_cases import CASES, OUTCOMES, Case, Outside
from tiltyard.conflicts import OPERATIONS, Outcome
from tiltyard.transaction.resolve import resolve
from tiltyard.transaction.rules import ABOUT_KEYS


@dataclass(frozen=True)
class Row:
    """A row of the matrix, on a real table."""

    name: str
    deeds: Real
    expected: Outcome | None
    """None where something outside the rules decides; the deeds say what."""
    about_keys: bool = False


def _fixed() -> dict[tuple[str, str], Outcome]:
    head, *rows = [line.split() for line in matrix.ALWAYS.strip().splitlines()]
    letters = {"o": ".", "x": "X"}
    return {
        (row[0], theirs): OUTCOMES[letters.get(letter, letter)]
        for row in rows
        for theirs, letter in zip(head, row[1:], strict=True)
        if letter != "*"
    }


FIXED: Final = _fixed()


def _usual(mine: str, theirs: str) -> Real:
    if "UpdateMemWalState" in (mine, theirs):
        return real(BESIDE_LOG[mine], BESIDE_LOG[theirs], table="log")
    return real(USUAL[mine], USUAL[theirs])


def _about_keys(case: Case) -> bool:
    verdict = resolve(case.mine.operation, case.theirs.operation, context=case.context)
    return verdict.rule is not None and verdict.rule.when in ABOUT_KEYS


def _of_pair(pair: tuple[str, str]) -> Iterator[Row]:
    name = "-".join(pair)
    if pair in FIXED:
        yield Row(f"{name}-always", _usual(*pair), FIXED[pair])
        return
    # Where only what a side says decides, such as a declared key, what it usually does stands for the one case of the matrix.
    for case, deeds in zip(CASES[pair], REALS.get(pair) or (_usual(*pair),), strict=True):
        label = f"{name}-{case.words}"
        if isinstance(case, Outside):
            yield Row(label, deeds, None)
        else:
            yield Row(label, deeds, case.expected, _about_keys(case))


def matrix_rows() -> list[Row]:
    """Every row of the matrix once, in its order of pairs."""
    names = list(OPERATIONS.values())
    found = [row for mine in names for theirs in names for row in _of_pair((mine, theirs))]
    return found + [_over_unknown(mine) for mine in names if mine not in ("Clone", "UpdateMemWalState")]


def _over_unknown(mine: str) -> Row:
    return Row(f"{mine}-Unknown", real(BESIDE_LOG[mine], do.unknown(), table="log"), Outcome.INCOMPATIBLE)


def further_rows() -> list[Row]:
    """What the matrix has no row for: pairs that never depend, on other tables."""
    return [
        _over_unknown("Clone"),
        _over_unknown("UpdateMemWalState"),
        *(Row(words, deeds, expected) for words, (deeds, expected) in BEYOND.items()),
        *(
            Row(f"{mine}-{theirs}-always, {deeds.table} {number}", deeds, FIXED[mine, theirs])
            for (mine, theirs), several in ALSO.items()
            for number, deeds in enumerate(several)
        ),
    ]
