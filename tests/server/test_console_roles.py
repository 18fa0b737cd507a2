"""Who may look at what in the console, and do what: every page and action against every role, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.console_client import ConsoleClient, PageParts, console, signed_in
from tests.support.console_lakes import put_apart, shop
from tiltyard.lakes.refusals import refusals_of
from tiltyard.server.console.console_pages import PAGES

ROLES: Final = ("nobody", "reader:web", "maintainer:web", "admin:sales", "reader", "writer", "maintainer", "admin")
HERE: Final = (303, 200, 200, 200, 200, 200, 200, 200)
"""A page for everybody who is signed in; it shows what the role shows."""
SALES: Final = (303, 404, 404, 200, 200, 200, 200, 200)
"""A page about a table below ``sales``, or a transaction that changed nothing else."""
WEB: Final = (303, 200, 200, 404, 200, 200, 200, 200)
WHOLE: Final = (303, 403, 403, 403, 200, 200, 200, 200)
"""Looks through the whole lake."""
RUNS: Final = (303, 404, 404, 404, 200, 200, 200, 200)
ACTION: Final = (401, 403, 403, 403, 403, 403, 409, 409)
"""Whoever may act is told here that the form is out of date: nothing is done."""

MAY: Final[Mapping[str, tuple[int, ...]]] = {
    "/": HERE,
    "/transactions?id=13": (303,) * 8,  # leads to the page of the snapshot, which decides
    "/transactions/main/13": SALES,
    "/transactions/main/21": WEB,
    "/tables": HERE,
    **{f"/tables/sales.orders?view={view}": SALES for view in ("rows", "schema", "versions", "indices", "fragments", "diff")},
    "/tables/sales.orders?view=diff&first=12&second=23": SALES,
    "/tables/web.clicks": WEB,
    "/conflicts": HERE,
    "/conflicts/Update/Append": HERE,
    "/health": HERE,
    **{f"/health?look={look}": WHOLE for look in ("check", "deep", "storage", "cleanup")},
    "/branches": HERE,
    "/branches/trial": HERE,
    "/pipelines": HERE,
    "/pipelines/run-1": RUNS,
}
ACTIONS: Final = ("/branches/trial/merge", "/branches/trial/fast-forward", "/branches/ready/merge", "/branches/ready/fast-forward")
HIDDEN: Final[Mapping[str, tuple[str, ...]]] = {
    "web": ("sales", "batch", "sold, and", "counted, and", "runner", "customer", "secret", "archived"),
    "sales": ("web", "clicks", "counted, and", "/foreign", "runner", "secret", "archived"),
}
"""Words of tables that are not shown, of their rows, and of transactions that changed nothing else."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ty.Lake]:
    """With a table in quarantine, and two that came out of a namespace which few may see, by another name."""
    with shop(tmp_path_factory.mktemp("roles") / "lake") as made:
        put_apart(made)
        for prefix in ("web", "sales"):
            made.create_table(f"secret.{prefix}_old", pa.table({"id": [1], "text": ["archived"]}))
            made.table(f"secret.{prefix}_old").delete("id = 1", message="archived")
            made.rename_table(f"secret.{prefix}_old", f"{prefix}.plain")
        yield made


@pytest.fixture(scope="module")
def clients(lake: ty.Lake) -> Iterator[Mapping[str, ConsoleClient]]:
    with console(lake, tokens=True) as open_client:
        yield {role: open_client if role == "nobody" else signed_in(open_client, lake, role) for role in ROLES}


def test_every_page_is_in_the_table() -> None:
    named = [path.partition("?")[0].split("/") for path in (*MAY, *ACTIONS)]
    for spec in PAGES:
        parts = spec.path.split("/")
        fits = [all(ours.startswith("{") or ours == given for ours, given in zip(parts, name, strict=False)) for name in named]
        assert any(fit and len(name) == len(parts) for fit, name in zip(fits, named, strict=True)), spec.path


@pytest.mark.parametrize("path", MAY)
def test_who_may_look(clients: Mapping[str, ConsoleClient], path: str) -> None:
    assert dict(zip(ROLES, [clients[role].get(path).status for role in ROLES], strict=True)) == dict(zip(ROLES, MAY[path], strict=True))


@pytest.mark.parametrize("path", ACTIONS)
def test_who_may_act(clients: Mapping[str, ConsoleClient], lake: ty.Lake, path: str) -> None:
    before = lake.history()[0].id
    found = [clients[role].post(path, {"into": "main", "seen": "another"}).status for role in ROLES]
    assert dict(zip(ROLES, found, strict=True)) == dict(zip(ROLES, ACTION, strict=True))
    assert lake.history()[0].id == before


