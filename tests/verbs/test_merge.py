"""Merge through the handle: every clause against a model of rows, what is refused, and others who write at the same time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, KeyConflict, OutcomeUnknown, RetryableConflict, StorageError, UnsupportedFeature
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
KEYS = pytest.mark.parametrize("key", [["id"], ["g", "id"], []], ids=["one", "composite", "none"])

SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.string()), ("x", pa.int32()), ("s", pa.string())])

Row = dict[str, Any]
Model = dict[tuple[str, int], Row]


def _row(number: int, x: int = 0, s: str | None = None) -> Row:
    return {"id": number, "g": f"g{number % 3}", "x": x, "s": f"s{number}" if s is None else s}


def _table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def _make(root: Path, key: list[str], *, stable: bool = False, count: int = 12) -> ty.Table:
    table = ty.Table.create(
        root,
        _table([_row(one) for one in range(count)]),
        primary_key=key,
        stable_row_ids=stable,
        options=ty.TableOptions(files=ty.FileLimits(rows=5)),
    )
    assert len(table.layout.fragments) == -(-count // 5)
    return table


def _on(key: list[str]) -> list[str] | None:
    return None if key else ["id", "g"]


def _seen(root: Path) -> Model:
    """The rows by key, the same for us and for pylance."""
    table = ty.Table.open(root)
    ours = table.to_arrow()
    stock = open_stock(str(root))
    stock.validate()
    assert stock.to_table().equals(ours)
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    found = {(row["g"], row["id"]): row for row in ours.to_pylist()}
    assert len(found) == ours.num_rows
    return found


def _model(*rows: Row) -> Model:
    return {(row["g"], row["id"]): row for row in rows}


def _ids(root: Path) -> dict[tuple[str, int], int]:
    found = open_stock(str(root)).to_table(columns=["g", "id"], with_row_id=True).to_pydict()
    return dict(zip(zip(found["g"], found["id"], strict=True), found["_rowid"], strict=True))


# ---- clauses ---------------------------------------------------------------------------------------------------------------


@STABLE
@KEYS
def test_upsert(tmp_path: Path, stable: bool, key: list[str]) -> None:
    root = tmp_path / "t"
    table = _make(root, key, stable=stable)
    before = _ids(root)
    source = _table([_row(3, 1, "a"), _row(11, 2, "b"), _row(20, 3, "c"), _row(21, 4, "d")])
    merge = table.merge(source, _on(key)).when_matched_update_all().when_not_matched_insert_all()
    result = merge.execute(message="upserted", commit=ty.CommitOptions(properties={"job": "j"}))
    assert (result.version, result.operation, dict(result.rows)) == (2, "Update", {"inserted": 2, "updated": 2, "deleted": 0})
    assert table.version == 2
    expected = _model(*(_row(one) for one in range(12))) | _model(*source.to_pylist())
    assert _seen(root) == expected
    assert table.history()[0].message == "upserted"
    assert table.history()[0].properties["job"] == "j"
    if stable:
        after = _ids(root)
        assert {one: after[one] for one in before} == before, "rows that were there keep their ids"
        assert len(set(after.values())) == 14
    merge = table.merge(source, _on(key)).when_matched_update_all("source.x > target.x").when_not_matched_insert_all()
    assert merge.execute().attempts == 0, "nothing left to do"
    assert _seen(root) == expected


@STABLE
def test_insert_only(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"], stable=stable)
    result = table.merge(_table([_row(3, 9), _row(30, 9)])).when_not_matched_insert_all().execute()
    assert dict(result.rows) == {"inserted": 1, "updated": 0, "deleted": 0}
    assert _seen(root) == _model(*(_row(one) for one in range(12)), _row(30, 9))
    assert [one.deletion_file for one in table.layout.fragments] == [None] * 4


@STABLE
@KEYS
def test_new_rows_are_inserted_where_a_condition_holds(tmp_path: Path, key: list[str], stable: bool) -> None:
    table = _make(tmp_path, key, stable=stable)
    source = _table([_row(number, number % 4, None if number % 5 else "") for number in range(10, 40)])
    merge = table.merge(source, _on(key)).when_matched_update_all().when_not_matched_insert_all(where="source.x = 1")
    result = merge.when_not_matched_insert_all(where="source.s = '' OR source.id = 11").execute()
    wanted = [row for row in source.to_pylist() if row["id"] >= 12 and (row["x"] == 1 or row["s"] == "")]
    assert result.rows == {"inserted": len(wanted), "updated": 2, "deleted": 0}
    model = {(row["g"], row["id"]): row for row in [*(_row(number) for number in range(10)), *source.to_pylist()[:2], *wanted]}
    assert _seen(tmp_path) == model
    rest = table.merge(source, _on(key)).when_not_matched_insert_all(where="source.x = 9")
    assert rest.execute().rows == {"inserted": 0, "updated": 0, "deleted": 0}
    assert rest.when_not_matched_insert_all().execute().rows["inserted"] == 28 - len(wanted)


@pytest.mark.parametrize("where", ["target.x = 1", "x = 1", "source.nowhere = 1", "source.x =", ""])
def test_a_condition_for_new_rows_is_about_the_source(tmp_path: Path, where: str) -> None:
    table = _make(tmp_path, ["id"])
    with pytest.raises(InvalidInput):
        table.merge(_table([_row(99)])).when_not_matched_insert_all(where=where).execute()
    assert table.version == 1


@STABLE
def test_some_columns(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"], stable=stable)
    source = _table([_row(4, 7, "not this"), _row(40, 8, "new")])
    table.merge(source).when_matched_update(["x"]).when_not_matched_insert_all().execute()
    expected = _model(*(_row(one, 7 if one == 4 else 0) for one in range(12)), _row(40, 8, "new"))
    assert _seen(root) == expected
    narrow = pa.table({"x": pa.array([5, 6], pa.int32()), "id": pa.array([0, 99], pa.int64())})
    result = table.merge(narrow).when_matched_update_all().execute()
    assert dict(result.rows) == {"inserted": 0, "updated": 1, "deleted": 0}
    expected["g0", 0]["x"] = 5
    assert _seen(root) == expected


def test_a_source_without_some_columns_inserts_nulls_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"])
    narrow = pa.table({"id": pa.array([2, 50], pa.int64()), "x": pa.array([5, 6], pa.int32())})
    table.merge(narrow).when_matched_update_all().when_not_matched_insert_all().execute()
    rows = {one["id"]: one for one in ty.Table.open(root).to_arrow().to_pylist()}
    assert rows[2] == _row(2, 5)
    assert rows[50] == {"id": 50, "g": None, "x": 6, "s": None}
    table.merge(narrow.set_column(0, "id", pa.array([51, 52], pa.int64()))).when_not_matched_insert_all().execute()
    assert table.to_arrow(filter="id = 52").to_pylist() == [{"id": 52, "g": None, "x": 6, "s": None}]


@STABLE
def test_deletes(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"], stable=stable)
    keys = pa.table({"id": pa.array([1, 2, 77], pa.int64())})
    assert dict(table.merge(keys).when_matched_delete("target.s = 's2'").execute().rows) == {"inserted": 0, "updated": 0, "deleted": 1}
    assert dict(table.merge(keys).when_matched_delete().execute().rows)["deleted"] == 1
    left = [0, *range(3, 12)]
    assert _seen(root) == _model(*map(_row, left))
    result = table.merge(_table([_row(0), _row(3)])).when_not_matched_by_source_delete("id >= 9").execute()
    assert result.rows["deleted"] == 3
    merge = table.merge(_table([_row(0), _row(3, 8), _row(60)])).when_matched_update_all("source.x = 8")
    result = merge.when_not_matched_insert_all().when_not_matched_by_source_delete().execute()
    assert dict(result.rows) == {"inserted": 1, "updated": 1, "deleted": 5}
    assert _seen(root) == _model(_row(0), _row(3, 8), _row(60))


def test_matches_that_must_not_be(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"])
    merge = table.merge(_table([_row(5), _row(70)])).when_matched_fail().when_not_matched_insert_all()
    with pytest.raises(KeyConflict) as caught:
        merge.execute()
    assert caught.value.sample == ("id 5",)
    assert not caught.value.retryable
    assert caught.value.executions == 1
    assert len(_seen(root)) == 12
    table.merge(_table([_row(70)])).when_matched_fail().when_not_matched_insert_all().execute()
    assert len(_seen(root)) == 13


def test_the_first_clause_whose_condition_holds_decides(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"])
    source = _table([_row(one, one, "new") for one in range(6)])
    merge = table.merge(source).when_matched_delete("source.x < 2").when_matched_update(["s"], "source.x < 4")
    merge = merge.when_matched_update_all("target.g = 'g1'")
    assert dict(merge.execute().rows) == {"inserted": 0, "updated": 3, "deleted": 2}
    expected = _model(*(_row(one) for one in range(5, 12)), _row(2, 0, "new"), _row(3, 0, "new"), _row(4, 4, "new"))
    assert _seen(root) == expected
    with pytest.raises(InvalidInput, match="takes all"):
        table.merge(source).when_matched_update_all().when_matched_delete()


@STABLE
@KEYS
def test_values_that_are_expressions(tmp_path: Path, stable: bool, key: list[str]) -> None:
    root = tmp_path / "t"
    table = _make(root, key, stable=stable)
    before = _ids(root)
    source = _table([_row(one, x=one * 10, s="new") for one in (1, 4, 5, 20, 21, 22)])
    merge = table.merge(source, _on(key))
    merge = merge.when_matched_update({"x": "target.x + source.x + 1", "s": "target.s || '!'"}, "source.id < 5").when_matched_update(["x"])
    merge = merge.when_not_matched_insert({"x": "-source.x", "g": "source.g"}, "source.id = 20")
    merge = merge.when_not_matched_insert(["s", "g"], "source.id = 21")
    merge = merge.when_not_matched_by_source_update({"x": "id * 100", "s": "NULL"}, "id >= 10").when_not_matched_by_source_delete("id = 0")
    result = merge.execute()
    assert result.rows == {"inserted": 2, "updated": 5, "deleted": 1}
    kept = [_row(one) for one in (2, 3, 6, 7, 8, 9)]
    both = [_row(1, 11, "s1!"), _row(4, 41, "s4!"), _row(5, 50)]
    alone = [{**_row(one), "x": one * 100, "s": None} for one in (10, 11)]
    new = [{**_row(20), "x": -200, "s": None}, {**_row(21, s="new"), "x": None}]
    assert _seen(root) == _model(*kept, *both, *alone, *new)
    if stable:
        after = _ids(root)
        assert {row: number for row, number in after.items() if row in before} == {row: before[row] for row in before if row in after}


def test_of_several_clauses_for_rows_of_one_side_the_first_decides(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", ["id"])
    merge = table.merge(_table([_row(20), _row(21)]))
    merge = merge.when_not_matched_insert({"x": "1"}, "source.id = 20").when_not_matched_insert({"x": "2"})
    merge = merge.when_not_matched_by_source_delete("id < 2").when_not_matched_by_source_update({"x": "9"}, "id < 3")
    assert merge.execute().rows == {"inserted": 2, "updated": 1, "deleted": 2}
    assert table.to_arrow(["id", "x"], "x > 0").sort_by("id").to_pylist() == [{"id": 2, "x": 9}, {"id": 20, "x": 1}, {"id": 21, "x": 2}]


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        (lambda m: m.when_matched_update({"x": "source.none"}), "none"),
        (lambda m: m.when_matched_update({"none": "1"}), "no column 'none'"),
        (lambda m: m.when_matched_update({"id": "source.id + 1"}), "two rows of one key"),
        (lambda m: m.when_not_matched_insert({"id": "source.id + 1", "x": "1"}), "two rows of one key"),
        (lambda m: m.when_not_matched_by_source_update({"id": "id + 1"}), "two rows of one key"),
        (lambda m: m.when_not_matched_insert({"x": "target.x"}), "target"),
        (lambda m: m.when_not_matched_insert(["none"]), "no column 'none' to insert"),
        (lambda m: m.when_not_matched_by_source_update({"x": "source.x"}), "source"),
        (lambda m: m.when_not_matched_by_source_update(["x"]), "have no source row"),
        (lambda m: m.when_matched_update({"x": 1}), "SQL expression"),
        (lambda m: m.when_matched_update({}), "at least one"),
        (lambda m: m.when_matched_update({"x": "'no number'"}), "does not fit"),
        (lambda m: m.when_not_matched_insert_all().when_not_matched_insert({"x": "1"}), "No row is left for insert"),
        (lambda m: m.when_not_matched_by_source_delete().when_not_matched_by_source_update({"x": "1"}), "No row is left for update"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, clause: Callable[[ty.MergeBuilder], ty.MergeBuilder], said: str) -> None:
    table = _make(tmp_path / "t", ["id"])
    with pytest.raises(InvalidInput, match=said):
        clause(table.merge(_table([_row(1), _row(30)]))).execute()
    assert table.refresh().version == 1


def test_the_key_may_be_said_as_it_is(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", ["id"])
    merge = table.merge(_table([_row(1), _row(30)])).when_matched_update({"id": "source.id", "x": "7"})
    merge.when_not_matched_insert({"id": "source.`id`", "x": "8"}).execute()
    assert table.to_arrow(["id", "x"], "x > 0").sort_by("id").to_pylist() == [{"id": 1, "x": 7}, {"id": 30, "x": 8}]


def test_values_of_columns_that_take_no_null(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64(), nullable=False), ("s", pa.string())])
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1], "x": [1], "s": ["a"]}, schema=schema), primary_key=["id"])
    source = pa.table({"id": [1, 2], "s": ["b", "c"]})
    with pytest.raises(InvalidInput, match="x"):
        table.merge(source).when_not_matched_insert(["s"]).execute()
    table.merge(source).when_not_matched_insert({"x": "length(source.s)", "s": "source.s"}).execute()
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 1, "x": 1, "s": "a"}, {"id": 2, "x": 1, "s": "c"}]
    assert table.check().problems == ()


def test_many_values_come_in_the_order_of_their_rows(tmp_path: Path) -> None:
    count = (1 << 16) + 100
    numbers = pa.array(range(count), pa.int64())
    table = ty.Table.create(tmp_path / "t", pa.table({"id": numbers, "x": numbers}), primary_key=["id"])
    source = pa.table({"id": pa.array(range(50, count + 50), pa.int64()), "x": pa.array(range(50, count + 50), pa.int64())})
    merge = table.merge(source.take(pa.array([*range(count)][::-1]))).when_matched_update({"x": "source.x * 2 + target.x"})
    result = merge.when_not_matched_insert({"x": "source.id + 1"}).when_not_matched_by_source_update({"x": "-id"}).execute()
    assert result.rows == {"inserted": 50, "updated": count, "deleted": 0}
    rows = table.to_arrow().sort_by("id").to_pydict()
    assert rows["x"] == [-one if one < 50 else one * 3 if one < count else one + 1 for one in rows["id"]]


def test_conditions_over_odd_names_and_types(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "a b": [1.5, 2.5, None], "t": pa.array([1, 2, 3], pa.timestamp("us")), "v": [[1], [2], [3]]})
    table = ty.Table.create(tmp_path / "t", rows, primary_key=["id"])
    source = rows.set_column(3, "v", pa.array([[9], [9], [9]]))
    condition = "target.`a b` < source.`a b` + 1 and source.t >= target.t and target.id <> 2"
    assert table.merge(source).when_matched_update_all(condition).execute().rows["updated"] == 1
    assert table.merge(source).when_matched_update_all("target.`a b` is null").execute().rows["updated"] == 1
    assert table.merge(source).when_matched_update_all("false").execute().rows["updated"] == 0
    assert {one["id"]: one["v"] for one in table.to_arrow().to_pylist()} == {1: [9], 2: [2], 3: [9]}
    for wrong in ("source.nope = 1", "x = 1", "source.id ="):
        with pytest.raises(InvalidInput):
            table.merge(source).when_matched_update_all(wrong).execute()


@pytest.mark.parametrize("seed", range(6))
@STABLE
def test_random_merges_against_a_model(tmp_path: Path, stable: bool, seed: int) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    root = tmp_path / "t"
    key = random_.choice([["id"], ["g", "id"]])
    table = _make(root, key, stable=stable)
    model = _model(*(_row(one) for one in range(12)))
    for _ in range(6):
        source = [_row(one, random_.randrange(100), random_.choice("abc")) for one in random_.sample(range(24), random_.randrange(1, 14))]
        counts = _random_merge(table, model, source, random_)
        assert dict(counts[0].rows) == counts[1]
        assert _seen(root) == model


def _random_merge(table: ty.Table, model: Model, source: list[Row], random_: random.Random) -> tuple[ty.CommitResult, dict[str, int]]:
    merge, limit = table.merge(_table(source)), random_.randrange(100)
    matched = random_.choice(["update", "some", "delete", "none"])
    conditional = random_.random() < 0.5
    condition = f"source.x < {limit} and target.s <> source.s" if conditional else None
    if matched == "update":
        merge = merge.when_matched_update_all(condition)
    elif matched == "some":
        merge = merge.when_matched_update(["s"], condition)
    elif matched == "delete":
        merge = merge.when_matched_delete(condition)
    inserting, deleting = random_.random() < 0.7, random_.random() < 0.3
    if inserting or (matched == "none" and not deleting):
        merge, inserting = merge.when_not_matched_insert_all(), True
    if deleting:
        merge = merge.when_not_matched_by_source_delete(f"x < {limit}")
    counts = {"inserted": 0, "updated": 0, "deleted": 0}
    given = _model(*source)
    for key, row in list(model.items()):
        if key not in given:
            if deleting and row["x"] < limit:
                del model[key]
                counts["deleted"] += 1
        elif matched != "none" and (not conditional or (given[key]["x"] < limit and row["s"] != given[key]["s"])):
            if matched == "delete":
                del model[key]
                counts["deleted"] += 1
            else:
                model[key] = given[key] if matched == "update" else {**row, "s": given[key]["s"]}
                counts["updated"] += 1
            given.pop(key)
        else:
            given.pop(key)
    if inserting:
        model.update(given)
        counts["inserted"] = len(given)
    return merge.execute(), counts


# ---- sources ---------------------------------------------------------------------------------------------------------------


class _Frame:
    """A data frame, as far as Arrow is concerned."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "source",
    [
        lambda: [_row(1, 1), _row(90, 1)],
        lambda: pa.RecordBatchReader.from_batches(SCHEMA, iter(_table([_row(1, 1), _row(90, 1)]).to_batches(max_chunksize=1))),
        lambda: _Frame(_table([_row(1, 1), _row(90, 1)])),
        lambda: _table([_row(1, 1), _row(90, 1)]).select(["s", "x", "g", "id"]),
    ],
    ids=["dicts", "stream", "data frame", "other order"],
)
def test_sources(tmp_path: Path, source: Callable[[], Any]) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"])
    given = source()
    if isinstance(given, list):
        given = pa.Table.from_pylist(given, SCHEMA).to_pydict()
        given["x"] = pa.array(given["x"], pa.int32())
    table.merge(given).when_matched_update_all().when_not_matched_insert_all().execute()
    assert _seen(root) == _model(*(_row(one, 1 if one == 1 else 0) for one in range(12)), _row(90, 1))


