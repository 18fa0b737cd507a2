"""Merging branches of a lake: what only one side changed comes over, what both changed is compared, what cannot be told is a conflict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.lakes import InterposedRecords, Site, foreign_append, ids, numbers, stock, through, uri_of
from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import InvalidInput, MergeConflict, NotFound
from tiltyard.lake import Lake
from tiltyard.lakes.merging import merge_branches
from tiltyard.lakes.merging.branch_plan import plan_merge
from tiltyard.lakes.table_names import logical_name
from tiltyard.merges import MergeResult, Resolution

NO_GRACE = timedelta(0)
TABLES = [(None, False), (["id"], False), (None, True), (["id"], True)]


def table_of(values: Mapping[int, str]) -> pa.Table:
    return pa.table({"id": pa.array(list(values), pa.int64()), "v": pa.array(list(values.values()), pa.string())})


TEN = {number: str(number) for number in range(10)}


def shop(lake: Lake, key: list[str] | None = None, stable: bool = False, name: str = "t") -> tuple[Any, Any]:
    """A table with ten rows, on main and on a branch that begins there."""
    lake.create_table(name, table_of(TEN), primary_key=key, stable_row_ids=stable)
    if "side" not in lake.branches:
        lake.branches.create("side")
    return lake.table(name), lake.on_branch("side").table(name)


def rows(lake: Lake, name: str = "t", branch: str = MAIN) -> dict[int, str]:
    found = (lake if branch == MAIN else lake.on_branch(branch)).table(name).to_arrow()
    values = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(values) == found.num_rows, "a row came twice"
    return values


def sound(lake: Lake) -> None:
    """The lake is sound, and pylance opens every table of every branch."""
    assert lake.check(data=True).problems == ()
    for branch in (MAIN, *lake.branches):
        on = lake if branch == MAIN else lake.on_branch(branch)
        tables = on.snapshot().cut.tables
        shards = {logical for name in tables if (logical := logical_name(name))}
        for name, head in tables.items():
            place = lake.plain_access_of(head).on_branch(head.branch)
            found = lance.dataset(place.lance_uri, version=head.version, storage_options=place.lance_options())
            read = found.to_table().num_rows
            if not shards.intersection({name, logical_name(name)}):
                assert read == on.table(name.replace("$", ".")).count_rows()


def kinds(error: MergeConflict) -> list[tuple[str, str]]:
    return [(conflict.table, conflict.kind) for conflict in error.conflicts]


# ---- what goes together --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_a_table_that_only_the_branch_changed_gets_its_versions_over_the_same_files(
    lake: Lake, key: list[str] | None, stable: bool
) -> None:
    _, side = shop(lake, key, stable)
    side.append(table_of({100: "x"}))
    side.update({"v": "'new'"}, where="id = 3", mode="rows")
    side.delete("id = 4")
    side.maintenance.compact()
    side.append(table_of({101: "y"}))
    done = lake.branches.merge("side", message="home")
    assert [(table.table, table.how, table.written) for table in done.tables] == [("t", "replayed", 0)]
    assert done.tables[0].referenced > 0
    expected = {**TEN, 3: "new", 100: "x", 101: "y"}
    del expected[4]
    assert rows(lake) == rows(lake, branch="side") == expected
    step = lake.history()[0]
    assert (step.id, step.message, step.properties["merged-from"].split()[0]) == (done.snapshot, "home", f"side@{done.source_snapshot}")
    lake.table("t").append(table_of({102: "z"}))
    assert 102 not in rows(lake, branch="side")
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_both_sides_changed_other_rows(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, side = shop(lake, key, stable)
    side.append(table_of({100: "x", 101: "y"}))
    side.update({"v": "'new'"}, where="id = 3", mode="rows")
    side.delete("id in (4, 101)")
    main.append(table_of({200: "z"}))
    main.update({"v": "'mine'"}, where="id = 7", mode="rows")
    main.delete("id = 5")
    done = lake.branches.merge("side")
    assert done.tables[0].how == "merged"
    expected = {**TEN, 3: "new", 7: "mine", 100: "x", 200: "z"}
    del expected[4], expected[5]
    assert rows(lake) == expected
    sound(lake)


def test_row_ids_stay_with_their_rows(lake: Lake) -> None:
    main, side = shop(lake, None, True)
    side.update({"v": "'new'"}, where="id = 3", mode="rows")
    main.append(table_of({200: "z"}))
    before = dict(zip(*(main.lance.to_table(with_row_id=True)[name].to_pylist() for name in ("id", "_rowid")), strict=True))
    lake.branches.merge("side")
    after = lake.table("t").lance.to_table(with_row_id=True)
    found = dict(zip(after["id"].to_pylist(), after["_rowid"].to_pylist(), strict=True))
    assert found == before


def test_tables_that_come_go_and_get_other_names(lake: Lake) -> None:
    side = (lake.branches.create("side"), lake.on_branch("side"))[1]
    side.create_table("new", numbers(1, 2))
    side.drop_table("b")
    side.rename_table("a", "renamed")
    lake.create_table("other", numbers(9))
    done = lake.branches.merge("side")
    assert [(table.table, table.how) for table in done.tables] == [("b", "dropped"), ("new", "created"), ("renamed", "renamed")]
    assert lake.tables() == ["new", "other", "renamed"]
    lake.table("new").append(numbers(3))
    side.table("new").append(numbers(4))
    assert sorted(lake.table("new").to_arrow()["id"].to_pylist()) == [1, 2, 3]
    lake.branches.merge("side")
    assert sorted(lake.table("new").to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    sound(lake)


def test_columns_and_settings_of_one_side(lake: Lake) -> None:
    main, side = shop(lake)
    side.add_columns({"w": "id * 2"})
    side.settings.update_config({"color": "red"})
    main.append(table_of({50: "late"}))
    lake.branches.merge("side")
    found = lake.table("t").to_arrow(filter="id in (3, 50)").sort_by("id").to_pylist()
    assert found == [{"id": 3, "v": "3", "w": 6}, {"id": 50, "v": "late", "w": None}]
    assert lake.table("t").settings.config["color"] == "red"
    lake.on_branch("side").table("t").alter_columns({"path": "v", "name": "text"})
    lake.table("t").append(pa.table({"id": [51], "v": ["x"], "w": [1]}))
    lake.branches.merge("side")
    assert lake.table("t").schema.names == ["id", "text", "w"]
    lake.on_branch("side").table("t").drop_columns(["w"])
    lake.table("t").delete("id = 1")
    lake.branches.merge("side")
    assert lake.table("t").schema.names == ["id", "text"]
    sound(lake)


def test_an_index_of_the_branch_comes_along_where_it_fits(lake: Lake) -> None:
    main, side = shop(lake)
    side.create_index("id", "BTREE")
    main.append(table_of({50: "x"}))
    done = lake.branches.merge("side")
    assert done.tables[0].left_out == ()
    assert [index.name for index in lake.table("t").indices.list()] == [index.name for index in side.indices.list()]
    assert lake.table("t").to_arrow(filter="id = 3").num_rows == lake.table("t").to_arrow(filter="id = 50").num_rows == 1
    sound(lake)


# ---- merged again ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_a_branch_is_merged_again_and_again(lake: Lake, key: list[str] | None, stable: bool) -> None:
    _, side = shop(lake, key, stable)
    expected = dict(TEN)
    for turn in range(4):
        side.append(table_of({100 + turn: "side"}))
        side.update({"v": f"'side {turn}'"}, where=f"id = {turn}", mode="rows")
        lake.table("t").append(table_of({200 + turn: "main"}))
        lake.table("t").delete(f"id = {9 - turn}")
        if turn:  # what came home is main's to change
            lake.table("t").update({"v": "'mine'"}, where=f"id = {99 + turn}", mode="rows")
            expected[99 + turn] = "mine"
        lake.branches.merge("side")
        expected |= {100 + turn: "side", turn: f"side {turn}", 200 + turn: "main"}
        del expected[9 - turn]
        assert rows(lake) == expected
        again = lake.branches.merge("side")
        assert (again.up_to_date, again.tables, again.snapshot) == (True, (), lake.snapshot().id)
    sound(lake)


def test_what_main_deleted_does_not_come_back(lake: Lake) -> None:
    _, side = shop(lake)
    side.append(table_of({100: "x"}))
    lake.branches.merge("side")
    lake.table("t").delete("id = 100")
    side.append(table_of({101: "y"}))
    lake.branches.merge("side")
    assert rows(lake) == {**TEN, 101: "y"}


def test_a_target_that_moves_while_the_merge_is_planned(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned is for a target that is no more: the merge is planned anew, and what came meanwhile is compared as well."""
    mine, side = shop(lake, ["id"])
    side.update({"v": "'side'"}, where="id = 1")
    plans: list[Any] = []

    def meanwhile(*given: Any, **named: Any) -> Any:
        plans.append(plan_merge(*given, **named))
        if len(plans) == 1:
            mine.append(table_of({10: "new"}))
            mine.delete("id = 2")
        return plans[-1]

    monkeypatch.setattr(merge_branches, "plan_merge", meanwhile)
    lake.branches.merge("side")
    assert len(plans) == 2
    assert rows(lake) == {number: text for number, text in {**TEN, 1: "side", 10: "new"}.items() if number != 2}
    sound(lake)


