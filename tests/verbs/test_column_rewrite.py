"""Columns rewritten where they are: the rows not meant keep their values, deleted ones stay deleted, whatever the columns are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.tables import open_stock

ROWS = 300


def _rows() -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "large": pa.array([2**62 + n for n in numbers], pa.int64()),
            "text": pa.array([None if n % 7 == 0 else f"row {n}" for n in numbers], pa.string()),
            "bytes": pa.array([bytes([n % 256]) * (n % 4) for n in numbers], pa.large_binary()),
            "vector": pa.array([[n, n + 0.5] for n in numbers], pa.list_(pa.float32(), 2)),
            "struct": pa.array([{"a": n, "b": str(n)} for n in numbers], pa.struct([("a", pa.int64()), ("b", pa.string())])),
            "date": pa.array(numbers, pa.date32()),
        }
    )


VALUES = {
    "large": "large + 1",
    "text": "concat(text, '!')",
    "bytes": "bytes || bytes",
    "date": "cast('2020-02-02' as date)",
    "vector": "vector",
    "struct": "struct",
}
MEANT = {"all": None, "some": "id % 3 = 1", "few": "id in (0, 105, 299)", "one fragment": "id < 100", "many": "id % 10 != 4"}


def _table(root: Path, data_format: str, worn: bool, stable: bool = False) -> ty.Table:
    table = ty.Table.create(
        root,
        _rows(),
        stable_row_ids=stable,
        durability="os",
        options=ty.TableOptions(data_format=data_format, files=ty.FileLimits(rows=100)),
    )
    if worn:
        table.delete("id % 4 = 2 or id = 100 or id = 199")
    return table


def _content(root: Path) -> pa.Table:
    return open_stock(str(root)).to_table().sort_by("id")


@pytest.mark.parametrize("where", MEANT)
@pytest.mark.parametrize("worn", [False, True], ids=["whole", "worn"])
def test_columns_become_what_moved_rows_would(tmp_path: Path, where: str, worn: bool) -> None:
    for data_format in ("2.0", "2.2"):
        moved, there = tmp_path / f"rows {data_format}", tmp_path / f"columns {data_format}"
        counts = []
        for root, mode in ((moved, "rows"), (there, "columns")):
            table = _table(root, data_format, worn)
            done = table.update({name: VALUES[name] for name in ("large", "text", "bytes", "date")}, MEANT[where], mode=mode)  # type: ignore[arg-type]
            counts.append(done.rows)
            assert table.check().ok, mode
        assert counts[0] == counts[1]
        assert _content(there).equals(_content(moved))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_each_column_alone_and_again(tmp_path: Path, name: str, stable: bool) -> None:
    root = tmp_path / "t"
    table = _table(root, "2.2", True, stable)
    before = _content(root)
    table.update({name: VALUES[name]}, "id % 5 = 0", mode="columns")
    once = _content(root)
    assert once.drop_columns([name]).equals(before.drop_columns([name]))
    changed = [n for n, (a, b) in enumerate(zip(once[name].to_pylist(), before[name].to_pylist(), strict=True)) if a != b]
    assert all(before["id"][n].as_py() % 5 == 0 for n in changed)
    assert bool(changed) == (name not in ("vector", "struct"))
    table.update({name: VALUES[name]}, mode="columns")
    table.update({"id": "id + 1000"}, mode="columns")
    assert _content(root)["id"].to_pylist() == [1000 + n for n in before["id"].to_pylist()]
    assert _content(root).drop_columns(["id", name]).equals(before.drop_columns(["id", name]))
    assert table.check().ok
    table.compact(deletions=0.0)
    assert _content(root)["id"].to_pylist() == [1000 + n for n in before["id"].to_pylist()]


def test_large_numbers_are_not_rounded_on_their_way(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root, "2.2", False)
    table.update({"large": "1.0"}, "id = 7", mode="columns")  # new values come as floats, which the old ones must not become
    assert _content(root)["large"].to_pylist() == [1 if n == 7 else 2**62 + n for n in range(ROWS)]


def test_the_new_file_holds_the_changed_column_only(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", "2.2", False)
    before = table.layout.fragments
    table.update({"text": "'x'"}, "id < 150", mode="columns")
    untouched = [one.id for one, old in zip(table.layout.fragments, before, strict=True) if one == old]
    assert untouched == [2]
    text = next(field for field in table.lance.schema if field.name == "text")
    for one, old in zip(table.layout.fragments[:2], before[:2], strict=True):
        assert [file.path for file in one.files[:-1]] == [file.path for file in old.files]
        assert len(one.files[-1].fields) == 1
        assert one.files[-1].size == (tmp_path / "t" / "data" / one.files[-1].path).stat().st_size
    assert text.type == pa.string()
