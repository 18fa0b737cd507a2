"""Key filters: the same bits as pylance, every rule for comparing two of them, and never an acquittal of a shared key."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stock import MAX, stock_manifest
from tiltyard.errors import InvalidInput
from tiltyard.transaction import key_filter as kf
from tiltyard.transaction.operations import BloomFilter, KeyExistenceFilter, Update
from tiltyard.transaction.transaction import Transaction

INT64 = ["int64"]
KEY = {"lance-schema:unenforced-primary-key": "true"}


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=value < 0)


def plain(*keys: int, field_ids: Sequence[int] = (0,)) -> KeyExistenceFilter:
    return KeyExistenceFilter(tuple(field_ids), bloom=kf.bloom_of(map(number, keys)))


def exact(*keys: int) -> KeyExistenceFilter:
    return KeyExistenceFilter((0,), exact=tuple(kf.exact_of(map(number, keys))))


def with_bloom(one: KeyExistenceFilter, **changes: Any) -> KeyExistenceFilter:
    assert one.bloom is not None
    return replace(one, bloom=replace(one.bloom, **changes))


def bitmap(one: KeyExistenceFilter) -> bytes:
    assert one.bloom is not None
    return one.bloom.bitmap


# ---- stock pylance ---------------------------------------------------------------------------------------------------------


def key_schema(types: Sequence[pa.DataType]) -> pa.Schema:
    marks = [KEY | ({"lance-schema:unenforced-primary-key:position": str(at + 1)} if len(types) > 1 else {}) for at in range(len(types))]
    return pa.schema([pa.field(f"k{at}", kind, False, marks[at]) for at, kind in enumerate(types)] + [pa.field("v", pa.int64())])


def rows(schema: pa.Schema, *columns: Sequence[Any]) -> pa.Table:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    return pa.table([*arrays, pa.array([1] * len(columns[0]), pa.int64())], schema=schema)


def merge(table: lance.LanceDataset, data: pa.Table) -> None:
    on = [name for name in data.schema.names if name != "v"]
    table.merge_insert(on).when_matched_update_all().when_not_matched_insert_all().conflict_retries(0).execute(data)


def committed(root: Path, version: int) -> Update:
    name = stock_manifest(root, version).transaction_file
    operation = Transaction.from_bytes((root / "_transactions" / name).read_bytes()).operation
    assert isinstance(operation, Update)
    return operation


def filter_of(root: Path, version: int) -> KeyExistenceFilter:
    found = committed(root, version).inserted_rows
    assert found is not None
    return found


def plant(root: Path, version: int, filter: KeyExistenceFilter | None) -> None:
    """Gives the update that made a version another filter: in its file, which counts once the copy inside the manifest is unhooked."""
    head = stock_manifest(root, version)
    file = root / "_transactions" / head.transaction_file
    transaction = Transaction.from_bytes(file.read_bytes())
    assert isinstance(transaction.operation, Update)
    file.write_bytes(replace(transaction, operation=replace(transaction.operation, inserted_rows=filter)).to_bytes())
    head.ClearField("transaction_section")
    path = root / "_versions" / f"{MAX - version:020d}.manifest"
    data, message = path.read_bytes(), head.SerializeToString()
    (start,) = struct.unpack("<q", data[-16:-8])
    path.write_bytes(data[:start] + struct.pack("<I", len(message)) + message + data[-16:])


COLUMNS: dict[str, tuple[list[pa.DataType], list[list[Any]]]] = {
    "int32": ([pa.int32()], [[5, -1, 0, 2**31 - 1, -(2**31)]]),
    "int64": ([pa.int64()], [[5, -1, 0, 2**63 - 1, -(2**63)]]),
    "uint32": ([pa.uint32()], [[5, 0, 2**32 - 1, 2**31]]),
    "uint64": ([pa.uint64()], [[5, 0, 2**64 - 1, 2**63]]),
    "string": ([pa.string()], [["there", "", "a", "ä€😀", "x" * 5000, "a\0b"]]),
    "large_string": ([pa.large_string()], [["there", "", "a", "ä€😀", "x" * 5000]]),
    "binary": ([pa.binary()], [[b"there", b"", b"\0", b"\xff" * 300]]),
    "large_binary": ([pa.large_binary()], [[b"there", b"", b"\0", b"\xff" * 300]]),
    "int32+string": ([pa.int32(), pa.string()], [[5, -1, -1, 7], ["there", "", "a", "a\0b"]]),
    "binary+uint64+string": ([pa.binary(), pa.uint64(), pa.string()], [[b"t", b"\0", b""], [1, 2, 2**64 - 1], ["t", "", "z"]]),
    "20,000 keys": ([pa.int64()], [[-1, *random.Random(11).sample(range(10**12), 20_000)]]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_same_bits_as_pylance(tmp_path: Path, name: str) -> None:
    types, columns = COLUMNS[name]
    schema = key_schema(types)
    lance.write_dataset(rows(schema, *([column[0]] for column in columns)), tmp_path)
    merge(lance.dataset(tmp_path), rows(schema, *columns))  # the first key is there already: updated, not inserted
    theirs = filter_of(tmp_path, 2)
    inserted = rows(schema, *(column[1:] for column in columns)).drop_columns(["v"])
    assert kf.key_filter(theirs.field_ids, inserted) == theirs
    logical = [str(kind) for kind in types]
    assert all(map(kf.supported_by_pylance, logical))
    assert kf.names_all_keys(theirs, logical)


def test_nothing_inserted_is_pylance_s_empty_filter_with_our_mark(tmp_path: Path) -> None:
    schema = key_schema([pa.int64()])
    lance.write_dataset(rows(schema, [1, 2]), tmp_path)
    merge(lance.dataset(tmp_path), rows(schema, [1]))
    mine, theirs = kf.key_filter([0], schema.empty_table().select(["k0"])), filter_of(tmp_path, 2)
    assert with_bloom(mine, number_of_items=8192) == theirs
    assert mine.bloom is not None
    assert mine.bloom.number_of_items == 0


LEFT_OUT: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, 2, -3]),
    "int16": (pa.int16(), [1, 2, -3]),
    "uint8": (pa.uint8(), [1, 2, 3]),
    "uint16": (pa.uint16(), [1, 2, 3]),
    "bool": (pa.bool_(), [True, False]),
    "halffloat": (pa.float16(), [1.0, 2.0, 3.0]),
    "float": (pa.float32(), [1.0, -0.0, 3.0]),
    "double": (pa.float64(), [1.0, -0.0, 3.0]),
    "date32:day": (pa.date32(), [1, 2, 3]),
    "date64:ms": (pa.date64(), [86_400_000, 0, 172_800_000]),
    "time32:s": (pa.time32("s"), [1, 2, 3]),
    "time64:ns": (pa.time64("ns"), [1, 2, 3]),
    "timestamp:us:UTC": (pa.timestamp("us", "UTC"), [1, 2, 3]),
    "duration:ms": (pa.duration("ms"), [1, 2, 3]),
    "decimal:128:5:2": (pa.decimal128(5, 2), [1, 2, -3]),
    "decimal:256:50:2": (pa.decimal256(50, 2), [1, 2, -3]),
    "fixed_size_binary:2": (pa.binary(2), [b"ab", b"cd", b"\0\0"]),
    "dict:string:int32:false": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"]),
    "fixed_size_list:int32:2": (pa.list_(pa.int32(), 2), [[1, 2], [3, 4], [5, 6]]),
}


@pytest.mark.parametrize("logical", LEFT_OUT)
def test_key_types_pylance_leaves_out(tmp_path: Path, logical: str) -> None:
    """Its filter is empty although keys went in, so it denies nothing; ours tells keys apart, or denies none where it cannot."""
    kind, values = LEFT_OUT[logical]
    schema = key_schema([kind])
    lance.write_dataset(rows(schema, values[:1]), tmp_path)
    stale, also_stale = lance.dataset(tmp_path), lance.dataset(tmp_path)  # two, since a handle remembers transactions it has read
    merge(lance.dataset(tmp_path), rows(schema, values[1:]))
    theirs = filter_of(tmp_path, 2)
    assert lance.dataset(tmp_path).count_rows() == len(values)
    assert bitmap(theirs) == bytes(kf.PLAIN_BYTES)
    assert not kf.supported_by_pylance(logical)
    assert not kf.names_all_keys(theirs, [logical])

    def ours(some: list[Any]) -> KeyExistenceFilter:
        return kf.key_filter([0], rows(schema, some).select(["k0"]))

    mine = ours(values[1:])
    assert kf.may_share_a_key(mine, theirs, [logical]).possible
    assert kf.may_share_a_key(theirs, theirs, [logical]).possible
    assert kf.may_share_a_key(mine, ours(values[-1:]), [logical]).possible
    assert kf.may_share_a_key(mine, ours(values[:1]), [logical]).possible == (not kf.has_key_bytes(logical))
    assert not kf.may_share_a_key(mine, ours([]), [logical]).possible

    # Pylance, committing after us with its empty filter, does not pass by.
    plant(tmp_path, 2, mine)
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merge(stale, rows(schema, values[-1:]))
    plant(tmp_path, 2, with_bloom(theirs, bitmap=b"\xff" * kf.PLAIN_BYTES))  # what would not have stopped it
    merge(also_stale, rows(schema, values[-1:]))
    assert lance.dataset(tmp_path).count_rows() == len(values) + 1


@pytest.mark.parametrize("logical", ["string", "binary"])
def test_an_empty_filter_of_pylance_over_text_is_doubted(tmp_path: Path, logical: str) -> None:
    """Text handed over as a view is the same column to pylance, and is missing from its filter."""
    kind, view = {"string": (pa.string(), pa.string_view()), "binary": (pa.binary(), pa.binary_view())}[logical]
    schema = key_schema([kind])
    lance.write_dataset(rows(schema, [b"there"]), tmp_path)
    merge(lance.dataset(tmp_path), pa.table({"k0": pa.array([b"new"], view), "v": pa.array([1], pa.int64())}))
    theirs = filter_of(tmp_path, 2)
    assert lance.dataset(tmp_path).count_rows() == 2
    assert bitmap(theirs) == bytes(kf.PLAIN_BYTES)
    mine = kf.key_filter([0], pa.table({"k0": pa.array([b"new"], view)}))
    assert mine == kf.key_filter([0], pa.table({"k0": pa.array([b"new"], kind)}))
    assert kf.may_share_a_key(mine, theirs, [logical]) == kf.Overlap(True, f"a key filter may leave out keys of type {logical}")
    nothing = kf.key_filter([0], pa.table({"k0": pa.array([], kind)}))
    assert not kf.may_share_a_key(mine, nothing, [logical]).possible
    assert not kf.may_share_a_key(nothing, theirs, [logical]).possible


# ---- comparing: every row of the table of rules, with pylance's own verdict beside ours -----------------------------------

MINE = plain(100)
FULL = with_bloom(plain(1), bitmap=b"\xff" * kf.PLAIN_BYTES)
ALL_BUT_MINE = with_bloom(plain(1), bitmap=bytes(byte ^ 0xFF for byte in bitmap(MINE)))


def one_common_bit() -> KeyExistenceFilter:
    bits = bytearray(kf.PLAIN_BYTES)
    at = next(index for index, byte in enumerate(bitmap(MINE)) if byte)
    bits[at] = bitmap(MINE)[at]
    return with_bloom(plain(1), bitmap=bytes(bits))


RULES: dict[str, tuple[KeyExistenceFilter, bool, bool]] = {
    # theirs; whether we see a conflict; whether pylance does
    "other field ids": (plain(7, field_ids=[1]), True, True),
    "more field ids": (plain(7, field_ids=[0, 1]), True, True),
    "a set of hashes": (exact(7), True, True),
    "an empty set of hashes": (exact(), True, True),
    "no payload": (KeyExistenceFilter((0,)), True, True),
    "another length": (with_bloom(plain(7), bitmap=bytes(16384), num_bits=131072), True, True),
    "another item count": (with_bloom(plain(7), number_of_items=100), True, True),
    "another probability": (with_bloom(plain(7), probability=0.01), True, True),
    "strict": (KeyExistenceFilter((0,), bloom=kf.bloom_of([number(7)], strict=True)), True, True),
    "the defaults unset": (with_bloom(plain(7), number_of_items=0, probability=0.0), False, False),
    "all sizes unset": (with_bloom(plain(7), number_of_items=0, probability=0.0, num_bits=0), False, False),
    "the defaults unset, the same key": (with_bloom(plain(100), number_of_items=0, probability=0.0), True, True),
    "the same key": (plain(100), True, True),
    "the same key among others": (plain(*range(90, 110)), True, True),
    "another key": (plain(7), False, False),
    "every bit": (FULL, True, True),
    "every bit but ours": (ALL_BUT_MINE, False, False),
    "one common bit": (one_common_bit(), False, True),
    "400 other keys": (plain(*range(1000, 1400)), False, False),
    "empty": (with_bloom(plain(), number_of_items=8192), False, False),
    "empty, marked": (plain(), False, False),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_beside_pylance(tmp_path: Path, name: str) -> None:
    theirs, ours_sees, pylance_sees = RULES[name]
    assert kf.may_share_a_key(MINE, theirs, INT64).possible == ours_sees
    assert kf.may_share_a_key(theirs, MINE, INT64).possible == ours_sees
    schema = key_schema([pa.int64()])
    lance.write_dataset(rows(schema, [1]), tmp_path)
    stale = lance.dataset(tmp_path)
    merge(lance.dataset(tmp_path), rows(schema, [7]))
    plant(tmp_path, 2, theirs)
    if pylance_sees:
        with pytest.raises(OSError, match="Too many concurrent writers"):
            merge(stale, rows(schema, [100]))
    else:
        merge(stale, rows(schema, [100]))
        assert filter_of(tmp_path, 3) == MINE


def test_the_rules_pylance_cannot_show() -> None:
    empty = with_bloom(plain(), number_of_items=8192)
    assert not kf.may_share_a_key(empty, FULL, INT64).possible
    assert not kf.may_share_a_key(plain(), FULL, ["string"]).possible
    assert kf.may_share_a_key(empty, FULL, ["string"]).possible
    assert not kf.may_share_a_key(exact(1, 2), exact(3), INT64).possible
    assert kf.may_share_a_key(exact(1, 2), exact(2, 3), INT64) == kf.Overlap(True, "both may have inserted one key")
    assert not kf.may_share_a_key(exact(1), KeyExistenceFilter((0,)), INT64).possible
    assert kf.may_share_a_key(exact(1), KeyExistenceFilter((0,)), ["string"]).possible
    assert not kf.may_share_a_key(plain(), plain(), INT64).possible


@pytest.mark.parametrize(
    "broken",
    [
        {"bitmap": b"", "num_bits": 0},
        {"bitmap": bytes(33), "num_bits": 264},
        {"num_bits": 8},
        {"probability": float("nan")},
        {"unknown": b"\x28\x01"},
    ],
    ids=str,
)
def test_what_cannot_be_compared_may_share_a_key(broken: dict[str, Any]) -> None:
    one = with_bloom(plain(1), **broken)
    assert kf.may_share_a_key(one, one, INT64).possible
    assert kf.may_share_a_key(plain(2), one, INT64).possible
    assert kf.contains(one, number(1))


def test_a_filter_from_the_future_or_over_unknown_columns_may_share_a_key() -> None:
    assert kf.may_share_a_key(plain(1), replace(plain(2), unknown=b"\x28\x01"), INT64).possible
    assert kf.may_share_a_key(plain(1), plain(2), []).possible
    assert kf.may_share_a_key(plain(1), plain(2), ["int64", "int64"]).possible
    assert kf.may_share_a_key(plain(1, field_ids=[]), plain(2, field_ids=[]), []).possible


def test_a_plain_filter_over_a_type_pylance_leaves_out_is_doubted_whatever_it_holds() -> None:
    """JSON is such a type: pylance hashes the text as it was given, so that one value in two spellings is two keys."""
    assert kf.may_share_a_key(plain(1), plain(2), ["json"]).possible
    assert kf.may_share_a_key(plain(), plain(2), ["int16"]).possible
    assert not kf.may_share_a_key(plain(1), plain(2), ["string"]).possible


# ---- never an acquittal ----------------------------------------------------------------------------------------------------

key_sets = st.sets(st.binary(max_size=12), max_size=60)


@settings(max_examples=300, deadline=None)
@given(key_sets, key_sets, st.binary(max_size=12), st.booleans())
def test_no_false_negatives(left: set[bytes], right: set[bytes], shared: bytes, strict: bool) -> None:
    mine, theirs = ((0,), left | {shared}), ((0,), right | {shared})
    blooms = [KeyExistenceFilter(ids, bloom=kf.bloom_of(keys, strict=strict)) for ids, keys in (mine, theirs)]
    sets = [KeyExistenceFilter(ids, exact=tuple(kf.exact_of(keys))) for ids, keys in (mine, theirs)]
    for one, other in (blooms, sets, (blooms[0], sets[1])):
        assert kf.may_share_a_key(one, other, ["binary"]).possible
        assert kf.may_share_a_key(other, one, ["binary"]).possible
    for key in mine[1]:
        assert kf.contains(blooms[0], key)
        assert kf.contains(sets[0], key)


@settings(max_examples=200, deadline=None)
@given(key_sets, key_sets)
def test_the_tighter_test_accuses_no_more_than_pylance(left: set[bytes], right: set[bytes]) -> None:
    mine, theirs = (KeyExistenceFilter((0,), bloom=kf.bloom_of(keys)) for keys in (left, right))
    any_common_bit = int.from_bytes(bitmap(mine)) & int.from_bytes(bitmap(theirs)) != 0
    possible = kf.may_share_a_key(mine, theirs, ["binary"]).possible
    assert possible <= any_common_bit
    assert possible >= bool(left & right)
    assert any(kf.contains(theirs, key) for key in left) <= possible


@pytest.mark.parametrize(
    ("keys", "runs", "ours", "pylance"), [(40, 200, 0, 64), (400, 100, 0, 100), (2000, 20, 4, 20), (8192, 5, 5, 5)], ids=lambda value: None
)
def test_how_often_different_keys_seem_to_meet(keys: int, runs: int, ours: int, pylance: int) -> None:
    """Counted on fixed seeds. Pylance's test is at a loss with a few hundred keys on both sides; ours with several thousand."""
    met = met_in_pylance = 0
    for seed in range(runs):
        drawn = random.Random(seed).sample(range(2**62), 2 * keys)
        mine, theirs = plain(*drawn[:keys]), plain(*drawn[keys:])
        met += kf.may_share_a_key(mine, theirs, INT64).possible
        met_in_pylance += int.from_bytes(bitmap(mine)) & int.from_bytes(bitmap(theirs)) != 0
    assert (met, met_in_pylance) == (ours, pylance)


