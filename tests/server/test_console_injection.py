"""Stored text stays text: payloads in every field that a page shows become neither markup nor script."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.console_client import ConsoleClient, PageParts, console
from tests.support.console_lakes import RUN_SCHEMA, RUNS, run_row
from tiltyard.errors import Winner
from tiltyard.lakes import table_names
from tiltyard.lakes.refusals import REFUSALS, LakeRefusal, RefusedTable
from tiltyard.server.console.lake_viewer import LakeViewer
from tiltyard.server.console.timeline import read_timeline
from tiltyard.server.console.timeline_svg import timeline_svg
from tiltyard.server.principals import LOCAL
from tiltyard.verbs.explain import ATTEMPTS, FailedAttempt

EVIL: Final = "\"'></title></a></svg></td><script>boom()</script><img src=x onerror=boom()> {{ 7919 * 7907 }} {% raw %}"
HIDDEN: Final = "<script", "<img"
NAMED: Final = "\"'><script>boom()<script><img src=x onerror=boom()>{{ 7919 * 7907 }}"
"""For names of tables, branches and tags: they have neither slashes nor dots, even where nobody checks them."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ty.Lake]:
    """A lake in which every text that a person or a program chooses is a payload."""
    with ty.Lake.open(tmp_path_factory.mktemp("evil") / "lake", author=f"eve{EVIL}") as made:
        rows = pa.table({"id": [1, 2], EVIL.replace(".", ""): [EVIL, EVIL * 50]})
        made.create_table("t", rows, primary_key=["id"], stable_row_ids=True)
        stale = made.table("t")
        made.table("t").append(pa.table({"id": [3], rows.column_names[1]: [EVIL]}), message=EVIL)
        stale.append(pa.table({"id": [4], rows.column_names[1]: [EVIL]}), message=EVIL)
        with made.transaction(message=EVIL, properties={EVIL: EVIL}) as tx:
            tx.table("t").append(pa.table({"id": [5], rows.column_names[1]: [EVIL]}))
        made.table("t").settings.update_config({f"evil{EVIL}": EVIL})
        made.table("t").indices.create(rows.column_names[1], "BTREE", name=f"index {EVIL}".replace("/", ""))
        made.branches.create("other")
        with contextlib.suppress(ty.InvalidInput):
            made.tags.create(EVIL)
        other = made.on_branch("other")
        for there in (made, other):
            there.table("t").merge(
                pa.table({"id": [1], rows.column_names[1]: [f"{there.branch} {EVIL}"]}), on="id"
            ).when_matched_update_all().execute()
        _refused(made)
        made.create_table(RUNS, pa.Table.from_pylist([run_row("r1", datetime.now(UTC), failed=True, text=EVIL)], schema=RUN_SCHEMA))
        yield made


def _refused(lake: ty.Lake) -> None:
    """A record of a refusal that somebody else wrote into the store."""
    attempt = FailedAttempt(
        "0" * 8 + "-0000-4000-8000-" + "0" * 12, datetime.now(UTC), EVIL, 1, EVIL, EVIL, True,
        winners=(Winner(2, EVIL, EVIL, EVIL, EVIL),), sample=(EVIL,),
    )  # fmt: skip
    folder = Path(lake.table("t").uri) / ATTEMPTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{attempt.transaction_id}.json").write_text(json.dumps(attempt.to_dict()))
    several = LakeRefusal(
        attempt.transaction_id, datetime.now(UTC), EVIL, EVIL, "main", lake.catalog.cut().line, 1, EVIL, EVIL, EVIL, table=EVIL,
        tables=(RefusedTable(EVIL, EVIL, (EVIL,)),), winners=(Winner(2, EVIL, EVIL, EVIL, EVIL, EVIL),), sample=(EVIL,),
    )  # fmt: skip
    keep = Path(lake.root_uri) / REFUSALS / f"{several.transaction_id}.json"
    keep.parent.mkdir(parents=True, exist_ok=True)
    keep.write_text(json.dumps({"lake": lake.id, **several.to_dict()}))


