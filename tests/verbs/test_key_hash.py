"""Keys are found by their hashes: never one too few, whatever their type, and never one too many."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tiltyard.verbs.keys.key_hash import KeyHashes
from tiltyard.verbs.keys.primary_keys import KnownKeys, comparable

COUNT = 5000
SEED = 11

KINDS: dict[str, Callable[[int], Any]] = {
    "int8": lambda n: pa.scalar(n % 200 - 100, pa.int8()),
    "uint64": lambda n: pa.scalar(2**64 - 1 - n, pa.uint64()),
    "int64": lambda n: pa.scalar(n * n - 10**6, pa.int64()),
    "float32": lambda n: pa.scalar(n / 8, pa.float32()),
    "float64": lambda n: pa.scalar(float("nan") if n == 5 else -n / 3, pa.float64()),
    "bool": lambda n: pa.scalar(n % 2 == 0),
    "date32": lambda n: pa.scalar(datetime.date(1970, 1, 1) + datetime.timedelta(n)),
    "timestamp": lambda n: pa.scalar(datetime.datetime(1999, 1, 1) + datetime.timedelta(seconds=n), pa.timestamp("ns")),
    "time32": lambda n: pa.scalar(datetime.time(n // 3600 % 24, n // 60 % 60, n % 60), pa.time32("s")),
    "decimal128": lambda n: pa.scalar(decimal.Decimal(n * 10**12) / 100, pa.decimal128(30, 2)),
    "decimal64": lambda n: pa.scalar(decimal.Decimal(n) / 100, pa.decimal64(12, 2)),
    "bytes of 3": lambda n: pa.scalar(n.to_bytes(3, "big"), pa.binary(3)),
    "bytes of 16": lambda n: pa.scalar(n.to_bytes(16, "little"), pa.binary(16)),
    "short text": lambda n: pa.scalar(str(n) if n else ""),
    "text": lambda n: pa.scalar(f"{n * 7919 % COUNT:06d}-{'x' * (n % 11)}"),
    "same end": lambda n: pa.scalar(f"{n}-{'order' * 4}", pa.large_string()),
    "same beginning": lambda n: pa.scalar("customer of ours " + str(n)),
    "differ inside": lambda n: pa.scalar(b"a" * 20 + str(n).encode() + b"b" * 20, pa.large_binary()),
    "differ too far inside": lambda n: pa.scalar("a" * 50 + f"{n:06d}" + "b" * 50),
    "dictionary": lambda n: pa.scalar(f"word {n}"),
}


def _values(kind: str) -> pa.Array:
    made = [KINDS[kind](n) for n in range(COUNT)]
    values = pa.array([one.as_py() for one in made], made[0].type)
    return values.dictionary_encode() if kind == "dictionary" else values


def _model(known: pa.Array, looked_up: pa.Array) -> tuple[list[int], list[int]]:
    rows: dict[Any, int] = {"nan" if one != one else one: row for row, one in enumerate(known.to_pylist())}
    found = [(place, rows.get("nan" if one != one else one)) for place, one in enumerate(looked_up.to_pylist()) if one is not None]
    both = [(place, row) for place, row in found if row is not None]
    return [place for place, _ in both], [row for _, row in both]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_found_exactly(kind: str) -> None:
    print("seed", SEED)
    values = _values(kind)
    random = np.random.default_rng(SEED)
    first = values.slice(7, COUNT // 2)  # slices, so that offsets count
    distinct = comparable(first).unique()
    known = KnownKeys(pa.table({"k": distinct.take(pa.array(random.permutation(len(distinct))))}))
    assert known.repeated().num_rows == 0
    looked_up = pa.concat_arrays([values, values.take(pa.array([None, 3, None, 1000], pa.int64()))]).slice(3)
    places, rows = known.matches(pa.table({"k": looked_up}))
    assert (places.tolist(), rows.tolist()) == _model(known.keys.column("k"), looked_up)
    assert len(places)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_come_twice_are_noticed(kind: str) -> None:
    distinct = comparable(_values(kind)).unique()
    twice = pa.concat_arrays([distinct, distinct.slice(1, 1)])
    assert KnownKeys(pa.table({"k": twice})).repeated().num_rows == 1


def test_texts_of_every_length() -> None:
    print("seed", SEED)
    random = np.random.default_rng(SEED)
    every = [random.integers(97, 100, length).astype(np.uint8).tobytes() for length in range(40) for _ in range(60)]
    every += [b"\0", b"\0\0", b"a\0", b"\0a"]
    values = pa.array(every, pa.binary())
    known = KnownKeys(pa.table({"k": values.slice(5).filter(pa.array([n % 3 == 0 for n in range(len(every) - 5)])).unique()}))
    places, rows = known.matches(pa.table({"k": values}))
    assert (places.tolist(), rows.tolist()) == _model(known.keys.column("k"), values)


def test_keys_of_several_columns() -> None:
    print("seed", SEED)
    random = np.random.default_rng(SEED)
    rows = pa.table({"a": random.integers(0, 40, COUNT), "b": [f"{n}" for n in random.integers(0, 40, COUNT)]})
    distinct = rows.group_by(["a", "b"], use_threads=False).aggregate([])
    known = KnownKeys(distinct.slice(100, 500))
    wanted = {tuple(row.values()): place for place, row in enumerate(known.keys.to_pylist())}
    places, found = known.matches(rows)
    expected = [(place, wanted[tuple(row.values())]) for place, row in enumerate(rows.to_pylist()) if tuple(row.values()) in wanted]
    assert list(zip(places.tolist(), found.tolist(), strict=True)) == expected


def test_most_keys_of_others_need_no_second_look() -> None:
    makers: list[Callable[[Any], pa.Array]] = [pa.array, lambda numbers: pa.array([f"customer {one}" for one in numbers.tolist()])]
    for make in makers:
        marks = KeyHashes([make(np.arange(1000))])
        assert marks.distinct
        places, _ = marks.pairs([make(np.arange(500, 100_000))])
        assert places.tolist() == [*range(500)]


def test_what_is_equal_has_one_mark() -> None:
    floats = comparable(pa.array([0.0, float("nan"), 1.5]))
    others = comparable(pa.array([-0.0, -float("nan"), 1.5]))
    assert [one.tolist() for one in KeyHashes([floats]).pairs([others])] == [[0, 1, 2], [0, 1, 2]]


def test_nothing_is_found_in_nothing() -> None:
    for kind in (pa.int64(), pa.string(), pa.binary(4)):
        empty = pa.array([], kind)
        known = KnownKeys(pa.table({"k": empty}))
        assert known.repeated().num_rows == 0
        assert [len(one) for one in known.matches(pa.table({"k": pa.array([None], kind)}))] == [0, 0]
        some = KnownKeys(pa.table({"k": pa.array([b"abcd" if kind == pa.binary(4) else "1"]).cast(kind)}))
        assert [len(one) for one in some.matches(pa.table({"k": empty}))] == [0, 0]
