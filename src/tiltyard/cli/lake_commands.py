"""The commands about lakes: many tables under one catalog."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, Literal, cast, get_type_hints

import typer

import tiltyard as ty
from tiltyard.cli.command_session import PROBLEMS, UNKNOWN, Session, reporting
from tiltyard.cli.messages import CommandMessage, Grid, count, size, span
from tiltyard.cli.option_types import Branch, DryRun, Json, StorageOptions, duration
from tiltyard.cli.output import CommandOutput
from tiltyard.redact import redact

app = typer.Typer(name="lake", help="Lakes: many tables under one catalog, changed together.", no_args_is_help=True)

Uri = Annotated[str, typer.Argument(metavar="LAKE", help="A directory, sqlite:///file, postgresql://..., or s3://bucket/lake.")]
Root = Annotated[str | None, typer.Option("--root", metavar="URI", help="Where the tables live, if not beside the catalog.")]
Catalog = Annotated[
    str | None, typer.Option("--catalog", metavar="KIND", help="Of a directory: sqlite, or manifest for a table in the directory itself.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")]
At = Annotated[str | None, typer.Option("--at", metavar="WHEN", help="A snapshot's number, a tag or a timestamp; the latest by default.")]

SHOWN_AT_MOST: Final = 10

_AFTER: Final = (
    Parameter("branch", Parameter.KEYWORD_ONLY, annotation=Branch, default=None),
    Parameter("json", Parameter.KEYWORD_ONLY, annotation=Json, default=False),
    Parameter("storage_option", Parameter.KEYWORD_ONLY, annotation=StorageOptions, default=None),
    Parameter("root", Parameter.KEYWORD_ONLY, annotation=Root, default=None),
    Parameter("catalog", Parameter.KEYWORD_ONLY, annotation=Catalog, default=None),
)

Work = Callable[..., None]


@dataclass(frozen=True, slots=True)
class LakeSession:
    """One command on one lake."""

    session: Session
    root: str | None
    catalog: str | None

    @property
    def output(self) -> CommandOutput:
        return self.session.output

    @property
    def shown_uri(self) -> str:
        return self.session.shown_uri

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[ty.Lake]:
        kind = cast(Literal["sqlite", "manifest"] | None, self.catalog)
        with ty.Lake.open(self.session.uri, root=self.root, catalog=kind, storage_options=self.session.options, create=create) as lake:
            yield lake.on_branch(self.session.branch) if self.session.branch else lake

    def told(self, document: dict[str, Any], *more: Any, **named: Any) -> None:
        self.output.told(CommandMessage({"lake": self.shown_uri, **document}, *more, **named))


def lake_command(target: typer.Typer, name: str | None = None, *, branched: bool = False) -> Callable[[Work], Work]:
    """Makes a command of a function: it is given a session, and the options that all commands on lakes have are added to its own."""

    def register(work: Work) -> Work:
        hints = get_type_hints(work, include_extras=True)
        own = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in [*inspect.signature(work).parameters.values()][1:]
        ]
        shared = [parameter for parameter in _AFTER if branched or parameter.name != "branch"]

        def command(**given: Any) -> None:
            uri, json, options = (given.pop(key) for key in ("uri", "json", "storage_option"))
            branch, root, catalog = (given.pop(key, None) for key in ("branch", "root", "catalog"))
            with reporting(uri, branch, json, options, None) as session, _outcome_advised(session):
                work(LakeSession(session, root, catalog), **given)

        command.__doc__, command.__name__ = work.__doc__, work.__name__
        command.__annotations__ = {}
        before = Parameter("uri", Parameter.KEYWORD_ONLY, annotation=Uri)
        command.__signature__ = Signature([before, *own, *shared])  # type: ignore[attr-defined]
        target.command(name)(command)
        return work

    return register


@contextmanager
def _outcome_advised(session: Session) -> Iterator[None]:
    try:
        yield
    except ty.OutcomeUnknown as error:
        ask = f"tiltyard lake outcome {shlex.quote(redact(session.uri)[:80])} {error.transaction_id}"
        session.output.error(error.advised(f"Nothing was deleted. Ask `{ask}` when the catalog answers again."))
        raise typer.Exit(UNKNOWN) from None


# ---- what is there ---------------------------------------------------------------------------------------------------------------


@lake_command(app)
def init(session: LakeSession) -> None:
    """Make an empty lake, or report the existing one. Refused where there are tables whose catalog is gone."""
    try:
        with session.opened() as lake:
            known = lake.tables()
    except ty.NotFound:
        with session.opened(create=True) as lake:
            known = lake.tables()
    word = "already exists" if known else "ready"
    session.told({"ready": True, "tables": known}, word, f"a lake at {session.shown_uri}, with {count(len(known), 'table')}")


@lake_command(app, branched=True)
def tables(session: LakeSession, at: At = None) -> None:
    """All tables and their versions."""
    with session.opened() as lake:
        shot = lake.snapshot(when(at))
        versions = shot.versions()
    document = {
        "branch": shot.branch,
        "snapshot": shot.id,
        "tables": [{"name": name, "version": version} for name, version in versions.items()],
    }
    notes = () if versions else (f"{session.shown_uri} has no tables.",)
    rows = [(name, str(version)) for name, version in versions.items()]
    session.told(document, grid=Grid(("table", "version"), rows, frozenset({1})), notes=notes)


def when(at: str | None) -> int | str | None:
    """A snapshot's number, a tag or a timestamp, as a command was given it."""
    return int(at) if at is not None and at.isascii() and at.isdecimal() else at


