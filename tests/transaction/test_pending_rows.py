"""Rows that no file has yet: who commits them writes them, with those of exactly the writers that the version tells of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import append, fragment, is_version, memory_table, noted_runtime, plant, reopened
from tests.transaction.test_turns import ScriptedPlace, ScriptedQueue
from tiltyard.errors import CorruptTable, InvalidInput, StorageError
from tiltyard.format.values import DataFragment
from tiltyard.interfaces import NOT_TAKEN, Offer
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.group import members_of
from tiltyard.transaction.operations import Append
from tiltyard.transaction.pending_rows import announced_form, decode_offer, encode_offer
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, transaction_id


@dataclass
class ListedRows:
    """Rows that are one word each; a file is the words in it."""

    store: Any
    word: str
    fails_with: str = ""
    written: list[str] = field(default_factory=list)

    def offered(self) -> bytes:
        return self.word.encode()

    def read(self, offered: bytes) -> str | None:
        return offered.decode() if offered.isalnum() else None

    def write(self, others: Sequence[str]) -> tuple[DataFragment, ...]:
        if self.fails_with and self.fails_with in others:
            raise InvalidInput("Cannot be encoded.", argument="data")
        name = f"{len(self.written)}-{'-'.join((self.word, *others))}"
        self.written.append(name)
        self.store.put(f"data/{name}.lance", b"rows")
        return (fragment(name),)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    memory_table(store)
    return store


def queued(store: Any, place: ScriptedPlace) -> ty.Table:
    table = reopened(store, runtime=noted_runtime())
    table._access.__dict__["committer"] = replace(table._access.committer, queue=ScriptedQueue(place))
    return table


def commit(table: ty.Table, rows: ListedRows) -> ty.CommitResult:
    access = table._access
    transaction = Transaction(table.version, access.runtime.random.uuid(), append("planned"))
    return access.committer.commit(transaction, table._file, table._scheme, RetryPolicy(), pending=rows)[0]


def member(store: Any, word: str, rows: bytes | None = None, properties: dict[str, str] | None = None) -> Offer:
    table = reopened(store)
    mine = Transaction(table.version, f"member-{word}", append("planned"), properties or {})
    return Offer(mine.uuid, encode_offer(mine, transaction_id(table._file), word.encode() if rows is None else rows))


def data_files(store: Any) -> set[str]:
    return {name.removesuffix(".lance") for name in store.names("data/")}


def named(store: Any) -> list[str]:
    return [file.path.removesuffix(".lance") for one in reopened(store).layout.fragments for file in one.files]


def test_an_offer_has_the_transaction_and_the_rows() -> None:
    mine = Transaction(3, "mine", append("planned"), {"who": "me"})
    data = encode_offer(mine, "the one below", b"rows")
    assert decode_offer(data) == (replace(mine, operation=Append(()), properties={"who": "me", PARENT: "the one below"}), b"rows")
    with_files = Transaction(3, "mine", append("written"))
    assert decode_offer(with_files.to_bytes()) == (with_files, b"")
    assert Transaction.from_bytes(announced_form(data)).uuid == "mine"
    assert announced_form(with_files.to_bytes()) == with_files.to_bytes()


def test_who_knows_nothing_of_rows_takes_no_offer_with_rows() -> None:
    """An older version of ours would otherwise commit the transaction without them."""
    with pytest.raises(CorruptTable):
        Transaction.from_bytes(encode_offer(Transaction(3, "mine", append()), "", b"rows"))


@pytest.mark.parametrize(
    "heading",
    [b"", b"[]", b"{}", b"[1, 2, 3, 4]", b'[3, "mine", "", {}]', b'[3, "not/an id", "", {}]', b'["x", "mine", "", {}]', b"[" * 99_999],
)
def test_an_offer_of_anything_else_is_refused(heading: bytes) -> None:
    prefix = encode_offer(Transaction(3, "mine", append()), "", b"rows")[:5]
    rows = b"" if b"mine" in heading and heading.startswith(b"[3") else b"rows"
    with pytest.raises(CorruptTable):
        decode_offer(prefix + len(heading).to_bytes(4, "little") + heading + rows)


def test_a_lone_writer_writes_its_rows(store: MemoryStore) -> None:
    rows = ListedRows(store, "mine")
    assert commit(queued(store, ScriptedPlace()), rows).version == 2
    assert named(store) == ["first", "0-mine"]


def test_one_file_for_all(store: MemoryStore) -> None:
    place = ScriptedPlace(offered=[member(store, "a"), member(store, "b")])
    assert commit(queued(store, place), ListedRows(store, "mine")).version == 2
    assert place.answered == {"member-a": 2, "member-b": 2}
    assert named(store) == ["first", "0-mine-a-b"]
    made = reopened(store)._access.log.committed(2, reopened(store)._scheme)
    assert [one.transaction_id for one in members_of(made.transaction)] == ["member-a", "member-b"]


def test_rows_that_do_not_go_together_wait_for_a_leader_of_theirs(store: MemoryStore) -> None:
    place = ScriptedPlace(offered=[member(store, "a", b"- -"), member(store, "b")])
    assert commit(queued(store, place), ListedRows(store, "mine")).version == 2
    assert place.answered == {"member-b": 2}
    assert named(store) == ["first", "0-mine-b"]


def test_who_has_written_already_leaves_rows_to_others(store: MemoryStore) -> None:
    place = ScriptedPlace(offered=[member(store, "a")])
    table = queued(store, place)
    transaction = Transaction(1, "mine", append("mine"))
    access = table._access
    assert access.committer.commit(transaction, table._file, table._scheme, RetryPolicy())[0].version == 2
    assert place.answered == {}
    assert named(store) == ["first", "mine"]


def test_who_cannot_be_put_on_the_version_brings_no_rows(store: MemoryStore) -> None:
    foreign = member(store, "a")
    foreign = Offer(foreign.transaction_id, encode_offer(decode_offer(foreign.data)[0], "of another table", b"a"))
    place = ScriptedPlace(offered=[foreign, member(store, "b")])
    assert commit(queued(store, place), ListedRows(store, "mine")).version == 2
    assert place.answered == {"member-a": NOT_TAKEN, "member-b": 2}
    assert named(store) == ["first", "0-mine-b"]


def test_rows_that_cannot_be_written_together_are_written_apart(store: MemoryStore) -> None:
    place = ScriptedPlace(offered=[member(store, "a"), member(store, "b")])
    assert commit(queued(store, place), ListedRows(store, "mine", fails_with="a")).version == 2
    assert place.answered == {"member-a": NOT_TAKEN, "member-b": NOT_TAKEN}
    assert named(store) == ["first", "0-mine"]


def test_a_version_that_fails_for_all_has_our_rows_alone(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written for all has rows of those who are told that they were not taken."""
    place = ScriptedPlace(offered=[member(store, "a")])
    table = queued(store, place)
    real = type(table._access.committer)._prepared

    def prepared(self: Any, race: Any, transaction: Transaction, *given: Any) -> Any:
        if members_of(transaction):
            raise StorageError("The disk is full.", name="x")
        return real(self, race, transaction, *given)

    monkeypatch.setattr(type(table._access.committer), "_prepared", prepared)
    assert commit(table, ListedRows(store, "mine")).version == 2
    assert place.answered == {"member-a": NOT_TAKEN}
    assert named(store) == ["first", "1-mine"]
    assert data_files(store) == {"1-mine"}, "and nothing is left of the other file"


