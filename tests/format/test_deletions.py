"""Deletion files and the Roaring bitmaps inside them."""

from __future__ import annotations

import io
import struct
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.support.hostile import damaged, read_or_refuse
from tests.support.stock import deletion_path, stock_manifest
from tiltyard.errors import CorruptTable
from tiltyard.format import deletions as arrow_column
from tiltyard.format.deletions import BITMAP_FROM, decode_deletions, encode_deletions
from tiltyard.format.roaring import decode_roaring, encode_roaring

SOURCE = "_deletions/0-1-7.arrow"


def arrow_file(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
            writer.write_batch(batch)
    return sink.getvalue()


def batchless_file() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, offsets_table([]).schema):
        pass
    return sink.getvalue()


def offsets_table(values: list[int | None], name: str = "row_id", kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({name: pa.array(values, kind or pa.uint32())})


def decode(data: bytes, *, bitmap: bool = False, rows: int = 1000, count: int | None = None) -> BitMap:
    return decode_deletions(data, bitmap=bitmap, physical_rows=rows, expected_count=count, source=SOURCE)


@pytest.mark.parametrize("deleted", [1, 4999, 5000, 19_999])
def test_files_of_stock_writers(tmp_path: Path, deleted: int) -> None:
    root = tmp_path / "t"
    dataset = lance.write_dataset(pa.table({"a": pa.array(range(20_000), pa.int64())}), root)
    dataset.delete(f"(a * 7919) % 20000 < {deleted}")
    fragment = stock_manifest(root, dataset.version).fragments[0]
    entry = fragment.deletion_file
    found = decode_deletions(
        deletion_path(root, fragment).read_bytes(),
        bitmap=bool(entry.file_type),
        physical_rows=fragment.physical_rows,
        expected_count=entry.num_deleted_rows,
        source="x",
    )
    assert bool(entry.file_type) == (deleted >= BITMAP_FROM)
    assert set(found) == set(range(20_000)) - set(dataset.to_table()["a"].to_pylist())
    assert len(found) == deleted


@settings(max_examples=150, deadline=None)
@given(st.sets(st.integers(0, 200_000), max_size=300), st.sets(st.integers(0, 20), max_size=3))
def test_round_trip(scattered: set[int], blocks: set[int]) -> None:
    bitmap = BitMap(scattered)
    for block in blocks:
        bitmap.add_range(block * 9000, block * 9000 + 5000)
    is_bitmap, data = encode_deletions(bitmap)
    assert is_bitmap == (len(bitmap) >= BITMAP_FROM)
    assert decode(data, bitmap=is_bitmap, rows=300_000, count=len(bitmap)) == bitmap


def test_stock_arrow_reads_our_arrow_files() -> None:
    is_bitmap, data = encode_deletions(BitMap([9, 3, 77]))
    table = pa.ipc.open_file(data).read_all()
    assert not is_bitmap
    assert table.schema == pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    assert table["row_id"].to_pylist() == [3, 9, 77]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd"},
        {"compression": "lz4"},
        {"use_legacy_format": True},
        {"metadata_version": pa.ipc.MetadataVersion.V4},
        {"compression": "zstd", "allow_64bit": True},
    ],
)
@pytest.mark.parametrize("values", [[], [5], [9, 1, 400, 2], list(range(0, 900, 2))])
def test_arrow_files_of_any_make(options: dict[str, Any], values: list[int | None]) -> None:
    assert set(decode(arrow_file(offsets_table(values), **options), count=len(values))) == set(values)


REFUSED = {
    "empty": b"",
    "only the magic": b"ARROW1\0\0ARROW1",
    "another column": arrow_file(offsets_table([1], name="rowid")),
    "signed": arrow_file(offsets_table([1], kind=pa.int32())),
    "wide": arrow_file(offsets_table([1], kind=pa.uint64())),
    "text": arrow_file(pa.table({"row_id": ["1"]})),
    "dictionary": arrow_file(pa.table({"row_id": pa.array([1]).dictionary_encode()})),
    "two columns": arrow_file(pa.table({"row_id": pa.array([1], pa.uint32()), "b": [1]})),
    "nulls": arrow_file(offsets_table([1, None])),
    "two batches": arrow_file(pa.concat_tables([offsets_table([1]), offsets_table([2])])),
    "no batch": batchless_file(),
    "twice the same": arrow_file(offsets_table([4, 4])),
    "beyond the fragment": arrow_file(offsets_table([1000])),
    "more rows than the fragment": arrow_file(offsets_table(list(range(1001)))),
    "a stream": b"\xff\xff\xff\xff" + bytes(60),
}


