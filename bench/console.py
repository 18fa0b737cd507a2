"""Measures the console on a large lake: how long a server takes for a page, and a browser until it paints.

``python -m bench.console`` makes the records of 1,000 snapshots over 200 tables, serves them, and asks for each page several times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

import tiltyard as ty
from tests.server.test_console_scale import long_history
from tests.support.browser import chromium_path
from tests.support.served import Served, served

PAGES: Final = {
    "timeline": "/",
    "timeline, 160 snapshots": "/?span=160",
    "timeline, filtered": "/?author=author+3",
    "tables": "/tables",
    "conflicts": "/conflicts",
    "branches": "/branches",
}


def main() -> None:
    """Prints a table: the median answer of the server, and the first paint, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "lake"
        with ty.Lake.open(home) as lake:
            long_history(lake, given.snapshots)
        with served(home) as server:
            painted = _paints(server, given.rounds)
            print(f"{given.snapshots:,} snapshots, 200 tables; medians of {given.rounds}, ms")
            for name, path in PAGES.items():
                print(f"{name:26} answer {_answer(server, path, given.rounds):7.0f}   first paint {painted.get(name, float('nan')):7.0f}")


def _answer(server: Served, path: str, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = server.get(f"/console{path}")
        times.append(time.perf_counter() - began)
        assert answer.status == 200, path
    return statistics.median(times) * 1000


def _paints(server: Served, rounds: int) -> dict[str, float]:
    """First contentful paint by page; none where there is no Chromium."""
    chromium, found = chromium_path(), {}
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path in PAGES.items():
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
