"""Rebase, cherry-pick, revert, restore and clone, killed at every step: done or not done, never half, and done when asked again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.test_merge_kills import rows
from tests.support.lake_killed import child, run_branch_verb, run_clone
from tests.support.lakes import Site, numbers
from tests.support.proving import sample
from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import AlreadyExists, NotFound
from tiltyard.lake import Lake

State = dict[str, list[int]]


def chosen(steps: list[str]) -> list[int]:
    """Steps to die at: all of them, or one in the middle of the work and those around the decision."""
    around = [number for number, name in enumerate(steps) if name in ("publish: decided, not stored", "publish: after")]
    return sorted({*sample(range(len(steps)), 0), around[0] // 2, *around[-2:]})


def prepared(lake: Lake, verb: str, number: int) -> tuple[tuple[Any, ...], str, State]:
    """Work on both lines: the call that is to be made then, the branch that it changes, and what this has afterwards."""
    side = lake.on_branch("side")
    with lake.transaction() as tx:
        tx.table("a").append(numbers(number + 1))
        tx.table("b").append(numbers(number + 1))
    done = lake.snapshot().id
    with side.transaction() as tx:
        tx.table("a").append(numbers(number))
        tx.table("b").append(numbers(number))
    picked = side.snapshot().id
    if verb == "restore":
        then = rows(lake)
        lake.table("a").append(numbers(number + 2))
        lake.create_table(f"made{number}", numbers(number))
        return ("restore", done), MAIN, then
    main, there = rows(lake), rows(lake, "side")
    if verb == "rebase":
        return ("rebase", "side"), "side", {name: sorted({*main[name], *there[name]}) for name in main}
    if verb == "cherry_pick":
        return ("cherry_pick", "side", picked), MAIN, {name: sorted([*main[name], number]) for name in main}
    lake.table("a").append(numbers(number + 3))
    main = rows(lake)
    return ("revert", done), MAIN, {name: [value for value in main[name] if value != number + 1] for name in main}


@pytest.mark.parametrize("verb", ["rebase", "cherry_pick", "revert", "restore"])
def test_a_verb_killed_at_every_step(site: Site, lake: Lake, tmp_path: Path, verb: str) -> None:
    lake.branches.create("side")
    names, arguments = tmp_path / "steps", {"durability": "os", **site.arguments}
    call, _, _ = prepared(lake, verb, 10)  # once, so that the tables' branches and bases are there and each turn has the same steps
    getattr(lake.branches, call[0])(*call[1:])
    call, branch, after = prepared(lake, verb, 20)
    assert child(site.uri, arguments, call, None, names, target=run_branch_verb) == 0
    assert rows(lake, branch) == after
    steps = names.read_text().splitlines()
    assert steps.count("publish: before") == 1, f"one step of the catalog decides: {steps}"
    for number in chosen(steps):
        call, branch, after = prepared(lake, verb, 10 * number + 30)
        before = rows(lake, branch)
        code = child(site.uri, arguments, call, number, names, target=run_branch_verb)
        assert code == -signal.SIGKILL, f"it did not die at {steps[number]!r}: {code}"
        with Lake.open(site.uri, **arguments) as seen:
            found, decided = rows(seen, branch), "publish: after" in steps[: number + 1]
            assert found == after or (found == before and not decided), f"after a death at {steps[number]!r}"
            again = getattr(seen.branches, call[0])(*call[1:])
            assert again.up_to_date == (found == after), f"after a death at {steps[number]!r}"
            assert rows(seen, branch) == after
    assert lake.check().problems == ()


def test_a_clone_killed_at_every_step(site: Site, lake: Lake, tmp_path: Path) -> None:
    names, arguments = tmp_path / "steps", {"durability": "os", **site.arguments}
    assert child(site.uri, arguments, str(tmp_path / "whole"), None, names, target=run_clone) == 0
    steps, expected = names.read_text().splitlines(), rows(lake)
    decision = max(number for number, name in enumerate(steps) if name == "publish: after")
    for number in chosen(steps):
        place = tmp_path / f"clone{number}"
        assert child(site.uri, arguments, str(place), number, names, target=run_clone) == -signal.SIGKILL, steps[number]
        found = cloned(place)
        assert found == expected or (found == {} and number < decision), f"after a death at {steps[number]!r}"
        if found:
            with pytest.raises(AlreadyExists):
                lake.clone(place)
        else:
            lake.clone(place)
        assert cloned(place) == expected
    assert rows(lake) == expected
    assert lake.check().problems == ()


def cloned(place: Path) -> State:
    try:
        with Lake.open(place, create=False) as clone:
            return rows(clone)
    except NotFound:
        return {}
