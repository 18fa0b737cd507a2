"""Thousands of random runs: three or four writers, a compactor, a cleaner and a reader, with faults. ``make prove`` runs a million."""

import pytest

from tests.support.proving import pick
from tiltyard_proofs.simulator import describe, run_seed, shrink

RUNS = pick(1_000, 20_000)
CHUNK = 250


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_every_promise_holds_after_random_runs(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed)
        if outcome.violation is not None:
            pytest.fail(f"seed {seed}\n{describe(shrink(outcome))}\nAgain: python -m tools.prove --replay {seed}", pytrace=False)
