"""The commands about tags and branches of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.lake_commands import At, LakeSession, Name, clock_time, lake_command, when
from tiltyard.cli.messages import Grid, count, size
from tiltyard.cli.option_types import DryRun

Author = Annotated[str | None, typer.Option("--author", metavar="NAME", help="The author of the change; user and machine by default.")]

tags = typer.Typer(name="tag", help="Tags: names for snapshots of the whole lake, which cleanup keeps.", no_args_is_help=True)
branches = typer.Typer(name="branch", help="Branches: lines of history over all tables.", no_args_is_help=True)


SizesToo = Annotated[bool, typer.Option("--sizes", help="Show how many bytes each holds, in all and alone.")]


@lake_command(tags, "list")
def list_tags(session: LakeSession, sizes: SizesToo = False) -> None:
    """All tags and the snapshots they name."""
    with session.opened() as lake:
        found = lake.tags.list()
        held = lake.tags.sizes() if sizes else []
    if sizes:
        _tell_sizes(session, "tag", held, () if held else (f"{session.shown_uri} has no tags.",))
        return
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
    """Delete a tag. The snapshot stays until it is cleaned up."""
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
def list_branches(session: LakeSession, sizes: SizesToo = False) -> None:
    """All branches but main, and where they began."""
    with session.opened() as lake:
        if sizes:
            _tell_sizes(session, "branch", lake.branches.sizes())
            return
        found = lake.branches.list()
        rules = {name: lake.branches.protection(name) for name in ("main", *(branch.name for branch in found))}
    rows = [(branch.name, branch.origin, str(branch.snapshot), clock_time(branch.created)) for branch in found]
    notes = [] if found else [f"{session.shown_uri} has no branches but main."]
    notes += [f"{name} is protected: {_rule(rule)}" for name, rule in rules.items() if rule is not None]
    grid = Grid(("branch", "from", "snapshot", "made (UTC)"), rows, frozenset({2}))
    protected = {name: asdict(rule) for name, rule in rules.items() if rule is not None}
    session.told({"branches": [_branch(branch) for branch in found], "protected": protected}, grid=grid, notes=notes)


def _tell_sizes(session: LakeSession, kind: str, sizes: Sequence[ty.merges.RefSize], notes: Sequence[str] = ()) -> None:
    rows = [(held.name, str(held.snapshot), str(held.tables), size(held.bytes), size(held.own)) for held in sizes]
    grid = Grid((kind, "snapshot", "tables", "holds", "alone"), rows, frozenset({1, 2, 3, 4}))
    session.told({"sizes": [asdict(held) for held in sizes]}, grid=grid, notes=notes)


def _rule(rule: ty.merges.BranchProtection) -> str:
    who = "" if rule.writers is None else f"writers {', '.join(rule.writers)}"
    what = f"checks {', '.join(rule.checks)}" if rule.checks else ""
    return "; ".join(part for part in (who, what) if part)


@lake_command(branches, "create", branched=True)
def create_branch(session: LakeSession, name: Name, at: At = None) -> None:
    """Create a branch of all tables. Nothing is copied; a table is branched at its first write there."""
    with session.opened() as lake:
        branch = lake.branches.create(name, when(at))
    line = f"branch {name} of {session.shown_uri}, begun at snapshot {branch.snapshot} of {branch.origin}"
    session.told({"created": True, "branch": _branch(branch)}, "created", line)


@lake_command(branches, "delete")
def delete_branch(session: LakeSession, name: Name, dry_run: DryRun = False) -> None:
    """Delete a branch. Its files are removed when the lake is cleaned up."""
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


@lake_command(branches, "protect")
def protect(
    session: LakeSession,
    name: Name,
    writer: Annotated[list[str] | None, typer.Option("--writer", metavar="AUTHOR", help="Who may commit to it; repeat.")] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME", help="What a branch must have passed before it is merged; repeat.")
    ] = None,
    author: Author = None,
) -> None:
    """Protect a branch, or change its rule: who may write, and what must be checked before a merge."""
    with session.opened() as lake:
        rule = (lake if author is None else lake.signed(author)).branches.protect(name, writers=writer or None, checks=check or [])
    session.told({"protected": True, "branch": name, **asdict(rule)}, "protected", f"branch {name}: {_rule(rule)}")


@lake_command(branches, "unprotect")
def unprotect(session: LakeSession, name: Name, author: Author = None) -> None:
    """Remove the protection of a branch."""
    with session.opened() as lake:
        (lake if author is None else lake.signed(author)).branches.unprotect(name)
    session.told({"protected": False, "branch": name}, "unprotected", f"branch {name}")


@lake_command(branches, "check")
def report_check(
    session: LakeSession,
    name: Name,
    check: Annotated[str | None, typer.Argument(metavar="CHECK", help="What was checked; without it, all results are shown.")] = None,
    passed: Annotated[bool | None, typer.Option("--passed/--failed", help="The result of the check.")] = None,
    snapshot: Annotated[int | None, typer.Option("--snapshot", help="The snapshot that was checked; the latest by default.")] = None,
    detail: Annotated[str, typer.Option("--detail", help="A sentence about the result.")] = "",
    author: Author = None,
) -> None:
    """Record the result of a check of a branch, or show the results. A result counts for its snapshot only."""
    if (check is None) != (passed is None):
        raise ty.InvalidInput("Give a CHECK together with --passed or --failed.", argument="check")
    with session.opened() as lake:
        if check is not None and passed is not None:
            signed = lake if author is None else lake.signed(author)
            signed.branches.report_check(name, check, passed, snapshot=snapshot, detail=detail)
        found = lake.branches.checks(name)
    rows = [(result.name, "passed" if result.passed else "failed", str(result.snapshot), result.author, result.detail) for result in found]
    document = {"branch": name, "checks": [{**asdict(result), "at": result.at.isoformat()} for result in found]}
    grid = Grid(("check", "result", "snapshot", "author", "detail"), rows, frozenset({2}))
    session.told(document, grid=grid, notes=() if rows else (f"No check of {name} was reported.",))


def _branch(branch: Any) -> dict[str, Any]:
    return {"name": branch.name, "origin": branch.origin, "snapshot": branch.snapshot, "created": branch.created.isoformat()}
