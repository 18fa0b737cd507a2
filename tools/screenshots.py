"""Takes pictures of every page of the console at 1280 and 400 pixels, light and dark, with a lake that has something for each page.

``python -m tools.screenshots`` writes them to ``build/screenshots``; ``--docs`` also writes the four that the documentation shows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from tests.support.browser import chromium_path
from tests.support.console_lakes import put_apart, shop
from tests.support.served import served

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTHS: Final = (1280, 400)
PAGES: Final = {
    "timeline": "/",
    "timeline-filtered": "/?table=sales.stock&span=20",
    "timeline-empty": "/?author=unheard",
    "transaction": "/transactions/main/13",
    "transaction-foreign": "/transactions/main/21",
    "tables": "/tables",
    "rows": "/tables/sales.orders",
    "schema": "/tables/sales.orders?view=schema",
    "versions": "/tables/sales.orders?view=versions",
    "diff": "/tables/sales.orders?view=diff&first=12&second=23",
    "indices": "/tables/sales.orders?view=indices",
    "fragments": "/tables/sales.orders?view=fragments",
    "conflicts": "/conflicts",
    "pair": "/conflicts/Update/Update",
    "branches": "/branches",
    "compare": "/branches/trial",
    "compare-ready": "/branches/ready",
    "pipelines": "/pipelines",
    "run": "/pipelines/run-1",
    "run-failed": "/pipelines/run-2",
    "health": "/health",
    "health-check": "/health?look=check",
    "health-storage": "/health?look=storage",
    "health-cleanup": "/health?look=cleanup&keep=5",
    "missing": "/nowhere",
}
IN_TROUBLE: Final = {
    "quarantine": "/tables/web.sessions",
    "quarantine-timeline": "/",
    "quarantine-tables": "/tables",
    "quarantine-transaction": "/transactions/main/26",
    "quarantine-compare": "/branches/main?into=trial",
    "quarantine-health": "/health?look=check",
    "quarantine-storage": "/health?look=storage",
}
"""Pages of a lake with a table that nobody may write to."""
IN_DOCS: Final = {"timeline": "light", "transaction": "light", "conflicts": "light", "compare": "dark"}
"""Pages that the documentation shows."""
SHOWN: Final = ROOT / "docs" / "guides" / "console"


def main() -> int:
    """Takes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--docs", action="store_true", help="write the pictures of the documentation, too")
    parser.add_argument("--only", nargs="*", help="only these pages")
    given = parser.parse_args()
    chromium = chromium_path()
    if chromium is None:
        print("There is no Chromium on this machine: apt-get install chromium", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        shop(Path(temporary) / "lake").close()
        with shop(Path(temporary) / "trouble") as lake:
            put_apart(lake)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with (
            served(Path(temporary) / "lake") as open_server,
            served(Path(temporary) / "lake", "--auth", "token") as closed,
            served(Path(temporary) / "trouble") as troubled,
        ):
            shown = ((open_server, PAGES), (closed, {"sign-in": "/sign-in"}), (troubled, IN_TROUBLE))
            for theme in ("light", "dark"):
                for width in WIDTHS:
                    for server, pages in shown:
                        some = {name: path for name, path in pages.items() if not given.only or name in given.only}
                        _take(browser, f"{server.url}/console", theme, width, given.out, some)
            if given.docs:
                _for_docs(browser, f"{open_server.url}/console")
        browser.close()
    print(f"{len(list(given.out.glob('*.png')))} pictures in {given.out}")
    return 0


def _take(browser: Browser, url: str, theme: str, width: int, out: Path, pages: Mapping[str, str]) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    for name, path in pages.items():
        page.goto(url + path, wait_until="networkidle")
        page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=True)
    context.close()


def _for_docs(browser: Browser, url: str) -> None:
    SHOWN.mkdir(parents=True, exist_ok=True)
    for name, theme in IN_DOCS.items():
        context = browser.new_context(viewport={"width": 1280, "height": 720}, color_scheme="dark" if theme == "dark" else "light")
        page = context.new_page()
        page.goto(url + PAGES[name], wait_until="networkidle")
        page.screenshot(path=SHOWN / f"{name}.png", full_page=name == "compare")  # the choices are at its end
        context.close()


if __name__ == "__main__":
    raise SystemExit(main())
