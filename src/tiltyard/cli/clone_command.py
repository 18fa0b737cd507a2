"""The command that makes another table of one."""

from __future__ import annotations

from typing import Annotated

import typer

from tiltyard.cli.command_session import Session, table_command, version_or_tag
from tiltyard.cli.messages import CommandMessage, commit_told
from tiltyard.cli.option_types import Message, Tag, Version
from tiltyard.redact import redact

app = typer.Typer()


@table_command(app)
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
        result = table.clone(target, not deep, version_or_tag(version, tag), progress=progress, workers=workers, message=message)
    shown = redact(target)
    told = commit_told(
        shown, None, result, f"a {'deep' if deep else 'shallow'} clone of {session.shown_uri}", source=session.shown_uri, deep=deep
    )
    notes = () if deep else (f"Its files stay in {session.shown_uri}: open it with --allow-base, and tag the version it was made of.",)
    session.output.told(CommandMessage(told.document, told.verdict, told.line, told.facts, notes=notes))
