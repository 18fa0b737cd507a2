"""Thousands of random runs: three or four writers, a compactor, a cleaner and a reader, with faults. ``make prove`` runs a million."""

import pytest

from tests.support.proving import pick
from tiltyard_proofs.simulator import describe, run_seed, shrink
from tiltyard_proofs.simulator.scenario import Outcome

VARIED = 700
"""So many runs are made by ``test_variety.py``, which counts what happens in them; here come those after them."""
RUNS = pick(1_000, 20_000)
CHUNK = 100


def checked_run(seed: int) -> Outcome:
    """One run, in which every promise must hold."""
    outcome = run_seed(seed)
    if outcome.violation is not None:
        pytest.fail(f"seed {seed}\n{describe(shrink(outcome))}\nAgain: python -m tools.prove --replay {seed}", pytrace=False)
    return outcome


@pytest.mark.parametrize("first", range(VARIED, RUNS, CHUNK))
def test_every_promise_holds_after_random_runs(first: int) -> None:
    for seed in range(first, first + CHUNK):
        checked_run(seed)
