"""``tiltyard run``: what it says, to people and to programs, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.support.pipelines import READINGS, Bench, ids_of
from tiltyard.cli.app import app
from tiltyard.cli.command_session import CONFLICT, FAILED, PROBLEMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = """
name = "ingest"

[sources.downlinks]
files = "landing/*.json"
schema = "id BIGINT, satellite STRING, value DOUBLE"

[[steps]]
name = "readings"
sql = "SELECT * FROM downlinks"

[[steps.expect]]
name = "plausible"
check = "value < 1000"
otherwise = "drop"
quarantine = "telemetry.quarantine"

[[outputs]]
table = "telemetry.readings"
from = "readings"
"""
UPKEEP = """
name = "upkeep"

[[maintenance]]
name = "small_files"
kind = "compact"
tables = "t"
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.fixture
def file(bench: Bench) -> Path:
    path = bench.directory / "p.toml"
    path.write_text(TEXT)
    return path


def test_a_dry_run_changes_nothing(bench: Bench, file: Path) -> None:
    bench.downlink("one", [1, 2])
    said = run(file, "--dry-run")
    assert said.exit_code == 0
    assert said.stdout.splitlines() == [
        "dry run  ingest has something to do",
        "  source  downlinks: 1 new file",
        "  step    readings, 1 expectation",
        "  output  telemetry.readings (to be made): append from readings",
        "Nothing was changed.",
    ]
    document = json.loads(run(file, "--dry-run", "--json").stdout)
    assert (document["dry_run"], document["nothing_to_do"], document["outputs"][0]["version"]) == (True, False, None)
    assert sorted(path.name for path in bench.directory.iterdir()) == ["landing", "p.toml"]


def test_runs_tell_people_and_programs(bench: Bench, file: Path, spark: SparkSession) -> None:
    bench.downlink("one", [1, 2, 10])
    said = run(file, "--author", "ada")
    assert said.exit_code == 0, said.output
    first, *facts = said.stdout.splitlines()
    assert first.startswith("committed  snapshot 2 by ingest: 3 rows in, 2 out, 1 in quarantine")
    assert facts[0].strip().startswith("source      downlinks: 3 rows (1 new file)")
    assert "1 broke 'plausible' (drop)" in said.stdout
    assert "telemetry.readings version 2: 2 inserted (append, made by this run)" in said.stdout
    assert run(file).stdout == "nothing to do  for ingest\n"
    bench.downlink("two", [3])
    document = json.loads(run(file, "--json", "--once").stdout)
    assert (document["status"], document["rows_in"], document["rows_out"], document["attempts"]) == ("committed", 1, 1, 1)
    assert document["outputs"][0]["version"] == 3
    assert {"conflicts", "seconds", "snapshot", "transaction", "steps", "upkeep"} <= document.keys()
    elsewhere = run(file, "--lake", bench.directory / "elsewhere", "--select", "readings")
    assert "4 rows in" in elsewhere.stdout
    assert spark.range(1).count() == 1, "a session that was there before goes on"
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 3]
        assert [one.author for one in lake.history()][-2:] == ["ada", "ada"]


def test_how_it_ends(bench: Bench, file: Path, spark: SparkSession) -> None:
    bench.downlink("one", [10])
    file.write_text(TEXT.replace('otherwise = "drop"\nquarantine = "telemetry.quarantine"', 'otherwise = "fail"'))
    broken = run(file)
    assert broken.exit_code == PROBLEMS
    assert "1 row broke 'plausible' (value < 1000)" in broken.stderr
    document = json.loads(run(file, "--json").stdout)
    assert (document["kind"], document["expectation"], document["rows"]) == ("expectation-failed", "plausible", 1)
    file.write_text(TEXT.replace("SELECT * FROM", "SELECT nobody FROM"))
    wrong = run(file)
    assert wrong.exit_code == FAILED
    assert "steps.readings: [UNRESOLVED_COLUMN" in wrong.stderr
    assert not any(READINGS in lake.tables() for lake in [bench.lake()])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.toml"], "There is no pipeline at nowhere.toml"),
        (["p.toml", "--once", "--every", "30s"], "exclude each other"),
        (["p.toml", "--every", "often"], "'often' is not a span of time"),
        (["p.toml", "--select", "nobody"], "There is no step 'nobody'; there are readings"),
    ],
)
def test_mistakes(bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(bench.directory)
    result = run(*arguments)
    assert (result.exit_code, said in result.stderr) == (FAILED, True), result.output
    assert said in json.loads(run(*arguments, "--json").stdout)["message"]


def test_conflicts_have_a_code_of_their_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiltyard as ty
    from tiltyard.pipeline.runner import Runner

    def beaten(*_: object) -> None:
        raise ty.RetryableConflict("others were faster")

    (bench.directory / "up.toml").write_text(UPKEEP)
    monkeypatch.setattr(Runner, "run", beaten)
    assert run(bench.directory / "up.toml").exit_code == CONFLICT


def test_without_pyspark(bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert run(file).stdout == "nothing to do  for ingest\n", "what has nothing to do does not need it"
    bench.downlink("one", [1])
    said = run(file)
    assert said.exit_code == FAILED
    assert "needs PySpark, which is not installed. pip install 'tiltyard[spark]'" in " ".join(said.stderr.split())


def test_pyspark_is_loaded_by_nobody_who_does_not_need_it() -> None:
    code = "import sys, tiltyard.cli.app, tiltyard.pipeline; raise SystemExit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_again_and_again_until_it_is_stopped(bench: Bench) -> None:
    (bench.directory / "up.toml").write_text(UPKEEP)
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}))
    command = [sys.executable, "-m", "tiltyard.cli", "run", str(bench.directory / "up.toml"), "--every", "1s", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["upkeep"][0]["did"] == "t has 1 fragment, fewer than min_fragments"
        with bench.lake() as lake:
            lake.table("t").append(pa.table({"a": [2]}))
        second = json.loads(process.stdout.readline())
        assert second["upkeep"][0]["did"] == "t: 2 fragments became 1"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 0
