"""Compaction beside writers: rows, order, ids and indices stay, and neither side starts again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput
from tiltyard.storage.local import LocalStore

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
COUNT = 40


def _make(root: Path, *, stable: bool, indexed: bool = False) -> None:
    rows = pa.table({"id": pa.array(range(COUNT), pa.int64()), "x": pa.array([n % 7 for n in range(COUNT)], pa.int64())})
    ty.Table.create(root, rows, stable_row_ids=stable, options=ty.TableOptions(files=ty.FileLimits(rows=10)))
    if indexed:
        open_stock(str(root)).create_scalar_index("x", "BTREE")


def _ids(root: Path) -> list[int]:
    table = ty.Table.open(root)
    ours: list[int] = table.to_arrow(columns=["id"])["id"].to_pylist()
    stock = open_stock(str(root))
    stock.validate()
    assert stock.to_table(columns=["id"])["id"].to_pylist() == ours
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    for value in range(-1, 8):
        found = stock.to_table(columns=["id"], filter=f"x = {value}")["id"].to_pylist()
        scanned = stock.scanner(columns=["id"], filter=f"x = {value}", use_scalar_index=False).to_table()["id"].to_pylist()
        assert sorted(found) == sorted(scanned), value
    return ours


@pytest.mark.parametrize("indexed", [False, True])
@STABLE
def test_rows_and_order_stay(tmp_path: Path, stable: bool, indexed: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable, indexed=indexed)
    table = ty.Table.open(root)
    table.delete("id in (3, 17, 39)")
    before = open_stock(str(root)).to_table(columns=["id"], with_row_id=True).to_pydict()
    seen: list[tuple[int, int]] = []
    result = table.compact(target_rows=1000, progress=lambda done, of: seen.append((done, of)), message="tidy")
    assert (result.operation, seen, table.history()[0].message) == ("Rewrite", [(1, 1)], "tidy")
    assert [(one.physical_rows, one.deletion_file) for one in table.layout.fragments] == [(37, None)]
    assert _ids(root) == [one for one in range(COUNT) if one not in (3, 17, 39)]
    if stable:
        assert open_stock(str(root)).to_table(columns=["id"], with_row_id=True).to_pydict() == before


@STABLE
def test_nothing_to_gain_commits_nothing(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable)
    table = ty.Table.open(root)
    table.compact(target_rows=1000)
    version = table.version
    assert table.compact(target_rows=1000).version == version == table.layout.latest_version()


@pytest.mark.parametrize("options", [{"target_rows": 0}, {"deletions": 1.5}, {"max_bytes": 0}, {"target_rows": "many"}])
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, int]) -> None:
    _make(tmp_path / "t", stable=False)
    with pytest.raises(InvalidInput):
        ty.Table.open(tmp_path / "t").compact(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("writer", ["ours", "pylance"])
@STABLE
def test_a_delete_in_between_is_carried_along(tmp_path: Path, stable: bool, writer: str, indexed: bool) -> None:
    """It comes between the reservation and the rewrite, when all files are written."""
    root = tmp_path / "t"
    _make(root, stable=stable, indexed=indexed)
    delete = (
        (lambda: ty.Table.open(root).delete("id in (5, 12)"))
        if writer == "ours"
        else (lambda: open_stock(str(root)).delete("id in (5, 12)"))
    )
    table = handle(root, InterruptedStore(LocalStore(root), _is_third_version(root), delete))
    result = table.compact(target_rows=1000, commit=ty.CommitOptions(reexecutions=0))
    assert "Delete" in [one.operation for one in result.rebased_over]
    assert len(table.layout.fragments) == 1
    assert _ids(root) == [one for one in range(COUNT) if one not in (5, 12)]


@pytest.mark.parametrize("indexed", [False, True])
@STABLE
def test_an_update_in_between_is_carried_along(tmp_path: Path, stable: bool, indexed: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable, indexed=indexed)
    table = handle(
        root, InterruptedStore(LocalStore(root), _is_third_version(root), lambda: ty.Table.open(root).update({"x": "-1"}, "id = 8", "rows"))
    )
    table.compact(target_rows=1000, commit=ty.CommitOptions(reexecutions=0))
    assert sorted(_ids(root)) == list(range(COUNT))
    assert open_stock(str(root)).to_table(filter="x = -1")["id"].to_pylist() == [8]


@pytest.mark.parametrize("verb", ["delete", "update"])
@STABLE
def test_a_write_that_a_compaction_overtakes_does_not_start_again(tmp_path: Path, stable: bool, verb: str) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable)
    table = handle(root, InterruptedStore(LocalStore(root), is_version, lambda: ty.Table.open(root).compact(target_rows=1000)))
    result = (
        table.delete("id = 21", commit=ty.CommitOptions(reexecutions=0))
        if verb == "delete"
        else table.update({"x": "-1"}, "id = 21", "rows", commit=ty.CommitOptions(reexecutions=0))
    )
    assert [one.operation for one in result.rebased_over] == ["ReserveFragments", "Rewrite"]
    ids = _ids(root)
    assert sorted(ids) == [one for one in range(COUNT) if verb == "update" or one != 21]
    if verb == "update":
        assert open_stock(str(root)).to_table(filter="x = -1")["id"].to_pylist() == [21]


@STABLE
def test_columns_rewritten_in_between_make_it_start_again(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable=stable)
    table = handle(
        root,
        InterruptedStore(LocalStore(root), _is_third_version(root), lambda: ty.Table.open(root).update({"x": "9"}, "id < 10", "columns")),
    )
    table.compact(target_rows=1000)
    assert sorted(_ids(root)) == list(range(COUNT))
    assert open_stock(str(root)).count_rows("x = 9") == 10


def test_indices_follow_several_compactions(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root, stable=False, indexed=True)
    table = ty.Table.open(root)
    for number in range(3):
        table.append(pa.table({"id": pa.array([100 + number], pa.int64()), "x": pa.array([1], pa.int64())}))
        table.delete(f"id = {number}")
        table.compact(target_rows=1000, deletions=0.0)
        assert len(_ids(root)) == COUNT
    open_stock(str(root)).optimize.optimize_indices()
    assert len(_ids(root)) == COUNT


def _is_third_version(root: Path):  # type: ignore[no-untyped-def]
    """Matches the create of the version after the reservation."""
    first = ty.Table.open(root).version
    name = f"{2**64 - 1 - first - 2:020d}.manifest"
    return lambda method, path: is_version(method, path) and path.endswith(name)
