"""Primary and clustering keys: marked so that pylance reads the same key in the same order."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.support.stock import stock_manifest
from tiltyard.errors import InvalidInput
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import field_from_pb
from tiltyard.format.keys import (
    CLUSTERING_KEY_POSITION,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    clustering_key,
    primary_key,
    primary_key_fields,
    with_primary_key,
)
from tiltyard.format.schema import fields_from_arrow
from tiltyard.format.values import Field

INT = pa.int32()
SCHEMA = pa.schema([pa.field("a", INT), pa.field("b", INT, metadata={"k": "v"}), pa.field("v", INT)])
NESTED = pa.schema([pa.field("s", pa.struct([pa.field("x.y", INT), pa.field("z", INT)])), pa.field("v", INT)])


def test_one_column_is_stored_as_not_null() -> None:
    schema = with_primary_key(SCHEMA, ["b"])
    assert schema.field("b") == pa.field("b", INT, nullable=False)
    assert schema.field("b").metadata == {b"k": b"v", PRIMARY_KEY.encode(): b"true"}
    assert schema.field("a").equals(SCHEMA.field("a"), check_metadata=True)
    fields, _ = fields_from_arrow(SCHEMA, primary_key=["b"])
    assert primary_key(fields) == ("b",)
    assert (fields[1].primary_key, fields[1].primary_key_position, fields[1].nullable) == (True, 0, False)


def test_a_nested_key_makes_the_structs_around_it_not_null() -> None:
    fields, _ = fields_from_arrow(NESTED, primary_key=["s.`x.y`"])
    assert primary_key(fields) == ("s.`x.y`",)
    assert [field.nullable for field in fields] == [False, False, True, True]


@pytest.mark.parametrize("keys", [["a"], ["a", "b"], ["b", "a"], ["v", "a", "b"]])
def test_pylance_takes_our_key_in_our_order(keys: list[str], tmp_path: Path) -> None:
    """A merge on exactly the key, in key order, is the only one to which pylance adds a filter of inserted keys."""
    schema = with_primary_key(SCHEMA, keys)
    table = pa.table([pa.array([1], INT)] * 3, schema=schema)
    dataset = lance.write_dataset(table, str(tmp_path / "t"))
    fields = [field_from_pb(message, "m") for message in stock_manifest(tmp_path / "t", 1).fields]
    assert primary_key(fields) == tuple(keys)
    dataset.merge_insert(keys).when_not_matched_insert_all().execute(pa.table([pa.array([2], INT)] * 3, schema=schema))
    name = stock_manifest(tmp_path / "t", 2).transaction_file
    update = pb.Transaction.FromString((tmp_path / "t" / "_transactions" / name).read_bytes()).update
    assert list(update.inserted_rows.field_ids) == [field.id for field in primary_key_fields(fields)]
    assert len(update.inserted_rows.field_ids) == len(keys)


def test_positions_come_first_then_schema_order() -> None:
    fields = [
        Field("a", 0, -1, "int32", primary_key=True),
        Field("b", 1, -1, "int32", primary_key=True, primary_key_position=2),
        Field("c", 2, -1, "int32", primary_key=True),
        Field("d", 3, -1, "int32", primary_key=True, primary_key_position=1),
    ]
    assert primary_key(fields) == ("d", "b", "a", "c")


def test_clustering_key_is_read_in_order() -> None:
    marks = [{CLUSTERING_KEY_POSITION: "2"}, {}, {CLUSTERING_KEY_POSITION: "1"}]
    schema = pa.schema([pa.field(name, INT, metadata=mark) for name, mark in zip("abc", marks, strict=True)])
    fields, _ = fields_from_arrow(schema)
    assert clustering_key(fields) == ("c", "a")
    assert primary_key(fields) == ()


def test_the_same_key_in_the_metadata_is_fine() -> None:
    schema = with_primary_key(SCHEMA, ["b", "a"])
    assert with_primary_key(schema, ["b", "a"]).equals(schema, check_metadata=True)
    assert primary_key(fields_from_arrow(schema)[0]) == ("b", "a")
    assert with_primary_key(SCHEMA, "a").equals(with_primary_key(SCHEMA, ["a"]), check_metadata=True)


REFUSED = {
    "unknown": (SCHEMA, ["nope"], "no column nope"),
    "unknown_member": (NESTED, ["s.nope"], "no column s.nope"),
    "twice": (SCHEMA, ["a", "a"], "twice"),
    "malformed": (SCHEMA, ["a."], "not a column path"),
    "struct": (NESTED, ["s"], "is struct"),
    "inside_number": (SCHEMA, ["a.x"], "is inside a int32"),
    "list": (pa.schema([pa.field("l", pa.list_(INT))]), ["l"], "is list"),
    "inside_list": (pa.schema([pa.field("l", pa.list_(INT))]), ["l.item"], "is inside a list"),
    "null": (pa.schema([pa.field("n", pa.null())]), ["n"], "has no type"),
    "another": (with_primary_key(SCHEMA, ["a"]), ["b"], r"another primary key \(a\)"),
    "other_order": (with_primary_key(SCHEMA, ["a", "b"]), ["b", "a"], r"another primary key \(a, b\)"),
}


@pytest.mark.parametrize(("schema", "keys", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_keys_that_cannot_be_are_refused(schema: pa.Schema, keys: list[str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        fields_from_arrow(schema, primary_key=keys)


def test_a_position_alone_makes_a_key() -> None:
    schema = pa.schema([pa.field("a", INT, nullable=False, metadata={PRIMARY_KEY_POSITION: "3", PRIMARY_KEY: "false"})])
    assert primary_key(fields_from_arrow(schema)[0]) == ("a",)
