"""Where rows went, by their ids or by an order that was kept; and that a map which is not certain is none."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyroaring import BitMap

from tests.support.manifests import part, with_lineage
from tiltyard import ops
from tiltyard.format.values import DataFragment
from tiltyard.transaction.row_map import by_row_id, in_order, keeps_order
from tiltyard.transaction.transaction import Transaction


def _places(found: dict[int, BitMap] | None) -> dict[int, list[int]] | None:
    return None if found is None else {number: list(rows) for number, rows in found.items()}


def _rows(**rows: Iterable[int]) -> dict[int, BitMap]:
    return {int(name[1:]): BitMap(several) for name, several in rows.items()}


OLD = (with_lineage(part(0, 4), [10, 11, 12, 13]), with_lineage(part(1, 3), [7, 5, 6]))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([with_lineage(part(4, 7), [5, 6, 7, 10, 11, 12, 13])], {4: [1, 4, 6]}),
        ([with_lineage(part(4, 4), [13, 12, 11, 10]), with_lineage(part(5, 3), [5, 6, 7])], {4: [0, 2], 5: [1]}),
        ([with_lineage(part(4, 3), [11, 13, 6]), with_lineage(part(5, 4), [5, 7, 10, 12])], {4: [0, 1, 2]}),
        ([with_lineage(part(4, 2), [11, 13])], None),
        ([with_lineage(part(4, 3), [11, 13, 6]), with_lineage(part(5, 1), [6])], None),
        ([part(4, 7)], None),
        ([], None),
    ],
    ids=["one", "two", "all in the first", "a row is missing", "a row is there twice", "no ids", "nothing"],
)
def test_by_row_id(new: list[DataFragment], expected: dict[int, list[int]] | None) -> None:
    assert _places(by_row_id(_rows(f0=[1, 3], f1=[2]), OLD, new)) == expected


def test_no_rows_are_nowhere() -> None:
    assert by_row_id({}, OLD, [with_lineage(part(4, 7), range(7))]) == {}
    assert by_row_id(_rows(f0=[]), OLD, []) == {}


def test_one_id_in_two_old_places_is_no_certain_map() -> None:
    twice = (OLD[0], with_lineage(part(1, 2), [13, 14]))
    assert by_row_id(_rows(f0=[3], f1=[0]), twice, [with_lineage(part(4, 1), [13])]) is None


BEFORE = ((part(0, 4), BitMap([1])), (part(1, 3), BitMap()))
"""Six live rows: 0, 2 and 3 of the first fragment, all of the second."""


@pytest.mark.parametrize(
    ("rows", "sizes", "expected"),
    [
        (_rows(f0=[0, 3], f1=[0, 2]), [6], {4: [0, 2, 3, 5]}),
        (_rows(f0=[0, 3], f1=[0, 2]), [3, 3], {4: [0, 2], 5: [0, 2]}),
        (_rows(f1=[1]), [3, 3], {5: [1]}),
        (_rows(f0=[2]), [2, 4], {4: [1]}),
        (_rows(f0=[1]), [6], None),
        (_rows(f0=[0]), [5], None),
        (_rows(f0=[0]), [7], None),
        ({}, [6], {}),
    ],
    ids=["one", "two", "the second alone", "another cut", "a row that was deleted", "a row less", "a row more", "no rows"],
)
def test_in_order(rows: dict[int, BitMap], sizes: list[int], expected: dict[int, list[int]] | None) -> None:
    new = [part(number, size) for number, size in enumerate(sizes, 4)]
    assert _places(in_order(rows, BEFORE, new)) == expected


@pytest.mark.parametrize(
    ("properties", "kept"), [({}, False), ({"tiltyard.row_order": "kept"}, True), ({"tiltyard.row_order": "?"}, False)]
)
def test_an_order_is_kept_where_its_writer_says_so(properties: dict[str, str], kept: bool) -> None:
    assert keeps_order(Transaction(1, "rewrite", ops.Rewrite(), properties)) is kept
