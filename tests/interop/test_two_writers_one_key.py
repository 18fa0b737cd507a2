"""Two writers insert the same new key at the same time. With stock merges and no annotation both do; with us there is one row, and a loser
who is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.tables import open_stock
from tiltyard.errors import KeyConflict, RetryableConflict

KEYS: dict[str, Callable[[int], pa.Array]] = {
    "int64": lambda number: pa.array([number], pa.int64()),
    "string": lambda number: pa.array([f"key {number}"]),
    "int16": lambda number: pa.array([number], pa.int16()),
    "date": lambda number: pa.array([number], pa.int32()).cast(pa.date32()),
}
KINDS = pytest.mark.parametrize("kind", KEYS)


def _row(kind: str, number: int, writer: str) -> pa.Table:
    return pa.table({"k": KEYS[kind](number), "by": [writer]})


class Ours:
    """A writer that looked at the table and has not written yet."""

    def __init__(self, root: Path) -> None:
        self.table = ty.Table.open(root)

    def insert(self, row: pa.Table, retries: int = 0) -> None:
        merge = self.table.merge(row, "k").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(commit=ty.CommitOptions(reexecutions=retries))


class Stock:
    def __init__(self, root: Path) -> None:
        self.dataset = open_stock(str(root))

    def insert(self, row: pa.Table, retries: int = 0) -> None:
        merge = self.dataset.merge_insert(["k"]).when_matched_update_all().when_not_matched_insert_all().conflict_retries(retries)
        merge.execute(row.cast(self.dataset.schema))


def _table(root: Path, kind: str, *, annotated: bool) -> Path:
    ty.Table.create(root, _row(kind, 1, "first"), primary_key=["k"] if annotated else None)
    return root


def _writers_of_the_key(root: Path, kind: str) -> list[str]:
    stock = open_stock(str(root))
    stock.validate()
    assert ty.Table.open(root).check().problems == ()
    rows = stock.to_table().to_pylist()
    key = KEYS[kind](2)[0].as_py()
    return [row["by"] for row in rows if row["k"] == key]


@KINDS
def test_pylance_alone_without_an_annotation_leaves_two_rows(tmp_path: Path, kind: str) -> None:
    root = _table(tmp_path / "t", kind, annotated=False)
    one, two = Stock(root), Stock(root)
    one.insert(_row(kind, 2, "one"))
    two.insert(_row(kind, 2, "two"))
    assert _writers_of_the_key(root, kind) == ["one", "two"]


@pytest.mark.parametrize("annotated", [False, True], ids=["bare", "annotated"])
@pytest.mark.parametrize("first", [Ours, Stock])
@KINDS
def test_we_come_second(tmp_path: Path, kind: str, first: Any, annotated: bool) -> None:
    root = _table(tmp_path / "t", kind, annotated=annotated)
    one, two, three = first(root), Ours(root), Ours(root)
    one.insert(_row(kind, 2, "one"))
    with pytest.raises(KeyConflict) as caught:
        two.insert(_row(kind, 2, "two"))
    assert isinstance(caught.value, RetryableConflict)
    assert [winner.version for winner in caught.value.winners] == [2]
    assert len(caught.value.sample) == 1
    assert _writers_of_the_key(root, kind) == ["one"]
    three.insert(_row(kind, 2, "three"), retries=1)
    assert _writers_of_the_key(root, kind) == ["three"], "run again, it finds the row and updates it"


@KINDS
def test_pylance_comes_second(tmp_path: Path, kind: str) -> None:
    """With the annotation our filter stops it, for the types of keys, too, that its own filters leave out."""
    root = _table(tmp_path / "t", kind, annotated=True)
    one, two, three = Ours(root), Stock(root), Stock(root)
    one.insert(_row(kind, 2, "one"))
    with pytest.raises(OSError, match=r"(?i)concurrent writers"):
        two.insert(_row(kind, 2, "two"))
    assert _writers_of_the_key(root, kind) == ["one"]
    three.insert(_row(kind, 2, "three"), retries=5)
    assert _writers_of_the_key(root, kind) == ["three"]


@pytest.mark.parametrize("first", ["append", "merge"])
@pytest.mark.parametrize("second", ["append", "merge"])
@KINDS
def test_appends_and_merges_of_ours(tmp_path: Path, kind: str, first: str, second: str) -> None:
    root = _table(tmp_path / "t", kind, annotated=True)
    one, two = Ours(root), Ours(root)
    one.table.append(_row(kind, 2, "one")) if first == "append" else one.insert(_row(kind, 2, "one"))
    with pytest.raises(KeyConflict):
        two.table.append(_row(kind, 2, "two")) if second == "append" else two.insert(_row(kind, 2, "two"))
    assert _writers_of_the_key(root, kind) == ["one"]
