"""Merges of two lines of random operations, beside a model on plain rows.

A table's merge is counted if the branch had something to bring of it, and its rows, columns, settings and name, or its conflict, were
compared with the model. Most are tried on branches that are made for it, in both directions and at several points of the two lines.
"""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.lakes.merge_lines import hurried
from tests.lakes.merge_run import FewKeysRun, made, scratch
from tests.support.proving import pick

PARTS = pick(4, 16)
RUNS = pick(34, 340)
"""Lakes, each with about 35 merges of a table. ``make prove-merges`` makes 6,000. A seed that fails is printed with how to replay it."""
MERGES = pick(1_000, 10_000)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_merge_gives_what_the_model_says(tmp_path: Path, part: int) -> None:
    lakes = merges = conflicts = 0
    with hurried(), scratch(tmp_path) as room:
        for seed in range(part, RUNS, PARTS):
            run = made(room, seed)
            lakes, merges, conflicts = lakes + run.lake_merges, merges + run.merges, conflicts + run.conflicts
    print(f"{lakes:,} merges of lakes, {merges:,} of tables, {conflicts:,} of these with conflicts, 0 differences")
    assert merges >= MERGES / PARTS
    assert 0 < conflicts < merges / 2, "a model that says nothing"


def test_keys_that_both_inserted(tmp_path: Path) -> None:
    merges = twice = 0
    with hurried(), scratch(tmp_path) as room:
        for seed in range(pick(10, 200)):
            run = made(room, seed, FewKeysRun)
            merges, twice = merges + run.merges, twice + any("both sides inserted the same" in line for line in run.log)
    print(f"{merges:,} merges of tables, {twice} lakes where both inserted a key, 0 differences")
    assert twice >= pick(10, 200) / 2


def test_stock_compaction_loses_an_index_of_another_directory(tmp_path: Path) -> None:
    """Pylance alone, on a branch of its own: why the generator does not ask it to. Once this fails, it can (``index_elsewhere``)."""
    lance.write_dataset(pa.table({"id": range(5)}), tmp_path / "t.lance").create_scalar_index("id", "BTREE")
    branch = lance.dataset(tmp_path / "t.lance").create_branch("b")
    branch.delete("id = 3")
    assert branch.count_rows("id = 2") == 1
    branch.optimize.compact_files()
    with pytest.raises(OSError, match=r"Not found.*_indices"):
        lance.dataset(branch.uri).count_rows("id = 2")
