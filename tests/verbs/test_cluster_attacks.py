"""Clustering against runners, indices and neighbours that do not do what it would like best."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput
from tiltyard.storage.local import LocalStore

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
COUNT = 200


def _rows(count: int, first: int = 0) -> pa.Table:
    chance = np.random.default_rng(first)
    given = {
        "id": pa.array(range(first, first + count), pa.int64()),
        "a": pa.array(chance.integers(0, 50, count), pa.int64()),
        "t": pa.array([("lake", "yard")[number] for number in chance.integers(0, 2, count)]),
        "v": pa.array(chance.random((count, 4)).tolist(), pa.list_(pa.float32(), 4)),
    }
    return pa.table(given)


def _make(root: Path, *, stable: bool) -> ty.Table:
    return ty.Table.create(root, _rows(COUNT), stable_row_ids=stable, options=ty.TableOptions(files=ty.FileLimits(rows=50)))


def _places(root: Path) -> dict[int, int]:
    """Row ids by id; every id is there once."""
    found = open_stock(str(root)).to_table(columns=["id"], with_row_id=True).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["_rowid"] for row in found}


# ---- runners ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        lambda pieces: [pieces[0]] * len(pieces),
        lambda pieces: pieces[::-1],
        lambda pieces: [*pieces, pieces[0]],
        lambda pieces: [None, *pieces[1:]],
    ],
    ids=["one for all", "in another order", "one more", "one less"],
)
@STABLE
def test_pieces_of_other_tasks_are_refused(tmp_path: Path, stable: bool, returned: Callable[[list[Any]], list[Any]]) -> None:
    """They are as long as those that are missing, so that no count of rows tells."""
    root = tmp_path / "t"
    table = _make(root, stable=stable)
    before, files = _places(root), set((root / "data").iterdir())
    with pytest.raises(InvalidInput, match="did not return the pieces"):
        table.distributed.optimize(lambda tasks: returned([task.run() for task in tasks]), cluster_by=["a"], target_rows=50)
    assert _places(root) == before
    assert set((root / "data").iterdir()) == files


def test_pieces_of_an_earlier_run_are_refused(tmp_path: Path) -> None:
    """Rows may have been changed since: the files would bring back what they were."""
    root = tmp_path / "t"
    table = _make(root, stable=False)
    kept: list[Any] = []

    def run(tasks: Any) -> list[Any]:
        kept.extend(task.run() for task in tasks)
        return kept

    table.distributed.optimize(run, cluster_by=["a"], target_rows=50)
    table.refresh().update({"t": "'changed'"})
    with pytest.raises(InvalidInput, match="did not return the pieces"):
        table.distributed.optimize(lambda tasks: kept, cluster_by=["id"], target_rows=50)
    assert set(table.refresh().to_arrow()["t"].to_pylist()) == {"changed"}
    assert table.check(data=True).problems == ()


# ---- indices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, "id >= 120"])
@pytest.mark.parametrize(
    ("column", "kind"), [("a", "BTREE"), ("a", "BITMAP"), ("t", "INVERTED"), ("v", "IVF_FLAT")], ids=lambda value: str(value)
)
@STABLE
def test_an_index_of_some_of_the_rows_covers_all_that_it_covered(
    tmp_path: Path, stable: bool, column: str, kind: str, where: str | None
) -> None:
    """Rows that were appended since come to lie among those that it knows: it cannot follow these by their ids."""
    root = tmp_path / "t"
    table = _make(root, stable=stable)
    table.indices.create(column, ty.IndexSpec(kind, {"num_partitions": 2} if kind == "IVF_FLAT" else None))
    table.append(_rows(60, COUNT))
    table.maintenance.analyze()
    table.maintenance.optimize(where, cluster_by=["a"], target_rows=30)
    assert table.refresh().indices.list()[0].missing == ()
    stock, rows = open_stock(str(root)), table.to_arrow().to_pylist()
    assert len(rows) == COUNT + 60
    if kind == "INVERTED":
        found = stock.to_table(columns=["id"], full_text_query="lake")["id"].to_pylist()
        assert sorted(found) == sorted(row["id"] for row in rows if row["t"] == "lake")
    elif kind == "IVF_FLAT":
        for row in rows[::29]:
            found = stock.to_table(nearest={"column": "v", "q": row["v"], "k": 5, "nprobes": 2, "refine_factor": 5})["id"].to_pylist()
            assert (found[0], len(set(found))) == (row["id"], 5)
    else:
        for value in range(0, 50, 7):
            found = stock.to_table(columns=["id"], filter=f"a = {value}")["id"].to_pylist()
            assert sorted(found) == sorted(row["id"] for row in rows if row["a"] == value)
    assert table.check(data=True).problems == ()


# ---- arguments -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": 5, "cluster_by": ["a"]}, "where is a SQL expression as text, not 5"),
        ({"where": 5}, "where is a SQL expression as text, not 5"),
        ({"cluster_by": (name for name in ["a"])}, "list of different names"),
        ({"cluster_by": None}, "list of different names"),
        ({"cluster_by": {"a": 1}}, "list of different names"),
    ],
)
def test_arguments_of_other_types_are_refused(tmp_path: Path, options: Any, words: str) -> None:
    table = _make(tmp_path / "t", stable=False)
    with pytest.raises(InvalidInput, match=words):
        table.maintenance.optimize(**options)
    assert table.layout.latest_version() == 1


# ---- sequences -------------------------------------------------------------------------------------------------------------


class _Sequence:
    """A table that clustering and others change in turn and at once, beside a plain model of its rows."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance, self.root = random.Random(seed), root
        self.model = {row["id"]: row for row in _make(root, stable=self.chance.random() < 0.5).to_arrow().to_pylist()}

    def table(self) -> ty.Table:
        return ty.Table.open(self.root)

    def cluster(self, table: ty.Table) -> None:
        by = self.chance.sample(["id", "a", "t"], self.chance.randrange(1, 4))
        where = self.chance.choice([None, "id >= 100", "id < 0"])
        table.maintenance.optimize(where, cluster_by=by, target_rows=self.chance.choice([20, 60, 1000]))

    def change(self, table: ty.Table) -> None:
        verb, rest = self.chance.choice(["append", "delete", "stock", "update", "merge", "compact", "index"]), self.chance.randrange(9)
        some = [number for number in self.model if number % 9 == rest]
        if verb in ("append", "merge"):
            rows = _rows(20, max(self.model, default=0) + 1)
            if verb == "append":
                table.append(rows)
            else:
                rows = pa.concat_tables([rows, _rows(COUNT).take(pa.array([rest, rest + 50]))])
                table.merge(rows, "id").when_matched_update_all().when_not_matched_insert_all().execute()
            self.model.update((row["id"], row) for row in rows.to_pylist())
        elif verb in ("delete", "stock"):
            (table if verb == "delete" else open_stock(str(self.root))).delete(f"id % 9 = {rest}")
            for number in some:
                del self.model[number]
        elif verb == "update":
            table.update({"a": "7"}, f"id % 9 = {rest}", self.chance.choice(["rows", "columns"]))
            self.model.update((number, {**self.model[number], "a": 7}) for number in some)
        elif verb == "compact":
            table.compact(target_rows=70, deletions=0.0)
        else:
            column, kind = self.chance.choice([("a", "BTREE"), ("a", "BITMAP"), ("a", "ZONEMAP"), ("t", "INVERTED")])
            table.indices.create(column, kind, name=column, replace=True)

    def step(self) -> None:
        """One after the other, or one right before the other creates one of its versions."""
        first, second = self.chance.choice([(self.change, self.cluster), (self.cluster, self.change)])
        if self.chance.random() < 0.4:
            first(self.table())
            second(self.table())
        else:
            second(handle(self.root, InterruptedStore(LocalStore(self.root), is_version, lambda: first(self.table()))))

    def verify(self) -> None:
        table, stock = self.table(), open_stock(str(self.root))
        stock.validate()
        assert table.check(data=True).problems == ()
        rows = sorted(stock.to_table().to_pylist(), key=lambda row: int(row["id"]))
        assert rows == [row for _, row in sorted(self.model.items())]
        for value in (7, *self.chance.sample(range(50), 5)):
            found = stock.to_table(columns=["id"], filter=f"a = {value}")["id"].to_pylist()
            assert sorted(found) == [row["id"] for row in rows if row["a"] == value], value
        if any(index.name == "t" for index in table.indices.list()):
            found = stock.to_table(columns=["id"], full_text_query="lake")["id"].to_pylist()
            assert sorted(found) == [row["id"] for row in rows if row["t"] == "lake"]


@pytest.mark.parametrize("seed", range(8))
def test_sequences_beside_others(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    run = _Sequence(tmp_path / "t", seed)
    for _ in range(6):
        run.step()
        run.verify()
