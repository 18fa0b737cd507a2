"""Writers of one hot table of which one dies while it is its turn: nothing acknowledged is lost or doubled, and the others go on."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from itertools import cycle, islice

import pytest

from tests.lakes.hot_killed import POINTS, writer
from tests.support.lakes import Site, ids, numbers
from tests.support.proving import PROVING, pick
from tiltyard.lake import Lake

WRITERS = 2
SPAN = 1_000_000
"""Numbers of one writer."""
KILLS = pick(len(POINTS), 100)


@pytest.mark.parametrize("site", ["sqlite", "postgres", *(["manifest"] if PROVING else [])], indirect=True)
def test_the_others_go_on_when_one_dies_whose_turn_it_is(site: Site) -> None:
    lake = site.open()
    for name in ("hot", "victim", *(f"own{number}" for number in range(WRITERS))):
        lake.create_table(name, numbers(0))
    acknowledged: set[int] = set()
    with ExitStack() as stack:
        others = [stack.enter_context(writer(site.uri, site.arguments, f"own{number}", (number + 1) * SPAN)) for number in range(WRITERS)]
        for number, point in enumerate(islice(cycle(POINTS), KILLS)):
            with writer(site.uri, site.arguments, "victim", (WRITERS + 1 + number) * SPAN, point) as victim:
                acknowledged |= victim.rest()
                victim.process.join(60)
                assert victim.process.exitcode == -signal.SIGKILL, point
            acknowledged |= {other.next() for other in others}
        for other in others:
            other.over.close()
            acknowledged |= other.rest()
            other.process.join(60)
            assert other.process.exitcode == 0
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
