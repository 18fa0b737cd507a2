"""What a merge reads and writes: no row of tables that only one side changed, and no data file twice."""

from __future__ import annotations

import pytest

from tests.support.lakes import Site, numbers, reads_of_rows
from tests.support.proving import pick

TABLES = pick(12, 100)
COMMITS = pick(24, 1_000)
"""Of the branch: each changes one table, all of them in turn."""
BOTH = 3


def test_tables_of_one_side_are_not_read_and_no_data_file_is_copied(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = site.open()
    with lake.transaction() as tx:
        for number in range(TABLES):
            tx.create_table(f"t{number}", numbers(*range(100)))
    lake.branches.create("side")
    side = lake.on_branch("side")
    for turn in range(COMMITS):
        side.table(f"t{turn % TABLES}").append(numbers(1000 + turn))
    assert side.snapshot().id == lake.snapshot().id + COMMITS
    with lake.transaction() as tx:
        for number in range(BOTH):
            tx.table(f"t{number}").append(numbers(2000))
    read = reads_of_rows(monkeypatch)
    before = site.files("/data/")
    done = lake.branches.merge("side")
    assert site.files("/data/") == before, "data files were written"
    assert read == []
    how = [table.how for table in done.tables]
    assert (how.count("merged"), how.count("replayed")) == (BOTH, TABLES - BOTH)
    assert sum(table.written for table in done.tables) == 0
    assert all(table.referenced > 0 for table in done.tables)
    for number in range(TABLES):
        assert lake.table(f"t{number}").count_rows() == 100 + COMMITS // TABLES + (number < BOTH)
