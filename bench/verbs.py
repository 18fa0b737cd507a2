"""What the verbs cost, ours and pylance's in turn in one run, each on its own copy of the same table.

    make bench-verbs                             all of it, some minutes
    make bench-verbs ARGS="--rows 100000"        smaller tables; --only upsert for some; --json for figures; --check to fail on a miss

``durability="os"`` is compared, since pylance never flushes. Peak memory is that of a fresh process for each call, above what it had
before; both libraries have opened the table by then.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import tiltyard as ty
from bench.verb_cases import MEMORY_AIM, SOURCES, TABLES, TIME_AIM, Case, cases

SIDES = ("ours", "pylance")


@dataclass(frozen=True)
class Pair:
    """One measure of both sides. ``aim`` is the highest ratio we are content with."""

    ours: float
    pylance: float
    aim: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.pylance if self.pylance else float("inf")

    @property
    def met(self) -> bool | None:
        return None if self.aim is None else self.ratio <= self.aim


@dataclass(frozen=True)
class Figure:
    """Medians of one case: milliseconds on the clock, milliseconds of processors, megabytes at the peak above those before."""

    name: str
    wall: Pair
    cpu: Pair
    memory: Pair


# ---- one call --------------------------------------------------------------------------------------------------------------


def prepared(case: Case, side: str, uri: Path, source: pa.Table) -> Callable[[], object]:
    """The call, on a handle opened beforehand."""
    if side == "ours":
        return partial(case.ours, ty.Table.open(uri, durability=case.durability), source)
    return partial(case.stock, lance.dataset(str(uri)), source)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds on the clock and of processors."""
    gc.collect()
    worked, begun = time.process_time(), time.perf_counter()
    call()
    wall, cpu = time.perf_counter() - begun, time.process_time() - worked
    return wall * 1000, cpu * 1000


def peaked(call: Callable[[], object]) -> float:
    """Megabytes at the peak, above those before."""
    gc.collect()
    begun = _resident()
    call()
    return (_peak() - begun) / 1024


