"""Merges of a lake whose catalog was lost: what nobody knows any more is not guessed, and no file that is needed goes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.lakes.test_merging import TEN, rows, shop, sound, table_of
from tests.support.lakes import Site, numbers
from tests.support.lost_catalogs import lose_catalog, rebuild, restore
from tiltyard.errors import HistoryUnavailable
from tiltyard.lake import Lake

NO_GRACE = timedelta(0)


def _merged(lake: Lake) -> None:
    """A row came from a branch by a merge, and was deleted on main since."""
    _, side = shop(lake)
    side.append(table_of({100: "x", 101: "y"}))
    lake.branches.merge("side")
    lake.table("t").delete("id = 100")


EXPECTED = {**TEN, 101: "y"}


def test_a_branch_that_may_have_been_merged_is_not_merged_again(lake: Lake, site: Site) -> None:
    _merged(lake)
    picked = lake.on_branch("side").history()[0].id
    lose_catalog(site)
    rebuild(site)
    with site.open() as found:
        assert rows(found) == EXPECTED
        found.on_branch("side").table("t").append(table_of({102: "z"}))
        with pytest.raises(HistoryUnavailable, match="merged before the catalog was lost"):
            found.branches.merge("side")
        with pytest.raises(HistoryUnavailable, match="merged before the catalog was lost"):
            found.branches.merge("main", into="side")
        with pytest.raises(HistoryUnavailable, match="merged before the catalog was lost"):
            found.branches.cherry_pick("side", picked)
        assert rows(found) == EXPECTED
        sound(found)


def test_branches_that_begin_after_the_loss_are_merged(lake: Lake, site: Site) -> None:
    _merged(lake)
    lose_catalog(site)
    rebuild(site)
    with site.open() as found:
        found.branches.create("new")
        found.on_branch("new").table("t").append(table_of({102: "z"}))
        found.table("t").delete("id = 0")
        found.branches.merge("new")
        expected = {number: value for number, value in {**EXPECTED, 102: "z"}.items() if number}
        assert rows(found) == expected
        assert found.branches.merge("new").up_to_date
        found.on_branch("side").branches.create("off")
        with pytest.raises(HistoryUnavailable):
            found.branches.merge("off")


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_table_that_was_dropped_and_came_back_is_found_with_what_came_after(lake: Lake, site: Site, branch: str, written: bool) -> None:
    """The journal has a note without it: what was written after that is no part of what went with it."""
    lake.create_table("gone", numbers(1))
    lake.branches.create("side")
    on_branch = lake.on_branch(branch)
    then = on_branch.snapshot().id
    if written:
        on_branch.table("gone").append(numbers(5))
    on_branch.drop_table("gone")
    lake.branches.restore(then, branch)
    on_branch.table("gone").append(numbers(7))
    lose_catalog(site)
    rebuild(site)
    with site.open() as found:
        assert found.on_branch(branch).table("gone").to_arrow()["id"].to_pylist() == [1, 7]
        sound(found)


def test_a_cleanup_keeps_what_main_names_of_a_branch(lake: Lake, site: Site) -> None:
    _merged(lake)
    lose_catalog(site)
    rebuild(site)
    with site.open() as found:
        found.branches.delete("side")
        found.cleanup(older_than=NO_GRACE, grace=NO_GRACE)
        assert rows(found) == EXPECTED
        sound(found)


def test_a_backup_knows_the_merges_before_it(lake: Lake, site: Site, tmp_path: Path) -> None:
    _merged(lake)
    lake.table("t").append(table_of({12: "undone"}))
    undone = lake.history()[0].id
    lake.branches.revert(undone)
    lake.backup(tmp_path / "backup")
    lake.table("t").append(table_of({11: "later"}))
    lose_catalog(site)
    restore(site, tmp_path / "backup")
    with site.open() as found:
        assert rows(found) == {**EXPECTED, 11: "later"}
        assert found.branches.merge("side").up_to_date
        assert found.branches.revert(undone).up_to_date, "main is another line now, and what was picked of it is still known"
        found.on_branch("side").table("t").append(table_of({103: "more"}))
        found.branches.merge("side")
        assert rows(found) == {**EXPECTED, 11: "later", 103: "more"}


def test_merges_after_the_backup_are_not_known(lake: Lake, site: Site, tmp_path: Path) -> None:
    lake.create_table("other", table_of(TEN))
    lake.backup(tmp_path / "backup")
    _merged(lake)
    lose_catalog(site)
    restore(site, tmp_path / "backup")
    with site.open() as found:
        assert rows(found) == EXPECTED
        with pytest.raises(HistoryUnavailable):
            found.branches.merge("side")
