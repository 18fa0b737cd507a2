"""What a re-execution stands on: the whole window since the handle's version, files whose rows are the same, keys declared meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.evolving import GONE, LIVE, column, interrupted, make, more, seen
from tiltyard.errors import IncompatibleConflict, InvalidInput, KeyConflict, RetryableConflict, StorageError
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import LocalStore
from tiltyard.testing import ManualClock, SeededRandomness

KEY = {"lance-schema:unenforced-primary-key": "true"}


def _opened(root: Path) -> ty.Table:
    return ty.Table.open(root, durability="os")


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"y": pc.multiply(batch["id"], 2)})


# ---- the window ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["overwrite", "restore"])
def test_a_table_that_is_replaced_while_a_verb_waits_is_not_touched(tmp_path: Path, end: str) -> None:
    """The replacement comes after the conflict was judged, and before the re-execution reads."""
    root = tmp_path / "t"
    make(root)

    def replace() -> None:
        other = _opened(root)
        other.overwrite(more(1, 3)) if end == "overwrite" else other.restore(1)

    clock = _InterruptingClock(replace)
    store = InterruptedStore(LocalStore(root, durability="os"), is_version, lambda: _opened(root).update({"x": "0"}, where="id = 3"))
    stale = handle(root, store, runtime=Runtime(clock, SeededRandomness(1)))
    with pytest.raises(IncompatibleConflict) as caught:
        stale.delete("id = 3")
    assert clock.fired
    assert [winner.operation for winner in caught.value.winners] == [end.capitalize()]
    assert 3 in column(root, "x")


class _InterruptingClock(ManualClock):
    """Does something in the second sleep: the first is that of a lost race, the second the wait before a re-execution."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(datetime.now(UTC))
        self._action = action
        self.fired = False

    def sleep(self, seconds: float) -> None:
        if len(self.slept) == 1:
            self.fired = True
            self._action()
        super().sleep(seconds)


def test_a_table_made_anew_while_a_verb_waits_is_not_touched(tmp_path: Path) -> None:
    """It has as many versions as the one before, and other ones."""
    root = tmp_path / "t"
    make(root)

    def replace() -> None:
        shutil.rmtree(root)
        table = make(root)
        table.append(more(20))

    clock = _InterruptingClock(replace)
    store = InterruptedStore(LocalStore(root, durability="os"), is_version, lambda: _opened(root).update({"x": "0"}, where="id = 3"))
    stale = handle(root, store, runtime=Runtime(clock, SeededRandomness(1)))
    with pytest.raises(RetryableConflict) as caught:
        stale.delete("id = 3")
    assert clock.fired
    assert caught.value.executions == 1
    assert _opened(root).version == 3
    assert 3 in column(root, "x")


# ---- what is used again ----------------------------------------------------------------------------------------------------


def _stopped(table: ty.Table, mark: Path, columns: Any, **options: Any) -> None:
    """Adds columns until the last fragment is to be done."""

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.add_columns(columns, **options, backfill=ty.Backfill(checkpoint=mark, progress=stop))


@pytest.mark.parametrize("what", ["sql", "function", "lookup"])
def test_a_checkpoint_does_not_serve_rows_that_came_back(tmp_path: Path, what: str) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    columns: Any = {
        "sql": {"y": "id * 2"},
        "function": _doubled,
        "lookup": pa.table({"id": pa.array(range(12), pa.int64()), "y": pa.array(range(0, 24, 2), pa.int64())}),
    }[what]
    options = {"read_columns": ["id"]} if what == "function" else {"on": "id"} if what == "lookup" else {}
    _stopped(table, mark, columns, **options)
    table.restore(1)
    table.add_columns(columns, **options, backfill=ty.Backfill(checkpoint=mark))
    assert column(root, "y") == {number: 2 * number for number in range(12)}, f"rows {GONE} are back"
    assert not mark.exists()


