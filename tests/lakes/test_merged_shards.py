"""Merges of sharded tables: shards are merged one by one, but a sharded table is one thing in a conflict about it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.lakes.test_merging import kinds, sound
from tiltyard.errors import MergeConflict
from tiltyard.lake import Lake

TWENTY = dict.fromkeys(range(20), 0)


def sharded(lake: Lake) -> tuple[Any, Any]:
    lake.create_table("t", rows_of(TWENTY), primary_key=["id"], shard_by="id", shards=3)
    lake.branches.create("side")
    return lake.table("t"), lake.on_branch("side").table("t")


def rows_of(values: dict[int, int]) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "v": pa.array(values.values(), pa.int64())})


def values(lake: Lake, name: str = "t") -> dict[int, int]:
    """The rows of the table, each found in the shard that its key belongs to; it is sound."""
    table = lake.table(name)
    found: dict[int, int] = {row["id"]: row["v"] for row in table.to_arrow(["id", "v"]).to_pylist()}
    assert table.count_rows() == len(found), "a key came twice"
    assert all(table.count_rows(f"id = {number}") == 1 for number in found)
    assert table.check().ok
    sound(lake)
    return found


def test_both_sides_changed_rows_of_all_shards(lake: Lake) -> None:
    main, side = sharded(lake)
    main.update({"v": "1"}, where="id < 5")
    main.delete("id = 19")
    side.append(rows_of(dict.fromkeys(range(100, 110), 2)))
    side.merge(rows_of({7: 3, 8: 3})).when_matched_update_all().execute()
    main.maintenance.compact()
    lake.branches.merge("side")
    made = {**TWENTY, **dict.fromkeys(range(5), 1), **dict.fromkeys(range(100, 110), 2), 7: 3, 8: 3}
    assert values(lake) == {number: value for number, value in made.items() if number != 19}
    assert lake.branches.merge("side").up_to_date


@pytest.mark.parametrize("use", ["ours", "theirs", "by key"])
def test_rows_in_conflict_are_settled_by_the_name_of_the_table(lake: Lake, use: Any) -> None:
    main, side = sharded(lake)
    main.update({"v": "1"}, where="id < 4")
    side.update({"v": "2"}, where="id < 6")
    trial = lake.branches.merge("side", dry_run=True)
    assert {(conflict.table, conflict.kind) for conflict in trial.conflicts} == {("t", "rows")}
    assert sum(conflict.rows for conflict in trial.conflicts) == 4
    if use == "by key":
        settled = trial.resolve("t", "ours", keys=[0, 1], so_far=trial.resolve("t", "theirs", keys=[2, 3]))
        lake.branches.merge("side", on_conflict=settled)
        mine, other = [0, 1], [2, 3]
    else:
        lake.branches.merge("side", on_conflict={"t": use})
        mine, other = ([0, 1, 2, 3], []) if use == "ours" else ([], [0, 1, 2, 3])
    assert values(lake) == {**TWENTY, **dict.fromkeys(mine, 1), **dict.fromkeys([*other, 4, 5], 2)}


@pytest.mark.parametrize("use", ["ours", "theirs"])
@pytest.mark.parametrize("resharded", ["main", "side", "both"])
def test_other_shards_on_one_side_and_rows_on_the_other(lake: Lake, use: Any, resharded: str) -> None:
    """One row in one old shard is enough: it has no place among the new ones, and the others must not go without it."""
    main, side = sharded(lake)
    if resharded != "side":
        main.reshard(shards=5)
    if resharded != "main":
        side.reshard(shards=2)
    for name, on in (("main", lake), ("side", lake.on_branch("side"))):
        if resharded != name:
            on.table("t").append(rows_of({50 if name == "main" else 60: 9}))
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert {name for name, _ in kinds(caught.value)} == {"t"}
    lake.branches.merge("side", on_conflict={"t": use})
    shards = {"main": (5, 3), "side": (3, 2), "both": (5, 2)}[resharded]
    table: Any = lake.table("t")
    assert table.shards == shards[use == "theirs"]
    came = {"ours": {50: 9}, "theirs": {60: 9}}[use]
    if resharded == ("main" if use == "ours" else "side"):
        came = {}  # that side wrote no row
    assert values(lake) == {**TWENTY, **came}
    assert lake.tables() == ["a", "b", "t"]


@pytest.mark.parametrize("use", ["ours", "theirs"])
def test_a_column_in_conflict_in_one_shard_is_one_of_all(lake: Lake, use: Any) -> None:
    main, side = sharded(lake)
    main.add_columns({"w": "id * 2"})
    side.update({"v": "5"}, where="id = 3")  # in one shard, whose rows of the new column would be lost
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "column")]
    lake.branches.merge("side", on_conflict={"t": use})
    assert lake.table("t").schema.names == (["id", "v", "w"] if use == "ours" else ["id", "v"])
    assert values(lake) == {**TWENTY, **({3: 5} if use == "theirs" else {})}


@pytest.mark.parametrize("use", ["ours", "theirs"])
def test_dropped_on_one_side_and_one_shard_changed_on_the_other(lake: Lake, use: Any) -> None:
    main, _ = sharded(lake)
    main.append(rows_of({50: 9}))
    lake.on_branch("side").drop_table("t")
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "dropped")]
    lake.branches.merge("side", on_conflict={"t": use})
    assert lake.tables() == (["a", "b", "t"] if use == "ours" else ["a", "b"])
    if use == "ours":
        assert values(lake) == {**TWENTY, 50: 9}


@pytest.mark.parametrize("use", ["ours", "theirs"])
def test_a_new_name_that_is_taken(lake: Lake, use: Any) -> None:
    main, _ = sharded(lake)
    main.append(rows_of({50: 9}))
    lake.create_table("x", rows_of({1: 1}))
    lake.on_branch("side").rename_table("t", "x")
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "name")]
    lake.branches.merge("side", on_conflict={"t": use})
    assert lake.tables() == (["a", "b", "t", "x"] if use == "ours" else ["a", "b", "x"])
    assert values(lake, "t" if use == "ours" else "x") == {**TWENTY, 50: 9}


def test_renamed_on_one_side_and_changed_on_the_other(lake: Lake) -> None:
    main, side = sharded(lake)
    side.append(rows_of({60: 9}))
    lake.on_branch("side").rename_table("t", "x")
    main.append(rows_of({50: 9}))
    lake.branches.merge("side")
    assert lake.tables() == ["a", "b", "x"]
    assert values(lake, "x") == {**TWENTY, 50: 9, 60: 9}
