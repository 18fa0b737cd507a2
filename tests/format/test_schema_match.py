"""Data against a table's schema: what fits, as pylance sees it, and what the refusal says."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.support.arrow_types import STORABLE
from tests.support.stock import stock_manifest
from tiltyard.errors import InvalidInput
from tiltyard.format.codec import field_from_pb
from tiltyard.format.fields import leaf_ids
from tiltyard.format.schema import fields_from_arrow, match_schema

INT = pa.int32()
BLOB = {"lance-encoding:blob": "true"}
TABLE = pa.schema(
    [
        pa.field("k", INT, nullable=False),
        pa.field("s", pa.struct([pa.field("x", INT), pa.field("y", pa.string())])),
        pa.field("l", pa.list_(pa.struct([pa.field("p", INT), pa.field("q", INT)]))),
        pa.field("t", pa.string()),
        pa.field("m", pa.map_(pa.string(), INT)),
    ]
)
FIELDS, _ = fields_from_arrow(TABLE)


def test_the_same_schema_fits_and_covers_everything() -> None:
    match = match_schema(FIELDS, TABLE)
    assert match.schema.equals(TABLE, check_metadata=True)
    assert (match.fields, match.missing, match.check_not_null) == (FIELDS, (), ())


@pytest.mark.parametrize("name", STORABLE)
def test_every_type_fits_itself(name: str) -> None:
    schema = pa.schema([pa.field("c", STORABLE[name])])
    fields, _ = fields_from_arrow(schema)
    match = match_schema(fields, schema)
    assert match.fields == fields
    assert match_schema(fields, match.schema).schema.equals(match.schema, check_metadata=True)


APPENDS = {
    "reordered": pa.table({"t": ["a"], "s": [{"y": "b", "x": 1}], "k": [1]}),
    "members_missing": pa.table({"k": [1], "l": [[{"q": 3}]], "s": [{"x": 1}]}),
    "view": pa.table({"k": [1], "t": pa.array(["a"], pa.string_view())}),
    "maps": pa.table({"k": [1], "m": pa.array([[("a", 1)]], pa.map_(pa.string(), INT))}),
}


def as_given(table: pa.Table) -> pa.Table:
    """Python numbers are 64 bits wide; the table's are 32."""

    def narrow(arrow: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(arrow):
            return pa.struct([field.with_type(narrow(field.type)) for field in arrow])
        if pa.types.is_list(arrow):
            return pa.list_(narrow(arrow.value_type))
        return INT if pa.types.is_int64(arrow) else arrow

    return table.cast(pa.schema([field.with_type(narrow(field.type)) for field in table.schema]))


@pytest.mark.parametrize("table", APPENDS.values(), ids=APPENDS.keys())
def test_pylance_lists_the_same_fields_for_the_same_append(table: pa.Table, tmp_path: Path) -> None:
    given = as_given(table)
    match = match_schema(FIELDS, given.schema)
    lance.write_dataset(pa.RecordBatchReader.from_batches(TABLE, []), str(tmp_path / "t"))
    dataset = lance.write_dataset(given.cast(match.schema), str(tmp_path / "t"), mode="append")
    (file,) = stock_manifest(tmp_path / "t", 2).fragments[0].files
    assert leaf_ids(match.fields, (2, 2)) == tuple(file.fields)
    (row,) = dataset.to_table().to_pylist()
    assert row["k"] == 1
    assert "k" in match.check_not_null


def test_what_is_missing_is_listed() -> None:
    given = pa.schema([pa.field("k", INT), pa.field("s", pa.struct([pa.field("y", pa.string())])), pa.field("t", pa.string())])
    match = match_schema(FIELDS, given)
    assert match.missing == ("s.x", "l", "m")
    assert match.check_not_null == ("k",)
    assert [field.name for field in match.fields] == ["k", "s", "y", "t"]
    assert not match.schema.field("k").nullable


def test_names_of_list_items_and_map_entries_do_not_matter() -> None:
    point = pa.struct([pa.field("p", INT), pa.field("q", INT)])
    given = pa.schema(
        [
            pa.field("k", INT, nullable=False),
            pa.field("l", pa.list_(pa.field("element", point))),
            pa.field("m", pa.map_(pa.field("a", pa.string(), nullable=False), pa.field("b", INT))),
        ]
    )
    match = match_schema(FIELDS, given)
    assert match.schema.field("l").type == TABLE.field("l").type
    assert match.schema.field("m").type == TABLE.field("m").type


def test_a_struct_called_entries_is_matched_by_name() -> None:
    schema = pa.schema([pa.field("entries", pa.struct([pa.field("a", INT), pa.field("b", INT)]))])
    fields, _ = fields_from_arrow(schema)
    match = match_schema(fields, pa.schema([pa.field("entries", pa.struct([pa.field("b", INT)]))]))
    assert match.missing == ("entries.a",)
    assert leaf_ids(match.fields, (2, 2)) == (2,)


def test_blobs_fit_in_both_forms(tmp_path: Path) -> None:
    old = pa.schema([pa.field("b", pa.large_binary(), metadata=BLOB)])
    data = pa.table([pa.array([b"x"], pa.large_binary())], schema=old)
    dataset = lance.write_dataset(data, str(tmp_path / "t"))
    manifest = stock_manifest(tmp_path / "t", 1)
    fields = [field_from_pb(message, "m") for message in manifest.fields]
    for schema in (old, dataset.schema):
        match = match_schema(fields, schema)
        assert leaf_ids(match.fields, (2, 2)) == tuple(manifest.fragments[0].files[0].fields)
        assert match.schema.equals(schema, check_metadata=True)


REFUSED = {
    "wider": ([pa.field("k", pa.int64())], "column k is int64 but int32 in the table", "k"),
    "large": ([pa.field("k", INT), pa.field("t", pa.large_string())], "column t is large_string but string", "t"),
    "dictionary": ([pa.field("k", INT), pa.field("t", pa.dictionary(INT, pa.string()))], "column t is dict:string:int32:false", "t"),
    "nested": ([pa.field("k", INT), pa.field("s", pa.struct([pa.field("x", pa.string())]))], r"column s\.x is string but int32", "s.x"),
    "in_list": ([pa.field("k", INT), pa.field("l", pa.list_(INT))], r"column l is list but list\.struct", "l"),
    "extra": ([pa.field("k", INT), pa.field("zz", INT)], "column zz is not in the table", "zz"),
    "extra_member": ([pa.field("k", INT), pa.field("s", pa.struct([pa.field("z", INT)]))], r"column s\.z is not in the table", "s.z"),
    "no_members": ([pa.field("k", INT), pa.field("s", pa.struct([]))], "struct without members", "s"),
    "required": ([pa.field("t", pa.string())], r"column k is missing and not nullable \(table: int32\)", "k"),
    "twice": ([pa.field("k", INT), pa.field("k", INT)], "column k occurs twice", "k"),
    "unstorable": ([pa.field("k", pa.list_view(INT))], "column k is list_view<item: int32> but int32", "k"),
    "several": (
        [pa.field("k", INT), pa.field("zz", INT), pa.field("t", INT)],
        "zz is not in the table; column t is int32 but string",
        "zz",
    ),
}


@pytest.mark.parametrize(("fields", "text", "path"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_named(fields: list[pa.Field], text: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=text) as caught:
        match_schema(FIELDS, pa.schema(fields))
    assert caught.value.argument == path
    assert len(str(caught.value)) < 300
