"""What a run came to: for people, for programs, and as a row of a table in the lake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

import tiltyard as ty
from tiltyard.pipeline.consumed import RUNS, quoted, run_rows
from tiltyard.pipeline.expectations import Broken

Status = Literal["committed", "nothing to do", "upkeep", "failed"]


@dataclass(frozen=True, slots=True)
class PlanPart:
    """A part of what a run was to do, and what it reads: known before anything is done, so that failed runs have it, too.

    Attributes:
        kind: what it is.
        name: of a source or step; of the table for outputs and quarantine.
        inputs: names of the sources and steps whose rows it gets.
    """

    kind: Literal["source", "step", "output", "quarantine"]
    name: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What was taken of a source: so many rows of so many files or versions."""

    name: str
    kind: str
    rows: int
    taken: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did. ``rows`` is None if they were not counted."""

    name: str
    rows: int | None
    seconds: float
    dropped: int = 0
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputReport:
    """What became of a table. ``over`` lists the versions the write was rebased over, and their writers."""

    table: str
    mode: str
    rows: Mapping[str, int]
    seconds: float
    version: int | None = None
    made: bool = False
    over: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What a piece of upkeep did."""

    name: str
    kind: str
    did: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """All of a run.

    Attributes:
        run: its id.
        pipeline, author, started, seconds: whose, by whom, when, how long.
        status: how it ended; ``upkeep`` where there was nothing else to run.
        sources, steps, outputs, upkeep: what each of them did.
        quarantine: rows that went into quarantine, by table.
        attempts: how often it was executed.
        publications: how often the last execution was published; more than once if it was rebased over other commits.
        conflicts: why it was re-executed, a sentence each.
        snapshot: the lake's snapshot it made; of the branch that it was on, if it was on one.
        transaction: its transaction's id.
        error: why it failed.
        notes: anything else worth knowing.
        branch: the branch that it was on before it was merged; empty if it was on none.
        published: the target's snapshot that the merge made; None if there was nothing to merge.
        plan: what it was to do, part by part.
        failed_at: the part that it failed at, as ``steps.NAME``; empty if it did not, or at none of them.
    """

    run: str
    pipeline: str
    started: datetime
    author: str = ""
    status: Status = "committed"
    seconds: float = 0.0
    sources: tuple[SourceReport, ...] = ()
    steps: tuple[StepReport, ...] = ()
    outputs: tuple[OutputReport, ...] = ()
    quarantine: Mapping[str, int] = field(default_factory=dict)
    upkeep: tuple[UpkeepReport, ...] = ()
    attempts: int = 1
    publications: int = 0
    conflicts: tuple[str, ...] = ()
    snapshot: int | None = None
    transaction: str | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    branch: str = ""
    published: int | None = None
    plan: tuple[PlanPart, ...] = ()
    failed_at: str = ""

    @property
    def rows_in(self) -> int:
        """Rows that all sources gave."""
        return sum(source.rows for source in self.sources)

    @property
    def rows_out(self) -> int:
        """Rows that were inserted or updated in all outputs."""
        return sum(output.rows.get("inserted", 0) + output.rows.get("updated", 0) for output in self.outputs)

    @property
    def quarantined(self) -> int:
        """Rows that were quarantined."""
        return sum(self.quarantine.values())

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        facts = asdict(self)
        facts["started"] = self.started.isoformat()
        facts["committed"] = self.status == "committed"
        facts["rows_in"], facts["rows_out"], facts["quarantined"] = self.rows_in, self.rows_out, self.quarantined
        return facts

    def row(self) -> dict[str, Any]:
        """As the table of runs has it."""
        return {
            "run": self.run,
            "pipeline": self.pipeline,
            "status": self.status,
            "started": self.started,
            "seconds": self.seconds,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "quarantined": self.quarantined,
            "attempts": self.attempts,
            "snapshot": self.snapshot,
            "transaction": self.transaction,
            "author": self.author,
            "error": self.error,
            "report": json.dumps(self.to_dict(), sort_keys=True),
        }

    def lines(self) -> Iterable[tuple[str, str]]:
        """For people, as facts with a name each."""
        for source in self.sources:
            yield "source", f"{source.name}: {source.rows:,} rows ({source.taken}), {source.seconds:.1f} s"
        for step in self.steps:
            rows = f"{step.rows:,} rows, " if step.rows is not None else ""
            yield "step", f"{step.name}: {rows}{step.seconds:.1f} s"
            for broken in step.broken:
                if broken.rows:
                    yield "", f"{broken.rows:,} broke {broken.name!r} ({broken.otherwise})"
        for output in self.outputs:
            counted = ", ".join(f"{number:,} {how}" for how, number in output.rows.items() if number) or "no rows"
            made = ", made by this run" if output.made else ""
            at = f" version {output.version}" if output.version is not None else ""
            yield "output", f"{output.table}{at}: {counted} ({output.mode}{made}), {output.seconds:.1f} s"
            if output.over:
                yield "", f"rebased over {'; '.join(map(_who, output.over))}"
        if self.published is not None:
            yield "published", f"snapshot {self.published}, merged from branch {self.branch}"
        for table, number in self.quarantine.items():
            yield "quarantine", f"{table}: {number:,} rows"
        for upkeep in self.upkeep:
            yield "upkeep", f"{upkeep.name}: {upkeep.did}, {upkeep.seconds:.1f} s"
        if self.attempts > 1:
            yield "attempts", str(self.attempts)
        for conflict in self.conflicts:
            yield "conflict", conflict


