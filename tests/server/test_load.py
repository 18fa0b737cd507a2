"""Many clients at once, with the server stopped in the middle: nothing that was acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from pathlib import Path

from bench.served_load import run_load
from tests.support.proving import PROVING, pick


def test_clients_of_a_server_that_is_stopped_in_the_middle(tmp_path: Path) -> None:
    report = run_load(tmp_path / "lake", pick(8, 200), pick(2, 20), pick(3.0, 120.0), stop=True)
    print(report)
    assert (report.lost, report.doubled, report.sound) == (0, 0, True)
    assert report.commits > 0
    if PROVING:
        assert report.growth < 1.25, "the server's memory grows"
