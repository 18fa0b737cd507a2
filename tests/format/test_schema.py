"""Arrow schema <-> fields, held against what stock pylance writes and reports for the same schema."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.arrow_types import STORABLE, UNSTORABLE
from tests.support.proving import pick
from tests.support.stock import stock_manifest
from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import field_from_pb, field_to_pb
from tiltyard.format.fields import assign_ids, format_path, leaf_ids, next_field_id, parse_path
from tiltyard.format.keys import CLUSTERING_KEY_POSITION, PRIMARY_KEY, PRIMARY_KEY_POSITION
from tiltyard.format.logical_types import EXTENSION_METADATA, EXTENSION_NAME, MAX_DEPTH
from tiltyard.format.schema import RESERVED_NAMES, arrow_from_fields, fields_from_arrow
from tiltyard.format.values import DataFile, DataFragment, Field

INT = pa.int32()
BLOB = {"lance-encoding:blob": "true"}


def write_empty(path: Path, schema: pa.Schema, **options: Any) -> Any:
    """A pylance table without rows. Empty arrays cannot be made of some extension types; an empty reader can."""
    return lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), str(path), **options)


def one(arrow: pa.DataType, nullable: bool = True, metadata: dict[str, str] | None = None) -> pa.Schema:
    return pa.schema([pa.field("c", arrow, nullable, metadata)])


def marked(name: str, nullable: bool = False, **entries: str) -> pa.Field:
    keys = {"key": PRIMARY_KEY, "position": PRIMARY_KEY_POSITION, "cluster": CLUSTERING_KEY_POSITION}
    return pa.field(name, INT, nullable, {keys[entry]: value for entry, value in entries.items()})


WITH_METADATA = {
    "metadata": pa.schema([pa.field("a", INT, metadata={"k": "v", "é": "ü"}), pa.field("b", INT)], metadata={"s": "t", "ü": "é"}),
    "nested_metadata": one(pa.list_(pa.field("item", pa.struct([pa.field("x", INT, metadata={"a": "b"})]), metadata={"c": "d"}))),
    "json_with_metadata": one(pa.json_(), metadata={"k": "v"}),
    "json_by_metadata": one(pa.string(), metadata={EXTENSION_NAME: "arrow.json"}),
    "json_stored": one(pa.large_binary(), metadata={EXTENSION_NAME: "lance.json"}),
    "json_name_on_text": one(pa.string(), metadata={EXTENSION_NAME: "lance.json"}),
    "json_view": one(pa.json_(pa.string_view())),
    "unknown_extension": one(INT, metadata={EXTENSION_NAME: "my.ext", EXTENSION_METADATA: "zz"}),
    "unknown_extension_struct": one(pa.struct([pa.field("x", INT)]), metadata={EXTENSION_NAME: "my.ext"}),
    "unknown_extension_in_vector": one(pa.list_(pa.field("item", INT, metadata={EXTENSION_NAME: "my.ext"}), 2)),
    "bfloat16": one(pa.binary(2), metadata={EXTENSION_NAME: "lance.bfloat16", EXTENSION_METADATA: ""}),
    "vector_bfloat16": one(
        pa.list_(pa.field("item", pa.binary(2), metadata={EXTENSION_NAME: "lance.bfloat16", EXTENSION_METADATA: ""}), 4)
    ),
    "vector_vector_bfloat16": one(pa.list_(pa.list_(pa.field("item", pa.binary(2), metadata={EXTENSION_NAME: "lance.bfloat16"}), 4), 2)),
    "blob": one(pa.large_binary(), metadata=BLOB | {"k": "v"}),
    "blob_binary": one(pa.binary(), metadata=BLOB),
    "blob_not_null": one(pa.large_binary(), False, BLOB),
    "blob_in_struct": one(pa.struct([pa.field("b", pa.large_binary(), metadata=BLOB), pa.field("x", INT)])),
    "blob_in_list": one(pa.list_(pa.field("item", pa.large_binary(), metadata=BLOB))),
    "blob_v2": one(lance.blob.BlobType()),
    "not_nullable": one(pa.list_(pa.float32(), 4), False),
    "key": pa.schema([marked("a", key="true"), marked("b", nullable=True)]),
    "key_spelled_otherwise": pa.schema([marked("a", key="Yes"), marked("b", key="0")]),
    "key_positions": pa.schema([marked("a", position="2"), marked("b", position="1")]),
    "key_both_forms": pa.schema([marked("a", key="true", position="2"), marked("b", key="false", position="1")]),
    "key_odd_positions": pa.schema([marked("a", position="0"), marked("b", position="x"), marked("c", position="+7")]),
    "key_nested": pa.schema([pa.field("s", pa.struct([marked("x", key="true")]), nullable=False)]),
    "clustering": pa.schema([marked("a", nullable=True, cluster="2"), marked("b", nullable=True, cluster="1")]),
    "same_name_other_case": pa.schema([pa.field("a", INT), pa.field("A", INT), pa.field("a`b", INT), pa.field("", INT)]),
    "no_columns": pa.schema([]),
    "deepest": one(reduce(lambda inner, _: pa.list_(inner), range(MAX_DEPTH - 1), INT)),
    "everything": pa.schema([pa.field(name, arrow) for name, arrow in STORABLE.items()]),
}
SCHEMAS = {name: one(arrow) for name, arrow in STORABLE.items()} | WITH_METADATA


def messages(schema: pa.Schema, **options: Any) -> list[pb.Field]:
    return [field_to_pb(field) for field in fields_from_arrow(schema, **options)[0]]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_fields_are_those_pylance_writes_and_the_arrow_schema_the_one_it_reports(schema: pa.Schema, tmp_path: Path) -> None:
    reported = write_empty(tmp_path / "t", schema).schema
    manifest = stock_manifest(tmp_path / "t", 1)
    assert messages(schema) == list(manifest.fields)
    assert fields_from_arrow(schema)[1] == dict(manifest.schema_metadata)
    fields = [field_from_pb(message, "m") for message in manifest.fields]
    ours = arrow_from_fields(fields, dict(manifest.schema_metadata))
    assert ours.equals(reported, check_metadata=True), f"{ours}\n!=\n{reported}"
    assert arrow_from_fields(*fields_from_arrow(schema)).equals(reported, check_metadata=True)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_older_files_keep_the_first_form_of_blobs(version: str, tmp_path: Path) -> None:
    schema = one(pa.large_binary(), metadata=BLOB)
    write_empty(tmp_path / "t", schema, data_storage_version=version)
    major, minor = map(int, version.split("."))
    assert messages(schema, file_version=(major, minor)) == list(stock_manifest(tmp_path / "t", 1).fields)


@pytest.mark.parametrize("arrow", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_types_that_no_table_holds_are_refused_by_column(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match=r"column s\.`a\.b` of type") as caught:
        fields_from_arrow(pa.schema([pa.field("s", pa.struct([pa.field("a.b", arrow)]))]))
    assert caught.value.argument == "s.`a.b`"


@pytest.mark.parametrize("name", [name for name in UNSTORABLE if "union" not in name and name != "decimal_scale"])
def test_pylance_refuses_them_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Schema"):
        write_empty(tmp_path / "t", one(UNSTORABLE[name]))


BAD_SCHEMAS = {
    "twice": (pa.schema([pa.field("a", INT), pa.field("a", INT)]), "used twice"),
    "twice_in_struct": (one(pa.struct([pa.field("a", INT), pa.field("a", INT)])), "used twice in column c"),
    "dot": (pa.schema([pa.field("a.b", INT)]), "holds a dot"),
    "reserved": (pa.schema([pa.field("_rowid", pa.uint64())]), "reserved"),
    "binary_metadata": (pa.schema([pa.field("a", INT, metadata={"k": b"\xff"})]), "not UTF-8"),
    "binary_schema_metadata": (pa.schema([pa.field("a", INT)], metadata={"k": b"\xff"}), "not UTF-8"),
    "blob_of_numbers": (one(INT, metadata=BLOB), "marked as blobs"),
    "zone": (one(pa.timestamp("s", "-")), "no time zone"),
    "wrong_storage": (one(INT, metadata={EXTENSION_NAME: "arrow.uuid"}), "could not be read back"),
    "too_deep": (one(reduce(lambda inner, _: pa.list_(inner), range(MAX_DEPTH), INT)), "levels"),
    "too_deep_vectors": (one(reduce(lambda inner, _: pa.list_(inner, 1), range(MAX_DEPTH + 9), INT)), "nesting"),
    "nullable_key": (pa.schema([marked("a", nullable=True, key="true")]), "nullable"),
    "struct_key": (one(pa.struct([pa.field("x", INT)]), False, {PRIMARY_KEY: "true"}), "is struct"),
    "key_in_list": (one(pa.list_(marked("item", key="true")), False), "is inside a list"),
    "key_in_nullable": (one(pa.struct([marked("x", key="true")])), "nullable"),
}


@pytest.mark.parametrize(("schema", "text"), BAD_SCHEMAS.values(), ids=BAD_SCHEMAS.keys())
def test_schemas_that_cannot_be_stored_say_why(schema: pa.Schema, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        fields_from_arrow(schema)


# ---- random schemas --------------------------------------------------------------------------------------------------------

# Arrow hands names over as NUL-terminated text; dots are refused at the top.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0."), max_size=6).filter(
    lambda name: name not in RESERVED_NAMES
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=5)
METADATA = st.none() | st.dictionaries(KEYS, TEXT, max_size=2)


@st.composite
def some_field(draw: st.DrawFn, depth: int) -> pa.Field:
    arrow = draw(some_type(depth))
    return pa.field(draw(NAMES), arrow, draw(st.booleans()) or pa.types.is_null(arrow), draw(METADATA))


@st.composite
def some_type(draw: st.DrawFn, depth: int) -> pa.DataType:
    shape = draw(st.sampled_from(["leaf", "leaf", "struct", "list", "large_list", "map", "vector"])) if depth else "leaf"
    if shape == "leaf":
        return STORABLE[draw(st.sampled_from(list(STORABLE)))]
    if shape == "map":
        key = draw(some_field(0).filter(lambda field: not pa.types.is_null(field.type)))
        return pa.map_(key.with_nullable(False), draw(some_field(depth - 1)))
    if shape in ("struct", "vector"):
        members = pa.struct(draw(st.lists(some_field(depth - 1), max_size=3, unique_by=lambda field: field.name)))
        return members if shape == "struct" else pa.list_(members, draw(st.integers(1, 9)))
    make = pa.list_ if shape == "list" else pa.large_list
    return make(draw(some_field(depth - 1)))


@st.composite
def some_schema(draw: st.DrawFn) -> pa.Schema:
    fields = draw(st.lists(some_field(3), max_size=4, unique_by=lambda field: field.name))
    return pa.schema(fields, draw(METADATA))


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=pick(200, 400), deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(some_schema())
def test_random_schemas_come_back_the_same_ever_after(schema: pa.Schema) -> None:
    fields, metadata = fields_from_arrow(schema)
    back = arrow_from_fields(fields, metadata)
    assert back.names == schema.names
    # Some types change when stored (views, names of vector items); what came back once never changes again, and neither do fields
    # that went over the wire.
    again, metadata_again = fields_from_arrow(back)
    assert arrow_from_fields(again, metadata_again).equals(back, check_metadata=True)
    assert [field.logical_type for field in again] == [field.logical_type for field in fields]
    assert tuple(field_from_pb(pb.Field.FromString(field_to_pb(field).SerializeToString()), "m") for field in fields) == fields


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(some_schema())
def test_random_schemas_are_stored_as_pylance_stores_them(schema: pa.Schema) -> None:
    with tempfile.TemporaryDirectory() as directory:
        reported = write_empty(Path(directory, "t"), schema).schema
        manifest = stock_manifest(Path(directory, "t"), 1)
    assert messages(schema) == list(manifest.fields)
    assert arrow_from_fields(*fields_from_arrow(schema)).equals(reported, check_metadata=True)


# ---- ids -------------------------------------------------------------------------------------------------------------------


def test_ids_are_depth_first_and_may_begin_anywhere() -> None:
    schema = pa.schema(
        [pa.field("a", INT), pa.field("st", pa.struct([pa.field("x", INT), pa.field("l", pa.list_(INT))])), pa.field("z", INT)]
    )
    fields, _ = fields_from_arrow(schema, first_id=10)
    assert [(field.name, field.id, field.parent_id) for field in fields] == [
        ("a", 10, -1),
        ("st", 11, -1),
        ("x", 12, 11),
        ("l", 13, 11),
        ("item", 14, 13),
        ("z", 15, -1),
    ]
    assert assign_ids(fields, 0) == fields_from_arrow(schema)[0]
    assert leaf_ids(assign_ids(fields, 0), (2, 2)) == (0, 2, 4, 5)


def test_new_ids_are_above_schema_files_and_high_water_mark() -> None:
    fields, _ = fields_from_arrow(one(pa.list_(INT)))
    fragment = DataFragment(0, (DataFile("f", (0, 7, -2), (0, 1, 2)), DataFile("g", (), ())), 1)
    assert next_field_id(()) == 0
    assert next_field_id(fields) == 2
    assert next_field_id(fields, [fragment]) == 8
    assert next_field_id(fields, [fragment], max_allocated=20) == 21
    assert next_field_id(fields, [fragment], max_allocated=3) == 8
    with pytest.raises(InvalidInput):
        assign_ids(fields, 2**31 - 1)


PACKED = pa.struct([pa.field("x", INT), pa.field("y", INT)])
ROWS = {
    "plain": pa.table({"a": [1], "d": pa.array(["x"]).dictionary_encode(), "n": pa.nulls(1), "v": pa.array([[1, 2]], pa.list_(INT, 2))}),
    "nested": pa.table({"s": [{"x": 1, "l": [1]}], "ls": [[{"x": 1}]], "z": [1]}),
    "empty_struct": pa.table({"e": pa.array([{}], pa.struct([])), "a": [1]}),
    "packed": pa.table([pa.array([{"x": 1, "y": 2}], PACKED)], schema=one(PACKED, metadata={"packed": "true"})),
    "packed_new_name": pa.table([pa.array([{"x": 1, "y": 2}], PACKED)], schema=one(PACKED, metadata={"lance-encoding:packed": "YES"})),
    "not_packed": pa.table([pa.array([{"x": 1, "y": 2}], PACKED)], schema=one(PACKED, metadata={"packed": "no"})),
    "blob_and_json": pa.table(
        [pa.array([b"x"], pa.large_binary()), pa.array(["{}"], pa.json_())],
        schema=pa.schema([pa.field("b", pa.large_binary(), metadata=BLOB), pa.field("j", pa.json_())]),
    ),
}
ROWS_NEW = {
    "map": pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), INT)), "z": [1]}),
    "vector_struct": pa.table({"v": pa.array([[{"x": 1}]], pa.list_(pa.struct([pa.field("x", INT)]), 1)), "z": [1]}),
}
FILE_CASES = [
    *((version, name) for version in ("legacy", "2.0", "2.1", "2.2") for name in ROWS),
    ("2.2", "map"),
    ("2.2", "vector_struct"),
    ("2.0", "vector_struct"),
]


@pytest.mark.parametrize(("version", "name"), FILE_CASES)
def test_data_files_list_the_ids_pylance_lists(version: str, name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_storage_version": version}
    lance.write_dataset((ROWS | ROWS_NEW)[name], str(tmp_path / "t"), **options)
    manifest = stock_manifest(tmp_path / "t", 1)
    (file,) = manifest.fragments[0].files
    fields = [field_from_pb(message, "m") for message in manifest.fields]
    assert leaf_ids(fields, (file.file_major_version, file.file_minor_version)) == tuple(file.fields)


# ---- wire ------------------------------------------------------------------------------------------------------------------


def test_unknown_members_of_a_field_survive() -> None:
    future = b"\xc2\x3e\x03new"  # field 1000, three bytes
    message = pb.Field.FromString(field_to_pb(Field("a", 0, -1, "int32")).SerializeToString() + future)
    field = field_from_pb(message, "m")
    assert field.unknown == future
    assert future in field_to_pb(field).SerializeToString()
    assert field_from_pb(field_to_pb(field), "m") == field


def test_top_level_parent_and_empty_legacy_dictionary_are_written() -> None:
    field = Field("a", 0, -1, "dict:string:int8:false", dictionary=(0, 0))
    data = field_to_pb(field).SerializeToString()
    assert b"\x20" + b"\xff" * 9 + b"\x01" in data
    assert field_from_pb(pb.Field.FromString(data), "m") == field


def test_a_field_without_a_type_is_corrupt() -> None:
    with pytest.raises(CorruptTable, match="no type"):
        field_from_pb(pb.Field(name="a", parent_id=-1), "_versions/1.manifest")


@pytest.mark.parametrize("names", [("a",), ("a", "b.c"), ("a`b", "", "`"), ("é", "x y")])
def test_paths_come_back(names: tuple[str, ...]) -> None:
    assert parse_path(format_path(names)) == names


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "`a", "`a`b", "a`b", "a.`", "`a```b"])
def test_malformed_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        parse_path(path)


# ---- hostile fields --------------------------------------------------------------------------------------------------------

HOSTILE = {
    "missing_parent": [Field("a", 0, 5, "int32")],
    "own_parent": [Field("a", 0, 0, "int32")],
    "later_parent": [Field("a", 0, 1, "int32"), Field("b", 1, -1, "struct")],
    "cycle": [Field("a", 0, 1, "struct"), Field("b", 1, 0, "struct")],
    "parent_minus_two": [Field("a", 0, -2, "int32")],
    "duplicate_id": [Field("a", 0, -1, "int32"), Field("b", 0, -1, "int32")],
    "negative_id": [Field("a", -1, -1, "int32")],
    "list_without_item": [Field("a", 0, -1, "list")],
    "list_of_two": [Field("a", 0, -1, "list"), Field("x", 1, 0, "int32"), Field("y", 2, 0, "int32")],
    "leaf_with_member": [Field("a", 0, -1, "int32"), Field("x", 1, 0, "int32")],
    "map_of_int": [Field("a", 0, -1, "map"), Field("e", 1, 0, "int32")],
    "map_of_one": [Field("a", 0, -1, "map"), Field("e", 1, 0, "struct"), Field("k", 2, 1, "int32", nullable=False)],
    "map_nullable_key": [Field("a", 0, -1, "map"), Field("e", 1, 0, "struct"), Field("k", 2, 1, "int8"), Field("v", 3, 1, "int8")],
    "vector_struct_of_int": [Field("a", 0, -1, "fixed_size_list:struct:2"), Field("x", 1, 0, "int32")],
    "null_not_nullable": [Field("a", 0, -1, "null", nullable=False)],
    "deep": [Field("a", number, number - 1, "struct") for number in range(100_000)],
    "deep_string": [Field("a", 0, -1, "fixed_size_list:" * 100_000 + "int8" + ":1" * 100_000)],
    "bad_uuid": [Field("a", 0, -1, "int32", metadata={EXTENSION_NAME: b"arrow.uuid"})],
    "bad_blob": [Field("a", 0, -1, "struct", metadata={EXTENSION_NAME: b"lance.blob.v2"})],
    "bad_tensor": [
        Field(
            "a", 0, -1, "fixed_size_list:float:4", metadata={EXTENSION_NAME: b"arrow.fixed_shape_tensor", EXTENSION_METADATA: b"[" * 99999}
        )
    ],
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_fields_are_corrupt_and_name_the_file(fields: list[Field]) -> None:
    with pytest.raises(CorruptTable) as caught:
        arrow_from_fields(fields, source="_versions/7.manifest")
    assert caught.value.file == "_versions/7.manifest"
    assert len(str(caught.value)) < 300


def test_metadata_that_is_no_text_is_mended_for_arrow_and_kept_in_the_field() -> None:
    field = Field("a", 0, -1, "int32", metadata={"k": b"\xff"})
    assert arrow_from_fields([field], {"s": b"\xfe"}).field("a").metadata == {b"k": "\ufffd".encode()}
    assert field_from_pb(field_to_pb(field), "m").metadata == {"k": b"\xff"}


TYPE_TEXT = st.text("0123456789:-_.abcdefilnorstuxz", max_size=30) | st.sampled_from(
    ["struct", "list", "list.struct", "map", "json", "fixed_size_list:struct:3", "fixed_size_list:float:4", "dict:string:int8:true", "null"]
)
SMALL = st.integers(-3, 12) | st.integers(-(2**31), 2**31 - 1)
CHANGES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "id": SMALL,
        "parent_id": SMALL,
        "logical_type": TYPE_TEXT,
        "nullable": st.booleans(),
        "name": NAMES,
        "metadata": st.dictionaries(
            st.sampled_from([EXTENSION_NAME, EXTENSION_METADATA, "k"]),
            st.sampled_from(
                [b"arrow.json", b"arrow.uuid", b"arrow.bool8", b"arrow.fixed_shape_tensor", b"arrow.opaque", b'{"shape":[2,2]}']
            )
            | st.binary(max_size=12),
        ),
    },
)


@settings(max_examples=pick(500, 1500), deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.data())
def test_mutated_fields_are_corrupt_or_a_schema(data: st.DataObject) -> None:
    schema = pa.schema(
        [pa.field(name, STORABLE[name]) for name in data.draw(st.lists(st.sampled_from(list(STORABLE)), max_size=3, unique=True))]
    )
    fields = list(fields_from_arrow(schema)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(fields)))
        if where == len(fields):
            fields.append(replace(Field("new", 99, -1, "int32"), **data.draw(CHANGES)))
        elif data.draw(st.booleans()):
            fields[where] = replace(fields[where], **data.draw(CHANGES))
        else:
            del fields[where]
    corrupt = None
    try:
        found = arrow_from_fields(fields, source="m")
    except CorruptTable as error:
        corrupt = error
    if corrupt is not None:
        assert corrupt.file == "m"
        assert corrupt.reason
    else:
        assert len(found) == sum(field.parent_id == -1 for field in fields)
        assert len(leaf_ids(fields, (2, 2))) <= len(fields)
