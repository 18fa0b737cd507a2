"""The end of the demo: who was rebased over whom, which conflicts were retried, and whether every reading is there exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from downlinks import corrections, passes, plausible
from rich.console import Console
from rich.table import Table as Grid

import tiltyard as ty

READINGS, QUARANTINE, HOURS = "telemetry.readings", "telemetry.quarantine", "telemetry.hours"


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be in the lake, computed from the seed alone."""

    readings: dict[int, tuple[float, str]]
    quarantine: list[int]

    @classmethod
    def from_seed(cls, count: int, size: int, seed: int) -> Expected:
        rows = [row for downlink in passes(count, size, seed) for row in downlink.rows]
        good = {row["reading"]: (row["temperature"], row["quality"]) for row in rows if plausible(row)}
        for _, shifts in corrections(count, size, seed=seed):
            for correction in shifts:
                good[correction["reading"]] = (good[correction["reading"]][0] - correction["shift"], "corrected")
        return cls(good, sorted(row["reading"] for row in rows if not plausible(row)))


# ---- the history -----------------------------------------------------------------------------------------------------------------


def history(lake: ty.Lake, out: Console, limit: int = 30) -> None:
    """What was committed, by whom, and whom it was rebased over."""
    steps = list(reversed(lake.history()))
    authors = {(change.name, made.version): step.author for step in steps for change in step.changes for made in change.steps}
    grid = Grid("snapshot", "author", "what", "rebased over", box=None, pad_edge=False)
    told = [(step, _over(step, authors)) for step in steps if any(name.startswith("telemetry.") for name in step.tables)]
    shown = told[:5] + [row for row in told[5:] if row[1]]
    for step, over in shown[:limit]:
        what = ", ".join(f"{change.name.removeprefix('telemetry.')} {'+'.join(change.operations)}" for change in _own(step))
        grid.add_row(str(step.id), step.author, what, over or "-")
    out.print(grid)
    out.print(f"({len(told)} snapshots of these tables in all; shown are the first ones and those that were rebased over others)")
    pairs = Counter((step.author, name) for step, over in told for name in _names(over))
    for (author, other), number in sorted(pairs.items()):
        out.print(f"  {author} was rebased over {other} {number} times" if number > 1 else f"  {author} was rebased over {other} once")


def _own(step: Any) -> list[Any]:
    return [change for change in step.changes if change.name.startswith("telemetry.")]


def _over(step: Any, authors: dict[tuple[str, int], str]) -> str:
    """Each table whose commit was built on an older version than it was put on."""
    found = []
    for change in _own(step):
        if change.kind == "write" and 0 < change.read < change.base:
            others = [authors.get((change.name, version), "?") for version in range(change.read + 1, change.base + 1)]
            found.append(f"{change.name.removeprefix('telemetry.')}: {', '.join(dict.fromkeys(others))}")
    return "; ".join(found)


def _names(over: str) -> set[str]:
    return {name.strip() for part in over.split(";") if part for name in part.partition(":")[2].split(",")}


def conflicts(reports: list[dict[str, Any]], out: Console) -> None:
    """Which runs had to be re-executed, and why."""
    retried = [run for run in reports if run["conflicts"]]
    for run in retried[:12]:
        end = "found nothing left to do" if run["status"] == "nothing to do" else f"was committed at attempt {run['attempts']}"
        out.print(f"  {run['author']} ({run['pipeline']}) {end}:")
        for conflict in run["conflicts"]:
            out.print(f"    {conflict}", style="dim", highlight=False)
    out.print(f"{len(retried)} runs were re-executed after a conflict; none of them left anything behind.")


# ---- the proof -------------------------------------------------------------------------------------------------------------------


def prove(lake: ty.Lake, expected: Expected, seen_file: Path, out: Console) -> bool:
    """Every reading exactly once, in the eyes of everybody."""
    fine = True
    for name, good, told in _proofs(lake, expected, seen_file):
        fine &= good
        out.print(f"  [{'green' if good else 'red'}]{'yes' if good else 'NO '}[/] {name}: {told}", highlight=False)
    return fine


def _proofs(lake: ty.Lake, expected: Expected, seen_file: Path) -> Iterator[tuple[str, bool, str]]:
    table = lake.table(READINGS)
    rows = table.to_arrow(["reading", "temperature", "quality"])
    yield "every reading is there exactly once", *compared(rows, expected)
    yield "plain pylance sees the same", *compared(lance.dataset(table.uri).to_table(["reading", "temperature", "quality"]), expected)
    caught = sorted(json.loads(row)["reading"] for row in lake.table(QUARANTINE).to_arrow()["row"].to_pylist())
    yield "what is not plausible is in quarantine exactly once", caught == expected.quarantine, f"{len(caught)} rows"
    reader = json.loads(seen_file.read_text())
    followed = {number: (value, quality) for number, (value, quality) in reader["seen"]}
    good = not reader["doubled"] and _close(followed, expected.readings)
    yield "the reader saw each reading come once, and each correction", good, f"{reader['inserted']} came, {reader['updated']} changed"
    hours = lake.table(HOURS).to_arrow()
    counted, corrected = sum(hours["readings"].to_pylist()), sum(hours["corrected"].to_pylist())
    right = sum(quality == "corrected" for _, quality in expected.readings.values())
    good = (counted, corrected) == (len(expected.readings), right)
    yield "the roll-up adds up", good, f"{hours.num_rows} hours, {counted:,} readings, {corrected} corrected"
    report = lake.check()
    yield (
        "the lake is sound",
        report.ok,
        "; ".join(str(problem) for problem in report.problems[:2]) or "every version of every table was checked",
    )


def compared(rows: pa.Table, expected: Expected) -> tuple[bool, str]:
    numbers = Counter(rows["reading"].to_pylist())
    lost, doubled = len(expected.readings.keys() - numbers.keys()), sum(number > 1 for number in numbers.values())
    foreign = len(numbers.keys() - expected.readings.keys())
    values = {row["reading"]: (row["temperature"], row["quality"]) for row in rows.to_pylist()}
    told = f"{rows.num_rows:,} of {len(expected.readings):,}: {lost} lost, {doubled} doubled, {foreign} unexpected"
    if not (lost or doubled or foreign) and not _close(values, expected.readings):
        return False, told + ", but some have other values"
    return not (lost or doubled or foreign), told


def _close(found: dict[int, tuple[float, str]], wanted: dict[int, tuple[float, str]]) -> bool:
    if found.keys() != wanted.keys():
        return False
    return all(abs(found[key][0] - value) < 1e-9 and found[key][1] == quality for key, (value, quality) in wanted.items())
