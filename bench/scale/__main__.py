"""The real commit code in virtual time: rate, tail, requests and money for 1 to 10,000 writers.

    make bench-scale                                   all of it, about half an hour of one processor; writes bench/results/scale.json
    make bench-scale ARGS="--quick"                    up to 100 writers, half a minute, figures on the screen alone
    make bench-scale ARGS="--only committer --writers 1000"   one of them; --seed for another run, --json

One seed gives the same figures on any machine, but for the time of processors. ``python -m bench.pages`` puts them into the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.circumstances import circumstances
from bench.scale.lake_runs import HOT, LAKE_WAYS, OWN, SHARDS, LakeRun, LakeWay
from bench.scale.table_runs import BOTH, DIRECT, GROUPED, MACHINES, QUEUED, SHARDED, WAYS, Outcome, TableRun, Way
from bench.scale.virtual_stores import Conditions

RESULTS: Final = Path(__file__).resolve().parent.parent / "results" / "scale.json"
WRITERS: Final = (1, 10, 100, 1_000, 10_000)
LONGEST: Final = 3600.0
"""Seconds of virtual time after which a run ends whatever came of it."""

PRICES: Final = {"PUT": 5.0, "create": 5.0, "LIST": 5.0, "GET": 0.4, "DELETE": 0.0, "SQL": 0.0}
"""Dollars for a million requests: list prices of S3 Standard. A database is paid by the hour, not by the statement."""

COMMITS: Final = {
    DIRECT.name: (100, 200, 200, 60, 10),
    QUEUED.name: (100, 200, 300, 280, 245),
    MACHINES.name: (100, 100, 300, 1500, 1500),
    GROUPED.name: (100, 100, 300, 3000, 2200),
    SHARDED.name: (100, 200, 300, 400, 80),
    BOTH.name: (100, 100, 300, 1500, 10000),
    HOT.name: (100, 100, 300, 1200, 150),
    SHARDS.name: (100, 100, 300, 600, 200),
    OWN.name: (100, 100, 300, 1500, 2500),
}
"""How many commits a run waits for, by the number of writers: where all race, everybody tries again for each of them."""


@dataclass(frozen=True, slots=True)
class ScaleFigure:
    """One run in figures. ``size`` counts fragments or tables; ``at_least``: some never got through, so that p99 is a lower bound."""

    series: str
    way: str
    writers: int
    size: int
    commits: int
    versions: int
    per_second: float
    p50: float
    p99: float
    at_least: bool
    requests: dict[str, float]
    dollars: float
    kilobytes: float
    processor_ms: float
    failed: int = 0


def figure(series: str, outcome: Outcome, size: int) -> ScaleFigure:
    commits = max(outcome.commits, 1)
    requests = {kind: round(count / commits, 3) for kind, count in sorted(outcome.requests.items())}
    return ScaleFigure(
        series,
        outcome.way,
        outcome.writers,
        size,
        outcome.commits,
        outcome.versions,
        round(outcome.rate, 2),
        round(outcome.percentile(0.5), 3),
        round(outcome.percentile(0.99), 3),
        outcome.starved,
        requests,
        round(sum(PRICES[kind] * count for kind, count in outcome.requests.items()) / commits, 2),
        round(outcome.bytes_written / commits / 1000, 1),
        round(1000 * outcome.processor, 2),
        outcome.failed,
    )


def _commits(way: Way | LakeWay, writers: int) -> int:
    return COMMITS[way.name][WRITERS.index(writers)] if writers in WRITERS else max(writers, 100)


def by_writers(ways: list[Way | LakeWay], counts: list[int], seed: int) -> Iterator[ScaleFigure]:
    for way in ways:
        for writers in counts:
            run = (LakeRun if isinstance(way, LakeWay) else TableRun)(way, writers, seed=seed, conditions=Conditions())  # type: ignore[arg-type]
            yield figure("writers", run.run(_commits(way, writers), LONGEST), 1)


def by_fragments(sizes: tuple[int, ...], seed: int) -> Iterator[ScaleFigure]:
    """One more file on more and more fragments: ten writers before a committer."""
    for size in sizes:
        yield figure("fragments", TableRun(GROUPED, 10, seed=seed, conditions=Conditions(), fragments=size).run(30, LONGEST), size)


def by_tables(sizes: tuple[int, ...], seed: int) -> Iterator[ScaleFigure]:
    """Ten writers on tables of their own, in a lake of more and more others."""
    for size in sizes:
        yield figure("tables", LakeRun(OWN, 10, seed=seed, conditions=Conditions(), others=size).run(100, LONGEST), size)


SIZES: Final = {"fragments": (by_fragments, (10, 1_000, 100_000, 1_000_000)), "tables": (by_tables, (10, 1_000, 100_000))}


def _line(found: ScaleFigure) -> str:
    requests = "  ".join(f"{kind} {count:.2f}" for kind, count in found.requests.items())
    return (
        f"{found.series:9s} {found.way:20s} {found.writers:6,d} writers {found.size:9,d}  {found.per_second:9.1f}/s  "
        f"p50 {found.p50:8.2f} s  p99 {'>=' if found.at_least else '  '}{found.p99:8.2f} s  ${found.dollars:9.2f} a million  {requests}  "
        f"{found.processor_ms:.1f} ms{f'  failed {found.failed}' if found.failed else ''}"
    )


def main(arguments: list[str] | None = None) -> int:
    names = {way.name: way for way in (*WAYS, *LAKE_WAYS)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 100 writers, 1,000 fragments and tables")
    parser.add_argument("--only", nargs="+", choices=[*names, *SIZES], default=[*names, *SIZES])
    parser.add_argument("--writers", type=int, nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    logging.getLogger("tiltyard").setLevel(logging.ERROR)  # a lost race is no news here
    before = circumstances()
    counts = given.writers or [writers for writers in WRITERS if writers <= (100 if given.quick else WRITERS[-1])]
    found: list[ScaleFigure] = []
    runs = [by_writers([names[name] for name in given.only if name in names], counts, given.seed)]
    for name, (by_size, sizes) in SIZES.items():
        runs += [by_size(sizes[:2] if given.quick else sizes, given.seed)] if name in given.only else []
    for series in runs:
        for one in series:
            found.append(one)
            if not given.json:
                print(_line(one), flush=True)
    told: dict[str, Any] = {
        "circumstances": {"before": before, "after": circumstances()},
        "seed": given.seed,
        "conditions": asdict(Conditions()),
        "prices": PRICES,
        "figures": [asdict(one) for one in found],
    }
    if given.json:
        print(json.dumps(told, indent=1))
    elif not given.quick and given.only == [*names, *SIZES] and given.writers is None:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
