"""The benchmark of the verbs runs on tables of a few rows, does the same on both sides, and tells what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.verb_cases import Case, cases
from bench.verbs import SIDES, Bench, Figure, Pair, as_json, figure_of, outcome, read_rows, report

ROWS = 1000


@pytest.mark.parametrize("case", cases(ROWS), ids=lambda case: case.name.replace(" ", "-"))
def test_both_sides_do_the_same(tmp_path: Path, case: Case) -> None:
    bench = Bench(tmp_path, ROWS)
    source = read_rows(bench.source(case))
    seen = bench.in_turn(case, 2, lambda case, side, uri: outcome(case, side, uri, source))
    assert list(seen) == [*SIDES]
    assert seen["ours"] == seen["pylance"]
    assert seen["ours"][0] == seen["ours"][1], "a copy is as the table was"
    assert not list(tmp_path.glob("copy *"))


def test_a_figure_has_all_measures(tmp_path: Path) -> None:
    chosen = next(one for one in cases(ROWS) if one.aimed)
    figure = figure_of(Bench(tmp_path, ROWS), chosen, rounds=1, children=1)
    for pair in (figure.wall, figure.cpu, figure.memory):
        assert pair.ours > 0
        assert pair.pylance > 0
    assert (figure.wall.aim, figure.cpu.aim, figure.memory.aim) == (1.15, None, 1.2)


def test_the_command_prints_figures() -> None:
    arguments = ["--rows", str(ROWS), "--rounds", "1", "--children", "1", "--only", "range", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.verbs", *arguments], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    [figure] = json.loads(done.stdout)
    assert "range" in figure["name"]
    for measure in ("wall", "cpu", "memory"):
        assert figure[measure].keys() == {"ours", "pylance", "aim", "ratio", "met"}
    assert figure["wall"]["met"] in (True, False)
    assert figure["cpu"]["met"] is None


def test_the_report_says_what_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("one", Pair(11.0, 10.0, 1.15), Pair(1.0, 2.0), Pair(13.0, 10.0, 1.2))]
    assert list(report(figures)) == figures
    wall, cpu, memory = capsys.readouterr().out.splitlines()[1:]
    assert "1.10" in wall
    assert wall.endswith("  met")
    assert "0.50" in cpu
    assert memory.endswith("  MISSED")
    assert json.loads(as_json(figures))[0]["memory"]["met"] is False
