"""Writers of one hot table of which one dies while it is its turn: nothing acknowledged is lost or doubled, and the others go on."""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack

import pytest

from tests.lakes.hot_killed import POINTS, writer
from tests.support.lakes import Site, ids, numbers
from tests.support.proving import PROVING, pick
from tiltyard.lake import Lake

WRITERS = 2
SPAN = 1_000_000
"""Numbers of one writer."""
KILLS = pick(len(POINTS), 100)


def _told(process: subprocess.Popen[str], count: int) -> set[int]:
    """The next so many numbers that a writer tells: it goes on."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    assert all(lines), f"the writer ended ({process.poll()})"
    return {int(line) for line in lines}


def _rest(process: subprocess.Popen[str]) -> set[int]:
    assert process.stdout is not None
    return {int(line) for line in process.stdout}


@pytest.mark.parametrize("site", ["sqlite", "postgres", *(["manifest"] if PROVING else [])], indirect=True)
def test_the_others_go_on_when_one_dies_whose_turn_it_is(site: Site) -> None:
    lake = site.open()
    for name in ("hot", "victim", *(f"own{number}" for number in range(WRITERS))):
        lake.create_table(name, numbers(0))
    acknowledged: set[int] = set()
    kills = POINTS if not PROVING else [POINTS[number % len(POINTS)] for number in range(KILLS)]
    with ExitStack() as stack:
        others = [stack.enter_context(writer(site.uri, site.arguments, f"own{number}", (number + 1) * SPAN)) for number in range(WRITERS)]
        for number, point in enumerate(kills):
            with writer(site.uri, site.arguments, "victim", (WRITERS + 1 + number) * SPAN, point) as victim:
                acknowledged |= _rest(victim)
                assert victim.wait(60) == -signal.SIGKILL, point
            for other in others:
                acknowledged |= _told(other, 2)
        for other in others:
            assert other.stdin is not None
            other.stdin.close()
            acknowledged |= _rest(other)
            assert other.wait(60) == 0
    _check(site.open(), acknowledged)


def _check(lake: Lake, acknowledged: set[int]) -> None:
    hot = [number for number in ids(lake.table("hot")) if number]
    assert len(hot) == len(set(hot)), "a transaction was committed twice"
    assert acknowledged <= set(hot)
    own = [number for name in lake.tables() if name != "hot" for number in ids(lake.table(name)) if number]
    assert sorted(own) == hot, "a transaction is in one of its tables only"
    assert not lake.check().problems
    with lake.transaction() as tx:
        tx.table("hot").append(numbers(1))
