"""Sets of row ids as runs, against plain sets; and that a claim of billions costs nothing."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.format.row_ids import RowIds, row_ids_of
from tiltyard.format.segments import Bits, Holes, Range
from tiltyard.transaction.apply.row_lineage import runs_of

IDS = st.lists(st.integers(0, 40), max_size=12)


@settings(deadline=None, derandomize=True)
@given(IDS, st.lists(IDS, max_size=4))
def test_as_plain_sets(new: list[int], old: list[list[int]]) -> None:
    ids, known = runs_of([row_ids_of(new)]), runs_of(map(row_ids_of, old))
    outside = sorted(set(new).difference(*old))
    assert ids.overlap == (len(set(new)) != len(new))
    assert runs_of([row_ids_of(sorted(set(new)))]).outside(known) == len(outside)
    assert sorted(set(ids.unknown(known))) == outside


def test_every_shape_of_a_segment() -> None:
    holes = Holes(10, 20, b"".join(number.to_bytes(8, "little") for number in (10, 13, 14, 19)))
    bits = Bits(30, 34, b"\x05")
    runs = runs_of([RowIds((holes, bits, Range(0, 0))), row_ids_of([50, 2**64 - 1, 40])])
    there = [11, 12, 15, 16, 17, 18, 30, 32, 40, 50, 2**64 - 1]
    assert list(runs.unknown(runs_of([]))) == there
    assert runs.outside(runs_of([])) == len(there)
    assert runs.outside(runs_of([RowIds((Range(12, 31),))])) == 5
    assert not runs.overlap


def test_runs_inside_runs() -> None:
    known = runs_of([RowIds((Range(0, 100), Range(10, 20), Range(90, 110)))])
    assert known.overlap
    assert list(zip(known.apart().firsts.tolist(), known.apart().lasts.tolist(), strict=True)) == [(0, 109)]
    assert runs_of([RowIds((Range(105, 120),))]).outside(known) == 10


def test_billions_of_ids_are_a_few_numbers() -> None:
    ids, known = runs_of([RowIds((Range(0, 2**40),))]), runs_of([RowIds((Range(5, 2**39),))])
    assert len(ids.firsts) == 1
    assert ids.outside(known) == 2**39 + 5
    assert list(islice(ids.unknown(known), 6)) == [0, 1, 2, 3, 4, 2**39]