@pytest.fixture(scope="module")
def client(lake: ty.Lake) -> Iterator[ConsoleClient]:
    with console(lake) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "shows"),
    [
        ("/", True),
        ("/?author=%3Cscript%3Eboom()%3C/script%3E", True),
        ("/transactions/main/4", True),
        ("/transactions/main/3", True),
        ("/tables?name=%22%3E%3Cimg%20src=x%20onerror=boom()%3E", True),
        ("/tables/t", True),
        ("/tables/t?view=schema", True),
        ("/tables/t?view=versions", True),
        ("/tables/t?view=diff&first=1&second=6", True),
        ("/tables/t?view=indices", True),
        ("/tables/t?view=fragments", False),
        ("/conflicts", True),
        ("/branches", False),
        ("/branches/other", True),
        ("/pipelines", True),
        ("/pipelines/r1", True),
        ("/health", False),
        ("/health?look=check", False),
        ("/health?look=storage", True),
        ("/health?look=cleanup&keep=1", False),
    ],
)
def test_a_page_with_payloads(client: ConsoleClient, path: str, shows: bool) -> None:
    check(client.text(path), shows)


def check(page: str, shows: bool) -> None:
    """A page with a payload in it, as text."""
    parts = PageParts(page)
    parts.check()
    assert not any(mark in page.replace('<script src="/console/static', "") for mark in HIDDEN)
    assert (("boom" in parts.words) or any("boom" in value for *_, value in parts.attributes)) == shows
    assert "62615533" not in parts.words


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    """A lake whose tables, branches and tags have payloads for names, as if somebody had written the catalog past all checks."""
    with pytest.MonkeyPatch.context() as patch, ty.Lake.open(tmp_path_factory.mktemp("named") / "lake") as made:
        patch.setattr(table_names, "_PART", re.compile("[^.$]+"))
        patch.setattr(table_names, "_REF", re.compile(".+"))
        rows = pa.table({"id": [1]})
        made.create_table(NAMED, rows, primary_key=["id"])
        made.create_table(f"old.{NAMED}", rows)
        made.rename_table(f"old.{NAMED}", f"new.{NAMED}")
        made.branches.create(NAMED)
        made.tags.create(f"{NAMED} tag")
        made.on_branch(NAMED).create_table(f"more.{NAMED}", rows)
        shutil.copytree(made.table(NAMED).uri, Path(made.table(NAMED).uri).parent / f"{'0' * 12}_stray.lance")
        with console(made) as client:
            yield client


_IN_PATH: Final = quote(NAMED, safe="")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/?branch={_IN_PATH}",
        f"/?table={_IN_PATH}",
        "/transactions/main/3",
        f"/transactions/{_IN_PATH}/4",
        "/tables",
        *(f"/tables/{_IN_PATH}?view={view}" for view in ("rows", "schema", "versions", "diff&first=1&second=2", "indices", "fragments")),
        "/conflicts",
        "/branches",
        f"/branches/{_IN_PATH}",
        "/pipelines",
        "/health?look=check",
        "/health?look=storage",
        "/health?look=cleanup&keep=1",
    ],
)
def test_a_page_with_names_that_are_payloads(named: ConsoleClient, path: str) -> None:
    check(named.text(path), True)


def test_errors_say_what_was_asked_for_as_text(client: ConsoleClient) -> None:
    for path in (
        "/tables/%3Cscript%3Eboom()%3C%2Fscript%3E",
        "/conflicts/%3Cimg%20src=x%3E/Append",
        "/transactions?id=%3Cscript%3E",
        "/?branch=%3Cimg%3E",
    ):
        answer = client.get(path)
        assert answer.status in (400, 404)
        PageParts(answer.body.decode()).check()


def test_a_picture_with_payloads(lake: ty.Lake) -> None:
    drawn = timeline_svg(read_timeline(LakeViewer(lake, LOCAL), 40), title=EVIL)
    parts = PageParts(drawn)
    assert parts.open == []
    assert not {"script", "img"} & set(parts.tags)
    assert "boom()" in parts.words


def test_what_xml_does_not_have_is_left_out() -> None:
    from xml.etree import ElementTree

    from tiltyard.server.console.timeline import Timeline, TimelineLane, TimelineMark, TimelineStep

    mark = TimelineMark(0, "t\x00\x0b", "write", 2, ("Append\ud800",))
    step = TimelineStep(1, datetime.now(UTC), "\x07bell", "\x1b[31mred\ufffe", "id", (mark,), tags=("a\x01",))
    drawn = timeline_svg(Timeline("main", (step,), (TimelineLane("t\x00", "why\x02"),), (), 1))
    assert ElementTree.fromstring(drawn.encode("utf-8", "strict")) is not None
