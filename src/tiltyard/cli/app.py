"""The command line: all commands put together, and those that only look at a table."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli import base_commands as bases
from tiltyard.cli import column_commands as columns
from tiltyard.cli import conflict_commands as conflicts
from tiltyard.cli import explain_command as why
from tiltyard.cli import index_commands as indices
from tiltyard.cli import lake_merge_commands as lake_merges
from tiltyard.cli import lake_ref_commands as lake_refs
from tiltyard.cli import lake_timeline_command as lake_views
from tiltyard.cli import maintenance_commands as upkeep
from tiltyard.cli import pipeline_command as run
from tiltyard.cli import ref_commands as refs
from tiltyard.cli import row_commands as rows
from tiltyard.cli import server_commands as server
from tiltyard.cli import setting_commands as settings
from tiltyard.cli.command_session import DONE, FAILED, INTERRUPTED, PROBLEMS, Session, table_command
from tiltyard.cli.facts import log_of, page, shown
from tiltyard.cli.option_types import Tag, Version
from tiltyard.cli.output import JsonOutput
from tiltyard.cli.text_output import TextOutput

app = typer.Typer(
    name="tiltyard",
    help="Tables in the Lance format: their history, rows and health, and everything that changes them.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiltyard {ty.__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    pass


@table_command(app)
def log(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many versions.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All versions.")] = False,
) -> None:
    """What happened to a table, latest first."""
    session.output.log(log_of(session.open(), session.shown_uri, None if everything else limit))


@table_command(app)
def show(
    session: Session,
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", help="A version; the latest by default.")] = None,
    tag: Tag = None,
) -> None:
    """All about one version: who made it and how, schema, fragments, config."""
    session.output.show(shown(session.open(version=version, tag=tag), session.shown_uri))


@table_command(app)
def check(
    session: Session,
    data: Annotated[bool, typer.Option("--data", help="Read every file, too, and compare it with its digest.")] = False,
) -> None:
    """Check the table. Exit code 0: no problem, 1: problems found, 2: it could not be checked."""
    if data:
        with session.output.progress("comparing files", in_bytes=True) as progress:
            report = _checked(session, data=True, progress=progress)
    else:
        with session.output.working("checking every version"):
            report = _checked(session)
    session.output.check(report)
    if not report.ok:
        raise typer.Exit(PROBLEMS)


@table_command(app)
def cat(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows.")] = 20,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    condition: Annotated[str | None, typer.Option("--filter", metavar="SQL", help="Only rows for which this holds.")] = None,
    version: Version = None,
    tag: Tag = None,
) -> None:
    """Some rows of a table."""
    wanted = [name.strip() for name in columns.split(",")] if columns is not None else None
    session.output.cat(page(session.open(version=version, tag=tag), session.shown_uri, wanted, condition, limit))


_LISTS = (indices.app, refs.tags, refs.branches, columns.app, settings.app, bases.app, conflicts.app, lake_views.app)
for part in (rows.app, upkeep.app, bases.clones, why.app, run.app, server.serving, server.tokens, server.policies, *_LISTS):
    app.add_typer(part)
for part in (lake_refs.tags, lake_refs.branches):
    lake_merges.app.add_typer(part)


def _checked(session: Session, **how: Any) -> ty.CheckReport:
    try:
        return session.open().check(**how)
    except ty.CorruptTable as error:
        # The newest version cannot be opened, so nobody can ask it for the rest: that alone is an unsound table.
        problem = ty.Problem("I2", str(error))
        return ty.CheckReport(session.shown_uri, 0, 0, (problem,), (), ("everything else: the table cannot be opened",))


def main() -> None:
    """The entry point ``tiltyard``."""
    json = "--json" in sys.argv[1:]
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        if message := error.format_message():  # none where the help was shown instead
            (JsonOutput() if json else TextOutput()).usage(message)
        code = FAILED
    except BrokenPipeError:
        # The reader has seen enough (as head does); what is left in the buffer must not complain on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    raise SystemExit(code)
