"""The commands that change rows."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import commit_told, count, would
from tiltyard.cli.option_types import DryRun, Message, Where, listed, pairs
from tiltyard.cli.row_files import Format, Source, rows_from

app = typer.Typer()

Columns = list[str] | None
Condition = str | None
Base = Annotated[str | None, typer.Option("--base", metavar="BASE", help="Write data files to this base: its name, id or path.")]


@table_command(app)
def append(
    session: Session,
    source: Source,
    kind: Format = None,
    on_duplicate: Annotated[
        Literal["error", "allow"], typer.Option("--on-duplicate", help="What to do about existing and duplicate keys.")
    ] = "error",
    base: Base = None,
    message: Message = None,
) -> None:
    """Add the rows of a file."""
    table = session.open()
    with session.output.working("appending"):
        rows = rows_from(source, kind, table.schema)
        result = table.append(rows, on_duplicate=on_duplicate, files=_files(table, base), message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result))


@table_command(app)
def delete(session: Session, where: Where, dry_run: DryRun = False, message: Message = None) -> None:
    """Delete the rows for which a condition holds."""
    table = session.open()
    if dry_run:
        _would_touch(session, table, where, "deleted")
        return
    with session.output.working("deleting"):
        result = table.delete(where, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result))


@table_command(app)
def update(
    session: Session,
    values: Annotated[list[str], typer.Option("--set", metavar="COLUMN=SQL", help="A column and its new value; repeat.")],
    where: Annotated[str | None, typer.Option("--where", metavar="SQL", help="Which rows; all by default.")] = None,
    mode: Annotated[
        Literal["auto", "rows", "columns"],
        typer.Option("--mode", help="Whether changed rows move or columns are rewritten where they are."),
    ] = "auto",
    dry_run: DryRun = False,
    message: Message = None,
) -> None:
    """Give columns new values, by SQL expressions over the row as it was."""
    assigned = pairs(values, "set")
    table = session.open()
    if dry_run:
        if unknown := sorted(name for name in assigned if name.partition(".")[0] not in table.schema.names):
            raise ty.InvalidInput(f"There is no column {unknown[0]!r}.", argument="set")
        table.to_arrow(assigned, where, limit=1)  # an expression that means nothing is found here
        _would_touch(session, table, where, "updated")
        return
    with session.output.working("updating"):
        result = table.update(assigned, where, mode, message=message)
    session.output.told(commit_told(session.shown_uri, table.branch, result))


@table_command(app)
def merge(
    session: Session,
    source: Source,
    kind: Format = None,
    on: Annotated[Columns, typer.Option("--on", metavar="A,B", help="Columns rows are matched by; the primary key by default.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Rows in both take all columns of the file.")] = False,
    update_columns: Annotated[Columns, typer.Option("--update-columns", metavar="A,B", help="Rows in both take these columns.")] = None,
    update_if: Annotated[
        Condition, typer.Option("--update-if", metavar="SQL", help="Only if this holds of source. and target. columns.")
    ] = None,
    insert: Annotated[bool, typer.Option("--insert", help="Rows that only the file has are inserted.")] = False,
    delete_matched: Annotated[bool, typer.Option("--delete-matched", help="Rows in both are deleted.")] = False,
    delete_matched_if: Annotated[Condition, typer.Option("--delete-matched-if", metavar="SQL", help="Those for which this holds.")] = None,
    delete_unmatched: Annotated[bool, typer.Option("--delete-unmatched", help="Rows that only the table has are deleted.")] = False,
    delete_unmatched_if: Annotated[
        Condition, typer.Option("--delete-unmatched-if", metavar="SQL", help="Those for which this holds.")
    ] = None,
    fail_matched: Annotated[bool, typer.Option("--fail-matched", help="If a row is in both, fail and change nothing.")] = False,
    allow_duplicates: Annotated[bool, typer.Option("--allow-duplicates", help="Merge on other columns than the primary key.")] = False,
    base: Base = None,
    message: Message = None,
) -> None:
    """Merge the rows of a file by key. An upsert is --update --insert."""
    table = session.open()
    rows = rows_from(source, kind, table.schema)
    wanted = table.merge(rows, on=listed(on) or None, allow_duplicates=allow_duplicates, files=_files(table, base))
    if delete_matched or delete_matched_if is not None:
        wanted = wanted.when_matched_delete(delete_matched_if)
    if update_columns:
        wanted = wanted.when_matched_update(listed(update_columns), update_if)
    elif update or update_if is not None:
        wanted = wanted.when_matched_update_all(update_if)
    if fail_matched:
        wanted = wanted.when_matched_fail()
    if insert:
        wanted = wanted.when_not_matched_insert_all()
    if delete_unmatched or delete_unmatched_if is not None:
        wanted = wanted.when_not_matched_by_source_delete(delete_unmatched_if)
    with session.output.working("merging"):
        try:
            result = wanted.execute(message=message)
        except ty.InvalidInput as error:
            raise error.advised("Say what to do, such as --update --insert.") if error.argument == "merge" else error from None
    session.output.told(commit_told(session.shown_uri, table.branch, result))


def _files(table: ty.Table, base: str | None) -> ty.FileLimits:
    """Where files go, with the base as the command line names it: a number is an id, unless one is called so."""
    is_id = base is not None and base.isascii() and base.isdecimal() and base not in {known.name for known in table.layout.bases}
    return ty.FileLimits(base=int(base) if base is not None and is_id else base)


def _would_touch(session: Session, table: ty.Table, where: str | None, how: str) -> None:
    with session.output.working("counting"):
        rows = table.count_rows(where)
    line = f"{count(rows, 'row')} of {table.count_rows():,} would be {how}, at version {table.version} of {session.shown_uri}"
    session.output.told(would(session.shown_uri, table.branch, line, version=table.version, rows={how: rows}))
