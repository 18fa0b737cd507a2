"""The catalog of a lake: heads of all tables, moved from snapshot to snapshot by transactions."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar

from tiltyard.catalog.lake_values import MAIN, Cut, Publication, Snapshot, TableHead
from tiltyard.catalog.line_identity import is_line, line_in, new_line
from tiltyard.catalog.publishing import ABORTED, COMMITTED, IN_DOUBT, MEMBERS, Published, decide, locks, names_of
from tiltyard.catalog.records import Body, Decide, Found, Records, Writes
from tiltyard.catalog.snapshot_index import SnapshotFloor, cut_at, cut_stride, floor_from, floor_key, snapshots_down_from
from tiltyard.catalog.value_codec import (
    BRANCHES,
    BUCKET,
    LAKE,
    PENDING,
    TABLE_COUNT,
    TABLES,
    cut_key,
    head_from_body,
    head_to_body,
    idempotency_key,
    pending_key,
    pending_prefix,
    snapshot_from_body,
    snapshot_key,
    snapshot_to_body,
    table_key,
    tip_key,
    transaction_key,
)
from tiltyard.errors import ContentionError, NotFound, StorageError, TiltyardError, UnsupportedFeature
from tiltyard.interfaces import CommitQueue, Runtime
from tiltyard.transaction.backoff import wait_before

T = TypeVar("T")

BOOKKEEPING: Final = 4
"""How often bookkeeping is tried that others or a lost answer got in the way of."""
BOOKKEEPING_WAIT: Final = 0.05
"""Seconds; what the wait between two of these tries grows from."""

FORMAT: Final = 2
"""What the records of a lake mean. A higher number than this one is refused.

