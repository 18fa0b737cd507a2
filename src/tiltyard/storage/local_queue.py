"""The queue of writers before one table of a local file system: whoever leads may commit for those who wait.

The lead is a lock on the directory of the versions, which the system frees when its holder dies. Who cannot have it joins the queue
with a seat of its own (``queue_seats``), a file that is locked as long as its writer lives. Answers and wake-ups come as datagrams; one
that is lost costs a short wait, because everybody looks for the lead from time to time. Nothing here keeps the table right: that is done
by the creation of a version's name alone. So a queue that cannot be used, or a leader that hangs, slows writers down and does no more.
"""
# System calls on strings, counted: see files.py.
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tiltyard.interfaces import NOT_TAKEN, Offer
from tiltyard.storage.files import overwrite
from tiltyard.storage.paths import TEMPORARY_PREFIX
from tiltyard.storage.queue_seats import DOTS, WAITING, Seat, Seats, read_entry, seat_of, send, transaction_of, vacate
from tiltyard.storage.strangers import Strangers

QUEUE: Final = "_tiltyard/queue"
"""Its entries have temporary names: no listing shows them, and a cleanup takes those of the dead."""
_NOTE: Final = f"{TEMPORARY_PREFIX}.note"
_IN_A_LOOP: Final = 3
"""Commits after which a process looks out for strangers."""
_NEXT_COMES: Final = (0.002, 0.016)
"""Seconds that a leader waits for one more of those who were here with the last version, counted from the one before: at first, and at
most, where processors are busy and all take longer to come back."""
_GATHERED: Final = 10
"""So many times as long it waits in all,"""
_LONGEST_GATHERING: Final = 0.06
"""but after so many seconds for nobody."""
_PAUSE: Final = 0.0003
_GATHERING: Final = 0.0001
"""Seconds between two looks at the queue: a leader waits for as long in vain, on average, and so do all who are there."""
_FIRST_LOOK: Final = 0.004
"""Seconds after which one who waits looks for the lead for the first time while nobody says anything."""
_BACK_AT_ONCE: Final = 0.002
"""Who came back that soon after its last turn is a writer in a loop, and leads again before another could be woken."""
_EVEN: Final = 0.5
_ROOM: Final = 3.0
"""The room that it leaves at most, in times that a version takes."""
_ROOM_FOR_ONE: Final = (0.015, 0.12)
"""Seconds that it leaves at least where a stranger is known to be there, and more if he comes too late for it; room ends as soon as he used
it."""
_ROOM_FOR_A_LOSER: Final = (0.04, 0.32)
"""The same where one was beaten just now, twice as much while he does not use it, and then from the beginning: pylance tries again after up
to three times as long as its first attempt took and, each time that it is beaten, after up to twice as long as before."""
_LONGEST_ROOM: Final = 2.0
_LONGEST_MESSAGE: Final = 128
_DURABLE: Final = "durable"
"""As a word of an answer: the version was flushed."""
_STAYS: Final = "stays"
"""As a word of an answer: its sender is about to lead again."""
_MOST_BYTES: Final = 2**20
"""No offer is larger; whoever brings more commits it alone."""


_threads: Final = threading.local()


def _led_here() -> set[str]:
    """The tables that this thread leads."""
    found: set[str] | None = getattr(_threads, "led", None)
    if found is None:
        found = _threads.led = set()
    return found


