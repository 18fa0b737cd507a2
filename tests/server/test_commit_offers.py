"""Commits that the server makes for lakes opened by its address: many that wait become few versions, and each gets its own result."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.server.bank_killed import OFFER_POINTS
from tests.server.test_bank import Bank
from tests.support.served import served_here
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.publishing import Published
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_offers import OFFER, OfferedCommit
from tiltyard.format.values import DataFile, DataFragment
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token
from tiltyard.storage.thread_queue import ThreadPlace
from tiltyard.transaction.group import GROUP
from tiltyard.transaction.operations import Append, Delete, Operation
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT

WRITERS = 8
ROWS = pa.table({"id": [0]})


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ty.Lake]:
    with ty.Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.create_table("a", ROWS)
        yield lake


@pytest.fixture
def server(home: ty.Lake) -> Iterator[tuple[str, LakeServer]]:
    with served_here(home, required=True) as served:
        yield served


@pytest.fixture
def writers(home: ty.Lake, server: tuple[str, LakeServer]) -> Iterator[list[ty.Lake]]:
    """Lakes opened by the address, each by somebody else."""
    lakes = [opened(home, server[0], f"writer{number}") for number in range(WRITERS)]
    yield lakes
    for lake in lakes:
        lake.close()


def opened(home: ty.Lake, url: str, name: str, role: str = "writer") -> ty.Lake:
    return ty.Lake.open(url, token=create_token(home, name, [Grant.parse(role)])[0], durability="os")


def row(number: int) -> pa.Table:
    return pa.table({"id": [number]})


def ids(lake: ty.Lake, name: str = "a") -> list[int]:
    found: list[int] = sorted(lake.table(name).to_arrow()["id"].to_pylist())
    return found


class Gate:
    """Holds the first commit before the step of the catalog that decides, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._open, self._first = threading.Event(), threading.Event(), threading.Lock()
        self._joined = threading.Semaphore(0)
        publish, join = Catalog.publish, ThreadPlace.join

        def published(catalog: Catalog, publication: Publication, allow: Any = None) -> Published:
            if self._first.acquire(blocking=False):
                self._reached.set()
                assert self._open.wait(60), "nobody opened the gate"
            return publish(catalog, publication, allow)

        def joined(place: ThreadPlace, data: bytes) -> bool:
            done = join(place, data)
            self._joined.release()
            return done

        monkeypatch.setattr(Catalog, "publish", published)
        monkeypatch.setattr(ThreadPlace, "join", joined)

    def wait(self, others: int = 0) -> None:
        """Waits until one stands before it, and so many others have joined the queue behind that one."""
        assert self._reached.wait(60), "nobody came to the gate"
        for _ in range(others):
            assert self._joined.acquire(timeout=60), "nobody joined the queue"

    def open(self) -> None:
        self._open.set()


def held(monkeypatch: pytest.MonkeyPatch, commits: Sequence[Callable[[], Any]], then: Callable[[], Any] = lambda: None) -> list[Any]:
    """Runs the first commit up to the step that decides, has the others wait behind it, and lets all go on; what each came to.

    Args:
        monkeypatch: puts the gate up.
        commits: what is to be run.
        then: what happens while all of them wait.
    """
    gate = Gate(monkeypatch)
    with ThreadPoolExecutor(len(commits)) as pool:
        begun = [pool.submit(commits[0])]
        try:
            gate.wait()
            begun += [pool.submit(commit) for commit in commits[1:]]
            gate.wait(len(commits) - 1)
            then()
        finally:
            gate.open()
        return [future.exception() or future.result() for future in begun]


