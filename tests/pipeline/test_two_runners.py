"""Several writers on one lake at once: each meeting is arranged, none is left to luck."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.pipelines import READINGS, Bench, ids_of
from tiltyard.lakes.refusals import refusals_of
from tiltyard.pipeline import Event, FileSource, Output, Pipeline, PipelineSpec, RunReport, TableSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def at(point: str, work: Callable[[], object]) -> Callable[[Event], None]:
    """An observer that does something the first time a run is at a point."""
    done: list[object] = []

    def observe(event: Event) -> None:
        if event.point == point and not done:
            done.append(None)
            done.append(work())

    return observe


def run(bench: Bench, spark: SparkSession, pipeline: Pipeline, author: str, **more: object) -> RunReport:
    with bench.lake(author) as lake:
        return pipeline.run(spark, lake=lake, **more)  # type: ignore[arg-type]  # observer


@pytest.mark.parametrize("point", ["planned", "publishing"])
def test_of_two_runners_one_wins_and_the_other_sees_that_nothing_is_left(bench: Bench, spark: SparkSession, point: str) -> None:
    bench.downlink("one", range(1, 4))
    pipeline = bench.pipeline()
    winners: list[RunReport] = []
    observer = at(point, lambda: winners.append(run(bench, spark, pipeline, "first")))
    second = run(bench, spark, pipeline, "second", observer=observer)
    assert winners[0].status == "committed"
    assert (second.status, second.transaction, second.attempts) == ("nothing to do", None, 2)
    assert second.notes == ("another run consumed the new data",)
    assert len(second.conflicts) == 1
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 3]
        assert lake.check().ok
        assert list(refusals_of(lake)) == [], "the run went on after it"


def test_the_other_goes_on_with_what_is_left(bench: Bench, spark: SparkSession) -> None:
    """The second sees a file that the first has not: of all it has worked out, that one file is what remains to be done."""
    bench.downlink("one", [1, 2])
    pipeline = bench.pipeline()

    def first() -> None:
        late = (bench.directory / "landing" / "two.json").rename(bench.directory / "two.json")
        run(bench, spark, pipeline, "first")
        late.rename(bench.directory / "landing" / "two.json")

    bench.downlink("two", [3])
    second = run(bench, spark, pipeline, "second", observer=at("publishing", first))
    assert (second.rows_in, second.attempts, len(second.conflicts)) == (1, 2, 1)
    with bench.lake() as lake:
        assert ids_of(lake) == [1, 2, 3]


def test_runners_that_take_different_files_do_not_meet(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1])
    bench.downlink("two", [2])
    facts = {"files": ("landing/*.json",), "format": "json", "schema": "id BIGINT, satellite STRING, value DOUBLE", "max_files": 1}
    pipeline = bench.pipeline(
        sources=(FileSource("downlinks", order="any", **facts),), steps=(), outputs=(Output(READINGS, "downlinks"),)  # type: ignore[arg-type]
    )  # fmt: skip
    with bench.lake() as lake:  # the table is there, so that neither makes it
        lake.create_table(READINGS, pa.schema({"id": pa.int64(), "satellite": pa.string(), "value": pa.float64()}))
    with bench.lake("first") as lake, bench.lake("second") as other:
        one, two = pipeline.runner(lake, spark), pipeline.runner(other, spark)
        one.identity, two.identity = "one", "three"
        assert one.plan().portions[0].marks() != two.plan().portions[0].marks()
        one.run()
        bench.downlink("three", [3])
        bench.downlink("four", [4])
        assert one.plan().portions[0].marks() != two.plan().portions[0].marks()
        two.observer = at("publishing", one.run)
        report = two.run()
        assert (report.attempts, report.publications, report.conflicts) == (1, 2, ())
        (output,) = report.outputs
        assert [(over["author"], over["operation"]) for over in output.over] == [("first", "Append")]
        assert "rebased over version" in "\n".join(text for _, text in report.lines())
        two.run()
        one.run()
        assert ids_of(lake) == [1, 2, 3, 4]


def test_appends_and_a_correction_on_one_table_both_land(bench: Bench, spark: SparkSession) -> None:
    """The ingest was worked out before the correction came, and is carried over it; neither is done twice."""
    bench.downlink("one", [1, 2])
    ingest = bench.pipeline()
    run(bench, spark, ingest, "ingest")
    bench.lines("fixes/one.json", [{"id": 1, "value": 7.5}])
    correct = Pipeline(
        PipelineSpec(
            "correct",
            directory=bench.directory,
            sources=(FileSource("fixes", ("fixes/*.json",), "json", "id BIGINT, value DOUBLE"),),
            outputs=(Output(READINGS, "fixes", "merge", on=("id",), not_matched="ignore"),),
        )
    )
    bench.downlink("two", [3])
    fixed: list[RunReport] = []
    report = run(bench, spark, ingest, "ingest", observer=at("publishing", lambda: fixed.append(run(bench, spark, correct, "corrector"))))
    assert (report.attempts, report.conflicts, report.publications) == (1, (), 2)
    assert [over["author"] for over in report.outputs[0].over] == ["corrector"]
    assert dict(fixed[0].outputs[0].rows) == {"updated": 1}
    # And the other way round: the correction is published after an append it did not see.
    bench.lines("fixes/two.json", [{"id": 2, "value": 8.5}])
    bench.downlink("three", [4])
    late = run(bench, spark, correct, "corrector", observer=at("publishing", lambda: run(bench, spark, ingest, "ingest")))
    assert late.attempts == 1
    assert [over["author"] for over in late.outputs[0].over] == ["ingest"]
    with bench.lake() as lake:
        values = {row["id"]: row["value"] for row in lake.table(READINGS).to_arrow().to_pylist()}
        assert values == {1: 7.5, 2: 8.5, 3: 1.0, 4: 1.0}
        assert lake.table(READINGS).count_rows() == 4
        assert lake.check().ok


def test_two_who_correct_the_same_row(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1])
    with bench.lake() as lake:
        bench.pipeline().run(spark, lake=lake)

        def fix(name: str) -> Pipeline:
            source = FileSource("fixes", (f"{name}/*.json",), "json", "id BIGINT, value DOUBLE")
            outputs = (Output(READINGS, "fixes", "merge", on=("id",), not_matched="ignore"),)
            return Pipeline(PipelineSpec(name, directory=bench.directory, sources=(source,), outputs=outputs))

        bench.lines("one/a.json", [{"id": 1, "value": 2.0}])
        bench.lines("other/a.json", [{"id": 1, "value": 3.0}])
        report = fix("one").run(spark, lake=lake, observer=at("publishing", lambda: fix("other").run(spark, lake=lake)))
        assert report.attempts == 2
        assert len(report.conflicts) == 1
        assert lake.table(READINGS).to_arrow()["value"].to_pylist() == [2.0], "the later one is the one that holds"


def test_a_serializable_run_rests_on_what_it_read(bench: Bench, spark: SparkSession) -> None:
    with bench.lake() as lake:
        lake.create_table("rates", pa.table({"rate": [2]}))
        bench.downlink("one", [1])
        spec = PipelineSpec(
            "rated",
            directory=bench.directory,
            sources=(*bench.pipeline().spec.sources, TableSource("rates", "rates", "snapshot")),
            steps=(ty.pipeline.Step("rated", "SELECT id, rate FROM downlinks, rates"),),
            outputs=(Output("rated", "rated"),),
            isolation="serializable",
        )
        observer = at("publishing", lambda: lake.table("rates").update({"rate": "3"}))
        report = Pipeline(spec).run(spark, lake=lake, observer=observer)
        assert report.attempts == 2
        assert lake.table("rated").to_arrow()["rate"].to_pylist() == [3]


def test_it_gives_up_in_the_end(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1])
    with bench.lake() as lake:
        lake.create_table("rates", pa.table({"rate": [2]}))
        spec = PipelineSpec(
            "rated",
            directory=bench.directory,
            sources=(*bench.pipeline().spec.sources, TableSource("rates", "rates", "snapshot")),
            outputs=(Output("rated", "downlinks"), Output("rates_again", "rates", "overwrite")),
            isolation="serializable",
            retries=1,
        )

        def disturb(event: Event) -> None:
            if event.point == "publishing":
                lake.table("rates").update({"rate": "rate + 1"})

        with pytest.raises(ty.ExpectedVersionMismatch, match="rates"):
            Pipeline(spec).run(spark, lake=lake, observer=disturb)
        (stored,) = ty.pipeline.runs(lake)
        assert (stored["status"], stored["attempts"]) == ("failed", 2)
        assert "rated" not in lake.tables()
        (refused,) = refusals_of(lake)  # the last of the two
        assert refused.contested is not None
        assert refused.contested.name == "rates"
