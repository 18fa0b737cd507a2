"""Merges where a column is not what its field id says, takes no nulls, is part of a key, or a member of a struct."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.lakes.test_merging import kinds, sound
from tiltyard.errors import MergeConflict
from tiltyard.lake import Lake

KEY = "lance-schema:unenforced-primary-key"
BOXES = [{"id": number, "v": number * 10, "s": {"a": number, "b": -number}} for number in (1, 2, 3)]
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))])


def boxes(lake: Lake, key: bool = True) -> tuple[Any, Any]:
    lake.create_table("t", pa.Table.from_pylist(BOXES, SCHEMA), primary_key=["id"] if key else None)
    lake.branches.create("side")
    return lake.table("t"), lake.on_branch("side").table("t")


def typed(number: int, value: int | None) -> pa.Table:
    return pa.Table.from_pylist([{"id": number, "v": value, "s": None}], SCHEMA)


def shown(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.table("t").to_arrow().sort_by("id").to_pylist()
    return found


def refused(lake: Lake, kind: str, words: str) -> None:
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert {*kinds(caught.value)} == {("t", kind)}
    assert words in caught.value.conflicts[0].detail


@pytest.mark.parametrize("use", ["ours", "theirs"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.string()])
def test_an_overwrite_gives_out_field_ids_anew(lake: Lake, use: Any, kind: pa.DataType) -> None:
    """The branch's second column has the id of another one of the target, or another type: it is not that column renamed."""
    main, side = boxes(lake)
    name = "w" if kind == pa.int64() else "v"
    side.overwrite(pa.table({"id": [7], name: pa.array(["5"]).cast(kind)}))
    main.append([{"id": 4, "v": 40, "s": {"a": 0, "b": 0}}])
    refused(lake, "column", "column")
    lake.branches.merge("side", on_conflict=use)
    five = "5" if kind == pa.string() else 5
    assert shown(lake) == ([{"id": 7, name: five}] if use == "theirs" else [*BOXES, {"id": 4, "v": 40, "s": {"a": 0, "b": 0}}])
    sound(lake)


def test_a_column_that_went_and_the_next_one_in_its_place(lake: Lake) -> None:
    """Seed 643 of the generator: values of a dropped column came under the name of the one after it."""
    lake.create_table("t", [{"id": 1, "v": 10, "c": 100}], primary_key=["id"])
    lake.branches.create("side")
    lake.table("t").overwrite([{"id": 2, "v": 20, "c": 200}])
    side = lake.on_branch("side").table("t")
    side.drop_columns(["v"])
    side.overwrite([{"id": 3, "c": 300}])
    refused(lake, "column", "it is not known whether v was renamed to c")
    lake.branches.merge("side", on_conflict="theirs")
    assert shown(lake) == [{"id": 3, "c": 300}]
    sound(lake)


def test_a_column_renamed_and_rewritten_is_the_same_one(lake: Lake) -> None:
    """No file tells any more, but the history does."""
    main, side = boxes(lake)
    main.alter_columns({"path": "v", "name": "w"})
    main.update({"w": "w + 1"}, mode="columns")
    side.append([{"id": 4, "v": 40, "s": {"a": 0, "b": 0}}])
    lake.branches.merge("side")
    assert [row["w"] for row in shown(lake)] == [11, 21, 31, 40]
    sound(lake)


def test_a_revert_of_an_overwrite_does_not_trust_field_ids(lake: Lake) -> None:
    """The history is read backwards there: values of the later column came under the name of the one that had its id before."""
    lake.create_table("t", [{"id": 1, "v": 10, "c": 100}], primary_key=["id"])
    lake.table("t").overwrite([{"id": 2, "c": 200}])
    snapshot = lake.snapshot().id
    lake.table("t").append([{"id": 3, "c": 300}])
    with pytest.raises(MergeConflict) as caught:
        lake.branches.revert(snapshot)
    assert {*kinds(caught.value)} == {("t", "column")}
    assert "it is not known whether c was renamed to v" in caught.value.conflicts[0].detail
    assert shown(lake) == [{"id": 2, "c": 200}, {"id": 3, "c": 300}]
    lake.branches.revert(snapshot, on_conflict="theirs")
    assert shown(lake) == [{"id": 1, "v": 10, "c": 100}]
    sound(lake)


