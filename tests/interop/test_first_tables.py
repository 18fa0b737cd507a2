"""Tables of the first releases of Lance: no data format, no writer, and row counts that are missing or wrong.

Made by stock pylance in its oldest format; then the manifest is brought back to what those writers wrote, member by member.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import UnsupportedFeature
from tiltyard.format import lance_pb2 as pb

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "s": [f"x{number}" for number in range(100)]})
COLOURS = ROWS.append_column("d", pa.array(["red", "green"] * 50).dictionary_encode())


def _edit(path: Path, change: Callable[[pb.Manifest], None]) -> None:
    """Changes the message of a manifest file; what lies before it stays where it is."""
    data = path.read_bytes()
    [position] = struct.unpack("<Q", data[-16:-8])
    [length] = struct.unpack("<I", data[position : position + 4])
    message = pb.Manifest.FromString(data[position + 4 : position + 4 + length])
    change(message)
    body = message.SerializeToString()
    path.write_bytes(data[:position] + struct.pack("<I", len(body)) + body + data[-16:])


def _uncounted(message: pb.Manifest) -> None:
    """As lance 0.7 wrote it."""
    message.ClearField("data_format")
    message.ClearField("writer_version")
    for fragment in message.fragments:
        fragment.physical_rows = 0
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.num_deleted_rows = 0


def _miscounted(message: pb.Manifest) -> None:
    """As lance 0.8 did, which took deleted rows off the physical ones once more."""
    message.ClearField("data_format")
    message.ClearField("writer_version")
    for fragment in message.fragments:
        fragment.physical_rows -= fragment.deletion_file.num_deleted_rows


def _old_table(root: Path, change: Callable[[pb.Manifest], None] | None, rows: pa.Table = ROWS) -> str:
    uri = str(root / "t")
    stock = lance.write_dataset(rows, uri, data_storage_version="legacy", max_rows_per_file=40)
    stock.delete("id in (2, 3, 39, 70)")
    if change is not None:
        for path in Path(uri, "_versions").glob("*.manifest"):
            _edit(path, change)
    return uri


WRITES: dict[str, Callable[[ty.Table], object]] = {
    "append": lambda table: table.append(table.to_arrow().slice(0, 1)),
    "delete": lambda table: table.delete("id = 50"),
    "update": lambda table: table.update({"s": "'new'"}, where="id = 51"),
    "merge": lambda table: table.merge(ROWS.slice(0, 1), on="id").when_matched_update_all().execute(),
    "compact": lambda table: table.compact(),
    "add columns": lambda table: table.add_columns({"z": "id * 2"}),
    "drop columns": lambda table: table.drop_columns(["s"]),
    "config": lambda table: table.update_config({"a": "b"}),
    "restore": lambda table: table.restore(1),
    "index": lambda table: table.create_index("id", "BTREE"),
}


@pytest.mark.parametrize("change", [_uncounted, _miscounted])
def test_rows_are_read_and_counted_right(tmp_path: Path, change: Callable[[pb.Manifest], None]) -> None:
    uri = _old_table(tmp_path, change)
    stock, table = lance.dataset(uri), ty.Table.open(uri)
    assert table.to_arrow() == stock.to_table()
    assert table.count_rows() == stock.count_rows() == 96
    assert table.count_rows("id >= 90") == 10
    assert ty.Table.open(uri, version=1).count_rows() == 100
    assert table.check().problems == ()
    assert [entry.version for entry in table.history()] == [2, 1]


@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("change", [_uncounted, _miscounted])
def test_nothing_is_built_on_counts_that_are_not_sure(tmp_path: Path, verb: str, change: Callable[[pb.Manifest], None]) -> None:
    uri = _old_table(tmp_path, change)
    table = ty.Table.open(uri)
    with pytest.raises(UnsupportedFeature, match="row counts"):
        WRITES[verb](table)
    assert table.layout.latest_version() == 2
    assert lance.dataset(uri).count_rows() == 96


@pytest.mark.parametrize("verb", WRITES)
def test_dictionaries_in_the_manifest_are_not_lost(tmp_path: Path, verb: str) -> None:
    """A version of ours has no room for them, and pylance then reads whatever lies at their offset."""
    uri = _old_table(tmp_path, None, COLOURS)
    table = ty.Table.open(uri, durability="os")
    with pytest.raises(UnsupportedFeature, match="dictionary column d"):
        WRITES[verb](table)
    assert lance.dataset(uri).to_table() == table.to_arrow()


def test_a_commit_of_pylance_brings_the_counts_up_to_date(tmp_path: Path) -> None:
    uri = _old_table(tmp_path, _miscounted)
    lance.dataset(uri).delete("id = 50")
    table = ty.Table.open(uri, durability="os")
    table.delete("id = 51")
    assert table.count_rows() == lance.dataset(uri).count_rows() == lance.dataset(uri).to_table().num_rows == 94
    assert table.check().problems == ()


def test_rows_are_not_appended_in_a_format_that_is_not_named(tmp_path: Path) -> None:
    def unnamed(message: pb.Manifest) -> None:
        message.ClearField("data_format")

    uri = _old_table(tmp_path, unnamed)
    with pytest.raises(UnsupportedFeature, match=r"data format 0\.1"):
        ty.Table.open(uri).append(ROWS)
