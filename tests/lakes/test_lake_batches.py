"""Transactions that wait for one table are committed together, and each is what it would have been by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.batches import held_turn
from tests.support.lakes import Site, add_to_both, both, ids, numbers, two_tables
from tiltyard.lake import Lake

SITES = ["sqlite", "manifest"]


@pytest.fixture
def lake(site: Site) -> Lake:
    return two_tables(site.open(author="test"))


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_those_who_wait_are_one_snapshot(lake: Lake) -> None:
    before = lake.catalog.cut().snapshot
    with held_turn(lake, "a", "b") as held:
        for number in (2, 3, 4):
            held.line_up(add_to_both(lake.transaction(message=f"m{number}"), number))
        done = held.give_back()
    assert {each.snapshot for each in done} == {before + 1}
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])
    newest = next(iter(lake.catalog.history()))
    assert [member.message for member in newest.members] == ["m2", "m3", "m4"]
    assert not lake.check().problems
