"""The command behind ``make prove``."""

from typing import Any

import pytest

from tiltyard.transaction import rebaser
from tiltyard.transaction.resolve import Compatible
from tiltyard_proofs.simulator import run_seed
from tools import prove


def test_a_run_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove.main(["--replay", "1"]) == 0
    assert "all promises hold" in capsys.readouterr().out


def test_a_run_that_fails_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def careless(*_arguments: Any, **_options: Any) -> Compatible:
        return Compatible("whatever it is")

    monkeypatch.setattr(rebaser, "resolve", careless)
    seed = next(seed for seed in range(400) if run_seed(seed).violation is not None)
    assert prove.main(["--replay", str(seed)]) == 1
    shown = capsys.readouterr().out
    assert "BROKEN" in shown
    assert f"--replay {seed}" in shown
    assert prove.prove_chunk(seed, 3) == (1, seed)


def test_a_few_runs_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove.main(["--first-seed", "1", "--count", "6", "--workers", "1"]) == 0
    assert "6 runs from seed 1: all promises hold" in capsys.readouterr().out


def test_a_share_of_the_pairs() -> None:
    scenarios, runs, stand_for, failure = prove.prove_pairs(0, 200)
    assert failure is None
    assert scenarios < runs < stand_for
