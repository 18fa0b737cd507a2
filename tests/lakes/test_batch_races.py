"""Members of batches at the edges: leaders that come back late, looks that fail, offers that stand there twice, branches that end."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import pytest

from tests.support.batches import HeldTurn, held_turn, until
from tests.support.lakes import Site, add_to_both, both, foreign_append, ids, numbers, two_tables, uri_of
from tiltyard.catalog import batch_offers, tickets
from tiltyard.catalog.batch_offers import decode_offer
from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.publishing import Published
from tiltyard.catalog.tickets import FileTicket, _queue_of
from tiltyard.catalog.value_codec import SNAPSHOTS, TRANSACTIONS
from tiltyard.errors import CorruptTable, OutcomeUnknown, StorageError
from tiltyard.lake import Lake
from tiltyard.lakes.batch_members import BatchMember
from tiltyard.lakes.commit_transaction import StagedTransaction
from tiltyard.lakes.lake_batches import BatchLeader, BatchPlan, keys_of
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.verbs.outcome import Committed

SEED = 20261119
CHANGES = {"append": [1, 3, 5], "delete": [1], "update": [1, 105]}
"""What each change leaves of the rows 1 and 5."""


@pytest.fixture
def lake(site: Site) -> Lake:
    return two_tables(site.open(author="test"))


def changed(tx: LakeTransaction, change: str) -> LakeTransaction:
    """A transaction that adds a row to the hot table, and does something else to one of its own."""
    tx.table("a").append(numbers(3))
    table = tx.table("c")
    if change == "append":
        table.append(numbers(3))
    elif change == "delete":
        table.delete("id = 5")
    elif change == "update":
        table.update({"id": "id + 100"}, where="id = 5")
    return tx


def row_to(lake: Lake, number: int, *names: str, **how: Any) -> LakeTransaction:
    tx = lake.transaction(**how)
    for name in names:
        tx.table(name).append(numbers(number))
    return tx


def let_go(held: HeldTurn) -> None:
    held.ticket.give_back()
    for waiter in held.waiters:
        waiter.thread.join(60)
        assert not waiter.thread.is_alive()


# ---- what a member knows of itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("named", [True, False])
def test_a_leader_that_comes_back_between_two_looks_of_a_member(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: str, named: bool
) -> None:
    """The member goes on by itself after three seconds; the batch is decided before it reads the heads."""
    lake.create_table("c", numbers(1, 5))
    back, commit, moved = threading.Event(), BatchLeader._commit, StagedTransaction._moved_by_now

    def hanging(leader: BatchLeader, plan: BatchPlan, left_out: set[str]) -> bool:
        assert back.wait(60)
        return commit(leader, plan, left_out)

    def reading(tx: StagedTransaction) -> Any:
        if tx.id == late.id and not back.is_set():
            back.set()
            until(lambda: lake.catalog.transaction(late.id) is not None)
        return moved(tx)

    monkeypatch.setattr(BatchLeader, "_commit", hanging)
    monkeypatch.setattr(StagedTransaction, "_moved_by_now", reading)
    if not named:
        monkeypatch.setattr(BatchLeader, "_finish", lambda *_: None)
    with held_turn(lake, "a") as held:
        held.line_up(row_to(lake, 2, "a", "b"))
        late = changed(lake.transaction(), change)
        held.line_up(late)
        done = held.give_back()
    assert back.is_set()
    assert done[0].snapshot == done[1].snapshot
    assert (ids(lake.table("a")), ids(lake.table("c"))) == ([1, 2, 3], CHANGES[change])
    assert not lake.check().problems


@pytest.mark.parametrize("change", ["append", "delete"])
@pytest.mark.parametrize(("victim", "looks"), [(0, 1), (1, 3)])
def test_a_look_at_the_own_record_may_fail(lake: Lake, monkeypatch: pytest.MonkeyPatch, change: str, victim: int, looks: int) -> None:
    lake.create_table("c", numbers(1, 5))
    find, failed = BatchMember.find, list[str]()
    several = [row_to(lake, 2, "a", "b"), row_to(lake, 2, "a", "b")]
    several[victim] = changed(lake.transaction(), change)

    def failing(member: BatchMember) -> Published | None:
        if member.id == several[victim].id and len(failed) < looks and lake.catalog.transaction(member.id) is not None:
            failed.append(member.id)
            raise StorageError("database is locked", transient=True)
        return find(member)

    monkeypatch.setattr(BatchMember, "find", failing)
    with held_turn(lake, "a") as held:
        for tx in several:
            held.line_up(tx)
        done = held.give_back()
    assert len(failed) == looks
    assert done[0].snapshot == done[1].snapshot
    assert (ids(lake.table("a")), ids(lake.table("c"))) == ([1, 2, 3], CHANGES[change])
    assert not lake.check().problems


def test_the_snapshot_of_another_line_is_not_taken_for_the_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch ends and is made anew under its name before a slow member looks."""
    lake.branches.create("dev")
    dev = lake.on_branch("dev")
    for name in ("x", "y"):
        dev.create_table(name, numbers(1))
    find, slow, looked = BatchMember.find, threading.Event(), threading.Event()
    victim = row_to(dev, 3, "x", "y")

    def late(member: BatchMember) -> Published | None:
        if member.id == victim.id and lake.catalog.transaction(member.id) is not None:
            looked.set()
            assert slow.wait(60)
        return find(member)

    monkeypatch.setattr(BatchMember, "find", late)
    with held_turn(dev, "x", "y") as held:
        held.line_up(row_to(dev, 2, "x", "y"))
        held.line_up(victim)
        held.ticket.give_back()
        held.waiters[0].done()
        assert looked.wait(60)
        lake.branches.delete("dev")
        lake.branches.create("dev")
        for number in range(60, 64):
            add_to_both(lake.on_branch("dev").transaction(), number).commit()
        slow.set()
        waiter = held.waiters[1]
        waiter.thread.join(60)
    assert isinstance(waiter.error, OutcomeUnknown), "what it was committed in is gone"
    assert both(lake.on_branch("dev")) == ([1, 60, 61, 62, 63],) * 2


