"""One transaction over several tables: a base that is read once, writes that only it sees, and one step that publishes all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Cut, Isolation, Moved, Publication, ReadLevel, TableHead
from tiltyard.catalog.ledger import adopt
from tiltyard.catalog.marks import Says
from tiltyard.catalog.publishing import COMMITTED, AbortedError, ExpiredError, Published, StaleError, is_alone
from tiltyard.catalog.staging import StagedAccess, remove_owner, staged_access, write_owner
from tiltyard.errors import (
    AlreadyExists,
    ConflictError,
    ContentionError,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StorageError,
    TiltyardError,
)
from tiltyard.format.names import Scheme
from tiltyard.lakes.branches.table_branches import forked
from tiltyard.lakes.conflict_report import mismatch, name_table
from tiltyard.lakes.finishing import finish, finish_before, is_certain
from tiltyard.lakes.lake_tables import TransactionTable
from tiltyard.lakes.read_set import Names, ReadSet
from tiltyard.lakes.recovery.journal import note_names
from tiltyard.lakes.spark_door import TransactionDoor
from tiltyard.lakes.staged_table import StagedTable, rearrange
from tiltyard.lakes.table_names import check_idempotency_key, directory_of, full_name, shown
from tiltyard.options import CommitOptions, OnDuplicate, TableOptions
from tiltyard.transaction.backoff import wait_before
from tiltyard.transaction.transaction import MESSAGE_PROPERTY
from tiltyard.transaction.verify import transaction_id
from tiltyard.verbs.distributed.commit_files import create_from_pieces
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import Committed, commit_terms
from tiltyard.verbs.write import NewTable, Writing, create_table

if TYPE_CHECKING:
    from tiltyard.lake import Lake

TRIES: Final = 16
"""How often a publication is tried before the lake is said to be too busy."""
WAIT_UNIT: Final = 0.025
"""Seconds; the first wait between two tries is at most twice as long, the next four times, and so on."""
LOOKS: Final = 5
"""How often the catalog is asked what became of a publication whose answer was lost."""

_log = logging.getLogger("tiltyard.lake")

State = Literal["open", "committing", "in doubt", "committed", "rolled back"]


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """What became of a transaction.

    Attributes:
        snapshot: the snapshot it made; the latest one if it changed nothing.
        transaction_id: for ``Lake.outcome``.
        tables: the version of each table that it wrote to.
        attempts: how many times it was published; more than one if others were faster.
        rebased: tables whose writes were rebased, with the versions they were rebased over.
        replayed: whether a transaction with the same idempotency key had been committed before; then nothing was written now.
        seconds: how long publishing took.
    """

    snapshot: int
    transaction_id: str
    tables: Mapping[str, int]
    attempts: int = 1
    rebased: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    replayed: bool = False
    seconds: float = 0.0


class LakeTransaction(TransactionDoor):
    """A transaction over any number of tables. ``Lake.transaction`` begins it.

    Attributes:
        id: for ``Lake.outcome``.
        base: the snapshot it sees.
        result: what it came to, once it is committed.
    """

    def __init__(
        self,
        lake: Lake,
        isolation: Isolation,
        message: str | None,
        key: str | None,
        properties: Mapping[str, str] | None,
        branch: str,
    ) -> None:
        if isolation not in ("snapshot", "serializable"):
            raise InvalidInput(f"isolation is 'snapshot' or 'serializable', not {isolation!r}.", argument="isolation")
        self._lake = lake
        self._catalog: Catalog = lake.catalog
        self._isolation: Isolation = isolation
        self._message = properties_with_message(None, message).get(MESSAGE_PROPERTY, "")
        self._key = check_idempotency_key(key)
        self._properties = properties_with_message(properties, None)
        self._branch = branch
        self._cut: Cut = lake.catalog.cut(branch)
        self._reads = ReadSet(self._cut)
        self._names = Names(self._cut, self._reads)
        self._state: State = "open"
        self._lock = threading.RLock()
        self._by_name: dict[str, StagedTable] = {}
        self._rebased: dict[str, tuple[int, ...]] = {}
        self._attempts = 0
        self._doubted = False
        self._alone = False
        self._publish_by: Callable[[Publication], Published] | None = None
        self.id = lake.catalog.runtime.random.uuid()
        self.result: LakeCommit | None = None

    @property
    def base(self) -> int:
        return self._cut.snapshot

    @property
    def _says(self) -> str:
        return Says(self._message, self._properties, self._key).to_text()

    @property
    def in_doubt(self) -> bool:
        """Whether it is not known what became of it; ``commit`` finds out."""
        return self._state == "in doubt"

    def __repr__(self) -> str:
        return f"LakeTransaction({self.id}, {self._state}, base={self.base})"

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Names of all tables as this transaction sees them."""
        self.check_open()
        with self._lock:
            return sorted(shown(name) for name in self._names.list(self._by_name))

    def table(self, name: str) -> TransactionTable:
        """A table as this transaction sees it; the same handle however often it is asked for.

        Raises:
            NotFound: there is none of that name.
        """
        touched = self._touch(full_name(name))
        with touched.lock:
            self.check_open()
            if touched.handle is None:
                self._open(touched)
            assert touched.handle is not None
            return touched.handle

    def _touch(self, full: str) -> StagedTable:
        with self._lock:
            self.check_open()
            found = self._names.find(full, self._by_name)
            if found is None:
                raise NotFound(f"There is no table {shown(full)!r} in the lake.", name=shown(full), advice="See lake.tables().")
            if isinstance(found, StagedTable):
                return found
            fresh = StagedTable(found.id, full, head=found, base=found.version, ground=found, location=found.location)
            return self._by_name.setdefault(full, fresh)

    def _open(self, touched: StagedTable) -> None:
        assert touched.head is not None
        finish_before(self._cut, touched.head, self._lake.access_of(touched.head, self._branch))
        head = touched.head = forked(self._lake, touched.head, self._branch, self._cut.line)
        access = self._lake.access_of(head, self._branch, touched.ground, self.base, self.id, self._says)
        scheme = Scheme(head.naming)
        staged = staged_access(access, self.id, head.version, scheme)
        touched.file = staged.load(head.version, scheme, lazily=True)
        if touched.ground is not None and touched.ground.branch == head.branch:
            # Finishing it may have given the number to a foreign writer's version: what was read is what counts.
            touched.ground = replace(touched.ground, transaction=transaction_id(touched.file))
        touched.access = staged
        touched.handle = TransactionTable(self, touched.id, shown(touched.name), staged, touched.file, scheme)

    def create_table(
        self,
        name: str,
        data_or_schema: Any,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
    ) -> TransactionTable:
        """Creates a table with the commit; arguments are those of ``Lake.create_table``.

        Raises:
            AlreadyExists: the name is taken.
            InvalidInput: the options ask for V1 names of manifests, which a lake does not have.
        """
        given = options or TableOptions()
        new = NewTable.of(primary_key, stable_row_ids, given)
        if new.scheme is not Scheme.V2:
            raise InvalidInput("Tables of a lake have V2 names of manifests.", argument="manifest_naming")
        described = properties_with_message(given.properties, given.message)
        how = Writing(given.files, given.on_duplicate)
        return self._make_table(name, "", lambda access: create_table(access, data_or_schema, new, described, how))

    def create_table_from_pieces(
        self,
        name: str,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> TransactionTable:
        """Creates a table with the commit, from files that other processes wrote.

        Args:
            name: what it is called.
            task: made by ``Lake.new_table_task``, which says where, and what the table is like.
            pieces: what ``task.write`` returned.
            on_duplicate: what to do, with a primary key, about duplicate keys.
            leftovers: as for ``t.distributed.append``.
            message: a sentence for the history.
            commit: properties for it; nothing else of it applies.

        Raises:
            AlreadyExists: the name is taken.
        """
        if not isinstance(task, WriteTask) or not task.table_id:
            raise InvalidInput("The task was not made for a new table of a lake.", argument="task", advice="Use lake.new_table_task().")
        described, _ = commit_terms(commit, message)
        make = partial(create_from_pieces, task=task, pieces=pieces, on_duplicate=on_duplicate, properties=described, leftovers=leftovers)
        return self._make_table(name, task.table_id, make)

    def _make_table(self, name: str, table_id: str, make: Callable[[StagedAccess], Committed]) -> TransactionTable:
        full = full_name(name)
        with self._lock:
            self.check_open()
            if self._names.find(full, self._by_name) is not None:
                raise AlreadyExists(f"There is a table {shown(full)!r} in the lake already.", name=shown(full))
            identity = table_id or self._catalog.runtime.random.uuid()
            touched = StagedTable(identity, full, location=directory_of(full, identity))
            before = self._by_name.get(full)
            if before is not None:
                self._by_name[f"{full} {before.id}"] = before  # dropped by this very transaction; it still has to be published
            self._by_name[full] = touched
        with touched.lock:
            head = TableHead(identity, full, touched.location, 0, 0)
            access = self._lake.access_of(head, self._branch, None, self.base, self.id, self._says)
            staged = staged_access(access, self.id, 0, Scheme.V2)
            try:
                write_owner(staged, self._lake.marks_of(head, self._branch, self.base, self.id), self._cut.line)
                _, file = make(staged)
            except BaseException:
                remove_owner(staged)
                with self._lock:
                    self._by_name.pop(full, None)
                    if before is not None:
                        self._by_name.pop(f"{full} {before.id}", None)
                        self._by_name[full] = before
                raise
            touched.access, touched.file = staged, file
            touched.handle = TransactionTable(self, identity, shown(full), staged, file, Scheme.V2)
            return touched.handle

    def drop_table(self, name: str) -> None:
        """Drops a table with the commit. Its files stay until the lake is cleaned up.

        Raises:
            NotFound: there is none of that name.
        """
        touched = self._touch(full_name(name))
        with touched.lock, self._lock:
            self.check_open()
            touched.dropped = True
            if touched.access is not None:
                touched.access.throw_away()  # whatever was written to it goes with it
            if touched.handle is not None:
                touched.handle.dropped = True
            touched.access = touched.handle = None
            if touched.head is None:  # made by this very transaction
                self._by_name.pop(touched.name, None)

    def rename_table(self, name: str, to: str) -> None:
        """Gives a table another name when the transaction is committed. It stays the same table.

        Raises:
            NotFound: there is none of that name.
            AlreadyExists: the new name is taken.
        """
        old, new = full_name(name), full_name(to)
        touched = self._touch(old)
        with touched.lock, self._lock:
            if self._names.find(new, self._by_name) is not None:
                raise AlreadyExists(f"There is a table {shown(new)!r} in the lake already.", name=shown(new))
            before = self._by_name.get(new)
            if before is not None:
                self._by_name[f"{new} {before.id}"] = before
            del self._by_name[old]
            self._by_name[new] = touched
            if touched.head is not None:
                touched.former = touched.head.name if touched.head.name != new else ""
            touched.name = new
            if touched.handle is not None:
                touched.handle.name = shown(new)

    # ---- for fast-forward ------------------------------------------------------------------------------------------------------

    @property
    def cut(self) -> Cut:
        """All tables at the transaction's base. Using it counts as reading the names and versions of all."""
        self._reads.note_everything()
        return self._cut

    def staged(self, name: str) -> StagedAccess:
        """Where a table's versions of this transaction are made."""
        self.table(name)
        touched = self._touch(full_name(name))
        self._reads.note(touched.id, "table")
        assert touched.access is not None
        return touched.access

    def publish_through(self, publish: Callable[[Publication], Published]) -> None:
        """Has another step of the catalog decide, which does more than publish. Nothing is rebased then."""
        self._publish_by = publish

    def rearrange(self, names: Mapping[str, str], dropped: Collection[str], taken_in: Iterable[TableHead]) -> None:
        """Moves names as a set, so that their order does not matter: swapped, dropped and new ones.

        Args:
            names: new full names by tables' ids.
            dropped: ids of tables that go.
            taken_in: tables that are there already, on another branch of the lake; the owner of each is who may write to it afterwards.
        """
        heads = {head.id: head for head in self._cut.tables.values()}
        with self._lock:
            for table in (*names, *dropped):
                self._touch(heads[table].name)
            rearrange(self._by_name, heads, names, dropped, taken_in)

    # ---- the end ---------------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises for a transaction that is used up: nothing it would say holds any more."""
        if self._state != "open":
            raise InvalidInput(f"The transaction {self.id} is {self._state}; begin another one.", argument="transaction")

    def note_read(self, table: str, level: ReadLevel) -> None:
        """Has a table in the read set: from a handle, which was asked for it."""
        self._reads.note(table, level)

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def rollback(self) -> None:
        """Throws everything away. Nothing of it was ever visible."""
        if self._state == "in doubt":
            raise InvalidInput(
                f"Whether {self.id} was committed is not known, so nothing of it can be thrown away.", argument="transaction"
            )
        self.check_open()
        self._state = "rolled back"
        self._throw_away()

    def _throw_away(self) -> None:
        for touched in self._by_name.values():
            if touched.access is not None:
                touched.access.throw_away()

    def commit(self) -> LakeCommit:
        """Publishes all writes in one step. After ``OutcomeUnknown`` it may be called again, and finds out.

        Raises:
            ExpectedVersionMismatch: other writers changed a table, and the rules do not allow a rebase.
            ConflictError: what the rules for one table say.
            ContentionError: others were faster, too often.
            OutcomeUnknown: not known yet; call ``Lake.outcome``.
        """
        if self._state != "in doubt":
            self.check_open()
        self._doubted |= self._state == "in doubt"
        self._state = "committing"
        started = self._catalog.runtime.clock.monotonic()
        try:
            done = self._publish()
            return self._finished(done, started)
        except OutcomeUnknown:
            self._state = "in doubt"
            raise
        except TiltyardError:
            if self._state == "committing":
                self._state = "rolled back"
                self._throw_away()
            raise
        except BaseException:
            self._state = "in doubt"  # interrupted: perhaps after the catalog had it
            raise

    def _publish(self) -> Published:
        while True:
            publication = self._publication()
            self._alone = is_alone(publication)
            if not publication.changes and not publication.reads and publication.key is None and self._publish_by is None:
                return Published(self.base, self.id)
            self._attempts += 1
            try:
                if not self._doubted:
                    self._look_for_foreign()
                    self._look_for_files()
                done = (self._publish_by or self._catalog.publish)(publication)
                if done.transaction == self.id or is_certain(self._lake, done.transaction):
                    return done
            except StaleError as stale:
                # The record of this very transaction was looked at before its tables: an earlier try, of which no answer came, failed too.
                self._doubted = False
                self._carry_over(stale)
            except AbortedError:
                raise ConflictError(
                    f"Transaction {self.id} was taken for dead and its files are gone.", operation="transaction", retryable=True,
                    advice="Run it again from the beginning.",
                ) from None  # fmt: skip
            except ExpiredError:
                raise self._expired() from None
            except (StorageError, ContentionError) as error:
                self._doubted |= isinstance(error, StorageError) and error.maybe_applied
                if not self._doubted:
                    raise
                if (known := self._ask(error)) is not None:
                    return known
                if self._attempts >= TRIES:
                    raise self._unknown(error) from error
            if self._attempts >= TRIES:
                raise ContentionError(
                    f"Transaction {self.id} found tables moved by others {self._attempts} times.", operation="transaction",
                    attempts=self._attempts,
                )  # fmt: skip
            self._catalog.runtime.clock.sleep(wait_before(self._attempts - 1, WAIT_UNIT, self._catalog.runtime))

    def _ask(self, error: TiltyardError) -> Published | None:
        """What became of a publication whose answer was lost; None where the catalog does not know of it, so that trying again tells."""
        for look in range(LOOKS):
            try:
                return self._known()
            except StorageError:
                self._catalog.runtime.clock.sleep(wait_before(look, WAIT_UNIT, self._catalog.runtime))
        raise self._unknown(error) from error

    def _unknown(self, error: TiltyardError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Whether transaction {self.id} was committed is not known yet ({error}).",
            transaction_id=self.id,
            version=0,
            uri=self._lake.url,
            advice="Nothing was deleted. Call commit() again, or lake.outcome(id).",
        )

    def _expired(self) -> TiltyardError:
        """For one begun before transactions whose records have expired: its own record may have been among them."""
        what = f"Transaction {self.id} was begun at snapshot {self.base}, and outcomes of that time have expired"
        if self._doubted:
            return OutcomeUnknown(
                f"{what}: whether it was committed is not known.", transaction_id=self.id, version=0, uri=self._lake.url,
                advice="Look at the tables. Nothing was deleted.",
            )  # fmt: skip
        return HistoryUnavailable(f"{what}.", read_version=self.base, advice="Run it again from the beginning.")

    def _known(self) -> Published | None:
        known = self._catalog.transaction(self.id)
        return Published(int(known["snapshot"]), self.id) if known is not None and known["state"] == COMMITTED else None

    def _publication(self) -> Publication:
        changes = tuple(change for touched in self._by_name.values() if (change := touched.change()) is not None)
        publication = Publication(
            self.id, changes, self._branch, (), self._key, self._lake.author, self._message, self._properties,
            self._isolation, self.base, self._cut.line,
        )  # fmt: skip
        if self._isolation != "serializable" or not changes:
            return publication  # a cut is consistent by itself: a transaction that only reads has its place right after its base
        reads = self._reads
        return replace(publication, reads=reads.expectations(), absent=reads.absent, names=reads.names)

    def _look_for_foreign(self) -> None:
        """Adopts versions of writers that do not know the catalog, so that ours are not given numbers that are taken."""
        for touched in self._by_name.values():
            if touched.head is None or touched.access is None or not touched.wrote:
                continue
            store = touched.store
            first = min(touched.access.staging.private.items(), key=lambda one: one[1].version)[0]
            try:
                store.inner.head(first)  # past the ledger: what is committed and not finished yet, publishing finds out
            except NotFound:
                continue
            cut = self._catalog.cut(self._branch)
            head = cut.by_id(touched.id)
            if head is not None and cut.line == self._cut.line:
                there = replace(head, branch=touched.head.branch)  # it may be forked for this line and nothing committed there yet
                adopt(self._catalog, store, there, self._branch, cut.line, head)

    def _look_for_files(self) -> None:
        """A cleanup whose clock is days ahead may have taken what we wrote for orphans."""
        for touched in self._by_name.values():
            if touched.access is not None and touched.wrote and not touched.dropped:
                try:
                    touched.access.check_files()
                except StorageError:
                    known = self._catalog.transaction(self.id)
                    if known is not None and known["state"] != COMMITTED:
                        raise AbortedError from None  # a cleanup of this very lake gave the transaction up first
                    raise

    # ---- when others were faster -----------------------------------------------------------------------------------------------

    def _carry_over(self, stale: StaleError) -> None:
        """Makes our writes again on tables that others moved, where the rules allow it; only on those."""
        for moved in stale.moved:
            touched = next((table for table in self._by_name.values() if table.id == moved.table), None)
            _log.warning(
                "conflict in the catalog: %s is at %s, expected %s (try %s of %s)",
                shown(moved.name), moved.actual, moved.expected, self._attempts, TRIES,
                extra={"table": shown(moved.name), "expected": moved.expected, "actual": moved.actual, "transaction": self.id},
            )  # fmt: skip
            if moved.kind != "write" or touched is None or moved.head is None or not self._can_follow(touched, moved):
                raise self._mismatch(moved)
            assert touched.access is not None
            assert touched.file is not None
            try:
                touched.access.replay(touched.file, moved.head.version)
            except ConflictError as error:
                raise name_table(error, self._catalog, self._branch, self.base, moved) from None
            first = touched.head.version if touched.head is not None else 0
            self._rebased[shown(moved.name)] = tuple(range(first + 1, moved.head.version + 1))
            touched.base, touched.ground = moved.head.version, moved.head

    def _can_follow(self, touched: StagedTable, moved: Moved) -> bool:
        if touched.access is None or touched.handle is None or touched.head is None or moved.head is None:
            return False
        if touched.dropped or touched.former or not touched.wrote:
            return False
        if self._publish_by is not None or moved.head.branch != touched.head.branch:
            return False
        # What was read of it is compared in the catalog, before anything is carried over.
        changed = moved.head.data_version != touched.head.data_version
        strict = self._isolation == "serializable" and changed
        return touched.access.can_replay(blind_only=strict)

    def _mismatch(self, moved: Moved) -> ExpectedVersionMismatch:
        return mismatch(self._catalog, self._branch, self.base, self.id, moved)

    # ---- when it is done -------------------------------------------------------------------------------------------------------

    def _finished(self, done: Published, started: float) -> LakeCommit:
        ours = done.transaction == self.id
        written = [table for table in self._by_name.values() if table.wrote and not table.dropped]
        result = LakeCommit(
            done.snapshot,
            done.transaction,
            {shown(table.name): table.newest for table in written} if ours else {},
            max(self._attempts, 1),
            dict(self._rebased),
            replayed=not ours,
            seconds=self._catalog.runtime.clock.monotonic() - started,
        )
        self._state = "committed"
        if ours and any(table.defines for table in self._by_name.values()):
            note_names(self._lake, self._branch, done.snapshot, self.id, self._says)
        if ours:
            self._give_names(written)
        else:
            self._throw_away()
        self.result = result
        return result

    def _give_names(self, written: list[StagedTable]) -> None:
        """Brings what was committed to its final place. If the store fails, whoever reads next does it."""
        items = [(table.pending(self.id, self._branch), table.store) for table in written]
        try:
            voided = finish(self._catalog, items, alone=self._alone)
        except (StorageError, ContentionError) as error:
            if self._alone:  # somebody who does not know the catalog may still take the number, and then it is not committed
                raise self._unknown(error) from error
            _log.warning("transaction %s is committed, but not finished yet: %s", self.id, error)
            voided = []
        for touched in written:
            assert touched.access is not None
            touched.access.staging.clear(published=True)
        if voided:
            self._state = "rolled back"
            self._throw_away()
            raise self._mismatch(Moved(voided[0].table, written[0].name, "foreign", voided[0].version - 1, voided[0].version))
