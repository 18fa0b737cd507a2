"""Verbs whose work is done elsewhere, without Spark: what travels is pickled on the way, and the commit is that of the table's own verb."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.distributed import Pinned, RowChange, RowPlan, join_rows, pack_rows


def sent(value: Any) -> Any:
    """The value as another process has it."""
    return pickle.loads(pickle.dumps(value))


def rows(first: int, last: int, text: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(range(first, last), pa.int64()), "s": [text] * (last - first)})


def table(where: Path, **options: Any) -> ty.Table:
    made = ty.Table.create(
        where, rows(0, 40), primary_key=["id"], durability="os", **options, options=ty.TableOptions(files=ty.FileLimits(rows=10))
    )
    made.delete("id % 9 = 4")
    return made


def upserting(source: pa.Table) -> Any:
    """A worker that does an upsert in three places."""

    def worker(pinned: Pinned) -> RowChange:
        task, scan = sent(pinned.write_task()), sent(pinned.scan_task())
        pieces = [sent(task.write(source.slice(0, 5))), sent(task.write(source.slice(5)))]
        keys = pinned.checked_keys(pinned.key_reader.of(source))  # type: ignore[union-attr]  # there is a key
        match = pinned.match_task(keys)
        found = [sent(match.without_keys()).find(group, keys) for group in scan.groups(3)]
        new = np.ones(keys.num_rows, np.bool_)
        for one in found:
            new[one.rows] = False
        taken = join_rows(sent(pack_rows(one.addresses)) for one in found)
        counts = {"inserted": int(new.sum()), "updated": int((~new).sum()), "deleted": 0}
        return RowChange(taken, pieces, keys=keys.filter(pa.array(new)), counts=counts)

    return worker


PLAN = RowPlan(matched=True, inserting=True, updated=frozenset({"id", "s"}))


def test_an_upsert_from_parts_is_an_upsert(tmp_path: Path) -> None:
    here, there = table(tmp_path / "here"), table(tmp_path / "there")
    source = rows(30, 50, "b")
    expected = here.merge(source).when_matched_update_all().when_not_matched_insert_all().execute()
    done = there.distributed.change_rows(upserting(source), PLAN, message="parts")
    assert (done.rows, there.history(1)[0].message) == (expected.rows, "parts")
    assert there.to_arrow().sort_by("id").equals(here.to_arrow().sort_by("id"))
    assert there.check().ok


def test_keys_that_came_meanwhile_are_a_conflict_and_worked_out_again(tmp_path: Path) -> None:
    made = table(tmp_path / "t")
    source = rows(38, 45, "b")
    upsert = upserting(source)
    versions: list[int] = []

    def worker(pinned: Pinned) -> RowChange:
        change: RowChange = upsert(pinned)
        if not versions:
            ty.Table.open(made.uri).append(rows(44, 46, "theirs"))
        versions.append(pinned.version)
        assert (pinned.after is None) == (len(versions) == 1)
        return change

    done = made.distributed.change_rows(worker, PLAN)
    assert (versions, done.executions) == ([2, 3], 2)
    assert made.to_arrow(filter="id >= 44").sort_by("id").to_pylist() == [{"id": 44, "s": "b"}, {"id": 45, "s": "theirs"}]
    named = {file.path for number in range(1, 5) for one in ty.Table.open(made.uri, version=number).layout.fragments for file in one.files}
    assert {one.name for one in (tmp_path / "t" / "data").iterdir()} == named


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (RowPlan(updated=frozenset({"id"})), "part of the primary key"),
        (RowPlan(updated=frozenset({"nope"})), "no column 'nope'"),
        (RowPlan(matched=True, on=("s",), inserting=True), "two rows of one primary key"),
        (RowPlan(matched=True, on=(), updated=frozenset({"id"})), "a condition could leave two rows"),
    ],
)
def test_plans_that_could_harm_the_key_are_refused_before_any_work(tmp_path: Path, plan: RowPlan, words: str) -> None:
    with pytest.raises(ty.InvalidInput, match=words):
        table(tmp_path / "t").distributed.change_rows(lambda _: pytest.fail("it must not be asked"), plan)


def test_rows_matched_otherwise_are_looked_for_by_their_key(tmp_path: Path) -> None:
    made = table(tmp_path / "t")

    def worker(pinned: Pinned) -> RowChange:
        fresh = rows(39, 41)
        return RowChange(pieces=[pinned.write_task().write(fresh)], keys=fresh.select(["id"]), counts={"inserted": 2})

    with pytest.raises(ty.KeyConflict, match="id 39"):
        made.distributed.change_rows(worker, RowPlan(matched=True, on=(), inserting=True))
    assert made.refresh().version == 2
    assert made.distributed.change_rows(worker, RowPlan(matched=True, on=(), inserting=True, allow_duplicates=True)).version == 3


def test_a_row_is_taken_once() -> None:
    with pytest.raises(ty.InvalidInput, match="several rows"):
        pack_rows([1, 2, 1])
    with pytest.raises(ty.InvalidInput, match="several rows"):
        join_rows([pack_rows([1, 2]), pack_rows([2])])
    assert join_rows([pack_rows([1 << 32, 5]), pack_rows([7])]) == pack_rows([7, 5, 1 << 32])


def test_fragments_are_spread_evenly(tmp_path: Path) -> None:
    scan = sent(table(tmp_path / "t").distributed.scan_task())
    assert scan.rows == 36
    assert sorted(number for group in scan.groups(3) for number in group) == [0, 1, 2, 3]
    assert max(map(len, scan.groups(3))) == 2
    assert scan.groups(99) == [(0,), (1,), (2,), (3,)]
    read = scan.scan(["s"], [1], row_address=True).read_all()
    assert (read.column_names, read.num_rows) == (["s", "_rowaddr"], 9)
    taken = scan.take(pa.array([(1 << 32) + 5, 2], pa.uint64()), ["id"])
    assert taken.column("id").to_pylist() == [15, 2]


@pytest.mark.parametrize("stable", [False, True])
def test_compaction_index_and_columns_from_parts(tmp_path: Path, stable: bool) -> None:
    made = table(tmp_path / "t", stable_row_ids=stable)

    def columns(task: ty.distributed.ColumnTask) -> dict[int, Any]:
        told = {}
        for number in task.fragments:
            some = sent(task).scan.scan(["id"], [number], row_address=True).read_all()
            values = some.append_column("twice", pa.compute.multiply(some.column("id"), 2)).drop_columns(["id"])
            told[number] = sent(sent(task).write(number, values.slice(1).take(pa.array(range(values.num_rows - 2, -1, -1)))))
        return told

    made.distributed.add_columns(pa.schema([("twice", pa.int64())]), columns)
    firsts = {0, 10, 20, 30}
    assert {row["id"]: row["twice"] for row in made.to_arrow().to_pylist()} == {
        number: None if number in firsts else number * 2 for number in range(40) if number % 9 != 4
    }
    made.indices.create("id", ty.IndexSpec("btree", runner=lambda task: [sent(sent(task).segment(group)) for group in ((0, 2), (1, 3))]))
    [index] = made.indices.list()
    assert (index.name, len(index.segments), index.rows) == ("id_idx", 1, 36)
    assert made.distributed.compact(lambda tasks: [sent(one).run() for one in tasks], target_rows=100).operation == "Rewrite"
    assert (len(made.layout.fragments), made.count_rows("id = 17")) == (1, 1)
    assert made.check().ok
    for first in (100, 110):
        made.append(rows(first, first + 1))
    with pytest.raises(ty.InvalidInput, match="returned 0 results for 1 tasks"):
        made.distributed.compact(lambda _: [])
    with pytest.raises(ty.InvalidInput, match="returned no columns"):
        made.distributed.add_columns(pa.schema([("more", pa.int64())]), lambda _: {})
