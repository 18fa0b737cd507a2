"""Commits that a server makes for its clients: new rows of one table are offered to it, and it puts those who wait into one version.

The files are written before, by the client. What is sent is the table's own transaction, which the server commits as if it were its own,
together with others that wait (``transaction/group``). The client then looks into the version, as every member of a group does.

A server that does not take the offer says so, and has done nothing: the client commits it by itself, and meets its conflict, if there is
one, itself. Where the answer was lost the offer is sent once more, since a transaction is never committed twice. If that fails as well the
client goes on by itself, and whatever it meets then leaves its outcome open (``transaction/turns``): nobody takes back an offer
that a server has, so it may be in any later version.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.server_link import ServerLink
from tiltyard.errors import StorageError, TiltyardError
from tiltyard.interfaces import NOT_TAKEN, Offer, system_runtime
from tiltyard.transaction.group import adds_rows
from tiltyard.transaction.new_files import LOOK_AFTER
from tiltyard.transaction.transaction import Transaction

OFFER: Final = "/tiltyard/v1/catalog/offer"
MOST_BYTES: Final = 2**20
"""No offer is larger; whoever brings more commits it alone."""
_SENT: Final = 2
"""How often an offer is sent whose answer was lost."""
LONGEST: Final = 30.0
"""Seconds for which a server tries at most; the client goes on by itself then."""


@dataclass(frozen=True, slots=True)
class OfferedCommit:
    """New rows of one table, for a server to commit.

    Attributes:
        table, name: which one, and what it was called.
        lake_branch: the branch of the lake.
        branch: the table's own branch there.
        line: id of the line of history that writes to it.
        author: who commits; a server that knows its clients knows better.
        transaction: the table's own transaction, as bytes.
        seconds: for which the server may try.
    """

    table: str
    name: str
    lake_branch: str
    branch: str | None
    line: str
    author: str
    transaction: bytes
    seconds: float = field(default=LONGEST, compare=False)

    def to_body(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("table", "name", "lake_branch", "branch", "line", "author", "seconds")}
        return {**facts, "transaction": base64.b64encode(self.transaction).decode()}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> OfferedCommit:
        """Raises ``TypeError``, ``KeyError`` or ``ValueError`` where it is none."""
        data = base64.b64decode(str(body["transaction"]), validate=True)
        if len(data) > MOST_BYTES:
            raise ValueError("it is larger than a commit request may be")
        seconds = min(float(body.get("seconds", LONGEST)), LONGEST)
        if not seconds >= 0:
            raise ValueError("seconds must be 0 or more")
        branch = None if body["branch"] is None else str(body["branch"])
        table, name, lake_branch, line, author = (str(body[key]) for key in ("table", "name", "lake_branch", "line", "author"))
        return cls(table, name, lake_branch, branch, line, author, data, seconds)


class ServerQueue:
    """The queue before a table of a lake behind a server, which always leads.

    Args:
        link: to the server.
        head: the table.
        lake_branch: the branch of the lake.
        author: who commits, where the server does not know its clients.

    Attributes:
        slowness: how many times as long as on a local disk a turn takes: as for the queue at the server.
    """

    slowness = 15.0

    def __init__(self, link: ServerLink, head: TableHead, lake_branch: str, author: str) -> None:
        self.link, self.head, self.lake_branch, self.author = link, head, lake_branch, author

    def place(self, transaction_id: str, since: float) -> ServerPlace:
        return ServerPlace(self, since)


class ServerPlace:
    """One commit that is offered to the server.

    Attributes:
        safe: whether what the server makes survives a power loss.
        keeps: whether the server may commit it at any later time, once it has it.
        refuses_for_certain: whether ``NOT_TAKEN`` says that it was not committed. A leader of a queue on a disk that says so may know
            nothing of another one who died.
    """

    leads = False
    hangs = False
    keeps = True
    refuses_for_certain = True

    def __init__(self, queue: ServerQueue, since: float) -> None:
        self._queue, self._since = queue, since
        self._offer = b""
        self.safe = True

    def lead(self) -> bool:
        return False

    def join(self, data: bytes) -> bool:
        """Whether the server may make the commit: it takes new rows, whose files no cleanup can have taken for orphans yet."""
        if system_runtime().clock.monotonic() - self._since >= LOOK_AFTER:
            return False  # who commits them looks for them, and the server does not know that it must
        if not data or len(data) > MOST_BYTES or not adds_rows(Transaction.from_bytes(data)):
            return False
        self._offer = data
        return True

    def wait(self, seconds: float) -> int | None:
        """The version that the server committed it with, ``NOT_TAKEN``, or None where nobody knows what it did.

        Who comes again did not find itself in that version, and is told nothing more: it looks by itself.
        """
        queue, head, data = self._queue, self._queue.head, self._offer
        if not data:
            return None
        self._offer, lost = b"", False
        offer = OfferedCommit(head.id, head.name, queue.lake_branch, head.branch, head.owner, queue.author, data, seconds)
        for _ in range(_SENT):
            try:
                told = queue.link.post(OFFER, offer.to_body())
            except StorageError as error:
                lost |= error.maybe_applied
                continue
            except TiltyardError:
                return None if lost else NOT_TAKEN  # refused, as the commit itself will be
            if "version" in told:
                self.safe = bool(told.get("durable"))
                return int(told["version"])
            return None if lost or "unknown" in told else NOT_TAKEN
        return None if lost else NOT_TAKEN

    def leave(self) -> None:
        """Nothing: whoever has its answer is in no queue."""

    def meet_strangers(self, share: float) -> None:
        """Nothing: the server sees to it that nobody starves."""

    def gather(self, newest: Callable[[], int]) -> None:
        """Nothing: the server leads."""

    def offers(self, most: int) -> list[Offer]:
        return []

    def tell(self, data: bytes) -> None:
        """Nothing: the server knows what it made."""

    def told(self) -> bytes:
        return b""

    def answer(self, transaction_id: str, version: int = NOT_TAKEN) -> None:
        """Nothing: the server answers."""