@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_revert_of_a_renaming_knows_the_column(lake: Lake, branch: str) -> None:
    """No file tells, but the history does, backwards as well: also where the snapshot is the first of its branch."""
    boxes(lake)
    with lake.on_branch(branch).transaction() as tx:
        tx.table("t").alter_columns({"path": "v", "name": "w"})
        tx.table("t").update({"w": "w + 1"}, mode="columns")
    assert tx.result is not None
    on_branch = lake.on_branch(branch)
    on_branch.table("t").append([{"id": 4, "w": 40, "s": {"a": 0, "b": 0}}])
    lake.branches.revert(tx.result.snapshot, branch)
    assert [row["v"] for row in on_branch.table("t").to_arrow().sort_by("id").to_pylist()] == [10, 20, 30, 40]
    sound(lake)


def test_an_id_that_a_dropped_column_left_to_the_next_one(lake: Lake) -> None:
    """Once no file mentions a dropped column, its id is given out again: values of c came under the name of d."""
    lake.create_table("t", [{"id": 1, "v": 10, "c": 100}], primary_key=["id"])
    lake.branches.create("side")
    lake.table("t").append([{"id": 2, "v": 20, "c": 200}])
    side = lake.on_branch("side").table("t")
    side.drop_columns(["c"])
    side.append([{"id": 3, "v": 30}])
    side.maintenance.compact()
    side.add_columns({"d": "id * 7"})
    refused(lake, "column", "it is not known whether c was renamed to d")
    lake.branches.merge("side", on_conflict="theirs")
    assert shown(lake) == [{"id": 1, "v": 10, "d": 7}, {"id": 3, "v": 30, "d": 21}]
    sound(lake)


def test_a_column_renamed_and_rewritten_after_a_restore_is_the_same_one(lake: Lake) -> None:
    """Seed 2211 of the generator: what a restore took back does not count, even an overwrite."""
    main, side = boxes(lake)
    side.alter_columns({"path": "v", "name": "w"})
    then = side.version
    side.overwrite(pa.table({"id": [7], "x": [5]}))
    side.restore(then)
    side.update({"w": "w + 1"}, mode="columns")
    main.append(typed(4, 40))
    lake.branches.merge("side")
    assert [row["w"] for row in shown(lake)] == [11, 21, 31, 40]
    sound(lake)


def test_a_column_after_a_merge_that_was_settled_for_the_table_is_not_a_renamed_one(lake: Lake) -> None:
    """The files of the branch are named already, so that nothing but the merge itself says that its columns are others."""
    lake.create_table("t", [{"id": 1, "v": 10}], primary_key=["id"])
    lake.branches.create("side")
    side = lake.on_branch("side").table("t")
    side.append([{"id": 2, "v": 20}])
    lake.table("t").append([{"id": 3, "v": 30}])
    lake.branches.merge("side")
    lake.branches.create("third")
    lake.on_branch("third").table("t").append([{"id": 4, "v": 40}])
    side.overwrite([{"id": 5, "w": 50}])
    lake.table("t").delete("id = 3")
    lake.branches.merge("side", on_conflict="theirs")
    assert shown(lake) == [{"id": 5, "w": 50}]
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("third")
    assert "it is not known whether v was renamed to w" in caught.value.conflicts[0].detail


@pytest.mark.parametrize("strict", ["main", "side"])
@pytest.mark.parametrize("how", ["append", "rows", "columns"])
def test_a_column_that_takes_no_nulls_any_more(lake: Lake, strict: str, how: str) -> None:
    main, side = boxes(lake)
    first, second = (main, side) if strict == "main" else (side, main)
    first.alter_columns({"path": "v", "nullable": False})
    second.append(typed(4, 40))  # no null in that column, which is seen by its values
    trial = lake.branches.merge("side", dry_run=True)
    assert trial.conflicts == ()
    if how == "append":
        second.append(typed(5, None))
    else:
        second.update({"v": "NULL"}, where="id = 3", mode=how)
    refused(lake, "column", "nulls")
    lake.branches.merge("side", on_conflict="theirs")
    assert lake.table("t").schema.field("v").nullable is (strict == "main")
    sound(lake)


