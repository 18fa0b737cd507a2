"""Values of every kind, as JSON and in a cell."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from tiltyard.cli.cells import cell, plain, rows_of, safe
from tiltyard.cli.layout import GAP, NARROWEST, cut, fit_widths

VALUES = [
    (pa.scalar(None, pa.int8()), None),
    (pa.scalar(True), True),
    (pa.scalar(2**64 - 1, pa.uint64()), 2**64 - 1),
    (pa.scalar(1.5), 1.5),
    (pa.scalar(float("nan")), "NaN"),
    (pa.scalar(float("-inf")), "-Infinity"),
    (pa.scalar(1.5, pa.float16()), 1.5),
    (pa.scalar("ß\n"), "ß\n"),
    (pa.scalar(b"\x00\xff", pa.large_binary()), "AP8="),
    (pa.scalar(Decimal("1.20"), pa.decimal128(5, 2)), "1.20"),
    (pa.scalar(dt.date(2026, 1, 2), pa.date64()), "2026-01-02"),
    (pa.scalar(1, pa.timestamp("ns")), "1970-01-01T00:00:00.000000001"),
    (pa.scalar(-1, pa.timestamp("ms", "Europe/Berlin")), "1969-12-31T23:59:59.999+00:00"),
    (pa.scalar(0, pa.timestamp("s", "UTC")), "1970-01-01T00:00:00+00:00"),
    (pa.scalar(2**62, pa.timestamp("s")), f"{2**62} s"),
    (pa.scalar(3_600_000_000_001, pa.time64("ns")), "01:00:00.000000001"),
    (pa.scalar(61, pa.time32("s")), "00:01:01"),
    (pa.scalar(5, pa.duration("us")), "5 us"),
    (pa.scalar([1, None], pa.list_(pa.int8())), [1, None]),
    (pa.scalar([[1.0, 2.0]], pa.list_(pa.list_(pa.float32(), 2))), [[1.0, 2.0]]),
    (pa.scalar({"a": {"b": 1}}), {"a": {"b": 1}}),
    (pa.scalar([("k", 1)], pa.map_(pa.string(), pa.int8())), [["k", 1]]),
    (pa.array(["x", "y"]).dictionary_encode()[1], "y"),
    (pa.array([None, "y"]).dictionary_encode()[0], None),
    (pa.array([2**31 - 1], pa.int32()).view(pa.date32())[0], f"{2**31 - 1} d"),
    (pa.array([-(2**62)], pa.int64()).view(pa.date64())[0], f"{-(2**62)} ms"),
    (pa.array([b"a\xff\x1b"]).view(pa.string())[0], "a\\xff\x1b"),
    (pa.array([[b"\xc3"]], pa.list_(pa.binary())).view(pa.list_(pa.string()))[0], ["\\xc3"]),
    (pa.array([[("k", None)]], pa.map_(pa.field("name", pa.string(), nullable=False), pa.field("n", pa.int8())))[0], [["k", None]]),
    (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])[0], {"a": 2}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=lambda value: str(getattr(value, "type", ""))[:30])
def test_plain(value: pa.Scalar, expected: object) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_an_extension_type_shows_what_it_stores() -> None:
    storage = pa.array([b"0123456789abcdef"], pa.binary(16))
    assert plain(pa.ExtensionArray.from_storage(pa.uuid(), storage)[0]) == "MDEyMzQ1Njc4OWFiY2RlZg=="


def test_rows() -> None:
    assert rows_of(pa.table({"a": [1, 2], "b": ["x", None]})) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert rows_of(pa.table({"a": pa.array([], pa.int8())})) == []


def test_cells_are_short_and_on_one_line() -> None:
    assert cell(None, 60) == "null"
    assert cell("two\nlines", 60) == "two\\nlines"
    assert cell([1, 2], 60) == "[1, 2]"
    assert cell({"a": None}, 60) == '{"a": null}'
    assert cell([0.5] * 1536, 60) == "[0.5, 0.5, 0.5, ... 1,536 values]"
    assert len(cell("x" * 500, 60)) == 60


def test_nothing_reaches_a_terminal_that_it_would_obey() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2028, 0xFEFF):
        assert safe(chr(code)).isprintable()
    assert safe("plain ß 日本") == "plain ß 日本"


def test_widths_fit_the_page() -> None:
    for page in range(5, 120, 7):
        for natural in ([3], [3, 50], [100] * 3, [4, 90, 12, 60, 1], [20] * 30):
            widths = fit_widths(natural, page)
            assert sum(widths) + len(GAP) * (len(widths) - 1) <= max(page, min(natural[0], NARROWEST))
            assert all(0 < width <= wanted for width, wanted in zip(widths, natural, strict=False))
    assert fit_widths([3, 50, 4], 80) == [3, 50, 4]
    assert fit_widths([3, 50, 60], 50) == [3, 21, 22]


def test_cut() -> None:
    assert (cut("abcdefghij", 10), cut("abcdefghijk", 10), cut("日本語日本語", 8)) == ("abcdefghij", "abcdefg...", "日本 ...")
