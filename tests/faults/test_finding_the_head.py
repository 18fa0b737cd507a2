"""A commit that finds the head without listing: when it may, and all the states in which a quick look would be wrong."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import lance
import pytest

import tiltyard as ty
from tests.support.commits import handle, ids_of, rows
from tests.support.tables import manifest_path, open_stock
from tiltyard.errors import HistoryUnavailable
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import LocalStore
from tiltyard.testing import CountingStore, ManualClock, SeededRandomness

HINT = "latest_version_hint.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ty.Table.create(tmp_path / "table", rows(1))
    return tmp_path / "table"


def _hint(root: Path) -> int | None:
    path = root / "_versions" / HINT
    return json.loads(path.read_bytes())["version"] if path.exists() else None


def _listed(store: CountingStore) -> bool:
    return ("names", "_versions/") in store.log


def test_a_handle_at_the_head_does_not_list(root: Path) -> None:
    store = CountingStore(LocalStore(root))
    table = handle(root, store)
    store.reset()
    for number in range(2, 5):
        table.append(rows(number))
    assert not _listed(store)
    assert _hint(root) == 4
    assert ids_of(ty.Table.open(root)) == [1, 2, 3, 4]


@pytest.mark.parametrize("writer", ["ours", "pylance"])
def test_a_version_lost_between_ours_and_the_head_is_noticed(root: Path, writer: str) -> None:
    table = handle(root)
    table.append(rows(2))
    for number in (3, 4, 5):
        if writer == "ours":
            ty.Table.open(root).append(rows(number))
        else:
            lance.write_dataset(rows(number), str(root), mode="append")
    manifest_path(str(root), 3).unlink()
    manifest_path(str(root), 4).unlink()
    with pytest.raises(HistoryUnavailable) as caught:
        table.append(rows(9))
    assert (caught.value.missing, caught.value.head) == ((3,), 5)
    assert ids_of(ty.Table.open(root)) == [1, 2, 3, 4, 5]
    assert ty.Table.open(root).check().orphans == ()


@pytest.mark.parametrize("hint", [None, b"", b'{"version":1}', b'{"version":99}', b"garbage"])
def test_a_hint_that_says_something_else_costs_a_listing_and_nothing_more(root: Path, hint: bytes | None) -> None:
    store = CountingStore(LocalStore(root))
    table = handle(root, store)
    table.append(rows(2))
    path = root / "_versions" / HINT
    if hint is None:
        path.unlink()
    else:
        path.write_bytes(hint)
    store.reset()
    table.append(rows(3))
    assert _listed(store)
    assert ids_of(ty.Table.open(root)) == [1, 2, 3]
    assert _hint(root) == 3


@pytest.mark.parametrize("ref", ["tag", "branch"])
def test_where_something_may_keep_a_version_the_versions_are_listed(root: Path, ref: str) -> None:
    stock = open_stock(str(root))
    if ref == "tag":
        stock.tags.create("kept", 1)
    else:
        stock.create_branch("kept")
    store = CountingStore(LocalStore(root))
    table = handle(root, store)
    store.reset()
    table.append(rows(2))
    assert _listed(store)


def test_a_version_is_never_stamped_before_the_one_below_it(root: Path) -> None:
    """A clock that is an hour behind would otherwise make versions that a cleanup takes away before older ones."""
    clock = ManualClock(ty.Table.open(root).history()[-1].timestamp - timedelta(hours=1))
    behind = handle(root, runtime=Runtime(clock, SeededRandomness(1)))
    behind.append(rows(2))
    behind.append(rows(3))
    stamps: list[datetime] = [entry.timestamp for entry in sorted(ty.Table.open(root).history(), key=lambda one: one.version)]
    assert stamps == sorted(set(stamps))
    stock = [one["timestamp"] for one in open_stock(str(root)).versions()]
    assert stock == sorted(stock)


def test_a_half_done_cleanup_is_no_free_number(root: Path) -> None:
    """One that deletes newer versions before older ones and dies."""
    table = handle(root)
    for number in (2, 3, 4):
        ty.Table.open(root).append(rows(number))
    manifest_path(str(root), 2).unlink()
    with pytest.raises(HistoryUnavailable):
        table.append(rows(9))
    assert ids_of(ty.Table.open(root)) == [1, 2, 3, 4]


def test_a_table_made_again_under_the_handle_with_as_many_versions(root: Path) -> None:
    table = handle(root)
    table.append(rows(2))
    shutil.rmtree(root)
    ty.Table.create(root, rows(7)).append(rows(8))
    with pytest.raises(HistoryUnavailable):
        table.append(rows(9))
    assert ids_of(ty.Table.open(root)) == [7, 8]
