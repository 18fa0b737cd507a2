"""Columns dropped, renamed, cast and made to take nulls or none; as stock pylance sees the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.evolving import FORMATS, LIVE, STABLE, column, make, seen
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.transaction.operations import Merge, Project


def _operation(table: ty.Table) -> Any:
    return table._access.log.committed(table.version, table._scheme).transaction.operation


@STABLE
@FORMATS
def test_drop(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    assert table.drop_columns(["x", "s.b"]).operation == "Project"
    assert isinstance(_operation(table), Project)
    assert _operation(table).preserves_nullability
    assert column(root, "s") == {number: {"a": number} for number in LIVE}
    table.drop_columns("s.a")
    assert seen(root).schema.names == ["id"], "a struct goes with its last member"
    table.add_columns({"x": "id"})
    assert column(root, "x") == {number: number for number in LIVE}, "old values do not come back under the name"


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ([], "at least one"),
        (["nope"], "no column"),
        (["s.nope"], "no column"),
        (["x.y"], "not a struct"),
        (["id", "x", "s"], "at least one column"),
        ([7], "by its path"),
        (["`x"], "backticks"),
        (7, "list of names"),
        ({"x": 1}, "list of names"),
    ],
)
def test_drops_that_cannot_be(tmp_path: Path, columns: Any, match: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.drop_columns(columns)
    assert table.layout.latest_version() == 2


def test_an_index_goes_with_its_column(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    stock = open_stock(str(root))
    stock.create_scalar_index("x", "BTREE")
    stock.create_scalar_index("id", "BTREE")
    table = ty.Table.open(root)
    table.drop_columns(["x"])
    assert [one.name for one in table.indices.segments] == ["id_idx"]
    table.alter_columns({"path": "id", "data_type": pa.int32()})
    assert table.indices.segments == ()
    seen(root)


@STABLE
@FORMATS
def test_rename_and_nullability(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    table.alter_columns({"path": "x", "name": "value"}, {"path": "s.a", "name": "inner"})
    assert _operation(table).preserves_nullability
    assert column(root, "value") == {number: 10 * number for number in LIVE}
    assert column(root, "s")[3] == {"inner": 3, "b": "b3"}
    table.alter_columns({"path": "value", "nullable": False})
    assert not _operation(table).preserves_nullability
    with pytest.raises(InvalidInput):
        table.append(pa.table({"id": [30]}))
    table.alter_columns({"path": "value", "nullable": True, "name": "x"})
    assert _operation(table).preserves_nullability
    table.append(pa.table({"id": [30]}))
    assert column(root, "x")[30] is None
    with pytest.raises(InvalidInput, match="null in 1 rows"):
        table.alter_columns({"path": "x", "nullable": False})
    with pytest.raises(InvalidInput, match="null in 1 rows"):
        table.alter_columns({"path": "s.inner", "nullable": False})
    with pytest.raises(InvalidInput, match="null in 1 rows"):
        table.alter_columns({"path": "s", "nullable": False})


def test_nothing_to_alter_commits_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    result = table.alter_columns({"path": "x", "name": "x", "nullable": True, "data_type": pa.int32()})
    assert (result.version, result.attempts) == (2, 0)
    assert table.layout.latest_version() == 2


def test_names_can_be_passed_on(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.alter_columns({"path": "x", "name": "old"}, {"path": "id", "name": "x"})
    assert seen(root).schema.names == ["x", "old", "s"]


@STABLE
@FORMATS
def test_cast(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    before = open_stock(str(root)).to_table(columns=["id"], with_row_id=True)
    table.update_field_metadata("x", {"unit": "m"})
    table.alter_columns({"path": "x", "data_type": pa.string(), "name": "text"}, {"path": "id", "data_type": pa.int16(), "nullable": False})
    assert isinstance(_operation(table), Merge)
    assert table.schema.names == ["id", "text", "s"]
    assert table.schema.field("text").metadata == {b"unit": b"m"}
    assert table.schema.field("id") == pa.field("id", pa.int16(), nullable=False)
    assert column(root, "text") == {number: str(10 * number) for number in LIVE}
    if stable:
        after = open_stock(str(root)).to_table(columns=["id"], with_row_id=True)
        assert after["_rowid"].to_pylist() == before["_rowid"].to_pylist()
    for one in ("text", "s"):
        table.drop_columns([one])
    assert all(len(one.files) == 1 for one in table.layout.fragments), "files none of whose columns are left go"
    seen(root)


@pytest.mark.parametrize("data_format", ["2.1", "2.2"])
def test_cast_of_a_member(tmp_path: Path, data_format: str) -> None:
    root = tmp_path / "t"
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    kind = pa.struct([pa.field("in", inner), pa.field("c", pa.int8())])
    values = [{"in": {"a": 1, "b": "x"}, "c": 1}, None, {"in": None, "c": None}, {"in": {"a": 4, "b": None}, "c": 4}]
    table = ty.Table.create(
        root, pa.table({"id": [0, 1, 2, 3], "s": pa.array(values, kind)}), options=ty.TableOptions(data_format=data_format)
    )
    table.delete("id = 0")
    table.alter_columns({"path": "s.in.a", "data_type": pa.float32(), "name": "f"}, {"path": "s.c", "data_type": pa.int64()})
    assert column(root, "s") == {1: None, 2: {"in": None, "c": None}, 3: {"in": {"f": 4.0, "b": None}, "c": 4}}
    assert table.schema.field("s").type.field("in").type.field("f") == pa.field("f", pa.float32(), nullable=False)


def test_cast_of_a_member_in_the_old_format_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t", data_format="2.0")
    with pytest.raises(UnsupportedFeature, match=r"2\.0"):
        table.alter_columns({"path": "s.a", "data_type": pa.int32()})
    seen(tmp_path / "t")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ([], "at least one"),
        ([{"name": "y"}], "path"),
        (["x"], "path"),
        ([{"path": "nope", "name": "y"}], "no column"),
        ([{"path": "x", "type": pa.int8()}], "'type'"),
        ([{"path": "x", "data_type": "int8"}], "Arrow type"),
        ([{"path": "x", "nullable": 1}], "True or False"),
        ([{"path": "x", "name": "id"}], "already"),
        ([{"path": "x", "name": "a.b"}], "cannot be called"),
        ([{"path": "x", "name": "_rowaddr"}], "cannot be called"),
        ([{"path": "x", "name": ""}], "is text"),
        ([{"path": "s.a", "name": "b"}], "already"),
        ([{"path": "x", "name": "y"}, {"path": "x", "nullable": False}], "twice"),
        ([{"path": "x", "name": "y"}, {"path": "id", "name": "y"}], "already"),
        (
            [
                {"path": "x", "data_type": pa.uint8()},
                {"path": "id", "data_type": pa.float16()},
                {"path": "s.a", "data_type": pa.bool_()},
                {"path": "s.b", "data_type": pa.int32()},
            ],
            "does not fit",
        ),
        ([{"path": "s", "data_type": pa.int8()}], "does not fit"),
        ([{"path": "s.b", "data_type": pa.int8()}], "does not fit"),
    ],
)
def test_alterations_that_cannot_be(tmp_path: Path, changes: list[Any], match: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.alter_columns(*changes)
    assert table.layout.latest_version() == 2
    seen(tmp_path / "t")


def test_the_key_is_protected(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root, primary_key=["id"])
    attempts: list[Any] = [
        lambda: table.drop_columns(["id"]),
        lambda: table.alter_columns({"path": "id", "nullable": True}),
        lambda: table.alter_columns({"path": "id", "data_type": pa.int32()}),
        lambda: table.distributed.replace_data(lambda batch: batch, ["id"]),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match="primary key"):
            attempt()
    table.alter_columns({"path": "id", "name": "key"})
    assert table.primary_key == ("key",)
    seen(root)


def test_a_struct_around_the_key_is_protected(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    schema = pa.schema([pa.field("s", inner, nullable=False), pa.field("x", pa.int64())])
    table = ty.Table.create(tmp_path / "t", pa.table({"s": [{"a": 1, "b": ""}], "x": [1]}, schema=schema), primary_key=["s.a"])
    attempts: list[Any] = [lambda: table.drop_columns(["s"]), lambda: table.alter_columns({"path": "s", "nullable": True})]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match=r"s\.a is part of the primary key"):
            attempt()
    table.drop_columns(["s.b"])
