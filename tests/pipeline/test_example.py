"""The telemetry example: its pipelines do what its page says. The demo, which needs several Sparks, runs when there is time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import tiltyard as ty
from tests.support.proving import PROVING
from tiltyard.cli.app import app
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


def test_a_run_of_it_with_bad_rows_never_reaches_main(example: Path, spark: SparkSession) -> None:
    """As the command line does it: written to a branch, audited, and published only if all is well."""
    made: Any = import_module("downlinks")
    good, bad = made.passes(2, READINGS, SEED)

    def run() -> Any:
        return CliRunner().invoke(app, ["run", str(example / "ingest.toml"), "--on-branch", "audit", "--json"], env={"COLUMNS": "120"})

    made.put(example / "landing" / good.name, good.rows)
    first = run()
    assert (first.exit_code, json.loads(first.stdout)["published"] is not None) == (0, True), first.stdout
    with ty.Lake.open(example / "lake") as lake:
        before, rows = lake.snapshot().id, lake.table("telemetry.readings").count_rows()
        assert (0 < rows <= READINGS, "audit" in lake.branches) == (True, False)
        made.put(example / "landing" / bad.name, [*bad.rows, {**bad.rows[0], "reading": 1_000_000, "satellite": "not ours"}])
        second = run()
        assert (second.exit_code, json.loads(second.stdout)["kind"]) == (1, "expectation-failed"), second.stdout
        assert (lake.snapshot().id, lake.table("telemetry.readings").count_rows()) == (before, rows)
        assert lake.on_branch("audit").table("telemetry.readings").count_rows(filter="satellite = 'not ours'") == 1
        made.put(example / "landing" / bad.name, bad.rows)
        lake.branches.delete("audit")
        assert run().exit_code == 0
        assert lake.table("telemetry.readings").count_rows() > rows
        assert lake.table("telemetry.readings").count_rows(filter="satellite = 'not ours'") == 0


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
