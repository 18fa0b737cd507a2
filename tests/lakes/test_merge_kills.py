"""A merge that is killed at every step, whose answer is lost, or that others are faster than: merged or not, never half."""

from __future__ import annotations

import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.lake_killed import child, run_merge
from tests.support.lakes import InterposedRecords, LosingRecords, Site, ids, numbers, through, together
from tests.support.proving import sample
from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import MergeConflict, NotFound, TiltyardError
from tiltyard.lake import Lake
from tiltyard.merges import MergeResult

LEAST_STEPS = 20


def rows(lake: Lake, branch: str = MAIN) -> dict[str, list[int]]:
    shot = (lake if branch == MAIN else lake.on_branch(branch)).snapshot()
    return {name: ids(shot.table(name)) for name in shot.tables()}


def work_on_both(lake: Lake, number: int) -> None:
    """A table that only the branch changes, one that both do, one that is made, and one that is dropped."""
    side = lake.on_branch("side")
    with side.transaction() as tx:
        tx.table("a").append(numbers(number))
        tx.table("b").append(numbers(number + 1))
        tx.table("b").delete(f"id = {number - 9}")
        tx.create_table(f"made{number}", numbers(number))
        for name in [name for name in tx.tables() if name.startswith("made") and name != f"made{number}"][:1]:
            tx.drop_table(name)
    lake.table("b").append(numbers(number + 2))


def expected(lake: Lake) -> dict[str, list[int]]:
    """What main has after the merge: all tables of the branch, and main's own rows in ``b``."""
    main, side = rows(lake), rows(lake, "side")
    own = [number for number in main["b"] if number % 10 == 2]
    return {**side, "b": sorted({*side["b"], *own})}


def test_a_merge_killed_at_every_step(site: Site, lake: Lake, tmp_path: Path) -> None:
    lake.branches.create("side")
    names = tmp_path / "steps"
    arguments = {"durability": "os", **site.arguments}
    work_on_both(lake, 10)
    lake.branches.merge("side")
    work_on_both(lake, 20)
    assert child(site.uri, arguments, "side", None, names, target=run_merge) == 0
    steps = names.read_text().splitlines()
    print(f"{len(steps)} steps: {steps}")
    assert len(steps) >= LEAST_STEPS
    assert steps.count("publish: before") == 1, "one step of the catalog decides"
    some = sample(range(len(steps)), 3)
    deadly = [number for number, name in enumerate(steps) if number in some or name.startswith("publish")]
    for number in deadly:
        work_on_both(lake, 10 * number + 30)
        before, after, there = rows(lake), expected(lake), rows(lake, "side")
        code = child(site.uri, arguments, "side", number, names, target=run_merge)
        assert code == -signal.SIGKILL, f"it did not die at {steps[number]!r}: {code}"
        with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as seen:
            decided = "publish: after" in steps[: number + 1]
            found = rows(seen)
            assert found == after or (found == before and not decided), f"after a death at {steps[number]!r}"
            assert rows(seen, "side") == there
            again = seen.branches.merge("side")
            assert again.up_to_date == (found == after), f"after a death at {steps[number]!r}"
            assert rows(seen) == after
    assert lake.check().problems == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_merge_whose_answer_is_lost(site: Site, when: Any) -> None:
    lake = site.open()
    for name in "ab":
        lake.create_table(name, numbers(1))
    lake.branches.create("side")
    for at in (1, 2):
        work_on_both(lake, 10 * at)
        after = expected(lake)
        other = site.open()
        losing = through(other, LosingRecords)
        losing.lose(at, when)
        with suppress(TiltyardError):
            other.branches.merge("side")
        assert losing.fired or at > 1
        done = lake.branches.merge("side")
        assert rows(lake) == after
        assert done.up_to_date or when == "before" or at > 1
        assert lake.branches.merge("side").up_to_date
    assert lake.check().problems == ()


def test_two_merges_at_once(site: Site) -> None:
    lake = site.open()
    for name in "ab":
        lake.create_table(name, numbers(1))
    for name in ("one", "two"):
        lake.branches.create(name)
    for turn in range(4):
        lake.on_branch("one").table("a").append(numbers(100 + turn))
        lake.on_branch("two").table("a").append(numbers(200 + turn))
        lake.on_branch("two").table("b").append(numbers(200 + turn))
        handles = [site.open() for _ in range(3)]
        works = [lambda lake=lake, name=name: lake.branches.merge(name) for lake, name in zip(handles, ("one", "two", "one"), strict=True)]
        for found in together(*works):
            assert isinstance(found, MergeResult), found
        assert rows(lake)["a"] == [1, *range(100, 101 + turn), *range(200, 201 + turn)]
        assert rows(lake)["b"] == [1, *range(200, 201 + turn)]
    assert lake.check().problems == ()


def test_a_merge_is_planned_again_when_others_are_faster(site: Site) -> None:
    lake = site.open()
    for name in "ab":
        lake.create_table(name, numbers(1))
    lake.branches.create("side")
    lake.on_branch("side").table("a").append(numbers(2))
    other = site.open()
    merging = site.open()
    through(merging, lambda inner: InterposedRecords(inner, lambda: other.table("a").append(numbers(3))))
    merging.branches.merge("side")
    assert rows(lake)["a"] == [1, 2, 3]
    lake.on_branch("side").table("a").delete("id = 1")
    through(merging, lambda inner: InterposedRecords(inner, lambda: other.table("a").delete("id = 1")))
    with pytest.raises(MergeConflict):
        merging.branches.merge("side")
    assert rows(lake)["a"] == [2, 3]


def test_a_branch_that_is_deleted_or_cleaned_up_meanwhile(site: Site) -> None:
    lake = site.open()
    lake.create_table("a", numbers(1))
    lake.branches.create("side")
    for number in range(2, 6):
        lake.on_branch("side").table("a").append(numbers(number))
    other, merging = site.open(), site.open()
    through(merging, lambda inner: InterposedRecords(inner, lambda: other.cleanup(keep_snapshots=1, grace=timedelta(0))))
    assert merging.branches.merge("side").tables[0].how == "merged"
    assert rows(lake)["a"] == [1, 2, 3, 4, 5]
    lake.on_branch("side").table("a").append(numbers(6))
    through(merging, lambda inner: InterposedRecords(inner, lambda: other.branches.delete("side")))
    with pytest.raises(NotFound):
        merging.branches.merge("side")
    assert rows(lake)["a"] == [1, 2, 3, 4, 5]
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert rows(lake)["a"] == [1, 2, 3, 4, 5]
    assert lake.check(data=True).problems == ()