1: no marks. 2: the root is claimed, and all that the lake makes carries its marks; ``Lake.upgrade`` makes a 1 a 2.
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A version that was committed and has not got its final name yet.

    ``line`` (of the lake's history) and ``location`` (of the table) are empty in records of earlier releases. ``data`` is the version
    itself as base64, where the record keeps it until what is in the store was flushed.
    """

    table: str
    lake_branch: str
    branch: str | None
    version: int
    path: str
    staged: str
    transaction: str
    alone: bool
    line: str = ""
    location: str = ""
    data: str = ""

    @property
    def bytes(self) -> bytes:
        return b64decode(self.data)

    @property
    def key(self) -> str:
        return pending_key(self.table, self.branch, self.version)


QueueSource = Callable[[TableHead, str, str], CommitQueue | None]
"""The queue before a table, by its head, the branch of the lake and who commits; None where there is none."""


def no_queue(head: TableHead, lake_branch: str, author: str) -> CommitQueue | None:
    """None: whoever commits to the table races."""
    return None


class Catalog:
    """The lake's records, by what they mean."""

    decides_here = True
    """Whether decisions are made in this process, so that they can keep bytes (``Publication.data``), and look at what was locked."""

    def __init__(self, records: Records, runtime: Runtime) -> None:
        self.records = records
        self.runtime = runtime
        self.queues: QueueSource = no_queue
        """Where single commits to a table wait for each other; nowhere, unless all of them come to one process."""

    # ---- the lake itself -------------------------------------------------------------------------------------------------------

    def initialize(self, facts: Mapping[str, Any]) -> Body:
        """Makes an empty lake, or finds the one that is there; what it says of itself.

        Raises:
            UnsupportedFeature: a newer release made it.
        """
        now = self.runtime.clock.now().isoformat()

        def make(found: Found) -> Writes[Body]:
            if LAKE in found:
                return Writes(found[LAKE])
            body = {"format": FORMAT, "id": self.runtime.random.uuid(), "created": now, **facts}
            return Writes(body, {LAKE: body, tip_key(MAIN): {"snapshot": 0, "at": now, "line": new_line(body["id"]), TABLE_COUNT: 0}})

        known = self.records.get([LAKE]).get(LAKE) or self.records.transact([LAKE, tip_key(MAIN)], [], make)
        return check_format(known, self.records.url)

    def amend(self, facts: Mapping[str, Any]) -> Body:
        """Changes what the lake says of itself; a fact that is None goes."""

        def change(found: Found) -> Writes[Body]:
            body = {key: value for key, value in {**found.get(LAKE, {}), **facts}.items() if value is not None or key == "root"}
            return Writes(body, {LAKE: body})

        return self.records.transact([LAKE], [], change)

    def describe(self) -> Body | None:
        """What the lake says of itself; None where there is none."""
        known = self.records.get([LAKE]).get(LAKE)
        return None if known is None else check_format(known, self.records.url)

    # ---- cuts ------------------------------------------------------------------------------------------------------------------

    def cut(self, branch: str = MAIN) -> Cut:
        """All tables as they are now, in one read.

        Raises:
            NotFound: there is no such branch.
        """
        found = dict(self.records.scan([tip_key(branch), f"{TABLES}{branch}/", PENDING]))
        tip = found.pop(tip_key(branch), None)
        if tip is None:
            raise NotFound(f"There is no branch {branch!r} in the lake at {self.records.url}.", name=branch)
        # The prefix of one branch's tip may begin that of another's.
        prefix = f"{TABLES}{branch}/"
        heads = [head_from_body(body) for key, body in found.items() if key.startswith(prefix)]
        line = line_in(tip, self.records, branch)
        return Cut(branch, int(tip["snapshot"]), {head.name: head for head in heads}, _unfinished(found), line, names_of(tip))

    def heads(self, tables: Iterable[str], branch: str = MAIN) -> list[TableHead]:
        """Some tables as they are now, by id; those that are there."""
        found = self.records.get([table_key(branch, table) for table in tables])
        return [head_from_body(body) for body in found.values()]

    def cut_at(self, snapshot: int, branch: str = MAIN) -> Cut:
        """All tables as they were right after a snapshot.

        Raises:
            NotFound: there is no such snapshot.
        """
        cut = cut_at(self.records, snapshot, branch)
        # Looked at last: a version that is not among these by now has its name for good.
        return replace(cut, unfinished=_unfinished(dict(self.records.scan([PENDING]))))

    def keep_cut(self, branch: str, snapshot: int, line: str, tables: int | None) -> None:
        """Writes a cut down now and then, so that later ones need not be put together from the beginning. Advice only.

        With many tables that is done less often: it costs as much as there are tables. Nothing is written where the branch is another line
        of history by then.
        """
        bucket, rest = divmod(snapshot + 1, BUCKET)
        if rest or bucket % cut_stride(tables):
            return
        with suppress(TiltyardError):  # whatever goes wrong here, the snapshot is committed
            now = self.cut(branch)
            heads = (now if now.snapshot == snapshot else self.cut_at(snapshot, branch)).tables.values()
            key, begin, tip = cut_key(branch, bucket), BRANCHES + branch, tip_key(branch)

            def decide(found: Found) -> Writes[None]:
                other = branch != MAIN and str(found.get(begin, {}).get("id")) != line
                if key in found or other:
                    return Writes(None)
                put: dict[str, Body] = {key: {"tables": [head_to_body(head) for head in heads]}}
                if tip in found and int(found[tip]["snapshot"]) == snapshot and TABLE_COUNT not in found[tip]:
                    put[tip] = {**found[tip], TABLE_COUNT: len(heads)}
                return Writes(None, put)

            self.records.transact([key, *([tip] if tables is None else [])], [] if branch == MAIN else [begin], decide)

    # ---- history ---------------------------------------------------------------------------------------------------------------

    def history(self, branch: str = MAIN, limit: int | None = None, before: int | None = None) -> Iterator[Snapshot]:
        """Snapshots, newest first, read as far as they are asked for: those before one, at most so many."""
        if limit is not None and limit <= 0:
            return
        tip = self.records.get([tip_key(branch)]).get(tip_key(branch), {})
        newest = int(tip.get("snapshot", 0))
        top = newest if before is None else min(newest, before - 1)
        read = snapshots_down_from(self.records, branch, top, self._begun(branch))
        yield from read if limit is None else islice(read, limit)

    def snapshot(self, snapshot: int, branch: str = MAIN) -> Snapshot:
        key = snapshot_key(branch, snapshot)
        found = self.records.get([key])
        if key not in found:
            raise NotFound(f"There is no snapshot {snapshot} on branch {branch!r}.", name=str(snapshot), advice="See lake.history().")
        return snapshot_from_body(found[key])

    def snapshot_before(self, moment: datetime, branch: str = MAIN) -> int:
        """The last snapshot committed at or before a moment; 0 where there was none. Reads as many records as it halves the history.

        Raises:
            NotFound: what there was then was cleaned up.
        """
        floor = self.floor(branch)
        if floor.at is not None and floor.at > moment:
            raise NotFound(f"The snapshot of {moment.isoformat()} was cleaned up.", name=branch, advice="See lake.history().")
        low, high = max(self._begun(branch), floor.snapshot), self.cut(branch).snapshot
        while low < high:
            middle = (low + high + 1) // 2
            later = self.snapshot(middle, branch).at > moment
            low, high = (low, middle - 1) if later else (middle, high)
        found = self.records.get([snapshot_key(branch, low)]).get(snapshot_key(branch, low), {})
        return int(found["base"]) if found.get("unknown") else low  # the one before a gap that a lost catalog left

    def floor(self, branch: str = MAIN) -> SnapshotFloor:
        """Where the past begins: a cleanup may have forgotten what was before."""
        return floor_from(self.records.get([floor_key(branch)]), branch)

    def _begun(self, branch: str) -> int:
        body = self.records.get([BRANCHES + branch]).get(BRANCHES + branch)
        return 0 if body is None else int(body["snapshot"])

    # ---- transactions ----------------------------------------------------------------------------------------------------------

    def publish(self, publication: Publication, allow: Callable[[Found], None] | None = None) -> Published:
        """Commits all changes of a transaction in one step.

        Args:
            publication: what it does.
            allow: looks at the records that it locked, before they are decided about, and raises where it may not have them.

        Raises:
            StaleError: tables are not where it expects them.
            AbortedError: somebody took it for dead.
            MembersError: members of it were decided by themselves.
            StorageError: with ``maybe_applied`` where the answer was lost; ``outcome`` tells.
        """
        exclusive, shared = locks(publication)
        now = self.runtime.clock.now()

        def decided(found: Found) -> Writes[Published]:
            if allow is not None:
                allow(found)
            return decide(publication, found, now)

        done = self.records.transact(exclusive, shared, decided)
        if not done.replayed:
            self.keep_cut(publication.branch, done.snapshot, publication.line, done.tables)
        return done

    def transaction(self, transaction: str) -> Body | None:
        """The record of a transaction that was decided; None where it was not."""
        key = transaction_key(transaction)
        return self.records.get([key]).get(key)

    def with_key(self, key: str) -> Body | None:
        """The committed transaction that had an idempotency key."""
        return self.records.get([idempotency_key(key)]).get(idempotency_key(key))

    def abort(self, transaction: str) -> bool:
        """Makes sure that a transaction is never committed. False where it was committed before."""
        key = transaction_key(transaction)
        now = self.runtime.clock.now().isoformat()

        def decide(found: Found) -> Writes[bool]:
            if key in found and found[key]["state"] != IN_DOUBT:
                return Writes(found[key]["state"] != COMMITTED)
            return Writes(True, {key: {"state": ABORTED, "at": now}})

        return self._keep_trying([key], decide)

    # ---- versions on their way to their final name -----------------------------------------------------------------------------

    def pending(self, table: str | None = None, branch: str | None = None) -> Sequence[Pending]:
        """Versions that were committed and not finished: of one table, or of all."""
        prefix = PENDING if table is None else pending_prefix(table, branch)
        return [Pending(**body) for _, body in self.records.scan([prefix])]

    def settle(self, finished: Iterable[Pending]) -> None:
        """Notes that versions have their final names."""
        staged = {pending.key: pending.staged for pending in finished}

        def decide(found: Found) -> Writes[None]:
            return Writes(None, delete=[key for key, path in staged.items() if key in found and found[key]["staged"] == path])

        if staged:
            self._keep_trying([*staged], decide)

    def void(self, pending: Pending, maker: str) -> None:
        """Gives a number up to a writer that does not know the catalog and had taken the name: nobody has seen ours.

        The transaction is then undecided again, and may be published on top of theirs. Heads that name the version name theirs now.

        Args:
            pending: our version.
            maker: the table's own transaction that made theirs.
        """
        mine = transaction_key(pending.transaction)
        done = self.transaction(pending.transaction)
        if done is None or done["state"] != COMMITTED:
            return
        at = snapshot_key(pending.lake_branch, int(done["snapshot"]))
        others = [transaction_key(member) for member in done.get(MEMBERS, ())]
        decided = [done, *self.records.get(others).values()] if others else [done]
        gone = [pending.key, mine, *others, *(idempotency_key(body["key"]) for body in decided if "key" in body)]
        heads = [key for key, _ in self.records.scan([TABLES]) if key.endswith(f"/{pending.table}")]

        def decide(found: Found) -> Writes[None]:
            if any(key not in found for key in gone) or found[pending.key]["staged"] != pending.staged:
                return Writes(None)
            theirs = {"transaction": maker, "appends_since": pending.version}
            put = {key: {**found[key], **theirs} for key in heads if key in found and _names(found[key], pending)}
            if at in found and found[at]["transaction"] == pending.transaction:
                put[at] = snapshot_to_body(replace(snapshot_from_body(found[at]), voided=True))
            return Writes(None, put, gone)  # where the snapshot is gone, so is the line that it was on

        self._keep_trying([*gone, at, *heads], decide)

    def quarantine(self, pending: Pending, why: str) -> None:
        """Stops all writing to a table until somebody decides. Another line of that name, or branch of the table, is left alone."""
        key, tip = table_key(pending.lake_branch, pending.table), tip_key(pending.lake_branch)

        def decide(found: Found) -> Writes[None]:
            ours = key in found and found[key].get("branch") == pending.branch and is_line(found, pending.lake_branch, pending.line)
            news = ours and found[key].get("quarantine") != why
            return Writes(None, {key: {**found[key], "quarantine": why}} if news else {})

        self._keep_trying([key], decide, [tip])

    def _keep_trying(self, keys: Sequence[str], decide: Decide[T], shared: Sequence[str] = ()) -> T:
        """Does bookkeeping that may be done twice, so that neither a lost answer nor a busy catalog leaves it open."""
        for attempt in range(BOOKKEEPING):
            try:
                return self.records.transact(keys, shared, decide)
            except (StorageError, ContentionError) as error:
                if isinstance(error, StorageError) and not error.maybe_applied:
                    raise
                last = error
            self.runtime.clock.sleep(wait_before(attempt, BOOKKEEPING_WAIT, self.runtime))
        raise last


def _names(body: Body, pending: Pending) -> bool:
    """Whether a table's head names a version that was pending."""
    return (body.get("branch"), int(body["version"])) == (pending.branch, pending.version)


def _unfinished(found: Found) -> dict[tuple[str, str | None], int]:
    lowest: dict[tuple[str, str | None], int] = {}
    for key, body in found.items():
        if key.startswith(PENDING):
            one = Pending(**body)
            lowest[one.table, one.branch] = min(one.version, lowest.get((one.table, one.branch), one.version))
    return lowest


def check_format(known: Body, url: str) -> Body:
    if int(known.get("format", 0)) > FORMAT:
        raise UnsupportedFeature(f"The lake at {url} has format {known['format']}; this release knows {FORMAT}.", feature="lake format")
    return known
