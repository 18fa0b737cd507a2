"""The work inside the transaction of a run: sources are read, steps computed, outputs written, and what was consumed is marked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import tiltyard as ty
from tiltyard.pipeline.bad_files import ReadFiles, bad_rows, only, read_good
from tiltyard.pipeline.consumed import Mark, record
from tiltyard.pipeline.consumers import consumer_of, merged_mark
from tiltyard.pipeline.expectations import Judged, judge
from tiltyard.pipeline.outputs import append_rows, write_output
from tiltyard.pipeline.plan import Plan, PlannedPass, Selection
from tiltyard.pipeline.portions import FilePortion, Portion
from tiltyard.pipeline.run_report import OutputReport, RunReport, SourceReport, StepReport, store
from tiltyard.pipeline.source_files import FoundFile, schema_mark
from tiltyard.pipeline.sources import check_local, copies_of, read_portion
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
        doing: the part of the run that is at work, as ``steps.NAME``.
    """

    spec: PipelineSpec
    spark: Spark
    tell: Tell
    audited: bool = False
    doing: str = ""
    _session: SparkSession | None = None
    _read: dict[tuple[object, ...], ReadFiles] = field(default_factory=dict)
    _held: list[DataFrame] = field(default_factory=list)
    _copies: TemporaryDirectory[str] | None = None

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

    def rows_of(self, portion: Portion, sight: ty.LakeSnapshot) -> ReadFiles:
        """The rows of a portion, read once."""
        found = self._read.get(portion.key)
        if found is None:

            def read(part: Portion) -> tuple[DataFrame, int]:
                with spark_errors(f"sources.{portion.source.name}"):
                    frame = self.hold(read_portion(self.session(), self.copied(part), sight))
                    return frame, frame.count()

            found = read_good(portion, read) if isinstance(portion, FilePortion) else ReadFiles(*read(portion))
            self._read[portion.key] = found
        return found

    def copied(self, portion: Portion) -> Portion:
        """A portion whose files can be read here: those of an object store are copied first, each once."""
        if not isinstance(portion, FilePortion) or not any(file.store for file in portion.files):
            return portion
        if self._copies is None:
            self._copies = TemporaryDirectory(prefix="tiltyard-pipeline-")
        check_local(self.session(), portion.source.name)
        return only(portion, copies_of(portion.source, portion.files, Path(self._copies.name)))

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
        if self._copies is not None:
            self._copies.cleanup()
            self._copies = None


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
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def do(self) -> RunReport:
        tell, tx = self.work.tell, self.tx
        sources: list[SourceReport] = []
        steps: list[StepReport] = []
        outputs: list[OutputReport] = []
        quarantine: Counter[str] = Counter()
        for each in self.plan.passes:
            sources += [self._source(portion, each, quarantine) for portion in each.portions]
            steps += [self._step(step, each, quarantine) for step in each.selection.steps]
            outputs += self._outputs(each)
        if self.work.spec.isolation == "serializable":
            for name in self.plan.looked:
                tx.table(name).schema  # noqa: B018 - asked for, so that the transaction counts the table among those it rests on
        self.work.doing = ""
        record(tx, self.work.spec.name, self.marks.values(), self.report.run, self.at)
        tell("state written", "")
        waiting = tuple(f"{name} waits for a table that this pipeline makes; the next run has it" for name in self.plan.waiting)
        report = replace(
            self.report, sources=tuple(sources), steps=tuple(steps), outputs=tuple(outputs), quarantine=dict(quarantine), transaction=tx.id,
            notes=(*self.report.notes, *waiting),
        )  # fmt: skip
        store(tx, report)
        tell("report written", "")
        return report

    def _mark(self, mark: Mark, consumers: Collection[str], readers: Collection[str], *, ignored: bool) -> None:
        """Notes who consumed an item; another pass of this run may have noted others."""
        place = (mark.source, mark.item)
        earlier = self.marks.get(place)
        before = earlier.value if earlier is not None else self.plan.marks.get(mark.source, {}).get(mark.item)
        self.marks[place] = merged_mark(mark, consumers, before, readers=readers, ignored=ignored)

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self.views[name] = frame

    def _source(self, portion: Portion, each: PlannedPass, quarantine: Counter[str]) -> SourceReport:
        started = time.monotonic()
        self.work.doing = f"sources.{portion.source.name}"
        read = self.work.rows_of(portion, self.sight)
        frame = read.frame
        self._view(portion.source.name, frame)
        readers = [name for name in each.which.consumers if portion.source.name in each.sources_of[name]]
        everybody = [name for name, sources in each.sources_of.items() if portion.source.name in sources]
        ignored = isinstance(portion, FilePortion) and portion.source.changed == "ignore"
        for mark in portion.marks(read.bad):
            self._mark(mark, readers, everybody, ignored=ignored)
        if read.bad:
            self._set_apart(portion, read.bad, quarantine)
        if isinstance(portion, FilePortion) and portion.source.schema is None and portion.files and portion.schema != frame.schema.json():
            mark = schema_mark(portion.source.name, frame.schema.json())
            self.marks[mark.source, mark.item] = mark
        self.work.tell("source read", portion.source.name)
        taken = portion.described() + each.whose
        if read.bad:
            taken += f", {len(read.bad)} of them bad: {', '.join(file.item for file in read.bad)}"[:200]
        return SourceReport(portion.source.name, portion.source.kind, read.rows, taken, time.monotonic() - started)

    def _set_apart(self, portion: Portion, bad: Mapping[FoundFile, str], quarantine: Counter[str]) -> None:
        assert isinstance(portion, FilePortion)
        table = str(portion.source.quarantine)
        rows = bad_rows(bad, self.work.spec.name, portion.source.name, self.report.run, self.at)
        if table in self.tx.tables():
            self.tx.table(table).append(rows)
        else:
            self.tx.create_table(table, rows)
        quarantine[table] += len(bad)
        self.work.tell("quarantine written", table)

    def _step(self, step: Step, each: PlannedPass, quarantine: Counter[str]) -> StepReport:
        started = time.monotonic()
        work, spec = self.work, self.work.spec
        work.doing = f"steps.{step.name}"
        inputs = {name: self.views[name] for name in spec.inputs_of(step)}
        context = StepContext(work.session(), inputs, self.report.run, spec.name, spec.parameters)
        frame = run_step(step, context, spec.directory)
        judged: Judged | None = None
        if step.expect:
            judged = judge(work.hold(frame), step, spec.name, self.report.run, self.at, audited=work.audited)
            # Rows of a step that was there before are in quarantine already.
            caught_now = judged.quarantined if consumer_of(step) in each.which.consumers else {}
            for table, caught in caught_now.items():
                quarantine[table] += append_rows(self.tx, work.session(), caught, table).rows.get("inserted", 0)
                work.tell("quarantine written", table)
        elif self._readers(step.name, each.selection) > 1:
            frame = work.hold(frame)
        self._view(step.name, judged.kept if judged is not None else frame)
        work.tell("step done", step.name)
        seconds = time.monotonic() - started
        if judged is None:
            return StepReport(step.name, None, seconds)
        return StepReport(step.name, judged.rows, seconds, judged.dropped, judged.broken)

    def _readers(self, name: str, selection: Selection) -> int:
        later = sum(name in self.work.spec.inputs_of(step) for step in selection.steps)
        return later + sum(output.source == name for output in selection.outputs)

    def _outputs(self, each: PlannedPass) -> list[OutputReport]:
        found = []
        for output in each.selection.outputs:
            started = time.monotonic()
            self.work.doing = f"outputs.{output.table}"
            one = write_output(self.tx, self.work.session(), self.views[output.source], output, refresh=each.which.refresh)
            found.append(OutputReport(one.table, one.mode, one.rows, time.monotonic() - started, made=one.made))
            self.work.tell("output written", output.table)
        return found