def test_an_empty_table_and_an_empty_source(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", SCHEMA, primary_key=["id"])
    merge = table.merge(_table([])).when_matched_update_all().when_not_matched_insert_all()
    assert merge.execute().attempts == 0
    table.merge(_table([_row(1)])).when_matched_update_all("source.x > target.x").when_not_matched_insert_all().execute()
    assert _seen(tmp_path / "t") == _model(_row(1))


def test_what_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root, ["id"])
    with pytest.raises(KeyConflict) as caught:
        table.merge(_table([_row(1), _row(2), _row(1), _row(3), _row(2)])).when_not_matched_insert_all().execute()
    assert (caught.value.sample, caught.value.retryable) == (("id 1", "id 2"), False)
    for source, on, match in (
        (_table([_row(1)]), ["nope"], "no column"),
        (_table([_row(1)]), ["id", "id"], "only once"),
        (_table([_row(1)]).drop(["id"]), None, "matched by"),
        (_table([{**_row(1), "id": None}]), None, "null"),
        (_table([{**_row(1), "g": None}]), ["g"], "two rows of one primary key"),
        (_table([_row(1)]), ["s"], "two rows of one primary key"),
        (_table([_row(1)]).append_column("more", pa.array([1])), None, "more"),
    ):
        with pytest.raises(InvalidInput, match=match):
            table.merge(source, on).when_matched_update_all().when_not_matched_insert_all().execute()
    with pytest.raises(InvalidInput, match="no clause"):
        table.merge(_table([_row(1)])).execute()
    with pytest.raises(InvalidInput, match="to update"):
        table.merge(_table([_row(1)]).drop(["s"])).when_matched_update(["s"]).execute()
    with pytest.raises(InvalidInput):
        table.merge(_table([_row(1)])).when_matched_update_all("")
    assert ty.Table.open(root).layout.versions() == [1]
    assert len(_seen(root)) == 12
    bare = ty.Table.create(tmp_path / "bare", _table([_row(1)]))
    with pytest.raises(InvalidInput, match="no primary key"):
        bare.merge(_table([_row(1)])).when_not_matched_insert_all().execute()
    with pytest.raises(InvalidInput, match="nulls in g"):
        bare.merge(_table([{**_row(1), "g": None}]), "g").when_not_matched_insert_all().execute()