def test_contains_denies_most_other_keys() -> None:
    one = plain(*range(8192))
    strict = KeyExistenceFilter((0,), bloom=kf.bloom_of(map(number, range(4096)), strict=True))
    wrong = [sum(kf.contains(each, number(key)) for key in range(10**6, 10**6 + 10_000)) for each in (one, strict)]
    assert max(wrong) < 20  # 0.00057 of 10,000 are six
    assert not kf.contains(exact(1, 2), number(3))
    assert not kf.contains(KeyExistenceFilter((0,)), number(3))


# ---- key bytes and hashes --------------------------------------------------------------------------------------------------


def test_key_bytes() -> None:
    def of(**columns: pa.Array) -> list[bytes]:
        return kf.key_bytes(pa.RecordBatch.from_pydict(columns))

    assert of(k=pa.array([-2], pa.int32())) == [b"\xfe" + b"\xff" * 7]
    assert of(k=pa.array([2**32 - 2], pa.uint32())) == [b"\xfe\xff\xff\xff\0\0\0\0"]
    assert of(k=pa.array(["a", "bc"], pa.string())) == [b"a", b"bc"]
    assert of(a=pa.array(["a"]), b=pa.array([1], pa.int64())) == [b"a\0\x01" + bytes(8)]
    assert of(k=pa.array([9, 1, 2], pa.int64())[1:]) == [number(1), number(2)]
    assert of(k=pa.array([9, 1], pa.decimal128(5, 0))[1:]) == [b"\x01" + bytes(15)]
    assert of(k=pa.array([b"z" * 16, b"u" * 16], pa.uuid())[1:]) == [b"u" * 16]
    assert of(k=pa.array([], pa.int64())) == []


