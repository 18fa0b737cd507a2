"""Every row of the conflict matrix on the resolver: what we expect, on whose word, and that no row was forgotten."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transaction.matrix_cases import ALWAYS, CASES, FURTHER, OUTCOMES, Case, Outside, Side, Source
from tiltyard import ops
from tiltyard.conflicts import CELLS, OPERATIONS, RULES, UNKNOWN, Outcome
from tiltyard.transaction.examples import DEEDS
from tiltyard.transaction.resolve import Verdict, resolve

ROOT = Path(__file__).resolve().parents[2]
MATRIX = Path(os.environ.get("TILTYARD_CONFLICT_MATRIX", ROOT.parent / "shared" / "spec" / "conflict-matrix.csv"))
"""The matrix itself is not part of the repository; where it lies beside it, the cases are held against it."""

WORDS = {Outcome.COMPATIBLE: "compatible", Outcome.REBASE: "rebase", Outcome.RETRY: "retryable", Outcome.INCOMPATIBLE: "incompatible"}
STOCK_LETTERS = {"o": ".", "x": "X"}


def _always() -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in ALWAYS.strip().splitlines()]
    return {(row[0], theirs): letter for row in rows for theirs, letter in zip(head, row[1:], strict=True)}


FIXED = {pair: letter for pair, letter in _always().items() if letter != "*"}


def _decided() -> Iterator[tuple[str, Case]]:
    for (mine, theirs), cases in CASES.items():
        yield from ((f"{mine}-{theirs}-{case.words}", case) for case in cases if isinstance(case, Case))
    yield from ((case.words, case) for case in FURTHER)


def _verdict(case: Case) -> Verdict:
    return resolve(case.mine.operation, case.theirs.operation, context=case.context)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _decided()])
def test_case(case: Case) -> None:
    verdict = _verdict(case)
    assert verdict.outcome is case.expected, verdict.reason
    for member, wanted in case.asks.items():
        assert getattr(verdict, member) == wanted, member
    assert (verdict.rule is None) == (case.expected is Outcome.COMPATIBLE)
    assert len(verdict.reason) < 300
    assert case.mine.operation.name in verdict.reason
    assert case.theirs.operation.name in verdict.reason


@pytest.mark.parametrize(("mine", "theirs"), FIXED)
def test_pairs_that_never_depend(mine: str, theirs: str) -> None:
    """Whatever the two did, with everything known and with nothing."""
    letter = FIXED[mine, theirs]
    expected = OUTCOMES[STOCK_LETTERS.get(letter, letter)]
    for ours in DEEDS[mine]:
        for other in DEEDS[theirs]:
            case = Case("", Side(ours.operation, ours.rows, ours.reuse), Side(other.operation, other.rows, other.reuse), expected, "spec")
            assert _verdict(case).outcome is expected
            assert resolve(ours.operation, other.operation).outcome is expected


@pytest.mark.parametrize("mine", RULES)
def test_nothing_goes_over_what_nobody_knows(mine: str) -> None:
    for deed in DEEDS[mine]:
        for theirs in (ops.UnknownOperation(116), ops.UnknownOperation(115), ops.UnknownOperation()):
            assert resolve(deed.operation, theirs).outcome is Outcome.INCOMPATIBLE


def test_every_pair_is_either_fixed_or_spelled_out() -> None:
    names = list(OPERATIONS.values())
    assert set(_always()) == {(mine, theirs) for mine in names for theirs in names}
    assert set(CASES) == {pair for pair, letter in _always().items() if letter == "*"}
    for (mine, theirs), cases in CASES.items():
        for case in cases:
            if isinstance(case, Case):
                assert (case.mine.operation.name, case.theirs.operation.name) == (mine, theirs)


def test_every_rule_is_reached() -> None:
    """By a case of its own where the pair depends on what was done; pairs that never do are reached above."""
    reached = set()
    for _, case in _decided():
        verdict = _verdict(case)
        if verdict.rule is not None:
            reached.add((case.mine.operation.name, case.theirs.operation.name, verdict.rule.when))
    wanted = {(mine, theirs, rule.when) for mine, row in RULES.items() for theirs, rules in row.items() for rule in rules}
    missed = {one for one in wanted - reached if one[:2] not in FIXED and one[1] != UNKNOWN}
    assert missed == set()


def test_what_lies_outside_the_resolver_is_tested_elsewhere_or_says_why_not() -> None:
    for cases in CASES.values():
        for case in cases:
            if isinstance(case, Outside):
                assert bool(case.covered_by) != bool(case.reason)
                if case.covered_by:
                    assert "def test_" in (ROOT / case.covered_by).read_text()


def test_own_decisions_that_refuse_give_a_reason_in_the_table() -> None:
    told = {(sign, rule.when) for sign, rules in CELLS.items() for rule in rules if rule.deviation}
    assert told
    for _, case in _decided():
        verdict = _verdict(case)
        if case.source == "own" and case not in FURTHER and verdict.rule is not None:
            assert verdict.rule.deviation, case.words


# ---- against the matrix itself ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not MATRIX.exists(), reason="the matrix lies outside the repository")
def test_every_row_of_the_matrix_has_its_case() -> None:
    with MATRIX.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 460
    by_pair: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        by_pair.setdefault((row["committing"], row["committed"]), []).append(row)
    wrong = []
    for pair, found in by_pair.items():
        cases = _cases_of(pair)
        assert len(cases) == len(found), pair
        wrong += [f"{pair}: {case.words} as {row['condition']}" for case, row in zip(cases, found, strict=True) if not _agrees(case, row)]
    assert wrong == []
    assert {pair for pair in by_pair if pair[1] in RULES} == set(FIXED) | set(CASES)


def _cases_of(pair: tuple[str, str]) -> tuple[Case | Outside, ...]:
    mine, theirs = pair
    nothing = Side(ops.Append())
    if theirs not in RULES:
        return (Case("unknown", nothing, nothing, Outcome.INCOMPATIBLE, "own" if mine == "UpdateBases" else "stock"),)
    if pair in CASES:
        return CASES[pair]
    letter = FIXED[pair]
    source: Source = "stock" if letter in STOCK_LETTERS else "spec"
    return (Case("always", nothing, nothing, OUTCOMES[STOCK_LETTERS.get(letter, letter)], source),)


def _agrees(case: Case | Outside, row: dict[str, str]) -> bool:
    """Whether the row says of the sources what the case claims: that keeps a case from standing for another row."""
    if isinstance(case, Outside):
        return row["spec"] == "unspecified" and row["pylance_14_0_2"] in ("error", "commit_conflict")
    word = WORDS[case.expected]
    if case.source == "spec":
        return row["spec"] == word
    library = row["pylance_14_0_2"]
    stock = row["rust"] if library in ("not reachable", "not observed") else {"re-executed": "retryable"}.get(library, library)
    says_so = stock.startswith(word)
    return row["spec"] != word and says_so == (case.source == "stock")