def test_commits_that_wait_become_few_versions(home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    """One is at the decision, seven wait behind it: two versions, each with the rows of all of its members, each told which."""
    before = home.table("a").version
    tables = [lake.table("a") for lake in writers]
    results = held(monkeypatch, [partial(table.append, row(n + 1), message=f"from {n}") for n, table in enumerate(tables)])
    assert home.table("a").version == before + 2
    assert [result.version for result in results] == [before + 1] + [before + 2] * (WRITERS - 1)
    assert len({result.transaction_id for result in results}) == WRITERS
    assert ids(home) == list(range(WRITERS + 1))
    for lake, result in zip(writers, results, strict=True):
        assert lake.outcome(result.transaction_id) == home.outcome(result.transaction_id)
        assert isinstance(home.outcome(result.transaction_id), ty.outcomes.Committed)
    snapshot = home.history(1)[0]
    said = {snapshot.transaction: (snapshot.author, snapshot.message)}
    said |= {member.transaction: (member.author, member.message) for member in snapshot.members}
    assert said == {result.transaction_id: (f"writer{n}", f"from {n}") for n, result in enumerate(results) if n}
    assert set(snapshot.authors) == {f"writer{n}" for n in range(1, WRITERS)}
    assert home.check().ok
    for number, table in enumerate(tables):  # each goes on from the version that it is in
        table.append(row(100 + number))
    assert ids(home)[-WRITERS:] == [100 + number for number in range(WRITERS)]
    assert home.check().ok


def waiting(home: ty.Lake) -> list[str]:
    """The transactions that wait at the server, with what they offer."""
    head = home.view().find("a")
    assert head is not None
    queue: Any = home.catalog.queues(head, "main", "")
    with queue.lock:
        return [place.transaction_id for place in queue.waiting if place.data]


def elsewhere(home: ty.Lake) -> ty.Lake:
    """The lake as another process has it: it does not wait with those at the server."""
    return ty.Lake.open(Path(home.root_uri), create=False, durability="os")


def test_who_was_given_up_while_it_waited_is_not_in_the_version(
    home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record in the catalog decides, under lock: the others are committed without that one."""
    before, given_up = home.table("a").version, list[str]()

    def give_up() -> None:
        given_up.append(waiting(home)[-1])
        assert isinstance(home.outcome(given_up[0], give_up=True), ty.outcomes.NotCommitted)

    tables = [lake.table("a") for lake in writers]
    results = held(monkeypatch, [partial(table.append, row(n + 1)) for n, table in enumerate(tables)], give_up)
    [failed] = [result for result in results if isinstance(result, Exception)]
    assert isinstance(failed, ty.StorageError)
    assert "aborted by a cleanup" in str(failed)
    assert home.table("a").version == before + 2
    assert len(ids(home)) == WRITERS
    assert isinstance(home.outcome(given_up[0]), ty.outcomes.NotCommitted)
    assert given_up[0] not in {result.transaction_id for result in results if not isinstance(result, Exception)}
    assert home.check().ok


def test_the_rule_of_a_branch_is_held_against_each(home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch is protected while they wait: those who may write are committed together, the others told so by themselves."""
    before, allowed = home.table("a").version, [f"writer{number}" for number in (0, 1, 2, 3)]
    tables = [lake.table("a") for lake in writers]
    appends = [partial(table.append, row(n + 1)) for n, table in enumerate(tables)]
    results = held(monkeypatch, appends, lambda: home.branches.protect("main", writers=allowed))
    refused = results[len(allowed) :]
    assert all(isinstance(error, ty.ProtectedBranch) for error in refused)
    assert [error.author for error in refused] == [f"writer{number}" for number in range(len(allowed), WRITERS)]
    assert home.table("a").version <= before + 1 + len(allowed)
    assert ids(home) == list(range(len(allowed) + 1))
    assert {author for snapshot in home.history(4) for author in snapshot.authors if author.startswith("writer")} == {*allowed}
    assert home.check().ok


def test_a_conflict_is_told_to_each_by_itself(home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes the column away that all of them bring: none of them is committed, and each learns why."""
    with elsewhere(home) as other:
        tables = [lake.table("a") for lake in writers]
        appends = [partial(table.append, row(n + 1)) for n, table in enumerate(tables)]
        results = held(monkeypatch, appends, lambda: other.table("a").overwrite(pa.table({"name": ["x"]})))
    assert all(isinstance(error, ty.TiltyardError) for error in results), results
    assert not any(isinstance(error, ty.OutcomeUnknown) for error in results)
    assert home.table("a").to_arrow().to_pydict() == {"name": ["x"]}
    assert home.check().ok


def test_a_foreign_writer_takes_the_number_of_all(home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided, but the name is taken: all of them are undecided again, and committed on top of the foreign version, each once."""
    taken = list[tuple[str, ...]]()
    tables = [lake.table("a") for lake in writers]
    publish = Catalog.publish

    def overtaken(catalog: Catalog, publication: Publication, allow: Any = None) -> Published:
        if publication.members and not taken:
            taken.append(tuple(member.transaction for member in publication.members))
            lance.write_dataset(row(1000), home.table("a")._access.lance_uri, mode="append")
        return publish(catalog, publication, allow)

    monkeypatch.setattr(Catalog, "publish", overtaken)
    results = held(monkeypatch, [partial(table.append, row(n + 1)) for n, table in enumerate(tables)])
    assert taken
    assert ids(home) == [*range(WRITERS + 1), 1000]
    for result in results:
        assert isinstance(home.outcome(result.transaction_id), ty.outcomes.Committed)
    assert home.check().ok


def test_members_are_known_after_the_catalog_was_lost(
    home: ty.Lake, writers: list[ty.Lake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = [lake.table("a") for lake in writers]
    results = held(monkeypatch, [partial(table.append, row(n + 1), message=f"from {n}") for n, table in enumerate(tables)])
    shutil.copytree(Path(home.root_uri), tmp_path / "copy", ignore=shutil.ignore_patterns("catalog.db*"))
    report = ty.Lake.rebuild(tmp_path / "copy")
    assert not report.in_doubt
    with ty.Lake.open(tmp_path / "copy", create=False) as found:
        assert ids(found) == list(range(WRITERS + 1))
        for result in results:
            assert isinstance(found.outcome(result.transaction_id), ty.outcomes.Committed)
        told = {member.author: member.message for member in found.history(1)[0].members}
        assert len(told) == WRITERS - 2
        assert all(message == f"from {author.removeprefix('writer')}" for author, message in told.items())
        assert found.check().ok


def test_an_offer_that_comes_twice_is_at_work_once(home: ty.Lake, server: tuple[str, LakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke, and the client sends it again while the first one still waits: one commit, told to both."""
    sent, at_work = list[dict[str, Any]](), list[Any]()
    post = ServerLink.post

    def noted(link: ServerLink, path: str, body: Any, **how: Any) -> Any:
        sent.extend([body] if path == OFFER else [])
        return post(link, path, body, **how)

    monkeypatch.setattr(ServerLink, "post", noted)
    token = create_token(home, "ada", [Grant.parse("writer")])[0]
    with ty.Lake.open(server[0], token=token, durability="os") as lake:
        first, again = lake.table("a"), ServerLink(server[0], token)
        gate, submit, came = Gate(monkeypatch), server[1].offers.submit, threading.Event()

        def submitted(offered: Any, allow: Callable[[], None]) -> Any:
            at_work.append(submit(offered, allow))
            if len(at_work) == 2:
                came.set()
            return at_work[-1]

        monkeypatch.setattr(server[1].offers, "submit", submitted)
        with ThreadPoolExecutor(2) as pool:
            begun = pool.submit(first.append, row(1))
            gate.wait()
            second = pool.submit(post, again, OFFER, sent[0])
            assert came.wait(60)
            gate.open()
            results = [begun.result(), second.result()]
    assert at_work[0] is at_work[1]
    assert results[1]["version"] == results[0].version
    assert post(again, OFFER, sent[0])["version"] == results[0].version, "and when it is long done"
    assert ids(home) == [0, 1]
    other = Transaction.from_bytes(base64.b64decode(sent[0]["transaction"]))
    assert other.uuid == results[0].transaction_id
    again.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"transaction": "%%%"}, "malformed"),
        ({"transaction": base64.b64encode(b"nothing").decode()}, "malformed"),
        ({"transaction": base64.b64encode(bytes(2**20 + 1)).decode()}, "malformed"),
        ({"table": None, "transaction": 3}, "malformed"),
        (None, "malformed"),
    ],
)
def test_malformed_offers_are_told_so(home: ty.Lake, server: tuple[str, LakeServer], change: dict[str, Any] | None, why: str) -> None:
    link = ServerLink(server[0], create_token(home, "ada", [Grant.parse("writer")])[0])
    body = {"table": "x", "name": "a", "lake_branch": "main", "branch": None, "line": "", "author": "", "transaction": ""}
    with pytest.raises(ty.InvalidInput, match=why):
        link.post(OFFER, {} if change is None else {**body, **change})
    link.close()


def offer_of(home: ty.Lake, operation: Operation, **properties: str) -> dict[str, Any]:
    """A commit to the table that somebody made up."""
    head = home.view().find("a")
    assert head is not None
    made = Transaction(head.version, "0" * 32, operation, {PARENT: head.transaction, **properties})
    return OfferedCommit(head.id, "a", "main", head.branch, head.owner, "eve", made.to_bytes()).to_body()


def test_nobody_speaks_for_others(home: ty.Lake, server: tuple[str, LakeServer]) -> None:
    """An offer brings new rows of its own author: not those of others, no other operation, and not from outside the table."""
    link = ServerLink(server[0], create_token(home, "ada", [Grant.parse("writer")])[0])
    version = home.table("a").version
    group = json.dumps([{"id": "f" * 32, "read": 1, "operation": "Append", "fragments": 0, "properties": {}}])
    for body in (offer_of(home, Append(()), **{GROUP: group}), offer_of(home, Delete((), (0,), "true"))):
        with pytest.raises(ty.InvalidInput, match="Only a commit that adds rows"):
            link.post(OFFER, body)
    here = Path(home.table("a")._access.lance_uri)
    there = next(here.glob("data/*.lance"))

    def brings(path: str) -> dict[str, Any]:
        return offer_of(home, Append((DataFragment(0, (DataFile(path, (0,), (0,), size=there.stat().st_size),), 1),)))

    assert link.post(OFFER, brings("none.lance")) == {"by_itself": True}
    with pytest.raises(ty.InvalidInput, match="malformed"):
        link.post(OFFER, brings(f"../../{here.name}/data/{there.name}"))
    assert link.post(OFFER, {**brings(there.name), "line": "another"}) == {"by_itself": True}
    reader = ServerLink(server[0], create_token(home, "eve", [Grant.parse("reader")])[0])
    with pytest.raises(ty.InvalidInput, match="role writer"):
        reader.post(OFFER, offer_of(home, Append(())))
    assert home.table("a").version == version
    with pytest.raises(ty.InvalidInput, match="reserved for Tiltyard"):
        home.table("a").append(row(1), commit=ty.CommitOptions(properties={GROUP: group}))
    for each in (link, reader):
        each.close()


class Tally:
    """What became of the appends of many writers. Threads share it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.done, self.unknown, self.failed = list[int](), dict[str, int](), list[int]()

    def append(self, table: Any) -> None:
        number = next(self._numbers)
        try:
            table.append(row(number))
        except ty.OutcomeUnknown as error:
            self.unknown[error.transaction_id] = number
        except ty.StorageError:
            self.failed.append(number)
        else:
            self.done.append(number)


@pytest.mark.parametrize("point", OFFER_POINTS)
def test_a_server_killed_while_commits_wait_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    with ty.Lake.open(tmp_path / "lake", durability="os") as home:
        home.create_table("a", ROWS)
    bank, dead, tally = Bank(tmp_path / "lake"), threading.Event(), Tally()
    opened_all = threading.Barrier(4)

    def write() -> None:
        with ty.Lake.open(bank.url, durability="os") as lake:
            table = lake.table("a")
            opened_all.wait(60)
            while not dead.is_set():
                tally.append(table)

    try:
        bank.start(point)
        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write) for _ in range(4)]
            try:
                assert (bank.told(), bank.told()) == ("serving", -signal.SIGKILL), f"the server was not killed at {point!r}"
            finally:
                dead.set()
            for writer in writers:
                writer.result(120)
        with ty.Lake.open(bank.url, durability="os") as lake:
            known = [n for identity, n in tally.unknown.items() if isinstance(lake.outcome(identity, give_up=True), ty.outcomes.Committed)]
            assert ids(lake) == sorted([0, *tally.done, *known])
    finally:
        bank.stop()
    with ty.Lake.open(tmp_path / "lake", create=False) as home:
        assert home.check().ok
        if "together" in point and point != "deciding together":
            assert any(snapshot.members for snapshot in home.history())
