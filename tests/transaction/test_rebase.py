"""Operations carried over other commits, on real tables: rows, files left behind, and what stock pylance makes of the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.captured import Captured, capture, committed, head
from tests.support.tables import open_stock
from tiltyard import ops
from tiltyard.errors import IncompatibleConflict, InvalidInput, NotFound, RetryableConflict
from tiltyard.transaction.row_map import KEPT, ROW_ORDER
from tiltyard.transaction.transaction import Transaction

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])


def _make(root: Path, *, stable: bool, fragments: int = 3, rows: int = 5) -> Path:
    data = pa.table({"id": pa.array(range(fragments * rows), pa.int64()), "x": pa.array([0] * (fragments * rows), pa.int64())})
    lance.write_dataset(data, str(root), max_rows_per_file=rows, enable_stable_row_ids=stable)
    return root


def _ids(root: Path) -> list[int]:
    """The ids of a table's rows; ours and pylance's view of them must be the same."""
    ours = ty.Table.open(root).to_arrow(columns=["id"])["id"].to_pylist()
    stock = open_stock(str(root))
    assert stock.to_table(columns=["id"])["id"].to_pylist() == ours
    stock.validate()
    problems = ty.Table.open(root).check().problems
    assert not problems, problems
    return sorted(ours)


def _capture(root: Path, tmp_path: Path, name: str, act: Callable[[Any], object]) -> Captured:
    found = capture(root, tmp_path / name, act)
    found.deliver(root)
    return found


def _delete(where: str) -> Callable[[Any], object]:
    return lambda stock: stock.delete(where)


def _update(where: str, value: int) -> Callable[[Any], object]:
    return lambda stock: stock.update({"x": str(value)}, where)


def _compact(stock: Any) -> object:
    return stock.optimize.compact_files(target_rows_per_fragment=1000, materialize_deletions_threshold=0.0)


def _rewrite(root: Path, captured: Captured, *, kept: bool) -> Transaction:
    """The rewrite of a capture, its new ids reserved on the table as a compaction does."""
    rewrite = captured.operation
    assert isinstance(rewrite, ops.Rewrite)
    made = sum(len(group.new_fragments) for group in rewrite.groups)
    version = head(root)
    ty.Table.open(root).commit(ops.ReserveFragments(made))
    return Transaction(version, "a" * 8 + "-rewrite", rewrite, {ROW_ORDER: KEPT} if kept else {})


def _x(root: Path) -> dict[int, int]:
    rows = ty.Table.open(root).to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True))


# ---- deletion vectors ------------------------------------------------------------------------------------------------------


@STABLE
def test_three_bare_deletes_of_one_fragment_all_land(tmp_path: Path, stable: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    several = [_capture(root, tmp_path / "scratch", f"{number}", _delete(f"id = {number}")) for number in (0, 2, 4)]
    results = [ty.Table.open(root, version=1).commit(one.operation, read_version=1) for one in several]
    assert [one.version for one in results] == [2, 3, 4]
    assert [len(one.rebased_over) for one in results] == [0, 1, 2]
    assert _ids(root) == [1, 3, *range(5, 15)]
    assert len(list((root / "_deletions").iterdir())) == 3, "the files of the second and third were replaced by merged ones"
    assert ty.Table.open(root).check().orphans == ()


@STABLE
def test_a_rebased_delete_names_the_version_it_ended_up_on(tmp_path: Path, stable: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    mine = _capture(root, tmp_path / "scratch", "mine", _delete("id = 0"))
    ty.Table.open(root).commit(_capture(root, tmp_path / "scratch", "theirs", _delete("id = 1")).operation)
    result = ty.Table.open(root).commit(mine.operation, read_version=1)
    stored = committed(root, 3)
    assert (result.read_version, stored.transaction.read_version) == (1, 2)
    assert stored.manifest.transaction_file == f"2-{result.transaction_id}.txn"
    assert sorted(path.name for path in (root / "_transactions").glob(f"*{result.transaction_id}*")) == [f"2-{result.transaction_id}.txn"]
    assert ty.Table.open(root).transactions.outcome(result.transaction_id) == ty.outcomes.Committed(3)


@STABLE
def test_a_fragment_that_two_deletes_empty_is_removed(tmp_path: Path, stable: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    mine = _capture(root, tmp_path / "scratch", "mine", _delete("id < 2"))
    theirs = _capture(root, tmp_path / "scratch", "theirs", _delete("id >= 2 and id < 5"))
    ty.Table.open(root).commit(theirs.operation)
    ty.Table.open(root).commit(mine.operation, read_version=1)
    manifest = committed(root, 3).manifest
    assert manifest.fragments.ids() == [1, 2]
    stored = committed(root, 3).transaction.operation
    assert isinstance(stored, ops.Delete)
    assert (stored.updated_fragments, stored.deleted_fragment_ids) == ((), (0,))
    assert _ids(root) == list(range(5, 15))


@STABLE
def test_the_same_row_is_deleted_once_and_named(tmp_path: Path, stable: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    mine = _capture(root, tmp_path / "scratch", "mine", _delete("id in (1, 3)"))
    ty.Table.open(root).commit(_capture(root, tmp_path / "scratch", "theirs", _delete("id in (3, 4)")).operation)
    with pytest.raises(RetryableConflict) as caught:
        ty.Table.open(root).commit(mine.operation, read_version=1)
    assert (caught.value.fragments, caught.value.sample) == ((0,), ("row 3 of fragment 0",))
    assert _ids(root) == [0, 1, 2, *range(5, 15)]


@STABLE
def test_an_update_and_a_delete_of_other_rows_are_merged_in_both_orders(tmp_path: Path, stable: bool) -> None:
    for first in ("update", "delete"):
        root = _make(tmp_path / first, stable=stable)
        scratch = tmp_path / f"scratch {first}"
        both = {
            "update": _capture(root, scratch, "update", _update("id = 1", 7)),
            "delete": _capture(root, scratch, "delete", _delete("id = 2")),
        }
        second = "delete" if first == "update" else "update"
        ty.Table.open(root).commit(both[first].operation)
        ty.Table.open(root).commit(both[second].operation, read_version=1)
        assert _ids(root) == [0, 1, *range(3, 15)]
        assert _x(root)[1] == 7


def test_deletions_that_leave_out_deleted_rows_are_refused(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=False)
    stale = _capture(root, tmp_path / "scratch", "stale", _delete("id = 0"))
    ty.Table.open(root).commit(_capture(root, tmp_path / "scratch", "first", _delete("id = 1")).operation)
    operation = stale.operation
    assert isinstance(operation, ops.Delete)
    with pytest.raises(InvalidInput, match="leave out row 1"):
        ty.Table.open(root).commit(operation, read_version=2)  # it was built on version 1
    assert head(root) == 2


def test_a_deletion_file_that_is_not_there_is_found_before_the_commit(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=False)
    undelivered = capture(root, tmp_path / "scratch", _delete("id = 0"))
    with pytest.raises(NotFound):
        ty.Table.open(root).commit(undelivered.operation)
    assert head(root) == 1


# ---- through a rewrite -----------------------------------------------------------------------------------------------------


def _carried(tmp_path: Path, root: Path, act: Callable[[Any], object], *, kept: bool, rewrite_first: bool) -> ty.CommitResult:
    """A change of rows and a rewrite of the same version, committed in either order."""
    scratch = tmp_path / "scratch"
    change = _capture(root, scratch, "change", act)
    rewrite = _rewrite(root, _capture(root, scratch, "compact", _compact), kept=kept)
    if rewrite_first:
        ty.Table.open(root).commit(rewrite)
        return ty.Table.open(root).commit(change.operation, read_version=rewrite.read_version)
    ty.Table.open(root).commit(change.operation, read_version=rewrite.read_version)
    return ty.Table.open(root).commit(rewrite)


@pytest.mark.parametrize("rewrite_first", [False, True], ids=["delete, rewrite", "rewrite, delete"])
@pytest.mark.parametrize("where", ["id = 7", "id in (0, 6, 14)", "id < 5", "id < 7"])
@STABLE
def test_deletions_are_carried_through_a_rewrite(tmp_path: Path, stable: bool, where: str, rewrite_first: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    open_stock(str(root)).delete("id in (3, 12)")
    expected = {one for one in range(15) if one not in (3, 12)} - set(open_stock(str(root)).to_table(filter=where)["id"].to_pylist())
    result = _carried(tmp_path, root, _delete(where), kept=not stable, rewrite_first=rewrite_first)
    assert "Delete" in (result.operation, *(one.operation for one in result.rebased_over))
    assert _ids(root) == sorted(expected)
    assert len(committed(root, head(root)).manifest.fragments) == 1, "it was compacted all the same"
    assert ty.Table.open(root).check().orphans == ()


@pytest.mark.parametrize("rewrite_first", [False, True], ids=["update, rewrite", "rewrite, update"])
@STABLE
def test_updates_are_carried_through_a_rewrite(tmp_path: Path, stable: bool, rewrite_first: bool) -> None:
    root = _make(tmp_path / "t", stable=stable)
    _carried(tmp_path, root, _update("id in (1, 8)", 5), kept=not stable, rewrite_first=rewrite_first)
    assert _ids(root) == list(range(15))
    assert _x(root) == {one: 5 if one in (1, 8) else 0 for one in range(15)}
    if stable:
        rows = open_stock(str(root)).to_table(columns=["id"], with_row_id=True)
        assert dict(zip(rows["id"].to_pylist(), rows["_rowid"].to_pylist(), strict=True)) == {one: one for one in range(15)}


@pytest.mark.parametrize("rewrite_first", [False, True], ids=["delete, rewrite", "rewrite, delete"])
def test_a_rewrite_that_does_not_tell_its_order_is_never_followed(tmp_path: Path, rewrite_first: bool) -> None:
    root = _make(tmp_path / "t", stable=False)
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        _carried(tmp_path, root, _delete("id = 7"), kept=False, rewrite_first=rewrite_first)
    assert _ids(root) == [one for one in range(15) if rewrite_first or one != 7]


def test_a_delete_goes_over_a_rewrite_and_then_over_deletes_in_the_new_fragment(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=True)
    mine = _capture(root, tmp_path / "scratch", "mine", _delete("id in (2, 9)"))
    ty.Table.open(root).commit(_rewrite(root, _capture(root, tmp_path / "scratch", "compact", _compact), kept=False))
    ty.Table.open(root).commit(_capture(root, tmp_path / "scratch", "theirs", _delete("id = 4")).operation)
    result = ty.Table.open(root).commit(mine.operation, read_version=1)
    assert [one.operation for one in result.rebased_over] == ["ReserveFragments", "Rewrite", "Delete"]
    assert _ids(root) == [one for one in range(15) if one not in (2, 4, 9)]


def test_a_rewrite_goes_over_several_deletes_and_may_lose_whole_fragments(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=True)
    several = [_capture(root, tmp_path / "scratch", where, _delete(where)) for where in ("id < 5", "id = 6", "id = 13")]
    rewrite = _rewrite(root, _capture(root, tmp_path / "scratch", "compact", _compact), kept=False)
    for one in several:
        ty.Table.open(root).commit(one.operation, read_version=1)
    ty.Table.open(root).commit(rewrite)
    assert _ids(root) == [one for one in range(5, 15) if one not in (6, 13)]
    stored = committed(root, head(root)).transaction
    assert (stored.read_version, stored.operation.name) == (1, "Rewrite")


def test_a_rewrite_of_rows_that_are_all_gone_makes_no_fragment(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=True)
    gone = _capture(root, tmp_path / "scratch", "gone", _delete("true"))
    rewrite = _rewrite(root, _capture(root, tmp_path / "scratch", "compact", _compact), kept=False)
    ty.Table.open(root).commit(gone.operation, read_version=1)
    ty.Table.open(root).commit(rewrite)
    assert _ids(root) == []


def test_columns_rewritten_in_place_are_not_followed(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=True)
    rewrite = _rewrite(root, _capture(root, tmp_path / "scratch", "compact", _compact), kept=False)
    stock = open_stock(str(root))
    changed = ty.Transaction.from_bytes(_column_update(stock))
    ty.Table.open(root).commit(replace(changed, read_version=2))
    with pytest.raises(RetryableConflict):
        ty.Table.open(root).commit(rewrite)
    assert _x(root)[0] == 9


def _column_update(stock: Any) -> bytes:
    """An update that rewrites a column of the first fragment in place, not committed."""
    fragment = stock.get_fragment(0)
    values = pa.table({"id": pa.array([0], pa.int64()), "x": pa.array([9], pa.int64())})
    metadata, fields = fragment.update_columns(values, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[metadata], fields_modified=fields)
    before = set((Path(stock.uri) / "_transactions").iterdir())
    lance.LanceDataset.commit(stock, operation, read_version=stock.version, detached=True)
    (new,) = set((Path(stock.uri) / "_transactions").iterdir()) - before
    return new.read_bytes()


# ---- indices ---------------------------------------------------------------------------------------------------------------


def test_an_index_loses_the_fragments_whose_column_was_rewritten_meanwhile(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=False)
    index = _capture(root, tmp_path / "scratch", "index", lambda stock: stock.create_scalar_index("x", "BTREE"))
    ty.Table.open(root).commit(ty.Transaction.from_bytes(_column_update(open_stock(str(root)))))
    ty.Table.open(root).commit(index.operation, read_version=1)
    stock = open_stock(str(root))
    assert stock.to_table(filter="x = 9")["id"].to_pylist() == [0]
    assert stock.stats.index_stats("x_idx")["num_indexed_fragments"] == 2
    stock.validate()


# ---- what stays behind -----------------------------------------------------------------------------------------------------


def test_a_refused_delete_leaves_the_callers_files_and_none_of_ours(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=False)
    scratch = tmp_path / "scratch"
    mine = _capture(root, scratch, "mine", _delete("id in (0, 1)"))
    ty.Table.open(root).commit(_capture(root, scratch, "one", _delete("id = 2")).operation)
    ty.Table.open(root).commit(_capture(root, scratch, "two", lambda stock: stock.restore() or stock.delete("id = 1")).operation)
    before = {path.name for path in (root / "_deletions").iterdir()}
    with pytest.raises(RetryableConflict):
        ty.Table.open(root).commit(mine.operation, read_version=1)
    assert {path.name for path in (root / "_deletions").iterdir()} == before
    assert all((root / name).exists() for name in mine.files)


def test_an_operation_on_fragments_that_its_read_version_lacks(tmp_path: Path) -> None:
    root = _make(tmp_path / "t", stable=False)
    with pytest.raises(IncompatibleConflict, match="no fragment 9"):
        ty.Table.open(root).commit(ops.Delete(deleted_fragment_ids=(9,)))
    assert head(root) == 1
