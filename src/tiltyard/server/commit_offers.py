"""Commits that the server makes for lakes opened by its address: new rows of one table, those who wait in one version.

Each offer is committed by a thread as any commit is, through a queue before its table (``transaction/turns``). Whoever leads takes along
what waits, rows that clients send over the routes for rows included. The catalog decides about all of them in one step, with a record for
each. What the server does not take, or fails with for certain, its client commits by itself: it meets its own conflict there.

The queue orders, and decides nothing. A transaction that is sent twice is at work once here; between two servers, and after a restart, its
record in the catalog and its id in the version tell that it was committed before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from lance_namespace import InvalidInputError

from tiltyard.catalog.catalog import no_queue
from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.marks import base_in
from tiltyard.catalog.server_offers import OfferedCommit
from tiltyard.errors import CorruptTable, OutcomeUnknown, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.format.safe_text import check_text
from tiltyard.lake import Lake
from tiltyard.storage.thread_queue import ThreadQueue
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.group import GROUP, adds_rows
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, transaction_id

MOST_QUEUES: Final = 256
"""Tables whose queues are kept, with what is known of their last versions."""
BY_ITSELF: Final[Mapping[str, Any]] = {"by_itself": True}
_UNKNOWN: Final[Mapping[str, Any]] = {"unknown": True}


class TableQueues:
    """The queues before the tables of one lake, for the commits that this process makes. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: OrderedDict[tuple[str, str | None, str], ThreadQueue] = OrderedDict()

    def of(self, head: TableHead, lake_branch: str, author: str) -> ThreadQueue:
        """The queue before a table; each of its own branches has one, for each line of history that writes to it.

        A fast-forward gives main a table of a branch, with its versions. Who waits on the branch then must not be taken along to main.
        """
        key = head.id, head.branch, head.owner
        with self._lock:
            found = self._queues.get(key) or self._queues.setdefault(key, ThreadQueue())
            self._queues.move_to_end(key)
            if len(self._queues) > MOST_QUEUES:
                self._queues.popitem(last=False)  # who waits in it goes on, and races with those in the next
            return found


@dataclass(frozen=True, slots=True)
class Offered:
    """An offer as it came: the commit, the transaction inside, and who brings it."""

    commit: OfferedCommit
    transaction: Transaction
    author: str


class CommitOffers:
    """Makes the commits that clients offer.

    Args:
        lake: whose tables. Its commits in this process wait for each other from now on.
        threads: how many offers are at work or wait at one moment; a waiting one needs a thread of its own.
    """

    def __init__(self, lake: Lake, threads: int) -> None:
        self._lake = lake
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tiltyard-offers")
        self._lock = threading.Lock()
        self._at_work: dict[str, tuple[Offered, Future[Mapping[str, Any]]]] = {}
        lake.catalog.queues = TableQueues().of

    def close(self) -> None:
        """Waits for all that is at work."""
        self._pool.shutdown(wait=True)
        self._lake.catalog.queues = no_queue

    def read(self, given: Mapping[str, Any], author: str | None) -> Offered:
        """An offer, as far as it can be one.

        Args:
            given: as it was sent.
            author: who brings it; None where the server does not know, and takes their word.

        Raises:
            InvalidInputError: it is malformed, or brings more than new rows.
        """
        try:
            commit = OfferedCommit.from_body(given)
            transaction = Transaction.from_bytes(commit.transaction, "the offer")
        except (KeyError, TypeError, ValueError, CorruptTable) as error:
            raise InvalidInputError("The request is malformed: it is not a request for a commit.") from error
        if not adds_rows(transaction) or GROUP in transaction.properties:
            raise InvalidInputError("Only a commit that adds rows can be requested here.")
        return Offered(commit, transaction, check_text(commit.author, "The author", "author") if author is None else author)

    def submit(self, offered: Offered, allow: Callable[[], None]) -> Future[Mapping[str, Any]]:
        """Begins with an offer, or finds it at work already; what becomes of it.

        Args:
            offered: what is to be committed.
            allow: raises where its client may not have it any more.
        """

        clock = self._lake.catalog.runtime.clock
        came = clock.monotonic()

        def work() -> Mapping[str, Any]:
            try:
                allow()
                left = offered.commit.seconds - (clock.monotonic() - came)
                return self._committed(offered, left) if left > 0 else BY_ITSELF
            finally:
                with self._lock:
                    del self._at_work[name]

        name = offered.transaction.uuid
        with self._lock:
            if (there := self._at_work.get(name)) is not None:
                # Two transactions of one id would both be in a version, and be told apart by nobody.
                return there[1] if there[0] == offered else _done(BY_ITSELF)
            begun = self._pool.submit(work)
            self._at_work[name] = offered, begun
            return begun

    def _committed(self, offered: Offered, seconds: float) -> Mapping[str, Any]:
        """Commits an offer within some seconds, by itself or together with others. What fails for certain is left to its client."""
        commit, transaction = offered.commit, offered.transaction
        try:
            head = next(iter(self._lake.catalog.heads([commit.table], commit.lake_branch)), None)
            if head is None or (head.branch, head.owner) != (commit.branch, commit.line):
                return BY_ITSELF
            access = self._lake.signed(offered.author).access_of(head, commit.lake_branch, base=base_in(transaction.properties))
            scheme, committer = Scheme(head.naming), access.committer
            kept = committer.recent.kept(transaction.read_version)
            read = access.load(transaction.read_version, scheme, lazily=True) if kept is None else kept.file
            if transaction_id(read) != transaction.properties.get(PARENT):
                return BY_ITSELF  # it was built on another version of that number
            access.store.sync(new_files(transaction.operation, None))
            done, _ = committer.commit(transaction, read, scheme, RetryPolicy(deadline=seconds))
        except OutcomeUnknown:
            return _UNKNOWN
        except TiltyardError:
            return BY_ITSELF
        durable = self._lake.where.storage.durability == "fsync"
        return {"version": done.version, "durable": durable, "transaction_id": transaction.uuid}


def _done(answer: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
    future: Future[Mapping[str, Any]] = Future()
    future.set_result(answer)
    return future
