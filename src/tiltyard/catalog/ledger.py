"""The account of one table of a lake: its versions are decided in the catalog, alone or together with those of other tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.lake_values import MAIN, Change, Moved, Publication, SnapshotMember, TableHead, VersionStep
from tiltyard.catalog.marks import AUTHOR, SAYS, TRANSACTION, Says, base_in, without_marks
from tiltyard.catalog.publishing import AbortedError, MembersError, StaleError
from tiltyard.catalog.records import Found
from tiltyard.catalog.value_codec import table_key
from tiltyard.errors import AlreadyExists, CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, StorageError
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.interfaces import CommitHandler, CommitQueue, ObjectStore
from tiltyard.storage.external import ExternalHandler, ExternalStore, UnfinishedError, VersionClaim
from tiltyard.storage.handlers import handler_for
from tiltyard.storage.staged import STAGED
from tiltyard.transaction.group import GROUP, GroupMember, members_of
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.operations import MAINTENANCE
from tiltyard.transaction.transaction import MESSAGE_PROPERTY, Transaction, is_transaction_id
from tiltyard.transaction.verify import PARENT, transaction_id

FOREIGN: Final = "a writer that does not know the catalog"
_ADOPTIONS: Final = 16
"""How often somebody else may be faster in adopting the same versions."""


def maker_of(data: bytes, path: str) -> Transaction:
    """Whose work a version is, from its bytes: ours always carry their transaction inside."""
    return maker_in(decode_manifest_file(data, source=path, check=False), path)


def maker_in(file: ManifestFile, path: str) -> Transaction:
    """Whose work a version is that was read already."""
    if file.transaction is None:
        raise CorruptTable(path, "it does not say which transaction made it")
    return Transaction.from_bytes(file.transaction, path)


class ElsewhereError(Exception):
    """Not the table, or not the line of history, that was remembered: whoever publishes has to look. Nothing was committed."""


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
        line: id of that line of history.
        origin: what the catalog had when the table's branch was forked for this line; None where it was not.
    """

    catalog: Catalog
    table: str
    name: str
    lake_branch: str = MAIN
    branch: str | None = None
    author: str = ""
    line: str = ""
    origin: TableHead | None = None
    queue: CommitQueue | None = None
    """Where its commits wait for each other; without one a version has none but its own."""
    store: ObjectStore | None = None
    known: dict[int, Pending] = field(default_factory=dict)
    known_as: str = ""
    """The name that the table was remembered by, not looked up; it is compared while the table is locked. Empty where it was looked up."""

    def unfinished(self) -> Sequence[VersionClaim]:
        found = self.catalog.pending(self.table, self.branch)
        self.known = {pending.version: pending for pending in found}
        return [VersionClaim(pending.version, pending.path, pending.staged, pending.bytes if pending.data else b"") for pending in found]

    def claim(self, claim: VersionClaim, data: bytes) -> None:
        self.claim_for(claim, maker_of(data, claim.path))

    def claim_for(self, claim: VersionClaim, transaction: Transaction) -> None:
        """``claim``, for a version whose transaction is known."""
        content = not isinstance(transaction.operation, MAINTENANCE)
        step = VersionStep(claim.version, claim.path, claim.staged, transaction.uuid, transaction.operation.name, content)
        base_branch, base_transaction = self._base(claim.version - 1, transaction)
        change = Change(
            self.table,
            "write",
            self.name,
            claim.version - 1,
            transaction.read_version,
            (step,),
            branch=self.branch,
            base_branch=base_branch,
            base_transaction=base_transaction,
        )
        publication = Publication(
            transaction.uuid,
            (change,),
            self.lake_branch,
            author=self.author,
            message=transaction.message,
            properties=without_marks(transaction.properties),
            line=self.line,
            members=self._members(transaction),
            data=b64encode(claim.data).decode(),
        )
        try:
            done = self.catalog.publish(publication, self._check_name) if self.known_as else self.catalog.publish(publication)
        except MembersError as error:
            self._leave_out(error.members)
            raise StorageError(
                f"{claim.path} is retried without {len(error.members)} transactions that were committed or refused on their own.",
                name=claim.path,
                transient=True,
            ) from None
        except StaleError as stale:
            moved = stale.moved[0]
            if self.known_as and not (moved.kind == "write" and moved.actual is not None and moved.actual >= claim.version):
                raise ElsewhereError from None
            raise self._refused(claim, moved) from None
        except AbortedError:
            raise StorageError(
                f"The commit of {claim.path} was aborted by a cleanup of the lake.",
                advice="Nothing was committed. Run it again; give cleanups a longer grace.",
                name=claim.path,
            ) from None
        if done.replayed:
            raise AlreadyExists(f"{claim.path!r} was claimed before.", name=claim.path)
        self.known[claim.version] = Pending(
            self.table, self.lake_branch, self.branch, claim.version, claim.path, claim.staged, transaction.uuid, alone=True, line=self.line
        )

    def _check_name(self, found: Found) -> None:
        """Looks, while the table is locked, whether it has the name by which it was remembered.

        Raises:
            ElsewhereError: it has another one, or is gone.
        """
        if found.get(table_key(self.lake_branch, self.table), {}).get("name") != self.known_as:
            raise ElsewhereError

    def _members(self, transaction: Transaction) -> tuple[SnapshotMember, ...]:
        """The others whose commits are in a version that was made here."""
        if self.queue is None:
            return ()
        return group_members(transaction)

    def _leave_out(self, members: Iterable[str]) -> None:
        """Has others who wait commit by themselves, and meet by themselves what is in their way."""
        assert self.queue is not None
        place = self.queue.place(self.catalog.runtime.random.uuid(), 0.0)
        for member in members:
            place.answer(member)

    def _base(self, version: int, transaction: Transaction) -> tuple[str, str]:
        """The table's branch and the transaction that a version was built on, as the catalog knows them."""
        if self.origin is not None and self.origin.version == version:
            return self.origin.branch or "", self.origin.transaction  # the fork's first version is a copy that the catalog has not heard of
        return self.branch or "", transaction.properties.get(PARENT, "")

    def _refused(self, claim: VersionClaim, moved: Moved) -> Exception:
        if moved.kind in ("line", "replaced"):
            return another_line(self.name, self.lake_branch, moved)
        if moved.actual is None:
            return HistoryUnavailable(
                f"{self.name} was dropped from the lake.", read_version=moved.expected, advice="Nothing was committed."
            )
        if moved.actual >= claim.version:
            return AlreadyExists(f"{claim.path!r} is taken.", name=claim.path)
        assert self.store is not None
        assert moved.head is not None
        adopt(self.catalog, self.store, replace(moved.head, branch=self.branch), self.lake_branch, self.line, moved.head)
        return UnfinishedError()

    def settle(self, claim: VersionClaim, *, foreign: bool) -> None:
        pending = self.known.get(claim.version)
        if pending is None or pending.staged != claim.staged:
            return  # finished by somebody else meanwhile
        if not foreign:
            self.catalog.settle([pending])
        elif pending.alone:
            assert self.store is not None
            self.catalog.void(pending, foreign_maker(self.store, pending.version, pending.path))
        else:
            raise self.set_apart(pending)

    def set_apart(self, pending: Pending) -> CorruptTable:
        """Stops writing to a table whose number two writers have, and says so."""
        why = (
            f"version {pending.version} was committed by transaction {pending.transaction} together with other tables, "
            f"but {FOREIGN} took {pending.path}"
        )
        self.catalog.quarantine(pending, why)
        return CorruptTable(self.name.replace("$", "."), why, advice="Run `tiltyard lake repair`.")


