"""The commands that keep a lake's catalog from being lost, and those that bring a lost one back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, cast

import typer

import tiltyard as ty
from tiltyard.cli.lake_commands import SHOWN_AT_MOST, At, LakeSession, app, lake_command, when
from tiltyard.cli.messages import CommandMessage, count, size
from tiltyard.cli.option_types import DryRun
from tiltyard.redact import redact

__all__ = ["app"]  # the same as in `lake`, with these commands added

File = Annotated[str, typer.Argument(metavar="FILE", help="The backup: a local file.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing catalog.")]


@lake_command(app)
def backup(session: LakeSession, file: File) -> None:
    """Write all that the catalog knows into one file, while others keep writing. The tables themselves are not in it."""
    with session.opened() as lake, session.output.progress("copying records") as progress:
        done = lake.backup(file, progress=progress)
    document = {"written": True, **done.to_dict()}
    facts = [("snapshot", f"{number} of {branch}") for branch, number in sorted(done.snapshots.items())]
    session.told(document, "written", f"{done.path}: {count(done.records, 'record')}, {size(done.bytes)}", facts)


@lake_command(app, branched=True)
def clone(
    session: LakeSession,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where to make the new lake.")],
    at: At = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="A sentence for its history.")] = None,
) -> None:
    """Make a new lake of a snapshot, in one commit: its tables name the files of this one, and no data is copied."""
    with session.opened() as lake:
        done = lake.clone(target, when(at), message=message)
    line = f"{count(len(done.tables), 'table')} at {redact(target)}, of snapshot {done.source_snapshot} of {session.shown_uri}"
    facts = [("tag", f"{done.tag}: keeps the files here; delete it when the clone is gone")]
    session.told({"cloned": True, **asdict(done)}, "cloned", line, facts)


@lake_command(app)
def restore(session: LakeSession, file: File, replace: Replace = False) -> None:
    """Restore the catalog of a lake from a backup, and adopt what was committed to its tables since.

    Exit code 0: done; what could not be recovered is listed; 2: an error, and nothing was changed.
    """
    with session.output.progress("reading tables") as progress:
        report = ty.Lake.restore(session.session.uri, file, options=ty.RecoveryOptions(replace, progress=progress), **_where(session))
    session.output.told(_recovered(report, session.shown_uri, "restored"))


@lake_command(app)
def rebuild(session: LakeSession, replace: Replace = False) -> None:
    """Make a new catalog for a lake whose catalog is lost, from its files; for when there is no backup."""
    with session.output.progress("reading tables") as progress:
        report = ty.Lake.rebuild(session.session.uri, options=ty.RecoveryOptions(replace, progress=progress), **_where(session))
    session.output.told(_recovered(report, session.shown_uri, "rebuilt"))


def _where(session: LakeSession) -> dict[str, Any]:
    return {"root": session.root, "catalog": cast(Any, session.catalog), "storage": ty.Storage(session.session.options)}


def _recovered(report: ty.LakeRecoveryReport, uri: str, word: str) -> CommandMessage:
    facts = [("snapshot", f"{number} of {branch}") for branch, number in sorted(report.snapshots.items())]
    facts += [("in doubt", f"transaction {name}") for name in report.in_doubt[:SHOWN_AT_MOST]]
    facts += [("missing", f"no files of {name}") for name in report.missing[:SHOWN_AT_MOST]]
    facts += [("left alone", f"{name}: {why}") for name, why in list(report.not_taken.items())[:SHOWN_AT_MOST]]
    facts += [("not known", what) for what in report.unknown[:SHOWN_AT_MOST]]
    shown = len(report.in_doubt) + len(report.missing) + len(report.not_taken) + len(report.unknown)
    notes = ("More is in --json.",) if shown + len(report.snapshots) > len(facts) else ()
    line = f"the catalog of {uri}: {count(len(report.tables), 'table')}, {count(len(report.adopted), 'snapshot')} found in the files"
    document = {**report.to_dict(), "lake": uri, "lake_id": report.lake, word: True}
    return CommandMessage(document, word, line, facts, notes=notes, warning=not report.complete)


@lake_command(app)
def upgrade(session: LakeSession, dry_run: DryRun = False) -> None:
    """Upgrade a lake of an earlier release: claim its root, and mark its tables as owned by this lake."""
    with session.opened() as lake, session.output.progress("marking tables") as progress:
        report = lake.upgrade(dry_run=dry_run, progress=progress)
    facts = [("claim", "the root gets a file that names this lake as its owner")] if report.claimed else []
    facts += [("table", f"{name} gets a version that names this lake as its owner") for name in report.marked[:SHOWN_AT_MOST]]
    facts += [("directory", f"{name} gets a file that names this lake as its owner") for name in report.owned[:SHOWN_AT_MOST]]
    facts += [("branch", f"the records of {name} get the fields that they lack") for name in report.filled[:SHOWN_AT_MOST]]
    facts += [("pin", f"the versions of {name} get Lance tags") for name in report.pinned[:SHOWN_AT_MOST]]
    facts += [("skipped", f"{name}: {why}") for name, why in report.skipped.items()]
    word = "dry run" if dry_run else "upgraded" if report.changed else "nothing to do"
    line = f"{session.shown_uri}: format {report.before}" + (f" to {report.after}" if report.after != report.before else "")
    notes = ("Nothing was changed.",) if dry_run else ()
    session.told(report.to_dict(), word, line, facts, notes=notes, warning=bool(report.skipped))
