"""Declarative pipelines: sources, steps in Spark, outputs to lake tables, a run in one transaction.

``Pipeline.run`` makes a ``Runner``, which plans the run and executes it in ``Lake.run``: read portions, compute steps, judge expectations,
write outputs, and record what was consumed. All of it is committed together, so a run that is repeated does nothing twice.

What a pipeline is
    ``spec``             sources, steps, outputs and maintenance as values; ``toml_spec`` from a file
    ``parameters``       values that a run is given
    ``sample_tests``     a pipeline run on a few rows, and what has to come out
    ``reader_options``   options of Spark's file readers that are allowed
A run
    ``runner``           ``Runner``: one run; ``schedule`` many
    ``branch_runner``    ``BranchRunner``: a run on a branch, audited and then merged
    ``plan``             what a run would do; ``portions`` what it takes of each source
    ``source_files``     which files are new; ``consumed`` what was consumed before; ``consumers`` by whom, and what is done again
    ``run_steps``        the work inside the transaction
    ``sources``          a portion as a data frame; ``headers`` CSV columns by name; ``rescued`` what the schema has not
    ``bad_files``        files that cannot be read, set apart; ``remote_files`` those of object stores
    ``steps``            queries and functions; ``expectations`` what must hold for their rows
    ``outputs``          rows into tables; ``row_history`` every version of a row
    ``run_report``       ``RunReport``, events, earlier runs; ``lineage`` the same for servers of OpenLineage
    ``maintenance``      compaction, indices and cleanup beside the runs
    ``spark_session``    the session, started when a step needs it

Fails with ``InvalidInput`` or ``ExpectationFailed`` (nothing was committed), conflicts after the last re-execution, or ``OutcomeUnknown``:
running it again is safe.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from tiltyard.errors import NotFound
from tiltyard.lake import Lake
from tiltyard.pipeline.branch_runner import BranchRunner
from tiltyard.pipeline.consumed import RUNS, STATE
from tiltyard.pipeline.consumers import NOT_AGAIN, Again
from tiltyard.pipeline.expectations import ExpectationFailed
from tiltyard.pipeline.plan import Plan
from tiltyard.pipeline.run_report import POINTS, Event, Observer, RunReport, ignore, runs
from tiltyard.pipeline.runner import Runner
from tiltyard.pipeline.sample_tests import TestResult, run_tests
from tiltyard.pipeline.schedule import Schedule, repeat, stopped_by_signals
from tiltyard.pipeline.spark_session import Spark
from tiltyard.pipeline.spec import Expectation, FileSource, Maintenance, Output, PipelineSpec, SampleTest, Source, Step, TableSource
from tiltyard.pipeline.steps import StepContext
from tiltyard.pipeline.toml_spec import load_spec, parse_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "POINTS",
    "RUNS",
    "STATE",
    "Again",
    "Event",
    "Expectation",
    "ExpectationFailed",
    "FileSource",
    "Maintenance",
    "Output",
    "Pipeline",
    "PipelineSpec",
    "Plan",
    "RunReport",
    "SampleTest",
    "Schedule",
    "Source",
    "Step",
    "StepContext",
    "TableSource",
    "TestResult",
    "parse_span",
    "repeat",
    "runs",
    "stopped_by_signals",
]


class Pipeline:
    """A pipeline that can be planned and run.

    Example::

        pipeline = ty.pipeline.Pipeline.load("pipeline.toml")
        print(pipeline.run().rows_out)
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec

    def __repr__(self) -> str:
        return f"Pipeline({self.spec.name!r})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], parameters: Mapping[str, object] | None = None) -> Self:
        """From a TOML file, with values for the parameters that it declares.

        Raises:
            NotFound: there is none.
            InvalidInput: it is not what a pipeline looks like; the message names the key and what is allowed.
        """
        return cls(load_spec(path, parameters))

    def plan(self, *, lake: Lake | str | None = None, select: Collection[str] | None = None, again: Again = NOT_AGAIN) -> Plan:
        """What a run would do now. Nothing is changed, and Spark is not started."""
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(_Opened(self.spec, lake, create=False))
            except NotFound:  # the first run makes the lake; until then it is an empty one
                opened = stack.enter_context(Lake.open(stack.enter_context(TemporaryDirectory())))
            return Runner(self.spec, opened, Spark(None, self.spec.name, self.spec.spark)).plan(select, again)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        lake: Lake | str | None = None,
        select: Collection[str] | Again | None = None,
        observer: Observer = ignore,
        author: str | None = None,
        on_branch: str | None = None,
    ) -> RunReport:
        """Runs once, in one transaction: all that is new goes through, or nothing does.

        Args:
            spark: a session; one is started, and stopped at the end, where none is given and there is something to do.
            lake: another lake than the pipeline's own, open or by its URI; an open one may be on a branch, which the run is then for.
            select: only what these steps belong to; or ``Again``: outputs that are rebuilt, and files that are consumed once more.
            observer: called at each point of the run.
            author: who runs it, for the history.
            on_branch: run on this branch, and merge it into the lake's own (main by default) only if all expectations hold: write, audit,
                publish. It is made if there is none, and then deleted after the merge; one that fails stays.

        Raises:
            ExpectationFailed: data is not what it should be. Nothing was committed, or only on the branch.
            InvalidInput: the pipeline does not fit its data. Nothing was committed.
            ConflictError, ContentionError: every attempt had a conflict or lost the race. Nothing was committed.
            OutcomeUnknown: it is not known yet whether it was committed. Running it again is safe: the run finds out first.
        """
        session = Spark(spark, self.spec.name, self.spec.spark)
        again = select if isinstance(select, Again) else NOT_AGAIN
        names = (again.steps or None) if isinstance(select, Again) else select
        try:
            with _Opened(self.spec, lake, create=True, author=author) as opened:
                if on_branch is not None:
                    return BranchRunner(self.spec, opened, on_branch, session, observer).run(names, again)
                return Runner(self.spec, opened, session, observer).run(names, again)
        finally:
            session.stop()

    def branch_runner(self, lake: Lake, branch: str, spark: SparkSession | None = None, observer: Observer = ignore) -> BranchRunner:
        """As ``runner``, with each run on a branch.

        It is merged into the one that ``lake`` is on only if all expectations hold.
        """
        return BranchRunner(self.spec, lake, branch, Spark(spark, self.spec.name, self.spec.spark), observer)

    def runner(self, lake: Lake, spark: SparkSession | None = None, observer: Observer = ignore) -> Runner:
        """Many runs on one open lake and session; ``runner.spark.stop()`` ends a session it started."""
        return Runner(self.spec, lake, Spark(spark, self.spec.name, self.spec.spark), observer)

    def test(self, spark: SparkSession | None = None) -> list[TestResult]:
        """Runs the tests of the pipeline, each on its own rows and in a lake of its own."""
        return run_tests(self.spec, spark)

    def runs(self, *, lake: Lake | str | None = None, limit: int | None = None) -> Sequence[dict[str, Any]]:
        """Reports of earlier runs, latest first."""
        with _Opened(self.spec, lake, create=False) as opened:
            return runs(opened, self.spec.name, limit)


class _Opened:
    """The lake of a pipeline: one that is open stays open, one that is opened here is closed again."""

    def __init__(self, spec: PipelineSpec, lake: Lake | str | None, *, create: bool, author: str | None = None) -> None:
        self._given = lake if isinstance(lake, Lake) else None
        self._uri = lake if isinstance(lake, str) else spec.lake_uri()
        self._create = create
        self._author = author
        self._opened: Lake | None = None

    def __enter__(self) -> Lake:
        if self._given is not None:
            return self._given
        self._opened = Lake.open(self._uri, create=self._create, author=self._author)
        return self._opened

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()
