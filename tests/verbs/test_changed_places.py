"""How a feed finds its rows: the quick ways against the straightforward ones, on random tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import tiltyard as ty
from tiltyard.verbs import changed_rows
from tiltyard.verbs.changed_rows import RowIdRuns, Side, offsets_of
from tiltyard.verbs.changes import compared

SEEDS = range(4)
ROWS = 400


def _rows(ids: Any) -> pa.Table:
    numbers = np.asarray(ids, np.int64)
    return pa.table({"id": numbers, "x": numbers % 7, "a b": pa.array([f"s{number}" for number in numbers.tolist()])})


def _make(root: Path, *, stable: bool, rows: int = ROWS, in_file: int = 90) -> ty.Table:
    options = ty.TableOptions(files=ty.FileLimits(rows=in_file))
    return ty.Table.create(root / "t", _rows(range(rows)), stable_row_ids=stable, durability="os", options=options)


def _side(table: ty.Table, version: int) -> Side:
    return Side(table._access, table._access.load(version, table._scheme).manifest)


def _picked(random: np.random.Generator, live: BitMap, share: float) -> BitMap:
    offsets = offsets_of(live)
    return BitMap(offsets[random.random(len(offsets)) < share].tolist())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stable", [False, True], ids=["places", "stable"])
def test_rows_read_by_their_places_are_those_taken_by_their_ids(
    tmp_path: Path, seed: int, stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(changed_rows, "CHUNK", int(random.integers(3, 200)))
    monkeypatch.setattr(changed_rows, "MANY", int(random.integers(1, 4)))
    table = _make(tmp_path, stable=stable)
    table.delete(f"id % {random.integers(2, 6)} = 1")
    table.delete("id >= 90 AND id < 180")
    side = _side(table, table.version)
    for _ in range(6):
        places = {}
        for fragment in side.manifest.fragments:
            live = side.live(fragment)
            picked = _picked(random, live, random.choice([0.0, 0.02, 0.3, 0.9, 1.0]))
            if random.random() < 0.3:  # rows that lie together
                picked = BitMap(offsets_of(live)[3:40].tolist())
            if picked:
                places[fragment.id] = picked
        for columns in (["id"], ["x", "a b"]):
            expected = [side.take(side.ids(number, offsets), columns) for number, offsets in places.items()]
            found = list(side.read(places, columns))
            assert all(rows.num_rows for rows in found)
            assert [row for rows in found for row in rows.to_pylist()] == [row for rows in expected for row in rows.to_pylist()]


def test_rows_without_any_column_are_counted(tmp_path: Path) -> None:
    side = _side(_make(tmp_path, stable=True), 1)
    places = {fragment.id: side.live(fragment) for fragment in side.manifest.fragments}
    assert sum(rows.num_rows for rows in side.read(places, [])) == ROWS


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_of_ids_know_what_a_set_of_them_knows(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = _make(tmp_path, stable=True)
    table.update({"x": "x + 1"}, f"id % {random.integers(2, 9)} = 1", mode="rows")
    table.update({"x": "x + 1"}, "id >= 100 AND id < 300", mode="rows")
    before, after = _side(table, 1), _side(table, table.version)
    for _ in range(6):
        went = {fragment.id: _picked(random, side_live, random.choice([0.1, 1.0])) for fragment, side_live in _live(before)}
        went = {number: offsets for number, offsets in went.items() if offsets and random.random() < 0.7}
        if not went:
            continue
        ids = set(np.concatenate([before.ids(number, offsets) for number, offsets in went.items()]).tolist())
        runs = RowIdRuns.of(before, went)
        for fragment, live in _live(after):
            for offsets in (live, _picked(random, live, 0.5)):
                chosen = zip(offsets_of(offsets).tolist(), after.ids(fragment.id, offsets).tolist(), strict=True)
                assert runs.known(after, fragment.id, offsets) == BitMap([offset for offset, number in chosen if number in ids])


def _live(side: Side) -> list[tuple[Any, BitMap]]:
    return [(fragment, side.live(fragment)) for fragment in side.manifest.fragments]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_merge_of_many_rows_is_told_by_the_keys_that_were_there(tmp_path: Path, seed: int) -> None:
    """Rows that moved and rows that are new lie in one fragment."""
    random = np.random.default_rng(seed)
    table = _make(tmp_path, stable=True)
    table.delete("id % 11 = 3")
    there = set(table.to_arrow().column("id").to_pylist())
    keys = random.choice(2 * ROWS, 300, replace=False)
    table.merge(_rows(keys), on="id").when_matched_update_all().when_not_matched_insert_all().execute()
    feed = table.changes(table.version - 1).read_all()
    told = sorted(zip(feed.column("_change").to_pylist(), feed.column("id").to_pylist(), strict=True))
    assert told == sorted(("update" if key in there else "insert", key) for key in keys.tolist())


def test_fragments_that_did_not_change_are_not_decoded(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=True, in_file=10)
    table.append(_rows([1000]))
    table.delete("id = 5")
    before, after = _side(table, 1), _side(table, table.version)
    assert compared(before, after, None).deleted == {0: BitMap([5])}
    assert before._decoded.keys() | after._decoded.keys() == {0, ROWS // 10}


def test_many_small_fragments_come_in_few_batches(tmp_path: Path) -> None:
    table = _make(tmp_path, stable=False, rows=10)
    table.append(_rows(range(100, 250)), files=ty.FileLimits(rows=1))
    batches = list(table.changes(1))
    assert len(table.layout.fragments) > 150
    assert [batch.num_rows for batch in batches] == [150]
    assert batches[0].column("id").to_pylist() == [*range(100, 250)]
