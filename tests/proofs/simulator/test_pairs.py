"""Every pair of operations, every interleaving of their steps up to steps that commute."""

from itertools import combinations_with_replacement, groupby

import pytest

from tests.support.proving import PROVING, pick
from tiltyard.transaction.rules import RULES
from tiltyard_proofs.simulator import describe, explore, pairs
from tiltyard_proofs.simulator.pairs import KINDS_OF

ALL = list(pairs())
BY_OPERATIONS = [list(group) for _, group in groupby(ALL, key=lambda pair: pair.operations)]
CHOSEN = ALL if PROVING else [pair for number, group in enumerate(BY_OPERATIONS) for pair in group[number % min(3, len(group)) :: 3]]
"""Of every two operations that meet: all variants, or in the short form one in three, with and without stable row ids in turn."""
CHUNKS = pick(10, 40)


def test_all_operations_that_can_meet_do() -> None:
    assert set(KINDS_OF) == set(RULES) - {"Clone"}
    met = {frozenset(pair.operations) for pair in CHOSEN}
    assert met == {frozenset(two) for two in combinations_with_replacement(KINDS_OF, 2)}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_in_every_interleaving(chunk: int) -> None:
    for pair in CHOSEN[chunk::CHUNKS]:
        first: set[int] = set()
        for outcome in explore(pair.scenario):
            if outcome.violation is not None:
                pytest.fail(f"{pair.words}\n{describe(outcome)}", pytrace=False)
            first.add(outcome.world.store.landings[0].actor)
        assert first == {0, 1}, f"{pair.words}: both orders are among the interleavings, and somebody always commits"
