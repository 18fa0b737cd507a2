"""Records that a client writes into the catalog by itself: no place in one leads the server out of the lake."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.served import served_here
from tiltyard.catalog.records import Writes
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_records import HOME
from tiltyard.catalog.value_codec import LAKE
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.server.principals import Grant
from tiltyard.server.settling import SettleQueue
from tiltyard.server.tokens import TOKENS, create_token

ROWS = pa.table({"id": [1]})
HOSTILE: Mapping[str, tuple[str, ...]] = {
    "location": ("/etc", "../elsewhere", "s3://bucket/x", "file:///etc"),
    "path": ("authorized_keys", "../b/_versions/2.manifest", "_versions/../x.manifest", "/etc/passwd"),
    "staged": ("nothing", "_tiltyard/staged/../../x.manifest", "/etc/passwd", "data/x.lance"),
}
"""By the member of a record that says where something is."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ty.Lake]:
    """A lake with all that records tell places of: a version that waits, a branch, a tag, a table outside, dropped ones."""
    lance.write_dataset(ROWS, tmp_path / "outside.lance")
    with ty.Lake.open(tmp_path / "lake", durability="os") as lake:
        for name in ("a", "b", "c"):
            lake.create_table(name, ROWS)
        lake.register_table("out", tmp_path / "outside.lance")
        lake.branches.create("side")
        lake.on_branch("side").table("a").append(ROWS)
        lake.tags.create("then")
        lake.drop_table("c")
        with lake.transaction() as tx:
            tx.table("a").append(ROWS)
            tx.table("out").append(ROWS)
        namespace = LakeNamespace(lake)
        namespace.settle_by(SettleQueue(wait=3600.0).add)
        lance.write_dataset(ROWS, namespace_client=namespace, table_id=["b"], mode="append")
        assert len(lake.catalog.pending()) == 1
        yield lake


@pytest.fixture
def link(home: ty.Lake) -> Iterator[Callable[[str], ServerLink]]:
    links: list[ServerLink] = []
    with served_here(home, required=True) as (url, _):

        def open_as(role: str) -> ServerLink:
            links.append(ServerLink(url, create_token(home, role, [Grant.parse(role)])[0]))
            return links[-1]

        yield open_as
        for one in links:
            one.close()


def places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a record says where something is."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in items:
        if name in HOSTILE and isinstance(value, str):
            yield (*at, name)
        yield from places(value, (*at, name))


def with_value(body: Mapping[str, Any], at: tuple[Any, ...], value: str) -> dict[str, Any]:
    made = copy.deepcopy(dict(body))
    inside: Any = made
    for name in at[:-1]:
        inside = inside[name]
    inside[at[-1]] = value
    return made


def put(link: ServerLink, key: str, body: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Any:
    return link.post(f"{HOME}/records/transact", {"looked": {key: before}, "put": {key: body}, "delete": []})


def test_no_place_in_any_record_leads_out_of_the_lake(home: ty.Lake, link: Callable[[str], ServerLink]) -> None:
    """Each kind of record that the catalog has, with each place in it replaced, under its own key and as a new record."""
    maintainer, tried, kinds = link("maintainer"), 0, set[tuple[str, str]]()
    before = dict(home.catalog.records.scan([""]))
    for key, body in before.items():
        if key.startswith(TOKENS) or key == LAKE:
            continue
        for at in places(body):
            kinds.add((key.partition("/")[0], at[-1]))
            for value in HOSTILE[at[-1]]:
                forged = with_value(body, at, value)
                for name, looked in ((key, body), (f"{key}9", None)):
                    with pytest.raises(ty.InvalidInput, match=r"below _versions|outside the lake"):
                        put(maintainer, name, forged, looked)
                    tried += 1
    now = {key: body for key, body in home.catalog.records.scan([""]) if not key.startswith(TOKENS)}
    assert now == {key: body for key, body in before.items() if not key.startswith(TOKENS)}
    assert {("table", "location"), ("pending", "path"), ("pending", "staged"), ("snapshot", "path"), ("snapshot", "location")} <= kinds
    assert tried > 100


@pytest.mark.parametrize("role", ["writer", "maintainer", "admin"])
def test_nobody_puts_the_bytes_of_a_version_into_the_catalog(home: ty.Lake, link: Callable[[str], ServerLink], role: str) -> None:
    [pending] = home.catalog.pending()
    body = dict(home.catalog.records.get([pending.key])[pending.key])
    forged = {**body, "version": 7, "path": "_versions/7.manifest", "data": base64.b64encode(b"theirs").decode()}
    with pytest.raises(ty.InvalidInput, match="bytes of a version"):
        put(link(role), f"{pending.key[:-1]}9", forged)
    assert home.catalog.pending() == [pending]


def test_a_key_file_is_neither_made_nor_extended(home: ty.Lake, link: Callable[[str], ServerLink], tmp_path: Path) -> None:
    """What a version that waits would have the server write when it is finished."""
    victim = tmp_path / "home"
    victim.mkdir()
    (victim / "there").write_bytes(b"one\n")
    writer = link("writer")
    for name in ("there", "new"):
        body = {
            "table": "x", "lake_branch": "main", "branch": None, "version": 7, "path": name, "staged": "nothing", "transaction": "x",
            "alone": True, "line": "", "location": str(victim), "data": base64.b64encode(b"one\ntwo\n").decode(),
        }  # fmt: skip
        with pytest.raises(ty.InvalidInput):
            put(writer, f"pending/{name}/@00000000000000000007", body)
    home.check()
    with ty.Lake.open(home.root_uri, create=False):
        assert {path.name: path.read_bytes() for path in victim.iterdir()} == {"there": b"one\n"}


def test_an_admin_may_say_where_a_table_is(home: ty.Lake, link: Callable[[str], ServerLink], tmp_path: Path) -> None:
    body = {"table": "x", "transaction": "t", "location": str(tmp_path / "more.lance"), "at": "2026-01-01T00:00:00+00:00"}
    with pytest.raises(ty.InvalidInput, match="role admin"):
        put(link("maintainer"), "place/x", body)
    assert put(link("admin"), "place/x", body) == {"done": True}


def test_branches_of_a_lake_with_tables_outside_are_made_by_writers(home: ty.Lake, link: Callable[[str], ServerLink]) -> None:
    """Heads with a place that the lake knows, from now and from a snapshot whose table was dropped since."""
    home.tags.create("with")
    home.drop_table("out")
    home.on_branch("side").drop_table("out")
    at = link("writer")
    with ty.Lake.open(at.url, token=at.token, durability="os") as lake:
        for name, then in (("now", None), ("old", "with")):
            lake.branches.create(name, then)
        assert lake.on_branch("old").tables() == ["a", "b", "out"]


def test_names_that_users_choose_are_no_places(home: ty.Lake, link: Callable[[str], ServerLink]) -> None:
    body = {"properties": {"location": "/etc", "path": "x", "staged": "y"}}
    assert put(link("writer"), "namespace/main/n", body) == {"done": True}
    home.catalog.records.transact(["namespace/main/n"], [], lambda _: Writes(None, delete=["namespace/main/n"]))
