"""Rows that other processes wrote for tables of a lake: at once, inside a transaction, and as new tables."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.lakes import Site
from tiltyard.distributed import Piece, WriteTask, last_done, once
from tiltyard.errors import AlreadyCommitted, AlreadyExists, InvalidInput, KeyConflict
from tiltyard.lake import Lake
from tiltyard.options import CommitOptions


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def _written(task: WriteTask, *ids: int) -> Piece:
    """As another process would, which knows nothing of the lake."""
    found: WriteTask = pickle.loads(pickle.dumps(task))
    return found.write(rows(*ids))


def _ids(lake: Lake, name: str) -> list[int]:
    return sorted(lake.table(name).to_arrow()["id"].to_pylist())


def _data_files(site: Site) -> int:
    if site.root is None:
        pytest.skip("looks at files on this machine")
    return sum("_versions" not in path.parts and path.suffix == ".lance" and path.is_file() for path in site.root.rglob("data/*"))


def test_pieces_are_decided_in_the_catalog(lake: Lake) -> None:
    table = lake.table("a")
    result = table.distributed.append(
        [_written(table.distributed.write_task(), 5), _written(table.distributed.write_task(), 6)], message="afar"
    )
    assert (result.rows, _ids(lake, "a")) == ({"inserted": 2}, [1, 5, 6])
    task = table.distributed.write_task(overwrite=True, schema=rows(1).schema)
    table.distributed.overwrite(task, [_written(task, 9)])
    assert (_ids(lake, "a"), lake.check().ok) == ([9], True)


def test_pieces_of_two_tables_in_one_transaction(lake: Lake) -> None:
    with lake.transaction() as tx:
        a, b = tx.table("a"), tx.table("b")
        a.distributed.append([_written(a.distributed.write_task(), 2)])
        a.distributed.append([_written(a.distributed.write_task(), 3)])
        task = b.distributed.write_task(overwrite=True, schema=rows(1).schema)
        b.distributed.overwrite(task, [_written(task, 7)])
        assert sorted(a.to_arrow()["id"].to_pylist()) == [1, 2, 3]
        lake.table("a").append(rows(4))
    assert (_ids(lake, "a"), _ids(lake, "b"), lake.check().ok) == ([1, 2, 3, 4], [7], True)


def test_what_is_rolled_back_is_gone(site: Site) -> None:
    lake = site.open()
    lake.create_table("k", rows(1), primary_key=["id"])
    before = _data_files(site)
    tx = lake.transaction()
    table = tx.table("k")
    table.distributed.append([_written(table.distributed.write_task(), 2)])
    piece = _written(table.distributed.write_task(), 2)
    with pytest.raises(KeyConflict):
        table.distributed.append([piece])
    tx.rollback()
    assert _ids(lake, "k") == [1]
    assert lake.table("k").distributed.discard([piece]) == 1
    assert _data_files(site) == before


def test_a_table_is_made_of_pieces(site: Site) -> None:
    lake = site.open()
    task = lake.new_table_task("sales.new", rows(1).schema, primary_key=["id"])
    pieces = [_written(task, 1), _written(task, 2)]
    assert lake.tables() == []
    table = lake.create_table_from_pieces("sales.new", task, pieces, leftovers=True)
    assert (_ids(lake, "sales.new"), table.primary_key) == ([1, 2], ("id",))
    with pytest.raises(AlreadyExists):
        lake.new_table_task("sales.new", rows(1).schema)
    with pytest.raises(AlreadyExists):
        lake.create_table_from_pieces("sales.new", task, pieces)
    with pytest.raises(InvalidInput, match="new_table_task"):
        lake.create_table_from_pieces("other", table.distributed.write_task(), [])
    table.append(rows(3))
    assert (_ids(lake, "sales.new"), lake.check().ok) == ([1, 2, 3], True)


def test_a_new_table_and_what_else_happens_are_one_step(lake: Lake) -> None:
    task = lake.new_table_task("c", rows(1).schema)
    pieces = [_written(task, 8)]
    tx = lake.transaction()
    tx.create_table_from_pieces("c", task, pieces)
    tx.rollback()
    assert "c" not in lake.tables()
    again = lake.new_table_task("c", rows(1).schema)
    with lake.transaction() as tx:
        made = tx.create_table_from_pieces("c", again, [_written(again, 8)])
        made.distributed.append([_written(made.distributed.write_task(), 9)])
        tx.table("a").append(rows(2))
    assert (_ids(lake, "c"), _ids(lake, "a")) == ([8, 9], [1, 2])


def test_where_the_pieces_of_a_new_table_lie(site: Site, tmp_path: Path) -> None:
    lake = site.open()
    task = lake.new_table_task("n", rows(1).schema)
    piece = _written(task, 1)
    assert task.uri.startswith(str(site.root) if site.root is not None else site.uri)
    assert task.discard([piece], all_of_token=True) == 1
    assert lake.create_table_from_pieces("n", task, []).count_rows() == 0


def test_numbered_work_is_committed_once_whoever_read_what(lake: Lake) -> None:
    mark = once("nightly", 4)
    early, late = lake.transaction(), lake.transaction()  # both see a lake without it
    early.table("a").append(rows(2), commit=CommitOptions(properties=mark))
    late.table("a").distributed.append([_written(late.table("a").distributed.write_task(), 2)], commit=CommitOptions(properties=mark))
    early.commit()
    with pytest.raises(AlreadyCommitted, match="Number 4 of 'nightly'"):
        late.commit()
    with pytest.raises(AlreadyCommitted):
        lake.table("a").append(rows(2), commit=CommitOptions(properties=mark))
    lake.table("a").append(rows(3), commit=CommitOptions(properties=once("nightly", 5)))
    assert (_ids(lake, "a"), last_done(lake.table("a"), "nightly"), lake.check().ok) == ([1, 2, 3], 5, True)
