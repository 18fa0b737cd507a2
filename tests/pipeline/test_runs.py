"""Runs with a real Spark: what goes in comes out once, all of it or nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltyard as ty
from tests.support.pipelines import QUARANTINE, READINGS, TOTALS, Bench, ids_of
from tiltyard.pipeline import (
    RUNS,
    STATE,
    Event,
    Expectation,
    ExpectationFailed,
    FileSource,
    Output,
    Pipeline,
    PipelineSpec,
    Step,
    StepContext,
    TableSource,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_new_files_go_through_once(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", range(1, 12))
    pipeline = bench.pipeline()
    first = pipeline.run(spark)
    assert (first.status, first.rows_in, first.rows_out, first.quarantined, first.attempts) == ("committed", 11, 10 + 1, 1, 1)
    bench.downlink("two", range(101, 104))
    second = pipeline.run(spark)
    assert (second.rows_in, {one.table: one.rows for one in second.outputs}) == (3, {READINGS: {"inserted": 3}, TOTALS: {"inserted": 1}})
    third = pipeline.run(spark)
    assert (third.status, third.attempts, third.transaction) == ("nothing to do", 0, None)
    with bench.lake() as lake:
        assert ids_of(lake) == [*range(1, 10), 11, *range(101, 104)]
        assert ids_of(lake, QUARANTINE) == [10]
        caught = lake.table(QUARANTINE).to_arrow().to_pylist()[0]
        assert (caught["broken"], caught["step"], caught["run"]) == ("plausible", "readings", first.run)
        totals = {row["hundred"]: row["readings"] for row in lake.table(TOTALS).to_arrow().to_pylist()}
        assert totals == {0: 10, 1: 3}
        newest = lake.history()[0 if lake.history()[0].message else 1]
        assert set(newest.tables) == {READINGS, TOTALS, STATE, RUNS}, "all of a run is one snapshot"
        stored = ty.pipeline.runs(lake)
        assert [row["run"] for row in stored] == [second.run, first.run]
        assert stored[1]["report"] == json.loads(json.dumps(first.to_dict()))
        assert stored[0]["snapshot"] == second.snapshot == newest.id
        assert lake.check().ok


class Broke(Exception):
    pass


def test_a_failing_step_leaves_nothing(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", range(1, 5))
    spec = bench.pipeline().spec
    late = Step("late", "SELECT raise_error('no ' || count(*)) AS x FROM readings")
    broken = Pipeline(
        PipelineSpec(
            "ingest",
            directory=bench.directory,
            sources=spec.sources,
            steps=(*spec.steps, late),
            outputs=(*spec.outputs, Output("late", "late")),
        )
    )
    written: list[str] = []
    with pytest.raises(ty.InvalidInput, match=r"outputs.late: .*no 4") as caught:
        broken.run(spark, observer=lambda event: written.append(event.what) if event.point == "output written" else None)
    assert len(str(caught.value)) < 300
    assert written == [READINGS, TOTALS], "it failed when two tables were written already"
    with bench.lake() as lake:
        assert set(lake.tables()) == {STATE, RUNS}
        (report,) = ty.pipeline.runs(lake)
        assert (report["status"], report["snapshot"]) == ("failed", None)
        assert "no 4" in report["error"]
    assert bench.pipeline().run(spark).rows_in == 4
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 3, 4]
        assert lake.check().ok


def test_whatever_fails_leaves_a_report_with_the_plan(bench: Bench, spark: SparkSession) -> None:
    """An error of a user's own function, too: whoever looks in the morning finds out which step it was."""
    bench.downlink("one", [1])

    def breaks(context: StepContext) -> DataFrame:
        raise Broke("the sensor table has no row for satellite 7, token=sk-12345678")

    spec = bench.pipeline().spec
    steps = (*spec.steps, Step("own", function=breaks, inputs=("readings",)))
    broken = Pipeline(replace(spec, steps=steps, outputs=(*spec.outputs, Output("own", "own"))))
    with pytest.raises(Broke):
        broken.run(spark)
    with bench.lake() as lake:
        (report,) = ty.pipeline.runs(lake)
        assert (report["status"], report["report"]["failed_at"]) == ("failed", "steps.own")
        assert "Broke: the sensor table has no row for satellite 7" in report["error"]
        plan = {(part["kind"], part["name"]): part["inputs"] for part in report["report"]["plan"]}
        assert plan["step", "own"] == ["readings"]
        assert plan["output", "own"] == ["own"]
        assert plan["quarantine", QUARANTINE] == ["readings"]
        assert set(lake.tables()) == {STATE, RUNS}
    bench.pipeline().run(spark)
    with bench.lake() as lake:
        assert [row["status"] for row in ty.pipeline.runs(lake)] == ["committed", "failed"]


def test_an_observer_that_raises_ends_the_run(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1])

    def stop(event: Event) -> None:
        if event.point == "publishing":
            raise Broke

    with pytest.raises(Broke):
        bench.pipeline().run(spark, observer=stop)
    with bench.lake() as lake:
        assert set(lake.tables()) == {STATE, RUNS}
        assert lake.table(STATE).count_rows() == 0


