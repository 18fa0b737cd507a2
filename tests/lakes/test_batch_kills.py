"""Writers that are committed together, of which one dies as leader or as member: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import pytest

from tests.lakes.batch_killed import POINTS, work
from tests.lakes.hot_killed import committed, kill_one_after_another
from tests.support.lakes import Site
from tests.support.proving import PROVING, pick
from tiltyard.verbs.outcome import Committed

KILLS = pick(len(POINTS), 110)


@pytest.mark.parametrize("site", ["sqlite", *(["manifest"] if PROVING else [])], indirect=True)
def test_the_others_go_on_when_one_dies_who_leads_or_is_led(site: Site) -> None:
    lake = kill_one_after_another(site, POINTS, KILLS, writers=3, work=work)
    history, numbers = list(lake.catalog.history()), committed(lake)
    assert any(snapshot.members for snapshot in history), "nobody was committed with others"
    made = {snapshot.message: snapshot.transaction for snapshot in history}
    made |= {member.message: member.transaction for snapshot in history for member in snapshot.members}
    assert {str(number) for number in numbers} <= set(made)
    assert all(isinstance(lake.outcome(made[str(number)]), Committed) for number in numbers)
    assert all((lake.catalog.with_key(str(number)) or {}).get("transaction") == made[str(number)] for number in numbers)
