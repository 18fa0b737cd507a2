"""Batches: whoever has the turn at a table commits what others offer who wait for it, in one step of the catalog, with its own.

The leader is a member like any other, and the batch has an id of its own, below which lies what is staged for it. Members are taken in the
order in which they came, each on top of those before it; who does not fit is left out, keeps its place, and finds its turn or its conflict
by itself. Each member but the leader writes to a table of the leader's, so that one version tells of all.

Nobody is told that it is committed: members are told to look at their records (``batch_members``). Whatever goes wrong here before the
decision costs time and no more; after it the records tell.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tiltyard.catalog.batch_offers import BatchOffer, columns_of
from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.lake_values import Change, Publication, SnapshotMember, TableHead, VersionStep
from tiltyard.catalog.line_identity import differs, is_line, owns
from tiltyard.catalog.marks import Says
from tiltyard.catalog.publishing import AbortedError, ExpiredError, MembersError, StaleError, is_alone, names_of
from tiltyard.catalog.records import Found, ShowsOffers
from tiltyard.catalog.value_codec import PROTECTED, head_from_body, idempotency_key, name_key, table_key, tip_key, transaction_key
from tiltyard.errors import StorageError, TiltyardError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.lakes.finishing import adopt_foreign, finish, load_head
from tiltyard.storage.external import ExternalStore
from tiltyard.transaction.new_files import LOOK_AFTER, check_there, is_missing, new_files
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.staged_access import StagedAccess, staged_access

if TYPE_CHECKING:
    from tiltyard.lake import Lake

MOST_MEMBERS: Final = 64
_TRIES: Final = 3
"""How often a batch is put together anew, after others were faster or members were decided; then the leader goes on alone."""

_log = logging.getLogger("tiltyard.lake")


class BatchPlan:
    """Who is in a batch, and how each table gets its next version, as far as records tell that were read at one moment.

    Args:
        leader: what whoever has the turn wants to commit.
        found: the records of ``keys_of``.
    """

    def __init__(self, leader: Publication, found: Found) -> None:
        self.members: list[BatchOffer] = []
        self.heads: dict[str, TableHead] = {}
        self.folded: set[str] = set()
        """Tables that get one version with the new rows of all who write to them; others get those that their one writer staged."""
        self.writers: dict[str, list[BatchOffer]] = {}
        self._leader, self._found, self._keys = leader, found, set[str]()
        self._tip = found.get(tip_key(leader.branch), {})

    def take(self, offer: BatchOffer) -> bool:
        """Takes somebody in on top of all before, if it fits."""
        publication = offer.publication
        if not self._is_open(publication) or not self._reads_hold(publication):
            return False
        if any(publication.transaction == member.transaction for member in self.members):
            return False  # it stands in the line a second time: interrupted, it could not take its first ticket back
        if self.members and not any(change.table in self._tables_of(self.members[0]) for change in publication.changes):
            return False
        folded = set()
        for change in publication.changes:
            way = self._is_folded(offer, change)
            if way is None:
                return False
            folded |= {change.table} if way else set()
        self.folded |= folded
        for change in publication.changes:
            self.writers.setdefault(change.table, []).append(offer)
        self.members.append(offer)
        self._keys |= set() if publication.key is None else {publication.key}
        return True

    def _tables_of(self, offer: BatchOffer) -> set[str]:
        return {change.table for change in offer.publication.changes}

    def _is_open(self, publication: Publication) -> bool:
        """Whether nothing is decided about it yet, and the branch lets all write that is there."""
        leader, found, key = self._leader, self._found, publication.key
        if not self._tip or PROTECTED in self._tip or (publication.branch, publication.line) != (leader.branch, leader.line):
            return False
        if not is_line(found, publication.branch, publication.line) or publication.base < int(self._tip.get("expired", 0)):
            return False
        if transaction_key(publication.transaction) in found or key in self._keys:
            return False
        return key is None or idempotency_key(key) not in found

    def _reads_hold(self, publication: Publication) -> bool:
        """Whether what it read is as it was, and nobody before it in the batch writes to it."""
        if publication.names is not None and publication.names != names_of(self._tip):
            return False
        if any(name_key(publication.branch, name) in self._found for name in publication.absent):
            return False
        for read in publication.reads:
            head = self._head(read.table)
            if head is None or head.name != read.name or (read.level in ("rows", "table") and read.table in self.writers):
                return False
            if (read.level == "rows" and head.data_version != read.data_version) or (read.level == "table" and head.version != read.base):
                return False
        return True

    def _is_folded(self, offer: BatchOffer, change: Change) -> bool | None:
        """Whether its new rows go into one version with those of others, or its own versions are taken; None where neither can be."""
        head, leader, before = self._head(change.table), self._leader, self.writers.get(change.table, [])
        if head is None or head.quarantine or (change.read or change.base) < head.refused:
            return None
        built_on = head.version == change.base and not differs(change, head, leader.branch, leader.line)
        if built_on and not before:
            return False
        several = [*before, offer]
        if any(change.table not in each.rows for each in several) or len({each.rows[change.table].columns for each in several}) > 1:
            return None
        in_place = (change.branch or head.branch) == head.branch and owns(head, leader.branch, leader.line)
        follows = built_on or (head.version > change.base and head.only_appended(change.base))
        return True if in_place and follows else None

    def _head(self, table: str) -> TableHead | None:
        if table not in self.heads and (body := self._found.get(table_key(self._leader.branch, table))) is not None:
            self.heads[table] = head_from_body(body)
        return self.heads.get(table)


def keys_of(offers: Iterable[BatchOffer]) -> set[str]:
    """Keys of all records that a plan looks at."""
    keys: set[str] = set()
    for publication in (offer.publication for offer in offers):
        branch = publication.branch
        keys |= {tip_key(branch), transaction_key(publication.transaction)}
        keys |= {table_key(branch, change.table) for change in publication.changes}
        keys |= {table_key(branch, read.table) for read in publication.reads}
        keys |= {name_key(branch, name) for name in publication.absent}
        keys |= set() if publication.key is None else {idempotency_key(publication.key)}
    return keys


@dataclass(slots=True)
class _Staged:
    """A version with the rows of several members, which waits for the decision."""

    head: TableHead
    access: StagedAccess
    step: VersionStep
    maker: str
    """The table's own transaction that made the version below it."""

    @property
    def store(self) -> ExternalStore:
        return cast(ExternalStore, self.access.store.inner)


