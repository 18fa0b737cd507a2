"""The command that runs a pipeline: once, again and again, or only to say what it would do."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.command_session import PROBLEMS, Session, reporting
from tiltyard.cli.messages import NOTHING, CommandMessage, count
from tiltyard.cli.option_types import DryRun, Json, StorageOptions, duration, listed, pairs
from tiltyard.cli.output import redacted
from tiltyard.redact import redact

if TYPE_CHECKING:  # loaded when the command runs: nobody else waits for it
    from tiltyard.pipeline import Again, Pipeline, RunReport
    from tiltyard.pipeline.branch_runner import BranchRunner
    from tiltyard.pipeline.runner import Runner

app = typer.Typer()

File = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline: a TOML file.")]
Once = Annotated[bool, typer.Option("--once", help="Run once; this is what happens without --every, too.")]
Every = Annotated[str | None, typer.Option("--every", metavar="SPAN", help="Run repeatedly, with a pause such as 30s between runs.")]
LakeUri = Annotated[str | None, typer.Option("--lake", metavar="URI", help="Another lake than the pipeline names.")]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select", metavar="STEP", help="Run only this step and what consumes the same sources, or this maintenance task; repeat."
    ),
]
OnBranch = Annotated[
    str | None,
    typer.Option(
        "--on-branch",
        metavar="BRANCH",
        help="Run on this branch, and merge it only if all expectations hold; created if it does not exist.",
    ),
]
Into = Annotated[str, typer.Option("--into", metavar="BRANCH", help="The branch that the run is for.")]
Parameters = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A value for a parameter that the pipeline declares; repeat.")
]
Refresh = Annotated[
    list[str] | None,
    typer.Option("--refresh", metavar="TABLE", help="Recompute this output from all of its sources, and replace its rows; repeat."),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Consume files again that changed since then, such as 2026-11-01, for outputs that merge."
    ),
]
Backfill = Annotated[list[str] | None, typer.Option("--backfill", metavar="TABLE", help="The outputs that --since is for; repeat.")]
Author = Annotated[str | None, typer.Option("--author", metavar="NAME", help="Who runs it, for the history.")]


@app.command("run")
def run(
    file: File,
    once: Once = False,
    every: Every = None,
    dry_run: DryRun = False,
    lake: LakeUri = None,
    select: Select = None,
    author: Author = None,
    on_branch: OnBranch = None,
    into: Into = "main",
    param: Parameters = None,
    refresh: Refresh = None,
    since: Since = None,
    backfill: Backfill = None,
    json: Json = False,
    storage_option: StorageOptions = None,
) -> None:
    """Run a pipeline: what is new in its sources goes through all of it in one transaction.

    With --on-branch: written to a branch, audited there, and merged if all expectations hold; a branch that fails is kept for inspection.

    Exit code 0: done, or nothing to do; 1: data broke an expectation; 2: an error; 3: conflicts with other writers; 4: not known yet
    whether it was committed, and running it again is safe. With --every and --json each run is one line.
    """
    with reporting(file, None, json, storage_option, None) as session:
        pause = duration(every, "every")
        if once and pause is not None:
            raise ty.InvalidInput("--once and --every exclude each other.", argument="every")
        pipeline = ty.pipeline.Pipeline.load(file, _parameters(param))
        names = listed(select) or None
        again = _again(refresh, since, backfill)
        if again and pause is not None:
            raise ty.InvalidInput("--refresh and --since are for one run, and --every for many.", argument="every")
        if dry_run:
            _plan(session, pipeline, lake, names, again)
            return
        with _opened(session, lake or pipeline.spec.lake_uri(), author) as opened:
            target = opened if into == opened.branch else opened.on_branch(into)
            runner = pipeline.runner(target) if on_branch is None else pipeline.branch_runner(target, on_branch)
            try:
                _run(session, runner, names, pause, again, lines=json and pause is not None)
            finally:
                runner.spark.stop()


@app.command("test")
def run_tests(file: File, param: Parameters = None, json: Json = False) -> None:
    """Run the tests of a pipeline, each on its own rows in a lake of its own. Exit code 1 if one fails.

    A test is a table [[tests]] of the file: rows that its sources are given, and rows that its tables are expected to have.
    """
    with reporting(file, None, json, None, None) as session:
        pipeline = ty.pipeline.Pipeline.load(file, _parameters(param))
        results = pipeline.test()
        failed = [result for result in results if not result.ok]
        facts = [(result.name, problem) for result in results for problem in result.problems or ("ok",)]
        line = f"{pipeline.spec.name}: {count(len(results), 'test')}, {len(failed)} failed"
        document = {
            "pipeline": pipeline.spec.name,
            "ok": not failed,
            "tests": [{"name": result.name, "ok": result.ok, "problems": list(result.problems)} for result in results],
        }
        session.output.told(CommandMessage(document, "failed" if failed else "ok", line, facts))
        if failed:
            raise typer.Exit(PROBLEMS)


def _parameters(given: list[str] | None) -> dict[str, str]:
    return pairs(given or (), "param")


def _again(refresh: list[str] | None, since: str | None, backfill: list[str] | None) -> Again:
    when = None
    if since is not None:
        try:
            when = datetime.fromisoformat(since)
        except ValueError:
            raise ty.InvalidInput(f"--since is {since!r}, and must be a time such as 2026-11-01T08:00.", argument="since") from None
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return ty.pipeline.Again(tuple(listed(refresh)), when, tuple(listed(backfill)))


def _opened(session: Session, uri: str, author: str | None, *, create: bool = True) -> ty.Lake:
    return ty.Lake.open(uri, storage_options=session.options, author=author, create=create)


def _plan(session: Session, pipeline: Pipeline, lake: str | None, names: list[str] | None, again: Again) -> None:
    try:
        with _opened(session, lake or pipeline.spec.lake_uri(), None, create=False) as opened:
            plan = pipeline.plan(lake=opened, select=names, again=again)
    except ty.NotFound:
        plan = pipeline.plan(lake=lake, select=names, again=again)
    line = f"{pipeline.spec.name} has {'nothing to do' if plan.nothing else 'something to do'}"
    session.output.told(CommandMessage(plan.to_dict(), "dry run", line, list(plan.lines()), notes=("Nothing was changed.",)))


def _run(
    session: Session, runner: Runner | BranchRunner, names: list[str] | None, pause: timedelta | None, again: Again, *, lines: bool
) -> None:
    def once() -> RunReport:
        with session.output.progress(f"running {runner.spec.name}") as progress:
            runner.observer = lambda event: progress(event.done, event.total)
            return runner.run(names, again)

    schedule = ty.pipeline.Schedule(pause)
    told: Callable[[CommandMessage], None] = _one_line if lines else session.output.told
    quiet = _Quiet(pause is not None)
    try:
        with ty.pipeline.stopped_by_signals(schedule):
            ty.pipeline.repeat(
                once,
                schedule,
                lambda report: None if quiet.hides(report) else told(_told(report)),
                lambda error: _one_line(CommandMessage(error.to_dict())) if lines else session.output.error(error),
            )
    except ty.pipeline.ExpectationFailed as error:
        if lines:
            _one_line(CommandMessage(error.to_dict()))
        else:
            session.output.error(error)
        raise typer.Exit(PROBLEMS) from None


class _Quiet:
    """Of many runs in a row that find the same nothing, only the first is worth a line."""

    def __init__(self, repeated: bool) -> None:
        self._repeated = repeated
        self._before: object = None

    def hides(self, report: RunReport) -> bool:
        idle = report.status in ("nothing to do", "upkeep") and not report.conflicts
        told = (report.status, *(upkeep_report.did for upkeep_report in report.upkeep)) if idle else None
        hidden = self._repeated and idle and told == self._before
        self._before = told
        return hidden


def _told(report: RunReport) -> CommandMessage:
    facts = list(report.lines())
    if report.status == "nothing to do":
        return CommandMessage(report.to_dict(), NOTHING, f"for {report.pipeline}", facts, notes=_sentences(report))
    if report.status == "upkeep":
        return CommandMessage(report.to_dict(), "done", f"{report.pipeline}, {report.seconds:.1f} s", facts)
    rows = f"{count(report.rows_in, 'row')} in, {report.rows_out:,} out"
    kept = f", {report.quarantined:,} in quarantine" if report.quarantined else ""
    snapshot = report.snapshot if report.published is None else report.published
    line = f"snapshot {snapshot} by {report.pipeline}: {rows}{kept}, {report.seconds:.1f} s"
    return CommandMessage(report.to_dict(), "committed", line, facts, notes=_sentences(report))


def _sentences(report: RunReport) -> tuple[str, ...]:
    return tuple(f"{note[0].upper()}{note[1:]}." for note in report.notes)


def _one_line(told: CommandMessage) -> None:
    document: Any = redacted(dict(told.document), ())
    sys.stdout.write(redact(jsonlib.dumps(document, allow_nan=False, default=str)) + "\n")
    sys.stdout.flush()
