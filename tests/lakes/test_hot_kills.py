"""Writers of one hot table of which one dies while it is its turn: nothing acknowledged is lost or doubled, and the others go on."""

from __future__ import annotations

import pytest

from tests.lakes.hot_killed import POINTS, kill_one_after_another
from tests.support.lakes import Site
from tests.support.proving import PROVING, pick

KILLS = pick(len(POINTS), 100)


@pytest.mark.parametrize("site", ["sqlite", "postgres", *(["manifest"] if PROVING else [])], indirect=True)
def test_the_others_go_on_when_one_dies_whose_turn_it_is(site: Site) -> None:
    kill_one_after_another(site, POINTS, KILLS, writers=2)