def test_merging_on_other_columns_than_the_key(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", ["id"])
    source = pa.table({"s": ["s1", "s2"], "x": pa.array([4, 5], pa.int32())})
    assert table.merge(source, "s").when_matched_update_all().execute().rows["updated"] == 2, "no row can get a key it did not have"
    merge = table.merge(_table([_row(1, 6, "s1"), _row(1, 7, "other")]), ["s"], allow_duplicates=True)
    assert merge.when_matched_update_all().when_not_matched_insert_all().execute().rows == {"inserted": 1, "updated": 1, "deleted": 0}
    assert table.count_rows("id = 1") == 2


def test_several_rows_of_the_table_take_one_row_of_the_source(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"k": [1, 1, 2, None], "v": [0, 0, 0, 0]}), stable_row_ids=True)
    table.merge(pa.table({"k": [1], "v": [5]}), "k").when_matched_update_all().execute()
    assert sorted(table.to_arrow()["v"].to_pylist()) == [0, 0, 5, 5]


def test_members_of_structs(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
    schema = pa.schema([pa.field("a", kind, False), pa.field("x", pa.int64())])
    rows = pa.table([pa.array([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}], kind), pa.array([1, 2])], schema=schema)
    table = ty.Table.create(tmp_path / "t", rows, primary_key=["a.k"])
    source = pa.table([pa.array([{"k": 2, "v": "new"}, {"k": 3, "v": "c"}], kind), pa.array([5, 6])], schema=schema)
    table.merge(source).when_matched_update_all().when_not_matched_insert_all().execute()
    found = sorted((one["a"]["k"], one["a"]["v"], one["x"]) for one in table.to_arrow().to_pylist())
    assert found == [(1, "a", 1), (2, "new", 5), (3, "c", 6)]
    with pytest.raises(KeyConflict):
        table.append(source)
    part = pa.table([pa.array([{"k": 2}], pa.struct([pa.field("k", pa.int64(), False)]))], names=["a"])
    with pytest.raises(InvalidInput, match="as a whole"):
        table.merge(part).when_matched_update_all().execute()


