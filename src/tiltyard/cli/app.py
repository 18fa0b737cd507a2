"""The commands. Each opens a table, asks one question and hands the answer to an output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

import tiltyard as ty
from tiltyard.cli import conflicts
from tiltyard.cli.facts import log_of, page, shown
from tiltyard.cli.output import JsonOutput, Output
from tiltyard.cli.text import TextOutput
from tiltyard.redact import redact

SOUND: Final = 0
PROBLEMS: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130

app = typer.Typer(
    name="tiltyard",
    help="Look at tables in the Lance format: their history, versions, rows and health.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(conflicts.app)

Uri = Annotated[str, typer.Argument(metavar="URI", help="The table: a directory, s3://, gs:// or az://.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, errors too.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="KEY=VALUE", help="For the store, as pylance takes them; repeat. Values are never shown."),
]
Bases = Annotated[
    list[str] | None, typer.Option("--allow-base", metavar="URI", help="A place outside the table its files may lie in; '*' for anywhere.")
]
Branch = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="Look at a branch instead of main.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="The version a tag names.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiltyard {ty.__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    pass


@app.command()
def log(
    uri: Uri,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many versions.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All versions.")] = False,
    branch: Branch = None,
    json: Json = False,
    storage_option: Options = None,
    allow_base: Bases = None,
) -> None:
    """What happened to a table, newest first."""
    with _reporting(json, storage_option) as (output, options):
        table = ty.Table.open(uri, branch=branch, storage_options=options, allowed_bases=allow_base or ())
        output.log(log_of(table, _shown_uri(uri), None if everything else limit))


@app.command()
def show(
    uri: Uri,
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", help="A version; the latest by default.")] = None,
    tag: Tag = None,
    branch: Branch = None,
    json: Json = False,
    storage_option: Options = None,
    allow_base: Bases = None,
) -> None:
    """All about one version: who made it and how, schema, fragments, config."""
    with _reporting(json, storage_option) as (output, options):
        table = ty.Table.open(uri, version=version, tag=tag, branch=branch, storage_options=options, allowed_bases=allow_base or ())
        output.show(shown(table, _shown_uri(uri)))


@app.command()
def check(
    uri: Uri,
    branch: Branch = None,
    json: Json = False,
    storage_option: Options = None,
    allow_base: Bases = None,
) -> None:
    """Is the table sound? Exit code 0: yes, 1: no, 2: it could not be looked at."""
    with _reporting(json, storage_option) as (output, options):
        with output.working("checking every version"):
            report = _checked(uri, branch, options, allow_base or [])
        output.check(report)
        if not report.ok:
            raise typer.Exit(PROBLEMS)


@app.command()
def cat(
    uri: Uri,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows.")] = 20,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    condition: Annotated[str | None, typer.Option("--filter", metavar="SQL", help="Only rows for which this holds.")] = None,
    version: Annotated[int | None, typer.Option("--version", metavar="N", help="A version; the latest by default.")] = None,
    tag: Tag = None,
    branch: Branch = None,
    json: Json = False,
    storage_option: Options = None,
    allow_base: Bases = None,
) -> None:
    """Some rows of a table."""
    with _reporting(json, storage_option) as (output, options):
        table = ty.Table.open(uri, version=version, tag=tag, branch=branch, storage_options=options, allowed_bases=allow_base or ())
        wanted = [name.strip() for name in columns.split(",")] if columns is not None else None
        output.cat(page(table, _shown_uri(uri), wanted, condition, limit))


@contextmanager
def _reporting(json: bool, given: list[str] | None) -> Iterator[tuple[Output, dict[str, str] | None]]:
    """The output to use and the storage options; an error of ours ends in a report and exit code 2."""
    output: Output = JsonOutput() if json else TextOutput()
    try:
        options = _storage_options(given or [])
        secrets = [value for value in options.values() if value.lower() not in ("true", "false")]
        output = JsonOutput(secrets) if json else TextOutput(secrets)
        yield output, options or None
    except ty.TiltyardError as error:
        output.error(error)
        raise typer.Exit(FAILED) from None


def _storage_options(given: list[str]) -> dict[str, str]:
    options = {}
    for number, text in enumerate(given, 1):
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            # The text itself stays unsaid: it may be a key somebody pasted.
            raise ty.InvalidInput(f"Storage option {number} is not of the form KEY=VALUE.", argument="storage_option")
        options[key.strip()] = value
    return options


def _shown_uri(uri: str) -> str:
    return redact(uri)


def _checked(uri: str, branch: str | None, options: dict[str, str] | None, allow_base: list[str]) -> ty.CheckReport:
    try:
        return ty.Table.open(uri, branch=branch, storage_options=options, allowed_bases=allow_base).check()
    except ty.CorruptTable as error:
        # The newest version cannot be opened, so nobody can ask it for the rest: that alone is an unsound table.
        problem = ty.Problem("I2", str(error))
        return ty.CheckReport(_shown_uri(uri), 0, 0, (problem,), (), ("everything else: the table cannot be opened",))


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
        code = SOUND
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    raise SystemExit(code)
