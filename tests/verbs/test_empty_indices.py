"""Indices on a table without rows, as pylance allows them: made, found by stock pylance, and extended when rows come."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import InvalidInput

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("s", pa.struct([pa.field("x", pa.string()), pa.field("l", pa.list_(pa.int64()))])),
        pa.field("t", pa.string()),
        pa.field("l", pa.list_(pa.int64())),
    ]
)
KINDS = [
    ("id", "BTREE"),
    ("id", "BITMAP"),
    ("s.x", "BITMAP"),
    ("id", "ZONEMAP"),
    ("id", "BLOOMFILTER"),
    ("t", "NGRAM"),
    ("l", "LABEL_LIST"),
]


def _rows(*numbers: int) -> pa.Table:
    rows = [{"id": number, "s": {"x": str(number), "l": [number]}, "t": f"word{number}", "l": [number]} for number in numbers]
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize(("column", "kind"), KINDS)
@pytest.mark.parametrize("emptied", [False, True], ids=["never had rows", "rows deleted"])
def test_an_index_on_no_rows(tmp_path: Path, column: str, kind: str, emptied: bool) -> None:
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, SCHEMA, durability="os")
    if emptied:
        table.append(_rows(8, 9))
        table.delete("true")
    table.create_index(column, kind, "i")
    [told] = lance.dataset(uri).describe_indices()
    assert (told.name, told.num_rows_indexed, told.field_names) == ("i", 0, [column])
    table.append(_rows(1, 2, 3))
    assert lance.dataset(uri).count_rows("id = 2 and s.x = '2'") == 1
    table.indices.optimize()
    stock = lance.dataset(uri)
    assert stock.describe_indices()[0].num_rows_indexed == 3
    assert [stock.count_rows(f"id = {number} and s.x = '{number}'") for number in (2, 9)] == [1, 0]
    assert table.check().ok


@pytest.mark.parametrize("column", ["nothing", "l", "s"])
def test_a_column_that_takes_no_such_index(tmp_path: Path, column: str) -> None:
    table = ty.Table.create(tmp_path / "t", SCHEMA, durability="os")
    with pytest.raises(InvalidInput):
        table.create_index(column, "BITMAP", "i")
    assert table.layout.latest_version() == 1
    assert not list((tmp_path / "t").glob("_indices/*"))