@lake_command(app, branched=True)
def log(
    session: LakeSession,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many snapshots.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All snapshots.")] = False,
) -> None:
    """Who changed which tables together, latest first."""
    with session.opened() as lake:
        found = lake.history(None if everything else limit)
    rows = [
        (
            str(snapshot.id),
            clock_time(snapshot.at),
            ", ".join(snapshot.authors) or "?",
            ", ".join(map(_done, snapshot.changes)),
            snapshot.message,
        )
        for snapshot in found
    ]
    notes = () if found else (f"Nothing has happened at {session.shown_uri} yet.",)
    grid = Grid(("snapshot", "time (UTC)", "author", "tables", "message"), rows, frozenset({0}))
    session.told({"snapshots": [_snapshot(snapshot) for snapshot in found]}, grid=grid, notes=notes)


@lake_command(app, branched=True)
def show(
    session: LakeSession,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="[SNAPSHOT]", help="A number, a tag or a timestamp; the latest by default.")
    ] = None,
) -> None:
    """All about one snapshot: who made it and why, what it did to each table, and where all tables were then."""
    with session.opened() as lake:
        shot = lake.snapshot(when(snapshot))
        on = lake.on_branch(shot.branch)
        made = next((snapshot for snapshot in on.history() if snapshot.id == shot.id), None)
    versions = shot.versions()
    document = {"branch": shot.branch, "snapshot": shot.id, "tables": versions, "made_by": None if made is None else _snapshot(made)}
    facts = [("branch", shot.branch)]
    rows = []
    if made is not None:
        facts += [
            ("time", f"{clock_time(made.at)} UTC"),
            ("author", ", ".join(made.authors) or "not recorded"),
            ("transaction", made.transaction),
        ]
        facts += [("message", made.message)] if made.message else []
        facts += [("properties", ", ".join(f"{key}={value}" for key, value in made.properties.items()))] if made.properties else []
        rows = [(change.name, change.kind, f"{change.base} -> {change.version}", ", ".join(change.operations)) for change in made.changes]
    facts.append(("tables", ", ".join(f"{name} at {version}" for name, version in versions.items()) or "none"))
    session.told(document, "snapshot", f"{shot.id} of {session.shown_uri}", facts, Grid(("table", "what", "version", "operations"), rows))


def _snapshot(one: Any) -> dict[str, Any]:
    changes = [
        {
            "table": change.name,
            "what": change.kind,
            "former": change.former or None,
            "base": change.base,
            "version": change.version,
            "operations": list(change.operations),
            "lost": [step.version for step in change.lost],
        }
        for change in one.changes
    ]
    return {
        "snapshot": one.id,
        "branch": one.branch,
        "time": one.at.isoformat(),
        "transaction": one.transaction,
        "author": one.author,
        "message": one.message,
        "properties": dict(one.properties),
        "isolation": one.isolation,
        "base": one.base,
        "voided": one.voided,
        "members": [
            {"transaction": member.transaction, "author": member.author, "message": member.message, "properties": dict(member.properties)}
            for member in one.members
        ],
        "changes": changes,
    }


