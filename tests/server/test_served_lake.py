"""``ty.Lake.open("http://...")``: the lake API with the catalog behind a server - who may do what, lost answers, and what is not let in."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.served import served_here
from tiltyard.catalog import server_link
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Change, Publication, VersionStep
from tiltyard.catalog.publishing import Published
from tiltyard.catalog.records import Found, Writes
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_records import HOME, ServerRecords, publication_to_body
from tiltyard.lakes.refusals import refusals_of
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import TOKENS, create_token

ROWS = pa.table({"id": [1]})


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ty.Lake]:
    with ty.Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.create_table("a", ROWS)
        lake.create_table("sales.b", ROWS)
        yield lake


@pytest.fixture
def url(home: ty.Lake) -> Iterator[str]:
    with served_here(home, required=True) as (url, _):
        yield url


@pytest.fixture
def token(home: ty.Lake) -> Callable[..., str]:
    return lambda *roles, name="ada": create_token(home, name, [Grant.parse(role) for role in roles])[0]


def opened(url: str, token: str) -> ty.Lake:
    return ty.Lake.open(url, token=token, durability="os")


def ids(lake: ty.Lake, name: str) -> list[int]:
    found: list[int] = sorted(lake.table(name).to_arrow()["id"].to_pylist())
    return found


def test_the_lake_api_without_the_catalog(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    with opened(url, token("maintainer")) as lake:
        lake.create_table("c", ROWS)
        with lake.transaction(message="both") as tx:
            tx.table("a").append(pa.table({"id": [2]}))
            tx.table("sales.b").append(pa.table({"id": [2]}))
        lake.tags.create("then")
        lake.table("a").append(pa.table({"id": [3]}))
        side = lake.branches.create("side")
        lake.on_branch("side").table("a").append(pa.table({"id": [4]}))
        lake.rename_table("c", "d")
        lake.drop_table("d")
        assert lake.tables() == home.tables() == ["a", "sales.b"]
        assert sorted(lake.snapshot("then").table("a").to_arrow()["id"].to_pylist()) == [1, 2]
        assert (ids(home, "a"), ids(home.on_branch("side"), "a"), side.origin) == ([1, 2, 3], [1, 2, 3, 4], "main")
        lake.branches.delete("side")
        lake.tags.delete("then")
        assert [(snapshot.author, snapshot.message) for snapshot in lake.history() if snapshot.message == "both"] == [("ada", "both")]
        assert {snapshot.author for snapshot in home.history(5)} == {"ada"}, "the one who brought the token"
    assert home.check().ok


def test_serializable_over_the_server(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    with opened(url, token("writer")) as lake:
        first, second = lake.transaction(isolation="serializable"), lake.transaction(isolation="serializable")
        for tx, read, written in ((first, "a", "sales.b"), (second, "sales.b", "a")):
            tx.table(read).to_arrow()
            tx.table(written).append(pa.table({"id": [9]}))
        first.commit()
        with pytest.raises(ty.RetryableConflict):
            second.commit()
        told = list(refusals_of(home))
        assert [(one.transaction_id, one.author, one.cause) for one in told] == [(second.id, "ada", "read")]
        assert told[0].contested is not None
        assert told[0].contested.name == "sales.b"


def test_roles(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    with opened(url, token("reader")) as lake:
        assert ids(lake, "a") == [1]
        forbidden: list[Callable[[], object]] = [lambda: lake.table("a").append(ROWS), lambda: lake.tags.create("t")]
        for deed in forbidden:
            with pytest.raises(ty.InvalidInput, match="role writer"):
                deed()
    with opened(url, token("writer", name="bob")) as lake:
        lake.table("a").append(pa.table({"id": [2]}))
        lake.tags.create("t")
        beyond: list[Callable[[], object]] = [
            lambda: lake.drop_table("a"),
            lambda: lake.rename_table("a", "z"),
            lambda: lake.tags.delete("t"),
        ]
        for deed in beyond:
            with pytest.raises(ty.InvalidInput, match="role maintainer"):
                deed()
    assert (home.tables(), list(home.tags), ids(home, "a")) == (["a", "sales.b"], ["t"], [1, 2])
    assert home.history(1)[0].author == "bob"


@pytest.mark.parametrize("roles", [["writer:sales"], ["reader:a", "admin:sales"]])
def test_a_role_for_some_tables_opens_no_lake(url: str, token: Callable[..., str], roles: list[str]) -> None:
    with pytest.raises(ty.InvalidInput, match="all tables"):
        opened(url, token(*roles))


@pytest.mark.parametrize("wrong", [None, "", "tyd_0_x", "x" * 9000])
def test_no_token_no_lake(url: str, wrong: str | None) -> None:
    with pytest.raises(ty.InvalidInput, match="valid token"):
        ty.Lake.open(url, storage=ty.Storage(token=wrong))


def test_a_token_is_for_a_lake(tmp_path: Path) -> None:
    with pytest.raises(ty.InvalidInput, match="Only a lake") as refused:
        ty.Table.open(tmp_path / "t", storage=ty.Storage(token="tyd_secret"))
    assert refused.value.argument == "token"
    assert "tyd_secret" not in repr(ty.Storage(token="tyd_secret"))
    with pytest.raises(ty.InvalidInput, match="beside storage=") as both:
        ty.Lake.open("http://127.0.0.1:9", storage=ty.Storage(), token="tyd_secret")
    assert both.value.argument == "token"


def test_addresses_and_tokens_that_do_not_fit(tmp_path: Path, url: str) -> None:
    for address, argument in (("http://lake.example/", "url"), (str(tmp_path), "token")):
        with pytest.raises(ty.InvalidInput) as refused:
            ty.Lake.open(address, storage=ty.Storage(token="t"))
        assert refused.value.argument == argument
    with pytest.raises(ty.InvalidInput, match="root="):
        ty.Lake.open(url, root=tmp_path)


def test_tokens_are_not_among_the_records(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    link = ServerLink(url, token("admin"))
    [(key, body)] = home.catalog.records.scan([TOKENS])
    assert link.post(f"{HOME}/records/get", {"keys": [key, "lake"]})["records"].keys() == {"lake"}
    for prefixes in (["token/"], ["tok"], [key], [""]):
        found = link.post(f"{HOME}/records/scan", {"prefixes": prefixes})["records"]
        assert not [name for name, _ in found if name.startswith(TOKENS)]
    assert len(link.post(f"{HOME}/records/scan", {"prefixes": [""], "limit": 3, "descending": True})["records"]) == 3
    for put, delete in (({key: {**body, "grants": ["admin"]}}, []), ({}, [key]), ({TOKENS + "0" * 16: dict(body)}, [])):
        looked = dict.fromkeys((*put, *delete), None)
        with pytest.raises(ty.InvalidInput, match="cannot read or write tokens"):
            link.post(f"{HOME}/records/transact", {"looked": looked, "put": put, "delete": delete})
    link.close()


def forged(home: ty.Lake, **other: Any) -> Mapping[str, Any]:
    """A publication of a version of ``a`` that somebody made up."""
    head = home.view().find("a")
    assert head is not None
    step = VersionStep(2, "_versions/2.manifest", "_tiltyard/staged/x/2.manifest", "t", "append")
    change = replace(Change(head.id, "write", "a", 1, 1, (step,)), **other)
    return publication_to_body(Publication("forged", (change,)))


NEW = {"table": "0" * 32, "kind": "create", "name": "new", "base": 0}
"""A table with an id of its own, so that nothing but where it lies is in its way."""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"steps": (VersionStep(2, "../b/_versions/2.manifest", None),)}, "below _versions"),
        ({"steps": (VersionStep(2, "_versions/2.manifest", "_tiltyard/staged/../../x.manifest"),)}, "below _versions"),
        ({"steps": (VersionStep(2, "_versions/2.manifest", "data/x.lance"),)}, "below _versions"),
        ({**NEW, "location": "/etc"}, "where a new table is stored"),
        ({**NEW, "location": "elsewhere.lance"}, "where a new table is stored"),
        ({"kind": "explode"}, "unknown kind"),
    ],
)
def test_publications_that_are_not_let_in(home: ty.Lake, url: str, token: Callable[..., str], other: dict[str, Any], why: str) -> None:
    link = ServerLink(url, token("admin"))
    with pytest.raises(ty.InvalidInput, match=why):
        link.post(f"{HOME}/catalog/publish", {"publication": forged(home, **other)})
    link.close()
    assert home.history(1)[0].transaction != "forged"


def test_no_table_is_made_over_another_one(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    head = home.view().find("a")
    assert head is not None
    link = ServerLink(url, token("admin"))
    with pytest.raises(ty.InvalidInput, match="where a new table is stored"):
        link.post(f"{HOME}/catalog/publish", {"publication": forged(home, **NEW, location=head.location)})
    link.close()
    assert home.tables() == ["a", "sales.b"]


def test_a_record_that_moved_is_not_written_over(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    link, here = ServerLink(url, token("admin")), home.catalog.records
    here.transact(["pin/x"], [], lambda _: Writes(None, {"pin/x": {"n": 2}}))
    for looked in ({"n": 1}, None):
        told = link.post(f"{HOME}/records/transact", {"looked": {"pin/x": looked}, "put": {"pin/x": {"n": 3}}, "delete": []})
        assert told == {"moved": {"pin/x": {"n": 2}}}
        assert here.get(["pin/x"]) == {"pin/x": {"n": 2}}
    link.close()


def test_a_step_is_decided_anew_on_what_others_wrote(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    """Somebody else writes the record between the look and the step, twice: nothing of theirs is lost, and the step goes through."""
    link, here, seen = ServerLink(url, token("admin")), home.catalog.records, list[int]()

    def put(value: int) -> None:
        here.transact(["pin/x"], [], lambda _: Writes(None, {"pin/x": {"n": value}}))

    def add_one(found: Found) -> Writes[int]:
        seen.append(int(found["pin/x"]["n"]))
        assert len(seen) <= 3, "it is shown what it saw before"
        if len(seen) < 3:
            put(seen[-1] * 10)
        return Writes(seen[-1] + 1, {"pin/x": {"n": seen[-1] + 1}})

    put(1)
    assert ServerRecords(link).transact(["pin/x"], [], add_one) == 101
    assert (seen, here.get(["pin/x"])) == ([1, 10, 100], {"pin/x": {"n": 101}})
    link.close()


def test_a_table_gets_no_second_name(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    head = home.view().find("a")
    assert head is not None
    link = ServerLink(url, token("admin"))
    for kind in ("create", "register"):
        with pytest.raises(ty.InvalidInput, match="id of its own"):
            link.post(f"{HOME}/catalog/publish", {"publication": forged(home, kind=kind, name="second", location=head.location)})
    link.close()
    assert home.tables() == ["a", "sales.b"]


@pytest.mark.parametrize("body", [{}, {"publication": 3}, {"publication": {"changes": [{}]}}, {"publication": {"changes": 1}}])
def test_malformed_requests_are_told_so(url: str, token: Callable[..., str], body: dict[str, Any]) -> None:
    link = ServerLink(url, token("admin"))
    for path in ("catalog/publish", "records/get", "records/transact", "catalog/settle", "catalog/void"):
        with pytest.raises(ty.InvalidInput, match="malformed"):
            link.post(f"{HOME}/{path}", body)
    link.close()


def test_a_role_is_asked_for_by_the_name_that_the_catalog_has(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    """Calling a table by another name does not open it. Such a token opens no lake, but can send what it likes."""
    from tiltyard.server.catalog_door import _check_roles
    from tiltyard.server.principals import Principal

    head = home.view().find("sales$b")
    assert head is not None
    records = home.catalog.records.get([f"table/main/{head.id}"])
    writer = Principal("eve", (Grant.parse("writer:a"),))
    step = VersionStep(2, "_versions/2.manifest", None)
    with pytest.raises(Exception, match=r"sales\.b needs the role writer"):
        _check_roles(writer, Publication("t", (Change(head.id, "write", "a", 1, 1, (step,)),)), records)


class Losing:
    """Loses the connection at the first request for a path: before it is sent, or after the server did it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: str, *, after: bool) -> None:
        self.path, self.after, self.left = path, after, 1
        self._real = server_link._exchanged
        monkeypatch.setattr(server_link, "_exchanged", self.exchanged)

    def exchanged(self, connection: http.client.HTTPConnection, path: str, data: bytes, headers: Mapping[str, str]) -> Any:
        lost = self.left and path.endswith(self.path)
        if lost:
            self.left -= 1
        if lost and not self.after:
            raise ConnectionResetError("cut")
        told = self._real(connection, path, data, headers)
        if lost:
            raise ConnectionResetError("cut")
        return told


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("path", ["publish", "offer", "settle", "records/get", "records/scan"])
def test_a_lost_answer_neither_loses_nor_doubles(
    home: ty.Lake, url: str, token: Callable[..., str], path: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url, token("writer")) as lake:
        losing = Losing(monkeypatch, path, after=after)

        def work(tx: Any) -> None:
            tx.table("a").append(pa.table({"id": [2]}))
            tx.table("sales.b").append(pa.table({"id": [2]}))
            if "new" not in tx.tables():
                tx.create_table("new", ROWS)

        lake.run(work, idempotency_key="once")
        lake.table("a").append(pa.table({"id": [3]}))
        assert not losing.left, "it was never asked for"
    assert (ids(home, "a"), ids(home, "sales.b")) == ([1, 2, 3], [1, 2])
    assert home.check().ok