def test_keys_that_have_no_bytes() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    nulls, shapeless = [pa.array([1, None]), hidden], [pa.array([0.5]), pa.array(["1"], pa.json_()), pa.array([[1]])]
    for column, what in [*((one, "nulls") for one in nulls), *((one, "no key bytes") for one in shapeless)]:
        with pytest.raises(InvalidInput, match=what) as caught:
            kf.key_bytes(pa.RecordBatch.from_pydict({"k": column}))
        assert caught.value.argument == "k"
    with pytest.raises(InvalidInput, match="at least one column"):
        kf.key_bytes(pa.RecordBatch.from_pydict({}))
    with pytest.raises(InvalidInput, match="2 key fields were named, but 1"):
        kf.key_filter([0, 1], pa.table({"k": [1]}))
    with pytest.raises(InvalidInput, match="0 key fields"):
        kf.key_filter([], pa.table({}))


def test_siphash_is_the_one_python_hashes_bytes_with() -> None:
    """With hash seed 0 the interpreter uses the same function and the same key of zeros."""
    assert sys.hash_info.algorithm == "siphash13"
    random_bytes = random.Random(5)
    words = [random_bytes.randbytes(length) for length in (*range(1, 70), 255, 256, 257, 1000)]
    program = "import json, sys; print(json.dumps([hash(bytes.fromhex(word)) for word in json.load(sys.stdin)]))"
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    given_words = json.dumps([word.hex() for word in words])
    answer = subprocess.run([sys.executable, "-c", program], input=given_words, env=environment, capture_output=True, text=True, check=True)
    assert [kf.siphash13(word) for word in words] == [value % 2**64 for value in json.loads(answer.stdout)]


def test_exact_hashes_are_over_length_and_bytes() -> None:
    assert kf.exact_of([b"ab"]) == {kf.siphash13(b"\x02" + bytes(7) + b"ab")}
    assert kf.exact_of([b"", b"", b"\0"]) == {kf.siphash13(bytes(8)), kf.siphash13(b"\x01" + bytes(8))}


def test_forms() -> None:
    assert kf.bloom_of([b"k"]) == BloomFilter(kf.bloom_of([b"k"]).bitmap, 262_144, 8192, 0.00057)
    assert len(kf.bloom_of([b"k"]).bitmap) == 32_768
    assert sum(byte.bit_count() for byte in kf.bloom_of([b"k"]).bitmap) == 8
    strict = kf.bloom_of([b"k"], strict=True)
    assert (len(strict.bitmap), strict.num_bits, strict.number_of_items) == (16_384, 131_072, 4099)