@pytest.mark.parametrize("role", ["reader:web", "maintainer:web", "admin:sales"])
def test_pages_say_no_more_than_the_role(clients: Mapping[str, ConsoleClient], role: str) -> None:
    own, hidden = clients[role], HIDDEN[role.partition(":")[2]]
    tip = own.text("/tables").partition("Live, at snapshot ")[2].partition(" ")[0]
    shown = [f"/transactions/main/{number}" for number in range(1, int(tip) + 1)]
    for path in (*MAY, *shown, "/branches/main?into=trial", "/tables/web.plain", "/tables/sales.plain?view=versions"):
        answer = own.get(path)
        if answer.status in (303, 404):
            continue  # it says only the name that was asked for
        words = PageParts(answer.body.decode()).words
        assert [word for word in hidden if word in words] == [], path
    assert "Counted by this server" not in own.text("/conflicts")
    assert "Users with a role for the whole lake see why" in own.text("/branches/main?into=trial")
    assert f"{role.partition(':')[2]}.plain" in own.text("/")


def test_an_id_of_a_transaction_leads_nowhere_for_those_who_may_not_see_it(clients: Mapping[str, ConsoleClient], lake: ty.Lake) -> None:
    wanted = next(snapshot for snapshot in lake.history() if snapshot.id == 13)
    found = {role: clients[role].get(f"/transactions?id={wanted.transaction}").status for role in ("reader:web", "admin:sales", "reader")}
    assert found == {"reader:web": 404, "admin:sales": 303, "reader": 303}


def test_the_difference_of_a_table_begins_where_its_name_may_be_seen(clients: Mapping[str, ConsoleClient], lake: ty.Lake) -> None:
    renamed = next(
        snapshot.id for snapshot in lake.history() for change in snapshot.changes if change.kind == "rename" and "web" in change.name
    )
    path = f"/tables/web.plain?view=diff&first={renamed - 2}&second={renamed}"
    assert "archived" in clients["reader"].text(path)
    assert clients["reader:web"].get(path).status == 404


def test_the_next_transaction_is_one_that_may_be_seen(clients: Mapping[str, ConsoleClient]) -> None:
    for role in ("reader:web", "admin:sales", "reader"):
        page, seen = "/transactions/main/" + ("2" if "sales" in role else "4"), 0
        while page:
            before, after, _ = clients[role].text(page).partition('">After</a>')
            page, seen = before.rpartition('href="/console')[2] if after else "", seen + 1
        assert seen > 4, role


def test_a_refused_transaction_is_for_those_who_see_all_of_its_tables(clients: Mapping[str, ConsoleClient], lake: ty.Lake) -> None:
    late, both = "sold, and too late for the stock", "counted, and a click"
    found = {role: clients[role].text("/conflicts") for role in ("reader:web", "admin:sales", "reader")}
    assert {role: (late in page, both in page) for role, page in found.items()} == {
        "reader:web": (False, False), "admin:sales": (True, False), "reader": (True, True),
    }  # fmt: skip
    ids = {told.message: told.transaction_id for told in refusals_of(lake)}
    for role, page in found.items():
        for message, number in ids.items():
            answer = clients[role].get(f"/transactions?id={number}")
            assert answer.status == (303 if message in page else 404), (role, message)
            assert message not in page or (answer.headers["location"].endswith(f"/conflicts#t-{number}") and f'id="t-{number}"' in page)
    error = "the transaction was built on version 4"
    assert error in found["reader"]
    assert error not in found["admin:sales"], "what an error says may name any table"
    assert "Update</a>" not in found["admin:sales"].partition(late)[0].rpartition("<section")[2]
    assert "Users with a role for the whole lake see why" in found["admin:sales"]


def test_a_refusal_is_hidden_with_the_name_that_its_table_has_by_now(clients: Mapping[str, ConsoleClient], lake: ty.Lake) -> None:
    lake.create_table("web.visible", pa.table({"id": [1]}))
    tx = lake.transaction(message="soon out of sight")
    tx.table("web.visible").delete("id = 1")
    lake.table("web.visible").delete("id = 1")
    with pytest.raises(ty.ConflictError):
        tx.commit()
    assert "soon out of sight" in clients["reader:web"].text("/conflicts")
    lake.rename_table("web.visible", "secret.visible")
    assert "soon out of sight" not in clients["reader:web"].text("/conflicts")
    assert "soon out of sight" in clients["reader"].text("/conflicts")
    lake.drop_table("secret.visible")
