"""What the state machine of ``tests/stateful`` found once: each bug by itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.tables import open_stock


def _make(root: Path) -> ty.Table:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "n": pa.array([1, 2, 2], pa.int64()), "s": ["a", "b", "c"]})
    return ty.Table.create(root, rows, durability="os")


def _leftovers(root: Path) -> tuple[str, ...]:
    report = ty.Table.open(root).check()
    assert report.problems == ()
    return report.orphans


def test_a_cast_that_somebody_else_made_first_leaves_no_file(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table, late = _make(root), ty.Table.open(root, durability="os")
    table.alter_columns({"path": "n", "data_type": pa.int32()})
    result = late.alter_columns({"path": "n", "data_type": pa.int32()})
    assert (result.transaction_id, result.version, late.schema.field("n").type) == ("", 2, pa.int32())
    assert _leftovers(root) == ()


def test_data_replaced_in_fragments_that_are_gone_leaves_no_file(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table, late = _make(root), ty.Table.open(root, durability="os")
    table.update({"n": "n + 1"}, mode="columns")  # alone it would lead to another run; what comes after is judged as well
    table.delete("true")
    with pytest.raises(ty.errors.IncompatibleConflict, match="no rows any more"):
        late.distributed.replace_data(lambda batch: batch, ["n"])
    assert table.layout.latest_version() == 3
    assert _leftovers(root) == ()


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "INVERTED"])
def test_an_index_takes_the_place_of_one_on_another_column(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("n", "BTREE", "i")
    with pytest.raises(ty.AlreadyExists):
        table.create_index("s", kind, "i")
    table.create_index("s", kind, "i", replace=True)
    (found,) = table.indices.list()
    assert (found.name, found.columns, found.missing_rows) == ("i", ("s",), 0)
    stock = open_stock(str(root))
    assert [one.field_names for one in stock.describe_indices()] == [["s"]]
    assert stock.to_table(filter="s = 'b'")["id"].to_pylist() == [2]
    assert stock.to_table(filter="n = 2")["id"].to_pylist() == [2, 3]
    assert _leftovers(root) == ()


def test_a_bitmap_of_nothing_is_built(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    table.delete("true")
    assert table.create_index("n", "BITMAP").version == 3
    assert _leftovers(tmp_path / "t") == ()


def test_a_compaction_of_rows_that_all_moved_leaves_no_file(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.append(table.to_arrow())
    late = ty.Table.open(root, durability="os")
    table.update({"n": "n + 1"}, mode="rows")
    late.compact()
    assert sorted(late.to_arrow()["n"].to_pylist()) == [2, 2, 3, 3, 3, 3]
    assert _leftovers(root) == ()


@pytest.mark.parametrize("how", [{}, {"merge": True}, {"retrain": True}], ids=str)
def test_a_bitmap_on_a_table_that_was_emptied_does_not_stop_upkeep(tmp_path: Path, how: dict[str, bool]) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("n", "BITMAP")
    table.delete("true")
    table.indices.optimize(**how)  # type: ignore[arg-type]
    table.append(pa.table({"id": pa.array([7, 8], pa.int64()), "n": pa.array([2, 5], pa.int64()), "s": ["x", "y"]}))
    table.indices.optimize(**how)  # type: ignore[arg-type]
    (found,) = table.indices.list()
    assert (found.rows, found.missing_rows) == (2, 0)
    assert open_stock(str(root)).to_table(filter="n = 2")["id"].to_pylist() == [7]
    assert _leftovers(root) == ()


def test_an_index_that_was_dropped_meanwhile_does_not_stop_upkeep_of_the_others(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("n", "BTREE", "i0")
    table.create_index("id", "BTREE", "i1")
    table.append(table.to_arrow())
    late = ty.Table.open(root, durability="os")
    table.drop_index("i0")
    with pytest.raises(ty.NotFound):
        ty.Table.open(root, version=late.version, durability="os").indices.optimize(["i0"])
    late.indices.optimize()
    assert [(one.name, one.missing_rows) for one in late.indices.list()] == [("i1", 0)]


@pytest.mark.parametrize("data_format", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("gone", range(4))
def test_an_update_in_place_beside_a_deleted_row_changes_no_other_row(tmp_path: Path, gone: int, data_format: str) -> None:
    rows = pa.table({"id": pa.array(range(4), pa.int64()), "n": pa.array([20, 10, 70, 1], pa.int64())})
    for number in range(4):
        root = tmp_path / str(number)
        table = ty.Table.create(root, rows, durability="os", options=ty.TableOptions(data_format=data_format))
        table.delete(f"id = {gone}")
        table.update({"n": "-n"}, f"id = {number}", mode="columns")
        wanted = {one: -n if one == number else n for one, n in enumerate([20, 10, 70, 1]) if one != gone}
        assert {row["id"]: row["n"] for row in open_stock(str(root)).to_table().to_pylist()} == wanted


@pytest.mark.parametrize("stale", [False, True], ids=["after", "beside"])
def test_a_file_of_dropped_columns_does_not_outlive_the_last_column_that_is_read(tmp_path: Path, stale: bool) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.update({"n": "n + 1", "s": "'x'"}, mode="columns")
    late = ty.Table.open(root, durability="os")
    table.drop_columns(["n"])
    (late if stale else table).update({"s": "'y'"}, mode="columns")  # leaves nothing of the file that the first update wrote
    assert _leftovers(root) == ()
    open_stock(str(root)).validate()
    assert open_stock(str(root)).to_table()["s"].to_pylist() == ["y"] * 3
