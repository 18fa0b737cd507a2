"""Fragments into partitions: every row once, none much larger than the others."""

from __future__ import annotations

from random import Random

import pytest

from tiltyard.spark.read.partitioning import Fragment, Span, pack


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
