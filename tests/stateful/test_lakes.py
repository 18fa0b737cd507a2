"""Walks over lakes: whatever befalls catalogs, branches and directories, no live byte goes and no row strays.

What can happen is in ``tests/proofs/lakewalk``. One number is one walk; a failure is shown with its seed and as few steps as it
takes. Again: ``python -m tools.prove --lakes --replay SEED``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.proofs.lakewalk.planted import PLANTS, mutant_of, planted
from tests.proofs.lakewalk.walk import LENGTH, THEMES, described, quietly, run_seed, run_steps, shrunk, steps_of
from tests.support.proving import PROVING, pick

SHARES: Final = 10
WALKS: Final = pick(2, 5)
"""Of each share: 10 x 2 x 60 are 1,200 steps, 3,000 in the long form."""
FIRST: Final = 20261116 * 10


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quietly():
        yield


def _walk(seeds: range, length: int, postgres: str | None = None) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        print(f"seed {seed}")
        ended = run_seed(seed, length, postgres=postgres)
        if ended.broken:
            pytest.fail(described(shrunk(ended, postgres=postgres)))
        assert len(ended.steps) == length
        done.update(ended.done)
    return done


@pytest.mark.parametrize("share", range(SHARES))
def test_walks(share: int) -> None:
    first = FIRST + share * WALKS
    done = _walk(range(first, first + WALKS), LENGTH)
    assert sum(count for name, count in done.items() if name.endswith(" done")) > 16 * WALKS


@pytest.mark.parametrize("kind", ["manifest", "postgres"])
def test_walks_over_other_catalogs(kind: str, request: pytest.FixtureRequest) -> None:
    """The kind follows from the seed: see ``kind_of``."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    seed = {"manifest": FIRST // 40 * 40 + 13, "postgres": FIRST // 20 * 20 + 7}[kind]
    _walk(range(seed, seed + 1), 30 if kind == "manifest" else LENGTH, url)


@pytest.mark.parametrize("name", PLANTS)
def test_walks_that_find(name: str) -> None:
    """Nothing breaks where no bug is planted: what ``make mutants`` runs with it."""
    plant = PLANTS[name]
    walks = plant.walks if PROVING or "mutants-" in os.environ.get("PYTHONPATH", "") else 1
    for seed in range(walks):
        ended = run_steps(seed, steps_of(seed, plant.steps, deeds=plant.deeds))
        assert not ended.broken, described(ended)


@pytest.mark.parametrize("name", PLANTS)
def test_planted_losses_are_found(name: str) -> None:
    """Each way in which lakes lost data is found again when its fix is taken out."""
    plant = PLANTS[name]
    seen = []
    with planted(mutant_of(name)):
        for seed in (*plant.seeds, *range(plant.walks)):
            ended = run_steps(seed, steps_of(seed, plant.steps, deeds=plant.deeds))
            if any(words in ended.broken for words in plant.shown):
                return
            seen.append(ended.broken)
    pytest.fail(f"{name} was not found in {plant.walks} walks: {Counter(seen)}")


def test_every_theme_is_walked() -> None:
    assert {seed % len(THEMES) for seed in range(FIRST, FIRST + SHARES * WALKS)} == set(range(len(THEMES)))
