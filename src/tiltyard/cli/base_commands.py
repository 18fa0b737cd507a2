"""The commands about places beside a table's directory where files of it may lie."""

from __future__ import annotations

from typing import Annotated

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import CommandMessage, Grid, commit_told
from tiltyard.cli.option_types import Message, Tag, Version
from tiltyard.redact import redact

app = typer.Typer(name="base", help="Bases: further places that data files of a table may be written to.", no_args_is_help=True)


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
    as_table: Annotated[bool, typer.Option("--as-table", help="Files lie in data/ there, as in a table, instead of directly.")] = False,
    message: Message = None,
) -> None:
    """Add a base. All who open the table then have to allow it, unless it lies inside."""
    table = session.open()
    result = table.settings.add_bases([path] if name is None else {name: path}, is_dataset_root=as_table, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"added {_called(table.layout.bases[-1])}"))


def _called(base: ty.ops.BasePath) -> str:
    return f"base {base.id}" + (f" ({base.name})" if base.name else "")
