"""The commands about tags and branches of a lake."""

from __future__ import annotations

from typing import Any

import typer

from tiltyard.cli.lake_commands import At, LakeSession, Name, clock_time, lake_command, when
from tiltyard.cli.messages import Grid, count
from tiltyard.cli.option_types import DryRun

tags = typer.Typer(name="tag", help="Tags: names for snapshots of the whole lake, which cleanup keeps.", no_args_is_help=True)
branches = typer.Typer(name="branch", help="Branches: lines of history over all tables.", no_args_is_help=True)


@lake_command(tags, "list")
def list_tags(session: LakeSession) -> None:
    """All tags and the snapshots they name."""
    with session.opened() as lake:
        found = lake.tags.list()
    rows = [(tag.name, str(tag.snapshot), tag.branch, clock_time(tag.created)) for tag in found]
    notes = () if found else (f"{session.shown_uri} has no tags.",)
    session.told(
        {"tags": [_tag(tag) for tag in found]}, grid=Grid(("tag", "snapshot", "branch", "made (UTC)"), rows, frozenset({1})), notes=notes
    )


@lake_command(tags, "create", branched=True)
def create_tag(session: LakeSession, name: Name, at: At = None) -> None:
    """Name a snapshot; cleanup then keeps all it needs."""
    with session.opened() as lake:
        tag = lake.tags.create(name, when(at))
    session.told({"created": True, "tag": _tag(tag)}, "created", f"tag {name} of snapshot {tag.snapshot} of {session.shown_uri}")


@lake_command(tags, "delete")
def delete_tag(session: LakeSession, name: Name, dry_run: DryRun = False) -> None:
    """Forget a tag. The snapshot stays until it is cleaned up."""
    with session.opened() as lake:
        tag = lake.tags[name]
        if not dry_run:
            lake.tags.delete(name)
    word, notes = ("dry run", ("Nothing was changed.",)) if dry_run else ("deleted", ())
    session.told(
        {"deleted": not dry_run, "dry_run": dry_run, "tag": _tag(tag)}, word, f"tag {name} of snapshot {tag.snapshot}", notes=notes
    )


def _tag(tag: Any) -> dict[str, Any]:
    return {"name": tag.name, "snapshot": tag.snapshot, "branch": tag.branch, "created": tag.created.isoformat()}


@lake_command(branches, "list")
def list_branches(session: LakeSession) -> None:
    """All branches but main, and where they began."""
    with session.opened() as lake:
        found = lake.branches.list()
    rows = [(branch.name, branch.origin, str(branch.snapshot), clock_time(branch.created)) for branch in found]
    notes = () if found else (f"{session.shown_uri} has no branches but main.",)
    grid = Grid(("branch", "from", "snapshot", "made (UTC)"), rows, frozenset({2}))
    session.told({"branches": [_branch(branch) for branch in found]}, grid=grid, notes=notes)


@lake_command(branches, "create", branched=True)
def create_branch(session: LakeSession, name: Name, at: At = None) -> None:
    """Create a branch of all tables. Nothing is copied; a table is branched at its first write there."""
    with session.opened() as lake:
        branch = lake.branches.create(name, when(at))
    line = f"branch {name} of {session.shown_uri}, begun at snapshot {branch.snapshot} of {branch.origin}"
    session.told({"created": True, "branch": _branch(branch)}, "created", line)


@lake_command(branches, "delete")
def delete_branch(session: LakeSession, name: Name, dry_run: DryRun = False) -> None:
    """End a line of history. Its files go when the lake is cleaned up."""
    with session.opened() as lake:
        branch = lake.branches[name]
        if not dry_run:
            lake.branches.delete(name)
    word, notes = ("dry run", ("Nothing was changed.",)) if dry_run else ("deleted", ())
    session.told({"deleted": not dry_run, "dry_run": dry_run, "branch": _branch(branch)}, word, f"branch {name}", notes=notes)


@lake_command(branches, "fast-forward")
def fast_forward(session: LakeSession, name: Name) -> None:
    """Bring main to where a branch is, in one commit; the branch then restarts from there."""
    with session.opened() as lake:
        done = lake.branches.fast_forward(name)
    document = {
        "committed": True,
        "branch": name,
        "snapshot": done.snapshot,
        "transaction": done.transaction_id,
        "tables": dict(done.tables),
    }
    line = f"snapshot {done.snapshot} of main, with {count(len(done.tables), 'table')} of branch {name}"
    session.told(document, "committed", line, [("transaction", done.transaction_id)])


def _branch(branch: Any) -> dict[str, Any]:
    return {"name": branch.name, "origin": branch.origin, "snapshot": branch.snapshot, "created": branch.created.isoformat()}
