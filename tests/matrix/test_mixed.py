"""One side is stock pylance, the other one is us: nothing is lost or doubled, and each takes the other's commits for its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.differences import DIFFERENCES, HOLES
from tests.matrix.rows import Row
from tests.matrix.test_differential import REACHABLE, Meeting
from tests.support.proving import PROVING
from tests.support.real_checks import assert_indices_answer, assert_sound, assert_world, orphans
from tests.support.real_tables import Workshop
from tiltyard.conflicts import Outcome

WORDS = {Outcome.COMPATIBLE: "committed", Outcome.REBASE: "committed", Outcome.RETRY: "retryable", Outcome.INCOMPATIBLE: "incompatible"}
ROWS = [pytest.param(row, id=row.name) for row in REACHABLE]
KNOWN = [number for number, row in enumerate(REACHABLE) if row.name in DIFFERENCES or row.name in HOLES]
PYLANCE_FIRST = [row for number, row in enumerate(ROWS) if PROVING or number % 2 == 0 or number in KNOWN]
PYLANCE_SECOND = [row for number, row in enumerate(ROWS) if PROVING or number % 2 == 1 or number in KNOWN]
"""In the short form each row has pylance on one side, in turn; where the two differ, on both."""


@pytest.mark.parametrize("row", PYLANCE_FIRST)
def test_pylance_first_then_us(row: Row, workshop: Workshop, tmp_path: Path) -> None:
    meeting = Meeting(row, workshop, tmp_path / "t")
    before = meeting.theirs("pylance")
    known = orphans(meeting.table)  # pylance leaves deletion files behind that it merged
    came = meeting.mine("us")
    assert row.expected is not None
    assert came.word == WORDS[row.expected], came.said
    assert_world(meeting.table, meeting.means(before, came))
    assert_indices_answer(meeting.table)
    if came.word == "committed":
        assert_sound(meeting.table, leftover=row.deeds.leftover, known=known)


@pytest.mark.parametrize("row", PYLANCE_SECOND)
def test_we_first_then_pylance(row: Row, workshop: Workshop, tmp_path: Path) -> None:
    meeting = Meeting(row, workshop, tmp_path / "t")
    before = meeting.theirs("us")
    came = meeting.mine("pylance")
    known = DIFFERENCES.get(row.name)
    assert row.expected is not None
    assert came.word == (known.pylance if known else WORDS[row.expected]), came.said
    wrong = meeting.wrong(meeting.means(before, came))
    assert bool(wrong) == (row.name in HOLES), wrong
    if row.name not in HOLES:
        assert_world(meeting.table, meeting.means(before, came))
        assert_indices_answer(meeting.table)
