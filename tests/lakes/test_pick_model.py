"""Picks and reverts of single snapshots of two lines of random operations, beside the model of merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakes.merge_lines import hurried
from tests.lakes.merge_run import made, scratch
from tests.lakes.pick_run import PickRun
from tests.support.proving import pick

PARTS = pick(2, 8)
RUNS = pick(24, 800)
"""Lakes, each with between six and seven picks and reverts of a table. A seed that fails is printed with all that was done."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_pick_or_a_revert_gives_what_the_model_says(tmp_path: Path, part: int) -> None:
    merges = conflicts = 0
    with hurried(), scratch(tmp_path) as room:
        for seed in range(part, RUNS, PARTS):
            run = made(room, seed, PickRun)
            merges, conflicts = merges + run.merges, conflicts + run.conflicts
    print(f"{merges:,} picks and reverts of tables, {conflicts:,} of these with conflicts, 0 differences")
    assert merges >= 5 * RUNS / PARTS
    assert 0 < conflicts < merges / 2, "a model that says nothing"