def test_expectations(bench: Bench, spark: SparkSession) -> None:
    bench.lines(
        "landing/one.json", [{"id": number, "satellite": None if number == 3 else "a", "value": number * 1.0} for number in range(6)]
    )
    strict = (
        Expectation("small", "value < 4", "warn"),
        Expectation("positive", "value > 0", "drop", QUARANTINE),
        Expectation("known", "satellite = 'a'", "drop"),
    )
    steps = (Step("readings", "SELECT * FROM downlinks", expect=strict),)
    outputs = (Output(READINGS, "readings"),)
    report = bench.pipeline(steps=steps, outputs=outputs).run(spark)
    (step,) = report.steps
    assert {one.name: one.rows for one in step.broken} == {"small": 2, "positive": 1, "known": 1}
    assert (step.rows, step.dropped, report.quarantine) == (4, 2, {QUARANTINE: 1})
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 4, 5], "null counts as broken; what has no quarantine is only dropped"
        assert ids_of(lake, QUARANTINE) == [0]
    bench.downlink("two", [7, 8])
    deadly = (Step("readings", "SELECT * FROM downlinks", expect=(Expectation("big", "value > 3", "fail"),)),)
    with pytest.raises(ExpectationFailed, match=r"2 rows broke 'big' \(value > 3\)") as caught:
        bench.pipeline(steps=deadly, outputs=outputs).run(spark)
    assert (caught.value.kind, caught.value.rows, caught.value.step) == ("expectation-failed", 2, "readings")
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 4, 5]


def named(context: ty.pipeline.StepContext) -> DataFrame:
    return context["people"].withColumnRenamed("born", "year")


def test_files_of_all_kinds_and_functions(bench: Bench, spark: SparkSession) -> None:
    people = pa.table({"name": ["ada", "bob"], "born": pa.array([1815, 1900], pa.int32())})
    pq.write_table(people, bench.directory / "people.parquet")
    (bench.directory / "more.csv").write_text("name;born\ncyd;2000\n")
    spec = PipelineSpec(
        "kinds",
        directory=bench.directory,
        sources=(
            FileSource("people", ("*.parquet",), "parquet", file_column="file"),
            FileSource("more", ("*.csv",), "csv", "name STRING, born INT", {"sep": ";"}),
        ),
        steps=(
            Step("named", function=named),
            Step("all_of_them", "SELECT name, year, file FROM named UNION ALL SELECT *, 'csv' FROM more"),
        ),
        outputs=(Output("people", "all_of_them"),),
    )
    Pipeline(spec).run(spark)
    (bench.directory / "again.csv").write_text("name;born\ndan;1999\n")
    assert Pipeline(spec).run(spark).rows_in == 1, "the source without new files is empty, with the columns it had"
    with bench.lake() as lake:
        rows = sorted(tuple(row.values()) for row in lake.table("people").to_arrow().to_pylist())
    assert rows == [
        ("ada", 1815, "people.parquet"), ("bob", 1900, "people.parquet"), ("cyd", 2000, "csv"), ("dan", 1999, "csv"),
    ]  # fmt: skip
    (bench.directory / "bad.csv").write_text("name;born\neve;never\n")
    with pytest.raises(ty.InvalidInput, match=r"sources.more"):
        Pipeline(spec).run(spark)


def test_functions_are_found_beside_the_pipeline(bench: Bench, spark: SparkSession) -> None:
    (bench.directory / "beside_the_pipeline.py").write_text(
        "def twice(context):\n    return context['downlinks'].union(context['downlinks'])\n"
    )
    bench.downlink("one", [1])
    text = """
        name = "p"
        [sources.downlinks]
        files = "landing/*.json"
        [[steps]]
        name = "twice"
        python = "beside_the_pipeline:twice"
        [[outputs]]
        table = "t"
        from = "twice"
    """
    (bench.directory / "p.toml").write_text(text)
    assert Pipeline.load(bench.directory / "p.toml").run(spark).rows_out == 2
    bench.downlink("two", [2])
    for wrong, said in (("beside_the_pipeline:thrice", "is not found"), ("beside_the_pipeline:__name__", "is not a function")):
        (bench.directory / "p.toml").write_text(text.replace("beside_the_pipeline:twice", wrong))
        with pytest.raises(ty.InvalidInput, match=said):
            Pipeline.load(bench.directory / "p.toml").run(spark)


