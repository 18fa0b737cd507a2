"""Offers of those who wait: read back as they were, by one who leads, from the living alone; whatever else lies there is passed over."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.batches import until
from tiltyard.catalog import batch_offers
from tiltyard.catalog.batch_offers import (
    BatchOffer,
    OfferedRows,
    can_be_folded,
    can_be_offered,
    decode_offer,
    encode_offer,
)
from tiltyard.catalog.lake_values import Change, ExpectedHead, Publication, SnapshotMember, VersionStep
from tiltyard.catalog.records import Offering, Ticket
from tiltyard.catalog.tickets import FileTicket, FileTickets
from tiltyard.format.values import DataFile, DataFragment
from tiltyard.transaction.operations import Append, Delete
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import mark

PATIENCE = 60.0


def append(uuid: str = "own", **properties: str) -> Transaction:
    files = (DataFile("data.lance", (0,), (0,), size=100),)
    return Transaction(4, uuid, Append((DataFragment(0, files, 3),)), properties)


def publication(transaction: str = "t1") -> Publication:
    step = VersionStep(5, "_versions/5.manifest", "staged/5", "own", "Append")
    change = Change("table", "write", "a", 4, 4, (step,), base_branch="", base_transaction="before")
    reads = (ExpectedHead("other", "b", 3, 2, "rows"),)
    return Publication(transaction, (change,), reads=reads, key="k", author="me", message="m", properties={"x": "1"}, base=7, line="line")


def offer(transaction: str = "t1") -> BatchOffer:
    return BatchOffer(publication(transaction), {"table": OfferedRows("columns", (append(),))}, {"table": ("data/a.lance",)}, 1.5, "disk")


def test_an_offer_is_read_back_as_it_was() -> None:
    assert decode_offer(encode_offer(offer())) == offer()


@pytest.mark.parametrize("cut", [0, 1, 8, 23, 24, 100, -1])
def test_half_of_an_offer_is_none(cut: int) -> None:
    data = encode_offer(offer())
    assert decode_offer(data[:cut]) is None


def test_a_changed_byte_is_noticed() -> None:
    data = bytearray(encode_offer(offer()))
    for at in range(0, len(data), 37):
        data[at] ^= 1
        assert decode_offer(bytes(data)) is None
        data[at] ^= 1


def test_what_is_no_offer_is_none() -> None:
    nameless = json.loads(encode_offer(offer())[batch_offers._HEADER_BYTES :])
    nameless["publication"]["transaction"] = 7
    empty = b'{"publication": {}, "rows": {}, "files": {}, "begun": 0, "durability": ""}'
    for body in (b"{}", b"[]", empty, b"\xff", json.dumps(nameless).encode()):
        assert decode_offer(batch_offers._MAGIC + batch_offers._digest(body) + body) is None


def test_rows_that_are_more_than_rows_are_no_offer() -> None:
    deletes = Transaction(4, "own", Delete((), (1,), "x"))
    assert decode_offer(encode_offer(replace(offer(), rows={"table": OfferedRows("columns", (deletes,))}))) is None
    assert not can_be_folded(append(**mark("source", 3)))
    assert can_be_folded(append())


def test_a_large_offer_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert encode_offer(offer())
    monkeypatch.setattr(batch_offers, "MOST_BYTES", 100)
    assert encode_offer(offer()) == b""


def test_what_cannot_be_offered() -> None:
    whole = publication()
    (change,) = whole.changes
    assert can_be_offered(whole)
    for other in (
        replace(whole, changes=()),
        replace(whole, noted=True),
        replace(whole, data="x"),
        replace(whole, members=(SnapshotMember("m"),)),
        replace(whole, changes=(change, change)),
        *(replace(whole, changes=(replace(change, kind=kind),)) for kind in ("create", "drop", "rename", "register", "adopt")),
        replace(whole, changes=(replace(change, former="old"),)),
        replace(whole, changes=(replace(change, steps=()),)),
    ):
        assert not can_be_offered(other), other
        if not other.members and not other.data:  # which no offer carries
            assert decode_offer(encode_offer(replace(offer(), publication=other))) is None


# ---- in tickets ----------------------------------------------------------------------------------------------------------------


class Waiting(Offering):
    """Somebody who waits with an offer."""

    def __init__(self, queues: FileTickets, names: list[str], data: bytes, *, done: bool = True) -> None:
        self.data, self.asked, self.done, self.made = data, 0, done, 0
        self.ticket: Ticket | None = None
        self.thread = threading.Thread(target=self._wait, args=(queues, names), daemon=True)
        self.thread.start()

    def _wait(self, queues: FileTickets, names: list[str]) -> None:
        self.ticket = queues.take(names, PATIENCE, self)

    def offer(self) -> bytes:
        self.made += 1
        return self.data

    def is_done(self) -> bool:
        self.asked += 1
        return self.done


def first(queues: FileTickets, *names: str) -> FileTicket:
    found = queues.take(names, PATIENCE)
    assert isinstance(found, FileTicket)
    return found


def offers(ticket: FileTicket) -> list[bytes]:
    return [data for _, data in ticket.offers()]


def test_offers_are_seen_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    queues = FileTickets(tmp_path)
    held = first(queues, "a", "b")
    waiting = []
    for number, names in enumerate((["b"], ["a"], ["a", "b"])):
        waiting.append(Waiting(queues, names, f"offer {number}".encode()))
        until(lambda: len(offers(held)) == len(waiting))
    assert offers(held) == [b"offer 0", b"offer 1", b"offer 2"]
    held.give_back()
    for one in waiting:
        one.thread.join(PATIENCE)
        assert one.ticket is not None
        one.ticket.give_back()


def test_whoever_is_told_looks_and_waits_no_longer_if_it_is_done(tmp_path: Path) -> None:
    queues = FileTickets(tmp_path)
    held = first(queues, "a")
    done = Waiting(queues, ["a"], b"one")
    until(lambda: offers(held) == [b"one"])
    not_done = Waiting(queues, ["a"], b"two", done=False)
    until(lambda: len(offers(held)) == 2)
    held.tell([name for name, _ in held.offers()])
    done.thread.join(PATIENCE)
    assert done.ticket is not None
    until(lambda: not_done.asked == 1)
    assert not_done.thread.is_alive(), "it keeps its place"
    done.ticket.give_back()
    assert offers(held) == [b"two"]
    held.give_back()
    not_done.thread.join(PATIENCE)
    assert not_done.ticket is not None
    not_done.ticket.give_back()


def test_nobody_sees_offers_of_those_ahead_or_of_the_dead(tmp_path: Path) -> None:
    queues = FileTickets(tmp_path)
    held = first(queues, "a")
    behind = FileTicket(held.directory)
    queue = held._entries[0][0].rsplit(".", 2)[0] + "."
    behind.stand(queue)
    behind.leave_offer(b"mine")
    assert offers(held) == [b"mine"]
    held.leave_offer(b"theirs")
    assert offers(behind) == []
    for _, descriptor in behind._entries:
        os.close(descriptor)  # as the system does when its owner dies
    behind._entries = []
    assert offers(held) == []
    held.give_back()
    behind.give_back()


def test_whoever_has_nobody_ahead_is_not_asked_for_an_offer(tmp_path: Path) -> None:
    alone = Waiting(FileTickets(tmp_path), ["a"], b"never")
    alone.thread.join(PATIENCE)
    assert isinstance(alone.ticket, FileTicket)
    assert not alone.ticket.waited
    assert not alone.made
    assert os.fstat(alone.ticket._entries[0][1]).st_size == 0
    alone.ticket.give_back()