def test_main_comes_to_the_branch_and_the_branch_home(lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    side.append(table_of({100: "x"}))
    main.append(table_of({200: "y"}))
    main.delete("id = 0")
    done = lake.branches.merge(MAIN, into="side")
    assert (done.target, done.base) == ("side", MAIN)
    both = {**TEN, 100: "x", 200: "y"}
    del both[0]
    assert rows(lake, branch="side") == both
    assert 100 not in rows(lake)
    lake.on_branch("side").table("t").update({"v": "'changed'"}, where="id = 200", mode="rows")
    lake.branches.merge("side")
    assert rows(lake) == {**both, 200: "changed"}
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_a_diamond(lake: Lake, key: list[str] | None, stable: bool) -> None:
    lake.create_table("t", table_of(TEN), primary_key=key, stable_row_ids=stable)
    for name in ("one", "two"):
        lake.branches.create(name)
    lake.on_branch("one").table("t").append(table_of({100: "one"}))
    lake.on_branch("two").table("t").append(table_of({200: "two"}))
    lake.branches.merge("one", into="two")
    assert lake.branches.merge("one").tables[0].table == "t"
    lake.branches.merge("two")
    assert rows(lake) == rows(lake, branch="two") == {**TEN, 100: "one", 200: "two"}
    assert lake.branches.merge("one", into="two").up_to_date
    sound(lake)


def test_a_branch_of_a_branch(lake: Lake) -> None:
    _, side = shop(lake)
    side.append(table_of({100: "side"}))
    lake.on_branch("side").branches.create("deep")
    lake.on_branch("deep").table("t").append(table_of({300: "deep"}))
    side.append(table_of({101: "side"}))
    assert lake.branches.merge("deep", into="side").base == "side"
    assert rows(lake, branch="side") == {**TEN, 100: "side", 101: "side", 300: "deep"}
    lake.branches.merge("deep")
    assert rows(lake) == {**TEN, 100: "side", 300: "deep"}
    lake.branches.merge("side")
    assert rows(lake) == {**TEN, 100: "side", 101: "side", 300: "deep"}
    sound(lake)


def test_into_itself_and_what_is_not_there(lake: Lake) -> None:
    lake.branches.create("side")
    assert lake.branches.merge("side", into="side").up_to_date
    assert lake.branches.merge("side").up_to_date
    for source, into in (("nope", MAIN), ("side", "nope")):
        with pytest.raises(NotFound):
            lake.branches.merge(source, into=into)
    for wrong in ("mine", 7, {"a": "mine"}, {"a": [3]}):
        with pytest.raises(InvalidInput):
            lake.branches.merge("side", on_conflict=wrong)  # type: ignore[arg-type]


# ---- conflicts -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_both_changed_one_row(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, side = shop(lake, key, stable)
    with lake.on_branch("side").transaction(message="theirs say") as tx:
        tx.table("t").update({"v": "'theirs'"}, where="id = 3", mode="rows")
    main.update({"v": "'ours'"}, where="id = 3", mode="rows")
    side.append(table_of({100: "x"}))
    before = lake.snapshot().id
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    conflict = caught.value.conflicts[0]
    assert (conflict.table, conflict.kind, conflict.rows, lake.snapshot().id) == ("t", "rows", 1, before)
    assert ("theirs say" in [step.message for step in conflict.theirs], len(conflict.ours)) == (True, 1)
    json.dumps(caught.value.to_dict())
    row = conflict.sample[0]
    assert row.base == {"id": 3, "v": "3"}
    if key or stable:
        assert (row.ours, row.theirs) == ({"id": 3, "v": "ours"}, {"id": 3, "v": "theirs"})
        lake.branches.merge("side", on_conflict="theirs")
        assert rows(lake) == {**TEN, 3: "theirs", 100: "x"}
    else:  # nobody can say what became of the row on either side: the answer is for the table
        assert (dict(row.key), row.ours, row.theirs) == ({}, None, None)
        lake.branches.merge("side", on_conflict={"t": "theirs"})
        assert rows(lake) == {**TEN, 3: "theirs", 100: "x"}
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES)
def test_settled_for_the_target(lake: Lake, key: list[str] | None, stable: bool) -> None:
    main, side = shop(lake, key, stable)
    side.update({"v": "'theirs'"}, where="id = 3", mode="rows")
    side.append(table_of({100: "x"}))
    main.delete("id = 3")
    done = lake.branches.merge("side", on_conflict="ours")
    expected = {number: value for number, value in TEN.items() if number != 3}
    assert rows(lake) == (expected | {100: "x"} if key or stable else expected)
    assert done.tables[0].how == ("merged" if key or stable else "kept")
    assert lake.branches.merge("side").up_to_date
    sound(lake)


