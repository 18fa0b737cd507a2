"""A fast-forward that is killed at every step of catalog and store: main and the branch are as before it, or both as after it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.lake_killed import child, run_forward
from tests.support.lakes import Site, ids, numbers
from tests.support.proving import sample
from tiltyard.catalog.lake_values import MAIN
from tiltyard.lake import Lake

LEAST_STEPS = 20


def rows(lake: Lake, branch: str) -> dict[str, list[int]]:
    shot = (lake if branch == MAIN else lake.on_branch(branch)).snapshot()
    return {name: ids(shot.table(name)) for name in shot.tables()}


def work_on_the_branch(lake: Lake, number: int) -> None:
    """A table that main has, one that is made here, and names that change places."""
    side = lake.on_branch("side")
    with side.transaction() as tx:
        tx.table("a").append(numbers(number))
        tx.table("a").append(numbers(number + 1))
        tx.rename_table("a", "between")
        tx.rename_table("b", "a")
        tx.rename_table("between", "b")
        tx.drop_table("made")
    with side.transaction() as tx:
        tx.create_table("made", numbers(number))


def test_a_fast_forward_killed_at_every_step(site: Site, lake: Lake, tmp_path: Path) -> None:
    lake.create_table("made", numbers(0))
    lake.branches.create("side")
    names = tmp_path / "steps"
    arguments = {"durability": "os", **site.arguments}
    work_on_the_branch(lake, 2)
    assert child(site.uri, arguments, "side", None, names, target=run_forward) == 0
    steps = names.read_text().splitlines()
    print(f"{len(steps)} steps: {steps}")
    assert len(steps) >= LEAST_STEPS
    assert steps.count("publish: before") == 1, "one step of the catalog decides"
    some = sample(range(len(steps)), 6 if site.kind == "sqlite" else 0)
    deadly = [number for number, name in enumerate(steps) if number in some or name.startswith("publish")]
    for number in deadly:
        work_on_the_branch(lake, 10 * number + 10)
        before, there, line = rows(lake, MAIN), rows(lake, "side"), lake.branches["side"].id
        code = child(site.uri, arguments, "side", number, names, target=run_forward)
        assert code == -signal.SIGKILL, f"it did not die at {steps[number]!r}: {code}"
        _check_after(site, before, there, line, steps[number], decided="publish: after" in steps[: number + 1])
        lake.branches.fast_forward("side")
        assert rows(lake, MAIN) == rows(lake, "side") == there
    assert lake.check().problems == ()


def _check_after(site: Site, before: dict[str, list[int]], there: dict[str, list[int]], line: str, name: str, *, decided: bool) -> None:
    """What somebody sees who comes along after the death, and that each line still writes for itself."""
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        home = lake.branches["side"].id != line
        assert home or not decided, f"after a death at {name!r}: decided, and not there"
        assert rows(lake, MAIN) == (there if home else before), f"after a death at {name!r}: {'home' if home else 'not home'}"
        assert rows(lake, "side") == there, f"after a death at {name!r}"
        assert lake.check(tables=False).problems == (), f"after a death at {name!r}"
        assert lake.catalog.pending() == []
        main = rows(lake, MAIN)
        lake.on_branch("side").table("made").append(numbers(1_000_000))
        assert rows(lake, MAIN) == main, f"after a death at {name!r}: what the branch commits is seen on main"
        lake.on_branch("side").table("made").delete("id = 1000000")
