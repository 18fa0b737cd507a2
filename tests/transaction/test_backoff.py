"""Waiting after a lost race: from nothing up to a ceiling that doubles, in units of what an attempt cost."""

from __future__ import annotations

import itertools

import pytest

from tiltyard.testing import manual_runtime
from tiltyard.transaction.backoff import DOUBLINGS, RetryPolicy, wait_before

DRAWS = 4000


def _draws(retry: int, attempt: float | None, seed: int = 7) -> list[float]:
    runtime = manual_runtime(seed)
    return [wait_before(retry, attempt, runtime) for _ in range(DRAWS)]


@pytest.mark.parametrize("attempt", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("retry", [0, 1, 2, 3])
def test_full_jitter_in_units_of_an_attempt(retry: int, attempt: float) -> None:
    ceiling = attempt * 2 ** (min(retry, DOUBLINGS) + 1)
    draws = _draws(retry, attempt)
    assert all(0 <= one <= ceiling for one in draws)
    # Even over the whole range: each tenth of it gets its share.
    for tenth in range(10):
        share = sum(tenth / 10 <= one / ceiling < (tenth + 1) / 10 for one in draws) / DRAWS
        assert 0.08 < share < 0.12


def test_the_ceiling_doubles_and_then_stops() -> None:
    highest = [max(_draws(retry, 0.01)) for retry in range(12)]
    for before, after in itertools.pairwise(highest[: DOUBLINGS + 1]):
        assert after / before == pytest.approx(2, rel=0.02)
    assert highest[11] == pytest.approx(highest[DOUBLINGS], rel=0.02)


def test_nobody_waits_for_minutes() -> None:
    assert max(_draws(10, 30.0)) <= 5.0


def test_an_attempt_that_took_no_time_still_makes_writers_spread_out() -> None:
    assert max(_draws(0, 0.0)) > 0
    assert max(_draws(0, None)) == pytest.approx(0.1, rel=0.05)


def test_defaults() -> None:
    assert RetryPolicy() == RetryPolicy(max_retries=None, deadline=None)
