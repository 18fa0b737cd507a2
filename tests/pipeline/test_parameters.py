"""Parameters of a pipeline, and its tests on sample rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import tiltyard as ty
from tests.support.pipelines import Bench
from tiltyard.cli.app import app
from tiltyard.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
name = "daily"

[parameters]
day = "2026-11-01"
least = 10
strict = true

[sources.files]
files = "landing/${day}/*.json"
schema = "id BIGINT, value BIGINT"

[[steps]]
name = "enough"
sql = "SELECT id, value, :day AS day FROM files WHERE value >= :least"

[[outputs]]
table = "t"
from = "enough"
mode = "merge"
on = "id"

[[tests]]
name = "small values are left out"
given.files = [{ id = 1, value = 9 }, { id = 2, value = 11 }]
before.t = [{ id = 2, value = 0, day = "before" }, { id = 3, value = 5, day = "before" }]
expect.t = [{ id = 2, value = 11 }, { id = 3, value = 5 }]

[[tests]]
name = "wrong on purpose"
given.files = [{ id = 1, value = 12 }]
expect.t = [{ id = 1, value = 13 }]
"""


def written(bench: Bench, text: str = PIPELINE) -> Path:
    path = bench.directory / "daily.toml"
    path.write_text(text)
    return path


def test_parameters_are_bound_in_queries_and_put_into_other_texts(bench: Bench, spark: SparkSession) -> None:
    for day in ("2026-11-01", "it's"):
        bench.lines(f"landing/{day}/a.json", [{"id": 1, "value": 9}, {"id": 2, "value": 11}])
    path = written(bench)
    assert Pipeline.load(path).run(spark).rows_out == 1
    report = Pipeline.load(path, {"day": "it's", "least": "9"}).run(spark)
    assert report.rows_out == 2
    with bench.lake() as lake:
        assert sorted(tuple(row.values()) for row in lake.table("t").to_arrow().to_pylist()) == [(1, 9, "it's"), (2, 11, "it's")]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"least": "many"}, "parameters.least is 'many', and must be a whole number"),
        ({"strict": "yes"}, "parameters.strict is 'yes', and must be true or false"),
        ({"most": "1"}, "parameters.most is not declared; there are day, least, strict"),
    ],
)
def test_wrong_values_are_refused(bench: Bench, given: dict[str, str], what: str) -> None:
    with pytest.raises(ty.InvalidInput, match=what):
        Pipeline.load(written(bench), given)


def test_a_place_for_an_unknown_parameter_is_refused(bench: Bench) -> None:
    with pytest.raises(ty.InvalidInput, match=r"outputs.table names the parameter 'region'|names the parameter 'region'"):
        Pipeline.load(written(bench, PIPELINE.replace('table = "t"', 'table = "t_${region}"')))
    values = Pipeline.load(written(bench), {"least": 3, "strict": "false"}).spec
    assert dict(values.parameters) == {"day": "2026-11-01", "least": 3, "strict": False}
    assert ":least" in str(values.steps[0].sql), "a query is left as it is"


def test_tests_on_sample_rows(bench: Bench, spark: SparkSession) -> None:
    good, wrong = Pipeline.load(written(bench)).test(spark)
    assert good.ok, good.problems
    assert wrong.problems == ("t: no row id=1, value=13", "t: unexpected row id=1, value=12")
    assert not (bench.directory / "lake").exists(), "nothing but what the test made was touched"
    fails = PIPELINE.replace("expect.t = [{ id = 1, value = 13 }]", 'fails = "FIELD_NOT_FOUND"').replace(":least", "nowhere")
    results = Pipeline.load(written(bench, fails)).test(spark)
    assert [result.ok for result in results] == [False, False]
    assert "it failed: steps.enough" in results[0].problems[0]
    assert "not with 'FIELD_NOT_FOUND'" in results[1].problems[0]


def test_the_command_says_which_test_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    from tiltyard.pipeline.spark_session import Spark

    monkeypatch.setattr(Spark, "session", lambda _: spark)
    monkeypatch.setattr(Spark, "stop", lambda _: None)
    done = CliRunner().invoke(app, ["test", str(written(bench)), "--json"])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert [(test["name"], test["ok"]) for test in found["tests"]] == [("small values are left out", True), ("wrong on purpose", False)]
    good = PIPELINE.replace("value = 13", "value = 12")
    done = CliRunner().invoke(app, ["test", str(written(bench, good))])
    assert done.exit_code == 0, done.output
    assert "2 tests, 0 failed" in done.output
    done = CliRunner().invoke(app, ["run", str(written(bench)), "--dry-run", "--param", "least"])
    assert done.exit_code == 2
    done = CliRunner().invoke(app, ["run", str(written(bench)), "--every", "1s", "--refresh", "t"])
    assert "for one run" in done.output
    done = CliRunner().invoke(app, ["run", str(written(bench)), "--dry-run", "--since", "yesterday"])
    assert "must be a time such as" in done.output