@pytest.mark.parametrize("what", REFUSED)
def test_arrow_files_that_are_no_deletion_vector(what: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        decode(REFUSED[what])
    assert caught.value.file == SOURCE
    assert caught.value.reason


@pytest.mark.parametrize("bitmap", [True, False])
def test_the_count_must_be_the_manifests(bitmap: bool) -> None:
    data = encode_roaring(BitMap([1, 2])) if bitmap else encode_deletions(BitMap([1, 2]))[1]
    assert len(decode(data, bitmap=bitmap, count=2)) == 2
    with pytest.raises(CorruptTable, match="manifest says 3"):
        decode(data, bitmap=bitmap, count=3)


def test_the_form_is_not_guessed() -> None:
    with pytest.raises(CorruptTable):
        decode(encode_roaring(BitMap([1])), bitmap=False)
    with pytest.raises(CorruptTable):
        decode(encode_deletions(BitMap([1]))[1], bitmap=True)


def test_a_claim_of_terabytes_allocates_nothing() -> None:
    data = arrow_file(offsets_table(list(range(900))), compression="zstd")
    plain_length = struct.pack("<q", 3600)
    assert data.count(plain_length) == 1
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    with pytest.raises(CorruptTable, match="claims 1099511627776 bytes"):
        decode(data.replace(plain_length, struct.pack("<q", 1 << 40)), rows=1 << 60)
    assert pool.bytes_allocated() == before


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(CorruptTable, match="rows in"):
        decode(arrow_file(offsets_table([0] * 5_000_000), compression="zstd"), rows=1 << 40)


def test_a_count_other_than_the_manifests_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file of one repeated number, in a fragment of four billion rows: only the number of rows betrays it."""
    unpacked: list[int] = []
    real = arrow_column._decompress

    def spy(raw: bytes, codec: str, needed: int, source: str) -> bytes:
        unpacked.append(needed)
        return real(raw, codec, needed, source)

    monkeypatch.setattr(arrow_column, "_decompress", spy)
    data = arrow_file(offsets_table([0] * 100_000), compression="zstd")
    for rows, count in ((2**32, 10), (2**32, None)):
        with pytest.raises(CorruptTable):
            decode(data, rows=rows, count=count)
    assert unpacked == []
    assert len(decode(arrow_file(offsets_table(list(range(100_000))), compression="zstd"), rows=2**32, count=100_000)) == 100_000
    assert unpacked == [400_000]


def test_nulls_hidden_behind_a_count_of_zero() -> None:
    data = arrow_file(offsets_table([*range(63), None]))
    node = struct.pack("<qq", 64, 1)
    assert data.count(node) == 1
    with pytest.raises(CorruptTable, match="has nulls"):
        decode(data.replace(node, struct.pack("<qq", 64, 0)))


def test_damaged_arrow_files() -> None:
    originals = [
        arrow_file(offsets_table(list(range(0, 900, 7))), **options) for options in ({}, {"compression": "zstd"}, {"compression": "lz4"})
    ]
    refused = 0
    for data in damaged(originals, 6000, seed=11):
        found = read_or_refuse(partial(decode, data, count=129), SOURCE)
        if found is None:
            refused += 1
        else:
            assert len(found) == 129
            assert found.max() < 1000
    assert 3000 < refused < 6000


def roaring_examples() -> list[bytes]:
    runs = BitMap(range(100, 5000))
    runs.run_optimize()
    many = BitMap([block << 16 | low for block in range(6) for low in (1, 5, 9)])
    many.add_range(7 << 16, (7 << 16) + 300)
    many.run_optimize()
    bits = BitMap(range(0, 20_000, 2), optimize=False)
    return [encode_roaring(bitmap) for bitmap in (BitMap([1, 2, 70_000]), runs, many, bits, BitMap())]


def test_roaring_examples_cover_all_forms() -> None:
    cookies = {data[:2] for data in roaring_examples()}
    assert cookies == {b"\x3a\x30", b"\x3b\x30"}
    for data in roaring_examples():
        assert encode_roaring(decode_roaring(data, SOURCE)) == data


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 2**32 - 1), max_size=200), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 9000)), max_size=5))
def test_roaring_round_trip(scattered: set[int], ranges: list[tuple[int, int]]) -> None:
    bitmap = BitMap(scattered)
    for start, length in ranges:
        bitmap.add_range(start, start + length)
    assert decode_roaring(encode_roaring(bitmap), SOURCE) == bitmap
    bitmap.run_optimize()
    assert decode_roaring(encode_roaring(bitmap), SOURCE) == bitmap


def plain(count: int, headers: list[tuple[int, int]], offsets: list[int], body: bytes) -> bytes:
    table = b"".join(struct.pack("<HH", *header) for header in headers)
    return struct.pack("<II", 12346, count) + table + struct.pack(f"<{len(offsets)}I", *offsets) + body


def runs_of(cardinality: int, runs: list[tuple[int, int]], flag: int = 1) -> bytes:
    body = b"".join(struct.pack("<HH", *run) for run in runs)
    return struct.pack("<I", 12347) + bytes([flag]) + struct.pack("<HHH", 0, cardinality - 1, len(runs)) + body


BAD_ROARING = {
    "empty": b"",
    "unknown cookie": struct.pack("<II", 12345, 0),
    "too many containers": struct.pack("<II", 12346, 1 << 31),
    "table cut off": struct.pack("<II", 12346, 65536),
    "keys descend": plain(2, [(1, 0), (0, 0)], [24, 26], b"\1\0\2\0"),
    "keys repeat": plain(2, [(1, 0), (1, 0)], [24, 26], b"\1\0\2\0"),
    "values descend": plain(1, [(0, 1)], [16], b"\2\0\1\0"),
    "values repeat": plain(1, [(0, 1)], [16], b"\2\0\2\0"),
    "wrong offset": plain(1, [(0, 1)], [17], b"\1\0\2\0"),
    "body cut off": plain(1, [(0, 1)], [16], b"\1\0"),
    "trailing bytes": plain(1, [(0, 1)], [16], b"\1\0\2\0\0"),
    "bits and cardinality differ": plain(1, [(0, 4999)], [16], b"\xff" * 8192),
    "runs overlap": runs_of(6, [(5, 2), (6, 2)]),
    "runs touch": runs_of(6, [(5, 2), (8, 2)]),
    "runs descend": runs_of(2, [(9, 0), (5, 0)]),
    "run leaves the container": runs_of(3, [(65534, 2)]),
    "runs and cardinality differ": runs_of(9, [(5, 2)]),
    "no runs": runs_of(1, []),
    "flags beyond the containers": runs_of(3, [(5, 2)], flag=3),
}


@pytest.mark.parametrize("what", BAD_ROARING)
def test_malformed_roaring(what: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        decode_roaring(BAD_ROARING[what], SOURCE)
    assert caught.value.file == SOURCE


def test_hand_made_roaring_that_is_sound() -> None:
    assert list(decode_roaring(plain(2, [(0, 1), (1, 0)], [24, 28], b"\1\0\2\0\7\0"), SOURCE)) == [1, 2, 65543]
    assert list(decode_roaring(runs_of(5, [(5, 2), (9, 1)]), SOURCE)) == [5, 6, 7, 9, 10]


def test_damaged_roaring() -> None:
    refused = 0
    for data in damaged(roaring_examples(), 6000, seed=12):
        bitmap = read_or_refuse(partial(decode_roaring, data, SOURCE), SOURCE)
        if bitmap is None:
            refused += 1
        else:
            values = bitmap.to_array()
            assert len(values) == len(bitmap)
            assert BitMap(values) == bitmap
            assert all(a < b for a, b in pairwise(values))
    assert 3000 < refused < 6000