class BatchLeader:
    """Commits what others offer together with what the leader wants to commit.

    Args:
        lake: as the leader has it.
        own: what the leader wants to commit.
        ticket: its turn, which shows who waits.
    """

    def __init__(self, lake: Lake, own: BatchOffer, ticket: ShowsOffers) -> None:
        self._lake, self._own, self._ticket = lake, own, ticket
        self._branch, self._line = own.publication.branch, own.publication.line
        self._names: dict[str, str] = {}
        """What the ticket calls each member."""

    def lead(self, waiting: Sequence[tuple[str, BatchOffer]]) -> None:
        """Commits a batch, if there are members for one. Whether the leader is committed its record tells.

        Args:
            waiting: offers, each with what the ticket calls its author.
        """
        self._names = {offer.transaction: name for name, offer in waiting}
        offers = [offer for _, offer in waiting if offer.durability == self._own.durability and offer.transaction != self._own.transaction]
        left_out: set[str] = set()
        for _ in range(_TRIES):
            there = [offer for offer in offers if offer.transaction not in left_out]
            try:
                plan = self._plan(there)
                if len(plan.members) < 2:
                    return
                gone = self._without_files(plan)
                left_out |= gone
                if not gone and not self._adopts(plan) and self._commit(plan, left_out):
                    return
            except TiltyardError as error:
                _log.info("transaction %s is published alone, without the waiting ones: %s", self._own.transaction, error)
                return

    # ---- before the decision ---------------------------------------------------------------------------------------------------

    def _plan(self, offers: Sequence[BatchOffer]) -> BatchPlan:
        found = self._lake.catalog.records.get(keys_of([self._own, *offers]))
        plan = BatchPlan(self._own.publication, found)
        if plan.take(self._own):
            for offer in offers:
                if len(plan.members) < MOST_MEMBERS:
                    plan.take(offer)
        return plan

    def _adopts(self, plan: BatchPlan) -> bool:
        """Adopts versions of writers that do not know the catalog, which may have a number that the batch would take."""
        found = False
        for table, writers in plan.writers.items():
            head = plan.heads[table]
            change = next(each for each in writers[0].publication.changes if each.table == table)
            mine = replace(head, branch=change.branch or head.branch, owner=self._line)
            path = manifest_path(head.version + 1, Scheme(head.naming))
            store = cast(ExternalStore, self._lake.access_of(mine, self._branch).store)
            if not is_missing(store.inner, path):  # past the ledger: nobody else's version may have the number
                adopt_foreign(self._lake, store, mine, self._branch, self._line)
                found = True
        return found

    def _without_files(self, plan: BatchPlan) -> set[str]:
        """Members whose files a cleanup has taken for orphans, or has had the time to where only they can tell."""
        now, gone = self._lake.catalog.runtime.clock.monotonic(), set[str]()
        for table, writers in plan.writers.items():
            head, plain = plan.heads[table], self._lake.plain_access_of(plan.heads[table])
            for offer in writers:
                change = next(each for each in offer.publication.changes if each.table == table)
                rows = offer.rows.get(table)
                named = [path for each in rows.transactions for path in new_files(each.operation, None)] if rows is not None else []
                try:
                    store = plain.on_branch(change.branch or head.branch).store
                    check_there(store, sorted({*offer.files[table], *named}), "transaction", ask=now - offer.begun >= LOOK_AFTER)
                except (StorageError, KeyError):
                    gone.add(offer.transaction)
        if self._own.transaction in gone:
            raise StorageError("the leader's own files are gone")  # its own commit meets that, and says so
        return gone

    # ---- the decision ----------------------------------------------------------------------------------------------------------

    def _commit(self, plan: BatchPlan, left_out: set[str]) -> bool:
        """Commits a batch; False where it is to be put together anew."""
        batch = self._lake.catalog.runtime.random.uuid()
        staged: dict[str, _Staged] = {}
        try:
            for table in sorted(plan.folded):
                staged[table] = self._staged(batch, plan, table)
            publication = self._publication(batch, plan, staged)
            self._lake.catalog.publish(publication)
        except MembersError as error:
            _drop(staged.values())
            left_out |= {*error.members}
            return False
        except StaleError:
            _drop(staged.values())
            return False
        except (AbortedError, ExpiredError):
            _drop(staged.values())
            return True
        except TiltyardError as error:
            if not (isinstance(error, StorageError) and error.maybe_applied):
                _drop(staged.values())
            raise
        self._finish(publication, plan, staged)
        return True

    def _staged(self, batch: str, plan: BatchPlan, table: str) -> _Staged:
        """Stages one version with the rows of all who write to a table."""
        writers, head = plan.writers[table], replace(plan.heads[table], owner=self._line)
        base, scheme = max(offer.publication.base for offer in plan.members), Scheme(head.naming)
        access = self._lake.access_of(head, self._branch, None, base, batch, _says(plan).to_text())
        staged = staged_access(access, batch, head.version, scheme)
        branch, kept = self._lake.opened(head).latest or (None, None)
        file, maker = load_head(staged, head, kept if branch == head.branch else None)
        if columns_of(file.manifest) != writers[0].rows[table].columns:
            raise StorageError(f"{head.name} has other columns than the rows of those who wait")
        several: list[Transaction] = [each for offer in writers for each in offer.rows[table].transactions]
        try:
            staged.stage_rows(file, scheme, self._lake.catalog.runtime.random.uuid(), several)
        except TiltyardError:
            staged.drop_versions()
            raise
        (version,), (commit,) = staged.store.own(), staged.recorded
        step = VersionStep(version.version, version.path, version.staged, commit.transaction.uuid, commit.operation.name)
        return _Staged(head, staged, step, maker)

    def _publication(self, batch: str, plan: BatchPlan, staged: dict[str, _Staged]) -> Publication:
        changes = []
        for table, writers in plan.writers.items():
            several = [change for offer in writers for change in offer.publication.changes if change.table == table]
            if table not in staged:
                changes += several
                continue
            head = plan.heads[table]
            built = partial(Change, table, "write", head.name, base_branch=head.branch or "", base_transaction=staged[table].maker)
            read = min(change.read or change.base for change in several)
            changes.append(built(base=head.version, read=read, steps=(staged[table].step,), branch=head.branch))
        members = plan.members
        says = _says(plan)
        return Publication(
            batch,
            tuple(changes),
            self._branch,
            tuple(dict.fromkeys(read for offer in members for read in offer.publication.reads)),
            author=self._lake.author,
            message=says.message,
            isolation="serializable" if all(offer.publication.isolation == "serializable" for offer in members) else "snapshot",
            base=max(offer.publication.base for offer in members),
            line=self._line,
            absent=tuple(dict.fromkeys(name for offer in members for name in offer.publication.absent)),
            names=next((offer.publication.names for offer in members if offer.publication.names is not None), None),
            members=tuple(map(member_of, members)),
        )

    # ---- after it --------------------------------------------------------------------------------------------------------------

    def _finish(self, publication: Publication, plan: BatchPlan, staged: dict[str, _Staged]) -> None:
        """Gives the versions of several their names, and has members look. Each names the tables that it alone writes to by itself."""
        alone = is_alone(publication)
        members = [name for offer in plan.members if (name := self._names.get(offer.transaction)) is not None]

        def tell() -> None:
            if not alone:  # else each would find the version without its name, and begin to name it
                self._ticket.tell(members)

        work = []
        for each in staged.values():
            pending = (publication.transaction, False, each.head.owner)
            version = Pending(
                each.head.id, self._branch, each.head.branch, each.step.version, each.step.path, each.step.staged or "", *pending
            )
            work.append(([version], each.store))
        try:
            voided = finish(self._lake.catalog, work, alone=alone, named=tell, awaited=len(work))
        except TiltyardError as error:  # each member meets it as well, where its own versions wait for their names
            _log.warning("batch %s is committed, but not finished yet: %s", publication.transaction, error)
            self._ticket.tell(members)
            return
        if voided:
            _drop(staged.values())
        else:
            for each in staged.values():
                each.access.store.clear(published=True)
                self._lake.opened(each.head).keep(each.head.branch, each.access.log.last_read(each.step.version))
        self._ticket.tell(members)


def member_of(offer: BatchOffer) -> SnapshotMember:
    """A member as the snapshot of the batch has it."""
    told = offer.publication
    tables = tuple(change.table for change in told.changes)
    said = (told.author, told.message, dict(told.properties))
    return SnapshotMember(told.transaction, *said, tables=tables, isolation=told.isolation, base=told.base, key=told.key)


def _says(plan: BatchPlan) -> Says:
    return Says(f"batch of {len(plan.members)} transactions")


def _drop(staged: Collection[_Staged]) -> None:
    for each in staged:
        each.access.drop_versions()
