"""Write, audit, publish: a run on a branch reaches the target only if all expectations hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tiltyard as ty
from tests.support.lakes import numbers
from tests.support.pipelines import READINGS, SCHEMA, TOTALS, Bench, ids_of
from tiltyard.pipeline import Event, Expectation, ExpectationFailed, FileSource, Output, Pipeline, PipelineSpec, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def strict(bench: Bench) -> Pipeline:
    """Rows that are not plausible fail the run."""
    plausible = Expectation("plausible", "value < 1000", "fail")
    return Pipeline(
        PipelineSpec(
            "ingest",
            directory=bench.directory,
            sources=(FileSource("downlinks", ("landing/*.json",), "json", schema=SCHEMA),),
            steps=(
                Step("readings", "SELECT id, satellite, value FROM downlinks", expect=(plausible,)),
                Step("totals", "SELECT id DIV 100 AS hundred, count(*) AS readings FROM readings GROUP BY 1"),
            ),
            outputs=(Output(READINGS, "readings"), Output(TOTALS, "totals", "merge", on=("hundred",))),
        )
    )


def test_bad_rows_never_reach_main_and_good_ones_do(bench: Bench, spark: SparkSession) -> None:
    pipeline = strict(bench)
    bench.downlink("good", range(1, 5))
    with bench.lake("ada") as lake:
        lake.branches.protect("main", writers=["ada"], checks=["pipeline.ingest"])
        with pytest.raises(ty.ProtectedBranch):
            pipeline.run(spark, lake=lake)
        done = pipeline.run(spark, lake=lake, on_branch="night")
        assert (done.status, done.branch, done.published, ids_of(lake)) == ("committed", "night", lake.snapshot().id, [1, 2, 3, 4])
        assert "night" not in lake.branches, "it was made for the run"
        step = lake.history()[0]
        assert (step.properties["merged-from"].split("@")[0], READINGS in step.tables, TOTALS in step.tables) == ("night", True, True)
        again = pipeline.run(spark, lake=lake, on_branch="night")
        assert (again.status, again.published, "night" in lake.branches) == ("nothing to do", None, False)

        before = lake.snapshot().id
        bad = bench.downlink("bad", range(8, 12))
        with pytest.raises(ExpectationFailed, match="1 row broke 'plausible'") as caught:
            pipeline.run(spark, lake=lake, on_branch="night")
        assert (caught.value.branch, caught.value.rows, caught.value.step) == ("night", 1, "readings")
        assert (lake.snapshot().id, ids_of(lake)) == (before, [1, 2, 3, 4])
        night = lake.on_branch("night")
        assert ids_of(night) == [1, 2, 3, 4, 8, 9, 10, 11], "it stays for a look"
        assert [(check.name, check.passed) for check in lake.branches.checks("night")] == [("pipeline.ingest", False)]
        for _ in range(2):  # whoever tries again, by the pipeline or past it, is refused as long as the rows are there
            with pytest.raises(ExpectationFailed):
                pipeline.run(spark, lake=lake, on_branch="night")
            with pytest.raises(ty.ProtectedBranch):
                lake.branches.merge("night")
        bad.unlink()
        bench.downlink("corrected", [8, 9, 11])
        lake.branches.delete("night")
        pipeline.run(spark, lake=lake, on_branch="night")
        assert ids_of(lake) == [1, 2, 3, 4, 8, 9, 11]
        totals = {row["hundred"]: row["readings"] for row in lake.table(TOTALS).to_arrow().to_pylist()}
        assert totals == {0: 3}, "by run, as the pipeline says"
        assert lake.check().problems == ()


def test_a_branch_that_is_there_and_a_run_that_died_before_the_merge(bench: Bench, spark: SparkSession) -> None:
    pipeline = strict(bench)
    bench.downlink("one", range(1, 4))
    with bench.lake() as lake:
        lake.create_table("other", numbers(1))
        lake.branches.create("work")
        lake.on_branch("work").table("other").append(numbers(2))
        lake.table("other").append(numbers(3))

        def dies(event: Event) -> None:
            if event.point == "ended":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.run(spark, lake=lake, on_branch="work", observer=dies)
        assert (ids_of(lake), ids_of(lake.on_branch("work"))) == ([], [1, 2, 3])
        done = pipeline.run(spark, lake=lake, on_branch="work")
        assert (done.status, done.published) == ("nothing to do", lake.snapshot().id)
        assert (ids_of(lake), ids_of(lake, "other"), "work" in lake.branches) == ([1, 2, 3], [1, 2, 3], True)
        bench.downlink("ten", [10])

        def also_dies(event: Event) -> None:
            if event.point == "committed":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.run(spark, lake=lake, on_branch="work", observer=also_dies)
        with pytest.raises(ExpectationFailed):  # though this run has nothing to do
            pipeline.run(spark, lake=lake, on_branch="work")
        assert ids_of(lake) == [1, 2, 3]
        with pytest.raises(ty.InvalidInput):
            pipeline.run(spark, lake=lake, on_branch="main")


def test_another_commit_to_the_branch_between_audit_and_merge_is_audited_too(bench: Bench, spark: SparkSession) -> None:
    pipeline = strict(bench)
    bench.downlink("one", range(1, 4))
    with bench.lake() as lake, bench.lake("other") as other:
        lake.create_table("other", numbers(1))
        lake.branches.create("work")
        real = lake.branches.report_check
        calls: list[object] = []

        def reported(*args: object, **more: object) -> object:
            found = real(*args, **more)  # type: ignore[arg-type]
            if not calls:
                calls.append(other.on_branch("work").table("other").append(numbers(9)))
            return found

        runner = pipeline.branch_runner(lake, "work", spark)
        runner.lake = _Watched(lake, reported)  # type: ignore[assignment]
        runner.run()
        assert (ids_of(lake), ids_of(lake, "other"), len(calls)) == ([1, 2, 3], [1, 9], 1)
        with pytest.raises(ty.ExpectedVersionMismatch):
            lake.branches.merge("work", options=ty.merges.MergeOptions(source_at=1))
        with pytest.raises(ty.ExpectedVersionMismatch):
            lake.branches.delete("work", at=1)


class _Watched:
    """A lake whose results of checks are watched."""

    def __init__(self, lake: ty.Lake, reported: object) -> None:
        self._lake, self._reported = lake, reported

    @property
    def branches(self) -> object:
        found = self._lake.branches
        found.report_check = self._reported  # type: ignore[method-assign,assignment]
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._lake, name)
