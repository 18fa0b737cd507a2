"""Merging the content of a write-ahead log: rows and progress are one commit, and no generation is merged twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import IncompatibleConflict, InvalidInput
from tiltyard.storage.local import LocalStore

SHARD, OTHER = (str(UUID(int=number)) for number in (1, 2))


def _rows(**values: int) -> pa.Table:
    return pa.table({"k": list(values), "v": list(values.values())}, schema=pa.schema([("k", pa.string()), ("v", pa.int64())]))


def _make(root: Path, **options: Any) -> ty.Table:
    table = ty.Table.create(root, _rows(a=1, b=2), primary_key=["k"], durability="os", **options)
    table.indices.mem_wal.initialize(sharding=ty.WalSharding(unsharded=True))
    return table


def _merge(table: ty.Table, rows: pa.Table, generations: dict[Any, int], **options: Any) -> ty.CommitResult:
    wanted = table.merge(rows).when_matched_update_all().when_not_matched_insert_all()
    return wanted.mark_generations_merged(generations).execute(**options)


def _racing(root: Path, action: Callable[[], Any]) -> ty.Table:
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, action))


def _sees(root: Path, generations: dict[str, int], **values: int) -> None:
    table = ty.Table.open(root)
    assert table.indices.mem_wal.generations == generations
    assert table.check().problems == ()
    stock = open_stock(str(root))
    stock.validate()
    assert {row["k"]: row["v"] for row in stock.to_table().to_pylist()} == values
    assert stock.count_rows() == len(values)


@pytest.mark.parametrize("stable", [False, True])
def test_rows_and_progress_are_one_commit(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, stable_row_ids=stable)
    result = _merge(table, _rows(b=20, c=30), {SHARD: 1, UUID(OTHER): 4})
    assert (result.operation, result.version, result.rows) == ("Update", 3, {"inserted": 1, "updated": 1, "deleted": 0})
    _sees(root, {SHARD: 1, OTHER: 4}, a=1, b=20, c=30)
    _merge(table, _rows(c=31), {SHARD: 2})
    _sees(root, {SHARD: 2, OTHER: 4}, a=1, b=20, c=31)


def _stock_merge(root: Path, rows: pa.Table, generation: int) -> None:
    builder = open_stock(str(root)).merge_insert(["k"]).when_matched_update_all().when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, generation)]).execute(rows)


def test_pylance_goes_on_where_we_were_and_the_other_way_round(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    _merge(table, _rows(c=3), {SHARD: 5})
    with pytest.raises(OSError, match="generation"):
        _stock_merge(root, _rows(c=4), 5)
    _stock_merge(root, _rows(c=6), 6)
    with pytest.raises(IncompatibleConflict):
        _merge(table, _rows(c=7), {SHARD: 6})
    _merge(table.refresh(), _rows(c=7), {SHARD: 7})
    _sees(root, {SHARD: 7}, a=1, b=2, c=7)


def test_pylance_merges_the_same_generation_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: _stock_merge(root, _rows(c=30), 1))
    with pytest.raises(IncompatibleConflict):
        _merge(table, _rows(c=3), {SHARD: 1})
    _sees(root, {SHARD: 1}, a=1, b=2, c=30)


@pytest.mark.parametrize("generation", [2, 3])
def test_a_generation_that_is_merged_already_is_refused_before_anything_is_written(tmp_path: Path, generation: int) -> None:
    root = tmp_path / "t"
    table = _make(root)
    _merge(table, _rows(c=3), {SHARD: 3})
    with pytest.raises(IncompatibleConflict, match=f"at generation 3, the operation brings {generation}") as caught:
        _merge(table, _rows(a=100), {SHARD: generation})
    assert caught.value.operation == "Update"
    assert table.layout.latest_version() == 3
    _sees(root, {SHARD: 3}, a=1, b=2, c=3)


def test_without_a_log_there_is_nothing_to_mark(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", _rows(a=1), primary_key=["k"])
    with pytest.raises(IncompatibleConflict, match="no write-ahead log"):
        _merge(table, _rows(b=1), {SHARD: 1})


def test_a_source_that_changes_nothing_is_merged_all_the_same(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    wanted = table.merge(_rows(x=1)).when_matched_update_all().mark_generations_merged({SHARD: 1})
    result = wanted.execute()
    assert (result.operation, result.version, set(result.rows.values())) == ("UpdateMemWalState", 3, {0})
    assert bool(result.transaction_id)
    _sees(root, {SHARD: 1}, a=1, b=2)


@pytest.mark.parametrize("wrong", [{"nope": 1}, {SHARD: -1}, {SHARD: True}, {SHARD: "1"}, [SHARD], None])
def test_marks_that_cannot_be(tmp_path: Path, wrong: Any) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        _merge(table, _rows(b=1), wrong)
    assert table.layout.latest_version() == 2


def test_one_shard_stands_once(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    wanted = table.merge(_rows(b=1)).when_matched_update_all().mark_generations_merged({SHARD: 1}).mark_generations_merged({OTHER: 1})
    with pytest.raises(InvalidInput, match="twice"):
        wanted.mark_generations_merged({SHARD: 2}).execute()
    assert wanted.execute().version == 3


# ---- beside others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [1, 2, 3])
def test_two_who_merge_one_shard(tmp_path: Path, theirs: int) -> None:
    """Who comes second with the same generation, or an older one, is told; with a newer one he goes on from what the first merged."""
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: _merge(ty.Table.open(root), _rows(b=theirs * 10, d=4), {SHARD: theirs}))
    if theirs < 2:
        result = _merge(table, _rows(b=200, c=300), {SHARD: 2})
        assert result.executions == 2
        _sees(root, {SHARD: 2}, a=1, b=200, c=300, d=4)
    else:
        with pytest.raises(IncompatibleConflict):
            _merge(table, _rows(b=200, c=300), {SHARD: 2})
        _sees(root, {SHARD: theirs}, a=1, b=theirs * 10, d=4)


def test_two_who_merge_other_shards_and_rows(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.append(_rows(z=26))
    racing = _racing(root, lambda: _merge(ty.Table.open(root), _rows(z=27), {OTHER: 9}))
    _merge(racing, _rows(a=10), {SHARD: 1})
    _sees(root, {SHARD: 1, OTHER: 9}, a=10, b=2, z=27)


def test_a_mark_alone_meets_a_merge(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: ty.Table.open(root).indices.mem_wal.mark_merged(SHARD, 2))
    with pytest.raises(IncompatibleConflict):
        _merge(table, _rows(c=3), {SHARD: 2})
    _sees(root, {SHARD: 2}, a=1, b=2)
    table = _racing(root, lambda: _merge(ty.Table.open(root), _rows(c=3), {SHARD: 3}))
    with pytest.raises(IncompatibleConflict):
        table.indices.mem_wal.mark_merged(SHARD, 3)
    _sees(root, {SHARD: 3}, a=1, b=2, c=3)


def test_many_mergers_merge_each_generation_once(tmp_path: Path) -> None:
    """Four workers over the same twelve generations of two shards: each adds 1 to a counter, so a second merge would show."""
    root = tmp_path / "t"
    _make(root)
    generations = [(shard, number) for number in range(1, 7) for shard in (SHARD, OTHER)]

    def work(_: int) -> list[tuple[str, int]]:
        done = []
        for shard, number in generations:
            key = "x" if shard == SHARD else "y"
            try:
                _merge(
                    ty.Table.open(root, durability="os"),
                    _rows(**{key: number}),
                    {shard: number},
                    commit=ty.CommitOptions(race_retries=100, reexecutions=50),
                )
            except IncompatibleConflict:
                continue
            done.append((shard, number))
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [one for part in pool.map(work, range(4)) for one in part]
    assert len(done) == len(set(done)), "no generation was merged twice"
    assert {(SHARD, 6), (OTHER, 6)} <= set(done)
    merged = [entry for entry in ty.Table.open(root).history() if entry.operation == "Update"]
    assert len(merged) == len(done)
    _sees(root, {SHARD: 6, OTHER: 6}, a=1, b=2, x=6, y=6)
