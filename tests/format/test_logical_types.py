"""Logical type strings: the exact text for each Arrow type, back again, and strings that mean nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.arrow_types import SIMPLE
from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format.logical_types import arrow_type, encoding_hint, logical_type, member_fields

INT = pa.int32()
X = pa.field("x", INT)

STRINGS = [
    (pa.float16(), "halffloat"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.binary(7), "fixed_size_binary:7"),
    (pa.date32(), "date32:day"),
    (pa.date64(), "date64:ms"),
    (pa.time64("ns"), "time64:ns"),
    (pa.timestamp("us"), "timestamp:us:-"),
    (pa.timestamp("ms", "America/New_York"), "timestamp:ms:America/New_York"),
    (pa.timestamp("s", "+01:00"), "timestamp:s:+01:00"),
    (pa.duration("ns"), "duration:ns"),
    (pa.decimal128(38, 10), "decimal:128:38:10"),
    (pa.decimal256(76, -2), "decimal:256:76:-2"),
    (pa.dictionary(INT, pa.string()), "dict:string:int32:false"),
    (pa.list_(pa.float32(), 4), "fixed_size_list:float:4"),
    (pa.list_(pa.timestamp("us", "UTC"), 2), "fixed_size_list:timestamp:us:UTC:2"),
    (pa.list_(pa.list_(pa.float32(), 2), 3), "fixed_size_list:fixed_size_list:float:2:3"),
    (pa.list_(pa.dictionary(INT, pa.string()), 2), "fixed_size_list:dict:string:int32:false:2"),
    (pa.list_(INT), "list"),
    (pa.large_list(INT), "large_list"),
    (pa.list_(pa.struct([X])), "list.struct"),
    (pa.large_list(pa.struct([X])), "large_list.struct"),
    (pa.list_(pa.struct([X]), 3), "fixed_size_list:struct:3"),
    (pa.struct([X]), "struct"),
    (pa.map_(pa.string(), INT), "map"),
]


@pytest.mark.parametrize(("arrow", "text"), STRINGS, ids=[text for _, text in STRINGS])
def test_strings_both_ways(arrow: pa.DataType, text: str) -> None:
    assert logical_type(arrow) == text
    assert arrow_type(text, member_fields(arrow)) == arrow


@pytest.mark.parametrize("arrow", SIMPLE.values(), ids=SIMPLE.keys())
def test_every_simple_type_comes_back_as_it_is_stored(arrow: pa.DataType) -> None:
    stored = arrow_type(logical_type(arrow))
    assert logical_type(stored) == logical_type(arrow)
    expected = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(arrow, arrow)
    assert stored == (pa.dictionary(arrow.index_type, arrow.value_type) if pa.types.is_dictionary(arrow) else expected)


def test_encoding_hints() -> None:
    hints = {text: encoding_hint(text) for text in ("null", "struct", "int8", "list", "map", "string", "json", "fixed_size_list:string:2")}
    assert hints == {"null": 0, "struct": 0, "int8": 1, "list": 1, "map": 1, "string": 2, "json": 2, "fixed_size_list:string:2": 1}
    assert encoding_hint("dict:string:int8:false") == 3


NONSENSE = [
    "",
    "int33",
    "INT32",
    "int32 ",
    "timestamp",
    "timestamp:us",
    "timestamp:min:UTC",
    "decimal:128:0:0",
    "decimal:128:39:0",
    "decimal:256:77:0",
    "decimal:64:5:2",
    "decimal:128:5:128",
    "decimal:128:5",
    "decimal:128:5:2:1",
    "decimal:128:٣:0",
    "fixed_size_binary:-1",
    "fixed_size_binary:2147483648",
    "fixed_size_binary:99999999999999999999999999",
    "fixed_size_binary:",
    "fixed_size_list:float:0",
    "fixed_size_list:float:-4",
    "fixed_size_list:float:2147483648",
    "fixed_size_list:float",
    "fixed_size_list:",
    "fixed_size_list:list:4",
    "fixed_size_list:nothing:4",
    "fixed_size_list:json:4",
    "fixed_size_list:fixed_size_list:struct:2:2",
    "fixed_size_list:fixed_size_list:float:65536:65536",
    "dict:string:int32",
    "dict:string:string:false",
    "dict:list:int32:false",
    "dict:string:int32:maybe",
    "date32",
    "duration:min",
    "list_view",
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_corrupt_and_names_the_file(text: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        arrow_type(text, source="_versions/1.manifest", path="3 ('c')")
    assert caught.value.file == "_versions/1.manifest"
    assert "field 3 ('c')" in caught.value.reason


@settings(max_examples=2000, derandomize=True, deadline=None)
@given(
    st.lists(
        st.sampled_from(["fixed_size_list", "dict", "decimal", "timestamp", "string", "int8", "128", "9", "0", "us", "-", "struct", ""])
    )
)
def test_any_string_is_a_type_or_corrupt(parts: list[str]) -> None:
    text = ":".join(parts)
    try:
        found = arrow_type(text)
    except CorruptTable:
        return
    # Two strings may mean one type (ordered dictionaries), but the type always has a string that brings it back.
    assert arrow_type(logical_type(found)) == found


def test_the_column_is_named_when_a_type_cannot_be_stored() -> None:
    with pytest.raises(InvalidInput, match=r"column a\.b of type list_view<item: int32> cannot be stored") as caught:
        logical_type(pa.list_view(INT), "a.b")
    assert caught.value.argument == "a.b"
    assert len(str(caught.value)) < 300
