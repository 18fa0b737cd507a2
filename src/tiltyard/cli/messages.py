"""What a command has to say that changes a table or lists something of it: one document for programs, a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import tiltyard as ty

NOTHING: Final = "nothing to do"


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows below a header; ``numbers`` are the columns set to the right."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CommandMessage:
    """The answer of a command.

    Attributes:
        document: for programs.
        verdict: the word that says how it went.
        line: what follows it.
        facts: more, each with its name.
        grid: or a list of things.
        notes: sentences at the end.
        warning: whether the verdict is no good news.
    """

    document: Mapping[str, Any]
    verdict: str = ""
    line: str = ""
    facts: Sequence[tuple[str, str]] = ()
    grid: Grid | None = None
    notes: Sequence[str] = ()
    warning: bool = False


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    scaled = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < 1024:
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:,.1f} TiB"


def span(versions: Sequence[int]) -> str:
    """Versions in a row by their ends, others one by one."""
    if len(versions) > 1 and versions[-1] - versions[0] == len(versions) - 1:
        return f"{versions[0]} to {versions[-1]}"
    return ", ".join(map(str, versions))


def commit_told(uri: str, branch: str | None, result: ty.CommitResult, what: str = "", **more: Any) -> CommandMessage:
    """What became of a commit. One without a transaction found that there was nothing to do."""
    committed = bool(result.transaction_id)
    document = {"uri": uri, "branch": branch, "committed": committed, **_plain(result), **more}
    where = f"{uri}, branch {branch}" if branch else uri
    if not committed:
        return CommandMessage(document, NOTHING, f"{where} stays at version {result.version}")
    counted = ", ".join(f"{number:,} {how}" for how, number in result.rows.items() if number)
    done = "; ".join(part for part in (what, f"rows: {counted}" if counted else "") if part)
    facts = [("transaction", result.transaction_id)]
    if result.rebased_over:
        facts.append(("rebased over", "; ".join(map(str, result.rebased_over))))
    if result.attempts > 1:
        facts.append(("attempts", str(result.attempts)))
    return CommandMessage(
        document, "committed", f"version {result.version} of {where} ({result.operation}){'; ' if done else ''}{done}", facts
    )


def _plain(result: ty.CommitResult) -> dict[str, Any]:
    facts = {field.name: getattr(result, field.name) for field in fields(result)}
    return {
        **facts,
        "transaction_id": result.transaction_id or None,
        "rebased_over": list(map(asdict, result.rebased_over)),
        "rows": dict(result.rows),
    }


def would(uri: str, branch: str | None, line: str, facts: Sequence[tuple[str, str]] = (), **more: Any) -> CommandMessage:
    """What a dry run found."""
    document = {"uri": uri, "branch": branch, "committed": False, "dry_run": True, **more}
    return CommandMessage(document, "dry run", line, facts, notes=("Nothing was changed.",))
