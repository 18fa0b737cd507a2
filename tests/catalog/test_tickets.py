"""Tickets: whoever waits longest goes first, the dead hold up nobody, and nothing ever fails for want of one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.catalog.test_records_postgres import wait_until_blocked
from tiltyard.catalog import tickets
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import GivesTickets, Ticket
from tiltyard.catalog.tickets import QUEUE, FileTicket, FileTickets, NoTicket

PATIENCE = 60.0


@pytest.fixture(params=["sqlite", "postgres", "manifest"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GivesTickets]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "lake")
    found = open_records(f"sqlite:///{url}/catalog.db" if request.param == "sqlite" else url, durability="os")
    assert isinstance(found, GivesTickets)
    yield found
    found.close()


class Waiting:
    """Somebody who waits for a ticket in a thread of his own."""

    def __init__(self, records: GivesTickets, names: list[str], order: list[str], who: str) -> None:
        self.there, self.may_leave = threading.Event(), threading.Event()
        self.ticket: Ticket = NoTicket()

        def wait() -> None:
            self.ticket = records.ticket(names, PATIENCE)
            order.append(who)
            self.there.set()
            self.may_leave.wait(PATIENCE)
            self.ticket.give_back()

        self._thread = threading.Thread(target=wait)
        self._thread.start()

    def leave(self) -> None:
        self.may_leave.set()
        self._thread.join(PATIENCE)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns when so many have found somebody ahead of them in a queue of files."""
    real, seen = FileTicket.wait, set[str]()

    def wait(self: FileTicket, until: float) -> None:
        seen.add(self._token)
        real(self, until)

    def until_there_are(count: int) -> None:
        pause, end = threading.Event(), time.monotonic() + PATIENCE
        while len(seen) < count:
            assert time.monotonic() < end, f"{len(seen)} of {count} wait"
            pause.wait(0.001)

    monkeypatch.setattr(FileTicket, "wait", wait)
    return until_there_are


def test_who_came_first_goes_first(tmp_path: Path, standing: Callable[[int], None]) -> None:
    records = open_records(f"sqlite:///{tmp_path}/catalog.db", durability="os")
    assert isinstance(records, GivesTickets)
    order: list[str] = []
    first = records.ticket(["t"], PATIENCE)
    assert not first.waited
    waiting = []
    for number in range(4):
        waiting.append(Waiting(records, ["t"], order, str(number)))
        standing(number + 1)
    assert order == []
    first.give_back()
    for number, somebody in enumerate(waiting):
        assert somebody.there.wait(PATIENCE)
        assert order == [str(before) for before in range(number + 1)]
        assert somebody.ticket.waited
        somebody.leave()
    assert os.listdir(tmp_path / QUEUE) == []  # noqa: PTH208


def test_one_at_a_time_and_other_names_are_free(
    records: GivesTickets, standing: Callable[[int], None], request: pytest.FixtureRequest
) -> None:
    order: list[str] = []
    held = records.ticket(["a", "b"], PATIENCE)
    second = Waiting(records, ["b", "c"], order, "second")
    if request.node.callspec.params["records"] == "postgres":
        with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True) as watcher:
            wait_until_blocked(watcher)
    else:
        standing(1)
    free = records.ticket(["d"], PATIENCE)
    assert not free.waited
    free.give_back()
    free.give_back()
    assert order == []
    held.give_back()
    assert second.there.wait(PATIENCE)
    assert second.ticket.waited
    second.leave()


def test_names_in_opposite_orders_lock_nobody_out(records: GivesTickets) -> None:
    done: list[int] = []

    def work(names: list[str]) -> None:
        for _ in range(20):
            ticket = records.ticket(names, PATIENCE)
            done.append(1)
            ticket.give_back()

    threads = [threading.Thread(target=work, args=(names,)) for names in (["a", "b"], ["b", "a"], ["b"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(done) == 60


def test_a_wait_has_an_end(records: GivesTickets) -> None:
    held = records.ticket(["t"], PATIENCE)
    second = records.ticket(["t"], 0.05)
    assert second.waited
    second.give_back()
    held.give_back()
    third = records.ticket(["t"], PATIENCE)
    assert not third.waited
    third.give_back()


def test_the_dead_hold_up_nobody(tmp_path: Path) -> None:
    queues = FileTickets(tmp_path)
    dead = queues.take(["t"], PATIENCE)
    assert isinstance(dead, FileTicket)
    os.close(dead._entries[0][1])  # what the system does with the files of a process that died
    assert dead._socket is not None
    dead._socket.close()
    ticket = queues.take(["t"], PATIENCE)
    assert not ticket.waited
    ticket.give_back()
    assert os.listdir(tmp_path / QUEUE) == []  # noqa: PTH208


def test_who_hangs_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_HUNG_AFTER", 0.05)
    queues = FileTickets(tmp_path)
    hung = queues.take(["t"], PATIENCE)
    second = queues.take(["t"], PATIENCE)
    assert second.waited
    second.give_back()
    third = queues.take(["t"], PATIENCE)
    assert not third.waited
    third.give_back()
    hung.give_back()


def test_who_cannot_have_a_ticket_goes_on_without(tmp_path: Path) -> None:
    (tmp_path / "_tiltyard").write_text("a file where a directory is needed")
    ticket = FileTickets(tmp_path).take(["t"], PATIENCE)
    assert ticket == NoTicket()
    ticket.give_back()


def test_a_lost_session_gives_its_ticket_back(postgres_url: str) -> None:
    records = open_records(postgres_url, durability="os")
    assert isinstance(records, GivesTickets)
    held = records.ticket(["lost"], PATIENCE)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()"
        ).fetchall()
    assert ended
    second = records.ticket(["lost"], PATIENCE)
    second.give_back()
    held.give_back()
    records.close()
