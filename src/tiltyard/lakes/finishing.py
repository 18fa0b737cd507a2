"""Finishes what a writer committed and could not finish. Any number of processes may do so at once."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.ledger import LakeLedger, adopt, foreign_maker
from tiltyard.catalog.publishing import LEADER
from tiltyard.errors import ContentionError, CorruptTable, NotFound, StorageError
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.storage.external import ExternalStore, VersionClaim, discard, finalize
from tiltyard.transaction.verify import transaction_id
from tiltyard.verbs.engine.access import TableAccess

_log = logging.getLogger("tiltyard.lake")


class LakeBase(Protocol):
    """A lake, from within."""

    url: str
    author: str

    @property
    def catalog(self) -> Catalog: ...

    def access_of(
        self, head: TableHead, branch: str, origin: TableHead | None = None, base: int = 0, transaction: str = "", says: str = ""
    ) -> TableAccess:
        """Where a table lives, with its versions decided in the catalog."""


def is_certain(lake: LakeBase, transaction: str) -> bool:
    """Whether a transaction the catalog has as committed stays so; False where it was given up to a writer that does not know the catalog.

    Raises:
        StorageError: nobody can say before the store answers.
    """
    known = lake.catalog.transaction(transaction)
    version = transaction if known is None else str(known.get(LEADER, transaction))  # it may be in somebody else's
    if _waits(lake, version):
        recover(lake)
        if _waits(lake, version):
            raise StorageError(
                f"Transaction {transaction} is committed in the catalog, but its versions cannot be written to the store yet.",
                advice="Try again once the store accepts writes.",
                transient=True,
            )
    return lake.catalog.transaction(transaction) is not None


def _waits(lake: LakeBase, transaction: str) -> bool:
    return any(pending.transaction == transaction and pending.alone for pending in lake.catalog.pending())


def recover(lake: LakeBase, tables: Sequence[tuple[str, str | None]] | None = None) -> int:
    """Gives all committed versions their final names; how many there were. A table that cannot be finished keeps nobody from the others.

    Args:
        lake: whose versions.
        tables: only of these, by their ids and branches of their own; of all without.
    """
    by_table: dict[tuple[str, str, str, str | None], list[Pending]] = defaultdict(list)
    waiting = lake.catalog.pending() if tables is None else [each for table in tables for each in lake.catalog.pending(*table)]
    for pending in waiting:
        by_table[pending.lake_branch, pending.line, pending.table, pending.branch].append(pending)
    done = 0
    for (branch, _, table, _), versions in by_table.items():
        try:
            head = _head_of(lake, versions[0])
            if head is None:
                continue  # dropped before it was finished; cleanup takes all of it
            store = cast(ExternalStore, lake.access_of(head, branch).store)
            finish(lake.catalog, [(versions, store)], alone=versions[0].alone)
            done += len(versions)
        except (ContentionError, CorruptTable, NotFound, StorageError) as error:
            _log.warning("version %s of table %s is not finished: %s", versions[0].version, table, error)
    return done


def _head_of(lake: LakeBase, pending: Pending) -> TableHead | None:
    """Where a version waits. The branch of the lake may be another line by now, whose table of that id is on another branch of its own."""
    if pending.location:
        return TableHead(pending.table, pending.table, pending.location, pending.version, 0, branch=pending.branch, owner=pending.line)
    head = lake.catalog.cut(pending.lake_branch).by_id(pending.table)
    return None if head is None else replace(head, branch=pending.branch)


def finish(
    catalog: Catalog,
    work: Sequence[tuple[Sequence[Pending], ExternalStore]],
    *,
    alone: bool = False,
    named: Callable[[], None] = lambda: None,
    awaited: int = 0,
) -> list[Pending]:
    """Finishes versions of several tables, with one word to the catalog for all of them.

    Args:
        catalog: of the lake.
        work: versions of a table, and its store.
        alone: whether there is nothing else in the snapshot, so that it can be given up if somebody took the number.
        named: called when the versions of the first so many tables have their names.
        awaited: how many those are.

    Returns:
        Versions that had to be given up to a writer that does not know the catalog.

    Raises:
        CorruptTable: such a writer has the number of a version that was committed together with others; writing there is stopped.
        StorageError: the store failed; whoever reads next goes on.
    """
    done: list[tuple[Pending, ExternalStore]] = []
    voided: list[Pending] = []
    apart: list[tuple[Pending, ExternalStore]] = []
    for number, (versions, store) in enumerate(work):
        if number == awaited:
            named()
        for version in versions:
            foreign = _finalize(catalog, version, store)
            if foreign is False:
                done.append((version, store))
            elif foreign and alone:
                catalog.void(version, foreign_maker(store, version.version, version.path))
                voided.append(version)
            elif foreign:
                apart.append((version, store))
            elif alone and catalog.transaction(version.transaction) is None:
                voided.append(version)  # somebody else saw that the number was taken, and gave it up
    named()
    if _settled(catalog, [pending for pending, _ in done]):
        for pending, store in done:
            discard(store.inner, claim_of(pending))
    errors = [_set_apart(pending, store) for pending, store in apart]
    if errors:
        raise errors[0]
    return voided


def _settled(catalog: Catalog, done: Sequence[Pending]) -> bool:
    """Tells the catalog which versions have their names, which is no part of the commit: if it fails, the next one who looks does it."""
    try:
        catalog.settle(done)
    except (StorageError, ContentionError) as error:
        _log.info("%s versions have their names, which the catalog does not know yet: %s", len(done), error)
        return False
    return True


def _finalize(catalog: Catalog, one: Pending, store: ExternalStore) -> bool | None:
    return finalize(store.inner, claim_of(one), store.is_conditional(), lambda: one.key in catalog.records.get([one.key]))


def _set_apart(one: Pending, store: ExternalStore) -> CorruptTable:
    ledger = store.ledger
    assert isinstance(ledger, LakeLedger)
    return ledger.set_apart(one)


def finish_before(lake: LakeBase, cut: Cut, head: TableHead, branch: str) -> None:
    """Sees that a version which a cut of a branch names has its name before anybody reads it.

    Raises:
        CorruptTable: somebody else has the name.
    """
    if cut.is_unfinished(head):
        cast(ExternalStore, lake.access_of(head, branch).store).finish()


def load_head(access: TableAccess, head: TableHead, known: ManifestFile | None = None) -> tuple[ManifestFile, str]:
    """The version that a head names, which is certain to be the one that was committed, before anybody reads it; and who made it.

    The version says itself which transaction made it. Where that is another one than the catalog knows, ours has not got its name yet.

    Args:
        access: the table, with its versions decided in the catalog.
        head: what the catalog says.
        known: a version of this line that has its final name. If it is this one it is not read again.

    Raises:
        CorruptTable: somebody else has the name.
    """
    if known is not None and known.manifest.version == head.version and access.verify is None:
        maker = transaction_id(known)
        if head.transaction and maker == head.transaction:
            return access.trusted(known), maker
    scheme = Scheme(head.naming)
    store: object = access.store
    while not isinstance(store, ExternalStore):  # a transaction's own is around it
        store = store.inner  # type: ignore[attr-defined]
    try:
        file = access.load(head.version, scheme, lazily=True)
    except CorruptTable:
        if not store.finish():  # what a power loss left of a version that the catalog still has the bytes of
            raise
        file = access.load(head.version, scheme, lazily=True)
    maker = transaction_id(file)
    if head.transaction and maker == head.transaction:
        return file, maker
    if store.finish():
        file = access.load(head.version, scheme, lazily=True)
    return file, transaction_id(file)


def adopt_foreign(lake: LakeBase, store: ExternalStore, head: TableHead, branch: str, line: str) -> None:
    """Adopts versions above one that is built on, if a writer made them that does not know the catalog: our numbers would be taken.

    Args:
        lake: the lake.
        store: of the branch of the table that is written to.
        head: the table on that branch, with the version that is built on.
        branch, line: the branch of the lake, and which line of that name.
    """
    known = next(iter(lake.catalog.heads([head.id], branch)), None)
    # A version that the catalog knows is nobody's but a rival's. One that is forked for this line may have nothing committed yet.
    if known is not None and known.version <= head.version:
        adopt(lake.catalog, store, replace(known, branch=head.branch), branch, line, known)


def claim_of(pending: Pending) -> VersionClaim:
    return VersionClaim(pending.version, pending.path, pending.staged, pending.bytes if pending.data else b"")
