"""Row ids and row versions: all wire forms, the choices of stock writers, and hostile claims."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.support.hostile import damaged, read_or_refuse
from tests.support.stock import deletion_path, stock_manifest
from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.deletions import decode_deletions
from tiltyard.format.row_ids import (
    RowIds,
    RowVersions,
    concat_row_ids,
    concat_row_versions,
    decode_row_ids,
    decode_row_versions,
    encode_row_ids,
    encode_row_versions,
    fresh_row_ids,
    joined,
    row_ids_of,
    uniform_versions,
)
from tiltyard.format.segments import Bits, Holes, Listed, Range

SOURCE = "manifest, fragment 0"
U64 = (1 << 64) - 1


def stock_tables(root: Path) -> lance.LanceDataset:
    """A table whose history leads stock writers through every wire form."""
    rows = 4000
    data = pa.table({"a": pa.array(range(rows), pa.int64()), "b": pa.array([0] * rows, pa.int64())})
    dataset = lance.write_dataset(data, root, enable_stable_row_ids=True, max_rows_per_file=1000)
    dataset.delete("a in (7, 2500)")
    dataset.update({"b": "1"}, where="a >= 1000 and a < 2000 and a % 10 = 0")
    dataset.update({"b": "b + 1"}, where="a in (3000, 3100, 3900, 3901)")
    shuffled = pa.table({"a": pa.array([3500, 17, 20_000, 900, 3501, 30_000], pa.int64()), "b": pa.array([9] * 6, pa.int64())})
    dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(shuffled)
    dataset.optimize.compact_files(target_rows_per_fragment=1500)
    dataset.delete("a % 3 = 0")
    dataset.update({"b": "5"}, where="a % 2 = 0")
    return lance.dataset(root)


def deleted_offsets(root: Path, fragment: pb.DataFragment) -> BitMap:
    if not fragment.HasField("deletion_file"):
        return BitMap()
    entry = fragment.deletion_file
    data = deletion_path(root, fragment).read_bytes()
    return decode_deletions(data, bitmap=bool(entry.file_type), physical_rows=fragment.physical_rows, expected_count=None, source="x")


def test_sequences_of_stock_writers(tmp_path: Path) -> None:
    root = tmp_path / "t"
    latest = stock_tables(root)
    arms = set()
    for version in range(1, latest.version + 1):
        dataset = latest.checkout_version(version)
        for fragment in stock_manifest(root, version).fragments:
            rows = fragment.physical_rows
            ids = decode_row_ids(fragment.inline_row_ids, physical_rows=rows, source=SOURCE)
            created = decode_row_versions(fragment.inline_created_at_versions, physical_rows=rows, source=SOURCE)
            updated = decode_row_versions(fragment.inline_last_updated_at_versions, physical_rows=rows, source=SOURCE)
            gone = deleted_offsets(root, fragment)
            live = [offset for offset in range(rows) if offset not in gone]
            columns = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
            stock = [part for part in dataset.get_fragments() if part.fragment_id == fragment.id]
            told = dataset.scanner(columns=columns, fragments=stock).to_table()
            assert told["_rowid"].to_pylist() == list(ids.select(live))
            assert told["_row_created_at_version"].to_pylist() == created.select(live).to_numpy().tolist()
            assert told["_row_last_updated_at_version"].to_pylist() == updated.select(live).to_numpy().tolist()
            assert encode_row_ids(ids) == fragment.inline_row_ids
            message = pb.RowIdSequence.FromString(fragment.inline_row_ids)
            arms |= {segment.WhichOneof("segment") for segment in message.segments}
    assert arms == {"range", "range_with_holes", "range_with_bitmap", "sorted_array", "array"}


def test_fresh_sequences_are_byte_for_byte_the_stock_ones(tmp_path: Path) -> None:
    root = tmp_path / "t"
    lance.write_dataset(pa.table({"a": range(70_000)}), root, enable_stable_row_ids=True, max_rows_per_file=50_000)
    first, second = stock_manifest(root, 1).fragments
    assert encode_row_ids(fresh_row_ids(0, 50_000)) == first.inline_row_ids
    assert encode_row_ids(fresh_row_ids(50_000, 20_000)) == second.inline_row_ids
    assert encode_row_versions(uniform_versions(20_000, 1)) == second.inline_created_at_versions == second.inline_last_updated_at_versions


@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        ([], Range),
        ([5], Range),
        ([5, 6, 7], Range),
        ([U64], Listed),
        ([3, 2], Listed),
        ([2, 2], Listed),
        ([*range(500), *range(501, 1000)], Holes),
        (list(range(0, 1000, 3)), Bits),
        ([1, 1000, 100_000], Listed),
        ([0, 2, 3], Bits),  # holes 4, bitmap 1, list 6
        (list(range(0, 160, 16)), Bits),  # bitmap 19, list 20
        (list(range(0, 170, 17)), Bits),  # bitmap 20, list 20: a tie goes to what is tried first
        (list(range(0, 180, 18)), Listed),  # bitmap 21, list 20
    ],
)
def test_the_shape_chosen(ids: list[int], shape: type) -> None:
    chosen = row_ids_of(ids)
    assert isinstance(chosen.segments[0], shape)
    assert list(chosen) == ids
    assert chosen.to_numpy().tolist() == ids


id_lists = st.one_of(
    st.lists(st.integers(0, U64), max_size=60),
    st.lists(st.integers(0, 400), max_size=200),
    st.sets(st.integers(0, 400), max_size=200).map(sorted),
    st.sets(st.integers(U64 - 100_000, U64), max_size=50).map(sorted),
    st.tuples(st.integers(0, 1 << 63), st.sets(st.integers(0, 1000), max_size=8)).map(
        lambda pair: [pair[0] + n for n in range(1001) if n not in pair[1]]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(id_lists, max_size=3))
def test_row_ids_round_trip(parts: list[list[int]]) -> None:
    ids = concat_row_ids(row_ids_of(part) for part in parts)
    flat = [number for part in parts for number in part]
    data = encode_row_ids(ids)
    again = decode_row_ids(data, physical_rows=len(flat), source=SOURCE)
    assert len(again) == len(flat)
    assert again.to_numpy().tolist() == list(again) == flat
    assert encode_row_ids(again) == data


@settings(max_examples=200, deadline=None)
@given(st.lists(id_lists, max_size=3), st.data())
def test_select_and_slice_are_those_of_lists(parts: list[list[int]], data: st.DataObject) -> None:
    ids = concat_row_ids(row_ids_of(part) for part in parts)
    flat = [number for part in parts for number in part]
    start = data.draw(st.integers(0, len(flat)))
    count = data.draw(st.integers(0, len(flat) - start))
    keep = data.draw(st.lists(st.integers(0, max(len(flat) - 1, 0)), max_size=20 if flat else 0))
    assert list(ids.slice(start, count)) == flat[start : start + count]
    assert list(ids.select(keep)) == [flat[offset] for offset in keep]


def array(kind: str, base: int, values: list[int]) -> pb.EncodedU64Array:
    if kind == "u64":
        return pb.EncodedU64Array(u64_array=pb.EncodedU64Array.U64Array(values=np.array(values, "<u8").tobytes()))
    if kind == "u32":
        return pb.EncodedU64Array(u32_array=pb.EncodedU64Array.U32Array(base=base, offsets=np.array(values, "<u4").tobytes()))
    return pb.EncodedU64Array(u16_array=pb.EncodedU64Array.U16Array(base=base, offsets=np.array(values, "<u2").tobytes()))


def sequence(*segments: pb.U64Segment) -> bytes:
    return pb.RowIdSequence(segments=segments).SerializeToString()


def holes(start: int, end: int, missing: pb.EncodedU64Array) -> pb.U64Segment:
    return pb.U64Segment(range_with_holes=pb.U64Segment.RangeWithHoles(start=start, end=end, holes=missing))


def bits(start: int, end: int, bitmap: bytes) -> pb.U64Segment:
    return pb.U64Segment(range_with_bitmap=pb.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap))


@pytest.mark.parametrize("kind", ["u16", "u32", "u64"])
def test_every_width_in_every_form(kind: str) -> None:
    base = 0 if kind == "u64" else 10
    data = sequence(
        pb.U64Segment(array=array(kind, base, [7, 3])),
        pb.U64Segment(sorted_array=array(kind, base, [1, 9])),
        holes(20, 30, array(kind, base, [15 - base + 8, 16 - base + 8])),
        bits(100, 110, b"\x05\x02"),
    )
    expected = [base + 7, base + 3, base + 1, base + 9, 20, 21, 22, *range(25, 30), 100, 102, 109]
    assert list(decode_row_ids(data, physical_rows=len(expected), source=SOURCE)) == expected


BAD = {
    "range backwards": sequence(pb.U64Segment(range=pb.U64Segment.Range(start=5, end=4))),
    "no form": sequence(pb.U64Segment()),
    "no width": sequence(pb.U64Segment(array=pb.EncodedU64Array())),
    "odd bytes": sequence(pb.U64Segment(array=pb.EncodedU64Array(u32_array=pb.EncodedU64Array.U32Array(base=0, offsets=b"123")))),
    "overflow": sequence(pb.U64Segment(array=array("u16", U64, [1]))),
    "unsorted": sequence(pb.U64Segment(sorted_array=array("u16", 0, [2, 1]))),
    "repeated": sequence(pb.U64Segment(sorted_array=array("u16", 0, [2, 2]))),
    "hole outside": sequence(holes(5, 9, array("u16", 0, [9]))),
    "hole below": sequence(holes(5, 9, array("u16", 0, [4]))),
    "holes unsorted": sequence(holes(5, 9, array("u16", 0, [7, 6]))),
    "holes twice": sequence(holes(5, 9, array("u16", 0, [7, 7]))),
    "short bitmap": sequence(bits(0, 9, b"\xff")),
    "long bitmap": sequence(bits(0, 8, b"\xff\x00")),
    "padding set": sequence(bits(0, 9, b"\xff\x03")),
    "no message": b"\xff\xff\xff",
    "huge": sequence(pb.U64Segment(range=pb.U64Segment.Range(start=0, end=1 << 60))),
    "sum beyond 64 bits": sequence(*[pb.U64Segment(range=pb.U64Segment.Range(start=0, end=U64))] * 3),
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_row_ids(what: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        decode_row_ids(BAD[what], physical_rows=1, source=SOURCE)
    assert caught.value.file == SOURCE


def test_a_count_that_agrees_but_is_absurd() -> None:
    with pytest.raises(CorruptTable, match="more than a fragment can hold"):
        decode_row_ids(BAD["huge"], physical_rows=1 << 60, source=SOURCE)


@pytest.mark.parametrize("segment", [pb.U64Segment(range=pb.U64Segment.Range(end=1 << 32)), holes(0, (1 << 32) + 1, array("u16", 0, [9]))])
def test_large_claims_allocate_nothing(segment: pb.U64Segment) -> None:
    tracemalloc.start()
    ids = decode_row_ids(sequence(segment), physical_rows=1 << 32, source=SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(ids) == 1 << 32
    assert peak < 1 << 20


def test_damaged_row_ids() -> None:
    originals = [
        sequence(holes(0, 100, array("u16", 0, [3, 50])), bits(200, 300, b"\x11" * 12 + b"\x01")),
        sequence(pb.U64Segment(array=array("u32", 9, [70_000, 1])), pb.U64Segment(range=pb.U64Segment.Range(start=5, end=128))),
        sequence(pb.U64Segment(sorted_array=array("u64", 0, list(range(0, 1000, 8))))),
    ]
    accepted = refused = 0
    for data in damaged(originals, 6000, seed=21):
        for rows in (123, 125):
            ids = read_or_refuse(partial(decode_row_ids, data, physical_rows=rows, source=SOURCE), SOURCE)
            if ids is None:
                refused += 1
            else:
                assert len(ids.to_numpy()) == len(ids) == rows
                accepted += 1
    assert accepted > 100
    assert refused > 3000


run_lists = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(run_lists, run_lists, st.data())
def test_row_versions_behave_like_lists(first: list[tuple[int, int]], second: list[tuple[int, int]], data: st.DataObject) -> None:
    versions = concat_row_versions([joined(first), joined(second)])
    flat = [version for count, version in first + second for _ in range(count)]
    again = decode_row_versions(encode_row_versions(versions), physical_rows=len(flat), source=SOURCE)
    assert again == versions
    assert versions.to_numpy().tolist() == flat
    places = data.draw(st.lists(st.integers(0, max(len(flat) - 1, 0)), max_size=10 if flat else 0))
    assert versions.select(places).to_numpy().tolist() == [flat[place] for place in places]


def test_only_the_count_of_a_span_matters() -> None:
    message = pb.RowDatasetVersionSequence()
    message.runs.add(span=bits(1, 9, b"\x0f"), version=3)
    message.runs.add(span=pb.U64Segment(array=array("u16", 0, [9, 9])), version=5)
    found = decode_row_versions(message.SerializeToString(), physical_rows=6, source=SOURCE)
    assert found == RowVersions(((4, 3), (2, 5)))
    with pytest.raises(CorruptTable, match="6 row versions for 7 rows"):
        decode_row_versions(message.SerializeToString(), physical_rows=7, source=SOURCE)


def test_damaged_row_versions() -> None:
    originals = [encode_row_versions(joined([(5, 1), (300, 2), (1, 9)])), encode_row_versions(uniform_versions(306, 4))]
    outcomes = set()
    for data in damaged(originals, 4000, seed=22):
        found = read_or_refuse(partial(decode_row_versions, data, physical_rows=306, source=SOURCE), SOURCE)
        if found is None:
            outcomes.add("refused")
        else:
            assert len(found.to_numpy()) == 306
            outcomes.add("read")
    assert outcomes == {"refused", "read"}


def test_offsets_outside_are_the_callers_mistake() -> None:
    with pytest.raises(IndexError):
        fresh_row_ids(0, 3).select([3])
    with pytest.raises(IndexError):
        uniform_versions(3, 1).select([-1])
    assert len(RowIds()) == 0
