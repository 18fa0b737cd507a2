"""Compaction that sorts rows: which rows there are, their ids and their indices stay, and filters pass over fragments."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.storage.local import LocalStore
from tiltyard.verbs.cluster_rows import interleaved, z_order
from tiltyard.verbs.statistics import fragment_pruning
from tiltyard.verbs.statistics.fragment_pruning import kept_fragments

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
COUNT = 400
LINEAGE = ["_row_created_at_version", "_row_last_updated_at_version"]


def _make(root: Path, *, stable: bool, rows: int = COUNT, per_file: int = 50) -> ty.Table:
    chance = np.random.default_rng(7)
    given = {
        "id": pa.array(range(rows), pa.int64()),
        "a": pa.array(chance.integers(0, 100, rows), pa.int64()),
        "b": pa.array([f"{number:03}" for number in chance.integers(0, 100, rows)]),
        "v": pa.array(chance.random((rows, 4)).tolist(), pa.list_(pa.float32(), 4)),
    }
    return ty.Table.create(root, pa.table(given), stable_row_ids=stable, options=ty.TableOptions(files=ty.FileLimits(rows=per_file)))


def _rows(root: Path) -> list[dict[str, Any]]:
    """By id; and whatever reads the table says the same."""
    table = ty.Table.open(root)
    stock = open_stock(str(root))
    stock.validate()
    report = table.check(data=True)
    assert (report.problems, report.orphans) == ((), ())
    for number in range(0, COUNT, 37):
        [found] = stock.to_table(columns=["id"], filter=f"id = {number}")["id"].to_pylist() or [None]
        assert found in (number, None)
    for value in range(0, 100, 9):
        found = stock.to_table(columns=["id"], filter=f"a = {value}")["id"].to_pylist()
        scanned = stock.scanner(columns=["id"], filter=f"a = {value}", use_scalar_index=False).to_table()["id"].to_pylist()
        assert sorted(found) == sorted(scanned), value
    rows: list[dict[str, Any]] = sorted(table.to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    return rows


def _lineage(root: Path) -> list[dict[str, Any]]:
    told = open_stock(str(root)).to_table(columns=["id", *LINEAGE], with_row_id=True).to_pylist()
    return sorted(told, key=lambda row: int(row["id"]))


@pytest.mark.parametrize("kind", [None, "BTREE", "BITMAP"])
@STABLE
def test_rows_ids_and_indices_stay(tmp_path: Path, stable: bool, kind: str | None) -> None:
    root = tmp_path / "t"
    table = _make(root, stable=stable)
    if kind is not None:
        table.create_index("a", kind)
    table.delete("id % 10 = 3")
    table.update({"b": "'changed'"}, "id % 10 = 4")
    before, lineage = _rows(root), _lineage(root)
    result = table.maintenance.optimize(cluster_by=["a", "b"], target_rows=40, message="sorted")
    assert (result.operation, table.refresh().history()[0 if kind is None else -1].operation) == (
        "Rewrite",
        "Rewrite" if kind is None else "Overwrite",
    )
    assert [fragment.physical_rows for fragment in table.layout.fragments] == [40] * 9
    assert _rows(root) == before
    if stable:
        assert _lineage(root) == lineage
    if kind is not None:
        assert table.indices.list()[0].missing == ()
    version = table.version
    assert table.maintenance.optimize(cluster_by=["a", "b"], target_rows=40).version == version == table.layout.latest_version()


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_HNSW_SQ"])
@STABLE
def test_vector_indices_find_their_rows(tmp_path: Path, stable: bool, kind: str) -> None:
    table = _make(tmp_path / "t", stable=stable)
    table.indices.create("v", ty.IndexSpec(kind, {"num_partitions": 2}))
    table.delete("id % 10 = 3")
    table.maintenance.optimize(cluster_by=["a", "b"], target_rows=40)
    stock = open_stock(str(tmp_path / "t"))
    for row in table.to_arrow().to_pylist()[::29]:
        found = stock.to_table(nearest={"column": "v", "q": row["v"], "k": 1, "nprobes": 2, "refine_factor": 5})
        assert found["id"].to_pylist() == [row["id"]]


def test_filters_on_each_column_read_fewer_fragments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_pruning, "FROM_ROWS", 1)
    table = _make(tmp_path / "t", stable=False, rows=3200, per_file=100)
    table.maintenance.analyze()
    conditions = ("a < 10", "b < '010'", "a = 50", "b = '050'")
    expected = {condition: sorted(table.to_arrow(filter=condition)["id"].to_pylist()) for condition in conditions}

    def read(condition: str) -> int:
        found = kept_fragments(table._access, table._file.manifest, condition)
        return len(table.layout.fragments) if found is None else len(found)

    assert [read(condition) for condition in conditions] == [32] * 4
    table.maintenance.optimize(cluster_by=["a", "b"], target_rows=100)
    assert len(table.layout.fragments) == 32
    assert all(read(condition) <= 10 for condition in conditions), [read(condition) for condition in conditions]
    assert {condition: sorted(table.to_arrow(filter=condition)["id"].to_pylist()) for condition in conditions} == expected
    table.maintenance.optimize(cluster_by=["a"], target_rows=100)
    assert read("a = 50") <= 2
    assert table.to_arrow(columns=["a"])["a"].to_pylist() == sorted(table.to_arrow(columns=["a"])["a"].to_pylist())


def _before_the_rewrite(root: Path) -> Any:
    """Matches the create of the version after the reservation."""
    name = f"{2**64 - 1 - ty.Table.open(root).version - 2:020d}.manifest"
    return lambda method, path: is_version(method, path) and path.endswith(name)


@pytest.mark.parametrize("verb", ["delete", "update", "columns", "stock"])
@STABLE
def test_changes_in_between_are_kept(tmp_path: Path, stable: bool, verb: str) -> None:
    root = tmp_path / "t"
    before = _make(root, stable=stable).to_arrow().sort_by("id").to_pylist()

    def change() -> None:
        if verb == "delete":
            ty.Table.open(root).delete("id in (5, 120)")
        elif verb == "stock":
            open_stock(str(root)).delete("id in (5, 120)")
        else:
            ty.Table.open(root).update({"a": "-1"}, "id in (5, 120)", "rows" if verb == "update" else "columns")

    table = handle(root, InterruptedStore(LocalStore(root), _before_the_rewrite(root), change))
    result = table.maintenance.optimize(cluster_by=["a", "b"], target_rows=100)
    carried = stable and verb != "columns"
    assert (result.executions == 1) == carried, "rows that keep their ids are followed; else it is done anew on the latest version"
    if verb in ("delete", "stock"):
        assert _rows(root) == [row for row in before if row["id"] not in (5, 120)]
    else:
        assert _rows(root) == [{**row, "a": -1} if row["id"] in (5, 120) else row for row in before]


@STABLE
def test_a_delete_that_it_overtakes_finds_its_rows(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    before = _make(root, stable=stable).to_arrow().sort_by("id").to_pylist()
    store = InterruptedStore(
        LocalStore(root), is_version, lambda: ty.Table.open(root).maintenance.optimize(cluster_by=["b", "a"], target_rows=100)
    )
    result = handle(root, store).delete("id in (5, 120, 399)")
    assert (result.executions == 1) == stable
    assert _rows(root) == [row for row in before if row["id"] not in (5, 120, 399)]


@pytest.mark.parametrize("cluster_by", [(), ("b",)])
@STABLE
def test_a_condition_leaves_other_fragments_alone(tmp_path: Path, stable: bool, cluster_by: tuple[str, ...]) -> None:
    root = tmp_path / "t"
    table = _make(root, stable=stable, per_file=20)
    table.maintenance.analyze()
    before, rows = {fragment.id for fragment in table.layout.fragments}, _rows(root)
    table.maintenance.optimize(where="id >= 100 AND id < 200", cluster_by=cluster_by, target_rows=1000)
    after = {fragment.id for fragment in table.layout.fragments}
    assert before - after == {5, 6, 7, 8, 9}
    assert [fragment.physical_rows for fragment in table.layout.fragments if fragment.id not in before] == [100]
    assert _rows(root) == rows
    version = table.version
    assert table.maintenance.optimize(where="id < 0", cluster_by=cluster_by).version == version


def test_a_condition_does_not_keep_a_single_fragment_from_being_rid_of_deleted_rows(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", stable=False, per_file=100)
    table.maintenance.analyze()
    table.delete("id % 2 = 1")
    table.maintenance.optimize(where="id = 150", target_rows=100)
    assert [(part.physical_rows, part.live_rows) for part in table.layout.fragments] == [(100, 50), (100, 50), (100, 50), (50, 50)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster_by": "a"}, "list of different names"),
        ({"cluster_by": ["a", "a"]}, "list of different names"),
        ({"cluster_by": ["nope"]}, "no column 'nope'"),
        ({"cluster_by": ["v"]}, "cannot be sorted by 'v'"),
        ({"cluster_by": [f"c{number}" for number in range(17)]}, "at most 16"),
        ({"where": "nope = 1"}, "nope"),
        ({"where": "a +"}, "a +"),
        ({"where": "nope = 1", "cluster_by": ["a"]}, "nope"),
    ],
)
def test_what_cannot_be(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    table = _make(tmp_path / "t", stable=False)
    with pytest.raises(InvalidInput) as raised:
        table.maintenance.optimize(**options)
    assert words in str(raised.value)
    assert table.layout.latest_version() == 1


@pytest.mark.parametrize("old", [False, True])
def test_blobs_are_refused(tmp_path: Path, old: bool) -> None:
    if old:
        column = pa.field("x", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        given: pa.Array = pa.array([b"x"], pa.large_binary())
    else:
        column, given = lance.blob_field("x"), lance.blob_array([b"x"])
    rows = pa.table([pa.array([1], pa.int64()), given], schema=pa.schema([pa.field("id", pa.int64()), column]))
    table = ty.Table.create(tmp_path / "t", rows, options=ty.TableOptions(data_format="2.1" if old else "2.2"))
    with pytest.raises(UnsupportedFeature, match="blobs"):
        table.maintenance.optimize(cluster_by=["id"])


@STABLE
def test_others_write_the_files(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, stable=stable)
    rows = _rows(root)

    def run(tasks: Any) -> list[Any]:
        assert sum(task.rows for task in tasks) == COUNT
        tasks[0].run()  # somebody runs it twice: nothing of that is left
        return [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task)).run())) for task in tasks]

    table.distributed.optimize(run, cluster_by=["a", "b"], target_rows=100)
    assert len(table.refresh().layout.fragments) == 4
    assert _rows(root) == rows
    with pytest.raises(InvalidInput, match="runner"):
        table.distributed.optimize(lambda tasks: [task.run() for task in tasks][1:], cluster_by=["b"], target_rows=100)
    assert _rows(root) == rows


def test_in_a_transaction_of_a_lake(tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path)
    lake.create_table("t", pa.table({"id": [3, 1, 2]}))
    with lake.transaction() as tx:
        tx.table("t").append(pa.table({"id": [0]}))
        tx.table("t").maintenance.optimize(cluster_by=["id"])
    assert lake.table("t").to_arrow()["id"].to_pylist() == [0, 1, 2, 3]
    assert lake.snapshot(1).table("t").to_arrow()["id"].to_pylist() == [3, 1, 2]
    assert lake.check().problems == ()


@pytest.mark.parametrize("seed", range(6))
def test_random_tables(tmp_path: Path, seed: int) -> None:
    """Nulls, NaN, both zeros, equal values, texts; appends and deletes in between; every row stays, once."""
    chance = random.Random(seed)
    print("seed", seed)
    kinds: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
        "whole": (pa.int32(), lambda: chance.choice([None, 0, -5, chance.randrange(100)])),
        "float": (pa.float64(), lambda: chance.choice([None, float("nan"), 0.0, -0.0, chance.random()])),
        "text": (pa.string(), lambda: chance.choice([None, "", "ä" * 70, str(chance.random())])),
        "flag": (pa.bool_(), lambda: chance.choice([None, True, False])),
        "moment": (pa.timestamp("us"), lambda: chance.choice([None, chance.randrange(10**15)])),
        "bytes": (pa.binary(), lambda: chance.choice([None, b"", chance.randbytes(3)])),
        "tag": (pa.dictionary(pa.int32(), pa.string()), lambda: chance.choice([None, "x", "y"])),
        "half": (pa.float16(), lambda: chance.choice([None, np.float16(chance.random())])),
    }

    def made(first: int, count: int) -> pa.Table:
        columns = {name: pa.array([value() for _ in range(count)], kind) for name, (kind, value) in kinds.items()}
        return pa.table({"id": pa.array(range(first, first + count), pa.int64()), **columns})

    table = ty.Table.create(tmp_path / "t", made(0, 50), stable_row_ids=chance.random() < 0.5)
    for step in range(1, 6):
        table.append(made(step * 50, chance.randrange(1, 50)))
        if chance.random() < 0.7:
            table.delete(f"id % {chance.randrange(3, 9)} = 1")
        before = table.to_arrow().sort_by("id")
        table.maintenance.optimize(
            cluster_by=chance.sample(sorted(kinds), chance.randrange(1, 4)), target_rows=chance.choice([7, 40, 1000])
        )
        after = table.to_arrow().sort_by("id")
        assert str(after.to_pylist()) == str(before.to_pylist())  # as text: NaN is not equal to itself
        assert table.check().problems == ()


def test_the_bits_of_ranks() -> None:
    ranks = [np.array([0, 0, 1, 1], np.uint64), np.array([0, 1, 0, 1], np.uint64)]
    assert list(interleaved(ranks)) == sorted(interleaved(ranks))
    assert z_order([pa.chunked_array([[3, None, 1, 1]])]).tolist() == [2, 3, 0, 1]
    assert z_order([pa.chunked_array([pa.array([], pa.int64())])] * 2).tolist() == []
