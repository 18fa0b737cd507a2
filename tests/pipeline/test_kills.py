"""A runner is killed at every named point of a run, and at those of the commit inside it; then somebody runs the pipeline again."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from tests.pipeline.pipeline_killed import gateway_of, killed
from tests.support.pipelines import QUARANTINE, READINGS, TOTALS, Bench, ids_of
from tests.support.proving import PROVING, pick
from tiltyard.pipeline import POINTS, RUNS, STATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import tiltyard as ty

OF_THE_RUN = [(point, 1) for point in POINTS] + [("step done", 2), ("output written", 2)]
OF_THE_COMMIT = ["publish: before", "publish: decided, not stored", "publish: after", "mark final: before"]
SELDOM = {("begun", 1), ("spark is there", 1), ("planned", 1), ("step done", 1), ("output written", 1), ("state written", 1), ("ended", 1)}
SELDOM_IN_THE_COMMIT = {"publish: before", "mark final: before"}
"""Points right beside others, for when there is time."""
BEFORE_THE_COMMIT = {*POINTS[: POINTS.index("committed")], *OF_THE_COMMIT[:2]}


def check_all_or_nothing(lake: ty.Lake, done: set[int], new: set[int]) -> bool:
    """One snapshot shows all of the killed run, in every table, or nothing of it; which of the two."""
    rows = set(ids_of(lake)) | set(ids_of(lake, QUARANTINE))
    files = {row["item"] for row in lake.table(STATE).to_arrow().to_pylist()} if STATE in lake.tables() else set()
    landed = bool(rows & new)
    assert rows == done | (new if landed else set())
    assert len(files) == len(rows) // len(new)
    runs = [row for row in lake.table(RUNS).to_arrow().to_pylist() if row["status"] == "committed"] if RUNS in lake.tables() else []
    assert len(runs) == len(files)
    return landed


def test_a_runner_that_is_killed_anywhere(bench: Bench, spark: SparkSession) -> None:
    gateway = gateway_of(spark)
    deaths = [(point, number, "") for point, number in OF_THE_RUN if PROVING or (point, number) not in SELDOM]
    deaths += [("", 0, step) for step in OF_THE_COMMIT if PROVING or step not in SELDOM_IN_THE_COMMIT]
    assert len(deaths) >= pick(8, 16)
    expected: set[int] = set()
    for number, (point, nth, step) in enumerate(deaths):
        new = set(range(number * 100 + 8, number * 100 + 12))
        bench.downlink(f"{number:02}", sorted(new))
        assert killed(str(bench.directory), gateway, point, nth, step) == -signal.SIGKILL, (point, nth, step)
        with bench.lake("the one who goes on") as lake:
            landed = check_all_or_nothing(lake, expected, new)
            assert landed == ((point or step) not in BEFORE_THE_COMMIT), (point, step)
            report = bench.pipeline().run(spark, lake=lake)
            assert report.status == ("nothing to do" if landed else "committed"), (point, step)
            expected |= new
            assert check_all_or_nothing(lake, expected - new, new)
    with bench.lake() as lake:
        good, caught = ids_of(lake), ids_of(lake, QUARANTINE)
        assert good == sorted(one for one in expected if one % 10)
        assert caught == sorted(one for one in expected if not one % 10)
        totals = {row["hundred"]: row["readings"] for row in lake.table(TOTALS).to_arrow().to_pylist()}
        assert totals == dict.fromkeys(range(len(deaths)), 3)
        stored = lake.table(RUNS).to_arrow().to_pylist()
        assert len({row["run"] for row in stored}) == len(stored) == len(deaths)
        assert all(json.loads(row["report"])["rows_in"] == 4 for row in stored)
        assert lake.table(READINGS).count_rows() == 3 * len(deaths)
        assert lake.check().ok
