"""Measures the console on a large lake: how long a server takes for a page, and a browser until it paints.

``python -m bench.console`` makes a lake of 1,000 snapshots over 200 tables, serves it, and asks for each page several times. Every
snapshot is a commit, every third one over three tables, and half of the appends are rebased. ``--keep DIR`` leaves the lake there, and
takes it from there the next time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
from playwright.sync_api import sync_playwright

import tiltyard as ty
from tests.support.browser import chromium_path
from tests.support.console_lakes import RUN_SCHEMA, RUNS, run_row
from tests.support.served import Served, served

TABLES: Final = 200
PAGES: Final = {
    "timeline": "/",
    "timeline, 160 snapshots": "/?span=160",
    "timeline, filtered": "/?author=author+3",
    "transaction": "/transactions/main/{tip}",
    "transaction, 500 ago": "/transactions/main/{middle}",
    "tables": "/tables",
    "table, rows": "/tables/many.table_007",
    "table, rows at a snapshot": "/tables/many.table_007?at={middle}",
    "table, schema": "/tables/many.table_007?view=schema",
    "table, versions": "/tables/many.table_007?view=versions",
    "table, differences": "/tables/many.table_007?view=diff&first={middle}&second={tip}",
    "table, indices": "/tables/many.table_007?view=indices",
    "table, fragments": "/tables/many.table_007?view=fragments",
    "conflicts": "/conflicts",
    "conflicts, one pair": "/conflicts/Update/Update",
    "branches": "/branches",
    "branch, compared": "/branches/trial",
    "pipelines": "/pipelines",
    "pipeline, one run": "/pipelines/run-1",
    "health": "/health",
}
"""All pages that answer by themselves. Looks through the whole lake are asked for, and take what they take."""
LOOKS: Final = {
    "health, check": "/health?look=check",
    "health, storage": "/health?look=storage",
    "health, cleanup": "/health?look=cleanup&keep=500",
}


def main() -> None:
    """Prints a table: the median answer of the server, and the first paint, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", type=Path, help="the lake's directory; made where it is not there yet")
    parser.add_argument("--make", action="store_true", help="only make the lake")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = given.keep or Path(temporary) / "lake"
        if not home.exists():
            make(home, given.snapshots)
        if given.make:
            return
        with served(home) as server:
            _measure(server, given.rounds)


def _measure(server: Served, rounds: int) -> None:
    with server.lake() as lake:
        tip = lake.history()[0].id
    pages = {name: path.format(tip=tip, middle=tip - 500 if tip > 700 else tip // 2) for name, path in PAGES.items()}
    answers = {name: _answer(server, path, rounds) for name, path in pages.items()}
    painted = _paints(server, pages, rounds)
    print(f"{tip:,} snapshots, {TABLES} tables; medians of {rounds}, ms")
    for name, answer in answers.items():
        print(f"{name:26} answer {answer:7.0f}   first paint {painted.get(name, float('nan')):7.0f}")
    for name, path in LOOKS.items():
        print(f"{name:26} answer {_answer(server, path, 1):7.0f}   (asked for)")


def make(home: Path, snapshots: int) -> None:
    """Makes the lake, with as many commits as snapshots.

    Args:
        home: where.
        snapshots: how many, those that create the tables included.
    """
    with ty.Lake.open(home, author="author 0") as lake:
        names = [f"many.table_{number:03d}" for number in range(TABLES)]
        with lake.transaction(message="all tables") as tx:
            for name in names:
                tx.create_table(name, _rows(0))
        began = lake.history()[0].at
        runs = [run_row(f"run-{number}", began) for number in range(3)]
        lake.create_table(RUNS, pa.Table.from_pylist(runs, schema=RUN_SCHEMA), primary_key=["run"])
        lake.branches.create("trial")
        lake.on_branch("trial").table(names[5]).append(_rows(1))
        number = 0
        while (tip := lake.history(1)[0].id) < snapshots:
            _commit(lake.signed(f"author {tip % 9}"), names, number)
            number += 1


def _commit(lake: ty.Lake, names: list[str], number: int) -> None:
    first = names[number % TABLES]
    if number % 3 == 0:
        with lake.transaction(message="three together") as tx:
            for name in {first, names[number * 7 % TABLES], names[number * 13 % TABLES]}:
                tx.table(name).append(_rows(number))
        return
    stale = lake.table(first)
    lake.table(first).append(_rows(number), message="one table")
    stale.append(_rows(-number), message="rebased over the one before")


def _rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array(range(number * 10, number * 10 + 10), pa.int64()), "note": [f"note {number}"] * 10})


def _answer(server: Served, path: str, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = server.get(f"/console{path}")
        times.append(time.perf_counter() - began)
        assert answer.status == 200, path
    return statistics.median(times) * 1000


def _paints(server: Served, pages: dict[str, str], rounds: int) -> dict[str, float]:
    """First contentful paint by page; none where there is no Chromium."""
    chromium, found = chromium_path(), {}
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path in pages.items():
            times = []
            for _ in range(rounds):
                page = browser.new_page(bypass_csp=True)  # waiting for the paint evaluates a text
                page.goto(f"{server.url}/console{path}", wait_until="load")
                page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
                times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
                page.close()
            found[name] = statistics.median(times)
        browser.close()
    return found


if __name__ == "__main__":
    main()