def group_members(transaction: Transaction) -> tuple[SnapshotMember, ...]:
    """The others whose commits are in a version, as it tells of them, each once: single verbs, or the transactions of a batch."""
    found: dict[str, SnapshotMember] = {}
    for member in members_of(transaction):
        told = _batch_member(member) if is_batch(transaction) else _single_member(member)
        if told.transaction not in (transaction.uuid, transaction.properties.get(TRANSACTION)):
            found[told.transaction] = told
    return tuple(found.values())


def is_batch(transaction: Transaction) -> bool:
    """Whether a version has new rows of several transactions over any number of tables; one of a single verb is decided by its own."""
    return GROUP in transaction.properties and transaction.properties.get(TRANSACTION, transaction.uuid) != transaction.uuid


def _single_member(member: GroupMember) -> SnapshotMember:
    told = member.properties
    return SnapshotMember(member.transaction_id, told.get(AUTHOR, ""), member.message, _said(told))


def _batch_member(member: GroupMember) -> SnapshotMember:
    told = member.properties
    name, says = told.get(TRANSACTION, ""), Says.from_text(told.get(SAYS, ""))
    identity = name if is_transaction_id(name) else member.transaction_id
    return SnapshotMember(identity, told.get(AUTHOR, ""), says.message, dict(says.properties), base=base_in(told), key=says.key)


def _said(properties: Mapping[str, str]) -> dict[str, str]:
    """What a member says of itself, but for its message, which is told apart."""
    return {key: value for key, value in without_marks(properties).items() if key != MESSAGE_PROPERTY}


def another_line(name: str, branch: str, moved: Moved) -> ExpectedVersionMismatch:
    """The error for a single verb whose handle was opened on a line of history that is not there any more."""
    what = "is another branch than" if moved.kind == "line" else "has another version of it than"
    return ExpectedVersionMismatch(
        f"{name.replace('$', '.')}: branch {branch!r} {what} the handle was opened on.",
        table=name.replace("$", "."),
        expected=moved.expected,
        actual=moved.actual,
        cause=moved.kind,
        advice="Nothing was committed. Open the table again with lake.table().",
    )


