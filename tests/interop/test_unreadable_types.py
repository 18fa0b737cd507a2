"""Columns that pylance writes without a word and does not give back. We refuse them; when a test here fails, a rule can go."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.stock_tables import write
from tests.support.tables import open_stock
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.pylance import lance_errors

INT: Final = pa.int32()
POINT: Final = pa.struct([pa.field("x", INT)])
EMPTY: Final = pa.struct([])
VECTOR: Final = pa.list_(POINT, 2)
TWO_POINTS: Final = [{"x": 1}, {"x": 2}]

LOST: Final[dict[str, tuple[str, dict[str, pa.DataType], dict[str, Any]]]] = {
    "empty_struct_beside": ("2.2", {"e": EMPTY, "n": INT}, {"e": {}, "n": 1}),
    "empty_struct_inside": ("2.1", {"c": pa.struct([("e", EMPTY), ("n", INT)])}, {"c": {"e": {}, "n": 5}}),
    "vector_of_structs_beside": ("2.2", {"v": VECTOR, "n": INT}, {"v": TWO_POINTS, "n": 3}),
    "vector_of_structs_inside": ("2.2", {"c": pa.struct([("v", VECTOR), ("n", INT)])}, {"c": {"v": TWO_POINTS, "n": 3}}),
    "vector_of_structs_in_list": ("2.2", {"c": pa.list_(VECTOR)}, {"c": [TWO_POINTS]}),
    "vector_of_structs_of_lists": ("2.2", {"c": pa.list_(pa.struct([("f", pa.list_(INT))]), 2)}, {"c": [{"f": [1, 2]}, {"f": [1]}]}),
    "vector_of_structs_old": ("2.0", {"v": VECTOR}, {"v": TWO_POINTS}),
}


@pytest.mark.parametrize("name", LOST)
def test_what_pylance_does_not_give_back_is_refused(name: str, tmp_path: Path) -> None:
    data_format, types, row = LOST[name]
    rows = pa.Table.from_pylist([row] * 3, schema=pa.schema([pa.field(column, kind) for column, kind in types.items()]))
    stock = write(rows, tmp_path / "stock", data_storage_version=data_format)
    try:
        read = stock.to_table().to_pylist()
    except pa.ArrowInvalid:
        read = None
    assert read != rows.to_pylist()
    with pytest.raises(ty.errors.InvalidInput, match="cannot be stored in data files"):
        ty.Table.create(tmp_path / "ours", rows, durability="os", options=ty.TableOptions(data_format=data_format))
    assert not (tmp_path / "ours" / "_versions").exists()
    with pytest.raises(ty.errors.InvalidInput, match="cannot be stored in data files"):
        ty.Table.open(tmp_path / "stock").append(rows)
    assert open_stock(str(tmp_path / "stock")).version == 1


def test_a_panic_inside_pylance_is_an_error_like_any_other(tmp_path: Path) -> None:
    rows = pa.table({"c": pa.array([["a", "b"]], pa.list_(pa.string(), 2))})
    with pytest.raises(ty.errors.StorageError, match="Could not write rows"), lance_errors(open_access(tmp_path), "write rows"):
        lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.2")


def test_values_are_not_left_behind_when_pylance_casts_their_column(tmp_path: Path) -> None:
    """A cast gives the column a new field id: rows a stale writer brings under the old one read as null."""
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, pa.table({"id": [1], "s": ["a"]}), durability="os")
    stock: Any = open_stock(uri)
    stock.alter_columns({"path": "s", "data_type": pa.large_string()})
    with pytest.raises(ty.errors.RetryableConflict, match="read as null"):
        table.append(pa.table({"id": [2], "s": ["b"]}), commit=ty.CommitOptions(reexecutions=0))
    table.refresh().append(pa.table({"id": [2], "s": pa.array(["b"], pa.large_string())}))
    assert open_stock(uri).to_table()["s"].to_pylist() == ["a", "b"]
