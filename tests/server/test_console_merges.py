"""What the console does: merges with answers by table and by row, and fast-forward; by whom, and for what was looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.console_client import ConsoleClient, PageParts, console, signed_in
from tiltyard.lakes.merging.merge_verbs import MergeVerbs


def form_of(client: ConsoleClient, branch: str) -> dict[str, str]:
    """The hidden fields of the form that merges a branch."""
    parts = PageParts(client.text(f"/branches/{branch}"))
    values = [value for tag, name, value in parts.attributes if tag == "input" and name in ("name", "value")]
    pairs = dict(zip(values[::2], values[1::2], strict=False))
    seen = client.text(f"/branches/{branch}").partition('name="seen" value="')[2].partition('"')[0]
    assert "seen" in pairs
    return {"into": "main", "seen": seen}


@pytest.fixture
def branched(tmp_path: Path) -> Iterator[ty.Lake]:
    """Two branches: one that conflicts with main, one that does not."""
    with ty.Lake.open(tmp_path / "lake", author="ada") as made:
        rows = pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]})
        made.create_table("t", rows, primary_key=["id"], stable_row_ids=True)
        made.branches.create("trial")
        made.on_branch("trial").table("t").update({"note": "'theirs'"}, where="id = 1")
        yield made


def test_a_merge_with_a_conflict(branched: ty.Lake) -> None:
    branched.table("t").update({"note": "'ours'"}, where="id = 1")
    with console(branched) as client:
        page = client.text("/branches/trial")
        assert "both sides changed the same row" in page
        assert "Take what trial has" in page
        form = form_of(client, "trial")
        refused = client.post("/branches/trial/merge", form)
        assert refused.status == 409
        assert branched.table("t").version == 2
        done = client.post("/branches/trial/merge", {**form, "use:t": "theirs", "message": "the trial was right"})
        assert (done.status, done.headers["location"]) == (303, "/console/transactions/main/3")
        assert "the trial was right" in client.text("/transactions/main/3")
    assert branched.table("t").to_arrow(filter="id = 1").to_pylist() == [{"id": 1, "note": "theirs"}]


def answers_of(page: str, table: str) -> dict[str, str]:
    """The field that answers for each row that a page shows, by its key."""
    parts = re.findall(r"<caption>([^<]*)</caption>(.*?)</fieldset>", page, re.S)
    return {key: re.findall(rf'name="(row:{table}:[0-9a-f]+)"', rest)[0] for key, rest in parts}


def hidden_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.partition('class="merge"')[2]))


def test_conflicts_are_settled_row_by_row(tmp_path: Path) -> None:
    """Over several pages, with keys of types that no form has: each row ends with the side that was chosen for it."""
    keys = [Decimal(number) / 4 for number in range(25)]
    with ty.Lake.open(tmp_path / "lake", author="ada") as lake:
        rows = pa.table({"price": pa.array(keys, pa.decimal128(9, 2)), "of": [b"\0"] * 25, "note": ["was"] * 25})
        lake.create_table("t", rows, primary_key=["price", "of"])
        lake.branches.create("trial")
        lake.on_branch("trial").table("t").update({"note": "'theirs'"})
        lake.table("t").update({"note": "'ours'"})
        with console(lake) as client:
            form, pages = form_of(client, "trial"), 0
            chosen: dict[str, str] = {}
            page = client.text("/branches/trial")
            while fields := answers_of(page, "t"):
                pages += 1
                given = {name: "theirs" if (pages + number) % 3 else "ours" for number, name in enumerate(fields.values())}
                chosen |= {key: given[name] for key, name in fields.items()}
                sent = {**form, **hidden_of(page), **given, "use:t": "rows"}
                refused = client.post("/branches/trial/merge", sent)
                if len(chosen) == 25:
                    break
                assert refused.status == 409
                assert f"{25 - len(chosen)} rows" in refused.body.decode()
                page = client.post("/branches/trial/merge", {**sent, "do": "next"}).body.decode()
                assert f"{len(chosen)} rows answered" in page
            assert (pages, refused.status) == (3, 303)
        found = {f"price = {row['price']}, of = 0x00": row["note"] for row in lake.table("t").to_arrow().to_pylist()}
    assert found == chosen
    assert set(chosen.values()) == {"ours", "theirs"}


def test_an_answer_for_a_row_counts_more_than_that_for_its_table(branched: ty.Lake) -> None:
    branched.on_branch("trial").table("t").update({"note": "'theirs'"})
    branched.table("t").update({"note": "'ours'"})
    with console(branched) as client:
        fields = answers_of(client.text("/branches/trial"), "t")
        form = {**form_of(client, "trial"), "use:t": "theirs", fields["id = 2"]: "ours", fields["id = 3"]: ""}
        assert client.post("/branches/trial/merge", {**form, fields["id = 2"]: "both"}).status == 400
        assert client.post("/branches/trial/merge", form).status == 303
    notes = {row["id"]: row["note"] for row in branched.table("t").to_arrow().to_pylist()}
    assert notes == {1: "theirs", 2: "ours", 3: "theirs"}


def test_rows_that_came_after_the_last_look_are_not_settled(branched: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer comes between the last look at both branches and the commit: the answer was not given for its row."""
    branched.table("t").update({"note": "'ours'"}, where="id = 1")
    with console(branched) as client:
        form = form_of(client, "trial")
        planned = MergeVerbs.merge

        def late(verbs: MergeVerbs, *args: Any, **how: Any) -> Any:
            if not how.get("dry_run"):
                branched.table("t").update({"note": "'later'"}, where="id = 1")
            return planned(verbs, *args, **how)

        monkeypatch.setattr(MergeVerbs, "merge", late)
        assert client.post("/branches/trial/merge", {**form, "use:t": "theirs"}).status == 409
    assert branched.table("t").to_arrow(filter="id = 1").to_pylist()[0]["note"] == "later"


