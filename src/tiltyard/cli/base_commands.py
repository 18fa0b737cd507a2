"""The commands about places beside a table's directory where files of it may lie, and clones, which refer to such places."""

from __future__ import annotations

from typing import Annotated

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command, version_or_tag
from tiltyard.cli.messages import CommandMessage, Grid, commit_told
from tiltyard.cli.option_types import Message, Tag, Version
from tiltyard.redact import redact

app = typer.Typer(name="base", help="Bases: further places that data files of a table may be written to.", no_args_is_help=True)
clones = typer.Typer()


@table_command(app, "list")
def list_(session: Session, version: Version = None, tag: Tag = None) -> None:
    """All bases."""
    table = session.open(version=version, tag=tag)
    found = [
        {"id": base.id, "name": base.name, "path": redact(base.path), "is_dataset_root": base.is_dataset_root}
        for base in table.layout.bases
    ]
    document = {"uri": session.shown_uri, "branch": table.branch, "version": table.version, "bases": found}
    rows = [
        (str(base.id), base.name or "", "a table" if base.is_dataset_root else "files", redact(base.path)) for base in table.layout.bases
    ]
    notes = () if found else (f"Version {table.version} of {session.shown_uri} has no bases.",)
    session.output.told(CommandMessage(document, grid=Grid(("id", "name", "laid out as", "path"), rows, frozenset({0})), notes=notes))


@table_command(app)
def add(
    session: Session,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Where it is: an absolute path or a URI; see --allow-base.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it.")] = None,
    as_table: Annotated[bool, typer.Option("--as-table", help="Files are in data/ below it, as in a table, not directly in it.")] = False,
    message: Message = None,
) -> None:
    """Add a base. Readers and writers then have to allow it (--allow-base), unless it is inside the table."""
    table = session.open()
    result = table.settings.add_bases([path] if name is None else {name: path}, is_dataset_root=as_table, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"added {_called(table.layout.bases[-1])}"))


def _called(base: ty.ops.BasePath) -> str:
    return f"base {base.id}" + (f" ({base.name})" if base.name else "")


@table_command(clones)
def clone(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where to make the new table.")],
    deep: Annotated[bool, typer.Option("--deep", help="Copy all files, instead of referring to them.")] = False,
    version: Version = None,
    tag: Tag = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many files are copied at a time.")] = 8,
    message: Message = None,
) -> None:
    """Make a new table with the content of a version. A shallow one needs --allow-base to be opened."""
    table = session.open()
    with session.output.progress("copying", in_bytes=True) as progress:
        how = ty.CloneOptions(workers, progress)
        result = table.clone(target, not deep, version_or_tag(version, tag), options=how, message=message)
    shown = redact(target)
    told = commit_told(
        shown, None, result, f"a {'deep' if deep else 'shallow'} clone of {session.shown_uri}", source=session.shown_uri, deep=deep
    )
    notes = () if deep else (f"Its files stay in {session.shown_uri}: open it with --allow-base, and tag the version it was made from.",)
    session.output.told(CommandMessage(told.document, told.verdict, told.line, told.facts, notes=notes))