# ---- what a leader looks at ------------------------------------------------------------------------------------------------------


def test_files_of_any_table_are_looked_for(lake: Lake, site: Site) -> None:
    lake.create_table("c", numbers(1, 5))
    with held_turn(lake, "a") as held:
        held.line_up(row_to(lake, 2, "a"))
        tx = row_to(lake, 3, "a")
        tx.table("c").overwrite(numbers(7, 8))
        waiter = held.line_up(tx)
        written = tx._by_name["c"]
        assert written.access is not None
        assert written.head is not None
        assert site.directory is not None
        for path in written.access.new_files():
            if path.startswith("data/"):
                (site.directory / written.head.location / path).unlink()
        let_go(held)
    assert isinstance(waiter.error, StorageError)
    assert (ids(lake.table("a")), ids(lake.table("c"))) == ([1, 2], [1, 5])
    assert not lake.check().problems


def test_tables_of_a_branch_are_looked_at_where_they_lie(lake: Lake) -> None:
    lake.branches.create("dev")
    dev = lake.on_branch("dev")
    add_to_both(dev.transaction(), 10).commit()
    with held_turn(dev, "a", "b") as held:
        for number in (2, 3):
            held.line_up(add_to_both(dev.transaction(), number))
        done = held.give_back()
    assert done[0].snapshot == done[1].snapshot
    assert (both(dev), both(lake)) == (([1, 2, 3, 10],) * 2, ([1],) * 2)
    assert not lake.check().problems


def test_a_transaction_that_stands_there_twice_is_taken_once(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        for number in (2, 3):
            held.line_up(add_to_both(lake.transaction(), number))
        assert isinstance(held.ticket, FileTicket)
        other = FileTicket(held.ticket.directory)
        for mine, _ in held.ticket._entries:
            other.stand(_queue_of(mine))
        other.leave_offer(held.offered()[1])
        let_go(held)
        other.give_back()
    assert both(lake) == ([1, 2, 3],) * 2


def test_an_interrupted_ticket_is_given_back_all_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    records = lake.catalog.records
    ticket = records.ticket(["one", "two"], 1.0)  # type: ignore[attr-defined]
    unlink, hits = tickets._unlink, list[str]()

    def interrupted(path: str) -> None:
        hits.append(path)
        if len(hits) == 1:
            raise KeyboardInterrupt
        unlink(path)

    monkeypatch.setattr(tickets, "_unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ticket.give_back()
    assert len(hits) == 3, "the one that was interrupted, and both"
    assert not ticket._entries
    again = records.ticket(["one", "two"], 1.0)  # type: ignore[attr-defined]
    assert not again.waited
    again.give_back()


# ---- what others do --------------------------------------------------------------------------------------------------------------


def test_whose_number_a_foreign_writer_has_is_told_to_every_member(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = lake.catalog.publish

    def beside(publication: Publication) -> Published:
        done = publish(publication)
        monkeypatch.setattr(lake.catalog, "publish", publish)
        foreign_append(uri_of(lake, "a"), 50)
        return done

    with held_turn(lake, "a", "b") as held:
        for number in (2, 3):
            held.line_up(add_to_both(lake.transaction(), number))
        monkeypatch.setattr(lake.catalog, "publish", beside)
        let_go(held)
    assert [type(waiter.error) for waiter in held.waiters] == [CorruptTable, CorruptTable], "as of one that commits by itself"


def test_keys_end_with_their_branch(lake: Lake) -> None:
    lake.branches.create("dev")
    dev = lake.on_branch("dev")
    for name in ("x", "y"):
        dev.create_table(name, numbers(1))
    with held_turn(dev, "x", "y") as held:
        for number in (2, 3):
            held.line_up(row_to(dev, number, "x", "y", idempotency_key=f"k{number}"))
        done = held.give_back()
    assert done[0].snapshot == done[1].snapshot
    lake.branches.delete("dev")
    again = row_to(lake, 3, "a", "b", idempotency_key="k3").commit()
    assert not again.replayed
    assert both(lake) == ([1, 3],) * 2
    assert isinstance(lake.outcome(again.transaction_id), Committed)


def _mutated(source: random.Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and source.random() < 0.7:
        at = source.choice(list(value)) if isinstance(value, dict) else source.randrange(len(value))
        value[at] = _mutated(source, value[at])
        return value
    return source.choice([None, "x", -1, 2**70, [], {}, [1], {"a": 1}, True, 1.5, "a" * 50])


def test_no_offer_of_others_stops_a_leader(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        held.line_up(add_to_both(lake.transaction(idempotency_key="k"), 2))
        (data,) = held.offered()
        held.give_back()
    good = decode_offer(data)
    assert good is not None
    print(f"seed {SEED}")
    source, read = random.Random(SEED), 0
    for _ in range(1500):
        body = json.dumps(_mutated(source, json.loads(data[batch_offers._HEADER_BYTES :]))).encode()
        other = decode_offer(batch_offers._MAGIC + batch_offers._digest(body) + body)
        if other is not None:
            found = lake.catalog.records.get(keys_of([good, other]))
            open_ones = {key: known for key, known in found.items() if not key.startswith((TRANSACTIONS, SNAPSHOTS, "key"))}
            plan = BatchPlan(good.publication, open_ones)
            plan.take(good)
            plan.take(other)
            read += 1
    assert read > 100, "most of them are still offers, or this shows nothing"
