"""Whole columns replaced, and all changes of columns beside other writers and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import handle
from tests.support.evolving import FORMATS, GONE, LIVE, STABLE, column, interrupted, make, more, seen
from tests.support.tables import open_stock
from tiltyard.errors import IncompatibleConflict, InvalidInput, OutcomeUnknown, RetryableConflict, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"y": pa.array([2 * number for number in batch["id"].to_pylist()], pa.int64())})


def _append(root: Path, *ids: int) -> None:
    lance.write_dataset(more(*ids), str(root), mode="append")


@STABLE
@FORMATS
def test_replace_data(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    assert table.distributed.replace_data({0: pa.table({"x": [5, 6, 7, 8]}), 2: {"x": [1, 2]}}).operation == "DataReplacement"
    expected = {number: 10 * number for number in LIVE} | {1: 5, 2: 6, 3: 7, 4: 8, 10: 1, 11: 2}
    assert column(root, "x") == expected
    told: list[tuple[int, int]] = []

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        struct = pa.array([{"a": -number, "b": "new"} for number in batch["id"].to_pylist()], table.schema.field("s").type)
        return pa.record_batch({"s": struct, "x": pa.array(batch["id"].to_pylist(), pa.int64())})

    table.distributed.replace_data(
        work,
        ["x", "s"],
        fragments=[1, 2],
        backfill=ty.Backfill(read_columns=["id"], progress=lambda done, total: told.append((done, total))),
    )
    assert told == [(1, 2), (2, 2)]
    assert column(root, "x") == {number: expected[number] if number < 5 else number for number in LIVE}
    assert column(root, "s")[9] == {"a": -9, "b": "new"}
    assert column(root, "s")[3] == {"a": 3, "b": "b3"}


@pytest.mark.parametrize(
    ("values", "columns", "match"),
    [
        ({}, None, "tables by fragment"),
        (7, None, "tables by fragment"),
        ({"a": {"x": [1]}}, None, "by its id"),
        ({9: {"x": [1]}}, None, "no fragment 9"),
        ({0: {"x": [1]}}, None, "has 4 rows"),
        ({0: {"nope": [1] * 4}}, None, "no column"),
        ({0: {"x": ["a"] * 4}}, None, "does not fit"),
        ({0: {"x": [2**40] * 4}}, None, "does not fit"),
        ({0: {"x": [1] * 4}, 2: {"id": [1, 2]}}, None, "same columns"),
        (_doubled, None, "Name the columns"),
        (_doubled, "x", "Name the columns"),
        (_doubled, ["id"], "columns are"),
    ],
)
def test_replacements_that_cannot_be(tmp_path: Path, values: Any, columns: Any, match: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.distributed.replace_data(values, columns)
    assert table.layout.latest_version() == 2
    seen(tmp_path / "t")


def test_replacements_keep_nulls_out(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.alter_columns({"path": "x", "nullable": False})
    with pytest.raises(InvalidInput, match="null"):
        table.distributed.replace_data({2: {"x": [1, None]}})
    seen(tmp_path / "t")


@STABLE
def test_new_columns_follow_rows_that_come_and_go_meanwhile(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    make(root, stable=stable)
    asked: list[int] = []

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(batch["id"].to_pylist())
        return _doubled(batch)

    def others() -> None:
        _append(root, 20)
        open_stock(str(root)).delete("id = 3")
        open_stock(str(root)).update({"x": "1"}, "id = 4")

    interrupted(root, others).add_columns(work, read_columns=["id"])
    assert column(root, "y") == {number: 2 * number for number in [*LIVE, 20] if number != 3}
    assert column(root, "x")[4] == 1
    assert sorted(asked) == sorted([*LIVE, 20, 4]), "only new fragments are asked for"


def test_columns_changed_meanwhile_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    table = interrupted(root, lambda: ty.Table.open(root).update({"x": "x + 1"}, "id in (1, 2)", mode="columns"))
    table.add_columns({"y": "x"})
    assert column(root, "y") == column(root, "x")
    assert column(root, "y")[1] == 11


def test_new_columns_beside_a_compaction_leave_nothing_behind(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    table = interrupted(root, lambda: open_stock(str(root)).optimize.compact_files())
    table.add_columns({"y": "id"})
    assert len(table.layout.fragments) == 1
    assert column(root, "y") == {number: number for number in LIVE}


def test_two_who_add_columns(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    interrupted(root, lambda: open_stock(str(root)).add_columns({"z": "id * 3"})).add_columns({"y": "id"})
    assert seen(root).schema.names == ["id", "x", "s", "z", "y"]
    assert column(root, "z") == {number: 3 * number for number in LIVE}
    with pytest.raises(InvalidInput, match="already"):
        interrupted(root, lambda: open_stock(str(root)).add_columns({"w": "id"})).add_columns({"w": "id"})
    seen(root)


def test_columns_dropped_meanwhile_end_the_work(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    for verb in ({"y": "id"}, {"y": "x"}):
        with pytest.raises(IncompatibleConflict):
            interrupted(root, lambda: open_stock(str(root)).drop_columns(["s" if verb["y"] == "id" else "x"])).add_columns(verb)  # noqa: B023
        seen(root)


def test_without_retries_the_conflict_is_told(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    with pytest.raises(RetryableConflict):
        interrupted(root, lambda: _append(root, 20)).add_columns({"y": "id"}, commit=ty.CommitOptions(reexecutions=0))
    seen(root)
    with pytest.raises(RetryableConflict):
        interrupted(root, lambda: _append(root, 21)).alter_columns(
            {"path": "x", "data_type": pa.int64()}, commit=ty.CommitOptions(reexecutions=0)
        )
    seen(root)


def test_a_drop_beside_appends(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    result = interrupted(root, lambda: _append(root, 20)).drop_columns(["x"])
    assert [one.operation for one in result.rebased_over] == ["Append"]
    assert set(column(root, "s")) == {*LIVE, 20}
    with pytest.raises(InvalidInput, match="no column 's"):
        interrupted(root, lambda: open_stock(str(root)).drop_columns(["s"])).drop_columns(["s.a"])


def test_a_null_appended_meanwhile_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)

    def others() -> None:
        lance.write_dataset(pa.table({"id": [20], "x": pa.array([None], pa.int32())}), str(root), mode="append")

    with pytest.raises(InvalidInput, match="null in 1 rows"):
        interrupted(root, others).alter_columns({"path": "x", "nullable": False})
    assert column(root, "x")[20] is None


def test_a_cast_takes_rows_along_that_came_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    interrupted(root, lambda: _append(root, 20)).alter_columns({"path": "x", "data_type": pa.int64()})
    assert column(root, "x")[20] == 200


def test_a_value_that_came_meanwhile_may_not_fit(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    with pytest.raises(InvalidInput, match="does not fit"):
        interrupted(root, lambda: _append(root, 30)).alter_columns({"path": "x", "data_type": pa.uint8()})
    assert column(root, "x")[30] == 300


def test_a_replacement_beside_others(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)

    def minus(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.compute.negate(batch["x"])})

    interrupted(root, lambda: open_stock(str(root)).delete("id = 3")).distributed.replace_data(minus, ["x"])
    assert column(root, "x") == {number: -10 * number for number in LIVE if number != 3}
    interrupted(root, lambda: open_stock(str(root)).update({"x": "1"}, "id = 4")).distributed.replace_data(minus, ["x"])
    assert column(root, "x")[4] == -1, "worked out again, on what the other one wrote"
    with pytest.raises(RetryableConflict):
        interrupted(root, lambda: open_stock(str(root)).update({"x": "7"}, "id = 5")).distributed.replace_data({1: {"x": [0] * 4}})
    assert column(root, "x")[5] == 7
    with pytest.raises(IncompatibleConflict):
        interrupted(root, lambda: open_stock(str(root)).drop_columns(["x"])).distributed.replace_data(minus, ["x"])
    seen(root)


@pytest.mark.parametrize("verb", ["add", "drop", "cast", "replace"])
def test_every_fault_leaves_the_table_sound(tmp_path: Path, verb: str) -> None:
    """An error before and after the Nth write of a verb, for N = 1, 2, ... until it passes."""
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 30):
            root = tmp_path / f"{kind.name} {number}"
            make(root)
            faulty = FaultStore(LocalStore(root), kind, at=number)
            table = handle(root, faulty)
            try:
                if verb == "add":
                    table.add_columns({"y": "id"})
                elif verb == "drop":
                    table.drop_columns(["x"])
                elif verb == "cast":
                    table.alter_columns({"path": "x", "data_type": pa.int64()})
                else:
                    table.distributed.replace_data({1: {"x": [1, 2, 3, 4]}})
            except (StorageError, OutcomeUnknown):
                pass
            stock = open_stock(str(root))
            stock.validate()
            assert sorted(stock.to_table()["id"].to_pylist()) == LIVE
            assert set(range(12)) - set(LIVE) == set(GONE)
            if not faulty.fired:
                break
        else:
            pytest.fail("the verb never passed")
