"""The commands on the conflict table, which need no table of rows: what happens when two operations meet, and all pairs at once."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

import tiltyard as ty
from tiltyard.cli.command_session import FAILED
from tiltyard.cli.layout import page_console, print_hanging, print_rows
from tiltyard.cli.option_types import Json
from tiltyard.cli.output import JsonOutput
from tiltyard.cli.text_output import TextOutput

app = typer.Typer(name="conflicts", help="What happens when two operations are committed to one table concurrently.", no_args_is_help=True)

Committing = Annotated[str, typer.Argument(metavar="COMMITTING", help="The operation that is to be committed, such as Delete.")]
Committed = Annotated[str, typer.Argument(metavar="COMMITTED", help="The one that was committed meanwhile, or Unknown.")]

_COLOURS = {"rebase": "cyan", "retry": "yellow", "incompatible": "red", "compatible": "green"}


@app.command()
def explain(committing: Committing, committed: Committed, json: Json = False) -> None:
    """What happens to an operation if another one was committed since the version it read."""
    try:
        found = ty.conflicts.explain(committing, committed)
    except ty.InvalidInput as error:
        (JsonOutput() if json else TextOutput()).error(error)
        raise typer.Exit(FAILED) from None
    if json:
        _print_json(_explained(found))
    else:
        _print_text(found)


@app.command()
def table(json: Json = False) -> None:
    """All pairs: the row is to be committed, the column was committed first. A dot: the two never conflict."""
    short = {name: sign for sign, name in ty.conflicts.OPERATIONS.items()} | {ty.conflicts.UNKNOWN: "?"}
    if json:
        cells = {sign: [_rule(rule) for rule in rules] for sign, rules in ty.conflicts.CELLS.items()}
        _print_json({"pairs": {mine: dict(row) for mine, row in ty.conflicts.SIGNS.items()}, "cells": cells})
        return
    console = page_console()
    first = next(iter(ty.conflicts.SIGNS.values()))
    print_rows(console, ("", *(short[name] for name in first)), [(mine, *row.values()) for mine, row in ty.conflicts.SIGNS.items()])
    console.print()
    lines = [
        (sign if number == 0 else "", rule.then.value, _when(rule))
        for sign, rules in ty.conflicts.CELLS.items()
        for number, rule in enumerate(rules)
    ]
    print_hanging(console, lines, label="bold")


def _when(rule: ty.conflicts.Rule) -> str:
    return rule.why if rule.when == "always" else f"{rule.when}: {rule.why}"


# ---- as JSON ---------------------------------------------------------------------------------------------------------------


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json_text.dumps(document, indent=2) + "\n")


def _rule(rule: ty.conflicts.Rule) -> dict[str, Any]:
    return {"when": rule.when, "outcome": rule.then.value, "why": rule.why, "deviation": rule.deviation or None}


def _explained(found: ty.conflicts.PairExplanation) -> dict[str, Any]:
    return {
        "committing": found.committing,
        "committed": found.committed,
        "sign": found.sign,
        "rules": [{**_rule(rule.rule), "condition": rule.meaning, "example": _example(rule.example)} for rule in found.rules],
        "otherwise": {"outcome": "compatible", "example": _example(found.otherwise)} if found.otherwise else None,
    }


def _example(example: ty.conflicts.Example) -> dict[str, Any]:
    verdict = {key: value for key, value in asdict(example.verdict).items() if key != "rule"}
    told = {"outcome": example.verdict.outcome.value, **verdict}
    return {"committing": example.mine, "committed": example.theirs, "known": example.known or None, "verdict": told}


# ---- as text ---------------------------------------------------------------------------------------------------------------


def _print_text(found: ty.conflicts.PairExplanation) -> None:
    console = page_console()
    console.print(
        Text.assemble((found.committing, "bold"), " is to be committed, ", (found.committed, "bold"), " was committed meanwhile.")
    )
    for rule in found.rules:
        console.print()
        outcome = rule.rule.then.value
        console.print(Text.assemble((outcome, f"bold {_COLOURS[outcome]}"), "  " + rule.rule.when), soft_wrap=True)
        facts = [("condition", rule.meaning), ("because", rule.rule.why), *_worked(rule.example)]
        if rule.rule.deviation:
            facts.append(("deviation", rule.rule.deviation))
        print_hanging(console, facts, indent=2, label="dim")
    console.print()
    if found.otherwise is None:
        console.print(Text("One of these rules always applies.", "dim"))
        return
    console.print(Text.assemble(("compatible", f"bold {_COLOURS['compatible']}"), "  otherwise" if found.rules else "  always"))
    print_hanging(console, _worked(found.otherwise), indent=2, label="dim")


def _worked(example: ty.conflicts.Example) -> list[tuple[str, str]]:
    known = f" It is known {example.known}." if example.known else ""
    meeting = f"Ours {example.mine}; theirs {example.theirs}.{known}"
    return [("example", meeting), ("", example.verdict.reason)]
