"""The benchmark of large tables runs on tiny ones, does the same on both sides, and leaves its tables as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cliff_cases import Case, cases
from bench.cliffs import Tables, figures_of, measure, report
from bench.verbs import SIDES, Figure, Pair

SCALE = 0.0005


@pytest.mark.parametrize("case", cases(SCALE), ids=lambda case: case.name)
def test_both_sides_do_the_same_and_the_table_is_put_back(tmp_path: Path, case: Case) -> None:
    tables = Tables(tmp_path)
    found = {side: measure(case, side, tables.fresh(case)) for side in SIDES}
    assert found["ours"].outcome == found["pylance"].outcome
    assert measure(case, "ours", tables.fresh(case)).outcome == found["ours"].outcome
    assert found["ours"].wall > 0


def test_a_table_goes_after_the_last_case_that_needs_it(tmp_path: Path) -> None:
    chosen = [case for case in cases(SCALE) if case.name in ("delete-half", "feed-inserts")]
    names = []
    for figure in figures_of(tmp_path, chosen, SCALE, rounds=1):
        names.append(figure.name)
        assert figure.wall.aim == figure.memory.aim == 1.2
    assert names == [case.label for case in chosen]
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_figures() -> None:
    arguments = ["--scale", str(SCALE), "--rounds", "1", "--case", "check", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.cliffs", *arguments], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    [figure] = json.loads(done.stdout)
    assert figure["name"].startswith("check")
    assert figure["wall"]["met"] is None, "pylance's validation looks at less"


def test_the_report_says_what_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("a case", Pair(13.0, 10.0, 1.2), Pair(1.0, 2.0), Pair(11.0, 10.0, 1.2))]
    assert list(report(figures)) == figures
    wall, _, memory = capsys.readouterr().out.splitlines()[1:]
    assert wall.endswith("  MISSED")
    assert memory.endswith("  met")
