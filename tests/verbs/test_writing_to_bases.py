"""Data files in a base: written, read by stock pylance, changed, compacted, cloned and cleaned up; nothing of others is touched."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, files_below, is_version, noted_runtime, rows
from tests.support.tables import open_stock, sorted_rows
from tiltyard.errors import CorruptTable, InvalidInput, OutcomeUnknown, StorageError, UnsupportedFeature
from tiltyard.storage.local import LocalStore
from tiltyard.testing import CountingStore
from tiltyard.verbs.engine.access import TableAccess, open_access


def _made(tmp_path: Path, *, as_table: bool = False, **options: Any) -> tuple[Path, Path, ty.Table]:
    root, cold = tmp_path / "table", tmp_path / "cold"
    ty.Table.create(root, rows(0, 1), durability="os", **options)
    table = _open(root, cold)
    table.settings.add_bases({"cold": str(cold)}, is_dataset_root=as_table)
    return root, cold, table


def _open(root: Path, *bases: Path) -> ty.Table:
    return ty.Table.open(root, durability="os", allowed_bases=bases)


def _stream(*ids: int) -> pa.RecordBatchReader:
    return rows(*ids).to_reader(max_chunksize=2)


def _sees(table: ty.Table, *ids: int) -> None:
    """We and pylance see these rows, and both find the table sound."""
    stock = open_stock(table.uri)
    stock.validate()
    assert sorted(stock.to_table()["id"].to_pylist()) == sorted(table.to_arrow()["id"].to_pylist()) == sorted(ids)
    report = table.check()
    assert (report.problems, report.not_checked, report.orphans) == ((), (), ())


def _homes(table: ty.Table) -> list[int | None]:
    return [file.base_id for fragment in table.layout.fragments for file in fragment.files]


@pytest.mark.parametrize("as_table", [False, True], ids=["files", "laid out as a table"])
@pytest.mark.parametrize("stable", [False, True])
def test_rows_are_written_to_a_base(tmp_path: Path, as_table: bool, stable: bool) -> None:
    root, cold, table = _made(tmp_path, as_table=as_table, stable_row_ids=stable)
    before = files_below(root, "data")
    assert table.append(rows(2, 3), files=ty.FileLimits(base="cold")).rows == {"inserted": 2}
    assert table.append(_stream(4, 5, 6), files=ty.FileLimits(rows=2, base=1)).rows == {"inserted": 3}
    assert table.append(rows(7), files=ty.FileLimits(base=str(cold))).version == 5
    assert table.append(rows(8)).version == 6
    assert _homes(table) == [None, 1, 1, 1, 1, None]
    assert len(files_below(cold, "data" if as_table else "")) == 4
    assert len(files_below(root, "data") - before) == 1
    _sees(table, *range(9))


def test_it_is_what_pylance_writes(tmp_path: Path) -> None:
    """Both put files under the same names, and both go on where the other was."""
    _, cold, table = _made(tmp_path)
    lance.write_dataset(rows(2), table.uri, mode="append", target_bases=["cold"])
    table.refresh().append(rows(3), files=ty.FileLimits(base="cold"))
    theirs, ours = (fragment.files[0] for fragment in list(table.layout.fragments)[1:])
    assert (theirs.base_id, ours.base_id) == (1, 1)
    assert files_below(cold, "") == {theirs.path, ours.path}
    lance.write_dataset(rows(4), table.uri, mode="append", target_bases=["cold"])
    _sees(table.refresh(), 0, 1, 2, 3, 4)


def test_everything_else_is_done_as_usual(tmp_path: Path) -> None:
    root, cold, table = _made(tmp_path, primary_key=["id"])
    table.append(rows(2, 3, 4), files=ty.FileLimits(base="cold"))
    there = files_below(cold, "")
    table.delete("id = 2")
    assert len(files_below(root, "_deletions")) == 1
    table.update({"s": "'new'"}, "id = 3")
    table.merge(rows(4, 5)).when_matched_update_all().when_not_matched_insert_all().execute()
    _sees(table, 0, 1, 3, 4, 5)
    table.add_columns({"n": "id + 1"})
    table.create_index("id", "BTREE")
    _sees(table, 0, 1, 3, 4, 5)
    assert table.to_arrow(filter="id = 3")["s"].to_pylist() == ["new"]
    assert files_below(cold, "") == there
    table.compact()
    assert set(_homes(table)) == {None}, "compaction writes to the table's own directory"
    _sees(table, 0, 1, 3, 4, 5)


def test_an_overwrite_to_a_base(tmp_path: Path) -> None:
    _, cold, table = _made(tmp_path)
    assert table.overwrite(rows(7, 8), files=ty.FileLimits(base="cold")).rows == {"inserted": 2}
    assert _homes(table) == [1]
    assert [one.name for one in table.layout.bases] == ["cold"]
    assert len(files_below(cold, "")) == 1
    _sees(table, 7, 8)


@pytest.mark.parametrize("stable", [False, True])
def test_a_merge_to_a_base(tmp_path: Path, stable: bool) -> None:
    root, cold, table = _made(tmp_path, primary_key=["id"], stable_row_ids=stable)
    result = table.merge(rows(1, 2), files=ty.FileLimits(base="cold")).when_matched_update_all().when_not_matched_insert_all().execute()
    assert result.rows == {"inserted": 1, "updated": 1, "deleted": 0}
    assert _homes(table) == [None, 1]
    assert len(files_below(cold, "")) == len(files_below(root, "_deletions")) == 1
    _sees(table, 0, 1, 2)
    with pytest.raises(InvalidInput, match="has no base"):
        table.merge(rows(1), files=ty.FileLimits(base="warm")).when_matched_update_all().execute()
    racing = _raced(root, cold, lambda: _open(root, cold).overwrite(rows(9)))
    with pytest.raises(ty.IncompatibleConflict):
        racing.merge(rows(1, 7), files=ty.FileLimits(base="cold")).when_matched_update_all().when_not_matched_insert_all().execute()
    assert len(files_below(cold, "")) == 1, "what was written in vain is removed"
    _sees(table.refresh(), 9)


def test_clones_of_it(tmp_path: Path) -> None:
    root, cold, table = _made(tmp_path)
    table.append(rows(2), files=ty.FileLimits(base="cold"))
    table.clone(tmp_path / "shallow", storage=ty.Storage(durability="os"))
    table.clone(tmp_path / "deep", shallow=False, storage=ty.Storage(durability="os"))
    shallow = _open(tmp_path / "shallow", root, cold)
    assert _homes(shallow) == [0, 1]
    _sees(shallow, 0, 1, 2)
    shallow.append(rows(3), files=ty.FileLimits(base="cold"))
    _sees(shallow, 0, 1, 2, 3)
    _sees(ty.Table.open(tmp_path / "deep"), 0, 1, 2)
    _sees(table, 0, 1, 2)


def test_cleanup_deletes_nothing_in_a_base(tmp_path: Path) -> None:
    """Whose a file there is cannot be known: other tables may have put theirs into the same place, or refer to ours."""
    _, cold, table = _made(tmp_path)
    other = ty.Table.create(tmp_path / "other", rows(9), durability="os")
    other = _open(tmp_path / "other", cold)
    other.settings.add_bases([str(cold)])
    other.append(rows(10), files=ty.FileLimits(base=1))
    (cold / "notes.txt").write_text("somebody's")
    table.append(rows(2), files=ty.FileLimits(base="cold"))
    table.overwrite(rows(3))
    there = files_below(cold, "")
    report = table.cleanup(older_than=timedelta(0), grace=timedelta(0))
    assert report.versions == (1, 2, 3)
    assert all(not one.path.startswith("..") and "cold" not in one.path for one in report.removed)
    assert files_below(cold, "") == there
    _sees(table, 3)
    _sees(other, 9, 10)


def test_cleanup_keeps_what_lies_in_a_base_inside(tmp_path: Path) -> None:
    """A base may be the table's own directory under another name: what a version names there stays."""
    root = tmp_path / "table"
    table = ty.Table.create(root, rows(0), durability="os")
    table.settings.add_bases({"self": str(root)}, is_dataset_root=True)
    table.append(rows(1), files=ty.FileLimits(base="self"))
    table.append(rows(2))
    assert table.cleanup(older_than=timedelta(0), grace=timedelta(0)).files.keys() == {"versions", "transactions"}
    assert sorted(open_stock(str(root)).to_table()["id"].to_pylist()) == [0, 1, 2]


