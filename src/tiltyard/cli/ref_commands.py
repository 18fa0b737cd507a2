"""The commands about tags and branches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.command_session import Session, table_command
from tiltyard.cli.messages import CommandMessage, Grid, count, would
from tiltyard.cli.option_types import DryRun, Version, pairs
from tiltyard.redact import redact_options

tags = typer.Typer(name="tag", help="Tags: names for versions, which cleanup keeps.", no_args_is_help=True)
branches = typer.Typer(name="branch", help="Branches: lines of history of their own.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")]
Metadata = Annotated[list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Anything to remember with it; repeat.")]


# ---- tags --------------------------------------------------------------------------------------------------------------------


@table_command(tags, "list", branches=False)
def list_tags(session: Session) -> None:
    """All tags and the versions they name."""
    found = sorted(session.open().tags.items())
    document = {"uri": session.shown_uri, "tags": [_tag(name, tag) for name, tag in found]}
    rows = [(name, str(tag.version), tag.branch or "main", _moment(tag.updated_at or tag.created_at)) for name, tag in found]
    notes = () if found else (f"{session.shown_uri} has no tags.",)
    session.output.told(CommandMessage(document, grid=Grid(("tag", "version", "branch", "time (UTC)"), rows, frozenset({1})), notes=notes))


@table_command(tags, "create")
def create_tag(session: Session, name: Name, version: Version = None, metadata: Metadata = None) -> None:
    """Name a version, of the latest by default."""
    tag = session.open().tags.create(name, version, branch=session.branch, metadata=pairs(metadata or [], "metadata"))
    session.output.told(_tagged(session, "created", name, tag))


@table_command(tags, "move")
def move_tag(session: Session, name: Name, version: Version = None) -> None:
    """Move a tag to another version, of the latest by default."""
    table = session.open()
    before = table.tags[name]
    tag = table.tags.update(name, version, branch=session.branch)
    session.output.told(_tagged(session, "moved", name, tag, before=_tag(name, before)))


@table_command(tags, "delete", branches=False)
def delete_tag(session: Session, name: Name, dry_run: DryRun = False) -> None:
    """Delete a tag. The version stays until it is cleaned up."""
    table = session.open()
    tag = table.tags[name]
    if dry_run:
        line = f"tag {name} of version {tag.version} would be deleted; a cleanup may then remove that version"
        session.output.told(would(session.shown_uri, tag.branch, line, tag=_tag(name, tag)))
        return
    table.tags.delete(name)
    session.output.told(_tagged(session, "deleted", name, tag))


def _tag(name: str, tag: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": tag.version,
        "branch": tag.branch,
        "created_at": tag.created_at,
        "updated_at": tag.updated_at,
        "metadata": redact_options(tag.metadata),
    }


def _tagged(session: Session, done: str, name: str, tag: Any, **more: Any) -> CommandMessage:
    branch = f", branch {tag.branch}" if tag.branch else ""
    document = {"uri": session.shown_uri, done: True, "tag": _tag(name, tag), **more}
    return CommandMessage(document, done, f"tag {name} of version {tag.version} of {session.shown_uri}{branch}")


# ---- branches ----------------------------------------------------------------------------------------------------------------


@table_command(branches, "list", branches=False)
def list_branches(session: Session) -> None:
    """All branches but main, and where they began."""
    found = sorted(session.open().branches.items())
    document = {"uri": session.shown_uri, "branches": [_branch(name, branch) for name, branch in found]}
    rows = [(name, branch.parent_branch or "main", str(branch.parent_version), _moment(branch.created_at)) for name, branch in found]
    notes = () if found else (f"{session.shown_uri} has no branches but main.",)
    session.output.told(CommandMessage(document, grid=Grid(("branch", "from", "version", "time (UTC)"), rows, frozenset({2})), notes=notes))


@table_command(branches, "create", branches=False)
def create_branch(
    session: Session,
    name: Name,
    version: Version = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Begin at the version a tag names.")] = None,
    parent: Annotated[str | None, typer.Option("--from", metavar="BRANCH", help="Begin at a branch instead of main.")] = None,
    metadata: Metadata = None,
) -> None:
    """Begin a line of history of its own, at main's latest version by default. No data is copied."""
    if tag is not None and (version is not None or parent is not None):
        raise ty.InvalidInput("A tag names its version and branch itself.", argument="tag", advice="Leave --version and --from out.")
    begin = tag if tag is not None else (parent, version)
    branch = session.open().branches.create(name, begin, metadata=pairs(metadata or [], "metadata"))
    session.output.told(_branched(session, "created", name, branch))


@table_command(branches, "delete", branches=False)
def delete_branch(
    session: Session,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also if only files of it are left.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove a branch with all that only it holds."""
    table = session.open()
    if dry_run:
        branch = table.branches[name]
        there = ty.Table.open(session.uri, branch=name, storage_options=session.options, allowed_bases=session.bases)
        versions = there.layout.versions()
        line = f"branch {name} of {session.shown_uri} would be removed for good, with {count(len(versions), 'version')}"
        session.output.told(would(session.shown_uri, name, line, _based_on(table, name), of=_branch(name, branch), versions=versions))
        return
    known = table.branches.get(name)
    table.branches.delete(name, force=force)
    session.output.told(_branched(session, "deleted", name, known))


def _based_on(table: ty.Table, name: str) -> list[tuple[str, str]]:
    """What would stand in the way of removing a branch."""
    found = [f"branch {other}" for other, branch in table.branches.items() if branch.parent_branch == name]
    found += [f"tag {other}" for other, tag in table.tags.items() if tag.branch == name]
    return [("blocked by", f"{', '.join(found)}: delete these first")] if found else []


def _branch(name: str, branch: Any) -> dict[str, Any]:
    return {
        "name": name,
        "parent_branch": branch.parent_branch,
        "parent_version": branch.parent_version,
        "created_at": branch.created_at,
        "metadata": redact_options(branch.metadata),
    }


def _branched(session: Session, done: str, name: str, branch: Any) -> CommandMessage:
    document = {"uri": session.shown_uri, done: True, "branch": _branch(name, branch) if branch else {"name": name}}
    begun = f", begun at version {branch.parent_version} of {branch.parent_branch or 'main'}" if branch else ""
    return CommandMessage(document, done, f"branch {name} of {session.shown_uri}{begun}")


def _moment(given: str | int | None) -> str:
    """Tags hold text, branches seconds since the epoch."""
    if not given:
        return "?"
    if isinstance(given, int):
        given = datetime.fromtimestamp(given, UTC).isoformat()
    return given[:19].replace("T", " ")
