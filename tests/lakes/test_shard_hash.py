"""The hash that assigns rows to shards: written down in numbers, so that no release changes it unnoticed."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.lakes.sharded.shard_hash import check_hashable, key_hashes, shard_numbers
from tiltyard.lakes.sharded.sharding import Sharding


def hashes(values: Any, kind: pa.DataType | None = None) -> list[int]:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return [int(one) for one in key_hashes([array], len(array))]


def word(value: int) -> int:
    return xxh64_intdigest(struct.pack("<q", value), 0)


def test_it_never_changes() -> None:
    """Rows that are stored were assigned by these very numbers."""
    assert hashes([0, 1, -1, 2**63 - 1], pa.int64()) == [
        3803688792395291579,
        11468921228449061269,
        9642548396912002761,
        18406436390665352972,
    ]
    assert hashes(["", "a", "Straße"]) == [17241709254077376921, 15154266338359012955, 1028420681674546995]
    assert hashes([0.0, 1.5], pa.float64()) == [3803688792395291579, 5329932555030153977]
    assert hashes([b"\0", b"ab"], pa.binary()) == [16804241149081757544, 7347350983217793633]
    assert hashes([Decimal("1.50")], pa.decimal128(10, 2)) == [3115163195880725265]
    assert shard_numbers(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}), ["a", "b"], 16).tolist() == [3, 1, 0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_are_hashed_as_xxhash_does(values: list[int]) -> None:
    assert hashes(values, pa.int64()) == [word(value) for value in values]


@given(st.lists(st.tuples(st.text(), st.integers(-5, 5)), min_size=1))
def test_columns_are_chained(rows: list[tuple[str, int]]) -> None:
    columns = [pa.array([text for text, _ in rows]), pa.array([number for _, number in rows])]
    wanted = [xxh64_intdigest(struct.pack("<q", number), xxh64_intdigest(text.encode(), 0)) for text, number in rows]
    assert key_hashes(columns, len(rows)).tolist() == wanted


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()])
def test_the_width_of_a_number_plays_no_part(kind: pa.DataType) -> None:
    assert hashes([0, 5, 100], kind) == [word(0), word(5), word(100)]


def test_neither_does_its_sign() -> None:
    assert hashes([-7], pa.int8()) == hashes([-7], pa.int64()) == [word(-7)]
    assert hashes([2**64 - 1], pa.uint64()) == [xxh64_intdigest(b"\xff" * 8, 0)]


def test_equal_floats_have_one_hash() -> None:
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert len(set(hashes(pa.array([0.0, -0.0])))) == 1
    assert len(set(hashes(pa.array([float("nan"), *other_nan])))) == 1
    for kind in (np.float16, np.float32, np.float64):
        assert hashes(pa.array(np.array([1.5, -2.25, np.inf, np.nan, -0.0], kind))) == hashes(
            [1.5, -2.25, np.inf, np.nan, 0.0], pa.float64()
        )


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_text_is_its_bytes_however_it_is_stored(kind: pa.DataType) -> None:
    values = ["", "a", "Straße", "\0", "a" * 100]
    assert hashes(pa.array(values).cast(kind) if not pa.types.is_dictionary(kind) else pa.array(values).dictionary_encode()) == [
        xxh64_intdigest(value.encode(), 0) for value in values
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)])
def test_so_are_bytes(kind: pa.DataType) -> None:
    assert hashes([b"abc", b"\0\1\2"], kind) == [xxh64_intdigest(b"abc", 0), xxh64_intdigest(b"\0\1\2", 0)]


@pytest.mark.parametrize("kind", [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(60, 2)])
def test_decimals_by_their_unscaled_number(kind: pa.DataType) -> None:
    values = [Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")]
    assert hashes(values, kind) == [xxh64_intdigest(number.to_bytes(32, "little", signed=True), 0) for number in (150, -150, 0)]


def test_moments() -> None:
    days = [date(1970, 1, 1), date(1969, 12, 30), date(2026, 11, 16)]
    assert hashes(days, pa.date32()) == hashes(days, pa.date64()) == [word(0), word(-2), word(20773)]
    moment = datetime(2026, 11, 16, 12, tzinfo=UTC)
    micro = int(moment.timestamp()) * 1_000_000
    assert hashes([moment], pa.timestamp("us", "UTC")) == hashes([moment.replace(tzinfo=None)], pa.timestamp("us")) == [word(micro)]
    assert hashes([moment], pa.timestamp("us", "Europe/Berlin")) == [word(micro)], "the same moment"
    assert hashes([moment], pa.timestamp("s", "UTC")) == [word(micro // 1_000_000)], "in the unit of the column"
    assert hashes([time(0, 0, 5)], pa.time32("s")) == hashes([timedelta(seconds=5)], pa.duration("s")) == [word(5)]
    assert hashes([True, False], pa.bool_()) == [word(1), word(0)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(5, 1), pa.binary(2)])
def test_nulls_have_one_hash(kind: pa.DataType) -> None:
    assert hashes([None], kind) == [xxh64_intdigest(b"", 0)]


def test_slices_and_chunks_are_hashed_as_they_read() -> None:
    whole = pa.array(range(100))
    assert hashes(whole.slice(10, 5)) == hashes(whole)[10:15]
    chunked = pa.chunked_array([whole.slice(0, 3), whole.slice(3, 4)])
    assert key_hashes([chunked], 7).tolist() == hashes(whole)[:7]
    texts = pa.array([f"text {number}" for number in range(100)])
    assert hashes(texts.slice(10, 5)) == hashes(texts)[10:15]


def test_rows_are_spread_evenly() -> None:
    counts = np.bincount(shard_numbers(pa.table({"id": range(100_000)}), ["id"], 16), minlength=16)
    assert counts.min() > 5_900
    assert counts.max() < 6_600


@given(st.lists(st.integers(0, 50)), st.integers(1, 9))
def test_splitting_loses_nothing_and_keeps_the_order(values: list[int], shards: int) -> None:
    rows = pa.table({"id": pa.array(values, pa.int64()), "at": pa.array(range(len(values)), pa.int64())})
    parts = Sharding("x", ("id",), shards).split(rows)
    assert sorted(value for part in parts.values() for value in part["at"].to_pylist()) == list(range(len(values)))
    for number, part in parts.items():
        assert part.num_rows
        assert set(shard_numbers(part, ["id"], shards).tolist()) == {number}
        assert part["at"].to_pylist() == sorted(part["at"].to_pylist())


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.null(), pa.month_day_nano_interval()])
def test_what_has_no_hash_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedFeature, match="cannot be sharded by"):
        check_hashable(pa.schema({"a": kind}), ["a"])


@pytest.mark.parametrize("columns", [[], ["a", "a"], ["b"], ["s.x"]])
def test_columns_that_are_none(columns: list[str]) -> None:
    with pytest.raises(InvalidInput):
        check_hashable(pa.schema({"a": pa.int64(), "s": pa.struct({"x": pa.int64()})}), columns)
