"""The work inside the transaction of a run: sources are read, steps computed, outputs written, and what was consumed is marked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import tiltyard as ty
from tiltyard.pipeline.consumed import Mark, record
from tiltyard.pipeline.expectations import Judged, judge
from tiltyard.pipeline.outputs import append_rows, write_output
from tiltyard.pipeline.plan import Plan, tables_read
from tiltyard.pipeline.portions import FilePortion, Portion
from tiltyard.pipeline.run_report import OutputReport, RunReport, SourceReport, StepReport, store
from tiltyard.pipeline.source_files import schema_mark
from tiltyard.pipeline.sources import read_portion
from tiltyard.pipeline.spark_session import Spark
from tiltyard.pipeline.spec import PipelineSpec, Step
from tiltyard.pipeline.steps import StepContext, run_step, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[str, str], None]


@dataclass
class RunWork:
    """All attempts of one run; what an attempt has read serves the next one, too.

    Attributes:
        spec: the pipeline.
        spark: where the session comes from.
        tell: is told of each point.
        audited: whether broken expectations are only noted, for an audit of the branch that the run is on.
    """

    spec: PipelineSpec
    spark: Spark
    tell: Tell
    audited: bool = False
    _session: SparkSession | None = None
    _read: dict[tuple[object, ...], tuple[DataFrame, int]] = field(default_factory=dict)
    _held: list[DataFrame] = field(default_factory=list)

    def do(self, tx: ty.LakeTransaction, plan: Plan, sight: ty.LakeSnapshot, report: RunReport) -> RunReport:
        """Does an attempt, up to its commit; the report with what it did.

        Raises:
            RetryableConflict: a file was changed while it was read.
        """
        try:
            done = _Attempt(self, tx, plan, sight, report).do()
        except ty.InvalidInput:
            _check(plan)  # a file that is gone or half written is the better explanation
            raise
        _check(plan)
        return done

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self.spark.session()
            self.tell("spark is there", "")
        return self._session

    def rows_of(self, portion: Portion, sight: ty.LakeSnapshot) -> tuple[DataFrame, int]:
        """The rows of a portion, read once."""
        found = self._read.get(portion.key)
        if found is None:
            with spark_errors(f"sources.{portion.source.name}"):
                frame = self.hold(read_portion(self.session(), portion, sight))
                found = self._read[portion.key] = (frame, frame.count())
        return found

    def hold(self, frame: DataFrame) -> DataFrame:
        """Keeps rows for as long as the run takes, so that all who read them read the same."""
        held = frame.persist()
        self._held.append(held)
        return held

    def let_go(self) -> None:
        """Forgets everything that was read."""
        for frame in self._held:
            frame.unpersist()
        self._held.clear()
        self._read.clear()


def _check(plan: Plan) -> None:
    for portion in plan.portions:
        portion.check()


@dataclass
class _Attempt:
    work: RunWork
    tx: ty.LakeTransaction
    plan: Plan
    sight: ty.LakeSnapshot
    report: RunReport
    views: dict[str, DataFrame] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def do(self) -> RunReport:
        tell, tx = self.work.tell, self.tx
        sources = tuple(self._source(portion) for portion in self.plan.portions)
        quarantine: Counter[str] = Counter()
        steps = tuple(self._step(step, quarantine) for step in self.plan.selection.steps)
        outputs = tuple(self._outputs())
        if self.work.spec.isolation == "serializable":
            for name in tables_read(self.plan):
                tx.table(name).schema  # noqa: B018 - asked for, so that the transaction counts the table among those it rests on
        record(tx, self.work.spec.name, self.marks, self.report.run, self.at)
        tell("state written", "")
        report = replace(self.report, sources=sources, steps=steps, outputs=outputs, quarantine=dict(quarantine), transaction=tx.id)
        store(tx, report)
        tell("report written", "")
        return report

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self.views[name] = frame

    def _source(self, portion: Portion) -> SourceReport:
        started = time.monotonic()
        frame, rows = self.work.rows_of(portion, self.sight)
        self._view(portion.source.name, frame)
        self.marks += portion.marks()
        if isinstance(portion, FilePortion) and portion.source.schema is None and portion.files and portion.schema != frame.schema.json():
            self.marks.append(schema_mark(portion.source.name, frame.schema.json()))
        self.work.tell("source read", portion.source.name)
        return SourceReport(portion.source.name, portion.source.kind, rows, portion.described(), time.monotonic() - started)

    def _step(self, step: Step, quarantine: Counter[str]) -> StepReport:
        started = time.monotonic()
        work, spec = self.work, self.work.spec
        inputs = {name: self.views[name] for name in spec.inputs_of(step)}
        context = StepContext(work.session(), inputs, self.report.run, spec.name)
        frame = run_step(step, context, spec.directory)
        judged: Judged | None = None
        if step.expect:
            judged = judge(work.hold(frame), step, spec.name, self.report.run, self.at, audited=work.audited)
            for table, caught in judged.quarantined.items():
                quarantine[table] += append_rows(self.tx, work.session(), caught, table).rows.get("inserted", 0)
                work.tell("quarantine written", table)
        elif self._readers(step.name) > 1:
            frame = work.hold(frame)
        self._view(step.name, judged.kept if judged is not None else frame)
        work.tell("step done", step.name)
        seconds = time.monotonic() - started
        if judged is None:
            return StepReport(step.name, None, seconds)
        return StepReport(step.name, judged.rows, seconds, judged.dropped, judged.broken)

    def _readers(self, name: str) -> int:
        selection = self.plan.selection
        later = sum(name in self.work.spec.inputs_of(step) for step in selection.steps)
        return later + sum(output.source == name for output in selection.outputs)

    def _outputs(self) -> list[OutputReport]:
        found = []
        for output in self.plan.selection.outputs:
            started = time.monotonic()
            one = write_output(self.tx, self.work.session(), self.views[output.source], output)
            found.append(OutputReport(one.table, one.mode, one.rows, time.monotonic() - started, made=one.made))
            self.work.tell("output written", output.table)
        return found
