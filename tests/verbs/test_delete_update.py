"""Delete and update through the handle, beside other writers, and as stock pylance sees the outcome."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, OutcomeUnknown, RetryableConflict, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
MODES = pytest.mark.parametrize("mode", ["rows", "columns"])


def _rows(count: int = 12) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(count), pa.int64()), "x": pa.array([0] * count, pa.int32()), "s": [f"s{n}" for n in range(count)]}
    )


def _make(root: Path, *, stable: bool = False) -> ty.Table:
    table = ty.Table.create(root, _rows(), stable_row_ids=stable, options=ty.TableOptions(files=ty.FileLimits(rows=5)))
    assert len(table.layout.fragments) == 3
    return table


def _seen(root: Path) -> dict[int, tuple[int, str]]:
    """The rows by id, the same for us and for pylance."""
    table = ty.Table.open(root)
    ours = table.to_arrow()
    stock = open_stock(str(root))
    stock.validate()
    assert stock.to_table().equals(ours)
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    found = {row["id"]: (row["x"], row["s"]) for row in ours.to_pylist()}
    assert len(found) == ours.num_rows
    return found


@STABLE
def test_delete(tmp_path: Path, stable: bool) -> None:
    table = _make(tmp_path / "t", stable=stable)
    result = table.delete("id in (0, 6) or id >= 10", message="gone")
    assert (result.version, result.operation, dict(result.rows)) == (2, "Delete", {"deleted": 4})
    assert (table.version, table.count_rows()) == (2, 8)
    assert set(_seen(tmp_path / "t")) == {1, 2, 3, 4, 5, 7, 8, 9}
    assert [one.id for one in table.layout.fragments] == [0, 1], "a fragment without rows goes"
    assert table.history()[0].message == "gone"
    table.delete("id = 1")
    assert set(_seen(tmp_path / "t")) == {2, 3, 4, 5, 7, 8, 9}
    assert ty.Table.open(tmp_path / "t", version=1).count_rows() == 12


def test_a_delete_of_nothing_commits_nothing(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    result = table.delete("id > 100")
    assert (result.version, result.attempts, dict(result.rows)) == (1, 0, {"deleted": 0})
    assert ty.Table.open(tmp_path / "t").layout.versions() == [1]


@pytest.mark.parametrize("where", [None, "", "  ", 7])
def test_a_condition_is_never_left_out_by_accident(tmp_path: Path, where: object) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        table.delete(where)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        table.delete("no_such_column = 1")
    assert table.count_rows() == 12


@MODES
@STABLE
def test_update(tmp_path: Path, stable: bool, mode: str) -> None:
    root = tmp_path / "t"
    table = _make(root, stable=stable)
    before = open_stock(str(root)).to_table(columns=["id"], with_row_id=True).to_pydict()
    result = table.update({"x": "id * 2", "s": "concat(s, '!')"}, "id % 5 = 1", mode=mode)  # type: ignore[arg-type]
    assert (result.version, result.operation, dict(result.rows)) == (2, "Update", {"updated": 3})
    expected = {one: (one * 2, f"s{one}!") if one % 5 == 1 else (0, f"s{one}") for one in range(12)}
    assert _seen(root) == expected
    assert len(table.layout.fragments) == (4 if mode == "rows" else 3)
    table.delete("id = 6")
    table.update({"x": "-1"}, "id = 1", mode=mode)  # type: ignore[arg-type]
    assert _seen(root) == {one: (-1, "s1!") if one == 1 else row for one, row in expected.items() if one != 6}
    if stable:
        after = open_stock(str(root)).to_table(columns=["id"], with_row_id=True).to_pydict()
        assert dict(zip(after["id"], after["_rowid"], strict=True)) == {
            one: number for one, number in zip(before["id"], before["_rowid"], strict=True) if one != 6
        }


def test_all_rows_are_updated_without_a_condition(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    assert table.update({"x": "7"}).rows["updated"] == 12
    assert {x for x, _ in _seen(tmp_path / "t").values()} == {7}


def test_auto_rewrites_few_columns_of_many_rows_in_place(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    table.update({"x": "1"}, "id < 5")
    assert len(table.layout.fragments) == 3
    assert [len(one.files) for one in table.layout.fragments] == [2, 1, 1]
    table.update({"x": "2"}, "id = 6")
    assert len(table.layout.fragments) == 4
    table.update({"x": "3", "s": "'all'"}, "id < 5")
    assert len(_seen(tmp_path / "t")) == 12


@pytest.mark.parametrize(
    ("values", "match"),
    [({}, "at least one"), ({"nope": "1"}, "no column"), ({"x": 1}, "as text"), ({"x": "'text'"}, "fit"), ({"x": "99999999999"}, "fit")],
)
@MODES
def test_updates_that_cannot_be(tmp_path: Path, values: dict[str, str], match: str, mode: str) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.update(values, mode=mode)  # type: ignore[arg-type]
    assert _seen(tmp_path / "t") == {one: (0, f"s{one}") for one in range(12)}


@MODES
def test_nulls_where_none_may_be(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1], "x": [2], "y": pa.array([None], pa.int64())}, schema=schema))
    with pytest.raises(InvalidInput, match="null"):
        table.update({"x": "y"}, mode=mode)  # type: ignore[arg-type]
    assert table.check().orphans == ()


def test_the_key_is_not_updated(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", _rows(), primary_key=["id"])
    with pytest.raises(InvalidInput, match="primary key"):
        table.update({"id": "1"})


# ---- beside others ---------------------------------------------------------------------------------------------------------


def _interrupted(root: Path, act: object) -> ty.Table:
    """A handle whose first create of a version is preceded by somebody else's commit."""
    return handle(root, InterruptedStore(LocalStore(root), is_version, act))  # type: ignore[arg-type]