def test_blobs_that_would_have_to_move(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob, pa.field("x", pa.int64())])
    rows = pa.table([pa.array([1, 2]), pa.array([b"one", b"two"], pa.large_binary()), pa.array([0, 0])], schema=schema)
    table = ty.Table.create(tmp_path / "t", rows, primary_key=["id"], options=ty.TableOptions(data_format="2.1"))
    with pytest.raises(UnsupportedFeature, match="blobs"):
        table.merge(pa.table({"id": [1], "x": [5]})).when_matched_update_all().execute()
    assert table.check().orphans == ()
    table.merge(pa.table({"id": [1]})).when_matched_delete().execute()
    assert table.count_rows() == 1


# ---- beside others ---------------------------------------------------------------------------------------------------------


def _interrupted(root: Path, act: Callable[[], Any]) -> ty.Table:
    return handle(root, InterruptedStore(LocalStore(root), is_version, act))


def _upsert(table: ty.Table, *rows: Row, **how: Any) -> ty.CommitResult:
    return table.merge(_table(list(rows)), how.pop("on", None)).when_matched_update_all().when_not_matched_insert_all().execute(**how)


def _stock_upsert(root: Path, *rows: Row) -> Any:
    merge = open_stock(str(root)).merge_insert(["id"])
    return merge.when_matched_update_all().when_not_matched_insert_all().execute(_table(list(rows)))