# ---- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["warm", 7, True, "", 1.0, "cold "])
def test_a_base_that_is_not_there(tmp_path: Path, base: Any) -> None:
    _, cold, table = _made(tmp_path)
    with pytest.raises(InvalidInput, match=r"has no base .* It has cold\."):
        table.append(rows(2), files=ty.FileLimits(base=base))
    with pytest.raises(InvalidInput, match="add_bases"):
        ty.Table.create(tmp_path / "bare", rows(0)).overwrite(rows(2), files=ty.FileLimits(base=base))
    assert not cold.exists()


def test_a_base_must_be_allowed(tmp_path: Path) -> None:
    root, _, table = _made(tmp_path)
    table.append(rows(2), files=ty.FileLimits(base="cold"))
    with pytest.raises(CorruptTable):
        ty.Table.open(root)
    stranger = tmp_path / "stranger"
    with pytest.raises(InvalidInput):
        table.settings.add_bases([str(stranger)])
    assert not stranger.exists()


def test_blobs_stay_with_the_table(tmp_path: Path) -> None:
    data = pa.table([lance.blob_array([b"x"])], schema=pa.schema([lance.blob_field("b")]))
    root, cold = tmp_path / "table", tmp_path / "cold"
    ty.Table.create(root, data, durability="os")
    table = _open(root, cold)
    table.settings.add_bases({"cold": str(cold)})
    with pytest.raises(UnsupportedFeature, match="Blobs"):
        table.append(data, files=ty.FileLimits(base="cold"))


