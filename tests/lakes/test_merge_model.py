"""Merges of two lines of random operations, beside a model on plain rows.

A table's merge is counted if the branch had something to bring of it, and its rows, columns, settings and name, or its conflict, were
compared with the model. Most are tried on branches that are made for it, in both directions and at several points of the two lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.lakes.merge_model import MergeRun, hurried
from tests.support.lakes import Site
from tests.support.proving import pick

PARTS = pick(4, 16)
RUNS = pick(32, 6_400)
"""Lakes, each with about 40 merges of a table. A seed that fails is printed with how to replay it."""
MERGES = pick(1_000, 200_000)
MEMORY = Path("/dev/shm")
"""Where nothing waits for a disk."""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    made = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else tmp_path, prefix="tiltyard-merges-"))
    yield made
    shutil.rmtree(made)


def made(scratch: Path, seed: int) -> MergeRun:
    """One lake, made, merged and thrown away."""
    home = scratch / str(seed)
    site = Site("sqlite", str(home), home, {"catalog": "sqlite"})
    run = MergeRun(site, seed)
    run.run(tables=6, steps=24, rounds=1 + seed % 3 % 2)
    site.close()
    shutil.rmtree(home)
    shutil.rmtree(run.outside, ignore_errors=True)
    return run


@pytest.mark.parametrize("part", range(PARTS))
def test_a_merge_gives_what_the_model_says(scratch: Path, part: int) -> None:
    lakes = merges = conflicts = 0
    with hurried():
        for seed in range(part, RUNS, PARTS):
            run = made(scratch, seed)
            lakes, merges, conflicts = lakes + run.lake_merges, merges + run.merges, conflicts + run.conflicts
    print(f"{lakes:,} merges of lakes, {merges:,} of tables, {conflicts:,} of these with conflicts, 0 differences")
    assert merges >= MERGES / PARTS
    assert 0 < conflicts < merges / 2, "a model that says nothing"
