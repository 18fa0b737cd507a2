"""The commands that compare branches of a lake and bring them together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.command_session import PROBLEMS
from tiltyard.cli.lake_commands import LakeSession, lake_command
from tiltyard.cli.lake_recovery import app
from tiltyard.cli.messages import Grid, count
from tiltyard.cli.option_types import DryRun

__all__ = ["app"]  # the same as in `lake`, with these commands added

Before = Annotated[str, typer.Argument(metavar="BEFORE", help="A branch, a tag, a snapshot's number, or BRANCH@NUMBER.")]
After = Annotated[str, typer.Argument(metavar="AFTER", help="The snapshot to compare it with, written the same way.")]


@lake_command(app, branched=True)
def diff(
    session: LakeSession,
    before: Before,
    after: After,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="Show the rows of this table that differ.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows.")] = 20,
    begin: Annotated[int, typer.Option("--after", min=0, help="Where to continue: `next` of the previous page.")] = 0,
) -> None:
    """What differs between two snapshots: tables, columns, settings, rows."""
    with session.opened() as lake:
        found = lake.diff(_ref(before), _ref(after))
        if table is not None:
            _tell_rows(session, table, found.rows(table, limit=limit, after=begin))
            return
        document = found.to_dict()
    rows = [_line(part) for part in found.tables]
    grid = Grid(("table", "change", "columns", "added", "removed", "changed"), rows, frozenset({3, 4, 5}))
    notes = () if rows else (f"{before} and {after} do not differ.",)
    session.told(document, grid=grid, notes=notes)


def _ref(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _line(part: ty.merges.TableDifference) -> tuple[str, ...]:
    name = f"{part.table} (was {part.former})" if part.former else part.table
    columns = ", ".join(
        f"{'+' if before is None else '-' if after is None else '~'}{column}" for column, (before, after) in part.columns.items()
    )
    return name, part.change, columns, f"{part.added:,}", f"{part.removed:,}", f"{part.changed:,}"


def _tell_rows(session: LakeSession, table: str, page: ty.merges.RowPage) -> None:
    signs = {"added": "+", "removed": "-", "changed": "~"}
    rows = [(signs[row.change], _shown(row.before), _shown(row.after)) for row in page.rows]
    document: dict[str, Any] = {
        "table": table,
        "rows": [{"change": row.change, "before": row.before, "after": row.after} for row in page.rows],
        "next": page.next,
    }
    more = (f"More rows: --after {page.next}",) if page.next is not None else ()
    notes = more if rows else (f"No row of {table} differs.",)
    session.told(document, line=count(len(rows), "row"), grid=Grid(("", "before", "after"), rows), notes=notes)


def _shown(row: dict[str, Any] | None) -> str:
    return "" if row is None else ", ".join(f"{name}={value!r}" for name, value in row.items())[:200]


OnConflict = Annotated[
    list[str] | None,
    typer.Option("--on-conflict", metavar="WHO", help="ours or theirs; or TABLE=ours, TABLE=theirs, as often as needed."),
]
Message = Annotated[str | None, typer.Option("--message", "-m", help="A sentence for the history.")]
Into = Annotated[str, typer.Option("--into", metavar="BRANCH", help="The branch that changes.")]
Number = Annotated[int, typer.Argument(metavar="SNAPSHOT", help="A snapshot's number; see `tiltyard lake log`.")]
On = Annotated[str, typer.Option("--on", metavar="BRANCH", help="The branch of the snapshot, which changes.")]


@lake_command(app)
def merge(
    session: LakeSession,
    source: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to merge.")],
    into: Into = "main",
    on_conflict: OnConflict = None,
    message: Message = None,
    dry_run: DryRun = False,
) -> None:
    """Merge a branch into another, in one commit. Exit code 1: a dry run found conflicts."""
    with session.opened() as lake:
        done = lake.branches.merge(source, into, on_conflict=_answers(on_conflict or []), message=message, dry_run=dry_run)
    _tell(session, done, f"{into} has all of {source}", f"of {source}")


@lake_command(app)
def rebase(
    session: LakeSession,
    behind: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to bring up to date.")],
    onto: Annotated[str | None, typer.Option("--onto", metavar="BRANCH", help="Its target; the one it was made from by default.")] = None,
    on_conflict: OnConflict = None,
    message: Message = None,
    dry_run: DryRun = False,
) -> None:
    """Bring a branch up to date with its target, in one commit. ours is the branch. Exit code 1: a dry run found conflicts."""
    with session.opened() as lake:
        done = lake.branches.rebase(behind, onto, on_conflict=_answers(on_conflict or []), message=message, dry_run=dry_run)
    _tell(session, done, f"{behind} has all of {done.source}", f"of {done.source}")


@lake_command(app, "cherry-pick")
def cherry_pick(
    session: LakeSession,
    source: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch of the snapshot.")],
    snapshot: Number,
    into: Into = "main",
    on_conflict: OnConflict = None,
    message: Message = None,
    dry_run: DryRun = False,
) -> None:
    """Bring what one snapshot of a branch changed to another, in one commit. Exit code 1: a dry run found conflicts."""
    with session.opened() as lake:
        done = lake.branches.cherry_pick(
            source, snapshot, into, on_conflict=_answers(on_conflict or []), message=message, dry_run=dry_run
        )  # fmt: skip
    _tell(session, done, f"{into} has snapshot {snapshot} of {source}", f"of snapshot {snapshot} of {source}")


@lake_command(app)
def revert(
    session: LakeSession,
    snapshot: Number,
    on: On = "main",
    on_conflict: OnConflict = None,
    message: Message = None,
    dry_run: DryRun = False,
    all_writers: Annotated[bool, typer.Option("--all-writers", help="Also where several transactions were committed together.")] = False,
) -> None:
    """Revert what one snapshot changed, in one commit; later changes stay. Exit code 1: a dry run found conflicts."""
    answers = _answers(on_conflict or [])
    with session.opened() as lake:
        done = lake.branches.revert(snapshot, on, on_conflict=answers, message=message, dry_run=dry_run, all_writers=all_writers)
    _tell(session, done, f"nothing of snapshot {snapshot} is left to revert", f"without snapshot {snapshot}")


@lake_command(app, "restore-snapshot")
def restore_snapshot(session: LakeSession, snapshot: Number, on: On = "main", message: Message = None, dry_run: DryRun = False) -> None:
    """Give all tables the content of a snapshot, in one commit; the history stays. (`lake restore` is about a lost catalog.)"""
    with session.opened() as lake:
        done = lake.branches.restore(snapshot, on, message=message, dry_run=dry_run)
    _tell(session, done, f"{on} is as at snapshot {snapshot}", f"as at snapshot {snapshot}")


def _tell(session: LakeSession, done: ty.merges.MergeResult, nothing: str, which: str) -> None:
    """What a merge and its kin came to: that there was nothing to do, or which tables came."""
    grid = Grid(("table", "how", "added", "removed", "left out"), [_merged(table) for table in done.tables], frozenset({2, 3}))
    notes = [f"conflict in {conflict.table} ({conflict.kind}): {conflict.detail}" for conflict in done.conflicts]
    if done.up_to_date:
        session.told(done.to_dict(), "up to date", nothing)
        return
    if done.dry_run:
        word, line = "conflicts" if done.conflicts else "dry run", f"{count(len(done.tables), 'table')} of {done.target} would change"
        session.told(done.to_dict(), word, line, grid=grid, notes=[*notes, "Nothing was changed."], warning=bool(done.conflicts))
        if done.conflicts:
            raise typer.Exit(PROBLEMS)
        return
    line = f"snapshot {done.snapshot} of {done.target}, with {count(len(done.tables), 'table')} {which}"
    session.told(done.to_dict(), "committed", line, [("transaction", done.transaction_id)], grid=grid)


def _answers(given: list[str]) -> Any:
    """What ``on_conflict`` takes, from the command line."""
    if not given:
        return "fail"
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return {table: use for table, _, use in (text.rpartition("=") for text in given)}


def _merged(table: ty.merges.TableMerge) -> tuple[str, ...]:
    return table.table, table.how, f"{table.added:,}", f"{table.removed:,}", ", ".join(table.left_out)