class LocalQueue:
    """The queue of one table. Threads may share it: each commit takes a place of its own."""

    look_every = 0.02
    """Seconds between two looks for the lead while nobody says anything."""
    seldom = 256
    """After so many commits a leader leaves room for strangers, even if none came in the last room."""
    takes_rows = True
    """Whether writers may leave it to the leader to write their rows."""
    longest_lead = 16
    """So many turns in a row a writer in a loop leads: it knows the last version, which the next one has to read. Then another one does,
    so that all get on evenly."""

    def __init__(self, root: str, *, durable: bool = False) -> None:
        self._root = root
        self.durable = durable
        """Whether versions that are made here survive a power loss once their commit returns."""
        self.directory = f"{root}/{QUEUE}"
        self.seats = Seats(self.directory)
        """What those who wait are seen by, kept for the next commits."""
        self.hangs = False
        """Whether the last who waited here gave up: then nobody waits long until somebody leads again."""
        self.company = 0
        """How many others were committed with the last two versions that we know of."""
        self.turns = 0
        """How many commits of this process looked into the queue."""
        self.seen: dict[str, int] = {}
        """Whose transactions were committed by the last two of them, by seat, and by which of them."""
        self.turns_in_a_row = 0
        """How many commits of this process led since somebody else did, as far as we know."""
        self.left = float("-inf")
        """When it last gave up the lead."""
        self.in_a_loop = False
        """Whether it came back at once the last time."""
        self.expected = 0.0
        """Until when somebody else, who has just committed for us, is expected to lead again."""
        self.patience = _NEXT_COMES[0]
        """Seconds that are waited for one more of the company."""
        self.room_every = self.seldom
        """After how many commits that went through this process room is left for writers who know nothing of the queue."""
        self.until_room = self.seldom // 4
        """How many of them are left until then."""
        self.lasted = 0.0
        """Seconds that the last version of ours took."""
        self.commits = 0
        """How many commits of this process led."""
        self.strangers: Strangers | None = None
        """Tells of those who were beaten, once this process is a writer in a loop, whom others may starve beside."""
        self.room_for_one, self.room_for_a_loser = _ROOM_FOR_ONE[0], _ROOM_FOR_A_LOSER[0]
        """Seconds that are left to a stranger."""

    @property
    def stays(self) -> bool:
        """Whether one who leads is about to lead again."""
        return self.in_a_loop and self.turns_in_a_row + 1 < self.longest_lead

    def waited_for(self) -> int:
        """How many of the company a leader waits for: half. The others come while it catches up, or write while it commits."""
        return (self.company + 1) // 2

    def learn(self, late: bool) -> None:
        """After a turn for which some of the company had not come: who came during it would have been taken along by waiting longer."""
        least, most = _NEXT_COMES
        self.patience = min(2 * self.patience, most) if late else max(self.patience / 2, least)

    def place(self, transaction_id: str, since: float) -> LocalPlace:
        return LocalPlace(self, self._root, transaction_id, since)


