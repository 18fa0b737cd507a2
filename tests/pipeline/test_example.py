"""The telemetry example: its pipelines do what its page says. The demo, which needs several Sparks, runs when there is time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tiltyard as ty
from tests.support.proving import PROVING
from tiltyard.pipeline import ExpectationFailed, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "telemetry"
PASSES, READINGS, SEED = 5, 60, 1


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (*EXAMPLE.glob("*.toml"), EXAMPLE / "calibration.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return tmp_path


def test_every_pipeline_of_it_is_understood(example: Path) -> None:
    known = {Pipeline.load(file).spec.name for file in example.glob("*.toml")}
    assert known == {"ingest", "correct", "rollup", "upkeep"}


def test_readings_corrections_and_hours(example: Path, spark: SparkSession) -> None:
    made: Any = import_module("downlinks")
    proof: Any = import_module("proof")
    expected = proof.Expected.from_seed(PASSES, READINGS, SEED)
    assert expected.quarantine, "the seed garbles something"
    with ty.Lake.open(example / "lake") as lake:
        ingest, correct, rollup, upkeep = (
            Pipeline.load(example / f"{name}.toml").runner(lake, spark) for name in ("ingest", "correct", "rollup", "upkeep")
        )
        first, second = (list(made.passes(PASSES, READINGS, SEED))[part] for part in (slice(3), slice(3, None)))
        for one in first:
            made.put(example / "landing" / one.name, one.rows)
        assert ingest.run().rows_in == 3 * READINGS
        assert rollup.run().status == "committed"
        for name, rows in made.corrections(PASSES, READINGS, seed=SEED):
            made.put(example / "corrections" / name, rows)
        with pytest.raises(ExpectationFailed, match="the reading is there"):
            correct.run()  # one of them is of a pass that is still to come
        for one in second:
            made.put(example / "landing" / one.name, one.rows)
        assert ingest.run().rows_in == 2 * READINGS
        assert correct.run().outputs[0].rows == {"updated": 40}
        assert upkeep.run().status == "upkeep"
        changed = rollup.run()
        assert changed.outputs[0].rows
        assert rollup.run().status == "nothing to do"
        fine, told = proof.compared(lake.table("telemetry.readings").to_arrow(["reading", "temperature", "quality"]), expected)
        assert fine, told
        hours = lake.table("telemetry.hours").to_arrow().to_pylist()
        assert sum(row["readings"] for row in hours) == len(expected.readings)
        assert sum(row["corrected"] for row in hours) == 40
        assert lake.table("telemetry.quarantine").count_rows() == len(expected.quarantine)


@pytest.mark.skipif(not PROVING, reason="starts five processes, four of them with Spark")
def test_the_demo() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE / "demo.py")], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ingest-1 was killed (SIGKILL)" in done.stdout
    assert "Nothing lost, nothing doubled" in done.stdout