def test_a_checkpoint_serves_after_more_rows_went(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    asked: list[int] = []

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(batch["id"].to_pylist())
        return _doubled(batch)

    _stopped(table, mark, work, read_columns=["id"])
    asked.clear()
    table.delete("id in (1, 8)")
    table.add_columns(work, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    assert asked == [10, 11]
    assert column(root, "y") == {number: 2 * number for number in LIVE if number not in (1, 8)}


def test_a_checkpoint_serves_no_more_where_its_deletions_cannot_be_read(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    _stopped(table, mark, _doubled, read_columns=["id"])
    lines = [json.loads(line) for line in mark.read_text().splitlines()]
    for entry in lines[1:]:
        assert entry["deletions"]["rows"] == 1
        entry["deletions"]["id"] += 1
    mark.write_text("\n".join(json.dumps(entry) for entry in lines))
    table.delete("id = 1")
    table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    assert column(root, "y") == {number: 2 * number for number in LIVE if number != 1}


def test_a_checkpoint_is_for_one_table_of_values(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    given = [pa.table({"id": pa.array(range(12), pa.int64()), "y": [factor * n for n in range(12)]}) for factor in (2, 3)]
    _stopped(table, mark, given[0], on="id")
    with pytest.raises(InvalidInput, match="other columns"):
        table.add_columns(given[1], on="id", backfill=ty.Backfill(checkpoint=mark))
    table.add_columns(given[0].slice(0), on="id", backfill=ty.Backfill(checkpoint=mark))
    assert column(root, "y") == {number: 2 * number for number in LIVE}


def test_a_checkpoint_is_for_columns_of_one_type(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    _stopped(table, mark, _doubled, read_columns=["id"])
    with pytest.raises(InvalidInput, match="other types"):
        table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(schema=pa.schema([("y", pa.int16())]), checkpoint=mark))
    table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    assert column(root, "y") == {number: 2 * number for number in LIVE}


def test_rows_that_a_foreign_writer_revives_get_their_own_values(tmp_path: Path) -> None:
    """A Merge of stock pylance names all fragments, here without deletions: retryable, and the fragments have the files they had."""
    root = tmp_path / "t"
    make(root)

    def revive() -> None:
        dataset = lance.dataset(str(root))
        fragments = [one.metadata for one in lance.dataset(str(root), version=1).get_fragments()]
        operation = lance.LanceOperation.Merge(fragments, dataset.lance_schema)
        lance.LanceDataset.commit(str(root), operation, read_version=dataset.version)

    result = interrupted(root, revive).add_columns({"y": "id * 2"})
    assert result.executions == 2
    assert column(root, "y") == {number: 2 * number for number in range(12)}


# ---- keys ------------------------------------------------------------------------------------------------------------------


def _keyless(root: Path) -> ty.Table:
    return ty.Table.create(root, pa.table({"id": pa.array([1, 2], pa.int64()), "n": [1, 2]}, _SCHEMA), durability="os")


_SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("n", pa.int64())])


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "n": list(ids)}, _SCHEMA)


def _pieces(table: ty.Table, rows: pa.Table) -> object:
    return table.distributed.append([table.distributed.write_task().write(rows)])


APPENDS: dict[str, Callable[[ty.Table, pa.Table], object]] = {
    "append": lambda table, rows: table.append(rows),
    "pieces": _pieces,
    "overwrite": lambda table, rows: table.overwrite(rows),
    "merge": lambda table, rows: table.merge(rows, on=["n"]).when_not_matched_insert_all().execute(),
}


@pytest.mark.parametrize("verb", APPENDS)
def test_a_key_declared_meanwhile_holds(tmp_path: Path, verb: str) -> None:
    root = tmp_path / "t"
    _keyless(root)
    stale = _opened(root)
    _opened(root).update_field_metadata("id", KEY)
    twice = _rows(3, 3) if verb == "overwrite" else pa.table({"id": [1], "n": [7]}, _SCHEMA)
    with pytest.raises((KeyConflict, InvalidInput)):
        APPENDS[verb](stale, twice)
    assert _opened(root).check().ok
    assert _opened(root).count_rows() == 2
    if verb != "merge":  # by a second key nothing is inserted
        APPENDS[verb](_stale(root), _rows(5, 6))
        assert (_opened(root).primary_key, _opened(root).count_rows()) == (("id",), 2 if verb == "overwrite" else 4)
    assert _opened(root).check().ok


def _stale(root: Path) -> ty.Table:
    return ty.Table.open(root, version=1, durability="os")


def test_rows_that_came_meanwhile_are_compared_by_a_key_that_is_declared(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _keyless(root)
    stale = _opened(root)
    _opened(root).append(_rows(3))
    assert stale.update_field_metadata("id", KEY).executions == 2
    assert _opened(root).primary_key == ("id",)


def test_a_key_is_not_declared_over_duplicates(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _keyless(root)
    stale = _opened(root)
    _opened(root).append(_rows(1))
    for table in (stale, _opened(root)):
        with pytest.raises(KeyConflict, match="duplicate key"):
            table.update_field_metadata("id", KEY)
    assert _opened(root).primary_key == ()


# ---- our own files ---------------------------------------------------------------------------------------------------------


def _cleanup_ahead(root: Path) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(days=30))
    handle(root, runtime=Runtime(clock, SeededRandomness(1))).cleanup()


VERBS: dict[str, Callable[[ty.Table], object]] = {
    "append": lambda table: table.append(more(20)),
    "delete": lambda table: table.delete("id = 3"),
    "update": lambda table: table.update({"x": "0"}, where="id = 3"),
    "add_columns": lambda table: table.add_columns({"y": "id * 2"}),
    "compact": lambda table: table.compact(),
    "index": lambda table: table.create_index("x", "BTREE"),
    "pieces": lambda table: table.distributed.append([table.distributed.write_task().write(more(20))]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_cleanup_whose_clock_is_ahead_leaves_no_version_that_cannot_be_read(tmp_path: Path, verb: str) -> None:
    root = tmp_path / "t"
    make(root)
    store = InterruptedStore(LocalStore(root, durability="os"), _announces, lambda: _cleanup_ahead(root), times=9)
    with pytest.raises(StorageError, match="re-execute the operation") as caught:
        VERBS[verb](handle(root, store))
    assert not caught.value.maybe_applied
    assert sorted(column(root, "x")) == LIVE
    VERBS[verb](_opened(root))
    seen(root)


def _announces(method: str, path: str) -> bool:
    """The last write before a version is created: all files of the verb are there by then."""
    return method == "put" and path.startswith("_transactions/")
