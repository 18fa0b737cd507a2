"""The commands that change columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

import pyarrow as pa
import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import commit_told, would
from tiltyard.cli.option_types import DryRun, Message, listed, pairs
from tiltyard.cli.row_files import Format, rows_from

app = typer.Typer(name="alter", help="Columns: add, drop, rename, cast, and whether they take nulls.", no_args_is_help=True)

Column = Annotated[str, typer.Argument(metavar="COLUMN", help="The column; s.x for a member of a struct.")]


@table_command(app)
def add(
    session: Session,
    values: Annotated[list[str] | None, typer.Option("--set", metavar="COLUMN=SQL", help="A column and its values; repeat.")] = None,
    null: Annotated[
        list[str] | None, typer.Option("--null", metavar="COLUMN=TYPE", help="A column that is null throughout, of an Arrow type; repeat.")
    ] = None,
    source: Annotated[str | None, typer.Option("--from", metavar="FILE", help="A file with the columns, and one to find rows by.")] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="COLUMN", help="The column that the file and the table share.")] = None,
    kind: Format = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FILE", help="Records finished fragments: the same command resumes after a crash."),
    ] = None,
    message: Message = None,
) -> None:
    """Add columns to all rows: by SQL expressions, null throughout, or from a file."""
    if (values is not None) + (null is not None) + (source is not None) != 1:
        raise ty.InvalidInput("Give one of --set, --null and --from.", argument="columns")
    if (on is None) != (source is None):
        raise ty.InvalidInput("--from needs --on, and only --from takes it.", argument="on")
    table = session.open()
    new: object
    if null is not None:
        new = pa.schema([pa.field(name, arrow_type(text)) for name, text in pairs(null, "null").items()])
    elif source is not None:
        new = rows_from(source, kind, table.schema).read_all()
    else:
        new = pairs(values or [], "set")
    with session.output.progress("adding columns") as progress:
        result = table.add_columns(new, on=on, backfill=ty.Backfill(progress=progress, checkpoint=checkpoint), message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result))


@table_command(app)
def drop(
    session: Session,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN...", help="The columns.")],
    dry_run: DryRun = False,
    message: Message = None,
) -> None:
    """Drop columns. Older versions keep them."""
    table = session.open()
    names = listed(columns)
    if dry_run:
        tops = {name.partition(".")[0] for name in names}
        if unknown := sorted(tops.difference(table.schema.names)):
            raise ty.InvalidInput(f"There is no column {unknown[0]!r}.", argument="columns")
        left = [name for name in table.schema.names if name not in names]
        line = f"{', '.join(names)} would be dropped from {session.shown_uri} at version {table.version}; left: {', '.join(left)}"
        session.output.told(would(session.shown_uri, table.branch, line, version=table.version, dropped=names, left=left))
        return
    result = table.drop_columns(names, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"dropped {', '.join(names)}"))


@table_command(app)
def rename(
    session: Session,
    column: Column,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    message: Message = None,
) -> None:
    """Rename a column."""
    table = session.open()
    result = table.alter_columns({"path": column, "name": name}, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"{column} is now {name}"))


@table_command(app)
def cast(
    session: Session,
    column: Column,
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Its new type, such as int64, string, timestamp[us] or decimal128(10, 2).")],
    message: Message = None,
) -> None:
    """Change the type of a column; refused if a value does not fit."""
    wanted = arrow_type(kind)
    table = session.open()
    with session.output.working(f"casting {column}"):
        result = table.alter_columns({"path": column, "data_type": wanted}, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result, f"{column} is now {wanted}"))


@table_command(app)
def nullable(
    session: Session,
    column: Column,
    allowed: Annotated[Literal["yes", "no"], typer.Argument(metavar="yes|no", help="Whether it takes nulls.")],
    message: Message = None,
) -> None:
    """Change whether a column takes nulls; refused if there are some already."""
    table = session.open()
    with session.output.working("looking for nulls"):
        result = table.alter_columns({"path": column, "nullable": allowed == "yes"}, message=message)
    what = f"{column} takes {'nulls' if allowed == 'yes' else 'no nulls'}"
    session.output.told(commit_told(session.shown_uri, table.branch, result, what))


_DECIMAL: Final = re.compile(r"decimal(128|256)?\s*\(\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*\)")
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([\w/+:-]+))?\]")
_FIXED: Final = re.compile(r"fixed_size_(?:list|binary)(?:<(?:item: )?(.+)>)?\[(\d{1,9})\]")
_LIST: Final = re.compile(r"(large_)?list<(?:item: )?(.+)>")

_ALIASES: Final[dict[str, Callable[[], pa.DataType]]] = {
    "large_string": pa.large_string,
    "large_binary": pa.large_binary,
    "float": pa.float32,
}


def arrow_type(text: str) -> pa.DataType:
    """The type a text names.

    >>> str(arrow_type("decimal(10, 2)")), str(arrow_type("fixed_size_list<float>[8]"))
    ('decimal128(10, 2)', 'fixed_size_list<item: float>[8]')
    """
    wanted = text.strip()
    try:
        return _nested(wanted) or (_ALIASES[wanted]() if wanted in _ALIASES else pa.type_for_alias(wanted))
    except (ValueError, pa.ArrowException, RecursionError) as error:
        if isinstance(error, ty.InvalidInput):
            raise
        advice = "Write int64, double, string, bool, date32, timestamp[us], decimal128(10, 2), list<int64> or fixed_size_list<float>[8]."
        raise ty.InvalidInput(f"{text[:60]!r} is not an Arrow type.", argument="type", advice=advice) from None


def _nested(text: str) -> pa.DataType | None:
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal256 if found[1] == "256" else pa.decimal128
        return make(int(found[2]), int(found[3]))
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _FIXED.fullmatch(text):
        return pa.list_(arrow_type(found[1]), int(found[2])) if found[1] else pa.binary(int(found[2]))
    if found := _LIST.fullmatch(text):
        return (pa.large_list if found[1] else pa.list_)(arrow_type(found[2]))
    return None
