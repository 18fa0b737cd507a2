"""The queue of writers before one table within this process, for stores that several machines share: object stores, and memory.

Threads and handles meet here. Whoever leads commits for those who wait, so that one process is one writer to all others. As with every
queue nothing rests on it: who waits too long goes on alone, and the creation of a version's name decides.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import insort
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from tiltyard.interfaces import NOT_TAKEN, CommitQueue, ObjectStore, Offer
from tiltyard.storage.cloud import CloudStore
from tiltyard.storage.local import LocalStore
from tiltyard.storage.local_queue import LocalQueue
from tiltyard.storage.machine_queue import MachineQueue, machine_queue
from tiltyard.storage.memory import MemoryStore

_MOST_BYTES: Final = 2**20
"""No offer is larger; whoever brings more commits it alone."""


class ThreadQueue:
    """The queue of one table.

    Attributes:
        hangs: whether the last who waited here gave up.
        slowness: how many times as long as on a local disk a turn takes: requests may be repeated for half a minute.
        shared: what its members leave for each other, by name.
    """

    slowness = 15.0

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self.lock = threading.Lock()
        self.leader: ThreadPlace | None = None
        self.waiting: list[ThreadPlace] = []
        self.hangs = False
        self.shared: dict[str, Any] = {}

    def place(self, transaction_id: str, since: float) -> ThreadPlace:
        if self._process != os.getpid():  # forked: who leads or waits does so in the parent
            self._start()
        return ThreadPlace(self, transaction_id, since)


class ThreadPlace:
    """One commit before the table."""

    def __init__(self, queue: ThreadQueue, transaction_id: str, since: float) -> None:
        self.queue = queue
        self.transaction_id = transaction_id
        self.since = since
        self.thread = threading.get_ident()
        self.data = b""
        self._answer: int | None = None
        self._called = threading.Event()

    def __lt__(self, other: ThreadPlace) -> bool:
        return self.since < other.since

    @property
    def leads(self) -> bool:
        return self.queue.leader is self

    @property
    def hangs(self) -> bool:
        return self.queue.hangs

    def lead(self) -> bool:
        """Takes the lead if it is free. Who leaves hands it to the first who waits, so that nobody who comes later gets ahead."""
        queue = self.queue
        with queue.lock:
            if queue.leader is None:
                self._take_lead()
            return queue.leader is self

    def _take_lead(self) -> None:
        queue = self.queue
        queue.leader, queue.hangs = self, False
        if self in queue.waiting:
            queue.waiting.remove(self)

    def leave(self) -> None:
        """Gives up the lead or the wait."""
        queue = self.queue
        with queue.lock:
            if self in queue.waiting:
                queue.waiting.remove(self)
            if queue.leader is self:
                queue.leader = None
                if queue.waiting:
                    following = queue.waiting[0]
                    following._take_lead()
                    following._called.set()

    # ---- waiting ---------------------------------------------------------------------------------------------------------------

    def join(self, data: bytes) -> bool:
        """Joins the queue; False for one who leads and commits from within, since nobody can wait for oneself.

        Its files are announced by the leader, whose transaction names them before it commits them.
        """
        queue = self.queue
        with queue.lock:
            if len(data) > _MOST_BYTES or (queue.leader is not None and queue.leader.thread == threading.get_ident()):
                return False
            self.data, self._answer = data, None
            self._called.clear()
            insort(queue.waiting, self)
        return True

    def wait(self, seconds: float) -> int | None:
        """Waits for an answer: the version that we were committed with, ``NOT_TAKEN``, or None when the lead is ours or time is up."""
        until = self._now() + seconds
        while True:
            with self.queue.lock:
                answer, self._answer = self._answer, None
                if answer is not None:
                    self.queue.hangs = False
                    return answer
                if self.queue.leader is None:
                    self._take_lead()
                if self.queue.leader is self:
                    return None
                self._called.clear()
            if not self._pause(until - self._now()):
                with self.queue.lock:
                    if self._answer is None and self.queue.leader is not self:
                        self.queue.hangs = True
                        return None

    def _now(self) -> float:
        return time.monotonic()

    def _pause(self, seconds: float) -> bool:
        """Sleeps until somebody calls us; whether somebody did before time was up."""
        return self._called.wait(max(seconds, 0.0))

    # ---- leading ---------------------------------------------------------------------------------------------------------------

    def meet_strangers(self, share: float) -> None:
        """Nothing: a table in memory has none."""

    def gather(self, newest: Callable[[], int]) -> None:
        """Waits for nobody: those who come while a file is on its way are seen after it."""

    def offers(self, most: int) -> list[Offer]:
        """What waits to be committed, those first who wait longest."""
        with self.queue.lock:
            return [Offer(place.transaction_id, place.data) for place in self.queue.waiting if place.data][:most]

    def tell(self, data: bytes) -> None:
        """Nothing: what a leader knows is in ``shared``."""

    def told(self) -> bytes:
        return b""

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        """Tells one who waits which version has its transaction; without one, that it has to commit by itself."""
        queue = self.queue
        with queue.lock:
            found = next((place for place in queue.waiting if place.transaction_id == transaction_id), None)
            if found is not None:
                queue.waiting.remove(found)
                found._answer = version
                found._called.set()


_by_store: Final[WeakKeyDictionary[ObjectStore, ThreadQueue]] = WeakKeyDictionary()
_by_place: Final[WeakValueDictionary[str, ThreadQueue | MachineQueue]] = WeakValueDictionary()
_queues_lock: Final = threading.Lock()


def queue_of(store: ObjectStore) -> CommitQueue | None:
    """The queue of writers before a table; None where its store has none, as a store around another one."""
    if type(store) is LocalStore:
        return LocalQueue(store.uri, durable=store.durability == "fsync")
    with _queues_lock:
        if type(store) is CloudStore:
            found = _by_place.get(store.identity)
            if found is None:
                found = _by_place[store.identity] = machine_queue(store.identity) or ThreadQueue()
            return found
        if type(store) is MemoryStore:
            return _by_store.setdefault(store, ThreadQueue())
    return None
