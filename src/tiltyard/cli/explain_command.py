"""The command that tells the story of one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final
from uuid import UUID

import typer

import tiltyard as ty
from tiltyard.cli.command_session import UNKNOWN, Session, table_command
from tiltyard.cli.facts import rebased_over
from tiltyard.cli.messages import CommandMessage, Grid, count, span

app = typer.Typer()

SHORTEST: Final = 6
"""So many characters of an id must be given."""

Found = tuple[ty.Table, ty.HistoryEntry, list[ty.HistoryEntry]]
"""A line of history at its latest version, an entry in it, and all of it."""


@table_command(app)
def why(
    session: Session,
    transaction: Annotated[str | None, typer.Argument(metavar="[TRANSACTION]", help="Its id, or how it begins.")] = None,
    version: Annotated[int | None, typer.Option("--version", metavar="N", help="Or the version that it made.")] = None,
    tried: Annotated[
        int | None, typer.Option("--tried", metavar="N", min=1, help="The version it tried to make, as its error said.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the commits that failed because of others.")] = False,
) -> None:
    """What became of a transaction: what it was rebased over, or why it failed. Exit code 4: it cannot be said yet."""
    if (transaction is not None) + (version is not None) + failed != 1:
        raise ty.InvalidInput("Give the id of a transaction, the --version that it made, or --failed.", argument="transaction")
    table = session.open()
    if failed:
        session.output.told(_listed(session, _lines(session, table)))
        return
    transaction = (transaction or _of_version(table, version)).lower()
    with session.output.working("reading the history"):
        lines = _lines(session, table)
        found = _find(lines, transaction)
        if found is not None:
            line, entry, history = found
            known = line.transactions.explain(entry.transaction_id, version=tried)
            if isinstance(known.outcome, ty.outcomes.Committed):
                session.output.told(_committed(session, line, entry, history))
                return
        else:
            line, whole = _failed(lines, transaction) or (table, _whole(transaction))
            known = line.transactions.explain(whole, version=tried)
    session.output.told(_not_there(session, line, known))
    if isinstance(known.outcome, ty.outcomes.Unknown):
        raise typer.Exit(UNKNOWN)


def _of_version(table: ty.Table, version: int | None) -> str:
    entry = table.transactions.describe(version)
    if not entry.transaction_id:
        raise ty.NotFound(f"Version {entry.version} was made by {entry.writer or 'a writer'} that kept no transaction.", name=str(version))
    return entry.transaction_id


def _lines(session: Session, table: ty.Table) -> list[ty.Table]:
    """The branch asked about, or else main and all branches."""
    others = [] if session.branch is not None else list(table.branches)
    return [table, *(replace(session, branch=name).open() for name in others)]


def _find(lines: list[ty.Table], begins: str) -> Found | None:
    """The version that a transaction made."""
    if len(begins) < SHORTEST:
        advice = "`tiltyard log --json` shows ids."
        raise ty.InvalidInput(f"Give {SHORTEST} characters of the id at least.", argument="transaction", advice=advice)
    found: dict[str, Found] = {}
    for line in lines:
        history = line.history()
        for entry in history:
            ids = (entry.transaction_id, *(member.transaction_id for member in entry.members))
            found |= {made_by: (line, entry.of(made_by), history) for made_by in ids if made_by.startswith(begins)}
    if len(found) > 1:
        versions = ", ".join(sorted(str(entry.version) for _, entry, _ in found.values()))
        raise _ambiguous(f"those of versions {versions}")
    return next(iter(found.values()), None)


def _failed(lines: list[ty.Table], begins: str) -> tuple[ty.Table, str] | None:
    """The line on which a transaction failed, and its whole id."""
    found = {
        attempt.transaction_id: line
        for line in lines
        for attempt in line.transactions.failed()
        if attempt.transaction_id.startswith(begins)
    }
    if len(found) > 1:
        raise _ambiguous("all of them failed")
    return next(((line, whole) for whole, line in found.items()), None)


def _ambiguous(which: str) -> ty.InvalidInput:
    return ty.InvalidInput(f"Several transaction ids begin with that, {which}.", argument="transaction", advice="Give more of the id.")


def _whole(transaction: str) -> str:
    """An id that no version has must be given in full: of a part of it nothing can be said."""
    try:
        return str(UUID(transaction))
    except ValueError:
        what = f"No version was made by a transaction whose id begins with {transaction[:40]!r}."
        raise ty.NotFound(what, name=transaction, advice="Give the whole id to learn what became of it.") from None


def _committed(session: Session, table: ty.Table, entry: ty.HistoryEntry, history: list[ty.HistoryEntry]) -> CommandMessage:
    between = rebased_over(entry)
    there = {entry.version: entry for entry in history}
    met = [_met(entry, there[version]) for version in between if version in there]
    missing = [version for version in between if version not in there]
    leader = there[entry.version]
    ids = (leader.transaction_id, *(member.transaction_id for member in leader.members))
    along = [made_by for made_by in ids if made_by != entry.transaction_id]
    document = {
        "uri": session.shown_uri,
        "branch": table.branch,
        "transaction_id": entry.transaction_id,
        "outcome": "committed",
        "version": entry.version,
        "operation": entry.operation,
        "read_version": entry.read_version,
        "timestamp": entry.timestamp.isoformat(),
        "writer": entry.writer,
        "message": entry.message,
        "committed_with": along,
        "rebased_over": met,
        "missing": missing,
    }
    facts = [("time", f"{entry.timestamp:%Y-%m-%d %H:%M:%S} UTC"), ("writer", entry.writer or "not recorded")]
    if entry.message:
        facts.append(("message", entry.message))
    if entry.read_version:
        facts.append(("built on", f"version {entry.read_version}"))
    if along:
        facts.append(("committed with", f"{count(len(along), 'transaction')} of other writers, in one version"))
    facts.append(("rebased over", _over(between, missing)))
    rows = [(str(entry["version"]), entry["operation"] or "?", entry["writer"] or "?", _ways(entry)) for entry in met]
    notes = ["`tiltyard conflicts explain COMMITTING COMMITTED` shows how two operations conflict."] if met else []
    line = f"version {entry.version} of {session.shown_uri} ({entry.operation}), transaction {entry.transaction_id}"
    return CommandMessage(
        document, "committed", line, facts, Grid(("version", "operation", "writer", "verdict"), rows, frozenset({0})), notes
    )


def _over(between: range, missing: list[int]) -> str:
    if not between:
        return "nothing: no commit came in between"
    gone = f", of which {span(missing)} cleaned up since" if missing else ""
    return f"{count(len(between), 'version')}: {span(between)}{gone}"


def _met(mine: ty.HistoryEntry, theirs: ty.HistoryEntry) -> dict[str, Any]:
    """A commit that came in between, and in which ways the two operations can meet. In which one they did is not recorded."""
    known = {*ty.conflicts.OPERATIONS.values(), *ty.conflicts.OPERATIONS}
    ways: list[dict[str, str]] = []
    if mine.operation in known and theirs.operation in known:
        found = ty.conflicts.explain(mine.operation, theirs.operation)
        ways = [{"outcome": rule.rule.then.value, "when": rule.rule.when, "why": rule.rule.why} for rule in found.rules]
        if found.otherwise is not None:
            ways.append({"outcome": "compatible", "when": "otherwise" if ways else "always", "why": "no overlap"})
    passed = [way for way in ways if way["outcome"] in ("rebase", "compatible")]
    return {
        "version": theirs.version,
        "operation": theirs.operation,
        "transaction_id": theirs.transaction_id,
        "writer": theirs.writer,
        "message": theirs.message,
        "passed_as": passed,
    }


def _ways(met: dict[str, Any]) -> str:
    outcomes = dict.fromkeys(item["outcome"] for item in met["passed_as"])
    words = {"compatible": "no overlap", "rebase": "ours is rebased over it"}
    return ", or ".join(words[outcome] for outcome in outcomes) or "not known"


def _not_there(session: Session, table: ty.Table, known: ty.Explanation) -> CommandMessage:
    word = "unknown" if isinstance(known.outcome, ty.outcomes.Unknown) else "not-committed"
    said = f"version {getattr(known.outcome, 'version', '?')} was made by it, but the history has no entry for that version"
    reason = getattr(known.outcome, "reason", said)
    document = {
        "uri": session.shown_uri,
        "branch": table.branch,
        "transaction_id": known.transaction_id,
        "outcome": word,
        "reason": reason,
        "latest_version": table.layout.latest_version(),
        "attempt": known.attempt.to_dict() if known.attempt else None,
    }
    line = f"transaction {known.transaction_id} at {session.shown_uri}"
    if known.attempt is not None:
        return _attempt_told(document, line, known.attempt)
    notes: tuple[str, ...]
    if word == "unknown":
        notes = ("Whether it was committed cannot be said yet. Do not run it again before that is settled; ask again later.",)
    else:
        elsewhere = len(table.branches) > 0 and session.branch is None
        safe = "No version of main or a branch is its own. If it was for a branch, ask with --branch before you run it again."
        notes = (
            safe if elsewhere else "Nothing of it is visible, and re-executing it is safe.",
            "It left no record of why it failed: it never ran here, was re-executed under another id, or its record was cleaned up.",
        )
    return CommandMessage(document, word.replace("-", " "), line, [("reason", reason)], notes=notes, warning=True)


def _attempt_told(document: dict[str, Any], line: str, attempt: ty.FailedAttempt) -> CommandMessage:
    """The story of a commit that failed, as its writer left it."""
    facts = [("time", f"{attempt.time:%Y-%m-%d %H:%M:%S} UTC"), ("operation", attempt.operation), ("error", attempt.kind)]
    if attempt.read_version is not None:
        facts.append(("built on", f"version {attempt.read_version}"))
    if attempt.executions > 1:
        facts.append(("executed", count(attempt.executions, "time")))
    facts.append(("attempts", str(attempt.attempts)))
    if attempt.fragments:
        facts.append(("fragments", ", ".join(map(str, attempt.fragments))))
    if attempt.sample:
        facts.append(("both change", "; ".join(attempt.sample)))
    if attempt.missing:
        facts.append(("unreadable", f"versions {span(attempt.missing)}"))
    facts.append(("what it said", attempt.sentence))
    rows = [(str(winner.version), winner.operation or "?", winner.writer or "?", winner.message) for winner in attempt.winners]
    grid = Grid(("version", "operation", "writer", "message"), rows, frozenset({0})) if rows else None
    again = "Nothing of it is visible, and re-executing it is safe." if attempt.retryable else "Nothing of it is visible."
    return CommandMessage(document, "not committed", line, facts, grid, (again,), warning=True)


def _listed(session: Session, lines: list[ty.Table]) -> CommandMessage:
    found = [(line, attempt) for line in lines for attempt in line.transactions.failed()]
    found.sort(key=lambda entry: entry[1].time, reverse=True)
    document = {"uri": session.shown_uri, "attempts": [{"branch": line.branch, **attempt.to_dict()} for line, attempt in found]}
    rows = [
        (f"{attempt.time:%Y-%m-%d %H:%M:%S}", attempt.operation, attempt.kind, str(attempt.read_version or ""), attempt.transaction_id)
        for _, attempt in found
    ]
    grid = Grid(("time (UTC)", "operation", "error", "built on", "transaction"), rows, frozenset({3})) if rows else None
    return CommandMessage(document, "", f"{count(len(found), 'failed attempt')} at {session.shown_uri}", grid=grid)