def _resident() -> int:
    """Kilobytes in memory, from where on the peak is counted anew. Where the system cannot do that, the peak so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


# ---- copies ----------------------------------------------------------------------------------------------------------------


class Bench:
    """Tables, made once, of which each call gets a copy."""

    def __init__(self, root: Path, rows: int) -> None:
        self.root = root
        self.rows = rows
        self._number = 0

    def source(self, case: Case) -> Path:
        path = self.root / f"{case.source}.arrow"
        if not path.exists():
            rows = SOURCES[case.source](self.rows)
            with pa.ipc.new_file(path, rows.schema) as file:
                file.write_table(rows)
        return path

    def copy(self, case: Case) -> Path:
        """Data files are never changed and need not be there twice; nor is one side to find them warm and the other not."""
        original = self.root / f"table {case.table}"
        if not original.exists():
            TABLES[case.table](original, self.rows)
        self._number += 1
        made = self.root / f"copy {self._number}"
        shutil.copytree(original, made, copy_function=_linked)
        return made

    def in_turn(self, case: Case, rounds: int, measure: Callable[[Case, str, Path], Any]) -> dict[str, list[Any]]:
        """What is measured on each side, first one, then the other side first."""
        found: dict[str, list[Any]] = {side: [] for side in SIDES}
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                copy = self.copy(case)
                found[side].append(measure(case, side, copy))
                shutil.rmtree(copy)
        return found


def _linked(source: str, target: str) -> str:
    if source.endswith(".lance") and Path(source).parent.name == "data":
        os.link(source, target)
    else:
        shutil.copy2(source, target)
    return target


def read_rows(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


# ---- a case ----------------------------------------------------------------------------------------------------------------


def figure_of(bench: Bench, case: Case, rounds: int, children: int) -> Figure:
    source = read_rows(bench.source(case))
    seen = bench.in_turn(case, 1, lambda case, side, uri: outcome(case, side, uri, source))
    if seen["ours"] != seen["pylance"]:
        raise SystemExit(f"{case.name}: the rows differ afterwards: {seen}")
    times = bench.in_turn(case, rounds, lambda case, side, uri: timed(prepared(case, side, uri, source)))
    peaks = bench.in_turn(case, children, lambda case, side, uri: _in_a_child(bench, case, side, uri))
    time_aim, memory_aim = (TIME_AIM, MEMORY_AIM) if case.aimed else (None, None)
    wall = {side: statistics.median(wall for wall, _ in times[side]) for side in SIDES}
    cpu = {side: statistics.median(cpu for _, cpu in times[side]) for side in SIDES}
    memory = {side: statistics.median(peaks[side]) for side in SIDES}
    return Figure(case.name, Pair(**wall, aim=time_aim), Pair(**cpu), Pair(**memory, aim=memory_aim))


def outcome(case: Case, side: str, uri: Path, source: pa.Table) -> list[Any]:
    """What is there after the call; both sides must have done the same. Warms both up as well."""
    prepared(case, side, uri, source)()
    found = lance.dataset(str(uri)).to_table(columns=["id", "count", "amount", "note"])
    compute = pa.compute
    return [
        found.num_rows,
        compute.sum(found["id"]).as_py(),
        compute.sum(found["count"]).as_py(),
        round(compute.sum(found["amount"]).as_py()),
        compute.sum(compute.binary_length(found["note"])).as_py(),
    ]


def _in_a_child(bench: Bench, case: Case, side: str, uri: Path) -> float:
    told = {"case": case.name, "side": side, "uri": str(uri), "source": str(bench.source(case)), "rows": bench.rows}
    command = [sys.executable, "-m", "bench.verbs", "--child", json.dumps(told)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def child(told: dict[str, Any]) -> None:
    case = next(one for one in cases(told["rows"]) if one.name == told["case"])
    for side in SIDES:  # what a process needs but once, as threads, is no part of the call
        prepared(case, side, Path(told["uri"]), pa.table({}))
    print(peaked(prepared(case, told["side"], Path(told["uri"]), read_rows(Path(told["source"])))))


# ---- the report ------------------------------------------------------------------------------------------------------------

_MEASURES = (("wall", "ms"), ("cpu", "ms"), ("memory", "MB"))


def report(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Prints each figure when it comes."""
    print(f"{'':36}{'':8}{'ours':>10}{'pylance':>12}{'ratio':>8}{'aim':>8}")
    for figure in figures:
        for measure, unit in _MEASURES:
            pair: Pair = getattr(figure, measure)
            name = figure.name if measure == "wall" else ""
            aim = "" if pair.aim is None else f"{pair.aim:.2f}"
            verdict = {None: "", True: "  met", False: "  MISSED"}[pair.met]
            print(f"{name:36}{measure:8}{pair.ours:>7.1f} {unit}{pair.pylance:>9.1f} {unit}{pair.ratio:>8.2f}{aim:>8}{verdict}", flush=True)
        yield figure


def as_json(figures: list[Figure]) -> str:
    def told(pair: Pair) -> dict[str, Any]:
        return {**asdict(pair), "ratio": pair.ratio, "met": pair.met}

    return json.dumps([{"name": one.name, **{name: told(getattr(one, name)) for name, _ in _MEASURES}} for one in figures], indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--children", type=int, default=5, help="processes for each side, to measure memory")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when an aim is missed")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child)
        return
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as scratch:
        bench = Bench(Path(scratch), arguments.rows)
        chosen = [case for case in cases(arguments.rows) if arguments.only is None or arguments.only in case.name]
        measured = (figure_of(bench, case, arguments.rounds, arguments.children) for case in chosen)
        figures = list(measured if arguments.json else report(measured))
    if arguments.json:
        print(as_json(figures))
    if arguments.check and any(pair.met is False for one in figures for pair in (one.wall, one.memory)):
        sys.exit(1)


if __name__ == "__main__":
    main()