@dataclass(slots=True)
class LocalPlace:
    """One commit before the table."""

    queue: LocalQueue
    root: str
    transaction_id: str
    since: float
    leads: bool = False
    _lock: int = -1
    _seat: Seat | None = None
    """Ours since we joined."""
    _offers: dict[str, str] = field(default_factory=dict)
    """By transaction id the entries that were offered to us."""
    _begun: float = 0.0
    """When we began to commit, after all who were waited for had come."""
    _missing: bool = False
    """Whether we began before enough of them had."""
    _there: frozenset[str] = frozenset()
    """The entries that were in the queue when we looked."""
    _yields: bool = False
    """Whether it is for another one to lead, though the lead is free."""
    _newest: Callable[[], int] | None = None
    """Tells the newest version, until a stranger was left room by this commit."""
    safe: bool = True
    """Whether the version that we were told of is as safe from a power loss as one of our own."""

    @property
    def hangs(self) -> bool:
        return self.queue.hangs

    # ---- the lead --------------------------------------------------------------------------------------------------------------

    def lead(self) -> bool:
        """Takes the lead if it is free, and not for another one to have."""
        queue = self.queue
        try:
            if self._lock < 0:
                self._lock = os.open(f"{self.root}/_versions", os.O_RDONLY | os.O_CLOEXEC)
                now = time.monotonic()
                queue.in_a_loop = now - queue.left < _BACK_AT_ONCE
                if 0 < queue.longest_lead <= queue.turns_in_a_row:
                    queue.turns_in_a_row, self._yields = 0, bool(self._entries())
                if self._yields or now < queue.expected:
                    self._yields = True
                    return False
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            queue.turns_in_a_row = 0
            return False
        self.leads, self.queue.hangs, self._begun = True, False, time.monotonic()
        _led_here().add(self.root)
        return True

    def meet_strangers(self, share: float) -> None:
        """While strangers commit too, each version of ours leaves room for one of theirs, unless they have their share without."""
        self.queue.room_every, self.queue.until_room = 1, 1 if share < _EVEN else 2 + self.queue.company

    def leave(self) -> None:
        """Gives up the lead or the wait; the next in the queue learns of it."""
        if self._seat is not None:
            self.queue.seats.give_back(self._seat)
            self._seat = None
        if self._lock >= 0:
            led, self.leads = self.leads, False
            lock, self._lock = self._lock, -1
            if led:
                self.queue.lasted = time.monotonic() - self._begun
                _led_here().discard(self.root)
                waiting = self._entries()
                if self._missing:
                    self.queue.learn(bool(waiting))
                self.queue.left = time.monotonic()
                self.queue.turns_in_a_row += bool(self._there)
                fcntl.flock(lock, fcntl.LOCK_UN)  # said aloud: a child forked meanwhile may keep the same open file
                for name in self._to_be_woken(waiting) if waiting else ():
                    if send(name, b""):
                        break
            os.close(lock)

    def _to_be_woken(self, waiting: list[str]) -> list[str]:
        """Those of whom the first is to lead next: one whom we did not take along, if there is one.

        Nobody, where we are about to lead again and take along all who wait. If we do not, they lead as soon as they look for it.
        """
        queue = self.queue
        if passed_over := [name for name in waiting if name in self._there]:
            queue.turns_in_a_row = queue.longest_lead
            # Other threads of this process leave the lead alone as well: they bring what we do, and would pass over the same ones.
            queue.expected = time.monotonic() + _BACK_AT_ONCE if queue.longest_lead else 0.0
            return passed_over
        return [] if self._there and queue.in_a_loop and queue.turns_in_a_row < queue.longest_lead else waiting

    # ---- waiting ---------------------------------------------------------------------------------------------------------------

    def join(self, data: bytes) -> bool:
        """Joins the queue, with a transaction that others may commit if there is one; False where there is no queue to join.

        Its files are announced by the leader, whose transaction names them before it commits them.
        """
        # Without a table there is nothing to wait for, and nobody can wait for oneself: whoever leads may commit from within.
        if self._lock < 0 or len(data) > _MOST_BYTES or self.root in _led_here():
            return False
        try:
            self._seat = self.queue.seats.take(self.since, self.transaction_id, data)
        except OSError:
            return False
        return True

    def wait(self, seconds: float) -> int | None:
        """Waits for an answer: the version that we were committed with, ``NOT_TAKEN``, or None when the lead is ours or time is up."""
        assert self._seat is not None
        until = time.monotonic() + seconds
        ready = select.poll()
        ready.register(self._seat.box, select.POLLIN)
        pause = _FIRST_LOOK if self._yields else 0.0  # an answer that came already spares us the lead
        next_pause = _FIRST_LOOK
        while True:
            if ready.poll(1000 * pause):
                answer = self._read()
                if answer is not None:
                    self.queue.hangs = False
                    return answer
                pause = 0.0
                continue
            if self.lead():
                # Whoever led answered before it left: what is for us is in the box by now, even if it came after we had looked there.
                while ready.poll(0):
                    answer = self._read()
                    if answer not in (None, NOT_TAKEN):
                        self._begun -= self.queue.lasted  # no version of ours was made
                        return answer
                return None
            pause, next_pause = min(until - time.monotonic(), next_pause), self.queue.look_every
            if pause <= 0:
                self.queue.hangs = True
                return None

    def _read(self) -> int | None:
        """What a message says to this transaction; one that is merely a wake-up, or meant for another, says nothing."""
        assert self._seat is not None
        message = self._seat.box.recv(_LONGEST_MESSAGE).decode("ascii", "replace")
        transaction_id, version, company, *told = message.split(" ") if message.count(" ") > 1 else ("", "", "")
        if transaction_id != self.transaction_id or not version.isdecimal() or len(version) >= 20:
            return None
        self.queue.company = int(company) if company.isdecimal() and len(company) < 4 else 0
        self.queue.expected = time.monotonic() + _BACK_AT_ONCE if _STAYS in told else 0.0
        self.safe = not self.queue.durable or _DURABLE in told
        self._seat.entry = ""  # who answers takes it out first
        return int(version)

    # ---- leading ---------------------------------------------------------------------------------------------------------------

    def gather(self, newest: Callable[[], int]) -> None:
        """Waits for those who were here a moment ago: writers in a loop are about to come back, and one version does for all."""
        self.queue.until_room -= 1 + self.queue.company
        self._newest = newest
        self.queue.commits += 1
        if self.queue.commits == _IN_A_LOOP:
            self.queue.strangers = Strangers(f"{self.root}/_versions")
        if self.queue.until_room <= 0:
            self._leave_room(newest)
        patience, now = self.queue.patience, time.monotonic()
        end, next_comes, seen = now + min(_GATHERED * patience, _LONGEST_GATHERING), now + patience, 0
        own = self._seat is not None and bool(self._seat.entry)  # who comes from the queue still has an entry of his own
        enough = self.queue.waited_for()
        while (there := len(self._entries()) - own) < enough and now < min(end, next_comes):
            if there > seen:
                seen, next_comes = there, now + patience
            time.sleep(_GATHERING)
            now = time.monotonic()
        self._missing = there < enough
        self._begun = now

    def _leave_room(self, newest: Callable[[], int], *, beaten: bool = False) -> None:
        """Lets a stranger commit first, if one is there; who needs longer than our leaders, and knows of no queue, would never win else.

        Those of ours who come meanwhile join the queue, and are in the next version. Not each change ends it: a stranger who was beaten
        takes away what he had written, and one who won leaves a hint.
        """
        queue = self.queue
        self._newest = None
        least = queue.room_for_one if queue.room_every == 1 else 0.0
        if beaten:
            least = max(queue.room_for_a_loser, 2 * queue.room_for_one)
            queue.room_every = 1
            queue.room_for_one = min(2 * queue.room_for_one, _ROOM_FOR_ONE[1])
            queue.room_for_a_loser *= 2 if queue.room_for_a_loser < _ROOM_FOR_A_LOSER[1] else _ROOM_FOR_A_LOSER[0] / _ROOM_FOR_A_LOSER[1]
        queue.until_room = queue.room_every = min(2 * queue.room_every, queue.seldom)
        begun = time.monotonic()
        until = begun + min(max(_ROOM * queue.lasted, least), _LONGEST_ROOM)
        before, head = self._last_change(), newest()
        while time.monotonic() < until:
            if (now := self._last_change()) != before:
                if newest() > head:
                    queue.room_for_one = min(max(2 * (time.monotonic() - begun), _ROOM_FOR_ONE[0]), _ROOM_FOR_ONE[1])
                    queue.room_for_a_loser = _ROOM_FOR_A_LOSER[0]
                    return
                before = now
            time.sleep(_PAUSE)

    def _last_change(self) -> int:
        """When somebody last created a file beside the versions: as long as we lead, no one of the queue does."""
        try:
            return os.stat(f"{self.root}/_versions").st_mtime_ns
        except OSError:
            return 0

    def offers(self, most: int) -> list[Offer]:
        """What waits to be committed, those first who wait longest; entries of the dead go.

        If a stranger was beaten just now, he goes first.
        """
        found: list[Offer] = []
        if self._newest is not None and self.queue.strangers is not None and self.queue.strangers.were_beaten():
            self._leave_room(self._newest, beaten=True)
        if self._seat is not None:
            self._seat.withdraw()
        queue, waiting = self.queue, self._entries()
        queue.turns += 1
        queue.seen = {seat: turn for seat, turn in queue.seen.items() if turn >= queue.turns - 1}
        queue.company = len(queue.seen)
        self._there = frozenset(waiting)
        for name in waiting:
            data = read_entry(self.queue.directory, name, _MOST_BYTES)
            if data:
                self._offers[transaction_of(name)] = name
                found.append(Offer(transaction_of(name), data))
                if len(found) == most:
                    break
        return found

    def _entries(self) -> list[str]:
        """The names of those who wait, those first who have waited longest."""
        try:
            names = os.listdir(self.queue.directory)
        except OSError:
            return []
        return sorted(name for name in names if name.startswith(WAITING) and name.count(".") == DOTS)

    def tell(self, data: bytes) -> None:
        """Leaves a note, written over the last one: who reads meanwhile may see some of both, and has to check."""
        with suppress(OSError):
            overwrite(f"{self.queue.directory}/{_NOTE}", data)

    def told(self) -> bytes:
        try:
            with open(f"{self.queue.directory}/{_NOTE}", "rb", buffering=0) as file:
                return file.readall()
        except OSError:
            return b""

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        """Tells one who waits which version has its transaction; without one, that it has to commit by itself."""
        name = self._offers.pop(transaction_id, None)
        if name is not None:
            queue = self.queue
            if version != NOT_TAKEN:
                queue.seen[seat_of(name)] = queue.turns
                queue.company = len(queue.seen)
            vacate(queue.directory, name)
            company = len(queue.seen.keys() | set(map(seat_of, self._offers.values())))
            durable, stays = _DURABLE if queue.durable else "-", _STAYS if version != NOT_TAKEN and queue.stays else "-"
            send(name, f"{transaction_id} {version} {company} {durable} {stays}".encode())
