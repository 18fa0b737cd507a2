"""Rebase, cherry-pick, revert and restore: the target's changes, one snapshot's, their opposite, and all tables as they were."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.lakes.test_merging import TABLES, TEN, rows, shop, sound, table_of
from tests.support.lakes import numbers
from tiltyard.errors import InvalidInput, MergeConflict, NotFound
from tiltyard.lake import Lake


def ids(lake: Lake, name: str) -> list[int]:
    found: list[int] = sorted(lake.table(name).to_arrow()["id"].to_pylist())
    return found


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


@pytest.mark.parametrize(("use", "left"), [("ours", [1, 5]), ("theirs", [1, 6])])
def test_a_table_that_was_picked_and_changed_on_both_sides_since_is_settled_for_either(lake: Lake, use: Any, left: list[int]) -> None:
    """Nothing tells what the two have in common; an answer for the branch was no answer."""
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.create_table("extra", numbers(1))
    lake.branches.cherry_pick("side", side.snapshot().id)
    lake.table("extra").append(numbers(5))
    side.table("extra").append(numbers(6))
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert [(found.table, found.kind) for found in caught.value.conflicts] == [("extra", "created")]
    lake.branches.merge("side", on_conflict={"extra": use})
    assert ids(lake, "extra") == left
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


@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_table_that_was_written_to_and_dropped_comes_back_as_it_was(lake: Lake, branch: str) -> None:
    """Versions from before the drop are still in its directory: they are not those of a foreign writer."""
    lake.create_table("gone", numbers(1))
    lake.branches.create("side")
    on_branch = lake.on_branch(branch)
    then = on_branch.snapshot().id
    for number in (5, 6, 7):  # each time on a branch of the table that nobody has written to
        on_branch.table("gone").append(numbers(number))
        on_branch.drop_table("gone")
        lake.branches.restore(then, branch)
        assert ids(on_branch, "gone") == [1]
        lake.branches.merge("side", dry_run=True)  # adopts what foreign writers did
        assert ids(on_branch, "gone") == [1]
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    on_branch.table("gone").append(numbers(8))
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert ids(on_branch, "gone") == [1, 8]
    sound(lake)


def test_a_table_that_the_target_wrote_to_and_dropped_comes_as_the_branch_has_it(lake: Lake) -> None:
    """Seeds 1367 and 4862 of the generator: rows that the target had appended before it dropped the table came back."""
    lake.create_table("gone", numbers(1))
    lake.branches.create("side")
    lake.on_branch("side").rename_table("gone", "kept")
    lake.table("gone").append(numbers(5))
    lake.drop_table("gone")
    lake.branches.merge("side", on_conflict="theirs")
    assert lake.branches.merge("side").up_to_date
    assert ids(lake, "kept") == [1]
    lake.table("kept").append(numbers(7))
    lake.on_branch("side").table("kept").append(numbers(8))
    lake.branches.merge("side")
    assert ids(lake, "kept") == [1, 7, 8]
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_a_branch_is_rebased_and_comes_home(lake: Lake, key: list[str] | None, stable: bool) -> None:
    """Twice: the second time the target has the branch in it as well."""
    main, side = shop(lake, key, stable)
    expected, new = dict(TEN), {}
    for turn in range(2):
        new = {100 + turn: "side", turn: f"side {turn}"}
        side.append(table_of({100 + turn: "side"}))
        side.update({"v": f"'side {turn}'"}, where=f"id = {turn}", mode="rows")
        main.append(table_of({200 + turn: "main"}))
        main.delete(f"id = {9 - turn}")
        lake.create_table(f"new{turn}", numbers(turn))
        before = lake.snapshot().id
        trial = lake.branches.rebase("side", dry_run=True)
        assert (trial.source, trial.target, trial.conflicts) == ("main", "side", ())
        done = lake.branches.rebase("side")
        del expected[9 - turn]
        expected[200 + turn] = "main"
        assert rows(lake) == expected, "the target stays as it is"
        assert (rows(lake, branch="side"), lake.snapshot().id) == ({**expected, **new}, before)
        assert f"new{turn}" in lake.on_branch("side").tables()
        step = lake.on_branch("side").history()[0]
        assert (step.id, step.message) == (done.snapshot, "rebase onto main")
        assert step.properties["rebased-onto"].startswith(f"main@{before} ")
        assert [(table.table, table.added + table.changed > 0) for table in lake.diff("main", "side").tables] == [("t", True)]
        again = lake.branches.rebase("side")
        assert (again.up_to_date, again.snapshot) == (True, done.snapshot)
        lake.branches.merge("side")
        expected |= new
        assert rows(lake) == expected
    sound(lake)


def test_a_rebase_conflicts_as_a_merge_does(lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    side.update({"v": "'side'"}, where="id in (3, 4)", mode="rows")
    main.update({"v": "'main'"}, where="id in (3, 4)", mode="rows")
    with pytest.raises(MergeConflict, match="'side' cannot be rebased onto 'main'") as caught:
        lake.branches.rebase("side")
    row = caught.value.conflicts[0].sample[0]
    assert (row.ours, row.theirs) == ({"id": 4, "v": "side"}, {"id": 4, "v": "main"}) or row.key == {"id": 3}
    found = lake.branches.rebase("side", dry_run=True)
    settled = found.resolve("t", "theirs", keys=[3])
    lake.branches.rebase("side", on_conflict=found.resolve("t", "ours", keys=[4], so_far=settled))
    assert rows(lake, branch="side") == {**TEN, 3: "main", 4: "side"}
    assert rows(lake) == {**TEN, 3: "main", 4: "main"}
    lake.branches.merge("side")
    assert rows(lake) == {**TEN, 3: "main", 4: "side"}


def test_a_branch_of_a_branch_is_rebased_onto_it_or_another(lake: Lake) -> None:
    main, side = shop(lake)
    side.append(table_of({100: "side"}))
    lake.on_branch("side").branches.create("deep")
    lake.on_branch("deep").table("t").append(table_of({300: "deep"}))
    side.append(table_of({101: "side"}))
    main.append(table_of({200: "main"}))
    assert lake.branches.rebase("deep").source == "side"
    assert rows(lake, branch="deep") == {**TEN, 100: "side", 101: "side", 300: "deep"}
    lake.branches.rebase("deep", onto="main")
    assert rows(lake, branch="deep") == {**TEN, 100: "side", 101: "side", 200: "main", 300: "deep"}
    for branch, onto in (("main", "side"), ("main", None), ("side", "side")):
        with pytest.raises(InvalidInput):
            lake.branches.rebase(branch, onto)
    for branch, onto in (("nope", None), ("side", "nope")):
        with pytest.raises(NotFound):
            lake.branches.rebase(branch, onto)
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