def _who(over: Mapping[str, Any]) -> str:
    by = f" by {over['author']}" if over.get("author") else ""
    return f"version {over['version']}{by}"


def completed(report: RunReport, lake: ty.Lake, commit: ty.LakeCommit) -> RunReport:
    """The report with what only the commit could tell."""
    makers = _makers(lake, commit) if commit.rebased else {}
    outputs = tuple(
        replace(
            output,
            version=commit.tables.get(output.table),
            over=tuple(makers.get((output.table, version), {"version": version}) for version in commit.rebased.get(output.table, ())),
        )
        for output in report.outputs
    )
    return replace(report, outputs=outputs, snapshot=commit.snapshot, publications=commit.attempts, transaction=commit.transaction_id)


def _makers(lake: ty.Lake, commit: ty.LakeCommit) -> dict[tuple[str, int], dict[str, Any]]:
    """Who made each version, as far as recent history tells."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for step in lake.history(limit=64):
        for change in step.changes:
            for version_step in change.steps:
                facts = {
                    "version": version_step.version,
                    "author": step.author,
                    "operation": version_step.operation,
                    "message": step.message,
                }
                found[change.name, version_step.version] = facts
    return found


def store(tx_or_lake: ty.LakeTransaction | ty.Lake, report: RunReport) -> None:
    """Adds a report to the table of runs, in the run's own transaction or by itself."""
    tx_or_lake.table(RUNS).append(run_rows([report.row()]))


def store_again(lake: ty.Lake, report: RunReport) -> None:
    """Replaces what the table of runs has of a run."""
    lake.table(RUNS).merge(run_rows([report.row()])).when_matched_update_all().execute()


def runs(lake: ty.Lake | ty.LakeSnapshot, pipeline: str | None = None, limit: int | None = None) -> Sequence[dict[str, Any]]:
    """Reports of earlier runs, latest first."""
    if RUNS not in lake.tables():
        return []
    rows = lake.table(RUNS).to_arrow(filter=None if pipeline is None else f"pipeline = {quoted(pipeline)}")
    newest = rows.sort_by([("started", "descending")]).to_pylist()[:limit]
    return [{**row, **_snapshot_of(lake, row), "report": json.loads(row["report"])} for row in newest]


def _snapshot_of(lake: ty.Lake | ty.LakeSnapshot, row: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot of a run that died between its commit and the completion of its report: the lake knows it."""
    if isinstance(lake, ty.LakeSnapshot) or row["snapshot"] is not None or not row["transaction"] or row["status"] != "committed":
        return {}
    known = lake.outcome(row["transaction"])
    return {"snapshot": known.version} if isinstance(known, ty.outcomes.Committed) else {}


POINTS: Final = (
    "begun", "planned", "spark is there", "source read", "step done", "quarantine written", "output written", "state written",
    "report written", "publishing", "committed", "report completed", "ended",
)  # fmt: skip
"""What an observer is told of, in this order; those in the middle come once for each source, step and table."""


@dataclass(frozen=True, slots=True)
class Event:
    """One of ``POINTS``, what it is about, and how many pieces of the run are done."""

    point: str
    what: str = ""
    done: int = 0
    total: int = 0


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An observer that does nothing."""