def foreign_maker(store: ObjectStore, version: int, path: str) -> str:
    """The transaction of a version that a foreign writer made; empty where it does not say."""
    inner = store.inner if isinstance(store, ExternalStore) else store
    return transaction_id(decode_manifest_file(inner.get(path), source=path, version=version, check=False))


def decided_in_lake(
    catalog: Catalog, head: TableHead, home: str, lake_branch: str, author: str, origin: TableHead | None = None
) -> Callable[[str, ObjectStore], tuple[ObjectStore, CommitHandler]]:
    """For ``Place.decided_by``: versions of a table are decided in the catalog of its lake.

    Args:
        catalog: of the lake.
        head: the table, with the line of history that writes to it as its owner.
        home: where it lives.
        lake_branch: the lake's line of history.
        author: who writes.
        origin: what the catalog has, where the table was forked for this line just now.
    """

    def outside(uri: str, store: ObjectStore) -> tuple[ObjectStore, CommitHandler]:
        if uri != home:
            return store, handler_for(store)  # a branch of the table's own, which the lake knows nothing of
        queue = catalog.queues(head, lake_branch, author) if origin is None else None  # a fork has a version that no queue knows of
        ledger = LakeLedger(catalog, head.id, head.name, lake_branch, head.branch, author, head.owner, origin, queue)
        runtime = catalog.runtime
        shown = ExternalStore(store, ledger, runtime)
        ledger.store = shown
        return shown, ExternalHandler(ledger, lambda path: f"{STAGED}{runtime.random.uuid()}/{path.rpartition('/')[2]}", queue)

    return outside


def adopt(catalog: Catalog, store: ObjectStore, head: TableHead, lake_branch: str, line: str, origin: TableHead | None = None) -> TableHead:
    """Takes versions into the catalog that a foreign writer committed; the head as it is then.

    Args:
        catalog: of the lake.
        store: of the branch of the table that the head names.
        head: where the line of history is; it owns that branch of the table.
        lake_branch, line: the branch of the lake, and which line of that name.
        origin: what the catalog has, where the table was forked for this line and nothing was committed since.

    Raises:
        CorruptTable: a version between the catalog's head and theirs is missing or says another one.
        ExpectedVersionMismatch: the branch of the lake is another line by now.
    """
    log = VersionLog(store)
    for _ in range(_ADOPTIONS):
        found = log.head()
        if found is None or found[0] <= head.version:
            return head
        steps, writer = _foreign_steps(log, head, found[0], found[1])
        base = origin or head
        change = Change(
            head.id, "adopt", head.name, head.version, head.version, steps, branch=head.branch,
            base_branch=base.branch or "", base_transaction=base.transaction,
        )  # fmt: skip
        publication = Publication(
            catalog.runtime.random.uuid(), (change,), lake_branch, author=writer, message=f"adopted from {FOREIGN}", line=line
        )
        try:
            catalog.publish(publication)
        except StaleError as stale:
            moved = stale.moved[0]
            if moved.kind == "line" or (moved.head is not None and moved.head.branch != head.branch):
                raise another_line(head.name, lake_branch, moved) from None
            if moved.head is None:
                raise HistoryUnavailable(f"{head.name} was dropped from the lake.", read_version=head.version) from None
            head, origin = moved.head, None
            continue
        except StorageError as error:
            if not error.maybe_applied:
                raise
            continue  # whoever adopts them anew finds out whether they are adopted
        newest = max((step.version for step in steps if step.content), default=0)
        return replace(head, version=found[0], data_version=max(head.data_version, newest), transaction=steps[-1].transaction)
    raise StorageError(
        f"{head.name}: others commit faster than their versions can be adopted.",
        advice="Have them commit through the lake, or try again later.",
        name=head.name,
        transient=True,
    )


def _foreign_steps(log: VersionLog, head: TableHead, newest: int, scheme: Scheme) -> tuple[tuple[VersionStep, ...], str]:
    """The versions above a head that the store has, and who wrote the latest."""
    steps = []
    for version in range(head.version + 1, newest + 1):
        try:
            theirs: CreatedVersion = log.committed(version, scheme)
        except LookupError as error:
            raise CorruptTable(
                head.name.replace("$", "."),
                f"version {version} is missing, but a later version {newest} exists that a foreign writer committed",
            ) from error
        operation = theirs.transaction.operation
        content = not isinstance(operation, MAINTENANCE)
        steps.append(VersionStep(version, manifest_path(version, scheme), None, theirs.transaction.uuid, operation.name, content))
    return tuple(steps), str(theirs.manifest.writer or "")
