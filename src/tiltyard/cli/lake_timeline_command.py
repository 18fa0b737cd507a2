"""The command that draws the history of a lake: the timeline of the console, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.lake_commands import LakeSession, clock_time, lake_command
from tiltyard.cli.lake_merge_commands import app
from tiltyard.cli.messages import Grid, count

if TYPE_CHECKING:
    from tiltyard.server.console.timeline import Timeline, TimelineStep

__all__ = ["app"]  # the same as in `lake`, with this command added

Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file, which is replaced.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many snapshots.")]
Before = Annotated[int | None, typer.Option("--before", metavar="N", min=1, help="Only snapshots before this one.")]
Author = Annotated[str, typer.Option("--author", metavar="NAME", help="Only snapshots of authors with this in their name.")]
TableName = Annotated[str, typer.Option("--table", metavar="NAME", help="Only snapshots that changed this table, or one below this name.")]
Operation = Annotated[str, typer.Option("--operation", metavar="KIND", help="Only snapshots that did this, such as Append or drop.")]


@lake_command(app, branched=True)
def timeline(
    session: LakeSession,
    svg: Svg = None,
    limit: Limit = 40,
    before: Before = None,
    author: Author = "",
    table: TableName = "",
    operation: Operation = "",
) -> None:
    """Snapshots against tables, and which change was rebased over which; `--svg` draws it."""
    # Loaded when they are needed: no other command has to wait for the models of the protocol.
    from tiltyard.server.console.lake_viewer import HistoryFilter, LakeViewer
    from tiltyard.server.console.timeline import read_timeline
    from tiltyard.server.console.timeline_svg import timeline_svg
    from tiltyard.server.principals import LOCAL

    with session.opened() as lake:
        found = read_timeline(LakeViewer(lake, LOCAL), limit, before, HistoryFilter(author, table, operation))
    document: dict[str, Any] = {"svg": None if svg is None else str(svg), **found.to_dict()}
    if svg is not None:
        _write(svg, timeline_svg(found, title=f"Timeline of {session.shown_uri}, branch {found.branch}"))
        session.told(document, "drawn", f"{count(len(found.steps), 'snapshot')} of {session.shown_uri}, in {svg}")
        return
    rows = [_line(found, step) for step in reversed(found.steps)]
    notes = () if rows else (f"No snapshot of {session.shown_uri} matches.",)
    grid = Grid(("snapshot", "time (UTC)", "author", "tables", "rebased over"), rows, frozenset({0}))
    session.told(document, grid=grid, notes=notes)


def _line(found: Timeline, step: TimelineStep) -> tuple[str, ...]:
    over = [f"{arrow.over} ({arrow.table})" for arrow in found.arrows if arrow.by == step.snapshot]
    tables = ", ".join(mark.table if mark.kind == "write" else f"{mark.table} ({mark.kind})" for mark in step.marks)
    return str(step.snapshot), clock_time(step.at), step.author or "?", tables, ", ".join(over)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ty.InvalidInput(f"{path} cannot be written: {error.strerror}.", argument="svg") from error
