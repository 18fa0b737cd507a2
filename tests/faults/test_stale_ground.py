"""The ground a commit stands on is not what it was: replaced, cleaned, renamed, or taken by a twin of ourselves."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import handle, ids_of, is_version, place_at, rows
from tests.support.tables import open_stock
from tiltyard.errors import AlreadyExists, HistoryUnavailable, OutcomeUnknown, RetryableConflict, StorageError, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.storage.local import LocalStore
from tiltyard.testing import WrapperStore
from tiltyard.testing.stores import Request, T


def test_a_replaced_table_is_known_by_its_transaction_however_much_config_stands_behind_it(tmp_path: Path) -> None:
    root = tmp_path / "table"

    def make(*ids: int) -> None:
        lance.write_dataset(rows(*ids), str(root))
        open_stock(str(root)).update_config({"note": "x" * 5000})

    make(1, 2, 3)
    stale = ty.Table.open(root)
    shutil.rmtree(root)
    make(7, 8)
    with pytest.raises(HistoryUnavailable, match="another one now"):
        stale.append(rows(9))
    assert ids_of(ty.Table.open(root)) == [7, 8]


def test_rows_whose_columns_were_all_dropped_are_not_committed(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    stale = ty.Table.create(tmp_path / "table", pa.table({"a": [1], "b": [2]}, schema=schema))
    open_stock(str(tmp_path / "table")).drop_columns(["b"])
    with pytest.raises(RetryableConflict, match="all columns"):
        stale.append(pa.table({"b": pa.array([5], pa.int64())}), commit=ty.CommitOptions(reexecutions=0))
    table = ty.Table.open(tmp_path / "table")
    assert table.check().problems == ()
    assert table.check().orphans == ()


class Meeting(WrapperStore):
    """Holds the create of a version until the other creator has come to its own."""

    def __init__(self, inner: LocalStore, barrier: threading.Barrier) -> None:
        super().__init__(inner)
        self._barrier = barrier

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if is_version(method, path):
            self._barrier.wait(60)
            result = request(self.inner)
            self._barrier.wait(60)  # both are there before either looks again
            return result
        return request(self.inner)


def test_creators_with_different_names_leave_no_table_that_nobody_opens(tmp_path: Path) -> None:
    root = tmp_path / "table"
    barrier = threading.Barrier(2)

    def create(scheme: Scheme) -> ty.Table | TiltyardError:
        place = place_at(root, Meeting(LocalStore(root, durability="os"), barrier))
        try:
            return ty.Table._create(place, rows(1), options=ty.TableOptions(manifest_naming="v1" if scheme is Scheme.V1 else "v2"))
        except TiltyardError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(create, [Scheme.V1, Scheme.V2]))
    refused = [one for one in ended if isinstance(one, TiltyardError)]
    assert refused
    assert all(isinstance(one, AlreadyExists) for one in refused)
    # Whoever was told that there is a table made it; if both gave way, the place is free again.
    if len(refused) == 2:
        ty.Table.create(root, rows(1))
    assert ids_of(ty.Table.open(root)) == [1]


def test_a_transaction_committed_twice_is_one_version_and_both_handles_go_on(tmp_path: Path) -> None:
    first = ty.Table.create(tmp_path / "table", rows(0), durability="os")
    second = ty.Table.open(tmp_path / "table", durability="os")
    twin = ty.Transaction(1, "00000000-0000-4000-8000-000000000001", ty.ops.Append())
    assert first.commit(twin).version == second.commit(twin).version == 2
    assert first.append(rows(1)).version == 3
    assert second.append(rows(2)).version == 4
    assert ids_of(ty.Table.open(tmp_path / "table")) == [0, 1, 2]


@pytest.mark.parametrize("tagged", [False, True])
def test_a_number_that_cleanup_set_free_is_not_taken(tmp_path: Path, tagged: bool) -> None:
    """Also where the version below it is kept by a tag, so that its absence cannot tell."""
    root = tmp_path / "table"
    ty.Table.create(root, rows(0), durability="os")
    if tagged:
        open_stock(str(root)).tags.create("kept", 1)

    class Stalled(WrapperStore):
        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            if is_version(method, path):
                for number in range(3):
                    dataset = lance.write_dataset(rows(20 + number), str(root), mode="append")
                dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
            return request(self.inner)

    table = handle(root, Stalled(LocalStore(root, durability="os")))
    with pytest.raises(HistoryUnavailable, match="cleaned up"):
        table.append(rows(10))
    again = ty.Table.open(root)
    assert ids_of(again) == [0, 20, 21, 22]
    assert again.check().problems == ()
    assert again.check().orphans == ()


@pytest.mark.parametrize("heals", [True, False])
def test_a_version_that_may_not_survive_a_power_loss_is_not_acknowledged(tmp_path: Path, heals: bool) -> None:
    root = tmp_path / "table"
    ty.Table.create(root, rows(0))

    class Unflushed(WrapperStore):
        synced = 0

        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            result = request(self.inner)
            if is_version(method, path):
                raise StorageError("the directory was not flushed", name=path, maybe_applied=True, unsynced=True)
            return result

        def sync(self, paths: Any) -> None:
            wanted = list(paths)
            if any(path.endswith(".manifest") for path in wanted):
                self.synced += 1
                if not heals:
                    raise StorageError("still not flushed", maybe_applied=True)
            super().sync(wanted)

    store = Unflushed(LocalStore(root))
    table = handle(root, store)
    if heals:
        assert table.append(rows(1)).version == 2
        assert store.synced == 1
    else:
        with pytest.raises(OutcomeUnknown):
            table.append(rows(1))
    assert ids_of(ty.Table.open(root)) == [0, 1]
