"""What a table says of a write-ahead log: set up as pylance does it, and only ever going forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import AlreadyExists, IncompatibleConflict, InvalidInput, NotFound
from tiltyard.storage.local import LocalStore

SHARD, OTHER = (str(UUID(int=number)) for number in (1, 2))


def _make(root: Path) -> ty.Table:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "s": ["a", "b"]})
    table = ty.Table.create(root, rows, primary_key=["id"], durability="os")
    table.create_index("id", "BTREE")
    return table


def _racing(root: Path, action: Any) -> ty.Table:
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, action))


def _sound(root: Path) -> ty.Table:
    table = ty.Table.open(root)
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    stock = open_stock(str(root))
    stock.validate()
    assert stock.to_table().num_rows == 2
    return table


def _initialized(table: ty.Table, options: dict[str, Any], message: str | None = None) -> ty.CommitResult:
    """The log, by options as pylance takes them."""
    split = ("bucket_column", "num_buckets", "identity_column", "unsharded")
    sharding = ty.WalSharding(**{name: options[name] for name in split if name in options})
    writer = {name: value for name, value in options.items() if name not in (*split, "maintained_indexes")}
    indexes = options.get("maintained_indexes")
    return table.indices.mem_wal.initialize(maintained_indexes=indexes, sharding=sharding, writer=writer, message=message)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unsharded": True},
        {"bucket_column": "id", "num_buckets": 4, "maintained_indexes": ["id_idx"]},
        {"identity_column": "s", "maintained_indexes": []},
    ],
)
def test_it_is_set_up_as_pylance_does(tmp_path: Path, options: dict[str, Any]) -> None:
    ours, theirs = _make(tmp_path / "ours"), _make(tmp_path / "theirs")
    result = _initialized(ours, options, "a log")
    open_stock(str(tmp_path / "theirs")).initialize_mem_wal(**options)
    theirs.refresh()
    assert (result.operation, ours.history()[0].message) == ("CreateIndex", "a log")
    mine, wanted = ours.indices.segments[-1], theirs.indices.segments[-1]
    for part in ("name", "fields", "dataset_version", "fragment_bitmap", "index_version", "files", "base_id"):
        assert getattr(mine, part) == getattr(wanted, part), part
    described = open_stock(str(tmp_path / "ours")).mem_wal_index_details()
    assert described == open_stock(str(tmp_path / "theirs")).mem_wal_index_details()
    assert (ours.indices.mem_wal.generations, _make(tmp_path / "none").indices.mem_wal.generations) == ({}, None)
    _sound(tmp_path / "ours")


def test_settings_of_writers_are_read_by_pylance(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root).indices.mem_wal.initialize(
        sharding=ty.WalSharding(unsharded=True), writer={"max_memtable_rows": 1234, "durable_write": False}
    )
    described = open_stock(str(root)).mem_wal_index_details()
    assert described is not None
    assert described["writer_config_defaults"] == {"max_memtable_rows": "1234", "durable_write": "false"}
    _sound(root)


def test_one_log_only(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.indices.mem_wal.initialize()
    with pytest.raises(AlreadyExists):
        table.indices.mem_wal.initialize()


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_column": "id"},
        {"bucket_column": "id", "num_buckets": 0},
        {"bucket_column": "nope", "num_buckets": 2},
        {"unsharded": True, "identity_column": "s"},
        {"speed": 9},
    ],
)
def test_setups_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        _initialized(table, options)
    with pytest.raises(NotFound):
        table.indices.mem_wal.initialize(maintained_indexes=["nope"])
    assert table.layout.latest_version() == 2


def test_generations_only_go_forward(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    with pytest.raises(IncompatibleConflict):
        table.indices.mem_wal.mark_merged(SHARD, 1)
    table.indices.mem_wal.initialize()
    result = table.indices.mem_wal.mark_merged(SHARD, 3)
    assert result.operation == "UpdateMemWalState"
    table.indices.mem_wal.mark_merged(UUID(OTHER), 1)
    for stale in (3, 2):
        with pytest.raises(IncompatibleConflict):
            table.indices.mem_wal.mark_merged(SHARD, stale)
    table.indices.mem_wal.mark_merged(SHARD, 4)
    assert _sound(root).indices.mem_wal.generations == {SHARD: 4, OTHER: 1}


@pytest.mark.parametrize(("shard", "generation"), [("nope", 1), (SHARD, -1), (SHARD, True), (SHARD, "1")])
def test_marks_that_cannot_be(tmp_path: Path, shard: str, generation: Any) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        table.indices.mem_wal.mark_merged(shard, generation)


@pytest.mark.parametrize("theirs", [1, 2, 3])
def test_two_marks_of_one_shard_at_a_time(tmp_path: Path, theirs: int) -> None:
    root = tmp_path / "t"
    _make(root).indices.mem_wal.initialize()
    table = _racing(root, lambda: ty.Table.open(root).indices.mem_wal.mark_merged(SHARD, theirs))
    if theirs < 2:
        table.indices.mem_wal.mark_merged(SHARD, 2)
    else:
        with pytest.raises(IncompatibleConflict):
            table.indices.mem_wal.mark_merged(SHARD, 2)
    assert _sound(root).indices.mem_wal.generations == {SHARD: max(theirs, 2)}


def test_marks_of_two_shards_go_together(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root).indices.mem_wal.initialize()
    table = _racing(root, lambda: ty.Table.open(root).indices.mem_wal.mark_merged(OTHER, 7))
    table.indices.mem_wal.mark_merged(SHARD, 2, commit=ty.CommitOptions(reexecutions=0))
    assert _sound(root).indices.mem_wal.generations == {SHARD: 2, OTHER: 7}


def test_of_two_who_set_it_up_the_second_is_told(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: open_stock(str(root)).initialize_mem_wal(unsharded=True))
    with pytest.raises((AlreadyExists, IncompatibleConflict)):
        table.indices.mem_wal.initialize()
    described = open_stock(str(root)).mem_wal_index_details()
    assert described is not None
    assert described["num_shards"] == 1
    _sound(root)
