"""One run of a pipeline: all it reads, writes and remembers in one transaction over the lake, re-executed after a conflict."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import tiltyard as ty
from tiltyard.pipeline.consumed import ensure_tables
from tiltyard.pipeline.consumers import NOT_AGAIN, Again
from tiltyard.pipeline.lineage import send
from tiltyard.pipeline.maintenance import BackgroundMaintenance
from tiltyard.pipeline.plan import Plan, Selection, make_plan, parts_of, select
from tiltyard.pipeline.run_report import Event, Observer, RunReport, completed, ignore, store, store_again
from tiltyard.pipeline.run_steps import RunWork
from tiltyard.pipeline.spark_session import Spark
from tiltyard.pipeline.spec import PipelineSpec
from tiltyard.redact import redact

ASKS: Final = 5
"""How often a commit without an answer is asked for before somebody else has to."""
WAIT: Final = 0.05
"""Seconds before a run is worked out again, at most; twice as many each time, up to a limit."""
LONGEST_WAIT: Final = 2.0
LONGEST_ERROR: Final = 1000
_PIECES: Final = frozenset(("source read", "step done", "output written", "state written", "committed"))


@dataclass
class Runner:
    """Runs a pipeline on a lake, any number of times.

    Attributes:
        spec: the pipeline.
        lake: the lake, opened.
        spark: where the session comes from.
        observer: called at each point of a run.
        identity: distinguishes this runner from others of the same pipeline.
        audited: whether the lake is on a branch whose runs are audited before they are merged: what rows break is noted, and upkeep is
            left to the target.
    """

    spec: PipelineSpec
    lake: ty.Lake
    spark: Spark
    observer: Observer = ignore
    identity: str = field(default_factory=lambda: str(uuid.uuid4()))
    audited: bool = False

    def plan(self, names: Collection[str] | None = None, again: Again = NOT_AGAIN) -> Plan:
        """What a run would do now. Nothing is changed, and Spark is not started."""
        return make_plan(self.spec, self.lake.snapshot(), select(self.spec, names), self.identity, again=again)

    def run(self, names: Collection[str] | None = None, again: Again = NOT_AGAIN) -> RunReport:
        """Runs once, in one transaction: all that is new is processed, or nothing is.

        With ``again``, also what is to be processed once more.

        Raises:
            ExpectationFailed: data is not what it should be. Nothing was committed.
            InvalidInput: the pipeline does not fit its data. Nothing was committed.
            ConflictError, ContentionError: every attempt had a conflict or lost the race. Nothing was committed.
            OutcomeUnknown: it is not known yet whether it was committed. Running it again is safe: the run finds out first.
        """
        selection = select(self.spec, names)
        return _Run(self, replace(selection, maintenance=()) if self.audited else selection, again).go()


class _Run:
    """One run, from the first look at its sources to the report."""

    def __init__(self, runner: Runner, selection: Selection, again: Again = NOT_AGAIN) -> None:
        self.runner, self.selection, self.again = runner, selection, again
        self.spec, self.lake = runner.spec, runner.lake
        self.report = RunReport(str(uuid.uuid4()), self.spec.name, datetime.now(UTC), self.lake.author, plan=parts_of(self.spec, selection))
        self.work = RunWork(self.spec, runner.spark, self.tell, runner.audited)
        self.began = time.monotonic()
        self.done = 0
        self.publishing = False

    def tell(self, point: str, what: str = "") -> None:
        total = len(self.selection.sources) + len(self.selection.steps) + len(self.selection.outputs) + 2
        self.done = 0 if point == "planned" else self.done + (point in _PIECES)
        self.runner.observer(Event(point, what, min(self.done, total), total))

    def note(self, **more: Any) -> None:
        self.report = replace(self.report, **more)

    def go(self) -> RunReport:
        beside = BackgroundMaintenance(self.lake, self.spec.name, self.selection.maintenance, self.report.run)
        self.tell("begun")
        beside.start()
        commit = None
        try:
            if self.selection.sources:
                commit = self._attempts()
            else:
                self.note(status="upkeep" if self.selection.maintenance else "nothing to do", attempts=0)
        except Exception as error:
            refused = isinstance(error, ty.ConflictError | ty.ContentionError | ty.InvalidInput)
            if refused or not self.publishing:  # else it may have been committed, with its report
                self._failed(error)
                self._send_lineage()
            raise
        finally:
            self.work.let_go()
            beside.join()
        self.note(upkeep=tuple(beside.told()), seconds=time.monotonic() - self.began)
        if commit is not None:
            self._complete(commit)
        self._send_lineage()
        self.tell("ended")
        return self.report

    def _send_lineage(self) -> None:
        note = send(self.spec, self.lake.url, self.report)
        if note:
            self.note(notes=(*self.report.notes, note))

    def _attempts(self) -> ty.LakeCommit | None:
        """Works it out until it is committed or there is nothing left to do."""
        if make_plan(self.spec, self.lake.snapshot(), self.selection, self.runner.identity, again=self.again).nothing:
            self.note(status="nothing to do", attempts=0)
            return None
        ensure_tables(self.lake)
        for attempt in range(1, self.spec.retries + 2):
            self.note(attempts=attempt)
            try:
                return self._attempt(last=attempt > self.spec.retries)
            except (ty.ConflictError, ty.ContentionError) as error:
                self.note(conflicts=(*self.report.conflicts, str(error)))
                # Whatever it was: a run begins anew from what the lake is now, so nothing of it rests on what was overtaken.
                if attempt > self.spec.retries:
                    raise
            runtime = self.lake.catalog.runtime
            runtime.clock.sleep(runtime.random.uniform(0, min(WAIT * 2**attempt, LONGEST_WAIT)))
        raise AssertionError("the loop above returns or raises")

    def _attempt(self, *, last: bool) -> ty.LakeCommit | None:
        self.publishing = False
        facts = {"tiltyard.pipeline": self.spec.name, "tiltyard.run": self.report.run}
        tx = self.lake.transaction(isolation=self.spec.isolation, message=f"pipeline {self.spec.name}", properties=facts)
        tx.keeps_refusal = last  # the report of the run has those before
        try:
            sight = self.lake.snapshot(tx.base)
            plan = make_plan(self.spec, sight, self.selection, self.runner.identity, again=self.again)
            self.tell("planned")
            if plan.nothing:
                tx.rollback()
                self._overtaken()
                return None
            self.report = self.work.do(tx, plan, sight, self._timed())
        except ty.KeyConflict as error:
            tx.rollback()  # two rows of one key in what we have: doing it again would not help
            raise ty.InvalidInput(str(error), argument="outputs") from error
        except BaseException:
            tx.rollback()
            raise
        self.publishing = True
        self.tell("publishing")
        commit = self._published(tx)
        self.tell("committed")
        return commit

    def _overtaken(self) -> None:
        """What the attempts before have done is nothing that happened."""
        told = self.report
        self.report = RunReport(
            told.run, told.pipeline, told.started, told.author, "nothing to do", attempts=told.attempts, conflicts=told.conflicts,
            notes=("another run consumed the new data",), plan=told.plan,
        )  # fmt: skip

    def _timed(self) -> RunReport:
        return replace(self.report, seconds=time.monotonic() - self.began)

    def _published(self, tx: ty.LakeTransaction) -> ty.LakeCommit:
        """Commits, and asks again where no answer came."""
        for _ in range(ASKS):
            try:
                return tx.commit()
            except ty.OutcomeUnknown:
                self.lake.catalog.runtime.clock.sleep(WAIT)
        return tx.commit()

    def _complete(self, commit: ty.LakeCommit) -> None:
        """Adds to the stored report what only the commit could tell. The run itself is committed, whatever happens here."""
        self.report = completed(self.report, self.lake, commit)
        try:
            store_again(self.lake, self.report)
        except ty.TiltyardError as error:
            self.note(notes=(*self.report.notes, f"the stored report is not complete: {error}"))
        self.tell("report completed")

    def _failed(self, error: Exception) -> None:
        """Leaves a report of a run that committed nothing, if the lake lets us: whatever failed, a function of the user's or the store."""
        known = isinstance(error, ty.TiltyardError)
        told = str(error) if known else redact(f"{type(error).__name__}: {error}")[:LONGEST_ERROR]
        named = str(getattr(error, "argument", "") or "")
        parts = {f"{part.kind}s.{part.name}" for part in self.report.plan}
        at = next((part for part in parts if named == part or named.startswith(part + ".")), "")
        conflict = isinstance(error, ty.ConflictError | ty.ContentionError)
        self.note(status="failed", error=told, failed_at=at or ("" if conflict else self.work.doing), seconds=time.monotonic() - self.began)
        try:
            ensure_tables(self.lake)
            store(self.lake, self.report)
        except ty.TiltyardError as also:
            error.add_note(f"No report of the run was stored: {also}")
