"""A real Chromium drives every page of the console: navigation, filters, a merge, live updates, colours, keyboard, and axe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

import tiltyard as ty
from tests.support.browser import launched
from tests.support.console_lakes import shop
from tests.support.served import Served, served

EVERY_PAGE = (
    "/",
    "/transactions/main/13",
    "/tables",
    "/tables/sales.orders",
    "/tables/sales.orders?view=schema",
    "/tables/sales.orders?view=versions",
    "/tables/sales.orders?view=diff&first=12&second=23",
    "/tables/sales.orders?view=indices",
    "/tables/sales.orders?view=fragments",
    "/conflicts",
    "/conflicts/Update/Append",
    "/branches",
    "/branches/trial",
    "/pipelines",
    "/pipelines/run-2",
    "/health",
    "/health?look=check",
    "/health?look=storage",
    "/health?look=cleanup&keep=3",
    "/nowhere",
)


@dataclass
class Visitor:
    """A page of a browser that notes what goes wrong in it."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.url}/console{path}")
        return self.page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A lake of its own: a test here merges and commits."""
    home = tmp_path_factory.mktemp("browsed") / "lake"
    shop(home).close()
    with served(home) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as made:
        yield made


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    yield made
    made.close()


@pytest.fixture
def visitor(context: BrowserContext, server: Served) -> Iterator[Visitor]:
    made = Visitor(context.new_page(), server.url)
    yield made
    assert [error for error in made.errors if "404" not in error] == []


def test_every_page_can_be_used_by_everybody(visitor: Visitor) -> None:
    """Axe finds nothing, in either theme; no page is wider than its window but for what scrolls by itself; and all of it is small."""
    axe, page, sent = Axe(), visitor.page, dict[str, int]()
    page.on("response", lambda answer: sent.update({answer.url: int(answer.headers.get("content-length", 0))}))
    for path in EVERY_PAGE:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 800})
        visitor.go(path)
        expect(page.locator("h1")).to_be_visible()
        found = axe.run(page, options={"resultTypes": ["violations"]})
        assert found.violations_count == 0, (path, found.generate_report())
        page.emulate_media(color_scheme="dark")  # only colours differ, so only they are looked at again
        found = axe.run(page, options={"runOnly": ["color-contrast"], "resultTypes": ["violations"]})
        assert found.violations_count == 0, (path, "dark", found.generate_report())
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
    files = [size for url, size in sent.items() if "/static/" in url]
    pages = [size for url, size in sent.items() if "/static/" not in url and "seen=" not in url]
    assert (len(files), len(pages)) == (3, len(EVERY_PAGE))
    assert sum(files) + max(pages) < 60_000  # 300 kB are allowed; this is compressed, test_console_pages has what it unpacks to


def test_a_page_follows_a_writer(visitor: Visitor, server: Served) -> None:
    page = visitor.go("/")
    with server.lake() as lake:
        before = lake.history()[0].id
        expect(page.locator(f"#s{before}")).to_have_count(1)
        for number in range(2):
            _click(lake, number)
            expect(page.locator(f"#s{before + number + 1}")).to_have_count(1, timeout=60_000)
    page.click("text=Pause")
    expect(page.locator(".live")).to_contain_text("Paused")
    assert page.locator("[hx-get]").count() == 0


def _click(lake: ty.Lake, number: int) -> None:
    lake.table("web.clicks").append(pa.table({"at": pa.array([number], pa.timestamp("us", "UTC")), "page": ["/live"]}), message="live")


def test_colours_follow_the_system_and_the_choice(visitor: Visitor) -> None:
    page = visitor.go("/tables")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(shade)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(shade)
    assert light != dark
    page.click("button:has-text('Light')")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate(shade) == light
    page.emulate_media(color_scheme="light")
    page.click("button:has-text('Dark')")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(shade) == dark


def test_without_scripts(browser: Browser, server: Served) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(60_000)
    for path in EVERY_PAGE:
        page.goto(f"{server.url}/console{path}")
        assert page.locator("h1").count() == 1
        assert len(page.locator("main").inner_text()) > 60, path
    page.goto(f"{server.url}/console/")
    page.fill("#table", "sales.stock")
    page.click("text=Apply")
    page.locator("svg.timeline a").first.click()
    assert page.locator("h1").inner_text() == "Transaction 2"
    context.close()


_WATCH = """() => {
    const all = document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary, [tabindex="0"]');
    const radios = new Set();
    window.waiting = new Set([...all].filter(e => {
        if (e.type === 'radio') radios.add(e.name);
        return e.type !== 'radio' && e.checkVisibility();
    }));
    radios.forEach(name => window.waiting.add(document.querySelector(`input[name="${CSS.escape(name)}"]:checked`)
        ?? document.querySelector(`input[name="${CSS.escape(name)}"]`)));
    window.unseen = [];
    document.addEventListener('focusin', event => {
        const e = event.target, target = e.querySelector(':scope > .tl-target');
        window.waiting.delete(e);
        const shown = target ? getComputedStyle(target).strokeWidth === '2px' : getComputedStyle(e).outlineStyle !== 'none';
        if (!shown) window.unseen.push(e.outerHTML.slice(0, 200));
    });
    return window.waiting.size;
}"""
"""Notes which controls have had the focus; of radio buttons Tab comes to one of each group, and arrows to the others."""


def test_the_keyboard_reaches_everything(visitor: Visitor) -> None:
    """On every page, pressing Tab alone comes to each control and each part that scrolls; what has the focus shows it."""
    for path in EVERY_PAGE:
        page = visitor.go(path + ("&" if "?" in path else "?") + "live=off")
        many = page.evaluate(_WATCH)
        for _ in range(many + 1):
            page.keyboard.press("Tab")
        assert page.evaluate("Array.from(window.waiting, e => e.outerHTML.slice(0, 200))") == [], path
        assert page.evaluate("window.unseen") == [], path


def test_by_keyboard_to_a_transaction_and_a_choice(visitor: Visitor) -> None:
    page = visitor.go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    _press_tab_until(page, "document.activeElement.id === 's1'")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Transaction 1")
    page = visitor.go("/branches/trial")
    first = page.locator("input[type=radio]").first
    _press_tab_until(page, "document.activeElement.type === 'radio'")
    page.keyboard.press("ArrowDown")  # from the last choice of a row to its first
    expect(first).to_be_checked()


def _press_tab_until(page: Page, reached: str) -> None:
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate(reached):
            return
    raise AssertionError(f"never: {reached}")


def test_from_the_timeline_to_a_merge(visitor: Visitor, server: Served) -> None:
    """The last one: it settles the conflict that others look at."""
    page = visitor.go("/")
    page.fill("#author", "eve")
    page.select_option("#operation", "Update")
    page.click("text=Apply")
    expect(page.locator("svg.timeline a")).to_have_count(3)
    assert "author=eve" in page.url
    page.locator("#s13").click()
    expect(page.locator("h1")).to_have_text("Transaction 13")
    page.click("text=Update after Append")
    expect(page.locator("h1")).to_have_text("Update after Append")
    page.click("nav >> text=Tables")
    page.click("text=sales.orders")
    page.click("text=Differences")
    page.select_option("#first", "20")
    page.select_option("#second", "23")
    page.click("text=Compare")
    expect(page.locator("del")).to_have_text("paid")
    expect(page.locator("ins")).to_have_text("sent")
    page.click("nav >> text=Branches")
    page.click("text=Compare and merge trial")
    expect(page.locator("fieldset.card")).to_contain_text("both sides changed the same row")
    page.check("text=Take what trial has")
    page.fill("#message", "take the trial")
    page.click("text=Merge trial into main")
    expect(page.locator(".lead")).to_have_text("take the trial")
    with server.lake() as lake:
        assert lake.history()[0].message == "take the trial"
        assert lake.table("sales.orders").to_arrow(filter="id = 3").to_pylist()[0]["note"] == "tried"
