"""What verbs cost where tables are very large in one respect, ours and pylance's in turn, each call in a fresh process.

    make bench-cliffs                                  all of it, some minutes; takes 2 GB of disk
    make bench-cliffs ARGS="--scale 0.1 --case feed"   a tenth of each size; cases whose name has this in it; --json, --check

Measured are the time of the call on the clock and of processors, and the peak of memory above what the process had before it opened the
table, by which time it has loaded both libraries: pylance reads a version when it opens it, we when a verb needs it. Each process has only
its own side's handle. ``durability="os"`` is compared, since pylance never flushes.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lance

import tiltyard as ty
from bench.cliff_cases import MEMORY_AIM, TABLES, TIME_AIM, Case, cases
from bench.scratch import scratch
from bench.verbs import SIDES, Figure, Pair, as_json, peaked

_TITLE = 44


@dataclass(frozen=True)
class Measured:
    """One call: milliseconds on the clock and of processors, megabytes, and what both sides must agree in."""

    wall: float
    cpu: float
    memory: float
    outcome: list[Any]


# ---- in the child ----------------------------------------------------------------------------------------------------------


def measure(case: Case, side: str, uri: Path) -> Measured:
    times: list[float] = []
    results: list[object] = []

    def opened() -> Callable[[], object]:
        return partial(case.ours, ty.Table.open(uri, durability="os")) if side == "ours" else partial(case.stock, lance.dataset(str(uri)))

    def timed() -> None:
        call = opened()
        worked, begun = time.process_time(), time.perf_counter()
        results.append(call())
        times.extend((time.perf_counter() - begun, time.process_time() - worked))

    gc.collect()
    memory = peaked(timed)
    # A verb's result is of another kind on each side; a count is the same.
    counted = [result for result in results if isinstance(result, bool | int)]
    return Measured(times[0] * 1000, times[1] * 1000, memory, [*counted, *state_of(uri)])


def state_of(uri: Path) -> list[Any]:
    """What is there after the call."""
    dataset = lance.dataset(str(uri))
    return [dataset.count_rows(), len(dataset.versions()), sorted(dataset.tags.list())]


# ---- tables ----------------------------------------------------------------------------------------------------------------


class Tables:
    """Tables, built once and put back into their first state after each call: a copy of very many files would take longer than the call."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fresh(self, case: Case) -> Path:
        table, kept = self._root / f"{case.table} {case.size}", self._root / f"{case.table} {case.size} kept"
        if not table.exists():
            TABLES[case.table](table, case.size)
            shutil.copytree(table, kept, ignore=lambda where, names: ["data"] if Path(where) == table else [])
            (kept / "data files").write_text("\n".join(path.name for path in (table / "data").iterdir()))
        else:
            _put_back(table, kept)
        return table

    def drop(self, case: Case) -> None:
        shutil.rmtree(self._root / f"{case.table} {case.size}")
        shutil.rmtree(self._root / f"{case.table} {case.size} kept")


def _put_back(table: Path, kept: Path) -> None:
    """Data files never change and no case removes one, so those that came are removed; all else is copied again."""
    files = set((kept / "data files").read_text().splitlines())
    for path in (table / "data").iterdir():
        if path.name not in files:
            path.unlink()
    for path in table.iterdir():
        if path.is_dir() and path.name != "data":
            shutil.rmtree(path)
    shutil.copytree(kept, table, ignore=lambda where, names: ["data files"] if Path(where) == kept else [], dirs_exist_ok=True)


# ---- a case ----------------------------------------------------------------------------------------------------------------


def figure_of(tables: Tables, case: Case, scale: float, rounds: int) -> Figure:
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            found[side].append(_in_a_child(case, side, scale, tables.fresh(case)))
    outcomes = {side: [measured.outcome for measured in found[side]] for side in SIDES}
    if outcomes["ours"] != outcomes["pylance"]:
        raise SystemExit(f"{case.label}: the outcomes differ: {outcomes}")

    def pair(measure: str, aim: float | None = None) -> Pair:
        medians = {side: statistics.median(getattr(measured, measure) for measured in found[side]) for side in SIDES}
        return Pair(**medians, aim=aim if case.aimed else None)

    return Figure(case.label, pair("wall", TIME_AIM), pair("cpu"), pair("memory", MEMORY_AIM))


def _in_a_child(case: Case, side: str, scale: float, uri: Path) -> Measured:
    asked = {"case": case.name, "side": side, "scale": scale, "uri": str(uri)}
    command = [sys.executable, "-m", "bench.cliffs", "--child", json.dumps(asked)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    return Measured(**json.loads(done.stdout))


def child(asked: dict[str, Any]) -> None:
    case = next(case for case in cases(asked["scale"]) if case.name == asked["case"])
    print(json.dumps(asdict(measure(case, asked["side"], Path(asked["uri"])))))


def figures_of(root: Path, chosen: list[Case], scale: float, rounds: int) -> Iterator[Figure]:
    """Each figure as it comes; a table is dropped after the last case that needs it."""
    tables = Tables(root)
    for number, case in enumerate(chosen):
        yield figure_of(tables, case, scale, rounds)
        if not any((other.table, other.size) == (case.table, case.size) for other in chosen[number + 1 :]):
            tables.drop(case)


# ---- the report ------------------------------------------------------------------------------------------------------------


def report(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Prints each figure when it comes."""
    print(f"{'':{_TITLE}}{'':8}{'ours':>12}{'pylance':>12}{'ratio':>8}{'aim':>8}")
    for figure in figures:
        for measure, unit in (("wall", "ms"), ("cpu", "ms"), ("memory", "MB")):
            pair: Pair = getattr(figure, measure)
            name = figure.name if measure == "wall" else ""
            aim = "" if pair.aim is None else f"{pair.aim:.2f}"
            verdict = {None: "", True: "  met", False: "  MISSED"}[pair.met]
            line = f"{pair.ours:>9.1f} {unit}{pair.pylance:>9.1f} {unit}{pair.ratio:>8.2f}{aim:>8}{verdict}"
            print(f"{name:{_TITLE}}{measure:8}{line}", flush=True)
        yield figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="cases whose name or label has this in it")
    parser.add_argument("--scale", type=float, default=1.0, help="of each size")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when an aim is missed")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child)
        return
    chosen = [case for case in cases(arguments.scale) if arguments.case is None or arguments.case in f"{case.name} {case.label}"]
    with scratch("cliffs") as root:
        measured = figures_of(root, chosen, arguments.scale, arguments.rounds)
        figures = list(measured if arguments.json else report(measured))
    if arguments.json:
        print(as_json(figures))
    if arguments.check and any(pair.met is False for figure in figures for pair in (figure.wall, figure.memory)):
        sys.exit(1)


if __name__ == "__main__":
    main()
