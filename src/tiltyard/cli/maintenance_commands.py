"""The commands that keep a table in shape, and those about its past."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.facts import diff_of
from tiltyard.cli.messages import CommandMessage, Grid, commit_told, count, size, span, would
from tiltyard.cli.option_types import DryRun, Message, duration

app = typer.Typer()

SHOWN_AT_MOST = 10


@table_command(app)
def compact(
    session: Session,
    target_rows: Annotated[int, typer.Option("--target-rows", min=1, help="Rows that a fragment should have.")] = 1024 * 1024,
    max_bytes: Annotated[int | None, typer.Option("--max-bytes", min=1, help="Bytes after which a new data file is begun.")] = None,
    deletions: Annotated[
        float,
        typer.Option("--deletions", min=0, max=1, help="The share of deleted rows from which a fragment is rewritten for that alone."),
    ] = 0.1,
    message: Message = None,
) -> None:
    """Rewrite small fragments into fewer ones. Others may write meanwhile."""
    table = session.open()
    before = len(table.layout.fragments)
    with session.output.progress("compacting") as progress:
        result = table.compact(target_rows=target_rows, max_bytes=max_bytes, deletions=deletions, progress=progress, message=message)
    after = len(table.layout.fragments)
    what = f"{count(before, 'fragment')} became {after:,}"
    session.output.told(commit_told(session.shown_uri, table.branch, result, what, fragments_before=before, fragments_after=after))


@table_command(app)
def analyze(
    session: Session,
    column: Annotated[list[str] | None, typer.Option("--column", "-c", metavar="NAME", help="A column; repeat. All without.")] = None,
) -> None:
    """Read columns without statistics, keep these beside the data, and show what is known. Nothing is committed."""
    table = session.open()
    with session.output.progress("analyzing") as progress:
        found = table.maintenance.analyze(column or None, progress=progress)
    shown = found.to_dict()["columns"].values()
    rows = [tuple(_cell(known[name]) for name in ("name", "least", "greatest", "nulls", "distinct")) for known in shown]
    line = f"{count(len(rows), 'column')} of version {found.version} of {session.shown_uri}; {count(found.analyzed, 'fragment')} read"
    notes = (
        []
        if all(known.exact for known in found.columns.values())
        else ["Some values are only bounds: rows were deleted, or texts are long."]
    )
    grid = Grid(("column", "least", "greatest", "nulls", "distinct, about"), rows, frozenset({3, 4}))
    document = {**found.to_dict(), "uri": session.shown_uri, "branch": table.branch}
    session.output.told(CommandMessage(document, "analyzed", line, [], grid, notes))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@table_command(app)
def restore(
    session: Session,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A version's number, or a tag.")],
    dry_run: DryRun = False,
    message: Message = None,
) -> None:
    """Make a new version with the content of an older one. What came between stays in the history."""
    table = session.open()
    number = _number(table, version)
    if dry_run:
        old = session.open(version=number)
        rows = {"before": table.count_rows(), "after": old.count_rows()}
        line = f"version {number} would be restored over version {table.version} of {session.shown_uri}"
        facts = [("rows", f"{rows['before']:,} now, {rows['after']:,} then"), ("made by", _made(old.transactions.describe()))]
        more = {"version": table.version, "restored_version": number, "rows": rows}
        session.output.told(would(session.shown_uri, table.branch, line, facts, **more))
        return
    result = table.restore(number, message=message)
    what = f"as version {number} was; {count(table.count_rows(), 'row')}"
    session.output.told(commit_told(session.shown_uri, table.branch, result, what, restored_version=number))


def _made(entry: ty.HistoryEntry) -> str:
    said = f": {entry.message}" if entry.message else ""
    return f"{entry.operation or 'an unknown operation'} at {entry.timestamp:%Y-%m-%d %H:%M:%S} UTC{said}"


@table_command(app)
def diff(
    session: Session,
    first: Annotated[str, typer.Argument(metavar="FROM", help="The version to begin after, or a tag; 0 for the whole history.")],
    last: Annotated[str | None, typer.Argument(metavar="[TO]", help="The last version, or a tag; the latest by default.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All rows.")] = False,
    old: Annotated[bool, typer.Option("--old", help="Show the values before each update, too.")] = False,
) -> None:
    """What changed after one version up to another: rows that were inserted, updated and deleted."""
    table = session.open()
    begin = _number(table, first)
    end = table.version if last is None else _number(table, last)
    with session.output.working("comparing"):
        found = diff_of(table, session.shown_uri, begin, end, None if everything else limit, old)
    session.output.diff(found)


def _number(table: ty.Table, text: str) -> int:
    """A version by its number or by a tag."""
    if text.isdecimal() and text.isascii():
        return int(text)
    tag = table.tags[text]
    if tag.branch != table.branch:
        raise ty.InvalidInput(f"Tag {text!r} is of branch {tag.branch or 'main'}.", argument="version", advice="Use --branch.")
    return tag.version


@table_command(app)
def cleanup(
    session: Session,
    older_than: Annotated[str | None, typer.Option("--older-than", metavar="SPAN", help="How old a version has to be: 7d, 12h.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=1, help="How many of the latest versions stay.")] = None,
    keep_version: Annotated[list[int] | None, typer.Option("--keep-version", metavar="N", help="A version that stays; repeat.")] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="SPAN", help="How old a file must be that no version names: longer than your longest write.")
    ] = "7d",
    dry_run: DryRun = False,
) -> None:
    """Remove old versions, and files that no version names. Tagged versions and those of branches stay."""
    age, waited = duration(older_than, "older_than"), duration(grace, "grace") or timedelta(0)
    table = session.open()
    with session.output.progress("looking" if dry_run else "deleting files") as progress:
        report = table.cleanup(
            older_than=age, keep_versions=keep, keep=keep_version or (), grace=waited, dry_run=dry_run, progress=progress
        )
    session.output.told(_cleaned(report, session.shown_uri, table.branch))


def _cleaned(report: ty.CleanupReport, uri: str, branch: str | None) -> CommandMessage:
    document = {**report.to_dict(), "uri": uri, "branch": branch}
    goes = "would be removed" if report.dry_run else "removed"
    files = f"{count(len(report.removed), 'file')} ({size(report.bytes)})"
    line = f"{count(len(report.versions), 'version')} and {files} of {uri} {goes}"
    facts = [("versions", span(report.versions))] if report.versions else []
    if report.files:
        facts.append(("files", ", ".join(f"{number:,} {kind}" for kind, number in sorted(report.files.items()))))
    by_reason: dict[str, list[int]] = {}
    for version, why in sorted(report.kept.items()):
        by_reason.setdefault(", ".join(why), []).append(version)
    facts += [("kept", f"{span(versions)} ({why})") for why, versions in by_reason.items()]
    if report.held:
        facts.append(("held", f"{count(len(report.held), 'file')} that no version names, for now: {report.held[0].reason}"))
    listed = [(file.path, size(file.bytes), file.reason) for file in report.removed[:SHOWN_AT_MOST]] if report.dry_run else []
    more = len(report.removed) - len(listed) if report.dry_run else 0
    notes = [f"and {count(more, 'more file')}; --json lists all"] if more else []
    if report.dry_run:
        notes.append("Nothing was changed.")
    verdict = "dry run" if report.dry_run else "cleaned up" if report.removed or report.versions else "nothing to do"
    return CommandMessage(document, verdict, line, facts, Grid(("file", "size", "why"), listed, frozenset({1})), notes)
