"""What a run would do, and that finding out changes nothing. None of it needs Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.pipelines import Bench, ingest
from tiltyard.pipeline import FileSource, Maintenance, Output, Pipeline, PipelineSpec, Step, TableSource
from tiltyard.pipeline.consumed import ensure_tables, marks_of, record
from tiltyard.pipeline.plan import Plan, make_plan, select
from tiltyard.pipeline.portions import TablePortion


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_plan_changes_nothing(bench: Bench) -> None:
    bench.downlink("one", range(3))
    before = everything(bench.directory)
    plan = bench.pipeline().plan()
    assert not plan.nothing
    assert everything(bench.directory) == before, "not even the lake is made"
    with bench.lake() as lake:
        lake.create_table("other", pa.table({"a": [1]}))
        snapshot = lake.snapshot()
    assert bench.pipeline().plan().snapshot == snapshot.id
    with bench.lake() as lake:
        assert (lake.snapshot().id, lake.tables()) == (snapshot.id, ["other"])


def test_what_a_plan_says(bench: Bench) -> None:
    bench.downlink("one", range(3))
    plan = bench.pipeline().plan()
    assert list(plan.lines()) == [
        ("source", "downlinks: 1 new file"),
        ("step", "readings, 1 expectation"),
        ("step", "totals"),
        ("output", "telemetry.readings (to be made): append from readings"),
        ("output", "telemetry.totals (to be made): merge from totals"),
    ]
    document = plan.to_dict()
    assert document["sources"] == [
        {"name": "downlinks", "kind": "files", "new": True, "files": ["landing/one.json"], "waiting": 0, "partial": []}
    ]
    assert (document["dry_run"], document["nothing_to_do"]) == (True, False)


def test_nothing_is_new(bench: Bench) -> None:
    assert bench.pipeline().plan().nothing


# ---- selection -------------------------------------------------------------------------------------------------------------------


def flows(directory: Path) -> PipelineSpec:
    """Two flows that share a table they only look things up in."""
    return PipelineSpec(
        "flows",
        directory=directory,
        sources=(
            FileSource("a", ("a/*.json",), "json"),
            FileSource("b", ("b/*.json",), "json"),
            TableSource("names", "names", "snapshot"),
        ),
        steps=(
            Step("a1", "SELECT * FROM a JOIN names"),
            Step("a2", "SELECT * FROM a1"),
            Step("b1", "SELECT * FROM b JOIN names"),
            Step("a3", "SELECT * FROM a"),
        ),
        outputs=(Output("a2", "a2"), Output("b1", "b1"), Output("a3", "a3"), Output("raw_b", "b")),
        maintenance=(Maintenance("compaction", "compact", ("a2",)),),
    )


def names(plan: Plan) -> tuple[list[str], list[str], list[str], list[str]]:
    chosen = plan.selection
    return (
        list(chosen.sources),
        [one.name for one in chosen.steps],
        [one.table for one in chosen.outputs],
        [one.name for one in chosen.maintenance],
    )


@pytest.mark.parametrize(
    ("wanted", "sources", "steps", "outputs", "upkeep"),
    [
        (["a2"], ["a", "names"], ["a1", "a2", "a3"], ["a2", "a3"], []),
        (["a3"], ["a", "names"], ["a1", "a2", "a3"], ["a2", "a3"], []),
        (["b1"], ["b", "names"], ["b1"], ["b1", "raw_b"], []),
        (["compaction"], [], [], [], ["compaction"]),
        (None, ["a", "b", "names"], ["a1", "a2", "b1", "a3"], ["a2", "b1", "a3", "raw_b"], ["compaction"]),
    ],
)
def test_what_one_source_feeds_runs_together(
    bench: Bench, wanted: list[str] | None, sources: list[str], steps: list[str], outputs: list[str], upkeep: list[str]
) -> None:
    with bench.lake() as lake:
        lake.create_table("names", pa.table({"n": ["x"]}))
        spec = flows(bench.directory)
        plan = make_plan(spec, lake.snapshot(), select(spec, wanted), "me")
    assert names(plan) == (sources, steps, outputs, upkeep)


def test_a_step_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(ty.InvalidInput, match="no step 'nobody'; there are readings, totals"):
        select(ingest(bench.directory), ["nobody"])


# ---- tables as sources -----------------------------------------------------------------------------------------------------------


def follow(lake: ty.Lake, **more: object) -> TablePortion:
    source = TableSource("seen", "t", **more)  # type: ignore[arg-type]  # each test gives what it is about
    spec = PipelineSpec("follow", sources=(source,), outputs=(Output("copy", "seen"),))
    plan = make_plan(spec, lake.snapshot(), select(spec), "me")
    (portion,) = plan.portions
    assert isinstance(portion, TablePortion)
    assert plan.nothing != portion.has_new
    return portion


def consume(lake: ty.Lake, portion: TablePortion) -> None:
    ensure_tables(lake)
    with lake.transaction() as tx:
        record(tx, "follow", portion.marks(), "run", lake.history()[0].at)


def test_versions_of_a_table_are_taken_once(bench: Bench) -> None:
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}), stable_row_ids=True)
        lake.table("t").append(pa.table({"a": [2]}))
        first = follow(lake)
        assert (first.whole, first.last, first.has_new) == (True, 2, True)
        consume(lake, first)
        assert not follow(lake).has_new
        lake.table("t").append(pa.table({"a": [3]}))
        lake.table("t").append(pa.table({"a": [4]}))
        second = follow(lake)
        assert (second.whole, second.first, second.last, second.has_new) == (False, 2, 4, True)
        assert follow(lake, max_versions=1).last == 3


def test_compaction_is_no_reason_to_run(bench: Bench) -> None:
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}), stable_row_ids=True)
        lake.table("t").append(pa.table({"a": [2]}))
        consume(lake, follow(lake))
        before = lake.table("t").version
        lake.table("t").compact()
        assert lake.table("t").version > before
        assert not follow(lake).has_new
        assert not follow(lake, read="snapshot").has_new


def test_changes_may_begin_now(bench: Bench) -> None:
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}))
        portion = follow(lake, start="now")
        assert (portion.none, portion.whole, portion.last) == (True, False, 1)


def test_a_table_made_anew_begins_anew(bench: Bench) -> None:
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}))
        lake.table("t").append(pa.table({"a": [2]}))
        consume(lake, follow(lake))
        lake.drop_table("t")
        lake.create_table("t", pa.table({"a": [1]}))
        again = follow(lake)
        assert (again.whole, again.first, again.last) == (True, 0, 1)


def test_a_table_that_is_not_there(bench: Bench) -> None:
    with bench.lake() as lake, pytest.raises(ty.NotFound, match=r"sources.seen: there is no table 't'"):
        follow(lake)


def test_marks_of_one_pipeline_are_not_those_of_another(bench: Bench) -> None:
    with bench.lake() as lake:
        lake.create_table("t", pa.table({"a": [1]}))
        consume(lake, follow(lake))
        assert set(marks_of(lake.snapshot(), "follow")) == {"seen"}
        assert marks_of(lake.snapshot(), "it's another") == {}


def test_pipelines_are_planned_without_the_lake_being_open(bench: Bench) -> None:
    assert repr(Pipeline(ingest(bench.directory))) == "Pipeline('ingest')"
    assert bench.pipeline().plan(lake=str(bench.directory / "elsewhere")).nothing
    assert not (bench.directory / "elsewhere").exists()
