"""A compaction of a table with stable row ids leaves every index covering what it covered, and answering as a scan does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty

KINDS = {
    "BTREE": ("id", "id = {}"),
    "BITMAP": ("id", "id = {}"),
    "ZONEMAP": ("id", "id = {}"),
    "BLOOMFILTER": ("id", "id = {}"),
    "NGRAM": ("word", "contains(word, 'word{}x')"),
    "LABEL_LIST": ("labels", "array_has_any(labels, [{}])"),
}


def _rows(begin: int, end: int) -> pa.Table:
    numbers = range(begin, end)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": [f"word{number}x" for number in numbers],
            "labels": pa.array([[number] for number in numbers], pa.list_(pa.int64())),
        }
    )


def _statistics(uri: str, name: str) -> dict[str, Any]:
    return dict(lance.dataset(uri).stats.index_stats(name))


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_covers_the_new_fragments(tmp_path: Path, kind: str) -> None:
    uri = str(tmp_path / "t")
    column, condition = KINDS[kind]
    table = ty.Table.create(uri, _rows(0, 100), stable_row_ids=True, durability="os")
    table.append(_rows(100, 200))
    table.create_index(column, kind, "i")
    for _ in range(2):  # the second time row ids and addresses differ
        table.delete(f"id % 7 = {_}")
        result = table.compact()
        assert result.operation == "Rewrite"
        told = _statistics(uri, "i")
        assert (told["num_unindexed_fragments"], told["num_unindexed_rows"]) == (0, 0)
        stock = lance.dataset(uri)
        for number in (0, 1, 8, 9, 103, 150, 199):
            where = condition.format(number)
            assert stock.count_rows(where) == stock.scanner(filter=where, use_scalar_index=False).count_rows() == (number % 7 > _)
    assert table.version == table.layout.latest_version()
    assert table.check().ok


def test_what_was_not_covered_before_is_left_alone(tmp_path: Path) -> None:
    """An index of other fragments is not extended: that is for whoever asks for it."""
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, _rows(0, 2000), stable_row_ids=True, durability="os")
    table.create_index("id", "BTREE", "i")
    for begin in (2000, 2001, 2002):
        table.append(_rows(begin, begin + 1))
    table.compact(target_rows=1000)
    told = _statistics(uri, "i")
    assert (told["num_indexed_rows"], told["num_unindexed_rows"]) == (2000, 3)
