"""Merges that give a table a name which another one has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lakes.test_merging import TEN, kinds, rows, shop, sound, table_of
from tiltyard.errors import MergeConflict
from tiltyard.lake import Lake


def own(lake: Lake) -> list[str]:
    """Its tables, without those that the fixture made."""
    return [name for name in lake.tables() if name not in ("a", "b")]


@pytest.mark.parametrize("rival", ["k", "x"])
@pytest.mark.parametrize("use", ["ours", "theirs"])
def test_a_new_name_that_a_new_table_of_the_target_has(lake: Lake, rival: str, use: Any) -> None:
    """Whichever of the two comes first in the alphabet."""
    shop(lake, name="m")
    lake.create_table(rival, table_of({1: "new"}))
    lake.on_branch("side").rename_table("m", rival)
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("m", "name")]
    assert f"renamed it to {rival}" in caught.value.conflicts[0].detail
    lake.branches.merge("side", on_conflict={"m": use})
    assert own(lake) == (sorted(["m", rival]) if use == "ours" else [rival])
    assert rows(lake, rival) == ({1: "new"} if use == "ours" else TEN)
    sound(lake)


@pytest.mark.parametrize("use", ["ours", "theirs"])
@pytest.mark.parametrize("new", [False, True])
def test_a_new_name_that_the_target_gave_to_another_table(lake: Lake, use: Any, new: bool) -> None:
    """That table is on both sides: it is not dropped, it has the name of the side that is right."""
    lake.create_table("n", table_of(TEN))
    shop(lake, name="m")
    lake.table("n").append(table_of({100: "here"}))
    lake.rename_table("n", "x")
    side = lake.on_branch("side")
    if new:
        side.create_table("x", table_of({7: "made"}))
    else:
        side.rename_table("m", "x")
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side")
    assert kinds(caught.value) == [("x", "created") if new else ("m", "name")]
    lake.branches.merge("side", on_conflict=use)
    if use == "ours":
        assert own(lake) == ["m", "x"]
        assert rows(lake, "x") == {**TEN, 100: "here"}
    else:
        assert own(lake) == (["m", "n", "x"] if new else ["n", "x"])
        assert rows(lake, "n") == {**TEN, 100: "here"}
        assert rows(lake, "x") == ({7: "made"} if new else TEN)
    sound(lake)
