"""What was consumed is known for each consumer: outputs that come later get all, outputs that are refreshed get it again, none twice."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.pipelines import QUARANTINE, READINGS, TOTALS, Bench, ids_of
from tiltyard.pipeline import Again, Event, Output, Pipeline, PipelineSpec, Step, TableSource
from tiltyard.pipeline.consumed import Mark
from tiltyard.pipeline.consumers import BY, known_to, merged_mark, passes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE = "telemetry.late"


def with_late(bench: Bench, **more: Any) -> Pipeline:
    """The pipeline with one more output of a step that is there already."""
    spec = bench.pipeline(**more).spec
    return Pipeline(replace(spec, outputs=(*spec.outputs, Output(LATE, "readings"))))


def test_an_output_that_is_added_later_gets_all(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", range(1, 12))
    bench.pipeline().run(spark)
    bench.downlink("two", range(21, 24))
    report = with_late(bench).run(spark)
    assert {one.table: one.rows for one in report.outputs} == {READINGS: {"inserted": 3}, TOTALS: {"updated": 1}, LATE: {"inserted": 13}}
    with bench.lake() as lake:
        assert ids_of(lake) == ids_of(lake, LATE) == [*range(1, 10), 11, 21, 22, 23]
        assert ids_of(lake, QUARANTINE) == [10], "what a step caught before is not caught once more"
        assert lake.check().ok
    assert "for telemetry.late" in " ".join(source.taken for source in report.sources)
    assert with_late(bench).run(spark).status == "nothing to do"
    bench.downlink("three", [31])
    bench.pipeline().run(spark)
    again = with_late(bench).run(spark)
    assert [one.table for one in again.outputs] == [LATE], "what it missed while it was no part of the pipeline comes, and nothing else"
    with bench.lake() as lake:
        assert ids_of(lake) == ids_of(lake, LATE)


def test_a_refresh_replaces_one_output(bench: Bench, spark: SparkSession) -> None:
    first = bench.downlink("one", range(1, 5))
    pipeline = with_late(bench)
    pipeline.run(spark)
    with bench.lake() as lake:
        lake.table(LATE).delete("id = 2")
        lake.table(LATE).append(pa.table({"id": [99], "satellite": ["x"], "value": [0.0]}))
    bench.downlink("two", [5])
    report = pipeline.run(spark, select=Again(refresh=(LATE,)))
    with bench.lake() as lake:
        assert ids_of(lake) == ids_of(lake, LATE) == [1, 2, 3, 4, 5]
        rows = {one.table: one.rows for one in report.outputs}
        assert rows[LATE] == {"deleted": 4, "inserted": 5}
        assert rows[READINGS] == {"inserted": 1}, "the others get what is new, in the same transaction"
        before = lake.table(LATE).version
    first.unlink()
    with pytest.raises(ty.InvalidInput, match=r"landing/one.json was consumed and is gone"):
        pipeline.run(spark, select=Again(refresh=(LATE,)))
    with bench.lake() as lake:
        assert lake.table(LATE).version == before
    assert pipeline.run(spark).status == "nothing to do"


def test_a_backfill_takes_files_again_that_changed_since(bench: Bench, spark: SparkSession) -> None:
    for day, name in ((1, "a"), (15, "b")):
        path = bench.downlink(name, [day, day + 1], value=float(day))
        when = datetime(2026, 11, day, tzinfo=UTC).timestamp()
        os.utime(path, (when, when))
    spec = bench.pipeline().spec
    keyed = Pipeline(replace(spec, outputs=(Output(READINGS, "readings", "merge", on=("id",)), Output(LATE, "readings"))))
    keyed.run(spark)
    with bench.lake() as lake:
        lake.table(READINGS).update({"value": "0"})
    since = Again(since=datetime(2026, 11, 10, tzinfo=UTC), backfill=(READINGS,))
    report = keyed.run(spark, select=since)
    assert (report.rows_in, [one.table for one in report.outputs]) == (2, [READINGS])
    with bench.lake() as lake:
        assert {row["id"]: row["value"] for row in lake.table(READINGS).to_arrow().to_pylist()} == {1: 0, 2: 0, 15: 15, 16: 15}
        assert ids_of(lake, LATE) == [1, 2, 15, 16]
    with pytest.raises(ty.InvalidInput, match=r"outputs.telemetry.late: mode 'append' would store the rows twice"):
        keyed.run(spark, select=Again(since=since.since))
    for wrong, what in (
        (Again(refresh=("nowhere",)), "'nowhere' is not an output"),
        (Again(backfill=(READINGS,)), "backfill needs since"),
        (Again(since=datetime(2026, 1, 1)), "since needs a time zone"),
    ):
        with pytest.raises(ty.InvalidInput, match=what):
            keyed.run(spark, select=wrong)


def test_a_source_may_be_a_table_that_the_pipeline_makes(bench: Bench, spark: SparkSession) -> None:
    spec = bench.pipeline().spec
    own = TableSource("own", READINGS)
    steps = (*spec.steps, Step("per_satellite", "SELECT satellite, id FROM own"))
    chained = Pipeline(replace(spec, sources=(*spec.sources, own), steps=steps, outputs=(*spec.outputs, Output(LATE, "per_satellite"))))
    bench.downlink("one", [1, 2])
    first = chained.run(spark)
    assert [one.table for one in first.outputs] == [READINGS, TOTALS]
    assert first.notes == (f"{LATE} waits for a table that this pipeline makes; the next run has it",)
    assert chained.run(spark).rows_out == 2
    bench.downlink("two", [3])
    chained.run(spark)
    chained.run(spark)
    with bench.lake() as lake:
        assert ids_of(lake, LATE) == ids_of(lake) == [1, 2, 3]
    assert chained.run(spark).status == "nothing to do"


def test_an_output_without_a_reason_to_run_of_its_own_takes_part_in_runs_of_others(bench: Bench, spark: SparkSession) -> None:
    spec = bench.pipeline().spec
    rates = TableSource("rates", "rates", "snapshot")
    outputs = (Output("plain", "downlinks"), Output("copy", "rates", "overwrite"), Output("fixed", "constant", "overwrite"))
    steps = (Step("constant", "SELECT 7 AS seven"),)
    pipeline = Pipeline(replace(spec, sources=(*spec.sources, rates), steps=steps, outputs=outputs))
    with bench.lake() as lake:
        lake.create_table("rates", pa.table({"rate": [2]}))
    assert pipeline.run(spark).status == "nothing to do", "neither of them is a reason"
    bench.downlink("one", [1])
    assert [one.table for one in pipeline.run(spark).outputs] == ["plain", "copy", "fixed"]
    bench.downlink("two", [2])
    assert [one.table for one in pipeline.run(spark).outputs] == ["plain", "fixed"], "the rates are as before"
    with bench.lake() as lake:
        lake.table("rates").update({"rate": "3"})
    assert pipeline.run(spark).status == "nothing to do"
    bench.downlink("three", [3])
    assert [one.table for one in pipeline.run(spark).outputs] == ["plain", "copy", "fixed"]
    assert [one.table for one in pipeline.run(spark, select=Again(refresh=("copy",))).outputs if one.table != "fixed"] == ["copy"]
    with bench.lake() as lake:
        assert lake.table("copy").to_arrow()["rate"].to_pylist() == [3]
        assert lake.check().ok


def test_a_serializable_run_rests_on_what_it_found_unchanged(bench: Bench, spark: SparkSession) -> None:
    """An output is left as it is because its table has nothing new; if that table changes meanwhile, the run begins again."""
    spec = bench.pipeline().spec
    rates = TableSource("rates", "rates", "snapshot")
    outputs = (Output("plain", "downlinks"), Output("copy", "rates", "overwrite"))
    pipeline = Pipeline(replace(spec, sources=(*spec.sources, rates), steps=(), outputs=outputs, isolation="serializable"))
    with bench.lake() as lake:
        lake.create_table("rates", pa.table({"rate": [2]}))
        bench.downlink("one", [1])
        pipeline.run(spark, lake=lake)
        bench.downlink("two", [2])
        left = [lambda: lake.table("rates").update({"rate": "3"})]

        def disturb(event: Event) -> None:
            if event.point == "publishing" and left:
                left.pop()()

        report = pipeline.run(spark, lake=lake, observer=disturb)
        assert (report.attempts, [one.table for one in report.outputs]) == (2, ["plain", "copy"])
        assert lake.table("copy").to_arrow()["rate"].to_pylist() == [3]


def test_marks_of_earlier_releases_are_about_all() -> None:
    spec = _spec()
    marks = {"files": {"a": {"size": 1, "mtime_ns": 1}}}
    (only,) = passes_of(spec, {"t": {"files"}, "u": {"files"}}, marks)
    assert only.consumers == {"t", "u"}
    assert set(only.known["files"]) == {"a"}


def _spec() -> PipelineSpec:
    from tiltyard.pipeline import FileSource

    return PipelineSpec("p", sources=(FileSource("files", ("*.json",), "json"),), outputs=(Output("t", "files"), Output("u", "files")))


def test_marks_of_earlier_releases_survive_a_refresh_of_one() -> None:
    """The others have consumed what they had, also if only one of them takes part in a run."""
    old = {"version": 5, "read": "changes", "table": "id", "since": 3}
    done = merged_mark(Mark("s", "", {**old, "version": 7, "since": 9}), ["t"], old, readers=["t", "u"]).value
    assert (done["version"], done["since"], done[BY]) == (7, 3, {"t": [7, 9], "u": [5, 3]})
    gone = merged_mark(Mark("s", "", {**old, "version": 8, "since": 11}), ["t"], done, readers=["t"]).value
    assert gone["since"] == 11, "what is no part of the pipeline holds no history"
    assert gone[BY]["u"] == [5, 3], "but what it had is known if it comes back"
    other = merged_mark(Mark("s", "", {**old, "table": "another"}), ["t"], done, readers=["t", "u"]).value
    assert set(other[BY]) == {"t"}, "a table of the same name is another table"
    file = {"size": 1, "mtime_ns": 1, BY: ["t", "u"]}
    changed = Mark("s", "a", {"size": 2, "mtime_ns": 2})
    assert merged_mark(changed, ["v"], file).value[BY] == ["v"]
    assert merged_mark(changed, ["v"], file, ignored=True).value[BY] == ["t", "u", "v"], "a change that is ignored is new to nobody"


@pytest.mark.parametrize("seed", range(40))
def test_each_consumer_gets_each_item_once(seed: int) -> None:
    """Consumers come and go, files come and change, in any order: who took part in a run has then consumed all that was there."""
    random_of = random.Random(seed)
    spec, everybody = _spec(), ["t", "u", "v", "step s"]
    source = spec.sources[0]
    marks: dict[str, dict[str, Any]] = {}
    files: dict[str, dict[str, Any]] = {}
    had: dict[str, set[tuple[str, int]]] = {name: set() for name in everybody}
    for turn in range(12):
        for name in random_of.sample("abcdef", 2):
            files[name] = {"size": 1, "mtime_ns": turn}
        present = random_of.sample(everybody, random_of.randint(1, 4))
        passes = passes_of(spec, {name: {"files"} for name in present}, {"files": marks})
        assert sorted(name for each in passes for name in each.consumers) == sorted(present)
        written = dict(marks)
        for each in passes:
            new = [item for item, value in files.items() if each.known["files"].get(item, {}).get("mtime_ns") != value["mtime_ns"]]
            for item in new:
                for consumer in each.consumers:
                    assert (item, files[item]["mtime_ns"]) not in had[consumer], (seed, turn, consumer, item)
                    had[consumer].add((item, files[item]["mtime_ns"]))
                written[item] = dict(merged_mark(Mark("files", item, files[item]), each.consumers, written.get(item)).value)
        marks = written
        for consumer in present:
            assert {(item, value["mtime_ns"]) for item, value in files.items()} <= had[consumer]
            assert set(known_to(source, marks, consumer)) == set(files)
    assert all(BY in value for value in marks.values())
