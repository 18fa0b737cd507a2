"""Write, audit, publish: a run on a branch of the lake, which reaches the target only if all expectations hold.

The run is committed on the branch with whatever rows it has. What it broke is in its report, which is part of the same commit, so that the
audit can be made at any time, also after a crash: of every run that the branch has and the target has not. Only then the branch is merged,
exactly as it was audited. A branch that fails stays, for a look.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tiltyard as ty
from tiltyard.pipeline.consumed import RUNS
from tiltyard.pipeline.consumers import NOT_AGAIN, Again
from tiltyard.pipeline.expectations import ExpectationFailed
from tiltyard.pipeline.run_report import Observer, RunReport, ignore, runs
from tiltyard.pipeline.runner import Runner
from tiltyard.pipeline.spark_session import Spark
from tiltyard.pipeline.spec import PipelineSpec, TableSource

TRIES: Final = 8
"""How often others may commit to the branch between the audit and the merge."""


@dataclass
class BranchRunner:
    """Runs a pipeline on a branch, and merges it if the expectations hold.

    Attributes:
        spec: the pipeline.
        lake: the lake, on the branch that is the target.
        branch: where it is run; made if there is none, and deleted after the merge if it was made.
        spark: where the session comes from.
        observer: called at each point of a run.
        identity: distinguishes this runner from others of the same pipeline.
    """

    spec: PipelineSpec
    lake: ty.Lake
    branch: str
    spark: Spark
    observer: Observer = ignore
    identity: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def check(self) -> str:
        """The name of the check that the audit reports."""
        return f"pipeline.{self.spec.name}"

    def run(self, names: Collection[str] | None = None, again: Again = NOT_AGAIN) -> RunReport:
        """Runs once on the branch, and merges it if no expectation that says ``fail`` is broken.

        Raises:
            ExpectationFailed: one is. The target is as it was, and the branch stays.
            MergeConflict: the target changed the same things meanwhile. The branch stays.
            ProtectedBranch: the rule of the target does not allow it. The branch stays.
            InvalidInput: as for a run on the target; also a source that is a table which the branch itself has changed.
        """
        if self.branch == self.lake.branch:
            raise ty.InvalidInput(f"A run on {self.branch!r} cannot be merged into {self.branch!r}.", argument="on_branch")
        made = self._prepared()
        on_branch = self.lake.on_branch(self.branch)
        report = Runner(self.spec, on_branch, self.spark, self.observer, self.identity, audited=True).run(names, again)
        audited, published = self._published(on_branch)
        notes = report.notes
        if made:
            try:
                self.lake.branches.delete(self.branch, at=audited)
            except ty.TiltyardError as error:  # others use it by now; the run is merged all the same
                notes = (*notes, f"branch {self.branch} stays: {error}")
        return replace(report, branch=self.branch, published=published, notes=notes)

    def _prepared(self) -> bool:
        """Makes the branch, or brings the one that is there up to date; whether it was made."""
        if self.branch not in self.lake.branches:
            self.lake.branches.create(self.branch)
            return True
        self._audit(self.lake.on_branch(self.branch).snapshot())
        self.lake.branches.rebase(self.branch, self.lake.branch)
        shot = self.lake.on_branch(self.branch).snapshot()
        heads = {head.name.replace("$", "."): head for head in shot.cut.tables.values()}
        for source in self.spec.sources:
            head = heads.get(source.table) if isinstance(source, TableSource) else None
            if head is not None and head.owner == shot.cut.line:
                raise ty.InvalidInput(
                    f"sources.{source.name}: {head.name.replace('$', '.')} was changed on branch {self.branch!r}, where its versions have "
                    "other numbers.", argument="on_branch", advice="Use a new branch.",
                )  # fmt: skip
        return False

    def _published(self, on_branch: ty.Lake) -> tuple[int, int | None]:
        """Audits the branch and merges it as it was audited: its snapshot, and the target's, None where there was nothing to merge."""
        for attempt in range(TRIES):
            shot = on_branch.snapshot()
            self._audit(shot)
            self.lake.branches.report_check(self.branch, self.check, passed=True, snapshot=shot.id)
            try:
                done = self.lake.branches.merge(
                    self.branch, self.lake.branch, message=f"pipeline {self.spec.name}, run on {self.branch}",
                    options=ty.merges.MergeOptions(source_at=shot.id),
                )  # fmt: skip
            except ty.ExpectedVersionMismatch:
                if attempt + 1 == TRIES:
                    raise
            else:
                return shot.id, None if done.up_to_date else done.snapshot
        raise AssertionError("the loop above returns or raises")

    def _audit(self, shot: ty.LakeSnapshot) -> None:
        """Looks at all runs that the branch has and the target has not.

        Raises:
            ExpectationFailed: one of them broke an expectation that says ``fail``.
        """
        known = {str(row["run"]) for row in runs(self.lake)}
        for row in self._runs_at(shot):
            if row["run"] in known or row["status"] != "committed":
                continue
            for step in row["report"]["steps"]:
                for broken in step["broken"]:
                    if broken["otherwise"] == "fail" and broken["rows"]:
                        self._refuse(shot, str(row["pipeline"]), str(step["name"]), broken)

    def _runs_at(self, shot: ty.LakeSnapshot) -> list[dict[str, Any]]:
        return [*runs(shot)] if RUNS in shot.tables() else []

    def _refuse(self, shot: ty.LakeSnapshot, pipeline: str, step: str, broken: dict[str, Any]) -> None:
        rows = int(broken["rows"])
        detail = f"{rows:,} rows of step {step} broke {broken['name']}"
        self.lake.branches.report_check(self.branch, f"pipeline.{pipeline}", passed=False, snapshot=shot.id, detail=detail)
        raise ExpectationFailed(step, str(broken["name"]), rows, branch=self.branch)