@pytest.mark.parametrize("later", ["the same", "another"])
def test_a_lost_race_is_run_again_with_those_who_wait_then(store: MemoryStore, later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who went on alone meanwhile must not come a second time."""
    first = [member(store, "a"), member(store, "b")]
    place = ScriptedPlace(offered=first)
    table = queued(store, place)
    real, lost = table._access.handler.create, list[str]()

    def create(inner: Any, path: str, data: bytes) -> None:
        if is_version("put_if_absent", path) and not lost:
            lost.append(path)
            plant(store, append("theirs"))
            place.offered = first if later == "the same" else first[:1]
        real(inner, path, data)

    monkeypatch.setattr(table._access.handler, "create", create)
    rows = ListedRows(store, "mine")
    assert commit(table, rows).version == 3
    last = "0-mine-a-b" if later == "the same" else "1-mine-a"
    assert named(store) == ["first", "theirs", last]
    assert data_files(store) == {last}
    assert place.answered == dict.fromkeys([one.transaction_id for one in place.offered], 3)


def test_nothing_is_left_of_a_commit_that_fails(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    table = queued(store, ScriptedPlace())

    def create(inner: Any, path: str, data: bytes) -> None:
        raise StorageError("The disk is full.", name=path)

    monkeypatch.setattr(table._access.handler, "create", create)
    rows = ListedRows(store, "mine")
    with pytest.raises(StorageError):
        commit(table, rows)
    assert rows.written == ["0-mine"]
    assert data_files(store) == set()


def test_what_a_member_offers_and_what_it_leaves(store: MemoryStore) -> None:
    """Who is committed by another writes no file; who wrote one, and is found in a version, takes it away."""
    mine, theirs = ScriptedPlace(), ScriptedPlace()
    leader, rows = queued(store, theirs), ListedRows(store, "mine")

    def led() -> int:
        data = mine.joined[0]
        theirs.offered = [Offer(decode_offer(data)[0].uuid, data)]
        return commit(leader, ListedRows(store, "theirs")).version

    mine.answers = [led]
    assert commit(queued(store, mine), rows).version == 2
    assert rows.written == []
    assert data_files(store) == {"0-theirs-mine"}


def test_who_went_on_alone_and_was_committed_takes_its_file_away(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that hangs creates the version while its member, who gave up waiting, is about to."""
    mine, theirs = ScriptedPlace(answers=[None], hangs=True), ScriptedPlace()
    leader, rows = queued(store, theirs), ListedRows(store, "mine")
    table = queued(store, mine)
    real, led = table._access.handler.create, list[int]()

    def create(inner: Any, path: str, data: bytes) -> None:
        if not led:
            offered = mine.joined[0]
            theirs.offered = [Offer(decode_offer(offered)[0].uuid, offered)]
            led.append(commit(leader, ListedRows(store, "theirs")).version)
        real(inner, path, data)

    monkeypatch.setattr(table._access.handler, "create", create)
    assert commit(table, rows).version == 2
    assert rows.written == ["0-mine"]
    assert named(store) == ["first", "0-theirs-mine"]
    assert data_files(store) == {"0-theirs-mine"}