@pytest.mark.parametrize("setter", ["main", "side"])
def test_a_key_that_one_side_set_while_the_other_wrote_rows(lake: Lake, setter: str) -> None:
    """Pylance can set a key later. Rows that the other side wrote were never compared with it."""
    main, side = boxes(lake, key=False)
    side.settings.update_config({"x": "1"})
    first, second = (main, side) if setter == "main" else (side, main)
    lance.dataset(first.lance.uri).update_field_metadata({"id": {KEY: "true"}})
    assert lake.branches.merge("side", dry_run=True).conflicts == ()
    second.append(typed(2, 0))
    refused(lake, "setting", "primary key")
    lake.branches.merge("side", on_conflict="ours" if setter == "main" else "theirs")
    assert lake.table("t").primary_key == ("id",)
    assert shown(lake) == BOXES
    sound(lake)


def test_a_key_whose_column_takes_nulls_on_the_other_side(lake: Lake) -> None:
    main, side = boxes(lake, key=False)
    side.alter_columns({"path": "id", "nullable": True})
    lance.dataset(main.lance.uri).update_field_metadata({"id": {KEY: "true"}})
    refused(lake, "column", "nulls")


@pytest.mark.parametrize("values", [("id", "id * 2"), ("id", None), (None, None)])
def test_one_column_that_both_added(lake: Lake, values: tuple[str | None, str | None]) -> None:
    """The same name, type and field id: but which values are right nobody said."""
    main, side = boxes(lake)
    for table, value in zip((main, side), values, strict=True):
        table.add_columns(pa.schema([pa.field("w", pa.int64())]) if value is None else {"w": value})
    if values != (None, None):
        refused(lake, "column", "both sides added")
        return
    side.append(typed(4, 0).append_column("w", pa.array([9])))
    lake.branches.merge("side")
    assert [row["w"] for row in shown(lake)] == [None, None, None, 9]
    sound(lake)


def test_members_that_one_side_dropped_renamed_or_added(lake: Lake) -> None:
    """Rows that both touched are compared in the members that both have, and written with those of the target."""
    main, side = boxes(lake)
    main.drop_columns(["s.b"])
    main.alter_columns({"path": "s.a", "name": "x"})
    main.add_columns(pa.schema([pa.field("s", pa.struct([("c", pa.int64())]))]))
    main.maintenance.compact()
    main.update({"v": "v"}, where="id < 3")  # moved, not changed
    side.update({"s": "named_struct('a', 7, 'b', 8)"}, where="id = 2", mode="columns")
    side.append([{"id": 4, "v": 0, "s": {"a": 5, "b": 6}}])
    lake.branches.merge("side")
    assert [(row["id"], row["s"]) for row in shown(lake)] == [
        (1, {"x": 1, "c": None}), (2, {"x": 7, "c": None}), (3, {"x": 3, "c": None}), (4, {"x": 5, "c": None}),
    ]  # fmt: skip
    sound(lake)


def test_a_struct_whose_members_both_dropped_goes_with_them(lake: Lake) -> None:
    main, side = boxes(lake)
    main.drop_columns(["s.a"])
    side.drop_columns(["s.b"])
    lake.branches.merge("side")
    assert lake.table("t").schema.names == ["id", "v"]
    sound(lake)


def test_a_member_of_a_struct_that_is_not_there_any_more(lake: Lake) -> None:
    main, side = boxes(lake)
    main.drop_columns(["s"])
    side.add_columns(pa.schema([pa.field("s", pa.struct([("c", pa.int64())]))]))
    refused(lake, "column", "struct")
    lake.branches.merge("side", on_conflict="theirs")
    assert lake.table("t").schema.field("s").type.num_fields == 3
    sound(lake)


@pytest.mark.parametrize("written", [True, False])
def test_a_cast_beside_rows_of_the_old_type(lake: Lake, written: bool) -> None:
    main, side = boxes(lake)
    main.alter_columns({"path": "v", "data_type": pa.int32()}, {"path": "s.a", "data_type": pa.int32()})
    side.delete("id = 1")
    if written:
        side.append(typed(4, 40))
        refused(lake, "column", "replaced")
        return
    lake.branches.merge("side")
    assert shown(lake) == BOXES[1:]
    assert [str(lake.table("t").schema.field("v").type), str(lake.table("t").schema.field("s").type)] == [
        "int32",
        "struct<a: int32, b: int64>",
    ]
    sound(lake)