def test_ways_to_write(bench: Bench, spark: SparkSession) -> None:
    columns = ("SELECT id, satellite, value FROM downlinks",)
    steps = (Step("rows", *columns),)
    outputs = (
        Output("merged", "rows", "merge", on=("id",), update=("value",)),
        Output("latest", "rows", "overwrite"),
        Output("parts", "rows", "overwrite where", where="satellite = 'a'"),
    )
    bench.downlink("one", [1, 2], value=1.0)
    pipeline = bench.pipeline(steps=steps, outputs=outputs)
    pipeline.run(spark)
    with bench.lake() as lake:
        lake.table("parts").append(pa.table({"id": [9], "satellite": ["b"], "value": [9.0]}))
    bench.downlink("two", [2, 3], value=5.0)
    report = pipeline.run(spark)
    assert {one.table: dict(one.rows) for one in report.outputs} == {
        "merged": {"inserted": 1, "updated": 1}, "latest": {"deleted": 2, "inserted": 2}, "parts": {"deleted": 2, "inserted": 2},
    }  # fmt: skip
    with bench.lake() as lake:
        assert lake.table("merged").primary_key == ("id",)
        values = {
            name: {row["id"]: row["value"] for row in lake.table(name).to_arrow().to_pylist()} for name in ("merged", "latest", "parts")
        }
    assert values == {"merged": {1: 1.0, 2: 5.0, 3: 5.0}, "latest": {2: 5.0, 3: 5.0}, "parts": {2: 5.0, 3: 5.0, 9: 9.0}}
    bench.downlink("three", [4], satellite="b")
    with pytest.raises(ty.InvalidInput, match=r"1 new rows are not among those that \"satellite = 'a'\" overwrites"):
        pipeline.run(spark)


def test_a_key_that_comes_twice_is_not_tried_again(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1, 1])
    outputs = (Output(READINGS, "downlinks", primary_key=("id",)),)
    tries: list[str] = []
    with pytest.raises(ty.InvalidInput, match="id 1"):
        bench.pipeline(steps=(), outputs=outputs).run(spark, observer=lambda event: tries.append(event.point))
    assert tries.count("planned") == 1


@pytest.mark.parametrize("by", ["driver", "executors"])
def test_a_table_that_is_followed(bench: Bench, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "executors":
        monkeypatch.setattr("tiltyard.pipeline.sources.DRIVER_ROWS", 0)
    """The usual incremental table: which groups changed, by the change feed; what they are now, by a snapshot."""
    spec = PipelineSpec(
        "totals",
        directory=bench.directory,
        sources=(TableSource("changed", "t"), TableSource("all_rows", "t", "snapshot")),
        steps=(Step("sums", "SELECT k, sum(n) AS n FROM all_rows WHERE k IN (SELECT k FROM changed) GROUP BY k"),),
        outputs=(Output("sums", "sums", "merge", on=("k",)), Output("log", "changed")),
    )
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"id": [1, 2, 3], "k": ["a", "a", "b"], "n": [1, 2, 3]}), stable_row_ids=True)
        runner = Pipeline(spec).runner(lake, spark)
        assert runner.run().rows_in == 3 + 3
        lake.table("t").update({"n": "n + 10"}, where="id = 1")
        lake.table("t").compact()
        report = runner.run()
        assert [one.rows for one in report.sources] == [1, 3]
        assert dict(report.outputs[0].rows) == {"updated": 1}
        assert {row["k"]: row["n"] for row in lake.table("sums").to_arrow().to_pylist()} == {"a": 13, "b": 3}
        log = [(row["_change"], row["id"], row["_version"]) for row in lake.table("log").to_arrow().to_pylist()]
        assert sorted(log) == [("insert", 1, 1), ("insert", 2, 1), ("insert", 3, 1), ("update", 1, 2)]
        lake.table("t").compact()
        assert runner.run().status == "nothing to do"
        for number in (4, 5):
            lake.table("t").append(pa.table({"id": [number], "k": ["c"], "n": [1]}))
        lake.cleanup(keep_snapshots=1, grace=timedelta(0))
        with pytest.raises(ty.HistoryUnavailable, match=r"sources.changed had not read these versions. Give the source another name"):
            runner.run()


def test_a_directory_that_is_read_while_files_change(bench: Bench, spark: SparkSession) -> None:
    path = bench.downlink("one", [1, 2])
    spoiled: list[Path] = []

    def spoil(event: Event) -> None:
        if event.point == "state written" and not spoiled:
            spoiled.append(bench.downlink("one", [1, 2, 3]))

    report = bench.pipeline().run(spark, observer=spoil)
    assert (report.attempts, report.rows_in) == (2, 3)
    assert path.name in report.conflicts[0]
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 3]


def test_many_rows_are_written_and_read_by_executors(bench: Bench, spark: SparkSession) -> None:
    """More than the driver takes upon itself: fragments are written by workers, and committed with everything else of the run."""
    bench.downlink("one", [1])
    many = Step("many", "SELECT explode(sequence(1, 120000)) AS n FROM downlinks")
    Pipeline(
        PipelineSpec(
            "many", directory=bench.directory, sources=bench.pipeline().spec.sources, steps=(many,), outputs=(Output("many", "many"),)
        )
    ).run(spark)
    summed = PipelineSpec(
        "summed",
        directory=bench.directory,
        sources=(TableSource("many", "many"),),
        steps=(Step("s", "SELECT sum(n) AS s, count(*) AS n, any_value(_change) AS change FROM many"),),
        outputs=(Output("summed", "s"),),
    )
    assert Pipeline(summed).run(spark).rows_in == 120_000
    with bench.lake() as lake:
        assert lake.table("summed").to_arrow().to_pylist() == [{"s": 120_000 * 120_001 // 2, "n": 120_000, "change": "insert"}]
        assert lake.table("many").count_rows() == 120_000
        assert lake.check().ok
