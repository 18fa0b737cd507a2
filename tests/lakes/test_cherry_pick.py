"""Cherry-pick, revert and restore: what one snapshot changed, its opposite, and all tables as they were, each in one commit."""

from __future__ import annotations

import pytest

from tests.lakes.test_merging import TABLES, TEN, rows, shop, sound, table_of
from tests.support.lakes import numbers
from tiltyard.errors import InvalidInput, MergeConflict, NotFound
from tiltyard.lake import Lake


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_one_snapshot_of_a_branch_is_picked(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, side = shop(lake, key, stable)
    side.append(table_of({100: "first"}))
    with lake.on_branch("side").transaction() as tx:
        tx.table("t").append(table_of({101: "second"}))
        tx.table("t").update({"v": "'new'"}, where="id = 3", mode="rows")
        tx.create_table("extra", numbers(1))
    assert tx.result is not None
    picked = tx.result.snapshot
    side.append(table_of({102: "third"}))
    main.delete("id = 5")
    done = lake.branches.cherry_pick("side", picked)
    expected = {**TEN, 3: "new", 101: "second"}
    del expected[5]
    assert rows(lake) == expected
    assert "extra" in lake.tables()
    assert lake.history()[0].properties["picked-from"].startswith(f"side@{picked} ")
    assert done.snapshot == lake.history()[0].id
    sound(lake)
    if key:  # the branch is merged later: what was picked is there on both sides
        lake.branches.merge("side", on_conflict={"extra": "ours"})
        assert rows(lake) == {**expected, 100: "first", 102: "third"}
        sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_a_snapshot_is_reverted_and_what_came_later_stays(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, _ = shop(lake, key, stable)
    with lake.transaction(message="a mistake") as tx:
        tx.table("t").delete("id < 3")
        tx.table("t").append(table_of({50: "wrong"}))
        tx.create_table("wrong", numbers(1))
        tx.drop_table("b")
    assert tx.result is not None
    main = lake.table("t")
    main.append(table_of({60: "later"}))
    lake.branches.revert(tx.result.snapshot)
    assert rows(lake) == {**TEN, 60: "later"}
    assert (set(lake.tables()) >= {"a", "b", "t"}, "wrong" in lake.tables()) == (True, False)
    assert lake.table("b").to_arrow()["id"].to_pylist() == [1]
    sound(lake)
    assert lake.branches.revert(tx.result.snapshot).up_to_date


def test_a_revert_of_what_was_changed_since_conflicts(lake: Lake) -> None:
    main, _ = shop(lake, ["id"])
    main.update({"v": "'first'"}, where="id = 3", mode="rows")
    snapshot = lake.snapshot().id
    main.update({"v": "'second'"}, where="id = 3", mode="rows")
    with pytest.raises(MergeConflict) as caught:
        lake.branches.revert(snapshot)
    assert dict(caught.value.conflicts[0].sample[0].key) == {"id": 3}
    lake.branches.revert(snapshot, on_conflict="theirs")
    assert rows(lake) == TEN


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_all_tables_get_the_content_of_a_snapshot(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, _ = shop(lake, key, stable)
    then = lake.snapshot().id
    main.append(table_of({100: "x"}))
    main.update({"v": "'new'"}, where="id = 3", mode="rows")
    main.maintenance.compact()
    main.add_columns({"w": "id"})
    lake.drop_table("a")
    lake.rename_table("b", "c")
    lake.create_table("later", numbers(1))
    lake.branches.restore(then)
    assert (lake.tables(), rows(lake), lake.table("t").schema.names) == (["a", "b", "t"], TEN, ["id", "v"])
    assert lake.history()[0].properties["restored-from"].startswith(f"main@{then} ")
    assert lake.branches.restore(then).up_to_date
    lake.table("t").append(table_of({200: "on"}))
    assert rows(lake) == {**TEN, 200: "on"}
    sound(lake)


def test_what_is_not_there(lake: Lake) -> None:
    lake.branches.create("side")
    for branch, snapshot in (("side", 99), ("nope", 1)):
        with pytest.raises(NotFound):
            lake.branches.cherry_pick(branch, snapshot)
        with pytest.raises(NotFound):
            lake.branches.revert(snapshot, branch)
        with pytest.raises(NotFound):
            lake.branches.restore(snapshot, branch)
    with pytest.raises(InvalidInput):
        lake.branches.restore("then")  # type: ignore[arg-type]
