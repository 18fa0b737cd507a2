"""Every readable handle is an Arrow stream, so that other libraries take it as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import tiltyard as ty

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "s": ["a", None, "c"]})


def test_a_table_is_a_stream_of_its_rows(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ROWS)
    assert pa.table(table) == ROWS
    assert pa.schema(table) == ROWS.schema
    assert pa.RecordBatchReader.from_stream(table).read_all() == ROWS


def test_the_stream_stays_at_the_version_of_the_handle(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ROWS)
    stream = pa.RecordBatchReader.from_stream(table)
    ty.Table.open(tmp_path / "t").append(ROWS)
    assert stream.read_all().num_rows == 3
    assert pa.table(table).num_rows == 3
    assert pa.table(table.refresh()).num_rows == 6


def test_one_table_is_the_input_of_another(tmp_path: Path) -> None:
    source = ty.Table.create(tmp_path / "a", ROWS)
    copy = ty.Table.create(tmp_path / "b", source)
    copy.append(source)
    assert copy.to_arrow()["id"].to_pylist() == [1, 2, 3, 1, 2, 3]


def test_handles_of_a_lake_are_streams(tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("t", ROWS)
    assert pa.table(lake.table("t")) == pa.table(lake.snapshot().table("t")) == ROWS
    with lake.transaction() as tx:
        tx.table("t").append(ROWS)
        assert pa.table(tx.table("t")).num_rows == 6
