"""Commits that a server makes for its clients, where something is not as its client believes."""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import tiltyard as ty
from tests.server.test_commit_offers import Gate, held, home, ids, offer_of, opened, row, server
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.marks import BASE, LAKE_ID, VersionMarks
from tiltyard.catalog.publishing import Published
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_offers import OFFER, ServerPlace
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.server import commit_offers
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token
from tiltyard.storage.thread_queue import ThreadPlace
from tiltyard.transaction.group import GROUP
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Append
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.turns import Turns

__all__ = ["home", "server"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The offers that clients send; one that sends very many is stopped."""
    found, post = list[dict[str, Any]](), ServerLink.post

    def noted(link: ServerLink, path: str, body: Any, **how: Any) -> Any:
        if path == OFFER:
            found.append(body)
            assert len(found) < 20, "it is offered without end"
        return post(link, path, body, **how)

    monkeypatch.setattr(ServerLink, "post", noted)
    return found


def test_who_cannot_read_its_version_does_not_offer_it_without_end(
    home: ty.Lake, server: tuple[str, LakeServer], sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has committed it, but the client does not get to see that at first: it looks by itself, and finds it."""
    found_in = Turns._found_in

    def unreadable(turns: Turns, version: int, race: Any, place: Any) -> Any:
        if isinstance(place, ServerPlace):
            raise ty.StorageError("the store does not answer", name="x")
        return found_in(turns, version, race, place)

    monkeypatch.setattr(Turns, "_found_in", unreadable)
    with opened(home, server[0], "ada") as lake:
        result = lake.table("a").append(row(1))
    assert len(sent) == 1
    assert isinstance(home.outcome(result.transaction_id), ty.outcomes.Committed)
    assert ids(home) == [0, 1]


def test_who_got_no_answer_is_not_told_that_it_failed_while_the_server_has_it(
    home: ty.Lake, server: tuple[str, LakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has an offer and is slow; its client gives up, and others make versions: whether it is committed stays open."""
    waits, goes_on, post = threading.Event(), threading.Event(), ServerLink.post
    committed = server[1].offers._committed

    def slow(*given: Any) -> Any:
        waits.set()
        assert goes_on.wait(60)
        return committed(*given)

    def lost(link: ServerLink, path: str, body: Any, **how: Any) -> Any:
        if not path.endswith(("/offer", "/publish")):
            return post(link, path, body, **how)
        if path == OFFER:
            pool.submit(post, link, path, body, **how)
            assert waits.wait(60)
        raise ty.StorageError("the server does not answer", name="x", maybe_applied=path == OFFER)

    monkeypatch.setattr(server[1].offers, "_committed", slow)
    with ThreadPoolExecutor(2) as pool, opened(home, server[0], "ada") as lake:
        table = lake.table("a")
        with monkeypatch.context() as patched:
            patched.setattr(ServerLink, "post", lost)
            with pytest.raises(ty.OutcomeUnknown) as unknown:
                table.append(row(1))
        for number in (2, 3):
            home.table("a").append(row(number))
        identity = unknown.value.transaction_id
        try:
            early = table.transactions.outcome(identity)
            also = home.table("a").transactions.outcome(identity, version=unknown.value.version)
        finally:
            goes_on.set()
    assert isinstance(home.outcome(identity), ty.outcomes.Committed)
    assert ids(home) == [0, 1, 2, 3]
    assert isinstance(early, ty.outcomes.Unknown)
    assert isinstance(also, ty.outcomes.Unknown)


def test_pieces_that_others_wrote_long_ago_are_committed_by_their_client(
    home: ty.Lake, server: tuple[str, LakeServer], sent: list[dict[str, Any]]
) -> None:
    """Only it knows that a cleanup may have taken the files meanwhile, and looks for them."""
    with opened(home, server[0], "ada") as lake:
        table = lake.table("a")
        piece = table.distributed.write_task().write(row(1))
        table.distributed.append([piece])
    assert not sent
    assert ids(home) == [0, 1]


def test_the_time_that_a_caller_gives_holds_at_the_server(
    home: ty.Lake, server: tuple[str, LakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody leads and hangs; who has a second gets its answer, be it that nothing was committed."""
    gate = Gate(monkeypatch)
    with ThreadPoolExecutor(1) as pool, opened(home, server[0], "ada") as lake, opened(home, server[0], "bob") as other:
        mine, theirs = lake.table("a"), other.table("a")
        begun = pool.submit(theirs.append, row(1))
        gate.wait()
        try:
            started = time.monotonic()
            mine.append(row(2), commit=ty.CommitOptions(deadline=0.5))
            took = time.monotonic() - started
        finally:
            gate.open()
        begun.result()
    assert took < 10
    assert ids(home) == [0, 1, 2]


def test_who_waits_on_a_branch_is_not_taken_to_main(home: ty.Lake, server: tuple[str, LakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast-forward gives main the table that rows wait for on the branch: they stay out of main's next version."""
    home.branches.create("side")
    home.on_branch("side").create_table("b", row(1))
    came, goes_on, publish = threading.Event(), threading.Event(), Catalog.publish
    led, joined, join = list[str](), threading.Event(), ThreadPlace.join

    def slow(*given: Any) -> Any:
        came.set()
        assert goes_on.wait(60)
        return new_files(*given)

    def overtaken(catalog: Catalog, publication: Publication, allow: Any = None) -> Published:
        if publication.author == "main" and not led:
            led.append(publication.transaction)
            goes_on.set()
            assert joined.wait(60)
            lance.write_dataset(row(1000), home.table("b")._access.lance_uri, mode="append")
        if publication.author == "side":
            joined.set()  # it leads by itself
        return publish(catalog, publication, allow)

    def noted(place: ThreadPlace, data: bytes) -> bool:
        done = join(place, data)
        joined.set()
        return done

    with opened(home, server[0], "side") as there, opened(home, server[0], "main") as here, ThreadPoolExecutor(2) as pool:
        table = there.on_branch("side").table("b")
        with monkeypatch.context() as patched:
            patched.setattr(commit_offers, "new_files", slow)
            waits = pool.submit(table.append, row(2))
            assert came.wait(60)
        home.branches.fast_forward("side")
        monkeypatch.setattr(Catalog, "publish", overtaken)
        monkeypatch.setattr(ThreadPlace, "join", noted)
        writes = pool.submit(here.table("b").append, row(3))
        writes.result(60)
        error = waits.exception(60)
    assert led
    assert isinstance(error, ty.ExpectedVersionMismatch), error
    assert ids(home, "b") == [1, 3, 1000]
    assert home.check().ok


def test_a_version_that_names_others_by_nonsense_does_not_keep_a_catalog_from_being_rebuilt(home: ty.Lake, tmp_path: Path) -> None:
    """Whoever may write to a table can put any text there. It names nobody; nor does a version name its own maker as another one."""
    table = home.table("a")
    stamp = table._access.stamp

    def named(*identities: str) -> Callable[[Transaction], Transaction]:
        def crafted(mine: Transaction) -> Transaction:
            assert stamp is not None
            told = [{"id": each or mine.uuid, "read": 1, "operation": "Append", "fragments": 0, "properties": {}} for each in identities]
            made = stamp(mine)
            return replace(made, properties={**made.properties, GROUP: json.dumps(told)})

        return crafted

    made = []
    for number, identities in enumerate([("x" * 5000,), ("a/b", ""), ("",)]):
        object.__setattr__(table._access.committer, "stamp", named(*identities))
        made.append(table.append(row(number + 1)))
    shutil.copytree(Path(home.root_uri), tmp_path / "copy", ignore=shutil.ignore_patterns("catalog.db*"))
    ty.Lake.rebuild(tmp_path / "copy")
    with ty.Lake.open(tmp_path / "copy", create=False) as found:
        assert ids(found) == [0, 1, 2, 3]
        assert all(isinstance(found.outcome(result.transaction_id), ty.outcomes.Committed) for result in made)
        assert not any(snapshot.members for snapshot in found.history())
        assert found.check().ok


def test_what_members_say_is_kept_once(home: ty.Lake, server: tuple[str, LakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot tells of each member by itself, and not once more in what the leader says."""
    with opened(home, server[0], "ada") as lake:
        tables = [lake.table("a") for _ in range(3)]
        held(monkeypatch, [partial(table.append, row(number + 1)) for number, table in enumerate(tables)])
    snapshot = home.history(1)[0]
    assert len(snapshot.members) == 1
    assert GROUP not in snapshot.properties


@pytest.mark.parametrize("became", ["committed", "given up"])
def test_a_cleanup_spares_files_of_one_who_waits_whatever_became_of_its_leader(home: ty.Lake, became: str) -> None:
    """A server died with two commits in a version that nobody made. The leader got its answer since, and the other comes back."""
    table = home.table("a")
    store, read, versions = table._access.store, table.version, Path(table._access.lance_uri) / "_versions"
    mine = table.append(row(1)) if became == "committed" else None
    leader = mine.transaction_id if mine is not None else str(uuid.uuid4())
    piece = table.distributed.write_task().write(row(2))
    told = [{"id": str(uuid.uuid4()), "read": table.version, "operation": "Append", "fragments": 1, "properties": {}}]
    announced = Transaction(read - 1, leader, Append(piece.fragments), {GROUP: json.dumps(told)})
    store.put(f"_transactions/{announced.file_name}", announced.to_bytes())
    if mine is None:  # a version was staged for both, which nobody will ever publish
        data, _ = encode_manifest_file(table._access.load(read, table._scheme).manifest, announced.to_bytes())
        store.put(f"_tiltyard/staged/{'3' * 32}/{next(versions.glob('*.manifest')).name}", data)
        assert isinstance(home.outcome(leader, give_up=True), ty.outcomes.NotCommitted)
    home.cleanup()
    table.distributed.append([piece])
    assert 2 in ids(home)
    assert home.check().ok


def test_an_offer_that_was_built_on_an_absurd_snapshot_is_answered(home: ty.Lake, server: tuple[str, LakeServer]) -> None:
    """More digits than Python makes a number of, in an offer as in a version."""
    link = ServerLink(server[0], create_token(home, "ada", [Grant.parse("writer")])[0])
    assert link.post(OFFER, offer_of(home, Append(()), **{BASE: "9" * 5000}))["version"] == 2
    marks = VersionMarks.of(Transaction(1, "a", Append(()), {LAKE_ID: "x", BASE: "9" * 5000}))
    assert marks is not None
    assert marks.base == 0
    link.close()
