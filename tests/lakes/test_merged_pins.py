"""Foreign cleanups after a merge: files that another branch of a table names are kept by tags, and these go when nothing needs them."""

from __future__ import annotations

from datetime import timedelta

import lance

from tests.lakes.test_merging import TEN, rows, shop, sound, table_of
from tests.support.lakes import Site, uri_of
from tiltyard.catalog.lake_values import MAIN
from tiltyard.lake import Lake
from tiltyard.lakes.cleanup.merged_pins import MERGED_PIN

NO_GRACE = timedelta(0)


def stock_cleanup(lake: Lake, branch: str) -> None:
    """What pylance removes from the line of a table that a branch of the lake writes to, if it is told to remove all it can."""
    on = lake if branch == MAIN else lake.on_branch(branch)
    head = on.snapshot().cut.tables["t"]
    line = lance.dataset(lake.plain_access_of(head).on_branch(head.branch).lance_uri)
    line.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)


def pins(lake: Lake) -> list[str]:
    return sorted(name for name in lance.dataset(uri_of(lake, "t")).tags.list() if name.startswith(MERGED_PIN))


def test_a_stock_cleanup_of_either_line_leaves_what_the_other_names(lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    begin = lake.snapshot().id
    side.append(table_of({100: "x"}))
    main.append(table_of({200: "y"}))
    lake.branches.merge("side")
    side.overwrite(table_of({1: "all new"}))
    stock_cleanup(lake, "side")
    assert rows(lake) == {**TEN, 100: "x", 200: "y"}
    lake.branches.create("other", begin)
    lake.branches.rebase("other")
    lake.table("t").overwrite(table_of({2: "also new"}))
    for branch in (MAIN, "side"):
        stock_cleanup(lake, branch)
    assert rows(lake, branch="other") == {**TEN, 100: "x", 200: "y"}
    assert (rows(lake), rows(lake, branch="side")) == ({2: "also new"}, {1: "all new"})


def test_tags_go_with_what_they_keep(site: Site, lake: Lake) -> None:
    main, side = shop(lake)
    for number in range(3):
        side.append(table_of({100 + number: "x"}))
        lake.branches.merge("side")
    assert len(pins(lake)) == 3
    lake.cleanup(grace=NO_GRACE)
    assert len(pins(lake)) == 1, "the latest has all files of those before"
    lake.branches.delete("side")
    lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
    assert rows(lake).keys() >= {100, 101, 102}
    main.refresh()
    main.maintenance.compact()
    for _ in range(2):
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
    assert (pins(lake), site.files("tree/")) == ([], set())
    sound(lake)
