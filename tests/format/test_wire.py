"""The few bytes of protobuf that are written by hand agree with the real thing."""

from __future__ import annotations

import pytest

from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import integer, length_delimited, varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_integers_are_read_back(value: int) -> None:
    assert pb.Manifest.FromString(integer(3, value)).version == value
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))


def test_a_zero_is_written_and_overrides_what_came_before() -> None:
    assert pb.Manifest.FromString(integer(14, 9) + integer(14, 0)).next_row_id == 0


def test_high_field_numbers() -> None:
    assert pb.Manifest.FromString(integer(23, 0)).HasField("transaction_section")
    wire = length_delimited(100, length_delimited(1, integer(4, 7)))
    assert pb.Transaction.FromString(wire).append.fragments[0].physical_rows == 7


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_text_of_any_length(size: int) -> None:
    assert pb.Manifest.FromString(length_delimited(12, b"x" * size)).transaction_file == "x" * size
