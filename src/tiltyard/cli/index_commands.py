"""The commands about indices."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import CommandMessage, Grid, commit_told, count, size
from tiltyard.cli.option_types import Message, Tag, Version, pairs
from tiltyard.cli.output import Progress

app = typer.Typer(name="index", help="Indices: list, create, optimize, drop.", no_args_is_help=True)

Column = Annotated[str, typer.Argument(metavar="COLUMN", help="The column; s.x for a member of a struct.")]
Kind = Annotated[str, typer.Argument(metavar="TYPE", help="BTREE, BITMAP, INVERTED, IVF_PQ, ...")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")]


@table_command(app, "list")
def list_(session: Session, version: Version = None, tag: Tag = None) -> None:
    """The indices of a version, with what they cover and what they do not."""
    table = session.open(version=version, tag=tag)
    found = table.indices.list()
    document = {"uri": session.shown_uri, "branch": table.branch, "version": table.version, "indices": [_plain(index) for index in found]}
    rows = [
        (
            index.name,
            index.type,
            ", ".join(index.columns),
            f"{index.rows:,}",
            f"{index.missing_rows:,}",
            str(len(index.segments)),
            "?" if index.bytes is None else size(index.bytes),
        )
        for index in found
    ]
    header = ("index", "type", "columns", "rows", "not covered", "parts", "size")
    notes = () if found else (f"Version {table.version} of {session.shown_uri} has no indices.",)
    session.output.told(CommandMessage(document, grid=Grid(header, rows, frozenset({3, 4, 5, 6})), notes=notes))


def _plain(index: Any) -> dict[str, Any]:
    return {**asdict(index), "created": index.created.isoformat() if index.created else None}


@table_command(app)
def create(
    session: Session,
    column: Column,
    kind: Kind,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an index of that name.")] = False,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of this index type, as pylance takes it; repeat.")
    ] = None,
    message: Message = None,
) -> None:
    """Build an index over all rows. Others may write meanwhile."""
    options = {key: _value(text) for key, text in pairs(option or [], "option").items()}
    table = session.open()
    with session.output.progress(f"indexing {column}") as progress:
        spec = ty.IndexSpec(kind, options, _staged(progress))
        result = table.indices.create(column, spec, name, replace=replace, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result))


@table_command(app)
def drop(session: Session, name: Name, message: Message = None) -> None:
    """Drop an index. Older versions keep it."""
    table = session.open()
    result = table.indices.drop(name, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"dropped {name}"))


@table_command(app)
def optimize(
    session: Session,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Which ones; all by default.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge each index into one segment, instead of adding a segment.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Rebuild them, including the partitions of vector indices.")] = False,
    message: Message = None,
) -> None:
    """Bring indices up to date: add the rows they do not cover."""
    table = session.open()
    with session.output.progress("indexing") as progress:
        result = table.indices.optimize(names or None, merge=merge, retrain=retrain, progress=_staged(progress), message=message)
    left = sum(index.missing_rows for index in table.indices.list())
    what = f"{count(left, 'row')} still not covered" if left else ""
    session.output.told(commit_told(session.shown_uri, table.branch, result, what, missing_rows=left))


def _staged(progress: Progress) -> Callable[..., None]:
    """Progress that comes stage by stage, each counting anew."""
    return lambda stage, done, total: progress(done, total)


def _value(text: str) -> Any:
    """Numbers, true and false as such; everything else is text."""
    try:
        return json_text.loads(text)
    except ValueError:
        return text