# ---- when it fails -----------------------------------------------------------------------------------------------------------


def _raced(root: Path, cold: Path, action: Callable[[], Any], times: int = 1) -> ty.Table:
    store = InterruptedStore(LocalStore(root, durability="os"), is_version, action, times)
    clean = _open(root, cold)
    place = open_access(root, ty.Storage(durability="os", allowed_bases=[cold]), store=store, runtime=noted_runtime())
    return ty.Table(place, clean._file, clean._scheme)


@pytest.mark.parametrize("how", ["small", "stream"])
def test_what_was_written_in_vain_is_removed(tmp_path: Path, how: str) -> None:
    root, cold, table = _made(tmp_path)
    table.append(rows(2), files=ty.FileLimits(base="cold"))
    there = files_below(cold, "")
    data = rows(3) if how == "small" else _stream(3, 4)
    with pytest.raises(ty.IncompatibleConflict):
        _raced(root, cold, lambda: _open(root, cold).overwrite(rows(9))).append(data, files=ty.FileLimits(base="cold"))
    assert files_below(cold, "") == there
    _sees(table.refresh(), 9)


def test_nothing_is_removed_while_the_outcome_is_unknown(tmp_path: Path) -> None:
    root, cold, _ = _made(tmp_path)

    def silence() -> None:
        raise StorageError("no answer", maybe_applied=True, transient=True)

    with pytest.raises(OutcomeUnknown):
        _raced(root, cold, silence, times=3).append(rows(3), files=ty.FileLimits(base="cold"))
    assert len(files_below(cold, "")) == 1


def test_a_rebase_and_a_second_run_find_the_base(tmp_path: Path) -> None:
    root, cold, table = _made(tmp_path)
    result = _raced(root, cold, lambda: _open(root, cold).append(rows(2))).append(rows(3), files=ty.FileLimits(base="cold"))
    assert [one.operation for one in result.rebased_over] == ["Append"]
    again = _raced(root, cold, lambda: _open(root, cold).overwrite(rows(5))).overwrite(rows(6), files=ty.FileLimits(base="cold"))
    assert again.executions == 2
    assert len(files_below(cold, "")) == 2, "files of the first run served the second"
    _sees(table.refresh(), 6)


def test_files_in_a_base_are_made_durable_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cold, _ = _made(tmp_path)
    opened: list[CountingStore] = []
    order: list[str] = []

    def noted(self: TableAccess, base: Any) -> CountingStore:
        opened.append(CountingStore(LocalStore(Path(base.path))))
        order.append("base")
        return opened[-1]

    monkeypatch.setattr(TableAccess, "open_base", noted)
    table = _raced(root, cold, lambda: order.append("version"))
    table.append(rows(3), files=ty.FileLimits(base="cold"))
    assert order == ["base", "version"]
    assert opened[0].calls["sync"] == 1


def test_two_writers_one_base(tmp_path: Path) -> None:
    root, cold, table = _made(tmp_path, primary_key=["id"])
    late = _open(root, cold)
    table.append(rows(2), files=ty.FileLimits(base="cold"))
    with pytest.raises(ty.KeyConflict):
        late.append(rows(2), files=ty.FileLimits(base="cold"))
    late.append(rows(3), files=ty.FileLimits(base="cold"))
    assert len(files_below(cold, "")) == 2
    _sees(late, 0, 1, 2, 3)
    assert sorted_rows(late.to_arrow(["id"])) == sorted_rows(open_stock(str(root)).to_table(["id"]))
