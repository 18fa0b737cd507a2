"""The account of one table of a lake: its versions are decided in the catalog, alone or together with those of other tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.publishing import AbortedError, StaleError
from tiltyard.catalog.staging import STAGED, UPKEEP
from tiltyard.catalog.values import MAIN, Change, Moved, Publication, Step, TableHead
from tiltyard.errors import AlreadyExists, CorruptTable, HistoryUnavailable, StorageError
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.interfaces import CommitHandler, ObjectStore
from tiltyard.storage.external import Claim, ExternalHandler, ExternalStore, UnfinishedError
from tiltyard.storage.handlers import handler_for
from tiltyard.transaction.log import Committed, VersionLog
from tiltyard.transaction.transaction import Transaction

FOREIGN: Final = "a writer that does not know the catalog"
_ADOPTIONS: Final = 16
"""How often somebody else may be faster in adopting the same versions."""


def maker_of(data: bytes, path: str) -> Transaction:
    """Whose work a version is, from its bytes: ours always carry their transaction inside."""
    file = decode_manifest_file(data, source=path, check=False)
    if file.transaction is None:
        raise CorruptTable(path, "it does not say which transaction made it")
    return Transaction.from_bytes(file.transaction, path)


@dataclass(slots=True)
class LakeLedger:
    """One table's account in the catalog.

    Attributes:
        catalog: of the lake.
        table: its id.
        name: what it was called when it was opened, for messages and the history.
        lake_branch: the lake's line of history.
        branch: the table's own branch it lives on there.
        author: who writes.
    """

    catalog: Catalog
    table: str
    name: str
    lake_branch: str = MAIN
    branch: str | None = None
    author: str = ""
    store: ObjectStore | None = None
    known: dict[int, Pending] = field(default_factory=dict)

    def unfinished(self) -> Sequence[Claim]:
        found = self.catalog.pending(self.table, self.branch)
        self.known = {one.version: one for one in found}
        return [Claim(one.version, one.path, one.staged) for one in found]

    def claim(self, claim: Claim, data: bytes) -> None:
        transaction = maker_of(data, claim.path)
        content = not isinstance(transaction.operation, UPKEEP)
        step = Step(claim.version, claim.path, claim.staged, transaction.uuid, transaction.operation.name, content)
        change = Change(self.table, "write", self.name, claim.version - 1, transaction.read_version, (step,), branch=self.branch)
        publication = Publication(
            transaction.uuid,
            (change,),
            self.lake_branch,
            author=self.author,
            message=transaction.message,
            properties=transaction.properties,
        )
        try:
            done = self.catalog.publish(publication)
        except StaleError as stale:
            raise self._refused(claim, stale.moved[0]) from None
        except AbortedError:
            raise StorageError(f"The commit of {claim.path} was given up by a cleanup of the lake.", name=claim.path) from None
        if done.replayed:
            raise AlreadyExists(f"{claim.path!r} was claimed before.", name=claim.path)
        self.known[claim.version] = Pending(
            self.table, self.lake_branch, self.branch, claim.version, claim.path, claim.staged, transaction.uuid, alone=True
        )

    def _refused(self, claim: Claim, moved: Moved) -> Exception:
        if moved.actual is None:
            return HistoryUnavailable(
                f"{self.name} was dropped from the lake.", read_version=moved.expected, advice="Nothing was committed."
            )
        if moved.actual >= claim.version:
            return AlreadyExists(f"{claim.path!r} is taken.", name=claim.path)
        assert self.store is not None
        assert moved.head is not None
        adopt(self.catalog, self.store, moved.head, self.lake_branch)
        return UnfinishedError()

    def settle(self, claim: Claim, *, foreign: bool) -> None:
        pending = self.known.get(claim.version)
        if pending is None or pending.staged != claim.staged:
            return  # finished by somebody else meanwhile
        if not foreign:
            self.catalog.settle([pending])
        elif pending.alone:
            self.catalog.void(pending)
        else:
            raise self.set_apart(pending)

    def set_apart(self, pending: Pending) -> CorruptTable:
        """Stops writing to a table whose number two writers have, and says so."""
        why = (
            f"version {pending.version} was committed by transaction {pending.transaction} together with other tables, "
            f"but {FOREIGN} took {pending.path}"
        )
        self.catalog.quarantine(pending, why)
        return CorruptTable(self.name, why, advice="Run `tiltyard lake repair`.")


def decided_in_lake(
    catalog: Catalog, head: TableHead, home: str, lake_branch: str, author: str
) -> Callable[[str, ObjectStore], tuple[ObjectStore, CommitHandler]]:
    """For ``Place.decided_by``: versions of a table are decided in the catalog of its lake. ``home`` is where it lives."""

    def outside(uri: str, store: ObjectStore) -> tuple[ObjectStore, CommitHandler]:
        if uri != home:
            return store, handler_for(store)  # a branch of the table's own, which the lake knows nothing of
        ledger = LakeLedger(catalog, head.id, head.name, lake_branch, head.branch, author)
        runtime = catalog.runtime
        shown = ExternalStore(store, ledger, runtime)
        ledger.store = shown
        return shown, ExternalHandler(ledger, lambda path: f"{STAGED}{runtime.random.uuid()}/{path.rpartition('/')[2]}")

    return outside


def adopt(catalog: Catalog, store: ObjectStore, head: TableHead, lake_branch: str = MAIN) -> TableHead:
    """Takes versions into the catalog that somebody committed without it; the head as it is then.

    Raises:
        CorruptTable: a version between the catalog's head and theirs is missing or says another one.
    """
    log = VersionLog(store)
    for _ in range(_ADOPTIONS):
        found = log.head()
        if found is None or found[0] <= head.version:
            return head
        steps = []
        for version in range(head.version + 1, found[0] + 1):
            try:
                theirs: Committed = log.committed(version, found[1])
            except LookupError as error:
                raise CorruptTable(head.name, f"version {version} is missing below {found[0]}, which is not the catalog's") from error
            operation = theirs.transaction.operation
            content = not isinstance(operation, UPKEEP)
            steps.append(Step(version, log.path(version, found[1]), None, theirs.transaction.uuid, operation.name, content))
        change = Change(head.id, "adopt", head.name, head.version, head.version, tuple(steps))
        writer = str(theirs.manifest.writer or "")
        publication = Publication(catalog.runtime.random.uuid(), (change,), lake_branch, author=writer, message=f"adopted from {FOREIGN}")
        try:
            catalog.publish(publication)
        except StaleError as stale:
            moved = stale.moved[0]
            if moved.head is None:
                raise HistoryUnavailable(f"{head.name} was dropped from the lake.", read_version=head.version) from None
            head = moved.head
            continue
        except StorageError as error:
            if not error.maybe_applied:
                raise
            continue  # whoever adopts them anew finds out whether they are adopted
        newest = max((one.version for one in steps if one.content), default=0)
        return replace(head, version=found[0], data_version=max(head.data_version, newest))
    raise StorageError(f"{head.name}: others commit faster than their versions can be adopted.", name=head.name, transient=True)
