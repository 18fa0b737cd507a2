"""Merges of tables whose columns were rewritten in place, or whose rows came back: a place tells rows apart where no key does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lakes.test_merging import TABLES, TEN, kinds, rows, shop, sound, table_of
from tiltyard.errors import CorruptTable, MergeConflict
from tiltyard.lake import Lake


@pytest.mark.parametrize("rewritten", ["main", "side"])
def test_a_row_deleted_where_the_other_side_rewrote_a_column_of_others(lake: Lake, rewritten: str) -> None:
    main, side = shop(lake)
    first, second = (main, side) if rewritten == "main" else (side, main)
    first.update({"v": "'new'"}, where="id = 3", mode="columns")
    second.delete("id = 4")
    lake.branches.merge("side")
    assert rows(lake) == {number: value for number, value in {**TEN, 3: "new"}.items() if number != 4}
    sound(lake)


@pytest.mark.parametrize("rewritten", ["main", "side"])
def test_a_second_merge_after_a_column_was_rewritten_in_place(lake: Lake, rewritten: str) -> None:
    main, side = shop(lake)
    (main if rewritten == "main" else side).update({"v": "'new'"}, where="id = 3", mode="columns")
    side.append(table_of({100: "x"}))
    lake.branches.merge("side")
    side.delete("id = 4")
    lake.table("t").append(table_of({200: "y"}))
    lake.branches.merge("side")
    assert rows(lake) == {number: value for number, value in {**TEN, 3: "new", 100: "x", 200: "y"}.items() if number != 4}
    sound(lake)


def test_both_rewrote_the_column_of_other_rows_and_of_the_same(lake: Lake) -> None:
    main, side = shop(lake)
    main.update({"v": "'main'"}, where="id = 3", mode="columns")
    side.update({"v": "'side'"}, where="id = 6", mode="columns")
    for table in (main, side):
        table.update({"v": "'agreed'"}, where="id = 8", mode="columns")
    lake.branches.merge("side")
    assert rows(lake) == {**TEN, 3: "main", 6: "side", 8: "agreed"}
    sound(lake)


@pytest.mark.parametrize("how", ["delete", "columns", "rows"])
def test_both_changed_a_row_that_one_rewrote_in_place(lake: Lake, how: str) -> None:
    main, side = shop(lake)
    side.update({"v": "'side'"}, where="id = 3", mode="columns")
    if how == "delete":
        main.delete("id = 3")
    else:
        main.update({"v": "'main'"}, where="id = 3", mode=how)
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "rows")]
    assert [row.base for row in caught.value.conflicts[0].sample] == [{"id": 3, "v": "3"}]


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_rows_that_came_back_keep_their_values(lake: Lake, key: list[str] | None, stable: bool) -> None:
    """A column that the branch rewrote in place has values for rows that are deleted there; they are nobody's."""
    lake.create_table("t", table_of(TEN), primary_key=key, stable_row_ids=stable)
    then = lake.table("t").version
    lake.table("t").delete("id in (3, 5)")
    lake.branches.create("side")
    lake.on_branch("side").table("t").update({"v": "'new'"}, where="id = 4", mode="columns")
    lake.table("t").restore(then)
    lake.branches.merge("side")
    assert rows(lake) == {**TEN, 4: "new"}
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_rows_that_came_back_have_no_values_of_a_column_that_was_added_meanwhile(lake: Lake, key: list[str] | None, stable: bool) -> None:
    lake.create_table("t", table_of(TEN), primary_key=key, stable_row_ids=stable)
    then = lake.table("t").version
    lake.table("t").delete("id in (3, 5)")
    lake.branches.create("side")
    lake.on_branch("side").table("t").add_columns({"w": "id * 2"})
    lake.table("t").restore(then)
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "column")]
    assert rows(lake) == TEN
    lake.branches.merge("side", on_conflict="theirs")
    found = lake.table("t").to_arrow().sort_by("id")
    assert found["w"].to_pylist() == [number * 2 for number in TEN if number not in (3, 5)]
    assert found.schema.field("w").type == pa.int64()
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_rows_that_came_back_are_found_by_an_index_of_the_branch(lake: Lake, key: list[str] | None, stable: bool) -> None:
    """The branch built it while they were deleted; it may come along only where it has all rows of a fragment."""
    lake.create_table("t", table_of(TEN), primary_key=key, stable_row_ids=stable)
    then = lake.table("t").version
    lake.table("t").delete("id in (3, 5)")
    lake.branches.create("side")
    side = lake.on_branch("side").table("t")
    side.create_index("id", "BTREE")
    side.append(table_of({100: "x"}))
    lake.table("t").restore(then)
    done = lake.branches.merge("side")
    assert done.tables[0].left_out == ("id_idx",)
    for number in (3, 5, 7, 100):
        assert lake.table("t").to_arrow(filter=f"id = {number}").num_rows == 1
    sound(lake)


def test_a_lake_that_was_moved_says_so_and_is_read_through_a_link_at_its_address(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", durability="os") as lake:
        _, side = shop(lake)
        lake.create_table("plain", table_of(TEN))
        side.append(table_of({100: "x"}))
        lake.branches.merge("side")
        expected = rows(lake)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    (tmp_path / "lake").rename(tmp_path / "moved")
    for name in ("copy", "moved"):
        with Lake.open(tmp_path / name, create=False) as lake:
            assert rows(lake, "plain") == TEN
            with pytest.raises(CorruptTable, match="moved or copied from there"):
                lake.table("t").to_arrow()
    (tmp_path / "lake").symlink_to(tmp_path / "moved")
    with Lake.open(tmp_path / "lake", create=False) as lake:
        assert rows(lake) == expected
        lake.on_branch("side").table("t").append(table_of({101: "y"}))
        lake.branches.merge("side")
        assert rows(lake) == {**expected, 101: "y"}
        sound(lake)
