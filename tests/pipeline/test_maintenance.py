"""Upkeep beside a pipeline. None of it needs Spark."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.pipelines import Bench
from tiltyard.pipeline import Maintenance, Output, Pipeline, PipelineSpec, Step, TableSource
from tiltyard.pipeline.consumed import ensure_tables, record
from tiltyard.pipeline.plan import make_plan, select
from tiltyard.pipeline.portions import TablePortion


def upkeep(bench: Bench, *work: Maintenance) -> Pipeline:
    return Pipeline(PipelineSpec("upkeep", directory=bench.directory, maintenance=work))


def filled(lake: ty.Lake, versions: int = 4) -> None:
    lake.create_table("t", pa.table({"a": [0]}), stable_row_ids=True)
    for number in range(1, versions):
        lake.table("t").append(pa.table({"a": [number]}))


def test_compaction_waits_for_enough_fragments(bench: Bench) -> None:
    pipeline = upkeep(bench, Maintenance("small", "compact", ("t", "later"), min_fragments=4))
    with bench.lake() as lake:
        filled(lake, 3)
        assert pipeline.run(lake=lake).upkeep[0].did == "t has 3 fragments, fewer than min_fragments; later does not exist yet"
        lake.table("t").append(pa.table({"a": [3]}))
        report = pipeline.run(lake=lake)
        assert report.upkeep[0].did == "t: 4 fragments became 1; later does not exist yet"
        assert (report.status, report.transaction, report.to_dict()["committed"]) == ("upkeep", None, False)
        assert sorted(lake.table("t").to_arrow()["a"].to_pylist()) == [0, 1, 2, 3]


def test_an_index_is_made_and_followed_up(bench: Bench) -> None:
    pipeline = upkeep(bench, Maintenance("by_a", "index", ("t",), column="a"))
    with bench.lake() as lake:
        filled(lake)
        assert pipeline.run(lake=lake).upkeep[0].did == "t: an index on a"
        assert pipeline.run(lake=lake).upkeep[0].did == "t: a_idx is up to date"
        lake.table("t").append(pa.table({"a": [9]}))
        assert pipeline.run(lake=lake).upkeep[0].did == "t: a_idx brought up to date"
        (index,) = lake.table("t").indices.list()
        assert (index.type.upper(), index.missing) == ("BTREE", ())


def test_runners_share_one_clock(bench: Bench) -> None:
    pipeline = upkeep(bench, Maintenance("small", "compact", ("t",), every=timedelta(hours=1)))
    with bench.lake() as lake, bench.lake() as other:
        filled(lake)
        assert "became" in pipeline.run(lake=lake).upkeep[0].did
        lake.table("t").append(pa.table({"a": [9]}))
        assert pipeline.run(lake=other).upkeep[0].did == "not due yet"
        soon = upkeep(bench, Maintenance("small", "compact", ("t",), every=timedelta(0)))
        assert "became" in soon.run(lake=other).upkeep[0].did


def test_cleanup_leaves_what_a_pipeline_has_still_to_read(bench: Bench) -> None:
    source = TableSource("seen", "t", max_versions=2)
    reader = PipelineSpec("reader", directory=bench.directory, sources=(source,), outputs=(Output("copy", "seen"),))
    cleaner = upkeep(bench, Maintenance("old", "cleanup", keep_snapshots=1))

    def consume(lake: ty.Lake) -> int:
        ensure_tables(lake)
        sight = lake.snapshot()
        (portion,) = make_plan(reader, sight, select(reader), "me").portions
        with lake.transaction() as tx:
            record(tx, "reader", portion.marks(), "run", lake.history()[0].at)
        assert isinstance(portion, TablePortion)
        return len(sight.table("t").changes(portion.first, portion.last).read_all())

    with bench.lake() as lake:
        filled(lake, 2)
        assert consume(lake) == 2
        for number in range(5):
            lake.table("t").append(pa.table({"a": [number]}))
        assert "removed" in cleaner.run(lake=lake).upkeep[0].did
        assert consume(lake) == 2, "two versions of those five"
        assert "removed" in cleaner.run(lake=lake).upkeep[0].did
        assert [consume(lake), consume(lake)] == [2, 1]
        before = len(lake.history())
        cleaner.run(lake=lake)
        assert len(lake.history()) < before, "what was read may go"
        assert lake.check().ok


def test_others_in_the_way_put_it_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = upkeep(bench, Maintenance("small", "compact", ("t",)))

    def beaten(*_: object, **__: object) -> None:
        raise ty.ContentionError("others were faster")

    with bench.lake() as lake:
        filled(lake)
        monkeypatch.setattr(ty.LakeTable, "compact", beaten)
        assert pipeline.run(lake=lake).upkeep[0].did == "postponed after a conflict (contention)"


def test_what_fails_for_good_is_told(bench: Bench) -> None:
    with bench.lake() as lake:
        filled(lake)
        with pytest.raises(ty.InvalidInput, match="nowhere"):
            upkeep(bench, Maintenance("by_b", "index", ("t",), column="nowhere")).run(lake=lake)


def test_upkeep_runs_beside_steps_that_have_nothing_to_do(bench: Bench) -> None:
    spec = bench.pipeline().spec
    both = Pipeline(
        PipelineSpec(
            "both",
            directory=bench.directory,
            sources=spec.sources,
            steps=(Step("s", "SELECT * FROM downlinks"),),
            outputs=(Output("o", "s"),),
            maintenance=(Maintenance("small", "compact", ("t",)),),
        )
    )
    with bench.lake() as lake:
        filled(lake)
        report = both.run(lake=lake)
        assert report.status == "nothing to do"
        assert report.upkeep[0].did == "t: 4 fragments became 1"
        assert both.run(lake=lake, select=["s"]).upkeep == ()