@STABLE
def test_a_delete_that_meets_a_delete_of_other_rows_is_merged(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable)
    table = _interrupted(root, lambda: open_stock(str(root)).delete("id = 1"))
    result = table.delete("id = 2")
    assert [one.operation for one in result.rebased_over] == ["Delete"]
    assert set(_seen(root)) == {0, *range(3, 12)}


@MODES
@STABLE
def test_an_update_that_meets_one_of_the_same_row_is_worked_out_again(tmp_path: Path, stable: bool, mode: str) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable)
    table = _interrupted(root, lambda: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"))
    table.update({"x": "x + 1"}, "id = 3", mode=mode)  # type: ignore[arg-type]
    assert _seen(root)[3] == (11, "s3"), "neither is lost"


@MODES
def test_without_retries_the_conflict_is_told_at_once(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _interrupted(root, lambda: open_stock(str(root)).update({"x": "x + 10"}, "id = 3"))
    with pytest.raises(RetryableConflict) as caught:
        table.update({"x": "x + 1"}, "id = 3", mode=mode, commit=ty.CommitOptions(reexecutions=0))  # type: ignore[arg-type]
    assert caught.value.fragments == (0,)
    assert _seen(root)[3] == (10, "s3")


def test_a_row_deleted_meanwhile_does_not_come_back_by_an_update(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _interrupted(root, lambda: open_stock(str(root)).delete("id = 3"))
    result = table.update({"x": "1"}, "id in (3, 4)")
    assert dict(result.rows) == {"updated": 1}
    assert 3 not in _seen(root)


@pytest.mark.parametrize("verb", ["delete", "rows", "columns"])
def test_every_fault_leaves_the_table_sound(tmp_path: Path, verb: str) -> None:
    """An error before and after the Nth write of a verb, for N = 1, 2, ... until it passes."""
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 40):
            root = tmp_path / f"{kind.name} {number}"
            _make(root)
            faulty = FaultStore(LocalStore(root), kind, at=number)
            table = handle(root, faulty)
            try:
                table.delete("id = 3") if verb == "delete" else table.update({"x": "1"}, "id = 3", mode=verb)  # type: ignore[arg-type]
            except (StorageError, OutcomeUnknown):
                pass
            stock = open_stock(str(root))
            stock.validate()
            assert stock.count_rows() in ((11, 12) if verb == "delete" else (12,))
            if not faulty.fired:
                break
        else:
            pytest.fail("the verb never passed")
