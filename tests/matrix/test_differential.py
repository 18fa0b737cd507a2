"""The same two operations on stock pylance alone and here: what comes of the second one, and what the table then holds."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.differences import DIFFERENCES, HOLES, OUT_OF_REACH, Difference
from tests.matrix.rows import Row, further_rows, matrix_rows
from tests.support.real_checks import differences
from tests.support.real_model import World, seen_by_pylance
from tests.support.real_runs import Came, does, out_of_reach
from tests.support.real_tables import MINE, THEIRS, Workshop
from tests.support.tables import open_stock
from tests.transaction.test_matrix import MATRIX


def why_not(row: Row) -> str:
    """Why pylance's own API cannot bring the two operations about as we do; nothing where it can."""
    deeds = row.deeds
    if deeds.lost or not deeds.retries:
        return "about more than two operations"
    return next((why for deed in (deeds.mine, *deeds.theirs) if (why := out_of_reach(deed))), "")


REACHABLE = [row for row in (*matrix_rows(), *further_rows()) if not why_not(row)]


class Meeting:
    """A table on which one side commits and then, from a handle that was opened before, the other."""

    def __init__(self, row: Row, workshop: Workshop, table: Path) -> None:
        self.row, self.workshop, self.table = row, workshop, table
        self.template = workshop.copy(row.deeds.table, table)
        self.stale: Any = open_stock(str(table))

    def theirs(self, who: str) -> World:
        """Gives what the table then means."""
        deeds, world = self.row.deeds, self.template.past[self.template.version]
        for number, deed in enumerate(deeds.theirs):
            handle = open_stock(str(self.table)) if number == 0 or deeds.in_turn else self.stale.checkout_version(self.stale.version)
            by = "pylance" if deeds.in_turn or deed.stock_only else who
            came = does(by, self.table, handle, deed, THEIRS, self.workshop, deeds.table)
            assert came.word == "committed", came.said
            world = deed.effect(world, self.template.past)
        return world

    def mine(self, who: str) -> Came:
        return does(who, self.table, self.stale, self.row.deeds.mine, MINE, self.workshop, self.row.deeds.table)

    def means(self, before: World, came: Came) -> World:
        return self.row.deeds.mine.effect(before, self.template.past) if came.word == "committed" else before

    def wrong(self, world: World) -> list[str]:
        """What is not as the operations mean it, as pylance sees the table."""
        return sorted(differences(seen_by_pylance(self.table).plain(), {**world.plain(), "bases": []}))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in REACHABLE])
def test_the_same_two_operations(row: Row, workshop: Workshop, tmp_path: Path) -> None:
    ends: dict[str, Came] = {}
    for who in ("pylance", "us"):
        meeting = Meeting(row, workshop, tmp_path / who)
        before = meeting.theirs(who)
        ends[who] = meeting.mine(who)
        wrong = meeting.wrong(meeting.means(before, ends[who]))
        assert bool(wrong) == (who == "pylance" and row.name in HOLES), wrong
    known = DIFFERENCES.get(row.name)
    ours, pylance = ends["us"].word, ends["pylance"].word
    assert (ours, pylance) == ((known.ours, known.pylance) if known else (pylance, pylance)), ends


def test_how_much_of_the_matrix_is_out_of_reach_for_pylance() -> None:
    """Counted, so that no row gets lost unnoticed."""
    assert Counter(why_not(row) for row in matrix_rows()) == OUT_OF_REACH


def test_the_list_of_differences_has_no_other_rows() -> None:
    names = {row.name for row in REACHABLE}
    assert set(DIFFERENCES) <= names
    assert set(HOLES) <= names
    for known in DIFFERENCES.values():
        assert known.ours != known.pylance
        assert known.reason
    assert all(HOLES.values())


# ---- against the matrix itself ---------------------------------------------------------------------------------------------

SAYS = {"compatible": "committed", "rebase": "committed", "re-executed": "retryable", "not observed": "retryable"}


def _told() -> Iterator[tuple[Row, str]]:
    """Each row, and what the matrix says of pylance."""
    with MATRIX.open(newline="") as file:
        by_pair: dict[tuple[str, str], list[str]] = {}
        for one in csv.DictReader(file):
            by_pair.setdefault((one["committing"], one["committed"]), []).append(one["pylance_14_0_2"])
    for row in matrix_rows():
        mine, theirs = row.name.split("-")[:2]
        if (mine, theirs) in by_pair:
            yield row, by_pair[mine, theirs].pop(0)


@pytest.mark.skipif(not MATRIX.exists(), reason="the matrix lies outside the repository")
def test_our_deeds_stand_for_the_rows_of_the_matrix() -> None:
    """What we and pylance come to here is what the matrix observed of pylance."""
    wrong = []
    for row, said in _told():
        if not why_not(row):
            known = DIFFERENCES.get(row.name, _agreed(row))
            word = SAYS.get(said, said)
            if known.pylance != word:
                wrong.append(f"{row.name}: {known.pylance}, the matrix says {word}")
    assert wrong == []


def _agreed(row: Row) -> Difference:
    assert row.expected is not None
    word = {"compatible": "committed", "rebase": "committed", "retry": "retryable"}.get(row.expected.value, row.expected.value)
    return Difference(word, word, "")
