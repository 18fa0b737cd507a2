"""The commands about a table's config."""

from __future__ import annotations

from typing import Annotated

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import CommandMessage, Grid, commit_told
from tiltyard.cli.option_types import Message, Tag, Version, pairs
from tiltyard.redact import redact_options

app = typer.Typer(
    name="config", help="The table's config, which readers and writers follow. Values that look secret are not shown.", no_args_is_help=True
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="Which one.")]
Meta = Annotated[bool, typer.Option("--metadata", help="The table's metadata instead of its config.")]


@table_command(app, "list")
def list_(session: Session, metadata: Meta = False, version: Version = None, tag: Tag = None) -> None:
    """All keys and values."""
    table = session.open(version=version, tag=tag)
    found = redact_options(table.settings.metadata if metadata else table.settings.config)
    what = "metadata" if metadata else "config"
    document = {"uri": session.shown_uri, "branch": table.branch, "version": table.version, what: found}
    notes = () if found else (f"Version {table.version} of {session.shown_uri} has no {what}.",)
    session.output.told(CommandMessage(document, grid=Grid(("key", "value"), sorted(found.items())), notes=notes))


@table_command(app)
def get(session: Session, key: Key, metadata: Meta = False, version: Version = None, tag: Tag = None) -> None:
    """The value of one key."""
    table = session.open(version=version, tag=tag)
    found = redact_options(table.settings.metadata if metadata else table.settings.config)
    if key not in found:
        known = ", ".join(sorted(found)[:5]) or "none"
        raise ty.NotFound(f"There is no key {key!r} at version {table.version}; there is: {known}.", name=key)
    document = {"uri": session.shown_uri, "branch": table.branch, "version": table.version, "key": key, "value": found[key]}
    session.output.told(CommandMessage(document, line=found[key]))


@table_command(app, "set")
def set_(
    session: Session,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="What to set.")],
    metadata: Meta = False,
    message: Message = None,
) -> None:
    """Set keys, all in one commit."""
    _change(session, dict(pairs(values, "setting")), metadata, message)


@table_command(app)
def unset(
    session: Session,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="What to remove.")],
    metadata: Meta = False,
    message: Message = None,
) -> None:
    """Remove keys, all in one commit."""
    _change(session, dict.fromkeys(keys), metadata, message)


def _change(session: Session, values: dict[str, str | None], metadata: bool, message: str | None) -> None:
    table = session.open()
    change = table.settings.update_metadata if metadata else table.update_config
    result = change(values, message=message)
    what = f"{'removed' if None in values.values() else 'set'} {', '.join(values)}"
    session.output.told(commit_told(session.shown_uri, table.branch, result, what))