def test_the_outcome_can_be_asked_for(home: ty.Lake, url: str, token: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url, token("writer")) as lake:
        tx = lake.transaction()
        tx.table("a").append(pa.table({"id": [2]}))
        Losing(monkeypatch, "publish", after=True)
        tx.commit()
        assert isinstance(lake.outcome(tx.id), ty.outcomes.Committed)
        assert ids(lake, "a") == [1, 2]
        unknown = lake.transaction()
        assert isinstance(lake.outcome(unknown.id, give_up=True), ty.outcomes.NotCommitted)


def test_a_root_out_of_reach_is_told(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    claim = next(Path(home.root_uri).rglob("*claim*"), None) or next(Path(home.root_uri).glob("_tiltyard/lake*"))
    moved = claim.rename(claim.with_name("elsewhere"))
    with pytest.raises(ty.NotFound, match="cannot be read from here"):
        opened(url, token("reader"))
    moved.rename(claim)


def test_a_protected_branch_is_protected_behind_the_server(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    home.branches.protect("main", writers=["ada"])
    with opened(url, token("writer", name="eve")) as lake:
        with pytest.raises(ty.ProtectedBranch, match="main") as refused, lake.transaction() as tx:
            tx.table("a").append(ROWS)
        assert (refused.value.branch, refused.value.author, refused.value.writers) == ("main", "eve", ("ada",))
        tx = lake.transaction()
        tx.table("a").append(ROWS)
        forged = publication_to_body(replace(tx._publication(), noted=True, author="ada"))
        told = ServerLink(url, token("writer", name="eve")).post(f"{HOME}/catalog/publish", {"publication": forged})
        assert told["protected"]["author"] == "eve"
        tx.rollback()
    with opened(url, token("writer")) as lake:
        lake.table("a").append(pa.table({"id": [2]}))
    assert ids(home, "a") == [1, 2]


def test_a_client_cannot_say_that_it_found_what_it_staged(home: ty.Lake, url: str, token: Callable[..., str]) -> None:
    """What foreign writers did is noted on a protected branch, too; so the server looks whether it is there."""
    home.branches.protect("main", writers=["ada"])
    link = ServerLink(url, token("writer", name="eve"))
    with opened(url, token("writer", name="eve")) as lake:
        tx = lake.transaction()
        tx.table("a").append(ROWS)
        publication = tx._publication()
        write = publication.changes[0]
        for steps in (write.steps, tuple(replace(step, staged=None) for step in write.steps)):
            forged = publication_to_body(replace(publication, changes=(replace(write, kind="adopt", steps=steps),)))
            with pytest.raises(ty.TiltyardError, match="adopted"):
                link.post(f"{HOME}/catalog/publish", {"publication": forged})
        tx.rollback()
    assert ids(home, "a") == [1]
    lance.write_dataset(pa.table({"id": [7]}), home.table("a").uri, mode="append")
    with opened(url, token("writer", name="eve")) as lake:
        assert ids(lake, "a") == [1, 7], "what a foreign writer did with rights on the store has happened"
    assert home.history()[0].message.startswith("adopted")


@pytest.mark.parametrize(
    "why",
    [
        ty.HistoryUnavailable("The lake was cleaned up meanwhile.", read_version=1, head=4),
        ty.CorruptTable("a", "two writers took its number", advice="Run `tiltyard lake repair`."),
    ],
    ids=lambda why: why.kind,
)
def test_a_certain_refusal_is_told_as_what_it_is(
    url: str, token: Callable[..., str], monkeypatch: pytest.MonkeyPatch, why: ty.TiltyardError
) -> None:
    """Not as a failure of the server, after which nobody would know what came of it."""

    def refuse(catalog: Catalog, publication: Publication, allow: object = None) -> Published:
        raise why

    with opened(url, token("writer")) as lake:
        tx = lake.transaction()
        tx.table("a").append(pa.table({"id": [2]}))
        monkeypatch.setattr(Catalog, "publish", refuse)
        with pytest.raises(type(why)) as caught:
            tx.commit()
        monkeypatch.undo()
        assert ids(lake, "a") == [1]
    told = {"read_version", "head", "file", "reason"} & why.to_dict().keys()
    assert {name: caught.value.to_dict()[name] for name in told} == {name: why.to_dict()[name] for name in told}


def test_a_catalog_is_not_brought_back_through_its_server(home: ty.Lake, url: str, tmp_path: Path) -> None:
    home.backup(tmp_path / "backup")
    with pytest.raises(ty.InvalidInput, match="server"):
        ty.Lake.rebuild(url)
    with pytest.raises(ty.InvalidInput, match="server"):
        ty.Lake.restore(url, tmp_path / "backup")
    assert ids(home, "a") == [1]


def test_a_server_that_is_too_busy_is_asked_again(home: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal by a limit comes before anything is done, so that a write can be sent again, too."""
    with served_here(home) as (url, server), ty.Lake.open(url, durability="os") as lake:
        table, pauses = lake.table("a"), list[float]()

        def pause(link: ServerLink, seconds: float) -> None:
            pauses.append(seconds)
            server.is_stopping = False

        monkeypatch.setattr(ServerLink, "_pause", pause)
        server.is_stopping = True
        table.append(pa.table({"id": [2]}))
        assert (pauses, ids(home, "a")) == ([1.0], [1, 2])
        monkeypatch.setattr(server_link, "BUSY_SECONDS", 0.0)
        server.is_stopping = True
        with pytest.raises(ty.StorageError, match="busy") as refused:
            table.append(pa.table({"id": [3]}))
        assert (refused.value.maybe_applied, refused.value.transient) == (False, True)
        server.is_stopping = False
        assert ids(home, "a") == [1, 2]