def test_a_key_that_both_inserted_and_answers_for_some_keys(lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    side.append(table_of({100: "a", 101: "b", 102: "same"}))
    main.append(table_of({100: "A", 101: "B", 102: "same"}))
    found = lake.branches.merge("side", dry_run=True)
    conflict = found.conflicts[0]
    assert (conflict.kind, conflict.rows, [dict(row.key) for row in conflict.sample]) == ("key", 2, [{"id": 100}, {"id": 101}])
    settled = found.resolve("t", "theirs", keys=[100])
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side", on_conflict=settled)
    assert caught.value.conflicts[0].rows == 1
    settled = found.resolve("t", "ours", keys=[{"id": 101}], so_far=settled)
    assert settled == {"t": (Resolution("theirs", (100,)), Resolution("ours", ({"id": 101},)))}
    lake.branches.merge("side", on_conflict=settled)
    assert rows(lake) == {**TEN, 100: "a", 101: "B", 102: "same"}
    sound(lake)
    with pytest.raises(InvalidInput):
        found.resolve("nope", "ours")


def test_the_same_change_on_both_sides_is_none(lake: Lake) -> None:
    main, side = shop(lake, ["id"])
    for table in (main, side):
        table.update({"v": "'agreed'"}, where="id = 3", mode="rows")
        table.delete("id = 4")
    side.append(table_of({100: "x"}))
    lake.branches.merge("side")
    expected = {**TEN, 3: "agreed", 100: "x"}
    del expected[4]
    assert rows(lake) == expected


@pytest.mark.parametrize(("key", "stable"), TABLES[1:])
@pytest.mark.parametrize("compacted", ["main", "side", "both"])
def test_rows_are_told_apart_across_compactions(lake: Lake, key: list[str] | None, stable: bool, compacted: str) -> None:
    main, side = shop(lake, key, stable)
    main.append(table_of({200: "z"}))
    side.append(table_of({100: "x"}))
    for name, table in (("main", main), ("side", side)):
        if compacted in (name, "both"):
            table.maintenance.compact()
    side.update({"v": "'new'"}, where="id = 3", mode="rows")
    side.delete("id = 4")
    main.update({"v": "'mine'"}, where="id = 7", mode="rows")
    lake.branches.merge("side")
    expected = {**TEN, 3: "new", 7: "mine", 100: "x", 200: "z"}
    del expected[4]
    assert rows(lake) == expected
    sound(lake)


def test_whole_tables_in_conflict(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.drop_table("a")
    side.table("b").append(numbers(5))
    side.create_table("new", numbers(1))
    lake.table("a").append(numbers(2))
    lake.drop_table("b")
    lake.create_table("new", numbers(2))
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert sorted(kinds(caught.value)) == [("a", "dropped"), ("b", "dropped"), ("new", "created")]
    found: MergeResult = lake.branches.merge("side", dry_run=True)
    assert sorted(conflict.table for conflict in found.conflicts) == ["a", "b", "new"]
    lake.branches.merge("side", on_conflict={"a": "theirs", "b": "theirs", "new": "theirs"})
    assert lake.tables() == ["b", "new"]
    assert sorted(lake.table("b").to_arrow()["id"].to_pylist()) == [1, 5]
    assert lake.table("new").to_arrow()["id"].to_pylist() == [1]
    sound(lake)


def test_columns_settings_and_names_in_conflict(lake: Lake) -> None:
    main, side = shop(lake)
    main.add_columns({"w": "1"})
    side.add_columns({"x": "2"})
    main.settings.update_config({"color": "red"})
    side.settings.update_config({"color": "blue"})
    lake.rename_table("t", "ours")
    lake.on_branch("side").rename_table("t", "theirs")
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert sorted(kinds(caught.value)) == [("ours", "column"), ("ours", "name"), ("ours", "setting")]
    lake.branches.merge("side", on_conflict="theirs")
    assert lake.table("theirs").schema.names == ["id", "v", "x"]
    assert lake.table("theirs").settings.config["color"] == "blue"
    sound(lake)


@pytest.mark.parametrize(("key", "stable"), TABLES[::3])
@pytest.mark.parametrize("use", ["ours", "theirs"])
def test_columns_that_both_added_and_one_without_values(lake: Lake, key: list[str] | None, stable: bool, use: Any) -> None:
    """Both have the same field id: what is null on one side must not show the values of the other."""
    main, side = shop(lake, key, stable)
    main.add_columns({"times": "id * 3"})
    side.add_columns(pa.schema([pa.field("unknown", pa.int64())]))
    side.delete("id = 8")
    lake.branches.merge("side", on_conflict=use)
    found = {row["id"]: row for row in lake.table("t").to_arrow().to_pylist()}
    if use == "ours":
        assert {number: row["times"] for number, row in found.items()} == {number: number * 3 for number in TEN}
    else:
        assert {number: row["unknown"] for number, row in found.items()} == {number: None for number in TEN if number != 8}
    sound(lake)


@pytest.mark.parametrize("renamed", [True, False])
def test_columns_of_one_id_after_a_merge_that_was_settled(lake: Lake, renamed: bool) -> None:
    """The target kept its own column: rows that come later must not bring values of the branch's under its name."""
    main, side = shop(lake, ["id"])
    if renamed:  # a column that came to both is the same one, whatever it is called
        side.add_columns({"theirs": "id"})
        lake.branches.merge("side")
        lake.table("t").alter_columns({"path": "theirs", "name": "ours"})
    else:
        main.add_columns({"ours": "id * 3"})
        side.add_columns({"theirs": "id"})
        lake.branches.merge("side", on_conflict="ours")
    side.append(pa.table({"id": [100], "v": ["x"], "theirs": [7]}))
    if renamed:
        lake.branches.merge("side")
        assert lake.table("t").to_arrow(filter="id = 100").to_pylist() == [{"id": 100, "v": "x", "ours": 7}]
        return
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("t", "column")]
    lake.branches.merge("side", on_conflict="theirs")
    assert lake.table("t").to_arrow(filter="id = 100").to_pylist() == [{"id": 100, "v": "x", "theirs": 7}]
    sound(lake)


# ---- others ---------------------------------------------------------------------------------------------------------------------------


def test_foreign_writers_on_either_side_are_adopted_first(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(2))
    head = side.snapshot().cut.tables["a"]
    place = lake.plain_access_of(head).on_branch(head.branch)
    lance.write_dataset(numbers(77), place.lance_uri, mode="append")
    foreign_append(uri_of(lake, "a"), 88)
    lake.branches.merge("side")
    assert sorted(lake.table("a").to_arrow()["id"].to_pylist()) == [1, 2, 77, 88]
    assert sorted(stock(lake, "a").to_table()["id"].to_pylist()) == [1, 2, 77, 88]
    sound(lake)


@pytest.mark.parametrize("delete", [True, False])
def test_a_cleanup_keeps_what_was_merged(site: Site, delete: bool) -> None:
    lake = site.open()
    main, side = shop(lake, ["id"])
    side.append(table_of({100: "x"}))
    main.delete("id = 1")
    side.append(table_of({101: "y"}))
    lake.branches.merge("side")
    side.delete("id = 100")
    side.maintenance.compact()
    expected = rows(lake)
    if delete:
        lake.branches.delete("side")
    for _ in range(2):
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
        assert rows(lake) == expected
    sound(lake)
    if delete:
        lake.table("t").maintenance.compact()
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
        assert not site.files("tree/"), "nothing names these files any more"
    else:
        side.append(table_of({102: "z"}))
        lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
        lake.branches.merge("side")  # the common ancestor is kept
        assert rows(lake) == {**{key: value for key, value in expected.items() if key != 100}, 102: "z"}
    assert rows(lake).keys() >= {101}
    sound(lake)


def test_a_branch_whose_versions_were_cleaned_up_is_merged_by_its_outcome(lake: Lake) -> None:
    _, side = shop(lake)
    for number in range(5):
        side.append(table_of({100 + number: "x"}))
    side.delete("id = 101")
    lake.cleanup(keep_snapshots=1, grace=NO_GRACE)
    done = lake.branches.merge("side")
    assert done.tables[0].how == "merged"
    assert rows(lake) == {**TEN, 100: "x", 102: "x", 103: "x", 104: "x"}
    sound(lake)


@pytest.mark.parametrize("moved", ["target", "source"])
def test_a_serializable_merge_is_of_what_both_branches_are(site: Site, lake: Lake, moved: str) -> None:
    """It read all tables of both: one that moved before it is committed is looked at again, or the merge is refused."""
    serializable = ty.merges.MergeOptions(isolation="serializable")
    for name, options in (("snapshot", ty.merges.MergeOptions()), ("serializable", serializable)):
        lake.branches.create(name)
        lake.on_branch(name).table("a").append(numbers(2))
        other = site.open().on_branch("main" if moved == "target" else name)
        at, told = lake.snapshot().id, len(lake.on_branch(name).snapshot().table("b").to_arrow())
        plain = lake.catalog.records
        through(lake, partial(InterposedRecords, before=partial(other.table("b").append, numbers(5)), match="tip/main"))
        done = lake.branches.merge(name, options=options)
        lake.catalog.records = plain
        if moved == "target":  # a commit beside it is before the merge; only the strict one has seen it
            assert (done.snapshot, lake.catalog.snapshot(done.snapshot).base) == (at + 2, at if name == "snapshot" else at + 1)
        else:
            assert len(lake.table("b").to_arrow()) == told + (name == "serializable"), "what came to the branch meanwhile"
            assert lake.branches.merge(name).up_to_date == (name == "serializable")
    lake.branches.create("watched")
    lake.on_branch("watched").table("a").append(numbers(3))
    source, target = lake.on_branch("watched").snapshot().id, lake.snapshot().id
    looked_at = ty.merges.MergeOptions(source, target, isolation="serializable")
    other = site.open().on_branch("main" if moved == "target" else "watched")
    through(lake, lambda records: InterposedRecords(records, lambda: other.table("b").append(numbers(6)), match="tip/main"))
    with pytest.raises(ty.ExpectedVersionMismatch) as caught:
        lake.branches.merge("watched", options=looked_at)
    assert caught.value.cause == moved
    assert 3 not in ids(lake.table("a"))


def test_a_table_whose_schema_has_other_metadata_is_not_dropped_by_a_merge(lake: Lake) -> None:
    lake.branches.create("side")
    lake.on_branch("side").drop_table("a")
    lake.table("a").settings.update_schema_metadata({"unit": "m"})
    with pytest.raises(ty.MergeConflict) as caught:
        lake.branches.merge("side")
    assert [(conflict.table, conflict.kind) for conflict in caught.value.conflicts] == [("a", "dropped")]


def test_merge_options_check_themselves() -> None:
    wrong: list[dict[str, Any]] = [{"isolation": "loose"}, {"source_at": "1"}, {"target_at": True}]
    for given in wrong:
        with pytest.raises(InvalidInput):
            ty.merges.MergeOptions(**given)
