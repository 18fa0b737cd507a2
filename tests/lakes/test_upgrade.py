"""A lake of the release before opens and works; an upgrade makes it one of today, once, whatever interrupts it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from tests.support.lakes import Site, add_to_both, directory_of, numbers, two_tables
from tests.support.lost_catalogs import as_format_1, lose_catalog, rebuild, records_of, unmarked, whole
from tiltyard.catalog.marks import LAKE_ID, OWNER_FILE
from tiltyard.catalog.records import Writes
from tiltyard.catalog.value_codec import LAKE
from tiltyard.errors import OwnershipError, UnsupportedFeature
from tiltyard.lake import Lake

NOBODY_ELSE = timedelta(0)


@pytest.fixture
def old(site: Site) -> Iterator[Site]:
    """A lake that the release before made, with everything it could hold."""
    with unmarked():
        lake = two_tables(site.open())
        lake.tags.create("first")
        with lake.transaction() as tx:
            add_to_both(tx, 2)
        lake.branches.create("trial")
        lake.on_branch("trial").table("a").append(numbers(9))
        lake.create_table("gone", numbers(1))
        lake.drop_table("gone")
    site.close()
    site.opened.clear()
    as_format_1(site)
    yield site
    site.close()


def test_it_opens_and_works(old: Site) -> None:
    lake = old.open()
    assert records_of(lake)[LAKE]["format"] == 1
    lake.table("a").append(numbers(3))
    lake.on_branch("trial").table("a").append(numbers(10))
    lake.create_table("new", numbers(1))
    assert lake.check().problems == ()


def test_an_upgrade_marks_everything_once(old: Site) -> None:
    lake = old.open()
    before, tip = whole(lake), lake.snapshot().id
    plan = lake.upgrade(dry_run=True)
    assert whole(lake) == before
    assert (plan.before, plan.after, plan.changed, plan.dry_run) == (1, 2, True, True)
    assert plan.marked == ("a", "b")
    assert len(plan.owned) == 3
    assert plan.pinned == ("branch trial", "tag first")
    done = lake.upgrade()
    assert (done.marked, done.owned, done.filled, done.pinned) == (plan.marked, plan.owned, plan.filled, plan.pinned)
    assert records_of(lake)[LAKE]["format"] == 2
    assert lake.snapshot().id == tip + 2, "one version for each table, through the lake"
    for name in ("a", "b"):
        assert lance.dataset(str(directory_of(lake, name))).config()[LAKE_ID] == lake.id
        assert (directory_of(lake, name) / OWNER_FILE).exists()
    now = whole(lake)
    assert {key: now[key] for key in ("main", "branches", "tags")} == {key: before[key] for key in ("main", "branches", "tags")}
    assert not lake.upgrade().changed
    assert not old.open().upgrade(dry_run=True).changed
    assert lake.check().problems == ()
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert lake.check().problems == ()
    assert lake.tables() == ["a", "b"]


def test_an_upgraded_lake_can_be_rebuilt(old: Site) -> None:
    lake = old.open()
    lake.upgrade()
    lake.table("a").append(numbers(5))
    before = whole(lake)
    lose_catalog(old)
    report = rebuild(old)
    lake = old.open()
    now = whole(lake)
    assert {key: now[key] for key in ("main", "branches", "tags")} == {key: before[key] for key in ("main", "branches", "tags")}, report
    assert list(report.not_taken.values()) == ["no version of it was committed through the lake, and the journal does not have it"]
    assert {problem.invariant for problem in lake.check().problems} == {"P12"}, "the dropped one is not known any more"


def test_before_it_no_directory_is_deleted_that_cannot_be_proved_ours(old: Site) -> None:
    lake = old.open()
    assert old.root is not None
    shutil.copytree(directory_of(lake, "a"), old.root / "0123456789ab_stray.lance")
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert (old.root / "0123456789ab_stray.lance").exists()
    assert {problem.invariant for problem in lake.check().problems} == {"P12"}


def test_before_it_a_lost_catalog_cannot_be_rebuilt(old: Site) -> None:
    lose_catalog(old)
    with pytest.raises(OwnershipError):
        rebuild(old)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.catalog.records.transact([LAKE], [], lambda found: Writes(None, {LAKE: {**found[LAKE], "format": 99}}))
        with pytest.raises(UnsupportedFeature, match="format 99"):
            lake.upgrade()
    with pytest.raises(UnsupportedFeature, match="format 99"):
        Lake.open(tmp_path / "lake")
