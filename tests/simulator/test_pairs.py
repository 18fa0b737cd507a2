"""Every pair of operations, every interleaving of their steps up to steps that commute."""

from itertools import combinations_with_replacement

import pytest

from tiltyard.transaction.rules import RULES
from tiltyard_proofs.simulator import describe, explore, pairs
from tiltyard_proofs.simulator.pairs import KINDS_OF

ALL = list(pairs())
CHUNKS = 40


def test_all_operations_that_can_meet_do() -> None:
    assert set(KINDS_OF) == set(RULES) - {"Clone"}
    met = {frozenset(pair.operations) for pair in ALL}
    assert met == {frozenset(two) for two in combinations_with_replacement(KINDS_OF, 2)}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_in_every_interleaving(chunk: int) -> None:
    for pair in ALL[chunk::CHUNKS]:
        first: set[int] = set()
        for outcome in explore(pair.scenario):
            if outcome.violation is not None:
                pytest.fail(f"{pair.words}\n{describe(outcome)}", pytrace=False)
            first.add(outcome.world.store.landings[0].actor)
        assert first == {0, 1}, f"{pair.words}: both orders are among the interleavings, and somebody always commits"