def _done(change: Any) -> str:
    lost = " (lost)" if change.lost else ""
    return f"{change.name}{lost}" if change.kind == "write" else f"{change.name} ({change.kind}){lost}"


def clock_time(moment: datetime) -> str:
    """A moment as tables of output show it."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


@lake_command(app)
def register(
    session: LakeSession, name: Name, table: Annotated[str, typer.Argument(metavar="TABLE", help="The URI of an existing table.")]
) -> None:
    """Register an existing Lance table in the lake; its files stay where they are."""
    with session.opened() as lake:
        version = lake.register_table(name, table).version
    document = {"registered": True, "table": name, "uri": redact(table), "version": version}
    session.told(document, "registered", f"{redact(table)} as {name}, at version {version}")


# ---- upkeep ----------------------------------------------------------------------------------------------------------------------


@lake_command(app)
def check(
    session: LakeSession,
    shallow: Annotated[bool, typer.Option("--shallow", help="Not every version of every table.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Read every file, too, and compare it with its digest.")] = False,
) -> None:
    """Check the lake. Exit code 0: no problem, 1: problems found, 2: it could not be checked."""
    with session.opened() as lake, session.output.progress("checking tables") as progress:
        report = lake.check(tables=not shallow, data=data, progress=progress)
    facts = [("snapshots", str(report.snapshots)), ("transactions", str(report.transactions)), ("tables", str(len(report.tables)))]
    facts += [
        ("orphan", f"{orphan.path} ({size(orphan.bytes)}, {orphan.owner}): {orphan.reason}") for orphan in report.orphans[:SHOWN_AT_MOST]
    ]
    rows = [
        (problem.invariant, problem.table or "-", "-" if problem.snapshot is None else str(problem.snapshot), problem.text)
        for problem in report.problems
    ]
    word = "sound" if report.ok else "unsound"
    line = session.shown_uri if report.ok else f"{session.shown_uri}: {count(len(report.problems), 'problem')}"
    session.told(report.to_dict(), word, line, facts, Grid(("invariant", "table", "snapshot", "what"), rows), warning=not report.ok)
    if not report.ok:
        raise typer.Exit(PROBLEMS)


@lake_command(app, branched=True)
def repair(
    session: LakeSession,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="WHOSE", help="Whose version to keep: ours (the lake) or theirs (the foreign writer).")
    ] = None,
) -> None:
    """Repair a quarantined table: two writers have one version number. The losing version is moved aside, not deleted."""
    with session.opened() as lake:
        report = lake.repair(table, keep=cast(Any, keep))
    facts = [("set aside", path) for path in report.set_aside]
    facts += [("files", f"{count(len(report.files), 'file')} that only these name; cleanup leaves them alone")] if report.files else []
    facts += [("done", name) for name in report.done]
    what = f"{report.kept} stays, " if report.kept else ""
    word = "repaired" if report.kept or report.done else "nothing to do"
    session.told(report.to_dict(), word, f"{table}: {what}at version {report.version}", facts)


@lake_command(app)
def cleanup(
    session: LakeSession,
    older_than: Annotated[str | None, typer.Option("--older-than", metavar="SPAN", help="How old a snapshot has to be: 7d, 12h.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=1, help="How many of the latest snapshots stay.")] = None,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="SPAN",
            help="How long a transaction may be silent before it is aborted; 0s only if no other process uses the lake.",
        ),
    ] = "1d",
    include_unknown: Annotated[
        list[str] | None, typer.Option("--include-unknown", metavar="DIRECTORY", help="Delete this orphan, too; may be repeated.")
    ] = None,
    pin_snapshots: Annotated[
        bool, typer.Option("--pin-snapshots", help="Tag all versions that kept snapshots need, so that cleanups of other tools keep them.")
    ] = False,
    keep_outcomes: Annotated[
        str, typer.Option("--keep-outcomes", metavar="SPAN", help="How long the outcome of a transaction can be asked for.")
    ] = "30d",
    dry_run: DryRun = False,
) -> None:
    """Remove old snapshots with all that only they need, and what dead transactions left. Tags and branches keep theirs.

    What nothing proves to be this lake's is only reported, as orphans.
    """
    age, waited = duration(older_than, "older_than"), duration(grace, "grace") or timedelta(0)
    remembered = duration(keep_outcomes, "keep_outcomes") or timedelta(0)
    retention = ty.LakeRetention(remembered, remembered, pin_snapshots, include_unknown or ())
    with session.opened() as lake, session.output.progress("looking" if dry_run else "cleaning tables") as progress:
        report = lake.cleanup(older_than=age, keep_snapshots=keep, grace=waited, dry_run=dry_run, retention=retention, progress=progress)
    session.output.told(_cleaned(report, session.shown_uri))


def _cleaned(report: ty.LakeCleanupReport, uri: str) -> CommandMessage:
    document = {"lake": uri, **report.to_dict()}
    goes = "would be removed" if report.dry_run else "removed"
    gone = {branch: numbers for branch, numbers in report.snapshots.items() if numbers}
    files = sum(len(table.removed) for table in report.tables.values())
    line = f"{count(sum(map(len, gone.values())), 'snapshot')} and {count(files, 'file')} ({size(report.bytes)}) of {uri} {goes}"
    facts = [("snapshots", f"{span(numbers)} of {branch}") for branch, numbers in gone.items()]
    facts += [
        ("kept", f"{number} of {branch} ({', '.join(why)})") for branch, found in report.kept.items() for number, why in found.items()
    ]
    facts += [("directory", name) for name in report.dropped[:SHOWN_AT_MOST]]
    facts += [("aborted", f"transaction {transaction.transaction}") for transaction in report.transactions[:SHOWN_AT_MOST]]
    facts += [("left alone", f"transaction {left.transaction}: {left.reason}") for left in report.held[:SHOWN_AT_MOST]]
    facts += [("expired", count(report.expired, "transaction record"))] if report.expired else []
    facts += [
        ("orphan", f"{orphan.path} ({size(orphan.bytes)}, {orphan.owner}): {orphan.reason}") for orphan in report.orphans[:SHOWN_AT_MOST]
    ]
    facts += [("skipped", f"{name}: {why}") for name, why in report.skipped.items()]
    rows = [
        (name, str(len(table.versions)), str(len(table.removed)), size(table.bytes))
        for name, table in report.tables.items()
        if table.removed
    ]
    something = gone or files or report.dropped or report.transactions or report.expired
    word = "dry run" if report.dry_run else "cleaned up" if something else "nothing to do"
    notes = ("Nothing was changed.",) if report.dry_run else ()
    return CommandMessage(
        document, word, line, facts, Grid(("table", "versions", "files", "size"), rows, frozenset({1, 2, 3})), notes, bool(report.skipped)
    )


@lake_command(app)
def outcome(
    session: LakeSession,
    transaction: Annotated[str, typer.Argument(metavar="TRANSACTION", help="Its id, as the error said.")],
    give_up: Annotated[bool, typer.Option("--give-up", help="Abort it, unless it is committed.")] = False,
) -> None:
    """What became of a transaction. Exit code 4: it cannot be said yet."""
    with session.opened() as lake:
        found = lake.outcome(transaction, give_up=give_up)
    if isinstance(found, ty.outcomes.Committed):
        document = {"transaction": transaction, "outcome": "committed", "snapshot": found.version}
        session.told(document, "committed", f"transaction {transaction} as snapshot {found.version}")
        return
    word = "unknown" if isinstance(found, ty.outcomes.Unknown) else "not-committed"
    document = {"transaction": transaction, "outcome": word, "reason": found.reason}
    session.told(document, word.replace("-", " "), f"transaction {transaction}", [("reason", found.reason)], warning=True)
    if isinstance(found, ty.outcomes.Unknown):
        raise typer.Exit(UNKNOWN)
