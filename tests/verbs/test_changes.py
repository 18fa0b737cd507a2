"""The feed of changes: for every verb, against a model that knows only what each version holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tests.support.tables import open_stock
from tiltyard.errors import HistoryUnavailable, InvalidInput, NotFound
from tiltyard.verbs import changed_rows

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["places", "stable"])

Row = dict[str, Any]


def _rows(*ids: int, x: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([x] * len(ids), pa.int32()), "s": [f"s{number}" for number in ids]})


def _make(root: Path, *, stable: bool) -> ty.Table:
    return ty.Table.create(
        root / "t", _rows(*range(8)), stable_row_ids=stable, durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=3))
    )


def _feed(table: ty.Table, first: int, last: int | None = None, **options: Any) -> list[Row]:
    rows: list[Row] = table.changes(first, last, **options).read_all().to_pylist()
    return rows


def _told(table: ty.Table, first: int, last: int | None = None) -> list[tuple[str, int, int, int]]:
    """(change, version, id, x) of each row."""
    return [(one["_change"], one["_version"], one["id"], one["x"]) for one in _feed(table, first, last)]


@STABLE
def test_insertions_and_deletions(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.append(_rows(20, 21))
    table.delete("id in (1, 20)")
    table.delete("id < 3")
    assert _told(table, 1) == [
        ("insert", 2, 20, 0),
        ("insert", 2, 21, 0),
        ("delete", 3, 1, 0),
        ("delete", 3, 20, 0),
        ("delete", 4, 0, 0),
        ("delete", 4, 2, 0),
    ]
    assert _told(table, 2, 3) == [("delete", 3, 1, 0), ("delete", 3, 20, 0)]
    assert _told(table, 4) == []
    assert Counter(one[0] for one in _told(table, 0, 1)) == {"insert": 8}


@pytest.mark.parametrize("mode", ["rows", "columns"])
def test_updates_with_stable_row_ids(tmp_path: Path, mode: Any) -> None:
    table = _make(tmp_path, stable=True)
    table.update({"x": "x + 5"}, where="id in (2, 6)", mode=mode)
    assert sorted(_told(table, 1)) == [("update", 2, 2, 5), ("update", 2, 6, 5)]
    feed = _feed(table, 1, old_values=True)
    assert sorted((one["id"], one["_old"]["x"], one["x"]) for one in feed) == [(2, 0, 5), (6, 0, 5)]
    table.update({"x": "x"}, where="id = 2", mode=mode)
    assert _told(table, 2) == [("update", 3, 2, 5)], "an update that changes nothing is one all the same"


@pytest.mark.parametrize("mode", ["rows", "columns"])
def test_updates_without_them_are_deletions_and_insertions(tmp_path: Path, mode: Any) -> None:
    table = _make(tmp_path, stable=False)
    table.update({"x": "x + 5"}, where="id in (2, 6)", mode=mode)
    assert sorted(_told(table, 1)) == [("delete", 2, 2, 0), ("delete", 2, 6, 0), ("insert", 2, 2, 5), ("insert", 2, 6, 5)]


@STABLE
def test_a_merge_tells_what_it_updated_and_what_it_inserted(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.merge(_rows(7, 9, x=3), "id").when_matched_update_all().when_not_matched_insert_all().execute()
    update = [("update", 2, 7, 3)] if stable else [("delete", 2, 7, 0), ("insert", 2, 7, 3)]
    assert sorted(_told(table, 1)) == sorted([*update, ("insert", 2, 9, 3)])


@STABLE
def test_moving_rows_changes_none(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.delete("id = 4")
    before = table.version
    table.compact()
    assert table.version > before
    stock = open_stock(table.uri)
    stock.create_scalar_index("id", "BTREE")
    stock.optimize.compact_files()
    table.refresh()
    assert _told(table, before) == []


@STABLE
def test_an_overwrite_replaces_all_rows(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.overwrite(pa.table({"s": ["new"], "id": pa.array([0], pa.int64())}))
    feed = _feed(table, 1)
    assert Counter(one["_change"] for one in feed) == {"delete": 8, "insert": 1}
    assert set(feed[0]) == {"s", "id", "_change", "_version"}
    assert [one["s"] for one in feed] == [*(f"s{number}" for number in range(8)), "new"], "columns are found by their names"


@STABLE
def test_a_restore_brings_back_what_changed_and_no_more(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.compact()
    table.delete("id = 3")
    table.update({"x": "9"}, where="id = 5")
    table.append(_rows(30))
    last = table.version
    table.restore(1)
    update = [("update", 5, 0)] if stable else [("delete", 5, 9), ("insert", 5, 0)]
    told = [(change, number, x) for change, _, number, x in _told(table, last)]
    assert sorted(told) == sorted([("delete", 30, 0), ("insert", 3, 0), *update])


@STABLE
def test_columns_are_those_of_the_newer_version(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    table.delete("id = 1")
    table.add_columns({"y": "x + 1"})
    table.alter_columns({"path": "s", "name": "label"})
    table.drop_columns(["x"])
    table.alter_columns({"path": "y", "data_type": pa.int64()})
    table.delete("id = 2")
    feed = _feed(table, 1)
    assert [{key: one[key] for key in ("_change", "_version", "id", "label", "y")} for one in feed] == [
        {"_change": "delete", "_version": 2, "id": 1, "label": "s1", "y": None},
        {"_change": "delete", "_version": 7, "id": 2, "label": "s2", "y": 1},
    ]
    assert "x" not in feed[0]


def test_values_that_do_not_fit_the_newer_type_are_null(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=False)
    table.delete("id = 1")
    table.overwrite(pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([1.5])}))
    assert [(one["id"], one["s"]) for one in _feed(table, 1, 3) if one["_version"] == 2] == [(1, None)]


def test_a_value_that_does_not_fit_takes_no_other_one_with_it(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": pa.array(range(5), pa.int64()), "s": ["7", "x", "8", "", "9"]}))
    table.delete("true")
    table.overwrite(pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([1], pa.int64())}))
    feed = [one for one in _feed(table, 1, 3) if one["_version"] == 2]
    assert [(one["id"], one["s"]) for one in feed] == [(0, 7), (1, None), (2, 8), (3, None), (4, 9)]


@STABLE
def test_replaced_data_is_compared(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path, stable=stable)
    first = table.layout.fragments[0].id
    table.distributed.replace_data({first: pa.table({"x": pa.array([0, 7, 0], pa.int32())})})
    wanted = [("update", 2, 1, 7)] if stable else [("delete", 2, 1, 0), ("insert", 2, 1, 7)]
    assert _told(table, 1) == wanted


def test_nested_values_and_nulls_are_compared(tmp_path: Path) -> None:
    points = [{"a": 1, "b": [1, 2]}, {"a": 2, "b": None}, None]
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [0, 1, 2], "p": points, "f": [1.0, float("nan"), None]}), stable_row_ids=True)
    kind = table.schema.field("p").type
    table.distributed.replace_data({0: pa.table({"p": pa.array([points[0], {"a": 2, "b": []}, None], kind)})})
    table.distributed.replace_data({0: pa.table({"f": pa.array([None, float("nan"), 2.0])})})
    assert [(one["_version"], one["id"]) for one in _feed(table, 1)] == [(2, 1), (3, 0), (3, 2)]


def test_a_branch_has_a_feed_of_its_own(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=True)
    table.branches.create("try")
    branch = ty.Table.open(table.uri, branch="try")
    branch.append(_rows(50))
    branch.delete("id = 3")
    assert _told(branch, 1) == [("insert", 2, 50, 0), ("delete", 3, 3, 0)]


def test_stock_writers_are_understood(tmp_path: Path) -> None:
    uri = str(tmp_path / "stock")
    stock: Any = lance.write_dataset(_rows(1, 2, 3), uri, enable_stable_row_ids=True)
    stock.insert(_rows(4))
    stock.update({"x": "8"}, where="id = 2")
    stock.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(_rows(3, 5, x=6))
    stock.delete("id = 1")
    stock.optimize.compact_files()
    assert sorted(_told(ty.Table.open(uri), 1), key=lambda one: one[1:]) == [
        ("insert", 2, 4, 0),
        ("update", 3, 2, 8),
        ("update", 4, 3, 6),
        ("insert", 4, 5, 6),
        ("delete", 5, 1, 0),
    ]


def test_many_rows_come_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_rows, "CHUNK", 3)
    table = _make(tmp_path, stable=True)
    reader = table.changes(0)
    first = reader.read_next_batch()
    assert first.num_rows <= 3
    assert first.num_rows + sum(batch.num_rows for batch in reader) == 8


# ---- what it refuses ---------------------------------------------------------------------------------------------------------


def test_versions_that_are_not_there(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=True)
    for number in (20, 21, 22, 23):
        table.append(_rows(number))
    with pytest.raises(NotFound, match="yet"):
        table.changes(1, 9)
    for wrong in ((3, 2), (-1, 2), (True, 2), ("1", 2)):
        with pytest.raises(InvalidInput):
            table.changes(*wrong)
    with pytest.raises(InvalidInput, match="to_version 3 comes after columns_of 2"):
        table.changes(1, 3, columns_of=2)
    with pytest.raises(NotFound, match="yet"):
        table.changes(1, 3, columns_of=9)
    table.cleanup(keep_versions=2)
    with pytest.raises(HistoryUnavailable) as caught:
        table.changes(2)
    assert (caught.value.missing, caught.value.head) == ((2, 3), 5)
    assert [one["id"] for one in _feed(table, 4)] == [23]


def test_a_version_that_goes_while_it_is_read(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=True)
    for number in (20, 21, 22):
        table.append(_rows(number))
    reader = table.changes(0)
    reader.read_next_batch()
    table.overwrite(_rows(30))
    table.cleanup(keep_versions=1)
    with pytest.raises(HistoryUnavailable):
        reader.read_all()


def test_columns_of_the_feeds_own_names(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"_change": [1]}))
    with pytest.raises(InvalidInput, match="of its own"):
        table.changes(0)


# ---- random histories --------------------------------------------------------------------------------------------------------


class _Writer:
    """Does something random, with values that nobody used before."""

    def __init__(self, table: ty.Table, seed: int) -> None:
        self.table = table
        self.random = Random(seed)
        self.fresh = 1000

    def _ids(self) -> list[int]:
        live = self.table.to_arrow(["id"])["id"].to_pylist()
        return self.random.sample(live, min(len(live), self.random.randint(1, 4)))

    def _where(self) -> str:
        return f"id in ({', '.join(map(str, self._ids())) or '-1'})"

    def step(self) -> None:
        self.fresh += 10
        table, fresh = self.table, self.fresh
        match self.random.choice(["append", "delete", "update", "update", "merge", "merge", "compact", "overwrite", "restore", "add"]):
            case "append":
                table.append(self._like(_rows(fresh, fresh + 1, x=fresh)))
            case "delete":
                table.delete(self._where())
            case "update":
                table.update({"x": str(fresh)}, where=self._where(), mode=self.random.choice(["rows", "columns"]))
            case "merge":
                rows = self._like(_rows(*self._ids(), fresh, x=fresh))
                table.merge(rows, "id").when_matched_update_all().when_not_matched_insert_all().execute()
            case "compact":
                table.compact(target_rows=100, deletions=0.0)
            case "overwrite":
                if self.random.random() < 0.3:
                    table.overwrite(_rows(*range(fresh, fresh + 6), x=fresh))
            case "restore":
                table.restore(self.random.randint(1, table.version))
            case "add":
                table.add_columns({f"c{fresh}": "x + 1"})

    def _like(self, rows: pa.Table) -> pa.Table:
        for column in self.table.schema:
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
        return rows.select(self.table.schema.names)


def _held(table: ty.Table, version: int) -> dict[int, int]:
    rows = ty.Table.open(table.uri, version=version).to_arrow(["id", "x"]).to_pylist()
    assert len({one["id"] for one in rows}) == len(rows)
    return {one["id"]: one["x"] for one in rows}


@STABLE
@pytest.mark.parametrize("seed", range(pick(2, 40)))
def test_a_random_history_can_be_played_again(tmp_path: Path, stable: bool, seed: int) -> None:
    """Applied in order, the changes make every version of the one before it; and none is there without need."""
    print("seed", seed)
    writer = _Writer(_make(tmp_path, stable=stable), seed)
    for _ in range(14):
        writer.step()
    table = writer.table
    operations = {one.version: one.operation for one in table.history()}
    feed = _told(table, 0)
    assert [one[1] for one in feed] == sorted(one[1] for one in feed)
    cuts = [0, *sorted(Random(seed).sample(range(1, table.version), 3)), table.version]
    parts = [table.changes(*ends, old_values=True, columns_of=table.version).read_all() for ends in pairwise(cuts)]
    assert pa.concat_tables(parts).equals(table.changes(0, old_values=True).read_all()), f"read in parts, cut at {cuts}"
    state: dict[int, int] = {}
    for version in table.layout.versions():
        before = dict(state)
        mine = [one for one in feed if one[1] == version]
        for change, _, number, x in mine:
            if change == "insert":
                assert number not in state
                state[number] = x
            elif change == "update":
                assert stable
                assert number in state
                state[number] = x
            else:
                assert state.pop(number) == x
        assert state == _held(table, version), f"version {version}, {operations[version]}"
        if operations[version] not in ("Overwrite", "Restore"):
            touched = {number for _, _, number, _ in mine}
            assert touched == {number for number in before.keys() | state.keys() if before.get(number) != state.get(number)}
        if operations[version] in ("Rewrite", "ReserveFragments", "Merge"):
            assert mine == []
