"""What each page of the console shows, to whom, and what it does not: asked for in this process."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiltyard as ty
from tests.support.console_client import ConsoleClient, PageParts, console, signed_in
from tests.support.console_lakes import put_apart, shop
from tiltyard.cli.app import app
from tiltyard.server.console.console_pages import PAGES
from tiltyard.server.console.page_rendering import STATIC, static_file
from tiltyard.server.console.plan_svg import DrawnPart, plan_svg
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token

EVERY_PAGE = (
    "/",
    "/transactions/main/13",
    "/tables",
    "/tables/sales.orders",
    *(f"/tables/sales.orders?view={view}" for view in ("schema", "versions", "indices", "fragments", "diff")),
    "/tables/sales.orders?view=diff&first=12&second=23",
    "/conflicts",
    "/conflicts/Update/Append",
    "/branches",
    "/branches/trial",
    "/pipelines",
    "/pipelines/run-2",
    "/health",
    "/health?look=check",
    "/health?look=deep",
    "/health?look=storage",
    "/health?look=cleanup&keep=3",
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ty.Lake]:
    """A lake that no test here changes."""
    with shop(tmp_path_factory.mktemp("console") / "lake") as made:
        yield made


@pytest.fixture(scope="module")
def client(lake: ty.Lake) -> Iterator[ConsoleClient]:
    with console(lake) as made:
        yield made


def test_every_page_is_asked_for_here() -> None:
    named = {path.partition("?")[0] for path in EVERY_PAGE}
    missing = [spec.path for spec in PAGES if spec.method == "GET" and not any(_fits(spec.path, path) for path in named)]
    assert missing == ["/transactions"]  # which only leads to others


def _fits(pattern: str, path: str) -> bool:
    ours, theirs = pattern.split("/"), path.split("/")
    return len(ours) == len(theirs) and all(part.startswith("{") or part == given for part, given in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("path", EVERY_PAGE)
def test_a_page(client: ConsoleClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 200
    parts = PageParts(answer.body.decode())
    parts.check()
    assert parts.tags.count("h1") == 1
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_all_that_a_browser_loads_is_small(client: ConsoleClient) -> None:
    files = sum(len(found.data) for name in STATIC if (found := static_file(name)) is not None)
    assert files + max(len(client.get(path).body) for path in EVERY_PAGE) < 300_000


def test_the_timeline_says_who_was_rebased_over_whom(client: ConsoleClient) -> None:
    words = PageParts(client.text("/")).words
    assert "sales.orders: Append in snapshot 6 was rebased over Append in snapshot 5" in words
    assert "sales.orders: Update in snapshot 13 was rebased over Append in snapshot 12" in words
    assert "web.clicks by a foreign writer to version 5" in words
    assert "tag opening at snapshot 4" in words
    assert "branch trial at snapshot 22" in words


def test_the_list_of_the_timeline_says_what_the_picture_says(client: ConsoleClient) -> None:
    rows = client.text("/").partition("<tbody>")[2].split("<tr>")
    row = next(row for row in rows if 'transactions/main/13">13</a>' in row)
    assert 'transactions/main/12">12</a>' in row
    assert row.count(">Update</span>") == 2


def test_the_timeline_is_zoomed_by_links(client: ConsoleClient) -> None:
    assert 'href="/console/?span=20">Zoom in</a>' in client.text("/")
    assert "Zoom out" not in client.text("/")
    assert 'href="/console/?span=40">Zoom out</a>' in client.text("/?span=20")


def test_pages_are_compressed_for_those_who_take_it(client: ConsoleClient) -> None:
    for path in ("/tables", "/static/console.css"):
        plain, packed = client.get(path), client.get(path, accept_encoding="br, gzip")
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body) / 2
        assert gzip.decompress(packed.body) == plain.body


def test_the_command_draws_the_same(lake: ty.Lake, tmp_path: Path) -> None:
    picture = tmp_path / "history.svg"
    home = lake.url.removeprefix("sqlite:///").removesuffix("/catalog.db")
    runner = CliRunner()
    done = runner.invoke(app, ["lake", "timeline", home, "--svg", str(picture), "--json", "--table", "sales.orders"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {(arrow["over"], arrow["by"]) for arrow in told["arrows"]} == {(5, 6), (9, 10), (12, 13), (14, 15)}
    words = PageParts(picture.read_text()).words
    assert "Update in snapshot 13 was rebased over Append in snapshot 12" in words
    assert "web.clicks" not in words
    shown = runner.invoke(app, ["lake", "timeline", home, "--limit", "13"])
    assert "12 (sales.orders)" in shown.stdout
    refused = runner.invoke(app, ["lake", "timeline", home, "--svg", str(tmp_path / "missing" / "x.svg")])
    assert refused.exit_code != 0


@pytest.mark.parametrize(
    ("query", "snapshots"),
    [
        ("author=EVE", [17, 13, 8]),
        ("table=sales.stock", [18, 17, 13, 8, 2]),
        ("table=web&operation=adopt", [21]),
        ("author=bob&operation=append&table=sales", [20, 15, 12, 10, 6]),
        ("before=4", [3, 2, 1]),
        ("author=nobody-of-that-name", []),
        ("branch=trial", [24, 23]),
    ],
)
def test_filters_are_links(client: ConsoleClient, query: str, snapshots: list[int]) -> None:
    parts = PageParts(client.text(f"/?{query}"))
    drawn = [int(value[1:]) for tag, name, value in parts.attributes if (tag, name) == ("a", "id")]
    assert drawn == snapshots[::-1]


def test_pages_of_the_history_join(client: ConsoleClient) -> None:
    first = client.text("/?span=20")
    assert 'href="/console/?span=20&amp;before=5"' in first
    assert "Snapshots 1–4 of 24" in client.text("/?span=20&before=5")


def test_a_transaction_says_over_whom_and_why(client: ConsoleClient) -> None:
    words = PageParts(client.text("/transactions/main/13")).words
    assert "It was built on version 6; 1 version came first, and it was rebased over it." in words
    assert "It was built on version 2, which was still the latest" in words
    for word in ("eve", "sold, and taken from stock", "in between", "None of the conditions for a conflict held", "till"):
        assert word in words
    assert "The lake adopted its versions" in PageParts(client.text("/transactions/main/21")).words.replace("the lake", "The lake")


def test_a_transaction_shows_properties_of_people_not_those_of_the_engine(client: ConsoleClient, lake: ty.Lake) -> None:
    known = next(snapshot for snapshot in lake.history() if snapshot.id == 12).properties
    assert any(key.startswith(("tiltyard.", "__lance")) for key in known), "nothing that could be shown"
    words = PageParts(client.text("/transactions/main/12")).words
    assert not [word for word in ("__lance_commit_message", "tiltyard.seal", "tiltyard.parent") if word in words]
    assert "in between" in words


def test_versions_to_compare_are_asked_for(client: ConsoleClient) -> None:
    assert "Choose them above" in client.text("/tables/sales.orders?view=diff")
    assert "Choose them above" not in client.text("/tables/sales.orders?view=diff&first=12&second=23")


def test_a_transaction_is_found_by_its_id(client: ConsoleClient, lake: ty.Lake) -> None:
    wanted = next(snapshot for snapshot in lake.history() if snapshot.id == 12)
    assert client.get(f"/transactions?id={wanted.transaction}").headers["location"] == "/console/transactions/main/12"
    assert client.get("/transactions?id=7").headers["location"] == "/console/transactions/main/7"
    assert client.get("/transactions?id=unknown").status == 404


def test_rows_at_an_earlier_snapshot(client: ConsoleClient) -> None:
    then, now = (PageParts(client.text(f"/tables/sales.stock{at}")).words for at in ("?at=2", ""))
    assert "version 1 at snapshot 2" in then
    assert "50" in then
    assert "47" in now
    assert "140" in now


def test_a_difference_shows_what_a_value_was(client: ConsoleClient) -> None:
    page = client.text("/tables/sales.orders?view=diff&first=20&second=23")
    assert "<del>paid</del> <ins>sent</ins>" in page
    assert "1 changed" in page


def test_an_index_says_what_it_covers(client: ConsoleClient) -> None:
    words = PageParts(client.text("/tables/sales.orders?view=indices")).words
    assert "id_idx" in words
    assert "BTREE" in words


def test_conflicts_count_pairs_and_explain_refusals(client: ConsoleClient) -> None:
    words = " ".join(PageParts(client.text("/conflicts")).words.split())
    assert "3 rebased" in words
    assert "3 refused" in words
    assert "Update read version 4, then came version 5" in words
    assert "both changed the same rows" in PageParts(client.text("/conflicts/update/update")).words.lower()


def test_a_refused_transaction_says_what_it_was_to_change_and_who_came_first(client: ConsoleClient) -> None:
    page = client.text("/conflicts")
    card = next(part for part in page.split("<section") if "sold, and too late for the stock" in part)
    words = " ".join(PageParts(f"<section{card.partition('</section>')[0]}</section>").words.split())
    for said in (
        "Transaction refused at sales.stock retryable-conflict",
        "eve",
        "Built onsnapshot 17",
        "sales.stock: Update; sales.orders: Append",
        "Came firstUpdate by bob, snapshot 18 (Update after Update)",
    ):
        assert said in words
    assert client.get("/conflicts?branch=ready").body.count(b"Transaction refused") == 0, "it was another line of history"


def test_health_looks_through_the_lake(client: ConsoleClient) -> None:
    assert "every promise holds" in client.text("/health?look=deep")
    assert "would go. Nothing was removed" in client.text("/health?look=cleanup&keep=3")
    assert "Storage by snapshot" in client.text("/health?look=storage")


def test_a_run_says_what_each_step_took(client: ConsoleClient) -> None:
    words = PageParts(client.text("/pipelines/run-1")).words
    assert "amount is positive" in words
    assert "1.9 s" in words
    assert "sales.rejected" in words
    assert "The source has no column amount." in PageParts(client.text("/pipelines/run-2")).words


def test_a_page_that_is_up_to_date_is_not_sent_again(client: ConsoleClient) -> None:
    assert 'hx-get="/console/?seen=24"' in client.text("/")
    assert client.get("/?seen=24").status == 204
    assert client.get("/?seen=23").status == 200
    assert "hx-get" not in client.text("/?live=off")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/tables/no.such", 404),
        ("/tables/..%20..", 400),
        ("/tables/sales.orders?view=secrets", 404),
        ("/transactions/main/99", 404),
        ("/transactions/other/1", 404),
        ("/transactions/main/one", 400),
        ("/?span=7", 400),
        ("/?before=-1", 400),
        ("/?branch=none", 404),
        ("/branches/none", 404),
        ("/pipelines/'%20or%201=1", 404),
        ("/conflicts/Fly/Append", 400),
        ("/health?look=everything", 400),
        ("/static/../console_app.py", 404),
    ],
)
def test_errors_are_pages(client: ConsoleClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status == status
    assert "content-security-policy" in answer.headers


# ---- who looks -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(lake: ty.Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ConsoleClient, Path]]:
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with console(lake, tokens=True, audit=audit) as made:
        yield made, audit


def test_signing_in(closed: tuple[ConsoleClient, Path], lake: ty.Lake) -> None:
    own = ConsoleClient(closed[0].app)
    sent = own.get("/tables?name=a")
    assert sent.status == 303
    assert sent.headers["location"] == "/console/sign-in?next=%2Fconsole%2Ftables%3Fname%3Da"
    assert own.post("/sign-in", {"token": "tyd_wrong"}).status == 401
    assert own.get("/tables").status == 303
    token, _ = create_token(lake, "reader", [Grant.parse("reader")])
    answer = own.post("/sign-in", {"token": token, "next": "/console/tables"})
    assert (answer.status, answer.headers["location"]) == (303, "/console/tables")
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/console"))
    assert own.get("/tables").status == 200
    assert own.post("/sign-out", {}).status == 303
    assert own.get("/tables").status == 303


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/console/", "/consoles", "/console/\\evil", "javascript:alert(1)", "/v1/"]
)
def test_signing_in_leads_nowhere_else(closed: tuple[ConsoleClient, Path], lake: ty.Lake, target: str) -> None:
    token, _ = create_token(lake, "reader", [Grant.parse("reader")])
    answer = ConsoleClient(closed[0].app).post("/sign-in", {"token": token, "next": target})
    assert answer.headers["location"] == "/console/"


def test_requests_are_written_down(closed: tuple[ConsoleClient, Path], lake: ty.Lake) -> None:
    own = signed_in(closed[0], lake, "reader")
    own.get("/tables/sales.stock")
    line = json.loads(closed[1].read_text().splitlines()[-1])
    assert (line["principal"], line["operation"], line["target"]) == ("holder of reader", "console.table", "sales.stock")
    assert (line["verdict"], line["status"]) == ("allowed", 200)


def test_a_run_has_its_plan_as_a_picture(client: ConsoleClient) -> None:
    for run, words in (("run-1", ("1,188 rows", "sales.totals")), ("run-2", ("failed here", "rollup"))):
        page = client.text(f"/pipelines/{run}")
        drawn = page.partition('<svg class="plan"')[2].partition("</svg>")[0]
        assert drawn.count("<rect") == 6
        assert drawn.count('class="tl-arrow"') == 5
        assert all(word in page for word in words)
        assert ("pl-failed" in drawn) == (run == "run-2")


def test_plans_that_nobody_checked() -> None:
    """Any writer may have left the report of a run: circles, strange kinds, too many parts."""
    circle = [DrawnPart("step", "a", ("b", "a")), DrawnPart("step", "b", ("a",)), DrawnPart("odd", "<b>", ("nowhere",))]
    drawn = plan_svg(circle, 'a "title"')
    parts = PageParts(drawn)
    assert parts.open == []
    assert "b" not in parts.tags
    assert plan_svg([], "") == ""
    assert plan_svg([DrawnPart("step", str(number), ()) for number in range(61)], "") == ""


def test_a_table_in_quarantine_is_shown_as_such(tmp_path: Path) -> None:
    with shop(tmp_path / "lake") as lake:
        put_apart(lake)
        with console(lake) as client:
            assert "tl-held" in client.text("/").partition("<svg")[2]
            assert "took _versions/" in client.text("/health")
            for path in EVERY_PAGE:
                assert client.get(path).status == 200, path
            assert "web.sessions, which cannot be read" in client.text("/health?look=storage")
            assert "the last one before" in client.text("/tables/web.sessions")
            assert "3 tables changed on main alone, which a merge leaves as they are" in client.text("/branches/trial")
            assert "web.sessions is corrupt" in client.text("/branches/main?into=trial")
            for path in ("/transactions/main/26", "/tables/web.sessions", "/tables/web.sessions?view=versions"):
                answer = client.get(path)
                assert b"quarantine" in answer.body.lower(), (path, answer.status)


def test_the_theme_is_a_cookie(client: ConsoleClient) -> None:
    own = ConsoleClient(client.app)
    assert 'data-theme="auto"' in own.text("/tables")
    answer = own.post("/theme", {"theme": "dark", "next": "/console/tables?name=a"})
    assert (answer.status, answer.headers["location"]) == (303, "/console/tables?name=a")
    assert 'data-theme="dark"' in own.text("/tables")
    own.post("/theme", {"theme": '"><script>'})
    assert 'data-theme="dark"' in own.text("/tables")
