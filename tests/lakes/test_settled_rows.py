"""Conflicts about rows that have stable row ids and no key, settled one by one; and who did what, on both sides."""

from __future__ import annotations

import pytest

from tests.lakes.test_merging import TEN, rows, shop, sound
from tests.support.lakes import Site
from tiltyard.errors import MergeConflict


def test_rows_without_a_key_are_settled_by_their_ids(site: Site) -> None:
    lake = site.open()
    main, side = shop(lake, None, stable=True)
    for table, text in ((main, "ours"), (side, "theirs")):
        table.update({"v": f"'{text}'"}, where="id in (3, 4)", mode="rows")
    found = lake.branches.merge("side", dry_run=True)
    places = {row.base["id"]: dict(row.key) for row in found.conflicts[0].sample if row.base is not None}
    assert [*places[3]] == ["_rowid"]
    settled = found.resolve("t", "theirs", keys=[places[3]])
    with pytest.raises(MergeConflict) as caught:
        lake.branches.merge("side", on_conflict=settled)
    assert (caught.value.conflicts[0].rows, dict(caught.value.conflicts[0].sample[0].key)) == (1, places[4])
    lake.branches.merge("side", on_conflict=found.resolve("t", "ours", keys=[places[4]], so_far=settled))
    assert rows(lake) == {**TEN, 3: "theirs", 4: "ours"}
    sound(lake)


def test_a_conflict_says_who_did_what_on_both_sides_and_a_merge_who_made_it(site: Site) -> None:
    ada, bob, eve = (site.open(author=name) for name in ("ada", "bob", "eve"))
    shop(ada, ["id"])
    with bob.on_branch("side").transaction(message="by the branch") as tx:
        tx.table("t").update({"v": "'theirs'"}, where="id = 3", mode="rows")
    assert tx.result is not None
    theirs = tx.result.snapshot
    ada.table("t").update({"v": "'ours'"}, where="id = 3", mode="rows", message="by the target")
    ours = ada.snapshot().id
    conflict = eve.branches.merge("side", dry_run=True).conflicts[0]
    steps = [[(step.branch, step.snapshot, step.author, step.message) for step in side] for side in (conflict.ours, conflict.theirs)]
    assert steps == [[("main", ours, "ada", "by the target")], [("side", theirs, "bob", "by the branch")]]
    done = eve.branches.merge("side", on_conflict="theirs", message="home")
    made = ada.history()[0]
    assert (made.id, made.author, made.message) == (done.snapshot, "eve", "home")
    assert made.properties["merged-from"].startswith(f"side@{theirs} ")
