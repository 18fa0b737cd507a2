"""Fragments into partitions: every row once, none much larger than the others."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.spark.read import reading
from tiltyard.spark.read.partitioning import Fragment, Span, pack
from tiltyard.spark.spark_types import spark_schema
from tiltyard.spark.target import Address


def _rows(spans: tuple[Span, ...]) -> int:
    return sum(span.rows for span in spans)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_in_one_partition(seed: int) -> None:
    random = Random(seed)
    fragments = [
        Fragment(number, random.choice([0, 1, 10, 5_000, 1_000_000]), random.randrange(10**6)) for number in range(random.randrange(30))
    ]
    wanted, may_split = random.randrange(1, 12), random.random() < 0.5
    packed = pack(fragments, wanted, may_split=may_split, smallest=random.choice([1, 1000]))
    assert len(packed) <= wanted
    assert all(packed)
    seen: dict[int, list[tuple[int, int]]] = {}
    for spans in packed:
        for span in spans:
            seen.setdefault(span.fragment, []).append((span.start or 0, span.rows))
            assert may_split or span.start is None
    assert sorted(seen) == [one.id for one in fragments if one.rows]
    for one in fragments:
        at = 0
        for start, rows in sorted(seen.get(one.id, [])):
            assert start == at
            at += rows
        assert at == one.rows


def test_one_huge_fragment_is_cut() -> None:
    packed = pack([Fragment(0, 1_000_000)], 4)
    assert [_rows(spans) for spans in packed] == [250_000] * 4
    assert len(pack([Fragment(0, 1_000_000)], 4, may_split=False)) == 1


def test_balance() -> None:
    packed = pack([Fragment(number, rows) for number, rows in enumerate([100, 1, 1, 1, 97, 50, 50])], 3, smallest=1)
    assert sorted(map(_rows, packed)) == [100, 100, 100]


def test_wide_rows_count_for_more() -> None:
    fragments = [Fragment(0, 1000, 9_000_000), *(Fragment(number, 1000, 1_000) for number in range(1, 5))]
    wide = next(spans for spans in pack(fragments, 2, may_split=False, smallest=1) if spans[0].fragment == 0)
    assert len(wide) == 1, "the fragment with most of the bytes has a partition to itself"


def test_small_tables_are_not_spread() -> None:
    assert len(pack([Fragment(number, 10) for number in range(100)], 8)) == 1
    assert pack([], 8) == []
    assert pack([Fragment(0, 0)], 8) == []


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_filtered_fragment_are_each_row_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by addresses: deleted rows have some too."""
    random = Random(seed)
    monkeypatch.setattr(reading, "SMALLEST_ROWS", 1)
    rows = random.randrange(1, 400)
    data = pa.table({"id": range(rows), "g": [number % 7 for number in range(rows)]})
    table = ty.Table.create(tmp_path / "t", data, options=ty.TableOptions(files=ty.FileLimits(rows=150)))
    if seed % 4:
        table.delete(f"id % {seed + 1} = 1")
    if seed % 2:
        table.create_index("id", "BTREE")
    address = Address.of(table)
    for condition in (
        None,
        "id >= 0",
        f"g = {random.randrange(7)}",
        f"id < {random.randrange(rows + 1)}",
        f"id = {random.randrange(rows)}",
    ):
        scan = reading.Scan(address, spark_schema(data.schema), condition)
        expected = table.lance.to_table(filter=condition)["id"].to_pylist()
        for wanted in (1, 2, 5, 9):
            parts = reading.parts(scan, wanted)
            found = [batch for part in parts for batch in reading.raw_batches(scan, table.lance, part.spans)]
            assert sorted(chain(*(batch["id"].to_pylist() for batch in found))) == sorted(expected), (condition, wanted, parts)
            assert {tuple(batch.schema.names) for batch in found} <= {("id", "g")}
            counted = [one.count_rows() for part in parts for one in reading.scanners(scan, table.lance, part.spans) if condition]
            assert not condition or sum(counted) == len(expected)
