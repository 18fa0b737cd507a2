"""Merges of two lines of random operations, beside a model on plain rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakes.merge_model import MergeRun
from tests.support.lakes import Site
from tests.support.proving import pick

PARTS = pick(2, 16)
RUNS = pick(6, 2_000)
"""Lakes; each merges its tables, about seven of them, two or three times. A seed that fails is printed with how to replay it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_merge_gives_what_the_model_says(tmp_path: Path, part: int) -> None:
    merges = conflicts = 0
    for seed in range(part, RUNS, PARTS):
        home = tmp_path / str(seed)
        site = Site("sqlite", str(home), home, {"catalog": "sqlite"})
        run = MergeRun(site, seed)
        run.run(tables=6, steps=24, rounds=2 + seed % 2)
        site.close()
        merges, conflicts = merges + run.merges, conflicts + run.conflicts
    assert merges > 6 * RUNS / PARTS
    assert 0 < conflicts < merges / 2, "a model that says nothing"