def test_a_merge_of_what_was_not_looked_at_is_refused(branched: ty.Lake) -> None:
    with console(branched) as client:
        form = form_of(client, "trial")
        branched.table("t").update({"note": "'ours'"}, where="id = 2")
        answer = client.post("/branches/trial/merge", {**form, "use:t": "theirs"})
        assert answer.status == 409
        assert b"has moved since you looked" in answer.body
        assert branched.table("t").version == 2
        branched.branches.delete("trial")
        branched.branches.create("trial")
        assert client.post("/branches/trial/fast-forward", form).status == 409


def test_a_protected_branch_stays_as_it_is(branched: ty.Lake) -> None:
    branched.branches.protect("main", writers=["ada"])
    with console(branched) as client:
        form = form_of(client, "trial")
        for action in ("merge", "fast-forward"):
            answer = client.post(f"/branches/trial/{action}", form)
            assert answer.status == 409
            assert b"Not merged." in answer.body
    assert branched.table("t").version == 1


def test_a_fast_forward(branched: ty.Lake) -> None:
    with console(branched) as client:
        form = form_of(client, "trial")
        assert "Fast-forward main" in client.text("/branches/trial")
        assert client.post("/branches/trial/fast-forward", form).status == 303
    assert branched.table("t").to_arrow(filter="id = 1").to_pylist()[0]["note"] == "theirs"


def test_actions_need_a_role_and_a_page_of_this_site(branched: ty.Lake) -> None:
    with console(branched, tokens=True) as open_client:
        writer, keeper = (signed_in(open_client, branched, role) for role in ("writer", "maintainer"))
        form = form_of(keeper, "trial")
        assert "needs the role maintainer" in writer.text("/branches/trial")
        assert writer.post("/branches/trial/merge", form).status == 403
        assert writer.post("/branches/trial/fast-forward", form).status == 403
        assert open_client.post("/branches/trial/merge", form).status == 401
        foreign = {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}
        assert keeper.post("/branches/trial/merge", form, **foreign).status == 403
        assert keeper.post("/branches/trial/merge", form, origin="", sec_fetch_site="").status == 403
        for path in ("/sign-in", "/sign-out", "/theme"):
            assert keeper.post(path, {}, **foreign).status == 403
        assert branched.table("t").version == 1
        assert keeper.post("/branches/trial/merge", form).status == 303
    assert branched.history()[0].author == "holder of maintainer"
