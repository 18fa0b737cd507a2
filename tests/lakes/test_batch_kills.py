"""Writers that are committed together, of which one dies as leader or as member: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from itertools import cycle, islice

import pytest

from tests.lakes.batch_killed import POINTS, work
from tests.lakes.hot_killed import writer
from tests.support.lakes import Site, ids, numbers
from tests.support.proving import PROVING, pick
from tiltyard.lake import Lake
from tiltyard.verbs.outcome import Committed

WRITERS = 3
SPAN = 1_000_000
"""Numbers of one writer."""
KILLS = pick(len(POINTS), 110)


@pytest.mark.parametrize("site", ["sqlite", *(["manifest"] if PROVING else [])], indirect=True)
def test_the_others_go_on_when_one_dies_who_leads_or_is_led(site: Site) -> None:
    lake = site.open()
    for name in ("hot", "victim", *(f"own{number}" for number in range(WRITERS))):
        lake.create_table(name, numbers(0))
    acknowledged: set[int] = set()
    with ExitStack() as stack:
        others = [
            stack.enter_context(writer(site.uri, site.arguments, f"own{number}", (number + 1) * SPAN, work=work))
            for number in range(WRITERS)
        ]
        for number, point in enumerate(islice(cycle(POINTS), KILLS)):
            with writer(site.uri, site.arguments, "victim", (WRITERS + 1 + number) * SPAN, point, work) as victim:
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
    history = list(lake.catalog.history())
    assert any(snapshot.members for snapshot in history), "nobody was committed with others"
    made = {snapshot.message: snapshot.transaction for snapshot in history}
    made |= {member.message: member.transaction for snapshot in history for member in snapshot.members}
    assert {str(number) for number in hot} <= set(made)
    assert all(isinstance(lake.outcome(made[str(number)]), Committed) for number in hot)
    assert all((lake.catalog.with_key(str(number)) or {}).get("transaction") == made[str(number)] for number in hot)
    assert not lake.check().problems
    with lake.transaction() as tx:
        tx.table("hot").append(numbers(1))
