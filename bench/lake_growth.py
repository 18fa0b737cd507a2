"""What a transaction over one table costs in a small lake and in one with many tables and a long history.

    make bench-lake ARGS="growth"                           10 and 10,000 tables and snapshots on all three catalogs, about two minutes
    make bench-lake ARGS="growth --size 1000 --catalog sqlite"   less of it; --json for figures, --check to fail when a target is missed

The lakes differ in their records alone: most tables of the large one have no files, since nobody opens them. The two take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

import tiltyard as ty
from bench.commit import Figure, in_turn
from bench.lake_sites import Catalogs, postgres
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import MAIN, Change, Publication, VersionStep
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import Records, Writes
from tiltyard.interfaces import system_runtime

GROWTH = 1.5
"""The highest ratio that we are content with."""
AT_ONCE = 500


def grow(records: Records, size: int) -> None:
    """Gives a lake so many tables and snapshots, by the same decisions that real writers would have come to."""
    memory = MemoryRecords()
    before = dict(records.scan([""]))
    memory.transact([*before], [], lambda _: Writes(None, before))
    catalog = Catalog(memory, system_runtime())
    line = str(before[f"tip/{MAIN}"]["line"])
    made = [f"{number:012x}" for number in range(size)]
    for first in range(0, size, AT_ONCE):
        changes = tuple(
            Change(table, "create", f"grown{table}", 0, 0, (_step(table, 1),), location=f"{table}_grown.lance")
            for table in made[first : first + AT_ONCE]
        )
        catalog.publish(Publication(f"made-{first}", changes, line=line))
    for number in range(catalog.cut().snapshot, size):
        table, version = made[number % size], 2
        change = Change(table, "write", f"grown{table}", version - 1, version - 1, (_step(table, version),), base_branch="")
        catalog.publish(Publication(f"grown-{number}", (change,), line=line))
    after = [(key, body) for key, body in memory.scan([""]) if before.get(key) != body]
    for first in range(0, len(after), AT_ONCE):
        part = dict(after[first : first + AT_ONCE])
        records.transact([*part], [], lambda _, part=part: Writes(None, part))  # type: ignore[misc]


def _step(table: str, version: int) -> VersionStep:
    return VersionStep(version, f"_versions/{version}.manifest", None, f"{table}-{version}", "Append")


def measure(catalogs: Catalogs, size: int, rounds: int) -> Figure:
    """A transaction over one table in a small lake and in a large one, in turn."""
    with ExitStack() as stack:
        lakes = []
        for wanted in (10, size):
            address, root = catalogs.make()
            lake = stack.enter_context(ty.Lake.open(address, root=root, catalog="manifest" if catalogs.kind == "manifest" else None))
            lake.create_table("t", pa.table({"n": [0]}))
            grow(lake.catalog.records, wanted)
            lakes.append(lake)

        def add(lake: ty.Lake) -> None:
            with lake.transaction() as tx:
                tx.table("t").append(pa.table({"n": [1]}))
            assert lake.history()[0].tables == ("t",)

        for lake in lakes:
            add(lake)
        taken = in_turn(rounds, small=lambda: add(lakes[0]), large=lambda: add(lakes[1]))
    name = f"{catalogs.kind}: {size:,} tables and snapshots against 10"
    return Figure(name, statistics.median(taken["large"]), statistics.median(taken["small"]), "ms", GROWTH)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", choices=["sqlite", "postgresql", "manifest"], nargs="+", default=["sqlite", "postgresql", "manifest"])
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    figures: list[Figure] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiltyard-bench-")))
        for kind in given.catalog:
            server = stack.enter_context(postgres()) if kind == "postgresql" else None
            figures.append(measure(Catalogs(kind, directory, server), given.size, given.rounds))
            one = figures[-1]
            if not given.json:
                verdict = "met" if one.met else "MISSED"
                print(f"{one.name:<52} {one.ours:9.2f} ms {one.against:9.2f} ms {one.ratio:7.2f} {GROWTH:7.2f}  {verdict}", flush=True)
    if given.json:
        print(json.dumps([{**asdict(one), "ratio": one.ratio, "met": one.met} for one in figures], indent=2))
    return 1 if given.check and not all(one.met for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
