"""Cleanup where writers rely on looks for a while: no number is set free that one of them may still take for free."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import place_at, rows
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import LocalStore
from tiltyard.testing import CountingStore, ManualClock, SeededRandomness
from tiltyard.transaction.looks import LONGER

GOOD_FOR = 5.0


class Remote(CountingStore):
    look_seconds = GOOD_FOR


@pytest.fixture
def root(tmp_path: Path) -> Path:
    table = ty.Table.create(tmp_path / "t", rows(0), durability="os")
    for number in range(1, 6):
        table.append(rows(number))
    return tmp_path / "t"


def handle(root: Path, clock: ManualClock, *, remote: bool = True) -> ty.Table:
    local = LocalStore(root, durability="os")
    return ty.Table._open(place_at(root, Remote(local) if remote else local, runtime=Runtime(clock, SeededRandomness(1))))


def now(**later: float) -> ManualClock:
    return ManualClock(datetime.now(UTC) + timedelta(**later))


def test_it_waits_for_those_who_did_not_see_the_young_ones(root: Path) -> None:
    clock = now()
    table = handle(root, clock)
    assert table.cleanup(keep_versions=1).versions == (1, 2, 3, 4, 5)
    assert clock.slept == [pytest.approx(LONGER * GOOD_FOR)]
    store = table._access.store
    assert isinstance(store, Remote)
    deleted = [number for number, (method, path) in enumerate(store.log) if method == "delete" and path.startswith("_versions/")]
    recorded = [number for number, (method, path) in enumerate(store.log) if method == "put" and path.startswith("_tiltyard/floor/")]
    assert recorded[0] < deleted[0], "the record is there before the wait begins, so that who looks meanwhile sees it"


def test_it_does_not_wait_for_what_everybody_has_seen(root: Path) -> None:
    clock = now(hours=2)
    assert handle(root, clock).cleanup(keep_versions=1).versions == (1, 2, 3, 4, 5)
    assert clock.slept == []


def test_nor_where_nothing_goes_or_looks_cost_nothing(root: Path) -> None:
    clock = now()
    assert handle(root, clock).cleanup(keep_versions=9).versions == ()
    assert handle(root, clock, remote=False).cleanup(keep_versions=1).versions == (1, 2, 3, 4, 5)
    assert clock.slept == []


def test_a_commit_that_cleans_up_by_itself_leaves_the_young_ones_to_the_next(root: Path) -> None:
    clock = now()
    table = handle(root, clock)
    table.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.retain_versions": "1"})
    table.append(rows(7))
    assert table.layout.versions() == [1, 2, 3, 4, 5, 6, 7, 8]
    clock.advance(7200.0)
    table.append(rows(8))
    assert table.layout.versions() == [9]
    assert clock.slept == []