BESIDE: dict[str, Callable[[Path], Any]] = {
    "update": lambda root: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"),
    "merge": lambda root: _stock_upsert(root, _row(3, 10), _row(50)),
    "delete": lambda root: open_stock(str(root)).delete("id = 3"),
    "our merge": lambda root: _upsert(ty.Table.open(root), _row(3, 10), _row(50)),
}


@STABLE
@pytest.mark.parametrize("beside", BESIDE)
def test_other_rows_and_other_keys_go_together(tmp_path: Path, stable: bool, beside: str) -> None:
    """The new fragment of a concurrent update holds rows that were there: none of our new keys, so nobody is in the way."""
    root = tmp_path / "t"
    _make(root, ["id"], stable=stable)
    result = _upsert(_interrupted(root, lambda: BESIDE[beside](root)), _row(4, 1), _row(40, 1), commit=ty.CommitOptions(reexecutions=0))
    assert dict(result.rows) == {"inserted": 1, "updated": 1, "deleted": 0}
    seen = {key[1]: row["x"] for key, row in _seen(root).items()}
    assert (seen[4], seen[40], seen.get(3)) == (1, 1, None if beside == "delete" else 10)


def test_an_insert_only_merge_does_not_mind_moves_of_rows_it_matched(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root, ["id"])
    table = _interrupted(root, lambda: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"))
    result = table.merge(_table([_row(3, 1), _row(40, 1)])).when_not_matched_insert_all().execute(commit=ty.CommitOptions(reexecutions=0))
    assert result.rows["inserted"] == 1
    assert _seen(root)["g0", 3]["x"] == 10


@STABLE
def test_the_same_row_is_worked_out_again(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, ["id"], stable=stable)
    table = _interrupted(root, lambda: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"))
    source = pa.table({"id": pa.array([3], pa.int64()), "s": ["mine"]})
    result = table.merge(source).when_matched_update(["s"]).execute()
    assert result.read_version == 2
    assert _seen(root)["g0", 3] == _row(3, 10, "mine")
    again = _interrupted(root, lambda: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"))
    with pytest.raises(RetryableConflict):
        again.merge(source).when_matched_update(["s"]).execute(commit=ty.CommitOptions(reexecutions=0))
    assert _seen(root)["g0", 3] == _row(3, 20, "mine")


def test_a_stream_is_good_for_several_runs(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root, ["id"])

    def batches() -> Iterator[pa.RecordBatch]:
        yield from _table([_row(3, 1), _row(41, 1)]).to_batches()

    table = _interrupted(root, lambda: _stock_upsert(root, _row(41, 9)))
    merge = table.merge(pa.RecordBatchReader.from_batches(SCHEMA, batches())).when_matched_update_all().when_not_matched_insert_all()
    assert dict(merge.execute().rows) == {"inserted": 0, "updated": 2, "deleted": 0}
    assert _seen(root)["g2", 41]["x"] == 1


def test_every_fault_leaves_the_table_sound(tmp_path: Path) -> None:
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 40):
            root = tmp_path / f"{kind.name} {number}"
            _make(root, ["id"])
            faulty = FaultStore(LocalStore(root), kind, at=number)
            try:
                _upsert(handle(root, faulty), _row(3, 1), _row(40, 1))
            except (StorageError, OutcomeUnknown):
                pass
            stock = open_stock(str(root))
            stock.validate()
            assert stock.count_rows() == 12 + stock.count_rows("x = 1 and id = 40")
            assert stock.count_rows("x = 1") in (0, 2), "both or none"
            if not faulty.fired:
                break
        else:
            pytest.fail("the merge never passed")
